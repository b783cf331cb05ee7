//! The facts in a record that `RL.INSPECT` shows.

use super::{Kind, Snapshot, Span};

/// The facts in a record, as pairs of a name and a value, for a person to read.
pub type Inspection = Vec<(&'static str, Fact)>;

/// A value in an [`Inspection`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The record has no such value.
    Nothing,
    /// A word.
    Word(&'static str),
    /// A whole number.
    Number(i64),
    /// A length of time, shown in milliseconds without rounding.
    Milliseconds(Span),
    /// The leases that lapse first.
    Holders(Vec<Holder>),
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The id.
    pub id: Vec<u8>,
    /// The units that it holds.
    pub units: u64,
    /// How long until it lapses if it is not renewed.
    pub left: Span,
}

/// The facts about ids: how many are remembered, and the sum of their units.
pub(super) fn ids_facts((ids, units): (u64, u128)) -> [(&'static str, Fact); 2] {
    [("ids", Fact::count(ids)), ("ids_units", Fact::count(units))]
}

impl Fact {
    /// A count, or the largest number if the count is larger.
    pub(super) fn count(count: impl TryInto<i64>) -> Self {
        Self::Number(count.try_into().unwrap_or(i64::MAX))
    }
}

/// The facts that every algorithm shows, in their order.
pub(super) fn common_facts(
    kind: Kind,
    limit: u64,
    period_us: u64,
    used: u128,
    snapshot: Snapshot,
    debt: u128,
) -> Inspection {
    vec![
        ("algorithm", Fact::Word(kind.name())),
        ("limit", Fact::count(limit)),
        ("period_ms", Fact::Milliseconds(Span::from_us(period_us))),
        ("used", Fact::count(used)),
        ("remaining", Fact::count(snapshot.remaining)),
        ("reset_ms", Fact::count(snapshot.reset.as_ms_ceil())),
        ("debt", Fact::count(debt)),
    ]
}
