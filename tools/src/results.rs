//! What docs/benchmarks.json and docs/scale.json have in common: the machine that the figures were measured on, and the layout, a line for
//! each case, so that `git diff` shows which cases a new run has changed.

use std::fs;
use std::io::{Result, Write};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};

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
    let mut text = Vec::new();
    results.serialize(&mut Serializer::with_formatter(&mut text, Lines::default())).expect("JSON");
    text.push(b'\n');
    String::from_utf8(text).expect("JSON is text")
}

/// A line for each member of an object that is in no array, and for each element of an array that is in at most one other array.
/// All else stays on the line that it is part of.
#[derive(Default)]
struct Lines {
    /// How many arrays are open.
    arrays: usize,
    indent: usize,
}

impl Lines {
    const MOST_ARRAYS: usize = 2;

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> Result<()> {
        write!(writer, "\n{:1$}", "", 2 * self.indent)
    }
}

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.indent += usize::from(self.arrays == 0);
        writer.write_all(b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        match (self.arrays, first) {
            (0, true) => self.line(writer),
            (0, false) => writer.write_all(b",").and_then(|()| self.line(writer)),
            (_, true) => Ok(()),
            (_, false) => writer.write_all(b", "),
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.arrays == 0 {
            self.indent -= 1;
            self.line(writer)?;
        }
        writer.write_all(b"}")
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.arrays += 1;
        self.indent += 1;
        writer.write_all(b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        let with_line = self.arrays <= Self::MOST_ARRAYS;
        writer.write_all(match (first, with_line) {
            (true, _) => b"",
            (false, true) => b",",
            (false, false) => b", ",
        })?;
        if with_line {
            self.line(writer)?;
        }
        Ok(())
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.indent -= 1;
        if self.arrays <= Self::MOST_ARRAYS {
            self.line(writer)?;
        }
        self.arrays -= 1;
        writer.write_all(b"]")
    }
}
