//! The errors of all commands, and their texts, which name the bad argument and its range.

use std::fmt;

use crate::limiter::{Id, Kind, Overflow, RecordError};

/// The longest text of a policy, in bytes.
pub const MAX_POLICY_LEN: usize = 256;

/// The name of a command, as error texts show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandName {
    /// `RL.FIXED` and the like.
    Limit(Kind),
    /// `RL.PEEK`
    Peek,
    /// `RL.ALL`
    All,
    /// `RL.SETTLE`
    Settle,
    /// `RL.RELEASE`
    Release,
    /// `RL.PAUSE`
    Pause,
    /// `RL.USE` with a policy of this algorithm: its errors are those of the algorithm's own command.
    Use(Kind),
    /// `RL.POLICY`
    Policy,
    /// `RL.INSPECT`
    Inspect,
    /// `RL.TOP`
    Top,
    /// `RL.HELP`
    Help,
    /// `CL.THROTTLE`
    ClThrottle,
    /// `GCRA`
    Gcra,
}

impl fmt::Display for CommandName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Limit(kind) | Self::Use(kind) => kind.name(),
            Self::Peek => "PEEK",
            Self::All => "ALL",
            Self::Settle => "SETTLE",
            Self::Release => "RELEASE",
            Self::Pause => "PAUSE",
            Self::Policy => "POLICY",
            Self::Inspect => "INSPECT",
            Self::Top => "TOP",
            Self::Help => "HELP",
            Self::ClThrottle => return f.write_str("CL.THROTTLE"),
            Self::Gcra => return f.write_str("GCRA"),
        };
        write!(f, "RL.{name}")
    }
}

/// The value that a key holds instead of the wanted limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A value of this type.
    Type(&'static str),
    /// A string that is not a record of the wanted limiter.
    String(RecordError),
}

