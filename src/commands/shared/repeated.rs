//! What a call can take over from the call before it: most calls have the limit and the period of the last one, and a flood of
//! denied calls gets the same denial again and again.

use super::error::Error;
use super::grammar::{self, Args, Rule};
use crate::limiter::{Amount, Decision, Kind, LastingDenial, Policy, Request, View};
use crate::server::{Call, MainThread};

/// The most bytes of a limit and of a period that are compared.
const LONGEST: usize = 16;

/// The last call of each algorithm, in the order of [`Kind::ALL`].
static LAST: [MainThread<LastCall>; Kind::ALL.len()] = [const { MainThread::new(LastCall::NONE) }; Kind::ALL.len()];

/// The last call of an algorithm that was made with a limit and a period, and without options.
struct LastCall {
    /// Its limit and its period.
    words: (Word, Word),
    /// What the call asked for; `None` before the first call.
    rule: Option<Rule<'static>>,
    denial: LastDenial,
}

/// The last denial of a rule without options, if it was one that lasts.
pub struct LastDenial(Option<LastingDenial>);

impl LastDenial {
    /// No denial.
    pub const NONE: Self = Self(None);

    /// The denial; `None` if there is none.
    #[inline(always)]
    pub const fn get(&self) -> Option<&LastingDenial> {
        self.0.as_ref()
    }

    /// Notes `decision`, on a key that holds `record`, if it is a denial that lasts. Otherwise an older denial stays noted, which
    /// does no harm: see [`LastingDenial::repeated`].
    #[inline(always)]
    pub fn note(&mut self, view: &View<'_>, record: Option<&[u8]>, decision: &Decision) {
        if let Some(lasting) = record.and_then(|record| view.lasting_denial(record, decision)) {
            self.0 = Some(lasting);
        }
    }
}

impl LastCall {
    const NONE: Self = Self { words: (Word::EMPTY, Word::EMPTY), rule: None, denial: LastDenial::NONE };

    /// The rule of a call with these words, whose policy `parse` returns, and the last denial of this rule.
    #[inline(always)]
    fn take_over(
        &mut self,
        words: (Word, Word),
        parse: impl FnOnce() -> Result<Policy, Box<Error>>,
    ) -> Result<(&Rule<'static>, &mut LastDenial), Box<Error>> {
        if self.words != words {
            *self = Self { words, ..Self::NONE };
        }
        let rule = match &mut self.rule {
            Some(rule) => rule,
            none => none.insert(Rule::new(parse()?, Request::now(Amount::Cost(1)))),
        };
        Ok((rule, &mut self.denial))
    }
}

/// An argument of up to [`LONGEST`] bytes, in a form that is compared in a few instructions: its length, and its first and its last
/// bytes, which overlap if it is short.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word {
    len: usize,
    ends: [u64; 2],
}

impl Word {
    const EMPTY: Self = Self { len: 0, ends: [0; 2] };

    /// `None` if the argument is too long.
    #[inline(always)]
    fn new(word: &[u8]) -> Option<Self> {
        let ends = if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
            [first, last].map(|end| u64::from_le_bytes(*end))
        } else if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
            [first, last].map(|end| u32::from_le_bytes(*end).into())
        } else {
            match *word {
                [one, two, three] => [one.into(), u64::from(two) << 8 | u64::from(three)],
                [one, two] => [one.into(), two.into()],
                [one] => [one.into(), 0],
                _ => [0; 2],
            }
        };
        (word.len() <= LONGEST).then_some(Self { len: word.len(), ends })
    }
}

/// Calls `decide` with the rule of a call that has a limit, a period, and no options, and with the last denial of this rule. Does
/// not call `decide`, and returns `None`, if the call has another form or longer words, or if another call of the algorithm is
/// being decided: another module can cause a call at that time.
///
/// # Errors
/// If an argument is malformed.
#[inline(always)]
pub fn plain<R>(
    call: &Call<'_>,
    kind: Kind,
    decide: impl FnOnce(Result<(&Rule<'_>, &mut LastDenial), Box<Error>>) -> R,
) -> Option<R> {
    if call.count() != 4 {
        return None;
    }
    let (limit, period) = (call.arg(2)?, call.arg(3)?);
    let words = (Word::new(limit)?, Word::new(period)?);
    // There is only one place that calls `decide`, so that the compiler inlines it.
    LAST.get(kind as usize)?.with(call, |last| decide(last.take_over(words, || grammar::policy(kind, limit, period))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_are_equal_if_and_only_if_their_bytes_are(
            one in prop::collection::vec(b'0'..b'4', 0..=LONGEST), other in prop::collection::vec(b'0'..b'4', 0..=LONGEST), at: usize,
        ) {
            let word = |bytes: &[u8]| Word::new(bytes).expect("a word");
            prop_assert_eq!(word(&one) == word(&other), one == other);
            let mut near = one.clone();
            if let Some(byte) = near.get_mut(at % one.len().max(1)) {
                *byte ^= 1;
                prop_assert!(word(&one) != word(&near));
            }
        }
    }

    #[test]
    fn long_words_are_not_compared() {
        assert!(Word::new(&[b'0'; LONGEST + 1]).is_none());
    }
}
