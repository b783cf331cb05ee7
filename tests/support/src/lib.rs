//! A server of a test's own: in a private folder, on a socket there (and on a free port if asked), gone when dropped.

pub mod fleet;
pub mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue, RedisResult, Value};
pub use rustix::process::Signal;
use rustix::process::{kill_process, kill_process_group, Pid};
use tempfile::TempDir;

/// Nothing here takes longer unless it is broken, on however busy a machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The top folder of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/support is two folders down")
}

/// The module under test: `REDIS_RL_MODULE`, or what `make build` has built.
pub fn module() -> PathBuf {
    let built = || root().join("target/release/libredis_rl.so");
    let path = std::env::var_os("REDIS_RL_MODULE").map_or_else(built, PathBuf::from);
    assert!(path.exists(), "{} is missing: run `make build`", path.display());
    path
}

/// Where cargo keeps the source of a package that the one with this manifest depends on.
pub fn package(manifest: &Path, name: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--quiet", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    let found = metadata["packages"].as_array().expect("packages").iter().find(|package| package["name"] == name);
    let manifest = found.expect("a dependency")["manifest_path"].as_str().expect("a path");
    Path::new(manifest).parent().expect("a folder").into()
}

/// The server to test on: the one that is named, or the one that `make build` found where none is called so, or redis-server.
pub fn server_program() -> String {
    let found = root().join("target/servers/installed/redis-server");
    let program = if found.exists() { found.display().to_string() } else { "redis-server".into() };
    std::env::var("REDIS_RL_SERVER").unwrap_or(program)
}

/// The command line client: either speaks to any server.
pub fn cli_program() -> &'static str {
    let runs = |program: &&str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    ["redis-cli", "valkey-cli"].into_iter().find(runs).expect("redis-cli or valkey-cli")
}

/// The version of RESP that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resp {
    Two,
    Three,
}

pub struct Server {
    child: Child,
    dir: TempDir,
    program: String,
    options: Vec<String>,
    module: bool,
    pub port: u16,
}

impl Server {
    /// A server with the module loaded.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with the module loaded and these options.
    pub fn with(options: &[&str]) -> Self {
        Self::launch(&server_program(), true, 0, options)
    }

    /// Any server, with or without the module, that also listens on a free port.
    pub fn of(program: &str, module: bool, options: &[&str]) -> Self {
        Self::launch(program, module, free_port(), options)
    }

    /// A server that also listens on a free port of the loopback interface.
    pub fn on_port(options: &[&str]) -> Self {
        Self::launch(&server_program(), true, free_port(), options)
    }

    /// A server on a free port, with the module loaded, that finds a copy of this file as its snapshot when it starts.
    pub fn on_snapshot(file: &Path, options: &[&str]) -> Self {
        let mut server = Self::on_port(options);
        server.crash();
        std::fs::copy(file, server.dir().join("dump.rdb")).expect("a copy of the snapshot");
        server
    }

    /// Sets an option for the next start, after those that are there.
    pub fn add_option(&mut self, words: &[&str]) {
        self.options.extend(words.iter().map(ToString::to_string));
    }

    /// A node of a cluster, without slots.
    pub fn node() -> Self {
        let bus = free_port().to_string();
        Self::on_port(&["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-require-full-coverage", "no"])
    }

