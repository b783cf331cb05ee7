//! The lines of the waiting clients, and the timer that is set for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use lazy_static::lazy_static;

use crate::commands::shared::clock::now;
use crate::limiter::Instant;
use crate::queue::{self, LongLine, Queues, Waiters};
use crate::server::{BlockedClient, Call, ClientId, Server, Timer};

/// A waiting client, as the queues hold it.
pub type WaitingClient = BlockedClient<WaitQueues>;

/// If the wall clock has gained or lost this many microseconds or more on the monotonic clock, the wall clock was set. Slewing
/// changes both clocks.
const MIN_CLOCK_STEP_US: i64 = 5_000;

/// The queues and their timer.
#[derive(Default)]
pub struct WaitQueues {
    pub(super) queues: Queues<WaitingClient>,
    /// The timer that is set, and the moment it is set for.
    pub(super) timer: Option<(Timer, Instant)>,
    /// Whether the module has subscribed to key events. It does so at the first wait.
    pub(super) subscribed: bool,
    /// A time by the wall clock, and the same time by the monotonic clock, in microseconds. Waits are measured by the monotonic
    /// clock.
    clocks: Option<(Instant, i64)>,
}

lazy_static! {
    static ref WAIT_QUEUES: Mutex<WaitQueues> = Mutex::default();
}

/// The number of waiting clients. If it is 0, calls need not lock the queues.
static WAITER_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Locks the queues.
pub fn lock() -> MutexGuard<'static, WaitQueues> {
    WAIT_QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the queues; `None` while a line is being served, because the server may call the module during that.
fn try_lock() -> Option<MutexGuard<'static, WaitQueues>> {
    match WAIT_QUEUES.try_lock() {
        Ok(queues) => Some(queues),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Resets the queues and subscribes to the server's events, when the module is loaded.
pub fn start(server: &Server<'_>) {
    *lock() = WaitQueues::default();
    WAITER_COUNT.store(0, Ordering::Relaxed);
    server.subscribe_to_server_events::<WaitQueues>();
}

/// Returns the number of clients that wait for any key.
pub fn waiting_clients() -> u64 {
    WAITER_COUNT.load(Ordering::Relaxed) as u64
}

/// Whether calls wait for the key that argument `index` names, and whether this call must stay behind them.
#[inline(always)]
pub fn waiters(call: &Call<'_>, index: usize) -> Waiters {
    if WAITER_COUNT.load(Ordering::Relaxed) == 0 {
        return Waiters::None;
    }
    find_waiters(call, index)
}

fn find_waiters(call: &Call<'_>, index: usize) -> Waiters {
    let Some(name) = call.argument(index) else { return Waiters::None };
    // While a line is being served, only another module can cause a call. Such a call must not overtake the waiting clients.
    try_lock().map_or(Waiters::InLine, |waiting| waiting.queues.waiters(call.db(), name))
}

/// Returns the number of clients that wait for the key that argument `index` names.
pub fn count_waiters(call: &Call<'_>, index: usize) -> usize {
    if WAITER_COUNT.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let name = call.argument(index).unwrap_or_default();
    try_lock().map_or(0, |waiting| waiting.queues.count_waiters(call.db(), name))
}

/// Calls `read` with the keys that the most clients wait for (at most `most` keys) and with the present time. Returns the result of
/// `read`.
pub fn longest_lines<R>(server: &Server<'_>, most: usize, read: impl FnOnce(&[LongLine<'_>], Instant) -> R) -> R {
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

/// Called after the call has changed the key that argument `index` names: see [`Queues::changed`]. Sets the timer to serve the
/// key's line now.
pub fn changed(call: &Call<'_>, index: usize) {
    if let Some(name) = call.argument(index) {
        WaitQueues::update(call, |waiting, now| waiting.queues.changed(call.db(), name, now));
    }
}

impl queue::Client for WaitingClient {
    type Id = ClientId;

    fn id(&self) -> ClientId {
        Self::id(self)
    }
}

impl WaitQueues {
    /// If the wall clock was set, moves all deadlines by the same step, because the step does not change how long the clients have
    /// waited. In this case also stops the timer, because the server's timers follow the wall clock. [`Self::rearm_timer`] must be
    /// called afterwards.
    pub(super) fn adjust_to_clock(&mut self, server: &Server<'_>) {
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

    /// Stops the timer.
    pub(super) fn stop_timer(&mut self, server: &Server<'_>) {
        if let Some((timer, _)) = self.timer.take() {
            server.stop_timer(timer);
        }
    }

    /// Sets the timer for the earliest wake time. Must be called after each change of the queues.
    pub(super) fn rearm_timer(&mut self, server: &Server<'_>, now: Instant) {
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

    /// Adjusts the queues to the clock, calls `change`, and sets the timer accordingly. Does nothing if no client waits. Also does
    /// nothing while a line is being served: then [`on_timer`](crate::server::EventHandler::on_timer) has caused this call, and
    /// sets the timer afterwards.
    pub(super) fn update(server: &Server<'_>, change: impl FnOnce(&mut Self, Instant)) {
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
