//! The grammar that the commands share: a rule, `limit period [algorithm options] [amount] [ID id] [RENEW] [wait]`.
//!
//! Arguments are arbitrary bytes. Keywords come in any order and any letter case, each at most once. `COMMAND DOCS` is
//! generated from the same tables that the parser reads.

use super::numbers::{self, bad_period, printable};
use super::{count, CommandName, Error};
use crate::limiter::{Amount, Id, Kind, OptionSpec, OptionValue, Policy, PolicyOption, Quota, Request, Span, MAX_UNITS};
use crate::server::{Argument, ArgumentKind};

/// The arguments of a call.
pub trait Args {
    /// Argument `index`, where 0 is the command's name; `None` after the last argument.
    fn arg(&self, index: usize) -> Option<&[u8]>;
}

impl Args for [&[u8]] {
    fn arg(&self, index: usize) -> Option<&[u8]> {
        self.get(index).copied()
    }
}

/// A policy and a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'r> {
    /// The limit, the period and the algorithm's options.
    pub policy: Policy,
    /// The amount, and how far in the future it may be booked.
    pub request: Request<'r>,
    /// The longest time for which the client may be blocked until the units are free; `None`: it must not be blocked.
    pub block: Option<Span>,
    /// Whether the call states the amount. Otherwise the amount is `COST 1`.
    pub names_amount: bool,
    /// Whether the call renews a lease, but takes no new one.
    pub renew: bool,
}

impl<'r> Rule<'r> {
    /// A rule without BLOCK.
    pub(super) const fn new(policy: Policy, request: Request<'r>) -> Self {
        Self { policy, request, block: None, names_amount: false, renew: false }
    }
}

/// Reads the arguments of a call one by one.
pub(super) struct Cursor<'a, A: ?Sized> {
    args: &'a A,
    next: usize,
}

impl<'a, A: Args + ?Sized> Cursor<'a, A> {
    /// A cursor before argument `next`.
    pub(super) const fn new(args: &'a A, next: usize) -> Self {
        Self { args, next }
    }

    fn peek(&self) -> Option<&'a [u8]> {
        self.args.arg(self.next)
    }

    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let word = self.peek()?;
        self.next += 1;
        Some(word)
    }

    fn value(&mut self, keyword: &'static str) -> Result<&'a [u8], Error> {
        self.word().ok_or(Error::MissingValue(keyword))
    }
}

type AmountOf = fn(u64) -> Amount;

/// The keywords for the amount.
const AMOUNTS: [(&str, AmountOf); 4] =
    [("COST", Amount::Cost), ("UPTO", Amount::UpTo), ("FORCE", Amount::Force), ("REFUND", Amount::Refund)];

/// A keyword for the wait.
struct WaitClause {
    keyword: &'static str,
    /// The keywords for the amount that it can be combined with.
    amounts: &'static [&'static str],
    set: fn(&mut Rule<'_>, Span),
}

/// The keywords for the wait.
const WAITS: [WaitClause; 2] = [
    WaitClause { keyword: "RESERVE", amounts: &["COST"], set: |rule, span| rule.request.ahead = span },
    WaitClause { keyword: "BLOCK", amounts: &["COST", "UPTO"], set: |rule, span| rule.block = Some(span) },
];

/// The keyword for the id.
const ID: &str = "ID";
/// The keywords for the amount that can be combined with an id.
const AMOUNTS_WITH_ID: &[&str] = &["COST", "UPTO"];

/// The keyword with which a call renews a lease, but takes no new one.
const RENEW: &str = "RENEW";

impl CommandName {
    /// The keywords for the wait that the command takes.
    fn waits(self) -> &'static [WaitClause] {
        match self {
            Self::Limit(Kind::Lease) => &WAITS[1..],
            Self::Limit(_) => &WAITS,
            _ => &[],
        }
    }

    /// The keywords for the amount that the command takes, in a rule of this algorithm.
    fn amounts(self, kind: Kind) -> &'static [(&'static str, AmountOf)] {
        match (self, kind) {
            (Self::Limit(_) | Self::Peek | Self::All, Kind::Lease) | (Self::All, _) => &AMOUNTS[..1],
            (Self::Limit(_), _) => &AMOUNTS,
            (Self::Peek, _) => &AMOUNTS[..2],
            _ => &[],
        }
    }

    /// Whether the command takes an id.
    const fn takes_id(self) -> bool {
        matches!(self, Self::Limit(_))
    }

    /// The algorithms that the command's arguments can name.
    pub(super) const fn algorithms(self) -> &'static [Kind] {
        match self {
            Self::All => Kind::RATES,
            _ => Kind::ALL,
        }
    }
}

