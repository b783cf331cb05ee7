//! LEASE: units that are held until they are released, or until a time to live (ttl) passes.
//!
//! The state is a [ledger](super::ledger) whose slots are leases. A lease holds its units until its deadline; then it has
//! lapsed. A lapsed lease holds nothing, but stays in the ledger until the next write.
//!
//! The inner record consists of these fields:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | limit of the last caller, units |
//! | 8 | ttl of the last caller, microseconds |
//! | 8 | units that the leases hold, lapsed ones included |
//! | 8 | the latest time at which a lease was taken or renewed, microseconds since the Unix epoch |
//!
//! If the present time is before the last field, the clock has stepped back. A deadline that is further ahead than the ttl
//! that set it then counts as the present time plus that ttl, and the next write stores it so.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ledger::{Aggregate, Edit, Finish, Inner, Ledger, RandomSeed, Slot, WithIds, BLOCK};
use super::record::{self, take, RecordError};
use super::{
    Amount, Bytes, Change, Decision, Fact, Holder, Id, Inspection, Instant, Kind, Quota, Request, SettleError, Settlement,
    Snapshot, Span, Spec, Wait, MAX_PERIOD, MIN_PERIOD, MIN_RECORD,
};

/// The highest limit. Each lease holds at least one unit, so there are never more leases than ids that a ledger has room for.
const MAX_LIMIT: u64 = super::MAX_IDS as u64;

pub(super) const SPEC: Spec = Spec {
    name: "LEASE",
    tag: 5,
    max_limit: MAX_LIMIT,
    options: &[],
    options_exclude: false,
    min_len: MIN_RECORD,
    // A lease lasts for its ttl from the answer on.
    charges_when_due: false,
    period: "ttl",
    holds: true,
    takes_moment: false,
};

/// The length of the inner record.
const INNER: usize = 32;
/// [`View::until_lapsed`] takes at most this many steps, and then continues as [`View::until_many_lapsed`], which is faster
/// for many leases.
const MAX_POPS: usize = 64;
/// [`View::until_many_lapsed`] is exact for ledgers of up to this many slots.
const MAX_EXACT: usize = 2_048;
/// `RL.INSPECT` shows at most this many leases.
const MAX_HOLDERS: usize = 100;

/// At most `limit` units are held at the same time. The period of the quota is the ttl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub(super) quota: Quota,
}

impl Lease {
    pub(super) const fn new(quota: Quota) -> Self {
        Self { quota }
    }
}

/// The leases of a key at a moment.
pub struct View<'a> {
    ids: Option<WithIds<'a>>,
    quota: Quota,
    now: Instant,
    /// Units that are held.
    held: u64,
    /// Whether the clock was set back since the last write.
    stepped_back: bool,
}

/// A lease that is taken or renewed.
#[derive(Clone, Copy, Debug)]
pub struct Next<'r> {
    id: Id<'r>,
    /// The slot of the lease that is renewed.
    renewed: Option<usize>,
    slot: Slot,
}

/// What a deadline belongs to: a slot, with its units, or a block, whose first deadline it is. Of equal deadlines, those of
/// slots come first, so that no more blocks than needed are searched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Slot(usize, u64),
    Block(usize),
}

impl<'a> View<'a> {
    #[inline(never)]
    pub(super) fn load(lease: &Lease, stored: Option<&'a [u8]>, now: Instant) -> Result<Self, RecordError> {
        match stored {
            None => Ok(Self { ids: None, quota: lease.quota, now, held: 0, stepped_back: false }),
            Some(bytes) => Ok(Self { quota: lease.quota, ..Self::of_record(bytes, now)? }),
        }
    }

    /// The leases in a record, under the policy of its last caller.
    pub(super) fn of_record(bytes: &'a [u8], now: Instant) -> Result<Self, RecordError> {
        let ledger = Ledger::open(bytes, Kind::Lease).map_err(|error| match record::kind(bytes) {
            Ok(kind) if kind != Kind::Lease => RecordError::OtherAlgorithm(kind),
            _ => error,
        })?;
        let mut fields = ledger.inner();
        if fields.len() != INNER {
            return Err(RecordError::Unknown);
        }
        let [limit, ttl_us, held, latest] = [(); 4].map(|()| take(&mut fields, 8) as u64);
        let ttl = Span::from_us(ttl_us);
        let valid = (1..=MAX_LIMIT).contains(&limit) && (MIN_PERIOD..=MAX_PERIOD).contains(&ttl);
        let quota = Quota::new(limit, ttl).filter(|_| valid).ok_or(RecordError::Unknown)?;
        let stepped_back = now < Instant::from_us(latest as i64);
        let mut view = Self { ids: Some(ledger.record()), quota, now, held, stepped_back };
        view.held = view.lapsed().fold(held, |held, (_, slot)| held.saturating_sub(slot.units));
        Ok(view)
    }