/// The reason for which a command is refused. A refused command changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few arguments, or too many.
    Arity(CommandName),
    /// `RL.USE`: there are fewer policy keys than `numpolicies` says.
    FewPolicies,
    /// `RL.USE`: none of the policy keys exists.
    NoPolicy,
    /// `RL.USE`: a policy key holds no rule. This is the whole text of the error, which [`Self::not_policy`] and
    /// [`Self::policy_type`] make. If the error had several parts, the code that frees them would not be inlined, and all calls
    /// would take longer.
    Policy(String),
    /// `RL.POLICY`: the key holds something that is never overwritten.
    NotOverwritten(&'static str),
    /// The text of a policy is too long.
    LongPolicy,
    /// `RL.USE`: the option is part of the policy, and so of the policy key.
    OptionOfPolicy(&'static str),
    /// A limit or a period is missing.
    NoLimit(Kind),
    /// The argument is not a whole number, or is out of range.
    Count {
        /// The argument.
        name: &'static str,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// As [`Self::Count`], in the words of the server's own `GCRA`.
    Integer {
        /// The argument.
        name: &'static str,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// `GCRA`: the argument is not a number of seconds.
    NoNumber(&'static str),
    /// `GCRA`: the number of seconds is out of range.
    Seconds(&'static str),
    /// As [`Self::MissingValue`], in the words of the server's own `GCRA`.
    Missing(&'static str),
    /// The argument is not a signed whole number, or its absolute value is too large.
    Signed {
        /// The argument.
        name: &'static str,
        /// The greatest value; the least one is its negative.
        max: u64,
    },
    /// `RL.TOP`: the argument is neither a keyword nor a number of keys from 1 to this number.
    NotTop(u64),
    /// The argument is not a duration, or is out of range.
    Duration {
        /// The argument.
        name: &'static str,
        /// The range, in words.
        range: &'static str,
    },
    /// The argument is not a Unix time.
    Time(&'static str),
    /// The end of a window lies more than two periods ahead.
    TooFarAhead,
    /// The word is not a keyword of the command.
    UnknownOption {
        /// The word, in printable form.
        word: String,
        /// The command.
        command: CommandName,
    },
    /// The word is not the name of an algorithm.
    UnknownAlgorithm {
        /// The word, in printable form.
        word: String,
    },
    /// The word is not the name of a command.
    UnknownCommand {
        /// The word, in printable form.
        word: String,
    },
    /// The argument is not an id: it has no bytes, or too many.
    IdLength(&'static str),
    /// A lease needs an id.
    NoId,
    /// A lease can't be renewed with another COST than the units that it holds.
    OtherCost {
        /// The units that the lease holds.
        held: u64,
    },
    /// The id names a lease, which can be released, but not settled to units.
    SettledLease,
    /// The keyword has no value.
    MissingValue(&'static str),
    /// The keyword occurs twice.
    Twice(&'static str),
    /// The two keywords exclude each other.
    Conflict(&'static str, &'static str),
    /// A keyword of the whole call stands before the last rule.
    BeforeLastRule(&'static str),
    /// Two keys of a call are the same: their positions, from 1 on.
    SameKey(usize, usize),
    /// The number of rules differs from the number of keys.
    Unpaired {
        /// The number of keys.
        keys: usize,
        /// The number of rules. If there are more rules than keys, the rest of them is not counted.
        rules: usize,
    },
    /// The key does not hold the wanted limiter.
    WrongType {
        /// The key's position, from 1 on, if the command takes several keys.
        position: Option<usize>,
        /// The value that it holds.
        holds: Holds,
        /// The wanted algorithm; `None`: any.
        wanted: Option<Kind>,
    },
    /// The result would not fit a record.
    Overflow,
    /// The server is out of memory. The text is the server's own.
    OutOfMemory,
    /// As many clients wait as `rl.max-waiters` allows.
    TooManyWaiters,
    /// The key's slot has moved to another node while the client waited. Cluster clients repeat the call when they get this
    /// error code, and the server then redirects them.
    Moved,
    /// A thread of the server is reading the key, for a save without a fork.
    InUse,
    /// The server became a replica, or unblocks a client that does not wait any more.
    Unblocked,
}

/// The functions that a granted call runs return boxed errors: an [`Error`] is large, and a small result type is faster.
impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

impl Error {
    /// The text of a policy key is not a rule, as `error` says. `key` is the name of the key, in printable form.
    pub fn not_policy(key: &str, error: &Self) -> Self {
        let error = error.to_string();
        Self::Policy(format!("ERR policy key '{key}': {}", error.strip_prefix("ERR ").unwrap_or(&error)))
    }

    /// A policy key holds a value of another type. `key` is as in [`Self::not_policy`].
    pub fn policy_type(key: &str, holds: &str) -> Self {
        Self::Policy(format!("WRONGTYPE policy key '{key}' holds a {holds}, not a string"))
    }

    /// The error of the key at `position`, from 1 on, of a command with several keys.
    pub fn at(self, position: usize) -> Self {
        match self {
            Self::WrongType { holds, wanted, .. } => Self::WrongType { position: Some(position), holds, wanted },
            other => other,
        }
    }
}

impl From<Overflow> for Error {
    fn from(_: Overflow) -> Self {
        Self::Overflow
    }
}

impl From<Overflow> for Box<Error> {
    fn from(_: Overflow) -> Self {
        Self::new(Error::Overflow)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arity(name) => write!(f, "ERR wrong number of arguments for {name}"),
            Self::FewPolicies => f.write_str("ERR fewer policy keys than numpolicies"),
            Self::NoPolicy => f.write_str("NOPOLICY none of the policy keys exists"),
            Self::Policy(text) => f.write_str(text),
            Self::NotOverwritten(holds) => write!(f, "WRONGTYPE key holds a {holds}, which RL.POLICY does not overwrite"),
            Self::LongPolicy => write!(f, "ERR a policy must be at most {MAX_POLICY_LEN} bytes long"),
            Self::OptionOfPolicy(keyword) => write!(f, "ERR {keyword} is part of the policy, not of a call of RL.USE"),
            Self::NoLimit(kind) => write!(f, "ERR {} needs a limit and a {}", kind.name(), kind.spec().period),
            Self::Count { name, min, max } => write!(f, "ERR {name} must be a whole number from {min} to {max}"),
            Self::Integer { name, min, max } => {
                write!(f, "ERR {name} is not an integer or out of range: it must be from {min} to {max}")
            }
            Self::NoNumber(name) => write!(f, "ERR {name} is not a valid float: it must be a number of seconds"),
            Self::Seconds(name) => write!(f, "ERR {name} must be > 0: from 0.001 to 315360000 seconds"),
            Self::Missing(name) => write!(f, "ERR Missing {name} value"),
            Self::Signed { name, max } => write!(f, "ERR {name} must be a whole number from -{max} to {max}"),
            Self::NotTop(most) => write!(f, "ERR n must be a whole number from 1 to {most}; or give RESET or WAITING instead of n"),
            Self::Duration { name, range } => write!(
                f,
                "ERR {name} must be {range}: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"
            ),
            Self::Time(name) => {
                write!(f, "ERR {name} must be a Unix time in seconds, with at most 6 decimals and without sign or suffix")
            }
            Self::TooFarAhead => f.write_str(
                "ERR UNTIL must be at most two periods ahead: it is a Unix time in seconds, and the period is the longest window",
            ),
            Self::UnknownOption { word, command } => write!(f, "ERR unknown option '{word}' for {command}"),
            Self::UnknownAlgorithm { word } => {
                write!(f, "ERR unknown algorithm '{word}': must be ")?;
                let last = Kind::ALL.len() - 1;
                Kind::ALL.iter().enumerate().try_for_each(|(index, kind)| {
                    let join = if index == 0 { "" } else if index == last { " or " } else { ", " };
                    write!(f, "{join}{}", kind.name())
                })
            }
            Self::UnknownCommand { word } => write!(f, "ERR command must be one that RL.HELP lists, not '{word}'"),
            Self::IdLength(name) => write!(f, "ERR {name} must be 1 to {} bytes long", Id::MAX_LEN),
            Self::NoId => f.write_str("ERR LEASE needs an ID"),
            Self::OtherCost { held } => write!(f, "ERR COST must be {held}, the units that this ID holds, or be omitted"),
            Self::SettledLease => f.write_str("ERR units must be 0 for a lease: RL.RELEASE ends it"),
            Self::MissingValue(name) => write!(f, "ERR {name} needs a value"),
            Self::Twice(name) => write!(f, "ERR {name} is given twice"),
            Self::Conflict(one, other) => write!(f, "ERR {one} and {other} can't be combined"),
            Self::BeforeLastRule(keyword) => write!(f, "ERR {keyword} must follow the last rule"),
            Self::SameKey(one, other) => write!(f, "ERR keys {one} and {other} are the same"),
            Self::Unpaired { keys, rules } if rules > keys => write!(f, "ERR more rules than keys: numkeys is {keys}"),
            Self::Unpaired { keys, rules } => write!(f, "ERR fewer rules than keys: numkeys is {keys}, and the rules are {rules}"),
            Self::WrongType { position, holds, wanted } => {
                f.write_str("WRONGTYPE key ")?;
                if let Some(position) = position {
                    write!(f, "{position} ")?;
                }
                f.write_str("holds a ")?;
                match holds {
                    Holds::Type(name) => write!(f, "{name}, not")?,
                    Holds::String(RecordError::OtherAlgorithm(kind)) => write!(f, "{} limiter, not", kind.name())?,
                    Holds::String(RecordError::Version(version)) => {
                        write!(f, "limiter in format {version}, which this version of redis-rl does not read, not")?;
                    }
                    Holds::String(RecordError::Unknown) => f.write_str("string that is not")?,
                }
                match wanted {
                    Some(kind) => write!(f, " a {} limiter", kind.name()),
                    None => f.write_str(" a limiter"),
                }
            }
            Self::Overflow => f.write_str("ERR the result is too large for a limiter's record"),
            Self::OutOfMemory => f.write_str("OOM command not allowed when used memory > 'maxmemory'."),
            Self::TooManyWaiters => f.write_str("ERR too many waiting calls"),
            Self::Moved => f.write_str("TRYAGAIN the key's slot has moved to another node"),
            Self::InUse => f.write_str("TRYAGAIN the server is saving the key: repeat the call"),
            Self::Unblocked => f.write_str("UNBLOCKED the wait has been ended"),
        }
    }
}
