//! Configuration: `CONFIG GET` and `SET`, the server's configuration file, and the arguments that the module is loaded with.

use std::ffi::{c_char, c_int, c_longlong, c_void, CStr};
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

use redis_module::raw;

use super::api::{log_warning, server};

/// A setting, which the server knows as `rl.<name>`.
pub enum Setting {
    /// A number, which may be changed while the server runs.
    Number(&'static Number),
    /// Any of some words, which is read when the module is loaded, and stays.
    Words(&'static Choice),
}

/// A number that can be configured.
pub struct Number {
    name: &'static CStr,
    default: i64,
    range: RangeInclusive<i64>,
    value: AtomicI64,
}

/// Words that can be configured: none, one or several of them.
pub struct Choice {
    name: &'static CStr,
    /// Each with its bit; the first, with none, stands alone.
    words: &'static [(&'static CStr, c_int)],
    default: c_int,
    value: AtomicI32,
}

impl Number {
    /// A number of `range`.
    pub const fn new(name: &'static CStr, default: i64, range: RangeInclusive<i64>) -> Self {
        Self { name, default, range, value: AtomicI64::new(default) }
    }

    /// What it is set to.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The value that a word names.
    fn parse(&self, word: &str) -> Result<i64, String> {
        let (name, (least, most)) = (self.name.to_string_lossy(), (self.range.start(), self.range.end()));
        let value = word.parse().ok().filter(|value| self.range.contains(value));
        value.ok_or_else(|| format!("{name} must be a whole number from {least} to {most}"))
    }
}

impl Choice {
    /// Any of `words`, each with its bit; the first has none. `default` are the bits of those that are on.
    pub const fn new(name: &'static CStr, words: &'static [(&'static CStr, c_int)], default: c_int) -> Self {
        Self { name, words, default, value: AtomicI32::new(default) }
    }

    /// Whether the word with this bit is on.
    pub fn has(&self, bit: c_int) -> bool {
        self.value.load(Ordering::Relaxed) & bit != 0
    }

    /// The bits of the words, which are separated by spaces.
    fn parse(&self, text: &str) -> Result<c_int, String> {
        let bit = |word: &str| self.words.iter().find(|(name, _)| name.to_bytes().eq_ignore_ascii_case(word.as_bytes()));
        let bits = text.split_ascii_whitespace().map(bit).try_fold(None, |bits: Option<c_int>, found| {
            let &(_, bit) = found?;
            Some(Some(bits.unwrap_or(0) | bit))
        });
        bits.flatten().ok_or_else(|| {
            let words: Vec<_> = self.words.iter().map(|(name, _)| name.to_string_lossy()).collect();
            format!("{} must be of: {}", self.name.to_string_lossy(), words.join(", "))
        })
    }
}

/// Has the server know the settings, at first with the values that the module's `arguments` (names, each with its value) say,
/// and then those of the configuration file. An error, which keeps the module from loading, is logged.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn configure(ctx: *mut raw::RedisModuleCtx, settings: &'static [Setting], arguments: &[&[u8]]) -> bool {
    let complain = |message: &str| {
        log_warning(ctx, &format!("redis-rl: {message}"));
        false
    };
    let mut given: Vec<Option<String>> = vec![None; settings.len()];
    let mut last = None;
    for argument in arguments {
        if let Some(index) = settings.iter().position(|setting| argument.eq_ignore_ascii_case(setting.name().to_bytes())) {
            // Where a name is given twice, the last counts, as in the server's configuration file.
            (given[index], last) = (Some(String::new()), Some(index));
        } else if let Some(value) = last.and_then(|index: usize| given[index].as_mut()) {
            // Several words: the server leaves the quotes out where it writes the arguments down (`CONFIG REWRITE`).
            let space = if value.is_empty() { "" } else { " " };
            *value = format!("{value}{space}{}", String::from_utf8_lossy(argument));
        } else {
            let names: Vec<_> = settings.iter().map(Setting::name).map(CStr::to_string_lossy).collect();
            return complain(&format!("the module's arguments are names, each with its value: {}", names.join(", ")));
        }
    }
    for (setting, given) in settings.iter().zip(given) {
        let name = setting.name();
        if given.as_ref().is_some_and(String::is_empty) {
            return complain(&format!("{} needs a value", name.to_string_lossy()));
        }
        // SAFETY: `ctx` is the context of the module's loading, as the caller says. The server copies the names and the words,
        // and hands the setting, which lives for ever, back to the functions below.
        let registered = unsafe {
            match setting {
                Setting::Number(number) => {
                    let default = match given.map_or(Ok(number.default), |word| number.parse(&word)) {
                        Ok(default) => default,
                        Err(error) => return complain(&error),
                    };
                    number.value.store(default, Ordering::Relaxed);
                    let data = ptr::from_ref::<Number>(number).cast_mut().cast();
                    let (least, most) = (*number.range.start(), *number.range.end());
                    let (get, set) = (Some(number_of as _), Some(set_number as _));
                    server!(RedisModule_RegisterNumericConfig(
                        ctx,
                        name.as_ptr(),
                        default,
                        raw::REDISMODULE_CONFIG_DEFAULT,
                        least,
                        most,
                        get,
                        set,
                        None,
                        data
                    ))
                }
                Setting::Words(choice) => {
                    let default = match given.map_or(Ok(choice.default), |words| choice.parse(&words)) {
                        Ok(default) => default,
                        Err(error) => return complain(&error),
                    };
                    choice.value.store(default, Ordering::Relaxed);
                    let data = ptr::from_ref::<Choice>(choice).cast_mut().cast();
                    let mut names: Vec<*const c_char> = choice.words.iter().map(|(name, _)| name.as_ptr()).collect();
                    let bits: Vec<c_int> = choice.words.iter().map(|&(_, bit)| bit).collect();
                    let flags = raw::REDISMODULE_CONFIG_IMMUTABLE | raw::REDISMODULE_CONFIG_BITFLAGS;
                    let (get, set) = (Some(words_of as _), Some(set_words as _));
                    server!(RedisModule_RegisterEnumConfig(
                        ctx,
                        name.as_ptr(),
                        default,
                        flags as _,
                        names.as_mut_ptr(),
                        bits.as_ptr(),
                        bits.len() as c_int,
                        get,
                        set,
                        None,
                        data
                    ))
                }
            }
        };
        if registered != raw::REDISMODULE_OK as c_int {
            return complain(&format!("could not register the setting {}", name.to_string_lossy()));
        }
    }
    // SAFETY: as above.
    unsafe { server!(RedisModule_LoadConfigs(ctx)) == raw::REDISMODULE_OK as c_int }
}

impl Setting {
    const fn name(&self) -> &'static CStr {
        match self {
            Self::Number(number) => number.name,
            Self::Words(choice) => choice.name,
        }
    }
}

// SAFETY of all four: the server calls them with what was registered, a setting that lives for ever. It checks the range, and
// that the words are known, before it sets them.

unsafe extern "C" fn number_of(_: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: as above.
    unsafe { &*data.cast::<Number>() }.get()
}

unsafe extern "C" fn set_number(
    _: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as above.
    unsafe { &*data.cast::<Number>() }.value.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn words_of(_: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { &*data.cast::<Choice>() }.value.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_words(
    _: *const c_char,
    value: c_int,
    data: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as above.
    unsafe { &*data.cast::<Choice>() }.value.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}
