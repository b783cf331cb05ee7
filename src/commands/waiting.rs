//! `BLOCK`: the server blocks the client of a call whose units are not free, and the client waits in [lines](crate::queue).
//!
//! All of this runs on the server's main thread. A timer is set for the next [task](crate::queue::Task). When it fires, it does
//! all tasks that are due: it grants units to clients or denies them. Events make the timer fire at once. Only the timer grants units to waiting
//! clients, so that no other call takes longer because of them.

use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use lazy_static::lazy_static;

use super::parameters::MAX_WAITERS;
use super::stats::{ABANDONED, WAITS};
use super::{all, now, record_answer, reply, row, Error, Rule, Target};
use crate::limiter::{Decision, Instant, Span, Wait};
use crate::queue::{self, denied, first_grant, LongLine, Queues, Rules, Task, Waiter, Waiters};
use crate::server::{BlockedClient, Call, ClientId, EventHandler, Moved, ReadKey, ReplyHandler, Server, Timer, WriteKey};

/// A waiting client, as the queues hold it.
type WaitingClient = BlockedClient<WaitQueues>;

/// How many keys the timer asks for clients, before the server goes on with other work: a call with several keys counts once for
/// each.
const BATCH: usize = 500;

/// If the timer is later than this, it is replaced: see [`WaitQueues::on_cron`].
const MAX_TIMER_DELAY: Span = Span::from_us(50_000);

/// If the wall clock differs from the monotonic clock by this many microseconds or more, it was set. Slewing changes both clocks.
const MIN_CLOCK_STEP_US: i64 = 5_000;

/// The queues and their timer.
#[derive(Default)]
struct WaitQueues {
    queues: Queues<WaitingClient>,
    /// The timer that is set, and the moment it is set for.
    timer: Option<(Timer, Instant)>,
    /// Whether the module has subscribed to key events. It does so at the first wait.
    subscribed: bool,
    /// A time by the wall clock, and the same time by the monotonic clock, in microseconds. Waits are measured by the monotonic
    /// clock.
    clocks: Option<(Instant, i64)>,
}

lazy_static! {
    static ref WAIT_QUEUES: Mutex<WaitQueues> = Mutex::default();
}

/// The number of waiting clients. If it is 0, calls need not lock the queues.
static WAITER_COUNT: AtomicUsize = AtomicUsize::new(0);

fn lock() -> MutexGuard<'static, WaitQueues> {
    WAIT_QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the queues; `None` while a queue is being served, because the server may call the module during that.
fn try_lock() -> Option<MutexGuard<'static, WaitQueues>> {
    match WAIT_QUEUES.try_lock() {
        Ok(queues) => Some(queues),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Resets the queues and subscribes to the server's events, when the module is loaded.
pub(super) fn start(server: &Server<'_>) {
    *lock() = WaitQueues::default();
    WAITER_COUNT.store(0, Ordering::Relaxed);
    server.subscribe_to_server_events::<WaitQueues>();
}

/// Returns the number of clients that wait for any key.
pub(super) fn waiting_clients() -> u64 {
    WAITER_COUNT.load(Ordering::Relaxed) as u64
}

/// What the waiting calls mean for this call on the key that argument `index` names.
#[inline(always)]
pub(super) fn waiters(call: &Call<'_>, index: usize) -> Waiters {
    if WAITER_COUNT.load(Ordering::Relaxed) == 0 {
        return Waiters::None;
    }
    find_waiters(call, index)
}

fn find_waiters(call: &Call<'_>, index: usize) -> Waiters {
    let Some(name) = call.argument(index) else { return Waiters::None };
    // While a line is being served, only another module can cause a call, and this must not overtake the waiting clients.
    try_lock().map_or(Waiters::InLine, |waiting| waiting.queues.waiters(call.db(), name))
}

/// Returns the number of clients that wait for the key that argument `index` names.
pub(super) fn count_waiters(call: &Call<'_>, index: usize) -> usize {
    if WAITER_COUNT.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let name = call.argument(index).unwrap_or_default();
    try_lock().map_or(0, |waiting| waiting.queues.count_waiters(call.db(), name))
}

/// Returns what `read` makes of the keys that the most clients wait for, at most `most` of them, and of the present time.
pub(super) fn longest_lines<R>(server: &Server<'_>, most: usize, read: impl FnOnce(&[LongLine<'_>], Instant) -> R) -> R {
    match try_lock() {
        Some(mut waiting) => {
            waiting.adjust_to_clock(server);
            let now = now(server);
            waiting.rearm_timer(server, now);
            read(&waiting.queues.longest_lines(most), now)
        }
        // A line is being served, and another module calls.
        None => read(&[], now(server)),
    }
}