/// Parses the name of an algorithm.
pub(super) fn algorithm(word: &[u8], command: CommandName) -> Result<Kind, Error> {
    algorithm_named(word, command).ok_or_else(|| Error::UnknownAlgorithm { word: printable(word), command })
}

fn algorithm_named(word: &[u8], command: CommandName) -> Option<Kind> {
    find(command.algorithms(), |kind| kind.name(), word).map(|(_, &kind)| kind)
}

/// Parses an id. `name` is what error texts call the argument.
pub(super) fn id<'a>(word: &'a [u8], name: &'static str) -> Result<Id<'a>, Error> {
    Id::new(word).ok_or(Error::IdLength(name))
}

fn find<'t, T>(table: &'t [T], keyword: impl Fn(&T) -> &'static str, word: &[u8]) -> Option<(usize, &'t T)> {
    table.iter().enumerate().find(|(_, row)| keyword(row).as_bytes().eq_ignore_ascii_case(word))
}

/// Parses `limit period [algorithm options] [amount] [ID id] [RENEW] [wait]`, up to the last argument or, for
/// [`CommandName::All`], up to the next rule.
#[inline(always)]
pub(super) fn rule<'a, A: Args + ?Sized>(
    kind: Kind,
    command: CommandName,
    args: &mut Cursor<'a, A>,
) -> Result<Rule<'a>, Box<Error>> {
    let (Some(limit), Some(period)) = (args.word(), args.word()) else { return Err(Box::new(Error::NoLimit(kind))) };
    let limit = count(limit, "limit", 0, kind.spec().max_limit)?;
    let period = numbers::period(period).ok_or_else(|| bad_period(kind))?;
    let quota = Quota::new(limit, period).ok_or_else(|| bad_period(kind))?;
    let policy = kind.policy(quota).ok_or_else(|| bad_period(kind))?;
    let mut rule = Rule::new(policy, Request::now(Amount::Cost(1)));
    // Most calls have no options, and so skip the loop.
    if args.peek().is_some() {
        options(kind, command, args, period, &mut rule)?;
    }
    Ok(rule)
}

