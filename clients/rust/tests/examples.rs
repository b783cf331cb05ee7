//! Runs the programs of examples/rust, as cargo has built them. The programs that the README shows are these. A new project that is
//! made with the lines of the README compiles the first one.
#![cfg(feature = "tower")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::granted;
use support::{call, dies_with_this_thread, free_port, info, wait_for, Server, Signal};

const README: &str = include_str!("../README.md");

/// The blocks of the README that begin with this line.
fn blocks(language: &str) -> Vec<&'static str> {
    let block = |rest: &'static str| rest.split_once("\n```").expect("an end").0;
    README.split(&format!("```{language}\n")).skip(1).map(block).collect()
}

fn source(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rust");
    std::fs::read_to_string(folder.join(name).with_extension("rs")).expect("a program")
}

/// The program, which cargo builds beside the tests.
fn program(name: &str, server: &Server) -> Command {
    let own = std::env::current_exe().expect("a path");
    let target = own.ancestors().nth(2).expect("the folder of the profile");
    let mut command = Command::new(target.join("examples").join(name));
    dies_with_this_thread(&mut command, Signal::KILL);
    command.env("REDIS_URL", format!("redis://127.0.0.1:{}/", server.port)).stdin(Stdio::null());
    command
}

/// What a program prints.
fn run(name: &str, server: &Server) -> String {
    let output = program(name, server).output().expect("the program runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

fn left(server: &Server, call_words: &str) -> i64 {
    call::<Vec<i64>>(&mut server.client(), &format!("RL.PEEK {call_words}"))[2]
}

#[test]
fn the_programs_of_the_readme_are_the_examples() {
    // A block without a main function is a part of a program: the doc tests compile it.
    let programs: Vec<&str> = blocks("rust,no_run").into_iter().filter(|block| block.contains("async fn main")).collect();
    let names = ["first", "tokens", "jobs", "gateway", "events", "web"];
    assert_eq!(programs.len(), names.len());
    for (program, name) in programs.iter().zip(names) {
        let file = source(name);
        // In the file, a comment that says what it does comes first.
        let (comment, rest) = file.split_once("\n\n").expect("a comment");
        assert!(comment.lines().all(|line| line.starts_with("//! ")), "{name}");
        assert_eq!(format!("{program}\n"), rest, "{name}");
    }
}

#[test]
fn decisions_and_budgets() {
    let server = Server::on_port(&[]);
    let printed = run("first", &server);
    assert!(printed.starts_with("go on; 4 more right now\nRateLimit-Policy: \"api\";q=10;w=60\n"), "{printed}");

    assert_eq!(run("tokens", &server), "HELLO\n");
    assert_eq!(left(&server, "SLIDE tokens:team-a 100000 1m"), 100_000 - 12);

    assert_eq!(run("gateway", &server), "THE QUICK BROWN FOX\n");
    // A third of the prompt, and a token for each word.
    for key in ["{gateway}:tokens:acme 20000", "{gateway}:all:tokens 100000"] {
        let (_, limit) = key.split_once(' ').expect("a limit");
        assert_eq!(left(&server, &format!("SLIDE {key} 1m")), limit.parse::<i64>().expect("a number") - 6 - 4);
    }
    assert_eq!(left(&server, "SLIDE {gateway}:requests:acme 60 1m"), 59);
    assert_eq!(left(&server, "LEASE {gateway}:running:acme 4 30"), 4);

    let printed = run("quota", &server);
    assert!(printed.starts_with("granted: 1, remaining: 9999, full again in "), "{printed}");
    assert_eq!(call::<i64>(&mut server.client(), "EXISTS quota:month:42"), 1);

    let [calls, fetched] = ["gcra", "slide"].map(|name| granted(&server, name));
    assert_eq!(run("events", &server), "5 logins\n1000 searches\n");
    assert_eq!([granted(&server, "gcra"), granted(&server, "slide")], [calls + 5, fetched + 10]);
    let asked = info(&mut server.client(), "everything", "rl_gcra_denied");
    assert!((1..1000).contains(&asked), "{asked} of 995 denials were asked for");
}

#[test]
fn processes_share_a_line_and_leases() {
    let server = Server::on_port(&[]);
    let start = Instant::now();
    let both = |name: &str| {
        let start = |_| program(name, &server).stdout(Stdio::piped()).spawn().expect("the program runs");
        let programs: Vec<Child> = (0..2).map(start).collect();
        let mut lines: Vec<String> = Vec::new();
        for program in programs {
            let output = program.wait_with_output().expect("its end");
            assert!(output.status.success());
            lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(ToString::to_string));
        }
        lines.sort();
        lines
    };
    let answers = both("partner");
    assert_eq!(answers.len(), 24);
    assert_eq!(answers.iter().filter(|answer| *answer == "answer 7").count(), 2);
    assert_eq!(granted(&server, "slide"), 24);
    assert_eq!(info(&mut server.client(), "everything", "rl_slide_denied"), 0);
    // 24 calls at 5 a second.
    assert!(start.elapsed() >= Duration::from_secs(4));

    let reports = both("jobs");
    assert_eq!(reports.len(), 12);
    assert_eq!(reports[..2], ["ada: 3 pages", "ada: 3 pages"]);
    assert_eq!(left(&server, "LEASE jobs:reports 4 30"), 4);
}

/// A process that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_answers_429_with_headers() {
    let mut server = Server::on_port(&[]);
    let port = free_port();
    let mut command = program("web", &server);
    let _running = Running(command.env("ADDRESS", format!("127.0.0.1:{port}")).spawn().expect("the program runs"));
    wait_for("the service", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let send = |request: String| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.to_lowercase()
    };
    let end = "Connection: close\r\n\r\n";
    let ask = |line: &str, user: &str| send(format!("{line} HTTP/1.1\r\nHost: localhost\r\nX-User: {user}\r\n{end}"));
    let unnamed = |line: &str| send(format!("{line} HTTP/1.1\r\nHost: localhost\r\n{end}"));
    let page = ask("GET /", "ada");
    assert!(page.starts_with("http/1.1 200") && page.contains("ratelimit: \"pages\";r=4;t=6\r\n"), "{page}");
    let more: Vec<String> = (0..5).map(|_| ask("GET /", "ada")).collect();
    assert!(more[4].starts_with("http/1.1 429") && more[4].contains("retry-after: "), "{more:?}");
    // The other route and the other user have limits of their own.
    let logins: Vec<String> = (0..4).map(|_| ask("POST /login", "ada")).collect();
    assert!(logins[2].starts_with("http/1.1 200") && logins[2].contains("\"login\";q=3;w=3600"), "{logins:?}");
    assert!(logins[3].starts_with("http/1.1 429"), "{logins:?}");
    assert!(ask("GET /", "bob").starts_with("http/1.1 200"));
    // Without a name of a user, the address of the client is the key: an empty header and none are the same.
    assert!(ask("POST /login", "").contains("ratelimit: \"login\";r=2;"));
    assert!(unnamed("POST /login").contains("ratelimit: \"login\";r=1;"));
    assert!(ask("POST /login", "").starts_with("http/1.1 200"));
    assert!(unnamed("POST /login").starts_with("http/1.1 429"));
    // Pages are open, and the login is closed.
    server.crash();
    let open = ask("GET /", "ada");
    assert!(open.starts_with("http/1.1 200") && !open.contains("ratelimit"), "{open}");
    assert!(ask("POST /login", "ada").starts_with("http/1.1 503"));
}

