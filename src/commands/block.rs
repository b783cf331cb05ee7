//! `BLOCK`: calls that wait for their turn. The server holds their replies, and the [queues](crate::queue) know whose turn it is.
//!
//! All is done on the server's main thread: a call joins a queue; the timer, which is set for the first moment at which
//! anything is due in any queue, grants and denies; events have a queue looked at early. Nothing is granted but from the timer, so
//! a call never pays for those that wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use lazy_static::lazy_static;

use super::error::{Error, Name};
use super::grammar::Rule;
use super::stats::{ABANDONED, TIMEOUTS, WAITS};
use super::{commit, conclude, deadlines, now, reply, row, Wanted};
use crate::keyspace::{Call, Client, Found, Holding, Key, Server, Timer, Watch};
use crate::limiter::{Change, Decision, Instant, Outcome, Policy, Request, Span, Wait};
use crate::queue::{denied, first_grant, Counter, Queues, Waiter};

/// The most answers, and the most queues looked at, before the server has its turn again.
const BATCH: usize = 500;

#[derive(Default)]
struct Waiting {
    queues: Queues<Client>,
    /// The timer, and what it is set for.
    timer: Option<(Timer, Instant)>,
    /// Whether the server tells what happens to keys: from the first wait on.
    watches_keys: bool,
    /// What the wall clock and the steady clock (in microseconds) said at the same moment. A wait is as long by the steady clock.
    clocks: Option<(Instant, i64)>,
}

/// How late the timer is at the most, unless the server's timers stand still.
const OVERDUE: Span = Span::from_us(50_000);

/// By how much the wall clock must have left the steady one to count as stepped, in microseconds. A clock that is slewed takes
/// the steady one along.
const STEP_US: i64 = 5_000;

lazy_static! {
    static ref WAITING: Mutex<Waiting> = Mutex::default();
}