    fn ledger(&self) -> Option<Ledger<'a>> {
        self.ids.map(WithIds::ledger)
    }

    /// The leases that have lapsed, but are still in the ledger.
    fn lapsed(&self) -> impl Iterator<Item = (usize, Slot)> + '_ {
        let now_us = self.now.as_us();
        // The first deadline of all leases, or of a block, shows whether any has lapsed.
        let any = move |aggregate: Aggregate| aggregate.first <= now_us;
        let ledger = self.ledger().filter(|ledger| any(ledger.header.aggregate));
        ledger.into_iter().flat_map(move |ledger| {
            let blocks = (0..ledger.blocks()).filter(move |&block| any(ledger.block(block)));
            let slots = blocks.flat_map(move |block| ledger.block_slots(block));
            slots.filter(move |(_, slot)| slot.is_live() && slot.when <= now_us)
        })
    }

    /// The leases that hold units.
    fn holders(&self) -> impl Iterator<Item = (usize, Slot)> + '_ {
        let slots = self
            .ledger()
            .into_iter()
            .flat_map(|ledger| (0..ledger.blocks()).flat_map(move |block| ledger.block_slots(block)));
        slots.filter(|(_, slot)| slot.is_live() && slot.when > self.now.as_us())
    }

    /// When a lease lapses.
    fn deadline(&self, slot: &Slot) -> Instant {
        let deadline = Instant::from_us(slot.when);
        deadline.min(self.now.saturating_add(Span::from_us(slot.span_us)))
    }

    /// When the last lease lapses, except the one at `released`; `now` if there is none.
    fn last_deadline(&self, released: Option<usize>) -> Instant {
        if self.stepped_back {
            let holders = self.holders().filter(|&(index, _)| Some(index) != released);
            return holders.map(|(_, slot)| self.deadline(&slot)).max().unwrap_or(self.now);
        }
        let Some(ledger) = self.ledger() else { return self.now };
        let all = match released {
            None => ledger.header.aggregate,
            Some(released) => {
                let others =
                    (0..ledger.blocks()).filter(|&block| block != released / BLOCK).map(|block| ledger.block(block));
                let slots = ledger.block_slots(released / BLOCK).filter(|&(index, _)| index != released);
                others.chain(slots.map(|(_, slot)| Aggregate::of(&slot, Kind::Lease))).fold(Aggregate::NONE, Aggregate::join)
            }
        };
        Instant::from_us(all.last).max(self.now)
    }

    /// When the last lease lapses.
    pub(super) fn ends(&self) -> Instant {
        self.last_deadline(None)
    }

    /// How long until leases that hold `units` in total have lapsed, if none is renewed or released. For many leases this may
    /// be an upper bound: see [`Self::until_many_lapsed`].
    fn until_lapsed(&self, units: u64) -> Span {
        let mut places = BinaryHeap::new();
        if let Some(ledger) = self.ledger().filter(|_| units <= MAX_POPS as u64) {
            if self.stepped_back {
                let holders = self.holders();
                places.extend(holders.map(|(index, slot)| Reverse((self.deadline(&slot), Place::Slot(index, slot.units)))));
            } else {
                let first = |block| Instant::from_us(ledger.block(block).first);
                places.extend((0..ledger.blocks()).map(|block| Reverse((first(block), Place::Block(block)))));
            }
            let mut lapsed = 0_u64;
            let mut looked_at = 0;
            while let Some(Reverse((at, place))) = places.pop() {
                looked_at += 1;
                if looked_at > MAX_POPS {
                    break;
                }
                match place {
                    Place::Block(block) => {
                        let slots =
                            ledger.block_slots(block).filter(|(_, slot)| slot.is_live() && slot.when > self.now.as_us());
                        places.extend(
                            slots.map(|(index, slot)| Reverse((self.deadline(&slot), Place::Slot(index, slot.units)))),
                        );
                    }
                    Place::Slot(_, held) => {
                        lapsed = lapsed.saturating_add(held);
                        if lapsed >= units {
                            return at.since(self.now);
                        }
                    }
                }
            }
        }
        self.until_many_lapsed(units)
    }

    /// [`Self::until_lapsed`] for many leases. Exact for up to [`MAX_EXACT`] slots, and after a step back of the clock;
    /// otherwise an upper bound, because sorting out so many leases would take too long for a denial.
    #[cold]
    fn until_many_lapsed(&self, units: u64) -> Span {
        match self.ledger() {
            Some(ledger) if ledger.len() > MAX_EXACT && !self.stepped_back => self.until_blocks_lapsed(&ledger, units),
            _ => self.until_exactly_lapsed(units),
        }
    }

    /// Divides the leases at the median of their deadlines, and continues with the half in which the units have lapsed, until
    /// one lease is left. This takes O(n) in total.
    fn until_exactly_lapsed(&self, mut units: u64) -> Span {
        let mut leases: Vec<_> = self.holders().map(|(_, slot)| (self.deadline(&slot), slot.units)).collect();
        let mut leases = leases.as_mut_slice();
        while leases.len() > 1 {
            let middle = (leases.len() - 1) / 2;
            leases.select_nth_unstable(middle);
            let (first, last) = leases.split_at_mut(middle + 1);
            let lapsed = first.iter().fold(0, |sum: u64, &(_, held)| sum.saturating_add(held));
            leases = if lapsed >= units {
                first
            } else {
                units -= lapsed;
                last
            };
        }
        leases.first().map_or(Span::ZERO, |(deadline, _)| deadline.since(self.now))
    }

    /// How long until all leases of some blocks have lapsed, which together hold at least `units`. The blocks are taken in the
    /// order of their last deadlines.
    fn until_blocks_lapsed(&self, ledger: &Ledger<'_>, units: u64) -> Span {
        let now_us = self.now.as_us();
        let mut blocks: Vec<_> = (0..ledger.blocks()).map(|block| (ledger.block(block).last, block)).collect();
        blocks.sort_unstable();
        let mut lapsed = 0_u64;
        let last = blocks.iter().find(|&&(last, block)| {
            if last > now_us {
                lapsed = lapsed.saturating_add(ledger.units_after(block, now_us));
            }
            lapsed >= units
        });
        // `None`: the leases hold less than the record says, so it is damaged.
        last.map_or(self.quota.period(), |&(last, _)| Instant::from_us(last).since(self.now))
    }

    fn find(&self, id: Id<'_>) -> Option<(usize, Slot)> {
        let lease = self.ids?.ledger().remembered(id, |when| when <= self.now.as_us())?;
        Some((lease.index, lease.slot))
    }

    /// See [`super::View::held`].
    #[inline(never)]
    pub(super) fn held(&self, id: Id<'_>) -> Option<u64> {
        self.find(id).map(|(_, slot)| slot.units)
    }

    fn remaining(&self, held: u64) -> u64 {
        self.quota.limit().saturating_sub(held)
    }

    #[inline(never)]
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { remaining: self.remaining(self.held), reset: self.last_deadline(None).since(self.now) }
    }

    /// The decision on a request, and the next state. A request without an id, as that of `RL.PEEK`, is decided like one for a
    /// new lease, but has no next state.
    #[inline(never)]
    pub(super) fn decide<'r>(&self, request: Request<'r>) -> (Decision, super::Next<'r>) {
        let limit = self.quota.limit();
        let ttl = self.quota.period();
        let found = request.id.and_then(|id| self.find(id));
        let units = match (found, request.amount) {
            (Some((_, slot)), _) => slot.units,
            (None, Amount::Cost(n) | Amount::UpTo(n) | Amount::Force(n)) => n,
            (None, Amount::Refund(_)) => 0,
        };
        let held = if found.is_some() { self.held } else { self.held.saturating_add(units) };
        if found.is_none() && (held > limit || units == 0) {
            let Snapshot { remaining, reset } = self.snapshot();
            let wait = if units > limit || units == 0 { Wait::Never } else { Wait::For(self.until_lapsed(held - limit)) };
            return (Decision { granted: 0, limit, remaining, wait, reset, retried: false }, super::Next::Keep);
        }
        let deadline = self.now.saturating_add(ttl);
        let fresh = Slot::new(units, deadline.as_us(), ttl.as_us(), self.now);
        // A renewal does not shorten a lease.
        let slot = match found {
            Some((_, slot)) if self.deadline(&slot) >= deadline => Slot { when: self.deadline(&slot).as_us(), ..slot },
            Some((_, slot)) => slot.renewed(&fresh),
            None => fresh,
        };
        let last = self.last_deadline(None).max(Instant::from_us(slot.when));
        let decision = Decision {
            granted: units,
            limit,
            remaining: self.remaining(held),
            wait: Wait::NONE,
            reset: last.since(self.now),
            retried: false,
        };
        let renewed = found.map(|(index, _)| index);
        let next = request.id.map_or(super::Next::Keep, |id| super::Next::Lease(Box::new(Next { id, renewed, slot })));
        (decision, next)
    }

    #[inline(never)]
    pub(super) fn store(&self, next: &Next<'_>, random: RandomSeed, bytes: &mut Bytes) -> Change {
        let mut edit = self.edit();
        let mut held = self.held;
        match next.renewed {
            Some(index) => edit.set(index, next.slot),
            None => {
                held = held.saturating_add(next.slot.units);
                edit.append(next.id, next.slot, random);
            }
        }
        self.finish(edit, held, self.last_deadline(None).max(Instant::from_us(next.slot.when)), bytes)
    }

    /// The ledger without the leases that have lapsed, and with the deadlines that count after a step back of the clock.
    fn edit<'r>(&self) -> Edit<'r>
    where
        'a: 'r,
    {
        let mut edit = Edit::new(Kind::Lease, self.ledger());
        self.lapsed().for_each(|(index, _)| edit.kill(index));
        if self.stepped_back {
            for (index, slot) in self.holders() {
                edit.set(index, Slot { when: self.deadline(&slot).as_us(), ..slot });
            }
        }
        edit
    }

    fn finish(&self, edit: Edit<'_>, held: u64, last: Instant, bytes: &mut Bytes) -> Change {
        let fields = [self.quota.limit(), self.quota.period().as_us(), held, self.now.as_us() as u64];
        let inner = fields.map(u64::to_le_bytes);
        let finish = Finish {
            inner: Inner::whole(inner.as_flattened()),
            rewritten: false,
            room: INNER,
            is_past: &|_| false,
            moved: &|slot| slot,
            one_level: true,
            expires: last,
            // With this slack, not each new deadline of a lease moves the deadline of the key.
            slack: Span::from_us(self.quota.period().as_us() / 8),
        };
        edit.finish(&finish, 0, bytes)
    }

    /// Ends a lease: see [`super::settle`].
    pub(super) fn settle(&self, id: Id<'_>, units: u64, bytes: &mut Bytes) -> Result<Option<Settlement>, SettleError> {
        let Some((index, slot)) = self.find(id) else { return Ok(None) };
        if units > 0 {
            return Err(SettleError::Lease);
        }
        let held = self.held.saturating_sub(slot.units);
        let last = self.last_deadline(Some(index));
        let decision = Decision {
            granted: 0,
            limit: self.quota.limit(),
            remaining: self.remaining(held),
            wait: Wait::NONE,
            reset: last.since(self.now),
            retried: false,
        };
        let change = if last <= self.now {
            Change::Remove
        } else {
            let mut edit = self.edit();
            edit.kill(index);
            self.finish(edit, held, last, bytes)
        };
        Ok(Some(Settlement { kind: Kind::Lease, decision, change }))
    }

    pub(super) fn inspect(&self) -> Inspection {
        let Snapshot { remaining, reset } = self.snapshot();
        let mut leases: Vec<_> = self.holders().map(|(index, slot)| (self.deadline(&slot), index, slot.units)).collect();
        let count = leases.len();
        leases.sort_unstable();
        let holder = |&(deadline, index, units): &(Instant, usize, u64)| Holder {
            id: self.ledger().map_or(&[][..], |ledger| ledger.id(index)).into(),
            units,
            left: deadline.since(self.now),
        };
        vec![
            ("algorithm", Fact::Word(SPEC.name)),
            ("limit", Fact::count(self.quota.limit())),
            ("ttl_ms", Fact::Milliseconds(self.quota.period())),
            ("held", Fact::count(self.held)),
            ("remaining", Fact::count(remaining)),
            ("reset_ms", Fact::count(reset.as_ms_ceil())),
            ("leases", Fact::count(count)),
            ("holders", Fact::Holders(leases.iter().take(MAX_HOLDERS).map(holder).collect())),
        ]
    }
}