/// Parses what follows the limit and the period.
#[inline(never)]
fn options<'a, A: Args + ?Sized>(
    kind: Kind,
    command: CommandName,
    args: &mut Cursor<'a, A>,
    period: Span,
    rule: &mut Rule<'a>,
) -> Result<(), Box<Error>> {
    let mut options_seen = 0_u32;
    let mut amount: Option<(&'static str, Amount)> = None;
    let mut wait: Option<(&'static WaitClause, Span)> = None;
    while let Some(word) = args.peek() {
        if command == CommandName::All && algorithm_named(word, command).is_some() {
            break;
        }
        args.next += 1;
        if let Some((index, option)) = find(kind.spec().options, |option| option.keyword, word) {
            if options_seen & 1 << index != 0 {
                return Err(Box::new(Error::Twice(option.keyword)));
            }
            let other = kind.spec().options.get(options_seen.trailing_zeros() as usize);
            if let Some(other) = other.filter(|_| kind.spec().options_exclude) {
                return Err(Box::new(Error::Conflict(other.keyword, option.keyword)));
            }
            options_seen |= 1 << index;
            rule.policy.set(option_value(option, args, period)?);
        } else if let Some((_, &(keyword, of))) = find(command.amounts(kind), |amount| amount.0, word) {
            match amount {
                Some((other, _)) if other == keyword => return Err(Box::new(Error::Twice(keyword))),
                Some((other, _)) => return Err(Box::new(Error::Conflict(other, keyword))),
                None => amount = Some((keyword, of(count(args.value(keyword)?, keyword, 1, MAX_UNITS)?))),
            }
        } else if let Some((_, found)) = find(command.waits(), |wait| wait.keyword, word) {
            match wait {
                Some((other, _)) if other.keyword == found.keyword => return Err(Box::new(Error::Twice(found.keyword))),
                Some((other, _)) => return Err(Box::new(Error::Conflict(other.keyword, found.keyword))),
                None => wait = Some((found, numbers::wait(args.value(found.keyword)?, found.keyword)?)),
            }
        } else if command.takes_id() && ID.as_bytes().eq_ignore_ascii_case(word) {
            if rule.request.id.is_some() {
                return Err(Box::new(Error::Twice(ID)));
            }
            rule.request.id = Some(id(args.value(ID)?, ID)?);
        } else if command == CommandName::Limit(Kind::Lease) && RENEW.as_bytes().eq_ignore_ascii_case(word) {
            if rule.renew {
                return Err(Box::new(Error::Twice(RENEW)));
            }
            rule.renew = true;
        } else {
            return Err(Box::new(Error::UnknownOption { word: printable(word), command }));
        }
    }
    rule.names_amount = amount.is_some();
    let (keyword, amount) = amount.unwrap_or(("COST", rule.request.amount));
    rule.request.amount = amount;
    if rule.request.id.is_some() && !AMOUNTS_WITH_ID.contains(&keyword) {
        return Err(Box::new(Error::Conflict(keyword, ID)));
    }
    if let Some((wait, span)) = wait {
        if !wait.amounts.contains(&keyword) {
            return Err(Box::new(Error::Conflict(keyword, wait.keyword)));
        }
        (wait.set)(rule, span);
    }
    Ok(())
}

/// Parses what follows the keyword of an option.
fn option_value<A: Args + ?Sized>(spec: &OptionSpec, args: &mut Cursor<'_, A>, period: Span) -> Result<PolicyOption, Error> {
    let keyword = spec.keyword;
    match spec.value {
        OptionValue::Flag(option) => Ok(option),
        OptionValue::Count { min, max, option } => Ok(option(count(args.value(keyword)?, keyword, min, max)?)),
        OptionValue::Offset(option) => Ok(option(numbers::offset_us(args.value(keyword)?, keyword, period)?)),
        OptionValue::Time(option) => Ok(option(numbers::time(args.value(keyword)?, keyword)?)),
    }
}

/// The argument that is the key.
pub(super) fn key_argument() -> Argument {
    Argument::new("key", ArgumentKind::Key)
}

/// The arguments of a rule, as [`rule`] parses them.
pub(super) fn rule_arguments(kind: Kind, command: CommandName) -> Vec<Argument> {
    let period = if kind == Kind::Lease { "ttl" } else { "period" };
    let mut arguments = vec![Argument::new("limit", ArgumentKind::Integer), Argument::new(period, ArgumentKind::Text)];
    let options = kind.spec().options.iter().map(|option| {
        let keyword = option.keyword.to_lowercase();
        match option.value {
            OptionValue::Flag(_) => Argument::new(keyword, ArgumentKind::Token).token(option.keyword),
            OptionValue::Count { .. } => Argument::new(keyword, ArgumentKind::Integer).token(option.keyword),
            OptionValue::Offset(_) => Argument::new("offset", ArgumentKind::Text).token(option.keyword),
            OptionValue::Time(_) => Argument::new("time", ArgumentKind::Text).token(option.keyword),
        }
    });
    if kind.spec().options_exclude {
        arguments.extend(one_of("window", options.collect()).map(Argument::optional));
    } else {
        arguments.extend(options.map(Argument::optional));
    }
    let amounts =
        command.amounts(kind).iter().map(|(keyword, _)| Argument::new("units", ArgumentKind::Integer).token(keyword));
    let amount = one_of("amount", amounts.collect()).map(Argument::optional);
    let id = command.takes_id().then(|| Argument::new("id", ArgumentKind::Text).token(ID));
    if kind == Kind::Lease {
        arguments.extend(id.into_iter().chain(amount));
    } else {
        arguments.extend(amount.into_iter().chain(id.map(Argument::optional)));
    }
    if command == CommandName::Limit(Kind::Lease) {
        arguments.push(Argument::new("renew", ArgumentKind::Token).token(RENEW).optional());
    }
    let waits = command.waits().iter().map(|wait| Argument::new("duration", ArgumentKind::Text).token(wait.keyword));
    arguments.extend(one_of("wait", waits.collect()).map(Argument::optional));
    arguments
}

/// A choice between arguments. A single argument is returned as it is; without arguments there is no choice.
pub(super) fn one_of(name: &str, mut arguments: Vec<Argument>) -> Option<Argument> {
    if arguments.len() > 1 {
        return Some(Argument::new(name, ArgumentKind::OneOf(arguments)));
    }
    arguments.pop()
}

/// A choice between the algorithms of a command. Each alternative is the algorithm's name, followed by the arguments that
/// `rest` returns for it.
pub(super) fn algorithm_arguments(name: &str, command: CommandName, rest: impl Fn(Kind) -> Vec<Argument>) -> Argument {
    let block = |&kind: &Kind| {
        let name = kind.name().to_lowercase();
        let mut arguments = vec![Argument::new(&*name, ArgumentKind::Token).token(kind.name())];
        arguments.extend(rest(kind));
        Argument::new(name, ArgumentKind::Block(arguments))
    };
    Argument::new(name, ArgumentKind::OneOf(command.algorithms().iter().map(block).collect()))
}
