//! What docs/benchmarks.json and docs/scale.json have in common: the machine that the figures were measured on, and the layout, a line for
//! each case, so that `git diff` shows which cases a new run has changed.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// See above.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    date: String,
    cpu: String,
    cores: usize,
    memory_gb: u64,
    system: String,
    kernel: String,
    module: String,
    rustc: String,
}

impl Machine {
    /// This machine, and the module that is checked out.
    pub fn this() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("unknown".into(), |rest| rest.trim_matches([':', '=', '"', ' ', '\t']).to_string())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kilobytes: u64 = memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Self {
            date: output("date", &["-u", "+%Y-%m-%d"]),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gb: kilobytes >> 20,
            system: field("/etc/os-release", "PRETTY_NAME"),
            kernel: field("/proc/sys/kernel/osrelease", ""),
            module: format!("{} ({})", env!("CARGO_PKG_VERSION"), output("git", &["describe", "--always", "--dirty"])),
            rustc: output("rustc", &["--version"]),
        }
    }

    /// The day of the measurement.
    pub fn date(&self) -> &str {
        &self.date
    }

    /// The version of the module, with its commit.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The processor, the memory and the system, in a few words.
    pub fn brief(&self) -> String {
        format!("{}, {} cores, {} GB, {}", self.cpu, self.cores, self.memory_gb, self.system)
    }

    /// The machine and the module, as a table.
    pub fn report(&self) -> String {
        format!(
            "| | |\n|---|---|\n| CPU | {}, {} cores |\n| memory | {} GB |\n| system | {}, Linux {} |\n\
             | redis-rl | {}, built by {} |\n",
            self.cpu, self.cores, self.memory_gb, self.system, self.kernel, self.module, self.rustc
        )
    }
}

/// What a program prints; nothing if it does not run.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(support::root()).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The text of the file.
pub fn text(results: &impl Serialize) -> String {
    let mut text = lines(&serde_json::to_value(results).expect("JSON"), 0, 0);
    text.push('\n');
    text
}

/// A line for each member of an object that is in no array, and for each element of an array that is in at most one other array.
/// All else stays on the line that it is part of. `arrays` is how many arrays are open.
fn lines(value: &Value, arrays: usize, indent: usize) -> String {
    let indented = |lines: Vec<String>, [open, close]: [&str; 2]| {
        let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
        format!("{open}\n{inner}{}\n{outer}{close}", lines.join(&format!(",\n{inner}")))
    };
    match value {
        Value::Object(members) if arrays == 0 => {
            let line = |(name, value): (&String, &Value)| format!("\"{name}\": {}", lines(value, arrays, indent + 2));
            indented(members.iter().map(line).collect(), ["{", "}"])
        }
        Value::Array(elements) if arrays < 2 => {
            indented(elements.iter().map(|value| lines(value, arrays + 1, indent + 2)).collect(), ["[", "]"])
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("\"{name}\": {}", lines(value, arrays, indent));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
