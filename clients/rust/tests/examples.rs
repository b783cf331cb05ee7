//! Runs the programs of the README, in a new project that is made with the lines of the README, and those of examples/rust, as cargo has
//! built them. In the new project a panic aborts the process.
#![cfg(all(feature = "tower", feature = "zone"))]

mod common;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{granted, info_of};
use support::{call, dies_with_this_thread, free_port, wait_for, Server, Signal};
use tempfile::TempDir;

const README: &str = include_str!("../README.md");

/// The blocks of the README that begin with this line.
fn blocks(language: &str) -> Vec<&'static str> {
    let block = |rest: &'static str| rest.split_once("\n```").expect("an end").0;
    README.split(&format!("```{language}\n")).skip(1).map(block).collect()
}

/// The folder in which cargo builds this package.
fn target() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.ancestors().nth(3).expect("the target folder").to_path_buf()
}

/// A new project with the programs of the README.
struct Project {
    folder: TempDir,
}

impl Project {
    fn build(names: &[&str]) {
        let project = Self { folder: tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder") };
        let package = env!("CARGO_MANIFEST_DIR");
        std::fs::create_dir(project.path()).expect("a folder");
        project.cargo(&["init", "--quiet", "--vcs", "none", "--name", "program"]);
        std::fs::copy(Path::new(package).join("Cargo.lock"), project.path().join("Cargo.lock")).expect("the same versions");
        let block = blocks("sh").remove(0);
        let (first, lines) = block.split_once('\n').expect("lines");
        // It makes the project, which is here already.
        assert!(first.starts_with("cd .. && cargo new app && cd app "), "{first}");
        for line in lines.lines() {
            let words = line.strip_prefix("cargo ").expect("a line for cargo").split(' ');
            let words: Vec<_> = words.map(|word| if word == "../redis-rl/clients/rust" { package } else { word }).collect();
            project.cargo(&words);
        }
        let manifest = project.path().join("Cargo.toml");
        let mut text = std::fs::read_to_string(&manifest).expect("a manifest");
        text.write_str("\n[profile.dev]\npanic = \"abort\"\ndebug = false\n").expect("a string");
        std::fs::write(manifest, text).expect("a manifest");
        let programs = blocks("rust,no_run");
        assert_eq!(programs.len(), names.len());
        std::fs::create_dir(project.path().join("src/bin")).expect("a folder");
        for (program, name) in programs.iter().zip(names) {
            std::fs::write(project.path().join("src/bin").join(format!("{name}.rs")), program).expect("a program");
        }
        project.cargo(&["build", "--quiet", "--bins"]);
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("a project")
    }

    fn cargo(&self, words: &[&str]) {
        let program = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut command = Command::new(program);
        // What was built for it is used again the next time.
        let target = target().join("readme");
        let output =
            command.args(words).current_dir(self.path()).env("CARGO_TARGET_DIR", target).output().expect("cargo runs");
        assert!(output.status.success(), "cargo {words:?}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A program of the README.
fn program(name: &str, server: &Server) -> Command {
    command(&target().join("readme/debug").join(name), server)
}

fn command(program: &Path, server: &Server) -> Command {
    let mut command = Command::new(program);
    dies_with_this_thread(&mut command, Signal::KILL);
    command.env("REDIS_URL", format!("redis://127.0.0.1:{}/", server.port)).stdin(Stdio::null());
    command
}

/// A program of examples/rust, which cargo builds beside the tests.
fn example(name: &str, server: &Server) -> Command {
    let own = std::env::current_exe().expect("a path");
    command(&own.ancestors().nth(2).expect("the folder of the profile").join("examples").join(name), server)
}

/// What a program prints.
fn run(mut program: Command) -> String {
    let output = program.output().expect("the program runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// The sorted lines of two processes that run at the same time.
fn both(program: impl Fn() -> Command) -> Vec<String> {
    let start = |_| program().stdout(Stdio::piped()).spawn().expect("the program runs");
    let programs: Vec<Child> = (0..2).map(start).collect();
    let mut lines: Vec<String> = Vec::new();
    for program in programs {
        let output = program.wait_with_output().expect("its end");
        assert!(output.status.success());
        lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(ToString::to_string));
    }
    lines.sort();
    lines
}

fn left(server: &Server, call_words: &str) -> i64 {
    call::<Vec<i64>>(&mut server.client(), &format!("RL.PEEK {call_words}"))[2]
}

#[test]
fn the_programs_of_the_readme_run_in_a_new_project() {
    Project::build(&["first", "tokens", "jobs", "gateway", "stop", "search", "web"]);
    let server = Server::on_port(&[]);
    let printed = run(program("first", &server));
    assert!(printed.starts_with("go on; 4 more right now\nRateLimit-Policy: \"api\";q=10;w=60\n"), "{printed}");

    assert_eq!(run(program("tokens", &server)), "HELLO\n");
    assert_eq!(common::fact(&server, "tokens:team-a", &["used"]), 12);
    // Until midnight in New York.
    let ttl: i64 = call(&mut server.client(), "TTL tokens:team-a");
    assert!((0..=25 * 3_600).contains(&ttl), "{ttl}");

    assert_eq!(run(program("gateway", &server)), "THE QUICK BROWN FOX\n");
    // A third of the prompt, and a token for each word.
    for key in ["{llm}tokens:acme 20000", "{llm}all:tokens 100000"] {
        let (_, limit) = key.split_once(' ').expect("a limit");
        assert_eq!(left(&server, &format!("SLIDE {key} 1m")), limit.parse::<i64>().expect("a number") - 6 - 4);
    }
    assert_eq!(left(&server, "SLIDE {llm}requests:acme 60 1m"), 59);
    assert_eq!(left(&server, "LEASE {llm}running:acme 4 30"), 4);

    let fetched = granted(&server, "slide");
    let printed = run(program("stop", &server));
    assert!(printed.starts_with("Some(2") || printed.starts_with("Some(30s)"), "{printed}");
    assert!(printed.ends_with("s)\ntrue\n"), "{printed}");

    assert_eq!(run(program("search", &server)), "1000 searches\n");
    assert_eq!(granted(&server, "slide"), fetched + 10);
    assert_eq!(left(&server, "SLIDE search:user:42 100000 1m"), 99_000);

    let reports = both(|| program("jobs", &server));
    assert_eq!(reports.len(), 12);
    assert_eq!(reports[..2], ["ada: 3 pages", "ada: 3 pages"]);
    assert_eq!(left(&server, "LEASE jobs:reports 4 30"), 4);

    a_service_answers_429_with_headers();
}

/// A process that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_service_answers_429_with_headers() {
    let mut server = Server::on_port(&[]);
    let port = free_port();
    let mut command = program("web", &server);
    let _running = Running(command.env("ADDRESS", format!("127.0.0.1:{port}")).spawn().expect("the program runs"));
    wait_for("the service", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    // No header makes a client another one.
    let ask = |line: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nX-User: ada\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.to_lowercase()
    };
    let page = ask("GET /");
    assert!(page.starts_with("http/1.1 200") && page.contains("ratelimit: \"free\";r=4;t=6\r\n"), "{page}");
    let more: Vec<String> = (0..5).map(|_| ask("GET /")).collect();
    assert!(more[4].starts_with("http/1.1 429") && more[4].contains("retry-after: "), "{more:?}");
    assert!(
        more[4].contains("application/problem+json") && more[4].ends_with("\"violated-policies\":[\"free\"]}"),
        "{more:?}"
    );
    // The other route has a limit of its own.
    let logins: Vec<String> = (0..4).map(|_| ask("POST /login")).collect();
    assert!(logins[2].starts_with("http/1.1 200") && logins[2].contains("\"login\";q=3;w=3600"), "{logins:?}");
    assert!(logins[3].starts_with("http/1.1 429"), "{logins:?}");
    // Pages are limited by the process, and the login is closed.
    server.crash();
    let local = ask("GET /");
    assert!(local.starts_with("http/1.1 200") && !local.contains("ratelimit"), "{local}");
    assert!(ask("POST /login").starts_with("http/1.1 503"));
}

#[test]
fn processes_share_a_line() {
    let server = Server::on_port(&[]);
    let start = Instant::now();
    let answers = both(|| example("partner", &server));
    assert_eq!(answers.len(), 24);
    assert_eq!(answers.iter().filter(|answer| *answer == "answer 7").count(), 2);
    assert_eq!(granted(&server, "slide"), 24);
    // Each call asks first, and is denied at most once.
    assert!(info_of(&server, "rl_slide_denied") <= 24);
    // 24 calls at 5 a second.
    assert!(start.elapsed() >= Duration::from_secs(4));
}

#[test]
fn an_outage_is_measured() {
    let server = Server::on_port(&[]);
    let mut outage = example("outage", &server);
    outage.args(["local", "0.5"]);
    let printed = run(outage);
    let rows: Vec<&str> = printed.lines().skip(2).collect();
    assert_eq!(rows.len(), 4, "{printed}");
    // All requests are served, whatever the server does.
    assert!(rows.iter().all(|row| row.contains(" | 100 % | ")), "{printed}");
}