/// How many wait: what a call asks that has to do with no queue.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All who wait; `None` while their queues are being served, in which the server may call the module again.
fn waiting_unless_served() -> Option<MutexGuard<'static, Waiting>> {
    match WAITING.try_lock() {
        Ok(waiting) => Some(waiting),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Begins anew, as the module is loaded.
pub(super) fn start(server: &Server<'_>) {
    *waiting() = Waiting::default();
    COUNT.store(0, Ordering::Relaxed);
    server.watch_server::<Waiting>();
}

/// How many wait now.
pub(super) fn waiting_clients() -> u64 {
    COUNT.load(Ordering::Relaxed) as u64
}

/// Whether somebody waits for the key that argument `index` names.
pub(super) fn others_wait(call: &Call<'_>, index: usize) -> bool {
    COUNT.load(Ordering::Relaxed) > 0
        && call
            .argument(index)
            // While a queue is being served, a call can only be what another module makes of it: it has to wait its turn.
            .is_some_and(|name| waiting_unless_served().is_none_or(|waiting| waiting.queues.holds(call.db(), name)))
}

/// How many wait for the key that argument `index` names.
pub(super) fn waiting_for(call: &Call<'_>, index: usize) -> usize {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let name = call.argument(index).unwrap_or_default();
    waiting_unless_served().map_or(0, |waiting| waiting.queues.waiting(call.db(), name))
}

/// The call has changed the key that argument `index` names: who waits for it may be due.
pub(super) fn stir(call: &Call<'_>, index: usize) {
    if let Some(name) = call.argument(index) {
        Waiting::stirred(call, |queues, now| queues.stir(call.db(), name, now));
    }
}

/// What becomes of a call that takes units and can't have them now, or has to queue up for them: `None` if it waits.
pub(super) fn behind(call: &Call<'_>, key: &Key<'_>, rule: &Rule, now: Instant) -> Result<Option<Decision>, Error> {
    let decision = Wanted::one(rule.policy.kind()).peek(key, &rule.policy, now, rule.request)?;
    let at_once = denied(decision, Span::ZERO);
    let patience = match rule.block {
        Some(patience) if !call.forbids_blocking() => patience,
        // Blocking is forbidden here: answer as without BLOCK.
        _ => return Ok(Some(at_once)),
    };
    let need = match decision.wait {
        Wait::Never => return Ok(Some(decision)),
        Wait::For(_) if decision.granted > 0 => Span::ZERO,
        Wait::For(need) => first_grant(key, &rule.policy, rule.request, now, now.saturating_add(need))?.since(now),
    };
    if need > patience {
        return Ok(Some(denied(decision, patience)));
    }
    // The server does not block this client: answer as without BLOCK.
    let Some(client) = Client::hold::<Waiting>(call) else { return Ok(Some(at_once)) };
    WAITS.up();
    let (Rule { policy, request, .. }, deadline) = (*rule, now.saturating_add(patience));
    let waiter = Waiter { client, policy, request, joined: now, deadline };
    let mut waiting = waiting();
    waiting.follow_clock(call);
    waiting.queues.join(call.db(), call.argument(1).unwrap_or_default(), waiter, key, now.saturating_add(need));
    if !waiting.watches_keys {
        waiting.watches_keys = true;
        call.watch_keys::<Waiting>();
    }
    waiting.settle(call, now);
    Ok(None)
}

impl Waiting {
    /// Notices if the wall clock has stepped, which says nothing about how long anybody has waited. The timer may then be far off,
    /// since the server sets it by the wall clock.
    fn follow_clock(&mut self, server: &Server<'_>) {
        let steady_us = server.steady_us();
        let wall = now(server);
        if server.steady_us().saturating_sub(steady_us) > STEP_US / 2 {
            // The two readings are not of the same moment. The next ones may be.
            return;
        }
        let step_us = self.clocks.map_or(0, |(wall_then, steady_then)| {
            let passed_us = steady_us.saturating_sub(steady_then);
            wall.as_us().saturating_sub(wall_then.as_us()).saturating_sub(passed_us)
        });
        if self.queues.is_empty() {
            self.clocks = Some((wall, steady_us));
        } else if step_us.abs() >= STEP_US {
            self.clocks = Some((wall, steady_us));
            self.queues.clock_stepped(step_us, wall);
            self.drop_timer(server);
        }
    }

    fn drop_timer(&mut self, server: &Server<'_>) {
        if let Some((timer, _)) = self.timer.take() {
            server.stop_timer(timer);
        }
    }

    /// Sets the timer as the queues now need it.
    fn settle(&mut self, server: &Server<'_>, now: Instant) {
        COUNT.store(self.queues.len(), Ordering::Relaxed);
        let wakes = self.queues.wakes();
        // One that is too early does no harm.
        if self.timer.is_some_and(|(_, set)| wakes.is_some_and(|wakes| set <= wakes)) {
            return;
        }
        self.drop_timer(server);
        if let Some(wakes) = wakes {
            let in_ms = i64::try_from(wakes.since(now).as_ms_ceil()).unwrap_or(i64::MAX);
            self.timer = Some((server.start_timer::<Self>(in_ms), wakes));
        }
    }

    /// Has queues looked at soon, unless it is the queues themselves that changed the key.
    fn stirred(server: &Server<'_>, stir: impl FnOnce(&mut Queues<Client>, Instant)) {
        if COUNT.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(mut waiting) = waiting_unless_served() else { return };
        waiting.follow_clock(server);
        let now = now(server);
        stir(&mut waiting.queues, now);
        waiting.settle(server, now);
    }
}

impl Watch for Waiting {
    fn timer(server: &Server<'_>) {
        {
            let mut waiting = waiting();
            waiting.timer = None;
            waiting.follow_clock(server);
        }
        let now = now(server);
        let may_grant = server.may_write();
        let mut answers = Vec::new();
        let mut concluded = Vec::new();
        for _ in 0..BATCH {
            let due = waiting().queues.due(now);
            let Some((id, db, name)) = due else { break };
            // It may turn out to have expired, and whoever is told of that may call the module: nothing is locked meanwhile.
            match Key::open_named(server, db, &name) {
                Found::Here(mut key) => {
                    let answered = waiting().queues.serve(id, &mut key, now, may_grant, BATCH - answers.len());
                    for (waiter, answer) in answered {
                        if let Ok(decision) = &answer {
                            concluded.push((
                                db,
                                name.clone(),
                                waiter.policy.kind(),
                                waiter.request.amount,
                                decision.granted,
                            ));
                        }
                        answers.push((waiter.client, answer));
                    }
                }
                Found::Elsewhere => {
                    let dismissed = waiting().queues.dismiss(id);
                    answers.extend(dismissed.into_iter().map(|client| (client, Err(Error::Moved))));
                }
            }
            if answers.len() >= BATCH {
                break;
            }
        }
        waiting().settle(server, now);
        for (db, name, kind, amount, granted) in concluded {
            if granted == 0 {
                TIMEOUTS.up();
            }
            conclude(server, || (db, &name), kind, amount, granted > 0, now);
        }
        // Of the replies that are ready at once, the server sends the last first.
        for (client, answer) in answers.into_iter().rev() {
            if answer.is_err() {
                ABANDONED.up();
            }
            client.release::<Self>(answer);
        }
    }

    fn key(server: &Server<'_>, name: &[u8]) {
        Self::stirred(server, |queues, now| queues.stir(server.db(), name, now));
    }

    fn databases(server: &Server<'_>) {
        Self::stirred(server, Queues::stir_all);
    }

    fn cron(server: &Server<'_>) {
        if COUNT.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(mut waiting) = waiting_unless_served() else { return };
        waiting.follow_clock(server);
        let now = now(server);
        // The server's timers stand still after its clock has stepped back.
        if waiting.timer.is_some_and(|(_, set)| now.since(set) > OVERDUE) {
            waiting.drop_timer(server);
        }
        waiting.settle(server, now);
    }
}

impl Holding for Waiting {
    type Answer = Result<Decision, Error>;

    fn reply(call: &Call<'_>, answer: Self::Answer) {
        reply(call, answer, |decision| call.reply_integers(&row(&decision)));
    }

    fn ended(call: &Call<'_>, client: Client) -> bool {
        let waiter = leave(call, client);
        Self::reply(call, waiter.ok_or(Error::Unblocked).and_then(|waiter| out_of_time(call, &waiter)));
        waiter.is_some()
    }

    fn gone(server: &Server<'_>, client: Client) -> bool {
        let waited = leave(server, client).is_some();
        if waited {
            ABANDONED.up();
        }
        waited
    }
}

/// The reply to one who has waited in vain, whose call this is.
fn out_of_time(call: &Call<'_>, waiter: &Waiter<Client>) -> Result<Decision, Error> {
    let (kind, now) = (waiter.policy.kind(), now(call));
    // Nothing is to happen to the key here: the server is in the middle of ending the wait.
    let key = Key::look(call, 1).ok_or(Error::Arity(Name::Limiter(kind)))?;
    let decision = denied(Wanted::one(kind).peek(&key, &waiter.policy, now, waiter.request)?, waiter.patience());
    drop(key);
    TIMEOUTS.up();
    conclude(call, || call.key(1), kind, waiter.request.amount, false, now);
    Ok(decision)
}

fn leave(server: &Server<'_>, client: Client) -> Option<Waiter<Client>> {
    let mut waiting = waiting();
    waiting.follow_clock(server);
    let now = now(server);
    let waiter = waiting.queues.leave(client, now);
    waiting.settle(server, now);
    waiter
}

impl Counter for Key<'_> {
    type Error = Error;

    fn stored(&self, policy: &Policy) -> Result<Option<&[u8]>, Error> {
        Ok(Wanted::one(policy.kind()).stored(self)?)
    }

    fn expires(&self) -> Option<Instant> {
        self.expires_ms().map(|ms| Instant::from_us(ms.saturating_mul(1_000)))
    }

    fn decide(&self, policy: &Policy, stored: Option<&[u8]>, at: Instant, request: Request) -> Result<Outcome, Error> {
        Wanted::one(policy.kind()).decide_for(stored, policy, at, request)
    }

    fn peek(&self, policy: &Policy, at: Instant, request: Request) -> Result<Decision, Error> {
        Wanted::one(policy.kind()).peek(self, policy, at, request)
    }

    fn commit(&mut self, change: &Change, now: Instant) {
        match change {
            // As of a moment that has passed it may have expired already; a key's deadline is yet to come.
            Change::Write { offset, head, bytes, expires, slack } => {
                self.write(*offset, bytes.as_slice().split_at(*head), deadlines(*expires.max(&now), *slack))
            }
            change => commit(self, change),
        }
    }
}
