//! The description of a command's arguments, for `COMMAND DOCS` and `RL.HELP`.

use std::ffi::{c_char, c_int, CString};
use std::fmt;
use std::ptr;

use super::raw;

/// The kind of an argument.
pub enum ArgumentKind {
    /// The name of a key.
    Key,
    /// Any text.
    Text,
    /// A whole number.
    Integer,
    /// A keyword that has no value: [`Argument::token`] sets it.
    Token,
    /// One of these arguments.
    OneOf(Vec<Argument>),
    /// All of these arguments, in this order.
    Block(Vec<Argument>),
}

/// An argument of a command.
pub struct Argument {
    name: String,
    kind: ArgumentKind,
    token: Option<String>,
    optional: bool,
    multiple: bool,
}

impl Argument {
    /// A required argument that occurs once.
    pub fn new(name: impl Into<String>, kind: ArgumentKind) -> Self {
        Self { name: name.into(), kind, token: None, optional: false, multiple: false }
    }

    /// Sets the keyword that precedes the argument, or that is the argument ([`ArgumentKind::Token`]).
    pub fn token(self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// Makes the argument optional.
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Lets the argument occur several times.
    pub fn multiple(self) -> Self {
        Self { multiple: true, ..self }
    }
}

/// Writes the argument as in a command's syntax line.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |arguments: &[Self], separator| arguments.iter().map(Self::to_string).collect::<Vec<_>>().join(separator);
        let text = match (&self.kind, &self.token) {
            (ArgumentKind::OneOf(ways), _) if self.optional => join(ways, " | "),
            (ArgumentKind::OneOf(ways), _) => format!("<{}>", join(ways, " | ")),
            (ArgumentKind::Block(parts), _) => join(parts, " "),
            (ArgumentKind::Token, Some(token)) => token.clone(),
            (_, Some(token)) => format!("{token} {}", self.name),
            (_, None) => self.name.clone(),
        };
        let again = match self.kind {
            _ if !self.multiple => String::new(),
            ArgumentKind::OneOf(_) | ArgumentKind::Block(_) => " [...]".into(),
            _ => format!(" [{} ...]", self.name),
        };
        let (open, close) = if self.optional { ("[", "]") } else { ("", "") };
        write!(f, "{open}{text}{again}{close}")
    }
}

/// Arguments in the form that the module API takes: C structures that refer to each other. Dropping `self` frees all of them.
#[derive(Default)]
pub(super) struct RawArguments {
    texts: Vec<CString>,
    lists: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl RawArguments {
    /// Returns a C array of these arguments, which is valid as long as `self`; null if there are none.
    pub(super) fn list(&mut self, arguments: &[Argument]) -> *mut raw::RedisModuleCommandArg {
        if arguments.is_empty() {
            return ptr::null_mut();
        }
        let mut list: Vec<_> = arguments.iter().map(|argument| self.convert(argument)).collect();
        // An empty structure ends the array.
        list.push(empty());
        let start = list.as_mut_ptr();
        self.lists.push(list);
        start
    }

    fn convert(&mut self, argument: &Argument) -> raw::RedisModuleCommandArg {
        let (kind, parts): (_, &[Argument]) = match &argument.kind {
            ArgumentKind::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, &[]),
            ArgumentKind::Text => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, &[]),
            ArgumentKind::Integer => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, &[]),
            ArgumentKind::Token => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN, &[]),
            ArgumentKind::OneOf(parts) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF, parts),
            ArgumentKind::Block(parts) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK, parts),
        };
        let optional = if argument.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        let multiple = if argument.multiple { raw::REDISMODULE_CMD_ARG_MULTIPLE } else { 0 };
        let mut converted = empty();
        converted.name = self.text(&argument.name);
        converted.type_ = kind;
        // A command has one key specification at most, which is number 0.
        converted.key_spec_index = if matches!(argument.kind, ArgumentKind::Key) { 0 } else { -1 };
        converted.token = argument.token.as_deref().map_or(ptr::null(), |token| self.text(token));
        converted.flags = (optional | multiple) as c_int;
        converted.subargs = self.list(parts);
        converted
    }

    fn text(&mut self, text: &str) -> *const c_char {
        let text = CString::new(text).unwrap_or_default();
        let start = text.as_ptr();
        self.texts.push(text);
        start
    }
}

fn empty() -> raw::RedisModuleCommandArg {
    // SAFETY: the C structure consists of integers and pointers, for which all bits zero is a valid value.
    unsafe { std::mem::zeroed() }
}