/// The call has changed the key that argument `index` names: see [`Queues::changed`]. Sets the timer to serve its line now.
pub(super) fn changed(call: &Call<'_>, index: usize) {
    if let Some(name) = call.argument(index) {
        WaitQueues::update(call, |waiting, now| waiting.queues.changed(call.db(), name, now));
    }
}

/// Returns `decided`, a decision and whether it changed the key. If there is none, blocks the client and returns `None`, or denies the
/// call as [`block_or_deny`] does.
///
/// # Errors
/// As [`block_or_deny`].
#[inline(always)]
pub(super) fn decided_or_blocked(
    call: &Call<'_>,
    key: &WriteKey<'_>,
    rule: &Rule<'_>,
    now: Instant,
    decided: Option<(Decision, bool)>,
) -> Result<Option<(Decision, bool)>, Error> {
    match decided {
        Some(decided) => Ok(Some(decided)),
        None => Ok(block_or_deny(call, key, rule, now)?.map(|decision| (decision, false))),
    }
}

/// Blocks the client of a call that takes units which are not free, and returns `None`. Returns the denial instead if the call
/// has no BLOCK option, or as [`block`] says.
///
/// # Errors
/// If the key does not hold a record of the rule's algorithm.
fn block_or_deny(call: &Call<'_>, key: &WriteKey<'_>, rule: &Rule<'_>, now: Instant) -> Result<Option<Decision>, Error> {
    let waited = match rule.block {
        Some(timeout) => block(call, false, slice::from_ref(key), slice::from_ref(rule), timeout, now)?,
        None => Some(Span::ZERO),
    };
    let Some(waited) = waited else { return Ok(None) };
    Ok(Some(denied(Target::only(rule.policy.kind()).peek(key, rule, now)?, waited)))
}

/// The index of the argument that names the first key: of `RL.ALL`, or of a command with one key.
const fn first_key(is_all: bool) -> usize {
    if is_all {
        all::FIRST_KEY
    } else {
        1
    }
}

