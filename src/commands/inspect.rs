//! `RL.INSPECT`: what a key holds, for a person at redis-cli.

use super::error::{Error, Holds, Name};
use super::{now, reply, waiting, Wanted};
use crate::limiter::{self, Fact, Report, Span};
use crate::server::{Call, CommandHandler, ReadKey};

/// `RL.INSPECT key`
///
/// Replies a map of names and values, or nil for a missing key.
pub(crate) struct Inspect;

impl CommandHandler for Inspect {
    fn run(call: &Call<'_>) {
        reply(call, inspect(call), |report| match report {
            None => call.reply_nil(),
            Some(report) => {
                call.reply_map(report.len());
                for (name, fact) in report {
                    call.reply_string(name);
                    match fact {
                        Fact::Nothing => call.reply_nil(),
                        Fact::Word(word) => call.reply_string(word),
                        Fact::Number(number) => call.reply_integer(number),
                        Fact::Milliseconds(span) => reply_milliseconds(call, span),
                    }
                }
            }
        });
    }
}

/// An integer where it is one, and otherwise a decimal number.
fn reply_milliseconds(call: &Call<'_>, span: Span) {
    let (whole, us) = (span.as_us() / 1_000, span.as_us() % 1_000);
    if us == 0 {
        call.reply_integer(i64::try_from(whole).unwrap_or(i64::MAX));
    } else {
        call.reply_string(format!("{whole}.{us:03}").trim_end_matches('0'));
    }
}

fn inspect(call: &Call<'_>) -> Result<Option<Report>, Error> {
    let key = ReadKey::open(call, 1).ok_or(Error::Arity(Name::Inspect))?;
    let wanted = Wanted { place: None, kind: None };
    let Some(bytes) = wanted.stored(&key)? else { return Ok(None) };
    let report = limiter::inspect(bytes, now(call)).map_err(|foreign| wanted.wrong_type(Holds::String(foreign)))?;
    let waiting = i64::try_from(waiting::waiters(call, 1)).unwrap_or(i64::MAX);
    Ok(Some([report, vec![("waiting", Fact::Number(waiting))]].concat()))
}
