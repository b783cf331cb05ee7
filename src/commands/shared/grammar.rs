//! The grammar that the commands share: a rule, `limit period [algorithm options] [amount] [ID id] [RENEW] [wait]`.
//!
//! Arguments are arbitrary bytes. Keywords come in any order and any letter case, each at most once. `COMMAND DOCS` is
//! generated from the same tables that the parser reads.

use std::sync::Arc;

use super::error::{CommandName, Error};
use super::numbers::{self, bad_period, count, printable};
use crate::limiter::{Amount, Id, Kind, OptionSpec, OptionValue, Policy, PolicyOption, Quota, Request, Span, MAX_UNITS};
use crate::queue::Claim;
use crate::server::{Argument, ArgumentKind, Call};

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

/// What a call states about one key: a policy, a request, and whether its client may be blocked.
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
    /// Whether a denial is answered as a grant, because the policy is only tried.
    pub shadow: bool,
}

impl<'r> Rule<'r> {
    /// A rule without BLOCK.
    pub const fn new(policy: Policy, request: Request<'r>) -> Self {
        Self { policy, request, block: None, names_amount: false, renew: false, shadow: false }
    }

    /// What a waiting call with this rule takes from the key of this name when the call is granted. The pattern below names each
    /// field of a rule and of a request, so that a new field does not compile until it is handled here.
    pub fn claim(&self, key: Arc<[u8]>) -> Claim {
        let Self { policy, request: Request { amount, id: _, ahead: _ }, block: _, names_amount, renew: _, shadow: _ } =
            *self;
        // The id belongs to the whole call, and so to its `Waiter`. A call with RESERVE (which books ahead), with RENEW or under
        // SHADOW does not wait.
        Claim { key, policy, amount, names_amount }
    }

    /// Checks a call whose id holds `held` units: a lease can't be renewed with another COST.
    pub fn check_cost(&self, held: u64) -> Result<(), Error> {
        let renews = !self.names_amount || self.policy.renews_with(self.request.amount, held);
        renews.then_some(()).ok_or(Error::OtherCost { held })
    }
}

/// The arguments of a call of a command.
impl Args for Call<'_> {
    fn arg(&self, index: usize) -> Option<&[u8]> {
        self.argument(index)
    }
}

/// The index of the key, in the commands that have one key and no word before it.
pub const KEY: usize = 1;

/// The index of the first key of `RL.ALL`.
pub const FIRST_KEY_OF_ALL: usize = 2;

/// Reads the arguments of a call one by one.
pub struct Cursor<'a, A: ?Sized> {
    args: &'a A,
    next: usize,
    /// Argument `next`, if [`Self::peek`] has looked it up: a look-up takes longer than the comparison with a keyword.
    peeked: Option<&'a [u8]>,
}

impl<'a, A: Args + ?Sized> Cursor<'a, A> {
    /// A cursor before argument `next`.
    pub const fn new(args: &'a A, next: usize) -> Self {
        Self { args, next, peeked: None }
    }

    fn peek(&mut self) -> Option<&'a [u8]> {
        if self.peeked.is_none() {
            self.peeked = self.args.arg(self.next);
        }
        self.peeked
    }

    pub fn word(&mut self) -> Option<&'a [u8]> {
        let word = self.peek()?;
        self.skip();
        Some(word)
    }

    /// Goes past the word that [`Self::peek`] returned.
    fn skip(&mut self) {
        self.peeked = None;
        self.next += 1;
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
    /// The amount keywords with which this keyword can be combined.
    amounts: &'static [&'static str],
    set: fn(&mut Rule<'_>, Span),
}

/// The keywords for the wait.
const WAITS: [WaitClause; 2] = [
    WaitClause { keyword: "RESERVE", amounts: &["COST"], set: |rule, span| rule.request.ahead = span },
    WaitClause { keyword: BLOCK, amounts: &["COST", "UPTO"], set: |rule, span| rule.block = Some(span) },
];

