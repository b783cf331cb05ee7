//! Every error text, made from the name of what is wrong and its range.

use std::fmt;

use crate::limiter::{Foreign, Kind};

/// A command, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `RL.FIXED` and the like.
    Limiter(Kind),
    /// `RL.PEEK`
    Peek,
    /// `RL.ALL`
    All,
    /// `RL.INSPECT`
    Inspect,
    /// `RL.TOP`
    Top,
    /// `CL.THROTTLE`
    Throttle,
    /// `GCRA`
    Tokens,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Limiter(kind) => kind.name(),
            Self::Peek => "PEEK",
            Self::All => "ALL",
            Self::Inspect => "INSPECT",
            Self::Top => "TOP",
            Self::Throttle => return f.write_str("CL.THROTTLE"),
            Self::Tokens => return f.write_str("GCRA"),
        };
        write!(f, "RL.{name}")
    }
}

/// What a key holds that is not what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A value of this type.
    Type(&'static str),
    /// A string, but not the right one.
    String(Foreign),
}

/// Why a command is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few arguments, or too many where none is optional any more.
    Arity(Name),
    /// An algorithm without its first two arguments.
    NoLimit(Kind),
    /// Not a whole number, or out of range.
    Count {
        /// The argument.
        name: &'static str,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// As [`Self::Count`], in the server's own words: `GCRA`.
    Integer {
        /// The argument.
        name: &'static str,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// Not a number of seconds: `GCRA`.
    NoNumber(&'static str),
    /// A number of seconds that is out of range: `GCRA`.
    Seconds(&'static str),
    /// As [`Self::MissingValue`], in the server's own words: `GCRA`.
    Missing(&'static str),
    /// Not a whole number, or too large in size.
    Signed {
        /// The argument.
        name: &'static str,
        /// The greatest value, and the least with a minus.
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
        command: Name,
    },
    /// A word in the place of an algorithm's name; printable.
    UnknownAlgorithm(String),
    /// A keyword without its value.
    MissingValue(&'static str),
    /// A keyword that stands there already.
    Twice(&'static str),
    /// Two keywords that exclude each other.
    Conflict(&'static str, &'static str),
    /// Two of the keys, by their places from 1 on, are the same.
    SameKey(usize, usize),
    /// There is not a rule for each key.
    Unpaired {
        /// How many keys.
        keys: usize,
        /// How many rules, at least.
        rules: usize,
    },
    /// The key holds something else.
    WrongType {
        /// Which key, from 1 on, where there are several.
        key: Option<usize>,
        /// What it holds.
        holds: Holds,
        /// What it was taken for; `None`: any limiter.
        wanted: Option<Kind>,
    },
    /// The result would not fit.
    Overflow,
    /// The key waited for is another node's now. Cluster clients know the code: they ask again, and are sent there.
    Moved,
    /// The server has ended a wait that was over already.
    Unblocked,
}

/// Results that are looked at on the way to a grant are better small: the error is not.
impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arity(name) => write!(f, "ERR wrong number of arguments for {name}"),
            Self::NoLimit(kind) => write!(f, "ERR {} needs a limit and a period", kind.name()),
            Self::Count { name, min, max } => write!(f, "ERR {name} must be a whole number from {min} to {max}"),
            Self::Integer { name, min, max } => {
                write!(f, "ERR {name} is not an integer or out of range: it must be from {min} to {max}")
            }
            Self::NoNumber(name) => write!(f, "ERR {name} is not a valid float: it must be a number of seconds"),
            Self::Seconds(name) => write!(f, "ERR {name} must be > 0: from 0.001 to 315360000 seconds"),
            Self::Missing(name) => write!(f, "ERR Missing {name} value"),
            Self::Signed { name, max } => write!(f, "ERR {name} must be a whole number from -{max} to {max}"),
            Self::Duration { name, range } => write!(
                f,
                "ERR {name} must be {range}: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"
            ),
            Self::UnknownOption { word, command } => write!(f, "ERR unknown option '{word}' for {command}"),
            Self::UnknownAlgorithm(word) => {
                write!(f, "ERR unknown algorithm '{word}': must be ")?;
                let last = Kind::ALL.len() - 1;
                Kind::ALL.iter().enumerate().try_for_each(|(index, kind)| {
                    let join = if index == 0 { "" } else if index == last { " or " } else { ", " };
                    write!(f, "{join}{}", kind.name())
                })
            }
            Self::MissingValue(name) => write!(f, "ERR {name} needs a value"),
            Self::Twice(name) => write!(f, "ERR {name} is given twice"),
            Self::Conflict(one, other) => write!(f, "ERR {one} and {other} can't be combined"),
            Self::SameKey(one, other) => write!(f, "ERR keys {one} and {other} are the same"),
            Self::Unpaired { keys, rules } if rules > keys => write!(f, "ERR more rules than keys: numkeys is {keys}"),
            Self::Unpaired { keys, rules } => write!(f, "ERR fewer rules than keys: numkeys is {keys}, and the rules are {rules}"),
            Self::WrongType { key, holds, wanted } => {
                f.write_str("WRONGTYPE key ")?;
                if let Some(key) = key {
                    write!(f, "{key} ")?;
                }
                f.write_str("holds a ")?;
                match holds {
                    Holds::Type(name) => write!(f, "{name}, not")?,
                    Holds::String(Foreign::Other(kind)) => write!(f, "{} limiter, not", kind.name())?,
                    Holds::String(Foreign::Version(version)) => {
                        write!(f, "limiter in format {version}, which this version of redis-rl does not read, not")?;
                    }
                    Holds::String(Foreign::Unknown) => f.write_str("string that is not")?,
                }
                match wanted {
                    Some(kind) => write!(f, " a {} limiter", kind.name()),
                    None => f.write_str(" a limiter"),
                }
            }
            Self::Overflow => f.write_str("ERR the result is too large for a limiter's record"),
            Self::Moved => f.write_str("TRYAGAIN the key's slot has moved to another node"),
            Self::Unblocked => f.write_str("UNBLOCKED the wait has been ended"),
        }
    }
}
