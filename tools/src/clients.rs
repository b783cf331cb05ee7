//! The benchmark of the client package for Rust, which two tools run.

use std::path::PathBuf;
use std::process::Command;

use support::root;

/// Runs a program, and returns what it prints.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text.into_owned()
}

/// Builds clients/rust/benches/decisions.rs in the folder that the package's tests use, and returns the path of the program.
pub fn rust_program() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let built = run(Command::new(cargo)
        .args(["bench", "--quiet", "--locked", "--bench", "decisions", "--no-run", "--message-format", "json"])
        .env("CARGO_TARGET_DIR", root().join("target/clients/rust"))
        .current_dir(root().join("clients/rust")));
    let program = built.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "decisions").then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    program.expect("a program")
}