/// Blocks the client of a call that its keys do not grant now, and returns `None`. `is_all` is whether the command is `RL.ALL`.
///
/// Denies the call instead if the server forbids to block the client, as if the call had no BLOCK option, or if the units of a
/// rule are not due before the timeout. Returns the span after which the call would have been denied.
///
/// # Errors
/// If a key does not hold a record of its rule's algorithm, or if as many clients wait as `rl.max-waiters` allows.
pub(super) fn block(
    call: &Call<'_>,
    is_all: bool,
    keys: &[WriteKey<'_>],
    rules: &[Rule<'_>],
    timeout: Span,
    now: Instant,
) -> Result<Option<Span>, Error> {
    if call.forbids_blocking() {
        return Ok(Some(Span::ZERO));
    }
    for (key, rule) in keys.iter().zip(rules) {
        let decision = Target::only(rule.policy.kind()).peek(key, rule, now)?;
        let need = match decision.wait {
            Wait::Never => return Ok(Some(timeout)),
            Wait::For(_) if decision.granted > 0 => continue,
            Wait::For(need) => first_grant(key, &rule.policy, rule.request, now, now.saturating_add(need))?.since(now),
        };
        // Units that are usually given back early can be free before the wait is over.
        if need > timeout && !rule.policy.frees_early() {
            return Ok(Some(timeout));
        }
    }
    // This comes before the server is asked to block the client, because a client that is blocked takes memory.
    if (1..=waiting_clients()).contains(&MAX_WAITERS.get().cast_unsigned()) {
        return Err(Error::TooManyWaiters);
    }
    // The server has refused to block this client: answer as without BLOCK.
    let Some(client) = WaitingClient::block(call) else { return Ok(Some(Span::ZERO)) };
    WAITS.increment();
    let id = rules.first().and_then(|rule| rule.request.id).map(|id| id.as_bytes().into());
    let rules = rules.iter().enumerate().map(|(index, &Rule { policy, request, names_amount, .. })| {
        let key = call.argument(first_key(is_all) + index).unwrap_or_default().into();
        queue::Rule { key, policy, amount: request.amount, names_amount }
    });
    let mut rules: Vec<_> = rules.collect();
    let rules = match rules.pop() {
        Some(rule) if !is_all => Rules::One(rule),
        last => Rules::All(rules.into_iter().chain(last).collect()),
    };
    let waiter = Waiter { client, db: call.db(), rules, id, joined: now, deadline: now.saturating_add(timeout) };
    let mut waiting = lock();
    waiting.adjust_to_clock(call);
    waiting.queues.join(waiter, keys);
    if !waiting.subscribed {
        waiting.subscribed = true;
        call.subscribe_to_key_events::<WaitQueues>();
    }
    waiting.rearm_timer(call, now);
    Ok(None)
}

/// The answer to a client that has waited.
enum Answer {
    /// The decision of a command with one key.
    One(Decision),
    /// The decisions of `RL.ALL`.
    All(Vec<Decision>),
}

/// The answer to a waiter, from the decisions of its rules.
fn answer(rules: &Rules, rows: Result<Vec<Decision>, (usize, Error)>) -> Result<Answer, Error> {
    match (rules, rows) {
        (Rules::All(_), Ok(rows)) => Ok(Answer::All(rows)),
        (Rules::All(_), Err((index, error))) => Err(error.at(index + 1)),
        (Rules::One(_), Ok(rows)) => rows.first().map(|row| Answer::One(*row)).ok_or(Error::Unblocked),
        (Rules::One(_), Err((_, error))) => Err(error),
    }
}

impl queue::Client for WaitingClient {
    type Id = ClientId;

    fn id(&self) -> ClientId {
        Self::id(self)
    }
}

impl WaitQueues {
    /// If the wall clock was set, moves all deadlines along, since that does not change how long the clients have waited. Then
    /// it also stops the timer, because the server's timers follow the wall clock. [`Self::rearm_timer`] must be called
    /// afterwards.
    fn adjust_to_clock(&mut self, server: &Server<'_>) {
        let monotonic_us = server.monotonic_us();
        let wall = now(server);
        if server.monotonic_us().saturating_sub(monotonic_us) > MIN_CLOCK_STEP_US / 2 {
            // The process was interrupted between the two readings, so they cannot be compared. The next ones probably can.
            return;
        }
        let step_us = self.clocks.map_or(0, |(wall_then, monotonic_then)| {
            let passed_us = monotonic_us.saturating_sub(monotonic_then);
            wall.as_us().saturating_sub(wall_then.as_us()).saturating_sub(passed_us)
        });
        if self.queues.is_empty() {
            self.clocks = Some((wall, monotonic_us));
        } else if step_us.abs() >= MIN_CLOCK_STEP_US {
            self.clocks = Some((wall, monotonic_us));
            self.queues.clock_stepped(step_us, wall);
            self.stop_timer(server);
        }
    }

    fn stop_timer(&mut self, server: &Server<'_>) {
        if let Some((timer, _)) = self.timer.take() {
            server.stop_timer(timer);
        }
    }

    /// Sets the timer for the earliest wake time. Must be called after each change of the queues.
    fn rearm_timer(&mut self, server: &Server<'_>, now: Instant) {
        WAITER_COUNT.store(self.queues.len(), Ordering::Relaxed);
        let next = self.queues.next_wake();
        // A timer that fires too early does no harm.
        if self.timer.is_some_and(|(_, at)| next.is_some_and(|next| at <= next)) {
            return;
        }
        self.stop_timer(server);
        if let Some(next) = next {
            let in_ms = i64::try_from(next.since(now).as_ms_ceil()).unwrap_or(i64::MAX);
            self.timer = Some((server.start_timer::<Self>(in_ms), next));
        }
    }

    /// Adjusts the queues to the clock, calls `change`, and sets the timer accordingly. Does nothing if no client waits, or
    /// while a queue is being served: [`Self::on_timer`] then causes the call, and sets the timer afterwards.
    fn update(server: &Server<'_>, change: impl FnOnce(&mut Self, Instant)) {
        if WAITER_COUNT.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(mut waiting) = try_lock() else { return };
        waiting.adjust_to_clock(server);
        let now = now(server);
        change(&mut waiting, now);
        waiting.rearm_timer(server, now);
    }
}

impl EventHandler for WaitQueues {
    fn on_timer(server: &Server<'_>) {
        {
            let mut waiting = lock();
            waiting.timer = None;
            waiting.adjust_to_clock(server);
        }
        let now = now(server);
        let may_grant = server.may_write();
        let mut answers = Vec::new();
        let mut dismissed = Vec::new();
        let mut asked = 0;
        // However many lines are due, clients whose wait has ended are answered, too.
        while asked < 2 * BATCH {
            let next = if asked < BATCH { lock().queues.next_task(now) } else { lock().queues.next_timeout(now) };
            let Some(task) = next else { break };
            let keys_each = task.keys.len().max(1);
            // The lock is not held here: if a key has expired, opening it notifies other modules, which may call this one.
            match open_keys(server, &task) {
                Ok(Some(mut keys)) => {
                    let most = (2 * BATCH - asked).div_ceil(keys_each).min(BATCH);
                    let served = lock().queues.serve(&task, &mut keys, now, may_grant, most);
                    asked += served.len().max(1) * keys_each;
                    answers.extend(served);
                }
                Ok(None) => {
                    lock().queues.postpone(&task, now);
                    asked += keys_each;
                }
                Err(Moved) => {
                    let moved = lock().queues.dismiss(&task, now);
                    asked += moved.len().max(1);
                    dismissed.extend(moved);
                }
            }
        }
        lock().rearm_timer(server, now);
        for (waiter, rows) in &answers {
            if let Ok(rows) = rows {
                record_answer(server, waiter.db, &waiter.rules, rows, now);
            }
        }
        let answers = answers.into_iter().map(|(waiter, rows)| (waiter.client, answer(&waiter.rules, rows)));
        let answers = answers.chain(dismissed.into_iter().map(|client| (client, Err(Error::Moved))));
        // If several clients are unblocked in one callback, the server sends their replies in reverse order.
        for (client, answer) in answers.collect::<Vec<_>>().into_iter().rev() {
            if answer.is_err() {
                ABANDONED.increment();
            }
            client.reply_with(answer);
        }
    }

    fn on_key_event(server: &Server<'_>, name: &[u8]) {
        Self::update(server, |waiting, now| waiting.queues.wake(server.db(), name, now));
    }

    fn on_database_event(server: &Server<'_>) {
        Self::update(server, |waiting, now| waiting.queues.wake_all(now));
    }

    fn on_cron(server: &Server<'_>) {
        // After the wall clock was set back, the server's timers do not fire for a while. So a timer that is too late is replaced.
        Self::update(server, |waiting, now| {
            if waiting.timer.is_some_and(|(_, at)| now.since(at) > MAX_TIMER_DELAY) {
                waiting.stop_timer(server);
            }
        });
    }
}

impl ReplyHandler for WaitQueues {
    type Answer = Result<Answer, Error>;

    fn reply(call: &Call<'_>, answer: Self::Answer) {
        reply(call, answer, |answer| match answer {
            Answer::One(decision) => call.reply_integers(&row(&decision)),
            Answer::All(rows) => all::reply_rows(call, &rows),
        });
    }

    fn on_timeout(call: &Call<'_>, client: ClientId) -> Option<WaitingClient> {
        let refusals = lock().queues.refusals(client);
        let waiter = leave(call, client);
        let denial = waiter.as_ref().ok_or(Error::Unblocked).and_then(|waiter| deny_at_timeout(call, waiter, &refusals));
        Self::reply(call, denial);
        waiter.map(|waiter| waiter.client)
    }

    fn on_disconnect(server: &Server<'_>, client: ClientId) -> Option<WaitingClient> {
        let waiter = leave(server, client)?;
        ABANDONED.increment();
        Some(waiter.client)
    }
}

/// Returns the denial of a waiter that the server unblocks. `call` is the waiter's call, and `refusals` are those of
/// [`Queues::refusals`].
fn deny_at_timeout(call: &Call<'_>, waiter: &Waiter<WaitingClient>, refusals: &[bool]) -> Result<Answer, Error> {
    let now = now(call);
    let first_key = first_key(matches!(waiter.rules, Rules::All(_)));
    let decisions = waiter.rules.iter().enumerate().map(|(index, rule)| {
        let kind = rule.policy.kind();
        // The server is in the middle of unblocking the client, so the key must not change: it is opened for reading.
        let key = ReadKey::open(call, first_key + index).ok_or((index, Error::InUse))?;
        let rule = Rule::new(rule.policy, waiter.request(rule));
        Target::only(kind).peek(&key, &rule, now).map_err(|error| (index, *error))
    });
    let rows = decisions.collect::<Result<Vec<_>, _>>().map(|mut rows| {
        waiter.deny(refusals, &mut rows);
        record_answer(call, waiter.db, &waiter.rules, &rows, now);
        rows
    });
    answer(&waiter.rules, rows)
}

/// Opens the keys of a task, if this node of the cluster serves them. `None` if the server is using one of them.
fn open_keys<'s>(server: &'s Server<'s>, task: &Task) -> Result<Option<Vec<WriteKey<'s>>>, Moved> {
    task.keys.iter().try_for_each(|key| WriteKey::check_node(server, task.db, key))?;
    let open = |key: &Arc<[u8]>| WriteKey::open_named(server, task.db, key);
    if task.keys.len() > 1 {
        // To open an expired key deletes it, and subscribers to the notification may modify the other keys. So each is opened once
        // while no other is open.
        for key in &task.keys {
            drop(open(key)?);
        }
    }
    if !server.announce(task.db, &task.keys) {
        return Ok(None);
    }
    task.keys.iter().map(open).collect()
}

/// Removes a client from the lines in which it stands, if it waits.
fn leave(server: &Server<'_>, client: ClientId) -> Option<Waiter<WaitingClient>> {
    let mut waiting = lock();
    waiting.adjust_to_clock(server);
    let now = now(server);
    let waiter = waiting.queues.leave(client, now);
    waiting.rearm_timer(server, now);
    waiter
}
