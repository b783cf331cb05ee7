//! Configuration parameters, `rl.<name>`: set in the server's configuration file, by the module's arguments or by `CONFIG SET`.

use std::ffi::{c_char, c_int, c_longlong, c_void, CStr};
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

use super::{api, raw, Server, ServerString};

/// A configuration parameter.
pub enum Parameter {
    /// A number, which can change while the server runs.
    Number(&'static NumberParameter),
    /// One or more words, which are fixed when the module is loaded. `CONFIG SET` accepts only the value that they have: tools set
    /// each parameter to what `CONFIG GET` has returned.
    Words(&'static WordsParameter),
}

/// A parameter whose value is a whole number.
pub struct NumberParameter {
    name: &'static CStr,
    default: i64,
    range: RangeInclusive<i64>,
    value: AtomicI64,
}

/// A parameter whose value is one or more of a few words.
pub struct WordsParameter {
    name: &'static CStr,
    /// The words, each with its bit. The first word has 0 instead of a bit.
    words: &'static [(&'static CStr, c_int)],
    /// Whether the value can consist of several words.
    several: bool,
    default: c_int,
    value: AtomicI32,
}

impl NumberParameter {
    /// A parameter that accepts the numbers of `range`.
    pub const fn new(name: &'static CStr, default: i64, range: RangeInclusive<i64>) -> Self {
        Self { name, default, range, value: AtomicI64::new(default) }
    }

    /// Returns the current value.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    fn parse(&self, word: &str) -> Result<i64, String> {
        let (name, (min, max)) = (self.name.to_string_lossy(), (self.range.start(), self.range.end()));
        let value = word.parse().ok().filter(|value| self.range.contains(value));
        value.ok_or_else(|| format!("{name} must be a whole number from {min} to {max}"))
    }

    /// Registers the parameter. Its default is the value that the module's arguments give, if they do.
    ///
    /// # Errors
    /// Why the given value is invalid.
    fn register(&'static self, server: &Server<'_>, given: Option<&str>) -> Result<c_int, String> {
        let default = given.map_or(Ok(self.default), |word| self.parse(word))?;
        self.value.store(default, Ordering::Relaxed);
        let (name, flags) = (self.name.as_ptr(), raw::REDISMODULE_CONFIG_DEFAULT);
        let (min, max) = (*self.range.start(), *self.range.end());
        let (get, set) = (Some(get_number as _), Some(set_number as _));
        let data = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the context is live, and the server copies the name. It passes `data` to `get_number` and `set_number`, which
        // expect a `NumberParameter`; this one lives for ever.
        Ok(unsafe {
            api!(RedisModule_RegisterNumericConfig(server.ctx, name, default, flags, min, max, get, set, None, data))
        })
    }
}

