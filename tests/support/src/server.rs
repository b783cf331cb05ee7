//! Starts servers for tests and tools, each in a private folder, and ends them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult};
use rustix::process::{kill_process, Pid};
use tempfile::TempDir;

use crate::process::{dies_with_this_thread, process, raise_open_files, send, Signal};
use crate::{call, cli_program, free_port, info, module, server_program, wait_for, DEADLINE};

/// The version of RESP that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resp {
    /// RESP2.
    Two,
    /// RESP3.
    Three,
}

/// A running server. It listens on a socket in its folder. When this value is dropped, the server is killed and the folder removed.
pub struct Server {
    child: Child,
    dir: TempDir,
    program: String,
    options: Vec<String>,
    module: bool,
    /// The TCP port on the loopback interface; 0 if the server listens on none.
    pub port: u16,
}

impl Server {
    /// Starts the server to test on, with the module loaded.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts the server to test on, with the module loaded and with these options.
    pub fn with(options: &[&str]) -> Self {
        Self::launch(&server_program(), true, 0, options)
    }

    /// Starts this program, with or without the module, on a free port.
    pub fn of(program: &str, module: bool, options: &[&str]) -> Self {
        let options = options.iter().map(ToString::to_string).collect::<Vec<_>>();
        Self::on_ports(program, module, |[]: &[u16; 0]| options.clone()).0
    }

    /// As [`Self::with`], on a free port.
    pub fn on_port(options: &[&str]) -> Self {
        Self::of(&server_program(), true, options)
    }

    /// Starts a server that replicates this one, and waits until it has synchronised.
    pub fn replica(&self, options: &[&str]) -> Self {
        let address = format!("127.0.0.1 {}", self.port);
        let replica = Self::on_port(&[&["--replicaof", &address], options].concat());
        replica.wait_until_linked();
        replica
    }

    /// Waits until this replica has synchronised.
    pub fn wait_until_linked(&self) {
        let mut client = self.client();
        wait_for("the replica", || call::<String>(&mut client, "INFO replication").contains("master_link_status:up"));
    }

    /// Waits until a replica has received all that this server has sent.
    pub fn wait_until_in_step(&self, replica: &Self) {
        let (mut client, mut other) = (self.client(), replica.client());
        let offset = info(&mut client, "replication", "master_repl_offset");
        wait_for("the replica", || info(&mut other, "replication", "slave_repl_offset") >= offset);
    }

    /// Starts this program on a free port, with options that name more of them. If another process takes one of the ports first,
    /// it tries others.
    pub fn on_ports<const N: usize>(
        program: &str,
        module: bool,
        options: impl Fn(&[u16; N]) -> Vec<String>,
    ) -> (Self, [u16; N]) {
        let mut tries = 1..=10;
        loop {
            let ports = std::array::from_fn(|_| free_port());
            match Self::try_launch(program, module, free_port(), options(&ports)) {
                Ok(server) => return (server, ports),
                Err(log) => assert!(tries.next().is_some(), "no port stays free: {log}"),
            }
        }
    }

    /// Prepares a server that loads a copy of this RDB file when it starts. It does not run yet: [`Self::restart`] starts it.
    pub fn on_snapshot(file: &Path, options: &[&str]) -> Self {
        let mut server = Self::on_port(options);
        server.crash();
        std::fs::copy(file, server.dir().join("dump.rdb")).expect("a copy of the snapshot");
        server
    }

    /// Adds an option to those that the server is started with next time.
    pub fn add_option(&mut self, words: &[&str]) {
        self.options.extend(words.iter().map(ToString::to_string));
    }

    /// Starts a cluster node that has no slots.
    pub fn node() -> Self {
        let options = |[bus]: &[u16; 1]| {
            let bus = bus.to_string();
            ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-require-full-coverage", "no"]
                .map(String::from)
                .into()
        };
        Self::on_ports(&server_program(), true, options).0
    }

    /// Starts a server whose options keep it from starting, and returns its log. Panics if the server does start.
    pub fn refusing(options: &[&str]) -> String {
        Self::refusal(true, options)
    }

    /// As [`Self::refusing`], without the module.
    pub fn refusing_without_module(options: &[&str]) -> String {
        Self::refusal(false, options)
    }

    fn refusal(module: bool, options: &[&str]) -> String {
        let dir = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let mut child = Self::spawn(dir.path(), &server_program(), 0, &options, module);
        let start = Instant::now();
        while child.try_wait().expect("the server's state").is_none() {
            if start.elapsed() > DEADLINE {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the server started: {options:?}");
            }
            sleep(Duration::from_millis(5));
        }
        std::fs::read_to_string(dir.path().join("server.out")).unwrap_or_default()
    }

    /// Starts a program and waits until it answers. With port 0 the server listens on its socket only.
    fn launch(program: &str, module: bool, port: u16, options: &[&str]) -> Self {
        let options = options.iter().map(ToString::to_string).collect();
        Self::try_launch(program, module, port, options).unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    /// As [`Self::launch`]. The log, if another process has the port.
    fn try_launch(program: &str, module: bool, port: u16, options: Vec<String>) -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
        let child = Self::spawn(dir.path(), program, port, &options, module);
        let mut server = Self { child, dir, program: program.into(), options, module, port };
        match server.try_wait_until_up() {
            Err(log) if log.contains("Address already in use") => Err(log),
            Err(log) => panic!("the server did not start: {log}"),
            Ok(()) => Ok(server),
        }
    }