/// The keyword for the longest wait in a line.
pub const BLOCK: &str = "BLOCK";

/// The keyword for the id.
pub const ID: &str = "ID";
/// The amount keywords with which an id can be combined.
const AMOUNTS_WITH_ID: &[&str] = &["COST", "UPTO"];

/// The keyword with which a call renews a lease, but takes no new one.
const RENEW: &str = "RENEW";

/// The keyword of a policy that is only tried.
pub const SHADOW: &str = "SHADOW";

impl CommandName {
    /// The wait keywords that the command takes.
    fn waits(self) -> &'static [WaitClause] {
        match self {
            // Leases are not booked ahead, and RL.ALL books nothing.
            Self::Limit(kind) | Self::Use(kind) if kind.spec().holds => &WAITS[1..],
            Self::All => &WAITS[1..],
            Self::Limit(_) | Self::Use(_) => &WAITS,
            _ => &[],
        }
    }

    /// Whether the command takes RENEW.
    fn takes_renew(self) -> bool {
        matches!(self, Self::Limit(kind) | Self::Use(kind) if kind.spec().holds)
    }

    /// The amount keywords that the command takes in a rule of this algorithm.
    fn amounts(self, kind: Kind) -> &'static [(&'static str, AmountOf)] {
        let all: &[_] = match self {
            Self::Limit(_) | Self::Use(_) => &AMOUNTS,
            Self::Peek => &AMOUNTS[..2],
            Self::All => &AMOUNTS[..1],
            _ => &[],
        };
        // A lease takes all of its units, or none.
        &all[..if kind.spec().holds { all.len().min(1) } else { all.len() }]
    }

    /// Whether the command takes an id.
    const fn takes_id(self) -> bool {
        matches!(self, Self::Limit(_) | Self::Use(_) | Self::All)
    }

    /// Whether the command takes this option of an algorithm. The text of a policy cannot state a moment.
    const fn takes_option(self, option: &OptionSpec) -> bool {
        !matches!((self, option.value), (Self::Policy, OptionValue::Time(_)))
    }
}

/// Parses the name of an algorithm.
pub fn algorithm(word: &[u8]) -> Result<Kind, Error> {
    algorithm_named(word).ok_or_else(|| Error::UnknownAlgorithm { word: printable(word) })
}

fn algorithm_named(word: &[u8]) -> Option<Kind> {
    find(Kind::ALL, |kind| kind.name(), word).map(|(_, &kind)| kind)
}

/// Parses an id. `name` is what error texts call the argument.
pub fn id<'a>(word: &'a [u8], name: &'static str) -> Result<Id<'a>, Error> {
    Id::new(word).ok_or(Error::IdLength(name))
}

#[inline(always)]
fn find<'t, T>(table: &'t [T], keyword: impl Fn(&T) -> &'static str, word: &[u8]) -> Option<(usize, &'t T)> {
    table.iter().enumerate().find(|(_, row)| is_keyword(word, keyword(row)))
}

/// Whether a word is a keyword, in any letter case. The keyword must be in capitals, so that only the word need be converted.
#[inline(always)]
fn is_keyword(word: &[u8], keyword: &str) -> bool {
    word.len() == keyword.len()
        && word.iter().zip(keyword.as_bytes()).all(|(byte, capital)| byte.to_ascii_uppercase() == *capital)
}

/// Parses `limit period [algorithm options] [amount] [ID id] [RENEW] [wait]`, up to the last argument or, for
/// [`CommandName::All`], up to the next rule. The id and the wait of `RL.ALL` follow the last rule, and are parsed with it.
#[inline(always)]
pub fn rule<'a, A: Args + ?Sized>(
    kind: Kind,
    command: CommandName,
    args: &mut Cursor<'a, A>,
) -> Result<Rule<'a>, Box<Error>> {
    let (Some(limit), Some(period)) = (args.word(), args.word()) else { return Err(Box::new(Error::NoLimit(kind))) };
    let policy = policy(kind, limit, period)?;
    // Most calls have no options, and so skip the loop.
    if args.peek().is_none() {
        return Ok(Rule::new(policy, Request::now(Amount::Cost(1))));
    }
    options(kind, command, args, policy)
}