impl WordsParameter {
    /// A parameter that accepts one of `words`. The first must have the bit 0. `default` is the bit of one of them.
    pub const fn one_of(name: &'static CStr, words: &'static [(&'static CStr, c_int)], default: c_int) -> Self {
        Self { name, words, several: false, default, value: AtomicI32::new(default) }
    }

    /// A parameter that accepts one or several of `words`. The first must have the bit 0. `default` is a sum of bits.
    pub const fn any_of(name: &'static CStr, words: &'static [(&'static CStr, c_int)], default: c_int) -> Self {
        Self { several: true, ..Self::one_of(name, words, default) }
    }

    /// Whether the value includes the word with this bit.
    pub fn has(&self, bit: c_int) -> bool {
        self.value.load(Ordering::Relaxed) & bit != 0
    }

    /// Parses words that are separated by spaces into the sum of their bits.
    fn parse(&self, text: &str) -> Result<c_int, String> {
        let bit = |word: &str| {
            let mut words = self.words.iter();
            words.find(|(name, _)| name.to_bytes().eq_ignore_ascii_case(word.as_bytes())).map(|&(_, bit)| bit)
        };
        let bits: Option<Vec<c_int>> = text.split_ascii_whitespace().map(bit).collect();
        match bits.as_deref() {
            Some(&[bit]) => Ok(bit),
            Some(bits @ [_, _, ..]) if self.several => Ok(bits.iter().fold(0, |all, bit| all | bit)),
            _ => {
                let words: Vec<_> = self.words.iter().map(|(name, _)| name.to_string_lossy()).collect();
                Err(format!("{} must be of: {}", self.name.to_string_lossy(), words.join(", ")))
            }
        }
    }

    /// Registers the parameter. Its default is the value that the module's arguments give, if they do.
    ///
    /// # Errors
    /// Why the given value is invalid.
    fn register(&'static self, server: &Server<'_>, given: Option<&str>) -> Result<c_int, String> {
        let default = given.map_or(Ok(self.default), |words| self.parse(words))?;
        self.value.store(default, Ordering::Relaxed);
        let flags = if self.several { raw::REDISMODULE_CONFIG_BITFLAGS } else { raw::REDISMODULE_CONFIG_DEFAULT };
        let mut words: Vec<*const c_char> = self.words.iter().map(|(word, _)| word.as_ptr()).collect();
        let bits: Vec<c_int> = self.words.iter().map(|&(_, bit)| bit).collect();
        let (name, len) = (self.name.as_ptr(), bits.len() as c_int);
        let (words, bits) = (words.as_mut_ptr(), bits.as_ptr());
        let (get, set) = (Some(get_words as _), Some(set_words as _));
        let data = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the context is live, and the server copies the name, the `len` words and the `len` bits. It passes `data` to
        // `get_words` and `set_words`, which expect a `WordsParameter`; this one lives for ever.
        Ok(unsafe {
            api!(RedisModule_RegisterEnumConfig(server.ctx, name, default, flags, words, bits, len, get, set, None, data))
        })
    }
}

/// Whether the parameters have got their values, so that those of [`Parameter::Words`] are fixed.
static ARE_FIXED: AtomicBool = AtomicBool::new(false);

impl Parameter {
    const fn name(&self) -> &'static CStr {
        match self {
            Self::Number(number) => number.name,
            Self::Words(words) => words.name,
        }
    }
}

/// Registers the parameters. Their values come from the module's `arguments` (names, each with its value). The server's
/// configuration file overrides them.
///
/// # Errors
/// Why the module must not be loaded.
fn register(server: &Server<'_>, parameters: &'static [Parameter], arguments: &[&[u8]]) -> Result<(), String> {
    let given = values(parameters, arguments)?;
    for (parameter, given) in parameters.iter().zip(given) {
        let name = parameter.name().to_string_lossy();
        if given.as_ref().is_some_and(String::is_empty) {
            return Err(format!("{name} needs a value"));
        }
        let status = match parameter {
            Parameter::Number(number) => number.register(server, given.as_deref()),
            Parameter::Words(words) => words.register(server, given.as_deref()),
        };
        if status? != raw::REDISMODULE_OK as c_int {
            return Err(format!("could not register the configuration parameter {name}"));
        }
    }
    Ok(())
}

/// Returns the value that the module's arguments give for each parameter.
///
/// # Errors
/// If the first argument is not the name of a parameter.
fn values(parameters: &[Parameter], arguments: &[&[u8]]) -> Result<Vec<Option<String>>, String> {
    let mut values = vec![None; parameters.len()];
    let mut current = None;
    for argument in arguments {
        let named = |parameter: &Parameter| argument.eq_ignore_ascii_case(parameter.name().to_bytes());
        if let Some(index) = parameters.iter().position(named) {
            // If a name is given twice, the last value counts, as in the server's configuration file.
            (values[index], current) = (Some(String::new()), Some(index));
        } else if let Some(value) = current.and_then(|index: usize| values[index].as_mut()) {
            // A value of several words: `CONFIG REWRITE` writes the arguments without the quotes around such a value.
            let space = if value.is_empty() { "" } else { " " };
            *value = format!("{value}{space}{}", String::from_utf8_lossy(argument));
        } else {
            let names: Vec<_> = parameters.iter().map(Parameter::name).map(CStr::to_string_lossy).collect();
            return Err(format!("the module's arguments are names, each with its value: {}", names.join(", ")));
        }
    }
    Ok(values)
}

/// Registers the parameters with [`register`], and makes the server set them from its configuration file. Returns whether the module
/// may be loaded; if it may not, logs the reason.
pub(super) fn configure(server: &Server<'_>, parameters: &'static [Parameter], arguments: &[&[u8]]) -> bool {
    if let Err(error) = register(server, parameters, arguments) {
        server.log_warning(&format!("redis-rl: {error}"));
        return false;
    }
    ARE_FIXED.store(false, Ordering::Relaxed);
    // SAFETY: the context is live. The server accepts this call only while it loads a module, and refuses it otherwise.
    let loaded = unsafe { api!(RedisModule_LoadConfigs(server.ctx)) == raw::REDISMODULE_OK as c_int };
    ARE_FIXED.store(true, Ordering::Relaxed);
    loaded
}

/// # Safety
/// `data` must point to a [`NumberParameter`].
unsafe extern "C" fn get_number(_: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: the server passes the pointer that `NumberParameter::register` registered, to a parameter that lives for ever.
    unsafe { &*data.cast::<NumberParameter>() }.get()
}

/// # Safety
/// `data` must point to a [`NumberParameter`].
unsafe extern "C" fn set_number(_: *const c_char, value: c_longlong, data: *mut c_void, _: *mut ServerString) -> c_int {
    // The server has checked the range.
    // SAFETY: the server passes the pointer that `NumberParameter::register` registered, to a parameter that lives for ever.
    unsafe { &*data.cast::<NumberParameter>() }.value.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

/// # Safety
/// `data` must point to a [`WordsParameter`].
unsafe extern "C" fn get_words(_: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: the server passes the pointer that `WordsParameter::register` registered, to a parameter that lives for ever.
    unsafe { &*data.cast::<WordsParameter>() }.value.load(Ordering::Relaxed)
}

/// # Safety
/// `data` must point to a [`WordsParameter`], and `error` must be valid for writing.
unsafe extern "C" fn set_words(_: *const c_char, value: c_int, data: *mut c_void, error: *mut ServerString) -> c_int {
    // The server has checked the words.
    // SAFETY: the server passes the pointer that `WordsParameter::register` registered, to a parameter that lives for ever.
    let parameter = unsafe { &*data.cast::<WordsParameter>() };
    if ARE_FIXED.load(Ordering::Relaxed) && value != parameter.value.load(Ordering::Relaxed) {
        let reason = c"can't be changed while the module is loaded: it is immutable";
        // SAFETY: the server copies the text, and frees the string that it finds in `error`, which it passes for this.
        unsafe { *error = api!(RedisModule_CreateString(ptr::null_mut(), reason.as_ptr(), reason.count_bytes())) };
        return raw::REDISMODULE_ERR as c_int;
    }
    parameter.value.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}