    /// What the log of a server says that does not start, with these options.
    pub fn refusing(options: &[&str]) -> String {
        let dir = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let mut child = Self::spawn(dir.path(), &server_program(), 0, &options, true);
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

    fn launch(program: &str, module: bool, port: u16, options: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let child = Self::spawn(dir.path(), program, port, &options, module);
        let mut server = Self { child, dir, program: program.into(), options, module, port };
        server.wait_until_up();
        server
    }

    fn spawn(dir: &Path, program: &str, port: u16, options: &[String], with_module: bool) -> Child {
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
        let start = Instant::now();
        loop {
            if let Ok(mut client) = self.try_client(Resp::Two) {
                if redis::cmd("PING").query::<String>(&mut client).is_ok() {
                    return;
                }
            }
            let exited = self.child.try_wait().expect("the server's state");
            assert!(exited.is_none() && start.elapsed() < DEADLINE, "the server did not start: {exited:?}\n{}", self.log());
            sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.out")).unwrap_or_default()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("server.sock")
    }

    fn try_client(&self, resp: Resp) -> RedisResult<Connection> {
        let protocol = if resp == Resp::Three { "resp3" } else { "resp2" };
        let connection = redis::Client::open(format!("redis+unix://{}?protocol={protocol}", self.socket().display()))?
            .get_connection()?;
        connection.set_read_timeout(Some(DEADLINE))?;
        Ok(connection)
    }

    /// A client of the library `redis`.
    pub fn client(&self) -> Connection {
        self.client_of(Resp::Two)
    }

    pub fn client_of(&self, resp: Resp) -> Connection {
        self.try_client(resp).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// What redis-cli prints for a command.
    pub fn cli(&self, options: &[&str], words: &[&str]) -> String {
        let client = cli_program();
        let output = Command::new(client).arg("-s").arg(self.socket()).args(options).args(words).output();
        let output = output.unwrap_or_else(|error| panic!("{client} does not run: {error}"));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Kills the server when the guard goes: threads that wait for its replies end, also if the test fails meanwhile.
    pub fn killed_at_the_end(&self) -> impl Drop {
        struct Killer(Pid);
        impl Drop for Killer {
            fn drop(&mut self) {
                let _ = kill_process(self.0, Signal::KILL);
            }
        }
        Killer(process(self.pid()))
    }

    /// Kills the server as a power cut would.
    pub fn crash(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
    }

    /// Starts a server that was killed, on the same files.
    pub fn restart(&mut self) {
        self.child = Self::spawn(self.dir.path(), &self.program, self.port, &self.options, self.module);
        self.wait_until_up();
    }

    /// [`Self::crash`], then [`Self::restart`].
    pub fn crash_and_restart(&mut self) {
        self.crash();
        self.restart();
    }

    /// As [`Self::crash_and_restart`], but from now on with or without the module.
    pub fn crash_and_restart_with_module(&mut self, module: bool) {
        self.module = module;
        self.crash_and_restart();
    }

    /// The most memory that the process has taken so far, in bytes, what its modules allocate by themselves included.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
    }

    /// Whether it is still the process that was started.
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

/// Has a program killed by `signal` when the thread that starts it ends, or its process is killed: a destructor does not run then.
/// Whoever starts a program must outlive it; a test's own thread does.
pub fn dies_with_this_thread(command: &mut Command, signal: Signal) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpid, getppid, set_parent_process_death_signal};
        let parent = getpid();
        let prepare = move || {
            set_parent_process_death_signal(Some(signal))?;
            // The parent may have been killed before that.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::Error::other("the parent is gone"))
            }
        };
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing unless it fails.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (command, signal);
}

/// Raises the number of files that this process may open as far as the system lets it, and returns that number. Tests that run
/// side by side in one process share it, and most shells start programs with 1024.
pub fn raise_open_files() -> u64 {
    rlimit::increase_nofile_limit(u64::MAX).expect("the limit of open files")
}

fn process(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process")
}

/// Sends a process a signal. The program `kill` is not on every machine.
pub fn send(pid: u32, signal: Signal) {
    kill_process(process(pid), signal).unwrap_or_else(|error| panic!("{signal:?} to {pid}: {error}"));
}

/// Sends a signal to all processes of a group, if there are any.
pub fn send_to_group(group: u32, signal: Signal) {
    let _ = kill_process_group(process(group), signal);
}

/// Whether there is such a process; one that has ended and is yet to be waited for counts.
pub fn is_process(pid: u32) -> bool {
    rustix::process::test_kill_process(process(pid)).is_ok()
}

/// A load by the threads of a scope. It ends when what [`Load::ends_here`] returns is dropped: when the scope's own body ends, in
/// whichever way. A scope waits for its threads also when its body has failed.
pub struct Load {
    over: AtomicBool,
    until: Instant,
}

impl Default for Load {
    fn default() -> Self {
        Self::lasting_at_most(Duration::from_secs(180))
    }
}

impl Load {
    pub fn lasting_at_most(time: Duration) -> Self {
        Self { over: AtomicBool::new(false), until: Instant::now() + time }
    }

