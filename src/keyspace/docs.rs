//! The arguments of a command, as `COMMAND DOCS` tells them.

use std::ffi::{c_int, CString};
use std::fmt;
use std::ptr;

use redis_module::raw;

/// What an argument is.
pub enum What {
    /// The name of a key.
    Key,
    /// Any text.
    Text,
    /// A whole number.
    Integer,
    /// Its token alone.
    Token,
    /// Any one of these.
    OneOf(Vec<Argument>),
    /// All of these, in their order.
    Block(Vec<Argument>),
}

/// An argument of a command.
pub struct Argument {
    name: String,
    what: What,
    token: Option<String>,
    optional: bool,
    multiple: bool,
}

impl Argument {
    /// An argument that has to be there, once.
    pub fn new(name: impl Into<String>, what: What) -> Self {
        Self { name: name.into(), what, token: None, optional: false, multiple: false }
    }

    /// The word that comes before it, or is all of it.
    pub fn token(self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// It may be left out.
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// It may be there several times.
    pub fn multiple(self) -> Self {
        Self { multiple: true, ..self }
    }
}

/// As the syntax of a command is written.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |arguments: &[Self], separator| arguments.iter().map(Self::to_string).collect::<Vec<_>>().join(separator);
        let text = match (&self.what, &self.token) {
            (What::OneOf(ways), _) if self.optional => join(ways, " | "),
            (What::OneOf(ways), _) => format!("<{}>", join(ways, " | ")),
            (What::Block(parts), _) => join(parts, " "),
            (What::Token, Some(token)) => token.clone(),
            (_, Some(token)) => format!("{token} {}", self.name),
            (_, None) => self.name.clone(),
        };
        let again = match self.what {
            _ if !self.multiple => String::new(),
            What::OneOf(_) | What::Block(_) => " [...]".into(),
            _ => format!(" [{} ...]", self.name),
        };
        if self.optional {
            write!(f, "[{text}{again}]")
        } else {
            write!(f, "{text}{again}")
        }
    }
}

/// Arguments in the server's form, for as long as it needs them.
#[derive(Default)]
pub(super) struct Tree {
    texts: Vec<CString>,
    lists: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl Tree {
    /// A list of these arguments; null if there are none.
    pub(super) fn list(&mut self, arguments: &[Argument]) -> *mut raw::RedisModuleCommandArg {
        if arguments.is_empty() {
            return ptr::null_mut();
        }
        let mut list: Vec<_> = arguments.iter().map(|argument| self.argument(argument)).collect();
        // SAFETY: the structure is C's, of integers and pointers: all zero is its empty value, and ends a list.
        list.push(unsafe { std::mem::zeroed() });
        let start = list.as_mut_ptr();
        self.lists.push(list);
        start
    }

    fn argument(&mut self, argument: &Argument) -> raw::RedisModuleCommandArg {
        let (kind, parts): (_, &[Argument]) = match &argument.what {
            What::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, &[]),
            What::Text => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, &[]),
            What::Integer => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, &[]),
            What::Token => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN, &[]),
            What::OneOf(ways) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF, ways),
            What::Block(parts) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK, parts),
        };
        let optional = if argument.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        let multiple = if argument.multiple { raw::REDISMODULE_CMD_ARG_MULTIPLE } else { 0 };
        // SAFETY: as above.
        let mut told: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        told.name = self.text(&argument.name);
        told.type_ = kind;
        // The only specification of keys that the command has.
        told.key_spec_index = if matches!(argument.what, What::Key) { 0 } else { -1 };
        told.token = argument.token.as_deref().map_or(ptr::null(), |token| self.text(token));
        told.flags = (optional | multiple) as c_int;
        told.subargs = self.list(parts);
        told
    }

    fn text(&mut self, text: &str) -> *const std::ffi::c_char {
        let text = CString::new(text).unwrap_or_default();
        let start = text.as_ptr();
        self.texts.push(text);
        start
    }
}
