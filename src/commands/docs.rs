//! What `COMMAND DOCS` and `RL.HELP` tell of the arguments: made of the tables that the grammar reads, so that they can't part.

use super::error::Name;
use crate::limiter::{Algorithm, Kind, SettingValue};
use crate::server::{Argument, ArgumentKind};

fn key() -> Argument {
    Argument::new("key", ArgumentKind::Key)
}

/// `limit period [algorithm options] [amount] [wait]`
fn rule(kind: Kind, command: Name) -> Vec<Argument> {
    let mut arguments = vec![Argument::new("limit", ArgumentKind::Integer), Argument::new("period", ArgumentKind::Text)];
    arguments.extend(kind.settings().iter().map(|setting| {
        let keyword = setting.keyword.to_lowercase();
        match setting.value {
            SettingValue::Flag => Argument::new(keyword, ArgumentKind::Token).token(setting.keyword),
            SettingValue::Count(..) => Argument::new(keyword, ArgumentKind::Integer).token(setting.keyword),
            SettingValue::Offset => Argument::new("offset", ArgumentKind::Text).token(setting.keyword),
        }
        .optional()
    }));
    let amounts = command.amounts().iter().map(|(keyword, _)| Argument::new("units", ArgumentKind::Integer).token(keyword));
    arguments.extend(one_of("amount", amounts.collect()).map(Argument::optional));
    let waits = command.waits().iter().map(|wait| Argument::new("duration", ArgumentKind::Text).token(wait.keyword));
    arguments.extend(one_of("wait", waits.collect()).map(Argument::optional));
    arguments
}

/// One of these; where there is but one, that.
fn one_of(name: &str, mut arguments: Vec<Argument>) -> Option<Argument> {
    if arguments.len() > 1 {
        return Some(Argument::new(name, ArgumentKind::OneOf(arguments)));
    }
    arguments.pop()
}

/// For each algorithm its name, and what `rest` makes of it.
fn algorithms(name: &str, rest: impl Fn(Kind) -> Vec<Argument>) -> Argument {
    let block = |&kind: &Kind| {
        let name = kind.name().to_lowercase();
        let mut arguments = vec![Argument::new(&*name, ArgumentKind::Token).token(kind.name())];
        arguments.extend(rest(kind));
        Argument::new(name, ArgumentKind::Block(arguments))
    };
    Argument::new(name, ArgumentKind::OneOf(Kind::ALL.iter().map(block).collect()))
}

/// Of `RL.FIXED` and the like.
pub(crate) fn limiter<A: Algorithm>() -> Vec<Argument> {
    let mut arguments = vec![key()];
    arguments.extend(rule(A::KIND, Name::Limiter(A::KIND)));
    arguments
}

/// Of `RL.PEEK`.
pub(crate) fn peek() -> Vec<Argument> {
    vec![algorithms("algorithm", |kind| {
        let mut arguments = vec![key()];
        arguments.extend(rule(kind, Name::Peek));
        arguments
    })]
}

/// Of `RL.ALL`.
pub(crate) fn all() -> Vec<Argument> {
    vec![
        Argument::new("numkeys", ArgumentKind::Integer),
        key().multiple(),
        algorithms("rule", |kind| rule(kind, Name::All)).multiple(),
    ]
}

/// Of `RL.INSPECT`.
pub(crate) fn inspect() -> Vec<Argument> {
    vec![key()]
}

/// Of `CL.THROTTLE`.
pub(crate) fn throttle() -> Vec<Argument> {
    let numbers = ["max_burst", "count_per_period", "period"].map(|name| Argument::new(name, ArgumentKind::Integer));
    let quantity = Argument::new("quantity", ArgumentKind::Integer).optional();
    [key()].into_iter().chain(numbers).chain([quantity]).collect()
}

/// Of `GCRA`.
pub(crate) fn tokens() -> Vec<Argument> {
    let numbers = ["max_burst", "tokens_per_period"].map(|name| Argument::new(name, ArgumentKind::Integer));
    let period = Argument::new("period", ArgumentKind::Text);
    let tokens = Argument::new("tokens", ArgumentKind::Integer).token("TOKENS").optional();
    [key()].into_iter().chain(numbers).chain([period, tokens]).collect()
}

/// Of `RL.TOP`.
pub(crate) fn top() -> Vec<Argument> {
    let ways = vec![Argument::new("n", ArgumentKind::Integer), Argument::new("reset", ArgumentKind::Token).token("RESET")];
    one_of("what", ways).map(Argument::optional).into_iter().collect()
}

/// Of a command without arguments.
pub(crate) fn none() -> Vec<Argument> {
    Vec::new()
}