/// Parses the name of an algorithm and what follows it: the text of a policy.
pub fn policy_text<A: Args + ?Sized>(args: &mut Cursor<'_, A>) -> Result<Rule<'static>, Box<Error>> {
    let kind = algorithm(args.word().unwrap_or_default())?;
    let Rule { mut policy, shadow, .. } = rule(kind, CommandName::Policy, args)?;
    policy.set(PolicyOption::CarriesOver);
    Ok(Rule { shadow, ..Rule::new(policy, Request::now(Amount::Cost(1))) })
}

/// Parses what follows the policy keys of `RL.USE`, whose policy is `named`.
pub fn use_of<'a, A: Args + ?Sized>(named: &Rule<'_>, args: &mut Cursor<'a, A>) -> Result<Rule<'a>, Box<Error>> {
    let kind = named.policy.kind();
    let rule = options(kind, CommandName::Use(kind), args, named.policy)?;
    Ok(Rule { shadow: named.shadow, ..rule })
}

/// Whether a word of a policy's text is a keyword, in any letter case.
pub fn is_policy_keyword(word: &[u8]) -> bool {
    let options = Kind::ALL.iter().flat_map(|kind| kind.spec().options).map(|option| option.keyword);
    algorithm_named(word).is_some() || options.chain([SHADOW]).any(|keyword| is_keyword(word, keyword))
}

/// Parses the limit and the period of a policy.
#[inline(always)]
pub fn policy(kind: Kind, limit: &[u8], period: &[u8]) -> Result<Policy, Box<Error>> {
    let limit = count(limit, "limit", 0, kind.spec().max_limit)?;
    let period = numbers::period(period).ok_or_else(|| bad_period(kind))?;
    let quota = Quota::new(limit, period).ok_or_else(|| bad_period(kind))?;
    Ok(kind.policy(quota).ok_or_else(|| bad_period(kind))?)
}

/// Parses what follows the limit and the period.
#[inline(never)]
fn options<'a, A: Args + ?Sized>(
    kind: Kind,
    command: CommandName,
    args: &mut Cursor<'a, A>,
    policy: Policy,
) -> Result<Rule<'a>, Box<Error>> {
    let mut rule = Rule::new(policy, Request::now(Amount::Cost(1)));
    let mut options_seen = 0_u32;
    let mut amount: Option<(&'static str, Amount)> = None;
    let mut wait: Option<(&'static WaitClause, Span)> = None;
    while let Some(word) = args.peek() {
        if command == CommandName::All && algorithm_named(word).is_some() {
            break;
        }
        args.skip();
        if is_keyword(word, ID) && command.takes_id() {
            if rule.request.id.is_some() {
                return Err(Box::new(Error::Twice(ID)));
            }
            rule.request.id = Some(id(args.value(ID)?, ID)?);
        } else if let Some((index, option)) =
            find(kind.spec().options, |option| option.keyword, word).filter(|(_, option)| command.takes_option(option))
        {
            if matches!(command, CommandName::Use(_)) {
                let is_of_policy = CommandName::Policy.takes_option(option);
                let error = if is_of_policy { Error::OptionOfPolicy } else { |keyword| Error::Conflict(keyword, "RL.USE") };
                return Err(Box::new(error(option.keyword)));
            }
            if options_seen & 1 << index != 0 {
                return Err(Box::new(Error::Twice(option.keyword)));
            }
            let other = kind.spec().options.get(options_seen.trailing_zeros() as usize);
            if let Some(other) = other.filter(|_| kind.spec().options_exclude) {
                return Err(Box::new(Error::Conflict(other.keyword, option.keyword)));
            }
            options_seen |= 1 << index;
            rule.policy.set(option_value(option, args, policy.period())?);
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
        } else if command.takes_renew() && is_keyword(word, RENEW) {
            if rule.renew {
                return Err(Box::new(Error::Twice(RENEW)));
            }
            rule.renew = true;
        } else if command == CommandName::Policy && is_keyword(word, SHADOW) {
            if rule.shadow {
                return Err(Box::new(Error::Twice(SHADOW)));
            }
            rule.shadow = true;
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
        (wait.set)(&mut rule, span);
    }
    Ok(rule)
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
pub fn key_argument() -> Argument {
    Argument::new("key", ArgumentKind::Key)
}

/// The id and the wait, which follow the amount. In `RL.ALL` they follow the last rule, and hold for all rules.
pub fn call_arguments(command: CommandName) -> (Option<Argument>, Option<Argument>) {
    let id = command.takes_id().then(|| Argument::new("id", ArgumentKind::Text).token(ID));
    let waits = command.waits().iter().map(|wait| Argument::new("duration", ArgumentKind::Text).token(wait.keyword));
    (id, one_of("wait", waits.collect()).map(Argument::optional))
}

/// The arguments of a rule, as [`rule`] parses them, except for what [`call_arguments`] returns for `RL.ALL`.
pub fn rule_arguments(kind: Kind, command: CommandName) -> Vec<Argument> {
    let mut arguments =
        vec![Argument::new("limit", ArgumentKind::Integer), Argument::new(kind.spec().period, ArgumentKind::Text)];
    let options = kind.spec().options.iter().filter(|option| command.takes_option(option)).map(|option| {
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
    let amount = amount_argument(kind, command);
    let (id, wait) = if command == CommandName::All { (None, None) } else { call_arguments(command) };
    if kind.spec().holds {
        arguments.extend(id.into_iter().chain(amount));
    } else {
        arguments.extend(amount.into_iter().chain(id.map(Argument::optional)));
    }
    if command.takes_renew() {
        arguments.push(Argument::new("renew", ArgumentKind::Token).token(RENEW).optional());
    }
    arguments.extend(wait);
    arguments
}

/// What follows the policy keys of `RL.USE`, as [`use_of`] parses it.
pub fn use_arguments() -> impl Iterator<Item = Argument> {
    // The arguments of a lease are among those of the other algorithms, except for RENEW.
    let command = CommandName::Use(Kind::Gcra);
    let renew = Argument::new("renew", ArgumentKind::Token).token(RENEW).optional();
    let (id, wait) = call_arguments(command);
    amount_argument(Kind::Gcra, command).into_iter().chain(id.map(Argument::optional)).chain([renew]).chain(wait)
}

/// The amount that a command takes, in a rule of this algorithm.
fn amount_argument(kind: Kind, command: CommandName) -> Option<Argument> {
    let amounts =
        command.amounts(kind).iter().map(|(keyword, _)| Argument::new("units", ArgumentKind::Integer).token(keyword));
    one_of("amount", amounts.collect()).map(Argument::optional)
}

/// A choice between arguments. If there is only one, that argument itself; if there is none, `None`.
pub fn one_of(name: &str, mut arguments: Vec<Argument>) -> Option<Argument> {
    if arguments.len() > 1 {
        return Some(Argument::new(name, ArgumentKind::OneOf(arguments)));
    }
    arguments.pop()
}

/// A choice between the algorithms. Each alternative is the algorithm's name, followed by the arguments that
/// `rest` returns for it.
pub fn algorithm_arguments(name: &str, rest: impl Fn(Kind) -> Vec<Argument>) -> Argument {
    let alternative = |&kind: &Kind| {
        let name = kind.name().to_lowercase();
        let mut arguments = vec![Argument::new(&*name, ArgumentKind::Token).token(kind.name())];
        arguments.extend(rest(kind));
        Argument::new(name, ArgumentKind::Block(arguments))
    };
    Argument::new(name, ArgumentKind::OneOf(Kind::ALL.iter().map(alternative).collect()))
}
