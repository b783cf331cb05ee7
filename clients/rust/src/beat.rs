//! Leases that are renewed while a block runs, and when they are lost: at their own deadline by the monotonic clock, a time to live
//! after the call that granted or renewed them was made, whatever the server says later.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::{Error, Limit, Limits, Policy};

/// Renews leases until it is dropped.
pub(crate) struct Beat {
    limits: Limits,
    id: Vec<u8>,
    leases: Vec<Lease>,
    /// The deadline of each lease; `None` if it is known to be lost.
    deadlines: watch::Sender<Vec<Option<Instant>>>,
    tasks: Vec<AbortHandle>,
}

#[derive(Clone)]
struct Lease {
    limit: Limit,
    key: Vec<u8>,
    ttl: Duration,
}

impl Beat {
    pub(crate) fn new(limits: Limits, id: Vec<u8>) -> Self {
        Self { limits, id, leases: Vec::new(), deadlines: watch::Sender::default(), tasks: Vec::new() }
    }

    /// Renews a lease at each third of its time to live. It was granted by a call that was made at `since`. If that is not known,
    /// because the call has waited, was repeated or has continued an earlier one, it is renewed at once.
    pub(crate) async fn hold(&mut self, limit: &Limit, key: &[u8], since: Option<Instant>) -> Result<(), Error> {
        let Policy::Lease(policy) = limit.policy() else { return Ok(()) };
        let lease = Lease { limit: limit.clone(), key: key.to_vec(), ttl: policy.ttl() };
        let since = match since {
            Some(since) => since,
            None => {
                let asked = Instant::now();
                let renewed = lease.limit.renew_at(&self.limits, &lease.key, &self.id).await?;
                if !renewed.allowed() {
                    return Err(Error::LeaseLost);
                }
                asked
            }
        };
        let nth = self.leases.len();
        self.deadlines.send_modify(|deadlines| deadlines.push(Some(since + lease.ttl)));
        self.leases.push(lease.clone());
        let beats = beats(self.limits.clone(), lease, self.id.clone(), since, nth, self.deadlines.clone());
        self.tasks.push(tokio::spawn(beats).abort_handle());
        Ok(())
    }

    pub(crate) fn is_lost(&self) -> bool {
        is_lost(&self.deadlines.borrow())
    }

    /// Renews the leases now. Without an answer they are held until their deadlines.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        for (nth, lease) in self.leases.iter().enumerate() {
            if self.is_lost() {
                break;
            }
            renew(&self.limits, lease, &self.id, nth, &self.deadlines).await;
        }
        match self.is_lost() {
            true => Err(Error::LeaseLost),
            false => Ok(()),
        }
    }

    /// Waits until a lease is lost.
    async fn lost(&self) {
        let mut deadlines = self.deadlines.subscribe();
        loop {
            let next = {
                let deadlines = deadlines.borrow_and_update();
                if is_lost(&deadlines) {
                    return;
                }
                deadlines.iter().flatten().min().copied()
            };
            let deadline = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = deadline => {}
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
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_lost(deadlines: &[Option<Instant>]) -> bool {
    let now = Instant::now();
    deadlines.iter().any(|deadline| deadline.is_none_or(|deadline| deadline <= now))
}

/// Renews a lease, and returns how long to wait before it is renewed again; `None` if it is lost.
async fn renew(
    limits: &Limits,
    lease: &Lease,
    id: &[u8],
    nth: usize,
    deadlines: &watch::Sender<Vec<Option<Instant>>>,
) -> Option<Duration> {
    let deadline = deadlines.borrow()[nth]?;
    let asked = Instant::now();
    let left = deadline.saturating_duration_since(asked);
    let (next, pause) = match tokio::time::timeout(left, lease.limit.renew_at(limits, &lease.key, id)).await {
        Ok(Ok(decision)) if decision.granted > 0 => (Some(asked + lease.ttl), lease.ttl / 3),
        Ok(Err(error)) if error.is_unavailable() => {
            limits.warn(&error, "a lease is not renewed yet");
            (Some(deadline), lease.ttl / 30)
        }
        // It is denied, or its deadline is over.
        _ => (None, Duration::ZERO),
    };
    // What was lost meanwhile stays lost.
    let next = next.filter(|_| Instant::now() < deadline);
    deadlines.send_modify(|deadlines| {
        // Another renewal may have been later.
        deadlines[nth] = deadlines[nth].zip(next).map(|(known, next)| known.max(next));
    });
    next.map(|_| pause)
}

async fn beats(
    limits: Limits,
    lease: Lease,
    id: Vec<u8>,
    since: Instant,
    nth: usize,
    deadlines: watch::Sender<Vec<Option<Instant>>>,
) {
    let mut pause = (lease.ttl / 3).saturating_sub(since.elapsed());
    loop {
        tokio::time::sleep(pause).await;
        match renew(&limits, &lease, &id, nth, &deadlines).await {
            Some(next) => pause = next,
            None => return,
        }
    }
}
