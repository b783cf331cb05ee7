//! A load on a server that ends when its test does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tells the threads of a [scope](std::thread::scope) how long to go on. Keep the guard of [`Load::ends_here`] in the
/// scope's body: when the body ends, also by a panic, the guard ends the load. Otherwise the scope would wait for its
/// threads for ever.
pub struct Load {
    over: AtomicBool,
    until: Instant,
}

impl Default for Load {
    fn default() -> Self {
        Self::lasting_at_most(Duration::from_secs(180))
    }
}

impl Load {
    /// A load whose threads panic if it has not been ended after this time.
    pub fn lasting_at_most(time: Duration) -> Self {
        Self { over: AtomicBool::new(false), until: Instant::now() + time }
    }

    /// Whether the threads should go on. Panics when the time of [`Self::lasting_at_most`] is over.
    pub fn goes_on(&self) -> bool {
        let over = self.over.load(Ordering::SeqCst);
        assert!(over || Instant::now() < self.until, "the load does not end");
        !over
    }

    /// Ends the load.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Returns a guard that ends the load when it is dropped.
    pub fn ends_here(&self) -> impl Drop + '_ {
        struct End<'a>(&'a Load);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        End(self)
    }
}
