//! Leases that are renewed while a block runs, and when they are lost: at their own deadline by the monotonic clock, a time to live
//! after the call that granted or renewed them was made, whatever the server says later.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::ask::Part;
use crate::{Error, Limits};

/// The leases of a block of work.
pub(crate) struct Leases {
    limits: Limits,
    pub(crate) id: Vec<u8>,
    held: Vec<Part>,
    /// The deadline of each lease; `None` if it is known to be lost.
    deadlines: watch::Sender<Vec<Option<Instant>>>,
}

fn ttl(lease: &Part) -> Duration {
    lease.limit.policy().rate().period.into()
}

/// How long a lease lasts after the call that was granted: its time to live. That of a policy key may be shorter than the default's: the
/// key holds no lease any more after `reset`. If that is zero, the call was granted by SHADOW, and holds none.
fn lasts(lease: &Part, reset: Duration) -> Duration {
    let ttl = ttl(lease);
    if reset.is_zero() {
        ttl
    } else {
        ttl.min(reset)
    }
}

impl Leases {
    /// These leases, each with the reset of its decision, which were granted by a call that was made at `since`. If that is not
    /// known, because the call has waited, was repeated or has continued an earlier one, they are renewed at once.
    pub(crate) async fn new(
        limits: &Limits,
        id: &[u8],
        granted: Vec<(Part, Duration)>,
        since: Option<Instant>,
    ) -> Result<Arc<Self>, Error> {
        let (mut held, mut deadlines) = (Vec::new(), Vec::new());
        for (lease, mut reset) in granted {
            let asked = since.unwrap_or_else(Instant::now);
            if since.is_none() {
                let renewed = lease.limit.renew_at(limits, &lease.key, id).await?;
                if !renewed.allowed() {
                    return Err(Error::LeaseLost);
                }
                reset = renewed.reset();
            }
            deadlines.push(Some(asked + lasts(&lease, reset)));
            held.push(lease);
        }
        let (limits, id, deadlines) = (limits.clone(), id.to_vec(), watch::Sender::new(deadlines));
        Ok(Arc::new(Self { limits, id, held, deadlines }))
    }

    /// The tasks that renew the leases at each third of their time to live.
    pub(crate) fn beat(self: &Arc<Self>) -> JoinSet<()> {
        (0..self.held.len()).map(|nth| self.clone().beats(nth)).collect()
    }

    /// An error if a lease is lost.
    pub(crate) fn check_held(&self) -> Result<(), Error> {
        let now = Instant::now();
        match self.deadlines.borrow().iter().all(|deadline| deadline.is_some_and(|deadline| deadline > now)) {
            true => Ok(()),
            false => Err(Error::LeaseLost),
        }
    }

    /// Renews the leases now. Without an answer they are held until their deadlines.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        for nth in 0..self.held.len() {
            self.check_held()?;
            self.renew(nth).await;
        }
        self.check_held()
    }

    /// Runs a future. If a lease is lost, the future is dropped, and is not polled after that.
    pub(crate) async fn guard<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        let mut future = pin!(future);
        let while_held = std::future::poll_fn(|context| match self.check_held() {
            Ok(()) => future.as_mut().poll(context).map(Ok),
            Err(error) => Poll::Ready(Err(error)),
        });
        tokio::select! {
            biased;
            () = self.lost() => Err(Error::LeaseLost),
            ended = while_held => ended,
        }
    }

    /// Waits until a lease is lost.
    async fn lost(&self) {
        let mut deadlines = self.deadlines.subscribe();
        loop {
            let next = deadlines.borrow_and_update().iter().flatten().min().copied();
            if self.check_held().is_err() {
                return;
            }
            tokio::select! {
                () = sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => {}
                _ = deadlines.changed() => {}
            }
        }
    }

    async fn beats(self: Arc<Self>, nth: usize) {
        let left = self.deadlines.borrow()[nth].map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // At two thirds before the deadline, or at once if the lease lasts less than that.
        let mut pause = left.map(|left| left.saturating_sub(ttl(&self.held[nth]) * 2 / 3));
        while let Some(next) = pause {
            sleep(next).await;
            pause = self.renew(nth).await;
        }
    }

    /// Renews a lease, and returns how long to wait before it is renewed again; `None` if it is lost.
    async fn renew(&self, nth: usize) -> Option<Duration> {
        let lease = &self.held[nth];
        let deadline = self.deadlines.borrow()[nth]?;
        let asked = Instant::now();
        let left = deadline.saturating_duration_since(asked);
        let (next, pause) = match timeout(left, lease.limit.renew_at(&self.limits, &lease.key, &self.id)).await {
            Ok(Ok(decision)) if decision.granted > 0 => {
                let lasts = lasts(lease, decision.reset());
                (Some(asked + lasts), lasts / 3)
            }
            Ok(Err(error)) if error.is_unavailable() => {
                self.limits.warn(&error, "a lease is not renewed yet");
                (Some(deadline), (left / 20).max(Duration::from_millis(10)))
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
