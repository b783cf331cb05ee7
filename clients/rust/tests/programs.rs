//! Runs the programs of the README in a new project, made with the lines that the README shows; only the addresses of the servers
//! and the path of the crate differ.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{dies_with_this_thread, free_port, wait_for, Server, Signal};

const README: &str = include_str!("../README.md");

/// The blocks of the README that begin with this line.
fn blocks(language: &str) -> Vec<&'static str> {
    let block = |rest: &'static str| rest.split_once("\n```").expect("an end").0;
    README.split(&format!("```{language}\n")).skip(1).map(block).collect()
}

/// Where cargo builds: what is built stays for the next run.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target")).join("programs")
}

fn cargo(project: &Path, words: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output =
        Command::new(cargo).args(words).current_dir(project).env("CARGO_TARGET_DIR", target()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo {words:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_programs_of_the_readme_run_in_a_new_project() {
    let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
    let project = folder.path().join("a project");
    let package = env!("CARGO_MANIFEST_DIR");
    let server = Server::on_port(&[]);
    let port = free_port();

    std::fs::create_dir(&project).expect("a folder");
    cargo(&project, &["init", "--quiet", "--vcs", "none", "--name", "programs"]);
    for line in blocks("sh")[0].lines() {
        let words: Vec<&str> = line.strip_prefix("cargo ").expect("a line for cargo").split(' ').collect();
        let words: Vec<&str> = words.into_iter().map(|word| if word == "clients/rust" { package } else { word }).collect();
        cargo(&project, &words);
    }
    cargo(&project, &["add", "--quiet", "redis-rl-client", "--path", package, "--features", "tower"]);
    cargo(&project, &["add", "--quiet", "axum", "--no-default-features", "--features", "http1,tokio"]);

    // A block without a main function is a part of a program: the doc tests compile it.
    let programs: Vec<&str> = blocks("rust,no_run").into_iter().filter(|block| block.contains("fn main")).collect();
    let sources = project.join("src/bin");
    std::fs::create_dir(&sources).expect("a folder");
    for (index, program) in programs.iter().enumerate() {
        assert!(program.contains("\"redis://127.0.0.1/\""));
        let program = program.replace("redis://127.0.0.1/", &format!("redis://127.0.0.1:{}/", server.port));
        let program = program.replace("127.0.0.1:3000", &format!("127.0.0.1:{port}"));
        std::fs::write(sources.join(format!("p{index}.rs")), program).expect("a file");
    }
    cargo(&project, &["build", "--quiet"]);

    let expected = [
        &["go on; 4 more right now\n", "RateLimit-Policy: \"api\";q=10;w=60\n"][..],
        &["HELLO\n"],
        &["7 pages\n"],
        &["granted: true\n"],
        &["done\n"],
    ];
    let mut ran = 0;
    for (index, program) in programs.iter().enumerate() {
        let mut command = Command::new(target().join(format!("debug/p{index}")));
        dies_with_this_thread(&mut command, Signal::KILL);
        if program.contains("axum::serve") {
            let mut child = command.stdin(Stdio::null()).spawn().expect("the program runs");
            let mut answers = Vec::new();
            for _ in 0..6 {
                wait_for("an answer", || {
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
                    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nX-User: ada\r\nConnection: close\r\n\r\n";
                    stream.write_all(request.as_bytes()).expect("a request");
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).expect("an answer");
                    answers.push(answer.to_lowercase());
                    true
                });
            }
            child.kill().expect("a program to kill");
            child.wait().expect("its end");
            assert!(
                answers[0].starts_with("http/1.1 200") && answers[0].contains("ratelimit: \"web\";r=4;t=6\r\n"),
                "{answers:?}"
            );
            assert!(answers[5].starts_with("http/1.1 429") && answers[5].contains("retry-after: "), "{answers:?}");
            continue;
        }
        let output = command.output().expect("the program runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program}\n{}", String::from_utf8_lossy(&output.stderr));
        for text in expected.get(ran).into_iter().copied().flatten() {
            assert!(printed.contains(text), "{program}\n{printed}");
        }
        ran += 1;
    }
    assert_eq!(ran, expected.len());
}
