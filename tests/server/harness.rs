//! The tests' own guarantees: a test that fails, or whose process is killed, leaves no thread and no server behind.
//!
//! Tests of several processes start the test binary again as a worker process. The worker runs only the same test, which sees that it
//! is in a worker and does the worker's part instead.

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use support::{call, dies_with_this_thread, is_process, limit, send, wait_for, Held, Load, Server, Signal};

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

/// Does `work` in a thread of its own, which has to end in time. Returns whether it has panicked.
fn fails_in_time(work: impl FnOnce() + Send + 'static) -> bool {
    let (end, ended) = channel();
    std::thread::spawn(move || {
        let _ = end.send(catch_unwind(AssertUnwindSafe(work)).is_err());
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

/// Starts a server, and sends the id of its process.
fn started(pids: &std::sync::mpsc::Sender<u32>, options: &[&str]) -> Server {
    let server = Server::with(options);
    pids.send(server.pid()).expect("the test receives");
    server
}

#[test]
fn a_scope_that_fails_ends_its_load_and_leaves_no_server() {
    static WORKING: AtomicUsize = AtomicUsize::new(0);
    let (pids, pid) = channel();
    let failed = fails_in_time(move || {
        let (server, load) = (started(&pids, &[]), Load::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = server.client();
                    WORKING.fetch_add(1, Ordering::SeqCst);
                    while load.goes_on() {
                        limit(&mut client, "RL.GCRA key 1000000 1");
                    }
                    WORKING.fetch_sub(1, Ordering::SeqCst);
                });
            }
            let _end = load.ends_here();
            wait_for("the load", || WORKING.load(Ordering::SeqCst) == 4);
            panic!("a panic on purpose");
        });
    });
    assert!(failed && WORKING.load(Ordering::SeqCst) == 0);
    assert!(!is_process(pid.recv().expect("a process")), "the server is still there");
}

#[test]
fn threads_that_wait_for_a_server_end_when_their_scope_fails() {
    let (pids, pid) = channel();
    let failed = fails_in_time(move || {
        let server = started(&pids, &[]);
        limit(&mut server.client(), "RL.GCRA key 1 1d");
        std::thread::scope(|scope| {
            let mut waiting = Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d");
            scope.spawn(move || waiting.reply().row.expect_err("the server is gone"));
            let _end = server.killed_at_the_end();
            panic!("a panic on purpose");
        });
    });
    assert!(failed);
    assert!(!is_process(pid.recv().expect("a process")), "the server is still there");
}

#[test]
fn a_load_without_an_end_fails() {
    let failed = fails_in_time(|| {
        let load = Load::lasting_at_most(Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(|| while load.goes_on() {});
        });
    });
    assert!(failed);
}

/// In the worker process: starts a server in another thread, as tests do, tells the test the id of the server's process, and
/// waits.
fn start_a_server_and_stay() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = Server::start();
            say(&server.pid().to_string());
            std::thread::sleep(Duration::from_secs(60));
        });
    });
}

#[test]
fn a_server_ends_with_a_process_that_is_killed() {
    work_if_worker(|_| start_a_server_and_stay());
    for signal in [Signal::KILL, Signal::ABORT, Signal::TERM] {
        let mut worker = Worker::start("harness::a_server_ends_with_a_process_that_is_killed", "");
        let server: u32 = worker.line().expect("a line").parse().expect("a process");
        assert!(is_process(server));
        worker.signal(signal);
        assert!(!worker.wait().success());
        // The process that adopts the server takes a moment to notice that it has ended.
        wait_for("the server to end", || has_ended(server));
    }
    // The counter-check: as long as its process runs, a server does not end by itself.
    let server = Server::start();
    assert_eq!(call::<String>(&mut server.client(), "PING"), "PONG");
    assert!(!has_ended(server.pid()));
}

/// Whether a process has ended. It may still have an id, because the process that has adopted it has not waited for it yet.
fn has_ended(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|state| state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))) || !is_process(pid)
}
