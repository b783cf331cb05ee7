//! The README tells the truth: its sessions run as printed, and `make run` ends in a server that answers.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::Server;

const PROMPT: &str = "127.0.0.1:6379> ";

/// Numbers from here on tell moments: milliseconds since the Unix epoch.
const A_MOMENT_MS: i64 = 1_700_000_000_000;

/// The commands in the code blocks of a document, each with the reply that stands below it.
fn sessions(document: &str) -> Vec<(String, Vec<String>)> {
    let mut calls: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if let (true, Some(command)) = (inside, line.strip_prefix(PROMPT)) {
            calls.push((command.into(), Vec::new()));
        } else if let (true, Some((_, reply))) = (inside && !line.is_empty(), calls.last_mut()) {
            reply.push(line.into());
        }
    }
    calls
}

/// Whether a line of a reply is as printed. Times go by: those of a second and more may differ by a few, and moments are later.
fn alike(printed: &str, line: &str) -> bool {
    let number = |line: &str| {
        line.split_once("(integer) ").and_then(|(place, number)| Some((place.to_string(), number.parse::<i64>().ok()?)))
    };
    printed == line
        || matches!((number(printed), number(line)), (Some((place, printed)), Some((other, number)))
            if place == other && (printed >= 1_000 && (printed - number).abs() <= 3_000 || printed.min(number) >= A_MOMENT_MS))
}

#[test]
fn the_readmes_sessions_run_as_printed() {
    let document = include_str!("../README.md");
    let calls = sessions(document);
    assert_eq!(calls.len(), document.matches(PROMPT).count());
    assert!(calls.len() >= 13);
    let server = Server::start();
    for (command, printed) in calls {
        let words: Vec<&str> = command.split_whitespace().collect();
        let reply = server.cli(&["--no-raw"], &words);
        let lines: Vec<&str> = reply.lines().collect();
        assert!(
            lines.len() == printed.len() && printed.iter().zip(&lines).all(|(printed, line)| alike(printed, line)),
            "{command}\nprinted: {printed:?}\nreplied: {lines:?}"
        );
    }
}

#[test]
fn every_command_in_the_readme_exists() {
    let server = Server::start();
    let names: std::collections::BTreeSet<&str> = include_str!("../README.md")
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|word| word.starts_with("RL."))
        .collect();
    assert!(names.len() >= 4);
    for name in names {
        assert!(!server.cli(&[], &["COMMAND", "INFO", name]).trim().is_empty(), "{name}");
    }
}

#[test]
fn make_run_ends_in_a_server_that_answers() {
    let mut make = Command::new("make");
    make.arg("run").current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).stdout(Stdio::piped());
    // Its own group, so that make and what it runs can be stopped together, as Ctrl-C does.
    let mut child = std::os::unix::process::CommandExt::process_group(&mut make, 0).spawn().expect("make runs");
    let group = child.id();
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let start = Instant::now();
    let port = loop {
        let line = lines.next().expect("make says where the server listens").expect("text");
        if let Some((_, port)) = line.split_once("listens on 127.0.0.1:") {
            break port.split('.').next().expect("a port").to_string();
        }
        assert!(start.elapsed() < Duration::from_secs(300));
    };
    let reply =
        Command::new(support::cli_program()).args(["-p", &port, "RL.GCRA", "key", "10", "60"]).output().expect("a reply");
    let stopped = Command::new("kill").args(["-INT", "--", &format!("-{group}")]).status().expect("kill runs");
    let _ = child.wait();
    assert_eq!(String::from_utf8_lossy(&reply.stdout), "1\n10\n9\n0\n6000\n");
    assert!(stopped.success());
    support::wait_for("the server to stop", || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
}
