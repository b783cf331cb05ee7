//! Policies by name: the rule that a policy key holds as text.

use std::ops::Range;

use super::error::{Error, MAX_POLICY_LEN};
use super::grammar::{self, Cursor, Rule};
use super::numbers::printable;
use super::repeated::LastDenial;
use crate::server::{Call, MainThread, ReadKey, Value};

/// How many texts are remembered, with their meanings.
const PLACES: usize = 64;

/// The texts that were parsed last. Each has one place, which its bytes determine.
static PARSED: [MainThread<Parsed>; PLACES] = [const { MainThread::new(Parsed::NONE) }; PLACES];

/// A text, and its meaning. No reply shows whether a text is remembered.
struct Parsed {
    text: Vec<u8>,
    /// The rule of a call that names the policy and nothing else; `None`: there is no text.
    rule: Option<Rule<'static>>,
    /// The last denial of this rule.
    denial: LastDenial,
}

impl Parsed {
    const NONE: Self = Self { text: Vec::new(), rule: None, denial: LastDenial::NONE };

    /// The rule that `text` states, and the last denial of this rule. If another text is remembered here, and `text` is a rule,
    /// `text` replaces it.
    #[inline(always)]
    fn of(&mut self, text: &[u8]) -> Result<(&Rule<'static>, &mut LastDenial), Box<Error>> {
        if self.rule.is_none() || self.text != text {
            let rule = Some(parse(text)?);
            *self = Self { text: text.to_vec(), rule, denial: LastDenial::NONE };
        }
        let rule = self.rule.as_ref().ok_or_else(|| Box::new(Error::NoPolicy))?;
        Ok((rule, &mut self.denial))
    }
}

/// The place of a text. Texts of one length below eight bytes share a place, but are no rules.
fn place(text: &[u8]) -> &'static MainThread<Parsed> {
    let [first, last] = [text.first_chunk(), text.last_chunk()].map(|end| end.map_or(0, |end| u64::from_le_bytes(*end)));
    // The odd factor is 2^64 divided by the golden ratio, as in Fibonacci hashing: the upper bits depend on all others.
    let mixed = (first ^ last.rotate_left(29) ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PARSED[(mixed >> 32) as usize % PLACES]
}

/// Parses the text of a policy. White space separates its words.
///
/// # Errors
/// If the text is too long, or is no rule.
pub fn parse(text: &[u8]) -> Result<Rule<'static>, Box<Error>> {
    if text.len() > MAX_POLICY_LEN {
        return Err(Box::new(Error::LongPolicy));
    }
    let words: Vec<&[u8]> = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
    grammar::policy_text(&mut Cursor::new(&*words, 0))
}

/// Calls `work` with the rule of the first policy key that exists, and with the last denial of this rule. `keys` are the indexes of
/// the arguments that name the policy keys. No policy key is open during `work`.
///
/// # Errors
/// If no policy key exists, or the first that does holds no rule.
#[inline(always)]
pub fn with_policy<R>(
    call: &Call<'_>,
    keys: Range<usize>,
    work: impl FnOnce(&Rule<'static>, &mut LastDenial) -> Result<R, Box<Error>>,
) -> Result<R, Box<Error>> {
    for index in keys {
        let key = ReadKey::open_used(call, index).ok_or(Error::InUse)?;
        let name = || printable(call.argument(index).unwrap_or_default());
        let place = match key.value(0) {
            Value::Missing => continue,
            Value::String(text) => place(text),
            Value::TooShort => return Err(Box::new(Error::NoPolicy)),
            Value::OtherType(holds) => return Err(Box::new(Error::policy_type(&name(), holds))),
        };
        return place.with_if_free(call, |parsed| {
            // Another module can cause a call while this module decides one. The inner call finds the place in use, and parses the
            // text itself.
            let mut other = Parsed::NONE;
            let parsed = parsed.unwrap_or(&mut other);
            let Value::String(text) = key.value(0) else { return Err(Box::new(Error::NoPolicy)) };
            let (rule, denial) = parsed.of(text).map_err(|error| Error::not_policy(&name(), &error))?;
            drop(key);
            work(rule, denial)
        });
    }
    Err(Box::new(Error::NoPolicy))
}
