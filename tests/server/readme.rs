//! The README and docs/ are right: sessions run as printed, configurations start a server, and every command that is named
//! exists. And `make run` starts a server that answers.
//!
//! The language of a code block says what it is. None: a session, which begins with a prompt. `conf`: a configuration, or a
//! part to add to one that loads the module. `sh`: lines for a shell. `text`: the syntax of a command. Blocks in other languages
//! are part of a file that another test runs, or another test extracts and runs them, or the paragraph before them, which may be
//! a comment, says why they are not run. All sessions of a document run in order on one server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Server, Signal};

const PROMPT: &str = "127.0.0.1:6379> ";

/// The path of the module in the documents.
const MODULE: &str = "/path/to/libredis_rl.so";

/// Numbers from here on are times, in milliseconds since the Unix epoch.
const A_MOMENT_MS: i64 = 1_700_000_000_000;

/// The files in these folders that end in `.md`: name and text.
fn documents_in(folders: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files =
        |folder: &&str| std::fs::read_dir(root.join(folder)).expect("a folder").map(|file| file.expect("a file").path());
    let mut paths: Vec<_> = folders.iter().flat_map(files).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let text = |path: &Path| std::fs::read_to_string(path).expect("text");
    paths.iter().map(|path| (path.strip_prefix(root).expect("within").display().to_string(), text(path))).collect()
}

/// The README and the files in docs/: name and text.
fn documents() -> Vec<(String, String)> {
    let mut documents = documents_in(&["", "docs"]);
    documents.retain(|(name, _)| name == "README.md" || name.starts_with("docs/"));
    documents
}

/// A code block.
struct Block<'d> {
    language: &'d str,
    lines: Vec<&'d str>,
    /// The paragraph before it.
    before: Vec<&'d str>,
}