    /// Whether its threads are to go on. Nobody may forget to end it: past its time, this fails.
    pub fn goes_on(&self) -> bool {
        let over = self.over.load(Ordering::SeqCst);
        assert!(over || Instant::now() < self.until, "the load does not end");
        !over
    }

    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Ends the load when it is dropped.
    pub fn ends_here(&self) -> impl Drop + '_ {
        struct End<'a>(&'a Load);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        End(self)
    }
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The command that these words make.
pub fn command(words: &str) -> Cmd {
    let mut words = words.split_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

/// Calls a command, which must succeed.
pub fn call<T: FromRedisValue>(client: &mut Connection, words: &str) -> T {
    command(words).query(client).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// Calls a limiter: granted, limit, remaining, wait_ms, reset_ms.
pub fn limit(client: &mut Connection, words: &str) -> [i64; 5] {
    call::<Vec<i64>>(client, words).try_into().unwrap_or_else(|reply| panic!("{words}: {reply:?}"))
}

/// Calls a command, which must fail: its error as on the wire.
pub fn error(client: &mut Connection, command: &Cmd) -> String {
    match command.query::<Value>(client) {
        Err(error) => format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default()),
        Ok(reply) => panic!("no error but {reply:?}"),
    }
}

/// All that a key is: its bytes, and its deadline in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub value: Option<Vec<u8>>,
    pub deadline_ms: i64,
}

pub fn snapshot(client: &mut Connection, key: &str) -> Snapshot {
    Snapshot { value: call(client, &format!("GET {key}")), deadline_ms: call(client, &format!("PEXPIRETIME {key}")) }
}

/// Every key with its [`Snapshot`].
pub type Snapshots = BTreeMap<String, Snapshot>;

pub fn snapshots(client: &mut Connection) -> Snapshots {
    let keys: Vec<String> = call(client, "KEYS *");
    keys.into_iter().map(|key| (key.clone(), snapshot(client, &key))).collect()
}

/// Fails with the keys that are not the same in both.
pub fn assert_same(left: &Snapshots, right: &Snapshots) {
    let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differ: Vec<_> = keys.into_iter().filter(|&key| left.get(key) != right.get(key)).collect();
    assert!(differ.is_empty(), "{differ:?} differ, the first: {:?} and {:?}", left.get(differ[0]), right.get(differ[0]));
    assert!(!left.is_empty());
}

/// The server's clock, in microseconds.
pub fn time_us(client: &mut Connection) -> i64 {
    let (seconds, us): (i64, i64) = call(client, "TIME");
    seconds * 1_000_000 + us
}

/// A call on a connection of its own, which the server may hold back: it has it, and its reply is yet to be read. The server is
/// asked for its time before the call and after it, on the same connection.
pub struct Held {
    connection: Connection,
    /// The client's number at the server.
    pub id: i64,
}

/// What a [`Held`] call came to: the five integers or the error, and when, by the server's clock.
#[derive(Debug)]
pub struct Reply {
    pub row: Result<[i64; 5], String>,
    /// Before the server looked at the call, in microseconds.
    pub sent_us: i64,
    /// When the server had answered it; `None` if the connection ended.
    pub at_us: Option<i64>,
}

impl Reply {
    pub fn at_us(&self) -> i64 {
        self.at_us.unwrap_or_else(|| panic!("the connection has ended: {self:?}"))
    }

    /// How many units were granted.
    pub fn granted(&self) -> i64 {
        self.row.as_ref().unwrap_or_else(|error| panic!("{error}"))[0]
    }
}

impl Held {
    /// Sends a call, and sees to it that the server has read it: whatever is sent next comes after it.
    pub fn send(server: &Server, words: &str) -> Self {
        Self::prepare(server, Resp::Two).call(&mut server.client(), words)
    }

    /// A client that has not called yet.
    pub fn prepare(server: &Server, resp: Resp) -> Self {
        let mut connection = server.client_of(resp);
        let id = call(&mut connection, "CLIENT ID");
        Self { connection, id }
    }

    /// Sends a call on this connection. Another one to the same server tells that it has been read.
    pub fn call(mut self, other: &mut Connection, words: &str) -> Self {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").add_command(command(words)).cmd("TIME");
        self.connection.send_packed_command(&pipe.get_packed_pipeline()).expect("a connection");
        call::<()>(other, "PING");
        self
    }

    /// Waits for the reply.
    pub fn reply(&mut self) -> Reply {
        let told =
            |error: redis::RedisError| format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
        let sent_us = self.clock().expect("the server's time");
        let row = match self.connection.recv_response().and_then(Value::extract_error) {
            Ok(reply) => {
                Vec::<i64>::from_redis_value(reply).map(|row| row.try_into().expect("five")).map_err(|e| e.to_string())
            }
            Err(error) => Err(told(error)),
        };
        // Some errors end the connection, too.
        let at_us = self.clock();
        assert!(at_us.is_some() || row.is_err(), "{row:?}");
        Reply { row, sent_us, at_us }
    }

    fn clock(&mut self) -> Option<i64> {
        let (seconds, us) = <(i64, i64)>::from_redis_value(self.connection.recv_response().ok()?).ok()?;
        Some(seconds * 1_000_000 + us)
    }