    fn spawn(dir: &Path, program: &str, port: u16, options: &[String], with_module: bool) -> Child {
        // All tests of a process connect from the same process.
        static MORE_FILES: Once = Once::new();
        MORE_FILES.call_once(|| {
            raise_open_files();
        });
        let log = std::fs::File::create(dir.join("server.out")).expect("a log file");
        let mut command = Command::new(program);
        dies_with_this_thread(&mut command, Signal::KILL);
        command
            .args([
                "--repl-diskless-sync-delay",
                "0",
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--unixsocket",
                "server.sock",
                "--save",
                "",
            ])
            .args(["--enable-debug-command", "yes", "--enable-module-command", "yes", "--loglevel", "warning"])
            .args(with_module.then_some("--loadmodule"))
            .args(with_module.then(module))
            .args(options)
            .current_dir(dir)
            .stdout(log.try_clone().expect("the log file"))
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} does not run: {error}"))
    }

    fn wait_until_up(&mut self) {
        self.try_wait_until_up().unwrap_or_else(|log| panic!("the server did not start: {log}"));
    }

    /// Waits until the server answers. Its log, if it does not.
    fn try_wait_until_up(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            if let Ok(mut client) = self.try_client(Resp::Two) {
                if redis::cmd("PING").query::<String>(&mut client).is_ok() {
                    return Ok(());
                }
            }
            let exited = self.child.try_wait().expect("the server's state");
            if exited.is_some() || start.elapsed() >= DEADLINE {
                return Err(format!("{exited:?}\n{}", self.log()));
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// What the server has written to its log since it was started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.out")).unwrap_or_default()
    }

    /// The server's folder, which is its working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The path of the socket that the server listens on.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("server.sock")
    }

    /// Connects a client that speaks this version of RESP. Fails if the server ends the connection.
    pub fn try_client(&self, resp: Resp) -> RedisResult<Connection> {
        let protocol = if resp == Resp::Three { "resp3" } else { "resp2" };
        let connection = redis::Client::open(format!("redis+unix://{}?protocol={protocol}", self.socket().display()))?
            .get_connection()?;
        connection.set_read_timeout(Some(DEADLINE))?;
        Ok(connection)
    }

    /// Connects a client of the library `redis`, which speaks RESP2.
    pub fn client(&self) -> Connection {
        self.client_of(Resp::Two)
    }

    /// This server, and a client that is connected to it.
    pub fn and_client(self) -> (Self, Connection) {
        let client = self.client();
        (self, client)
    }

    /// Connects a client that speaks this version of RESP.
    pub fn client_of(&self, resp: Resp) -> Connection {
        self.try_client(resp).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Runs a command in the command line client, and returns what that prints.
    pub fn cli(&self, options: &[&str], words: &[&str]) -> String {
        let client = cli_program();
        let output = Command::new(client).arg("-s").arg(self.socket()).args(options).args(words).output();
        let output = output.unwrap_or_else(|error| panic!("{client} does not run: {error}"));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the server's process.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Returns a guard that kills the server when it is dropped. Threads that wait for a reply then end, also if the test fails.
    pub fn killed_at_the_end(&self) -> impl Drop {
        struct Killer(Pid);
        impl Drop for Killer {
            fn drop(&mut self) {
                let _ = kill_process(self.0, Signal::KILL);
            }
        }
        Killer(process(self.pid()))
    }

    /// Kills the server without a chance to save anything, as a power cut does.
    pub fn crash(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
    }

    /// Starts a server that was killed, with the same folder and options.
    pub fn restart(&mut self) {
        self.child = Self::spawn(self.dir.path(), &self.program, self.port, &self.options, self.module);
        self.wait_until_up();
    }

    /// [`Self::crash`], then [`Self::restart`].
    pub fn crash_and_restart(&mut self) {
        self.crash();
        self.restart();
    }

    /// Writes the append-only file anew and waits until that has ended. A server that was killed while it wrote an effect of
    /// several commands needs this before more is written: it cuts the last command from the file and leaves the `MULTI`
    /// before it, which would swallow what follows (<https://github.com/valkey-io/valkey/pull/4342>).
    pub fn rewrite_append_only_file(&self) {
        let mut client = self.client();
        call::<()>(&mut client, "BGREWRITEAOF");
        wait_for("the rewrite", || info(&mut client, "persistence", "aof_rewrite_in_progress") == 0);
        assert!(call::<String>(&mut client, "INFO persistence").contains("aof_last_bgrewrite_status:ok"));
    }

    /// As [`Self::crash_and_restart`]; the server is started with or without the module from now on.
    pub fn crash_and_restart_with_module(&mut self, module: bool) {
        self.module = module;
        self.crash_and_restart();
    }

    /// The most memory that the process has used so far, in bytes. Unlike `used_memory` it includes the module's own heap.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
    }

    /// Whether the process that was started still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("the server's state").is_none()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has so many clients do `work`, each in a thread of its own with its number. Returns what they have returned.
pub fn crowd<T: Send>(server: &Server, clients: usize, work: impl Fn(usize, &mut Connection) -> T + Sync) -> Vec<T> {
    crowd_while(server, clients, || (), work).1
}

/// The same while this thread does `meanwhile`, which must end what the clients would do without an end.
pub fn crowd_while<M, T: Send>(
    server: &Server,
    clients: usize,
    meanwhile: impl FnOnce() -> M,
    work: impl Fn(usize, &mut Connection) -> T + Sync,
) -> (M, Vec<T>) {
    let clients: Vec<_> = (0..clients).map(|_| server.client()).collect();
    let work = &work;
    std::thread::scope(|scope| {
        let threads = clients.into_iter().enumerate();
        let threads = threads.map(|(number, mut client)| scope.spawn(move || work(number, &mut client)));
        let threads: Vec<_> = threads.collect();
        let done = meanwhile();
        (done, threads.into_iter().map(|thread| thread.join().expect("a client")).collect())
    })
}
