//! What the commands share. Each file here uses only files below it in this list, the core, and the server:
//!
//! ```text
//! commit      carries out the decision on a command's only key, or lets its client wait
//! waiting     BLOCK: the lines, a call that joins one, the timer that serves them, the answers
//! target      a command's key, and the decisions on it
//! policies    the rule that a policy key holds as text
//! repeated    what a call takes over from the call before it
//! grammar     the rule of a call: its words, its parser, its arguments in COMMAND DOCS
//! outcome     what a call did: counts it, and publishes it
//! reply       the replies, as integers
//! denials     the table of RL.TOP
//! stats       the counters of INFO rl
//! numbers     numbers and durations, as callers write them
//! error       the errors of all commands, and their texts
//! parameters  the settings rl.*
//! clock       the time of a call
//! ```

pub mod clock;
pub mod commit;
pub mod denials;
pub mod error;
pub mod grammar;
pub mod numbers;
pub mod outcome;
pub mod parameters;
pub mod policies;
pub mod repeated;
pub mod reply;
pub mod stats;
pub mod target;
pub mod waiting;