    /// The reply to a call that is granted or denied.
    pub fn row(mut self) -> [i64; 5] {
        self.reply().row.expect("five integers")
    }

    /// The same connection, for further calls: there is no reply to come.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// The replies to all of these, in their order; each is read as it comes.
pub fn replies(held: impl IntoIterator<Item = Held>) -> Vec<Reply> {
    // Whoever is taken from the iterator is listened to from then on.
    let readers: Vec<_> = held.into_iter().map(|mut held| std::thread::spawn(move || held.reply())).collect();
    readers.into_iter().map(|reader| reader.join().expect("a reply")).collect()
}

/// Calls that the server has carried out in one go, in their order: no time has passed between them, however busy the machine.
pub struct AtOnce {
    pub held: Vec<Held>,
    /// They were carried out between these moments of the server's clock, in microseconds.
    pub from_us: i64,
    pub to_us: i64,
}

/// Has the server carry out calls that write in one go, each on a connection of its own.
pub fn at_once<W: AsRef<str>>(server: &Server, calls: impl IntoIterator<Item = W>) -> AtOnce {
    at_once_by(server, calls.into_iter().map(|words| (Held::prepare(server, Resp::Two), words)))
}

/// As [`at_once`], by these clients.
pub fn at_once_by<W: AsRef<str>>(server: &Server, calls: impl IntoIterator<Item = (Held, W)>) -> AtOnce {
    let mut control = server.client();
    // The server keeps whatever may write until the pause ends, and then carries it out in the order in which it came.
    call::<()>(&mut control, "CLIENT PAUSE 3600000 WRITE");
    let held = calls.into_iter().map(|(held, words)| held.call(&mut control, words.as_ref())).collect();
    let from_us = time_us(&mut control);
    call::<()>(&mut control, "CLIENT UNPAUSE");
    let to_us = time_us(&mut control);
    AtOnce { held, from_us, to_us }
}

/// How many calls the server holds back.
pub fn held(client: &mut Connection) -> i64 {
    info(client, "clients", "blocked_clients")
}

/// A number that `INFO` tells.
pub fn info(client: &mut Connection, section: &str, field: &str) -> i64 {
    let text: String = call(client, &format!("INFO {section}"));
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {field} in {text}"))
}

/// Waits until `done`, with a deadline.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Calls of every kind: keys of every algorithm, short and long, filled and refunded, changed in their limits.
pub fn flood_all(client: &mut Connection) {
    let mut pipe = redis::pipe();
    for name in ["FIXED", "SLIDE", "GCRA", "BUCKET"] {
        pipe.add_command(command(&format!("RL.{name} full:{name} 5 1d UPTO 5")));
        pipe.add_command(command(&format!("RL.{name} denied:{name} 5 1d COST 6")));
        pipe.add_command(command(&format!("RL.{name} debt:{name} 5 1d FORCE 9")));
        pipe.add_command(command(&format!("RL.{name} refunded:{name} 5 1d COST 5")));
        pipe.add_command(command(&format!("RL.{name} refunded:{name} 5 1d REFUND 2")));
        pipe.add_command(command(&format!("RL.{name} gone:{name} 5 1d COST 5")));
        pipe.add_command(command(&format!("RL.{name} gone:{name} 5 1d REFUND 5")));
        pipe.add_command(command(&format!("RL.{name} changed:{name} 5000 1d COST 7")));
        pipe.add_command(command(&format!("RL.{name} changed:{name} 50000 2d COST 7")));
    }
    pipe.ignore().exec(client).expect("replies");
    // Long logs, whose entries are appended, shared, trimmed and taken back.
    for round in 0..200 {
        let mut pipe = redis::pipe();
        pipe.add_command(command("RL.SLIDE log:fine 1000000 1h COST 2"));
        pipe.add_command(command("RL.SLIDE log:fine 1000000 100s COST 2 SEGMENTS 65536"));
        pipe.add_command(command("RL.SLIDE log:long 1000000 100s"));
        pipe.add_command(command("RL.SLIDE log:short 1000000 20ms"));
        pipe.add_command(command("RL.SLIDE log:coarse 1000000 1d SEGMENTS 24"));
        if round % 7 == 0 {
            pipe.add_command(command("RL.SLIDE log:long 1000000 100s REFUND 3"));
        }
        pipe.ignore().exec(client).expect("replies");
    }
    // What lives for milliseconds only would be gone between two looks.
    call::<()>(client, "DEL log:short");
}
