//! How docs/benchmarks.json and docs/scale.json are laid out: one line for each case, so that `git diff` shows which cases a new
//! run has changed.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

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
