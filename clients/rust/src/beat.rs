//! Leases that are renewed while a block runs, and when they are lost: at their own deadline by the monotonic clock, a time to live
//! after the call that granted or renewed them was made, whatever the server says later.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::ask::Part;
use crate::{Error, Limit, Limits};

/// Renews leases until it is dropped.
pub(crate) struct Beat {
    leases: Arc<Leases>,
    tasks: JoinSet<()>,
}

struct Leases {
    limits: Limits,
    id: Vec<u8>,
    held: Vec<Held>,
    /// The deadline of each lease; `None` if it is known to be lost.
    deadlines: watch::Sender<Vec<Option<Instant>>>,
}

struct Held {
    limit: Limit,
    key: Vec<u8>,
    ttl: Duration,
}

impl Beat {
    /// Renews the leases among these at each third of their time to live. They were granted by a call that was made at `since`. If that
    /// is not known, because the call has waited, was repeated or has continued an earlier one, they are renewed at once.
    pub(crate) async fn start(
        limits: &Limits,
        id: &[u8],
        parts: impl Iterator<Item = &Part>,
        since: Option<Instant>,
    ) -> Result<Self, Error> {
        let held = |Part { limit, key, .. }: &Part| {
            let ttl = limit.policy().rate().period.into();
            limit.policy().is_lease().then(|| Held { limit: limit.clone(), key: key.clone(), ttl })
        };
        let held: Vec<_> = parts.filter_map(held).collect();
        let mut deadlines = Vec::new();
        for lease in &held {
            let asked = since.unwrap_or_else(Instant::now);
            if since.is_none() && !lease.limit.renew_at(limits, &lease.key, id).await?.allowed() {
                return Err(Error::LeaseLost);
            }
            deadlines.push(Some(asked + lease.ttl));
        }
        let (limits, id, deadlines) = (limits.clone(), id.to_vec(), watch::Sender::new(deadlines));
        let leases = Arc::new(Leases { limits, id, held, deadlines });
        let tasks = (0..leases.held.len()).map(|nth| leases.clone().beats(nth)).collect();
        Ok(Self { leases, tasks })
    }

    pub(crate) fn is_lost(&self) -> bool {
        is_lost(&self.leases.deadlines.borrow())
    }

    /// Renews the leases now. Without an answer they are held until their deadlines.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        for nth in 0..self.leases.held.len() {
            if !self.is_lost() {
                self.leases.renew(nth).await;
            }
        }
        match self.is_lost() {
            true => Err(Error::LeaseLost),
            false => Ok(()),
        }
    }

    /// Waits until a lease is lost.
    async fn lost(&self) {
        let mut deadlines = self.leases.deadlines.subscribe();
        loop {
            let next = {
                let deadlines = deadlines.borrow_and_update();
                if is_lost(&deadlines) {
                    return;
                }
                deadlines.iter().flatten().min().copied()
            };
            tokio::select! {
                () = sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => {}
                _ = deadlines.changed() => {}
            }
        }
    }

    /// Runs a future. If a lease is lost, the future is dropped, and is not polled after that.
    pub(crate) async fn guard<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        let mut future = pin!(future);
        let unless_lost = std::future::poll_fn(|context| match self.is_lost() {
            true => std::task::Poll::Ready(Err(Error::LeaseLost)),
            false => future.as_mut().poll(context).map(Ok),
        });
        tokio::select! {
            biased;
            () = self.lost() => Err(Error::LeaseLost),
            ended = unless_lost => ended,
        }
    }

    pub(crate) fn stop(&mut self) {
        self.tasks.abort_all();
    }
}

fn is_lost(deadlines: &[Option<Instant>]) -> bool {
    let now = Instant::now();
    deadlines.iter().any(|deadline| deadline.is_none_or(|deadline| deadline <= now))
}

impl Leases {
    async fn beats(self: Arc<Self>, nth: usize) {
        let ttl = self.held[nth].ttl;
        let left = self.deadlines.borrow()[nth].map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // At two thirds before the deadline.
        let mut pause = left.map(|left| left.saturating_sub(ttl * 2 / 3));
        while let Some(next) = pause {
            sleep(next).await;
            pause = self.renew(nth).await;
        }
    }

    /// Renews a lease, and returns how long to wait before it is renewed again; `None` if it is lost.
    async fn renew(&self, nth: usize) -> Option<Duration> {
        let Held { limit, key, ttl } = &self.held[nth];
        let deadline = self.deadlines.borrow()[nth]?;
        let asked = Instant::now();
        let left = deadline.saturating_duration_since(asked);
        let (next, pause) = match timeout(left, limit.renew_at(&self.limits, key, &self.id)).await {
            Ok(Ok(decision)) if decision.granted > 0 => (Some(asked + *ttl), *ttl / 3),
            Ok(Err(error)) if error.is_unavailable() => {
                self.limits.warn(&error, "a lease is not renewed yet");
                (Some(deadline), *ttl / 30)
            }
            // It is denied, or its deadline is over.
            _ => (None, Duration::ZERO),
        };
        // What was lost meanwhile stays lost.
        let next = next.filter(|_| Instant::now() < deadline);
        self.deadlines.send_modify(|deadlines| {
            // Another renewal may have been later.
            deadlines[nth] = deadlines[nth].zip(next).map(|(known, next)| known.max(next));
        });
        next.map(|_| pause)
    }
}