/// The folder in which cargo builds this package.
fn target() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.ancestors().nth(3).expect("the target folder").to_path_buf()
}

#[test]
fn a_new_project_that_the_lines_of_the_readme_make_compiles() {
    let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
    let project = folder.path().join("a project");
    let package = env!("CARGO_MANIFEST_DIR");
    std::fs::create_dir(&project).expect("a folder");
    let cargo = |words: &[&str]| {
        let program = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut command = Command::new(program);
        // What the lints have built is used again.
        let output =
            command.args(words).current_dir(&project).env("CARGO_TARGET_DIR", target()).output().expect("cargo runs");
        assert!(output.status.success(), "cargo {words:?}\n{}", String::from_utf8_lossy(&output.stderr));
    };
    cargo(&["init", "--quiet", "--vcs", "none", "--name", "program"]);
    std::fs::copy(Path::new(package).join("Cargo.lock"), project.join("Cargo.lock")).expect("the same versions");
    for line in blocks("sh")[0].lines() {
        let words: Vec<&str> = line.strip_prefix("cargo ").expect("a line for cargo").split(' ').collect();
        let words: Vec<&str> = words.into_iter().map(|word| if word == "clients/rust" { package } else { word }).collect();
        cargo(&words);
    }
    std::fs::write(project.join("src/main.rs"), blocks("rust,no_run")[0]).expect("a program");
    cargo(&["check", "--quiet"]);
}