fn blocks(document: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let mut paragraph = Vec::new();
    let mut last = "";
    for line in document.lines() {
        if open.is_none() && !line.is_empty() && !line.starts_with("```") {
            if last.is_empty() || last.starts_with('#') {
                paragraph.clear();
            }
            paragraph.push(line);
        }
        last = line;
        match (line.strip_prefix("```"), open.take()) {
            (Some(language), None) => open = Some(Block { language, lines: Vec::new(), before: paragraph.clone() }),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.lines.push(line);
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block does not end");
    blocks
}

/// The commands in a document's sessions, each with the reply that is printed below it.
fn calls(document: &str) -> Vec<(String, Vec<String>)> {
    let mut calls: Vec<(String, Vec<String>)> = Vec::new();
    for block in blocks(document).into_iter().filter(|block| block.language.is_empty()) {
        assert!(block.lines.first().is_some_and(|line| line.starts_with(PROMPT)), "not a session: {:?}", block.lines);
        for line in block.lines {
            match (line.strip_prefix(PROMPT), calls.last_mut()) {
                (Some(command), _) => calls.push((command.replace(MODULE, &module()), Vec::new())),
                (None, Some((_, reply))) if !line.is_empty() => reply.push(line.into()),
                _ => {}
            }
        }
    }
    assert_eq!(calls.len(), document.matches(PROMPT).count(), "a prompt outside of sessions");
    calls
}

fn module() -> String {
    support::module().display().to_string()
}

/// What redis-cli prints for a line that is typed into it.
fn typed(server: &Server, line: &str) -> Vec<String> {
    let mut cli = Command::new(support::cli_program());
    cli.arg("-s").arg(server.socket()).arg("--no-raw").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = cli.spawn().expect("the command line client runs");
    writeln!(child.stdin.take().expect("its input"), "{line}").expect("it reads");
    let output = child.wait_with_output().expect("its output");
    // redis-cli also prints how long it has waited, if that was long.
    let is_reply = |line: &&str| !(line.is_empty() || line.starts_with('(') && line.ends_with("s)"));
    String::from_utf8(output.stdout).expect("text").lines().filter(is_reply).map(Into::into).collect()
}

/// Whether a line of a reply is as printed. `passed` is the time in milliseconds since the document's first command. Times
/// of a second or more may differ by a few seconds and by `passed`, and times of the clock differ.
fn alike(printed: &str, line: &str, passed: i64) -> bool {
    let number = |line: &str| {
        line.split_once("(integer) ").and_then(|(place, number)| Some((place.to_string(), number.parse::<i64>().ok()?)))
    };
    printed == line
        || matches!((number(printed), number(line)), (Some((place, printed)), Some((other, number)))
            if place == other && (printed >= 1_000 && (-3_000..=3_000 + passed).contains(&(printed - number)) || printed.min(number) >= A_MOMENT_MS))
}

#[test]
fn sessions_run_as_printed() {
    let mut wrong = Vec::new();
    for (name, document) in documents() {
        let calls = calls(&document);
        match &*name {
            "docs/start.md" => assert!(calls.len() >= 4),
            "docs/commands.md" => assert!(calls.len() >= 40),
            _ => {}
        }
        if calls.is_empty() {
            continue;
        }
        let (server, mut clock) = Server::start().and_client();
        let start = support::time_us(&mut clock);
        for (command, printed) in calls {
            let replied = typed(&server, &command);
            let passed = (support::time_us(&mut clock) - start) / 1_000;
            if replied.len() != printed.len()
                || !printed.iter().zip(&replied).all(|(printed, line)| alike(printed, line, passed))
            {
                wrong.push(format!("{name}: {command}\nprinted: {printed:?}\nreplied: {replied:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The README labels the integers of replies, so that they can be read without knowing their order.
#[test]
fn the_lines_of_the_readme_print_what_it_shows() {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("text");
    let blocks = blocks(&document);
    let at = blocks.iter().position(|block| block.lines.iter().any(|line| line.contains("printf \"$labels\""))).expect("it");
    assert_eq!(["sh", "text"], [blocks[at].language, blocks[at + 1].language]);
    let (server, dir) = (Server::start(), tempfile::tempdir().expect("a folder"));
    stand_ins(&server, dir.path());
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").expect("a path"));
    let script = blocks[at].lines.join("\n");
    let output = Command::new("bash").args(["-eu", "-c", &script]).env("PATH", path).output().expect("bash runs");
    let lines: Vec<String> = String::from_utf8(output.stdout).expect("text").lines().map(Into::into).collect();
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    // A machine that stands still between two calls makes times shorter. A unit is free only after 20 seconds.
    let like = |printed: &String, word: &String| {
        let numbers = printed.parse::<i64>().ok().zip(word.parse::<i64>().ok());
        printed == word || numbers.is_some_and(|(printed, word)| printed >= 1_000 && (printed - word).abs() < 15_000)
    };
    assert_eq!(lines.len(), blocks[at + 1].lines.len(), "{lines:?}");
    for (printed, line) in blocks[at + 1].lines.iter().zip(&lines) {
        let (printed, replied) = (words(printed), words(line));
        let alike = printed.len() == replied.len() && printed.iter().zip(&replied).all(|(one, other)| like(one, other));
        assert!(alike, "printed: {printed:?}\nreplied: {line}");
    }
}

#[test]
fn configurations_start_a_server_with_the_module() {
    let mut found = 0;
    for (name, document) in documents() {
        for block in blocks(&document).into_iter().filter(|block| block.language == "conf") {
            found += 1;
            let file = tempfile::NamedTempFile::new().expect("a file");
            let text = block.lines.join("\n").replace(MODULE, &module()) + "\n";
            std::fs::write(file.path(), &text).expect("written");
            let loads = block.lines.iter().any(|line| line.starts_with("loadmodule "));
            println!("{name}:\n{text}");
            let file = file.path().display().to_string();
            let server = Server::of(&support::server_program(), !loads, &["--include", &file]);
            assert_eq!(server.cli(&[], &["RL.GCRA", "key", "10", "60"]), "1\n10\n9\n0\n6000\n", "{name}:\n{text}");
        }
    }
    assert!(found > 0);
}

/// The folder of modules in the documents.
const MODULES: &str = "/usr/lib/redis/modules";

/// Writes programs that a shell finds before the real ones. redis-cli connects to `server`. redis-server listens on a socket
/// in `dir` and on no port, whatever its arguments say, answers one call, and ends.
fn stand_ins(server: &Server, dir: &Path) {
    let cli = format!("{} -s {}", support::cli_program(), server.socket().display());
    let client = format!(
        "case $1 in *SUBSCRIBE) timeout 1 {cli} \"$@\"; test $? = 124;; *) out=$({cli} \"$@\") && echo \"$out\" && ! echo \"$out\" | grep -q '^ERR\\|^EXECABORT';; esac"
    );
    let (program, socket) = (support::server_program(), dir.join("own.sock"));
    let own = format!("{} -s {}", support::cli_program(), socket.display());
    let started = format!(
        "'{program}' \"$@\" --port 0 --save '' --unixsocket {} >/dev/null & \
         for _ in $(seq 100); do {own} ping >/dev/null 2>&1 && break; sleep 0.1; done; \
         answer=$({own} RL.GCRA key 10 60 | head -n 1); {own} shutdown nosave; wait; test \"$answer\" = 1",
        socket.display()
    );
    let path = std::env::var("PATH").expect("a path");
    for (name, script) in [("redis-cli", client), ("redis-server", started)] {
        let file = dir.join(name);
        // With the old PATH, the stand-in finds the real program instead of itself.
        std::fs::write(&file, format!("#!/bin/sh\nPATH='{path}'\n{script}\n")).expect("written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("a program");
    }
}

#[test]
fn lines_for_a_shell_run() {
    let makefile = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile")).expect("text");
    let mut found = 0;
    for (name, document) in documents() {
        for block in blocks(&document).into_iter().filter(|block| block.language == "sh") {
            found += 1;
            let dir = tempfile::tempdir().expect("a folder");
            let modules = dir.path().join("modules");
            std::fs::create_dir(&modules).expect("a folder");
            std::fs::copy(module(), modules.join("libredis_rl.so")).expect("the module's copy");
            let server = Server::start();
            stand_ins(&server, dir.path());
            // The targets of make are tested elsewhere. Here they only have to exist.
            let (makes, lines): (Vec<&str>, Vec<&str>) = block.lines.iter().partition(|line| line.starts_with("make "));
            for line in makes {
                let target = line.split(' ').nth(1).expect("a target");
                assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "{name}: {line}");
            }
            // The module that is loaded takes the place of other modules that the lines replace.
            let script =
                lines.join("\n").replace(MODULES, &modules.display().to_string()).replace("UNLOAD redis-cell", "UNLOAD rl");
            let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").expect("a path"));
            let mut shell = Command::new("timeout");
            let root = env!("CARGO_MANIFEST_DIR");
            shell.args(["300", "bash", "-eu", "-c", &script]).env("PATH", path).env("REPOSITORY", root);
            shell.current_dir(if script.contains("git clone") { dir.path() } else { Path::new(root) });
            let output = shell.output().expect("bash runs");
            assert!(output.status.success(), "{name}:\n{script}\n{}", String::from_utf8_lossy(&output.stdout));
        }
    }
    assert!(found >= 5);
}

/// The documents whose blocks in these languages another test extracts and runs, and the file of that test.
const EXTRACTED: [(&str, &[&str], &str); 10] = [
    ("README.md", &["python"], "clients/python/tests/test_readme.py"),
    ("docs/howto.md", &["python"], "examples/python/test_howto.py"),
    ("docs/operations.md", &["bash"], "examples/python/test_howto.py"),
    ("docs/clients.md", &["python"], "examples/python/test_readme.py"),
    ("docs/clients.md", &["js"], "examples/node/test/cluster.test.mjs"),
    ("docs/install.md", &["bash"], "scripts/packages.sh"),
    ("docs/languages.md", &["bash", "go", "js", "php", "python", "ruby"], "examples/languages/test_languages.py"),
    ("docs/choosing.md", &["python"], "examples/python/test_readme.py"),
    ("docs/migrating.md", &["lua"], "tests/server/readme.rs"),
    ("docs/monitoring.md", &["bash", "promql", "yaml"], "tests/monitoring/test_values.py"),
];

/// The text of all files whose code the documents may show.
fn sources() -> Vec<String> {
    fn collect(path: &Path, into: &mut Vec<String>) {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "node_modules") {
                std::fs::read_dir(path).expect("a folder").for_each(|entry| collect(&entry.expect("an entry").path(), into));
            }
        } else if let Ok(text) = std::fs::read_to_string(path) {
            into.push(text);
        }
    }
    let mut sources = Vec::new();
    for path in ["examples", "packaging", "Dockerfile", "compose.yaml"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path), &mut sources);
    }
    sources
}

#[test]
fn code_is_run_or_says_why_not() {
    let sources = sources();
    let mut wrong = Vec::new();
    for (name, document) in documents() {
        for block in blocks(&document).into_iter().filter(|block| !["", "conf", "sh", "text"].contains(&block.language)) {
            if block.before.first().is_some_and(|line| line.trim_start_matches("<!-- ").starts_with("Not run in tests:")) {
                continue;
            }
            let is_extracted =
                |(of, languages, _): &&(&str, &[&str], &str)| *of == name && languages.contains(&block.language);
            if let Some((.., test)) = EXTRACTED.iter().find(is_extracted) {
                let test = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(test)).expect("the test");
                assert!(test.contains(&name), "its test does not read {name}");
                continue;
            }
            let text = block.lines.join("\n");
            if !sources.iter().any(|source| source.contains(&text)) {
                wrong.push(format!("{name}, {}:\n{text}", block.language));
            }
        }
    }
    assert!(wrong.is_empty(), "not run: {}", wrong.join("\n\n"));
}

#[test]
fn scripts_that_the_module_replaces_run() {
    let documents = documents();
    let (_, document) = documents.iter().find(|(name, _)| name == "docs/migrating.md").expect("the document");
    let scripts: Vec<String> =
        blocks(document).into_iter().filter(|block| block.language == "lua").map(|block| block.lines.join("\n")).collect();
    assert_eq!(scripts.len(), 1);
    let server = Server::start();
    let call = || server.cli(&[], &["EVAL", &scripts[0], "1", "key", "1700000000"]);
    let replies: Vec<String> = (0..11).map(|_| call().trim().to_string()).collect();
    assert_eq!(replies, [vec!["1"; 10], vec!["0"]].concat());
}

#[test]
fn every_command_that_is_named_exists() {
    let documents = documents();
    let words = documents.iter().flat_map(|(_, text)| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.'));
    let names: BTreeSet<&str> = words
        .filter(|word| word.starts_with("RL.") || word.starts_with("CL."))
        .map(|word| word.trim_end_matches('.'))
        .collect();
    assert!(names.len() >= 4);
    let server = Server::start();
    let exists = |name: &str| !server.cli(&[], &["COMMAND", "INFO", name]).trim().is_empty();
    let missing: Vec<_> = names.into_iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// `cargo test` passes if no test has the name that it is given.
#[test]
fn tests_that_are_named_exist() {
    let mut named = 0;
    for (document, text) in documents_in(&["", "docs"]) {
        for line in text.split("cargo test --test ").skip(1) {
            let mut words = line.split('`').next().unwrap_or_default().split_whitespace();
            let folder = format!("tests/{}", words.next().expect("a name"));
            let main = Path::new(env!("CARGO_MANIFEST_DIR")).join(&folder).join("main.rs");
            let modules = std::fs::read_to_string(main).expect("text");
            for module in words.filter_map(|word| word.strip_suffix("::")) {
                assert!(modules.lines().any(|line| line == format!("mod {module};")), "{document}: no {module} in {folder}");
                named += 1;
            }
        }
    }
    assert!(named > 0, "no document names a test");
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents = documents_in(&["", "docs", "examples", "clients", "clients/node", "clients/python", "clients/rust"]);
    // The anchor of a heading: in lower case, with hyphens for spaces, and without anything but letters, digits, hyphens and
    // underscores.
    let slug = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect()
    };
    let has = |name: &str, anchor: &str| {
        let (_, text) = documents.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no {name}"));
        text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor)
    };
    let mut wrong = Vec::new();
    for (name, text) in &documents {
        // Code may contain the same characters.
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(name).parent().expect("a folder");
            let target = if path.is_empty() { root.join(name) } else { root.join(folder).join(path) };
            let Ok(target) = target.canonicalize() else {
                wrong.push(format!("{name}: {link}"));
                continue;
            };
            let target = target.strip_prefix(root.canonicalize().expect("a path")).expect("within").display().to_string();
            if !anchor.is_empty() && !has(&target, anchor) {
                wrong.push(format!("{name}: {link}"));
            }
        }
        // A footnote `[^name]` is defined by a line that begins with `[^name]:`, and used elsewhere.
        for note in text.split("[^").skip(1).filter_map(|rest| rest.split(']').next()) {
            let uses = text.matches(&format!("[^{note}]")).count();
            if !text.contains(&format!("\n[^{note}]:")) || uses < 2 {
                wrong.push(format!("{name}: footnote {note}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The contrast of two colours `#rrggbb`, from 1 to 21. Text needs 4.5.
fn contrast(one: &str, other: &str) -> f64 {
    let light = |colour: &str| -> f64 {
        let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour")) / 255.0;
        let linear = |part: f64| if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) };
        0.05 + 0.2126 * linear(part(1)) + 0.7152 * linear(part(3)) + 0.0722 * linear(part(5))
    };
    let (one, other) = (light(one), light(other));
    one.max(other) / one.min(other)
}

#[test]
fn charts_are_legible_on_any_page() {
    let docs = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).expect("docs/");
    let mut found = 0;
    for path in docs.map(|file| file.expect("a file").path()).filter(|path| path.extension().is_some_and(|it| it == "svg")) {
        found += 1;
        let chart = std::fs::read_to_string(&path).expect("text");
        let path = path.display();
        let (style, drawing) = chart.split_once("</style>").unwrap_or_else(|| panic!("{path} has no style"));
        // The background is behind everything else, and as large as the chart.
        let ground = drawing.trim_start().starts_with("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>");
        assert!(ground, "{path} has no background of its own");
        let (light, dark) =
            style.split_once("@media(prefers-color-scheme:dark)").unwrap_or_else(|| panic!("{path} has no dark mode"));
        for mode in [light, dark] {
            let fill = |of: &str| {
                let (_, rest) = mode.split_once(of).unwrap_or_else(|| panic!("{path}: no {of} in {mode}"));
                &rest[..7]
            };
            assert!(contrast(fill(".ground{fill:"), fill("text{fill:")) >= 4.5, "{path}: {mode}");
        }
        // On a phone, which shows it 360 pixels wide, letters are not too small.
        let number = |of: &str| -> f64 {
            let (_, rest) = chart.split_once(of).unwrap_or_else(|| panic!("{path}: no {of}"));
            let end = rest.find(|sign: char| !sign.is_ascii_digit()).expect("an end");
            rest[..end].parse().unwrap_or_else(|error| panic!("{path}: {of}: {error}"))
        };
        assert!(number("font-size:") * 360.0 / number("viewBox=\"0 0 ") >= 11.0, "{path}: letters are too small");
    }
    assert!(found >= 13);
}

/// Interrupts a group of processes when it is dropped, as Ctrl-C does.
struct StopsGroup(u32);

impl Drop for StopsGroup {
    fn drop(&mut self) {
        support::send_to_group(self.0, Signal::INT);
    }
}

#[test]
fn make_run_ends_in_a_server_that_answers() {
    let mut make = Command::new("make");
    make.arg("run").current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).stdout(Stdio::piped());
    support::dies_with_this_thread(&mut make, Signal::TERM);
    // In a group of its own, make can be interrupted together with the programs that it runs.
    let mut child = std::os::unix::process::CommandExt::process_group(&mut make, 0).spawn().expect("make runs");
    let stop = StopsGroup(child.id());
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
    drop(stop);
    let _ = child.wait();
    assert_eq!(String::from_utf8_lossy(&reply.stdout), "1\n10\n9\n0\n6000\n");
    support::wait_for("the server to stop", || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
}
