//! Tests of several processes. Such a test starts the test binary again as a worker process. The worker runs only the same test,
//! which sees that it is in a worker and does the worker's part instead.

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use support::{dies_with_this_thread, send, Signal};

/// The environment variable that holds a worker's task. Only workers have it.
const TASK: &str = "REDIS_RL_WORKER_TASK";

/// Begins each line that a worker writes for the test. The test harness writes lines of its own to the same output.
const MARK: &str = "worker: ";

/// In a worker process: does `work` with the worker's task, and ends the process. Elsewhere: does nothing.
pub fn work_if_worker(work: impl FnOnce(&str)) {
    if let Ok(task) = env::var(TASK) {
        work(&task);
        std::process::exit(0);
    }
}

/// In a worker process: writes a line for the test that has started it.
pub fn say(line: &str) {
    println!("{MARK}{line}");
}

/// A worker process. It is killed when this is dropped, and when the thread that has started it ends.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker of the test with this full name, such as `outgoing::calls_go_out_evenly_spaced`.
    pub fn start(test: &str, task: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("the path of this program"));
        command.args(["--exact", test, "--nocapture"]).env(TASK, task).stdin(Stdio::piped()).stdout(Stdio::piped());
        dies_with_this_thread(&mut command, Signal::KILL);
        let mut child = command.spawn().expect("a worker process");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, input, output }
    }

    /// The next line that the worker has written for the test; `None` when its output has ended.
    pub fn line(&mut self) -> Option<String> {
        self.output.find_map(|line| line.expect("text").split_once(MARK).map(|(_, line)| line.into()))
    }

    /// Writes a line to the worker's input.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the worker reads");
    }

    /// Sends the worker a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Waits until the worker has ended.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the worker's end")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
