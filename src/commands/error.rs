//! Every error text, made from the name of what is wrong and its range.

use std::fmt;

use crate::limiter::{Foreign, Kind};

/// Why a command is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few arguments.
    Arity(Kind),
    /// Not a whole number, or out of range.
    Count {
        /// The argument.
        name: &'static str,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// Not a duration, or out of range.
    Duration {
        /// The argument.
        name: &'static str,
        /// The values that it may have, in words.
        range: &'static str,
    },
    /// A word that is no keyword of the command.
    UnknownOption {
        /// The word, printable.
        word: String,
        /// The command.
        kind: Kind,
    },
    /// A keyword without its value.
    MissingValue(&'static str),
    /// A keyword that stands there already.
    Twice(&'static str),
    /// Two keywords that exclude each other.
    Conflict(&'static str, &'static str),
    /// The key holds another limiter, or a string that is none.
    Foreign {
        /// What it holds.
        held: Foreign,
        /// What it was taken for.
        wanted: Kind,
    },
    /// The key holds a value of another type.
    Type {
        /// What it holds.
        held: &'static str,
        /// What it was taken for.
        wanted: Kind,
    },
    /// The result would not fit.
    Overflow,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arity(kind) => write!(f, "ERR wrong number of arguments for RL.{}: key, limit and period are needed", kind.name()),
            Self::Count { name, min, max } => write!(f, "ERR {name} must be a whole number from {min} to {max}"),
            Self::Duration { name, range } => write!(
                f,
                "ERR {name} must be {range}: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"
            ),
            Self::UnknownOption { word, kind } => write!(f, "ERR unknown option '{word}' for RL.{}", kind.name()),
            Self::MissingValue(name) => write!(f, "ERR {name} needs a value"),
            Self::Twice(name) => write!(f, "ERR {name} is given twice"),
            Self::Conflict(one, other) => write!(f, "ERR {one} and {other} can't be combined"),
            Self::Foreign { held: Foreign::Other(kind), wanted } => {
                write!(f, "WRONGTYPE key holds a {} limiter, not a {} limiter", kind.name(), wanted.name())
            }
            Self::Foreign { held: Foreign::Version(version), wanted } => write!(
                f,
                "WRONGTYPE key holds a limiter in format {version}, which this version of redis-rl does not read, not a {} limiter",
                wanted.name()
            ),
            Self::Foreign { held: Foreign::Unknown, wanted } => {
                write!(f, "WRONGTYPE key holds a string that is not a {} limiter", wanted.name())
            }
            Self::Type { held, wanted } => write!(f, "WRONGTYPE key holds a {held}, not a {} limiter", wanted.name()),
            Self::Overflow => f.write_str("ERR the result is too large for a limiter's record"),
        }
    }
}
