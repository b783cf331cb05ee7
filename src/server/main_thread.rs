//! State of the module that only the server's main thread uses.

use std::cell::RefCell;

use super::Server;

/// A static variable that only the server's main thread uses, so that access takes no lock.
pub struct MainThread<T>(RefCell<T>);

// SAFETY: only `with` gives access to the value, and it takes a `Server`. A `Server` can't be sent to another thread, and it is made
// on the main thread only: `Server::new` requires that.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    /// A variable with this value.
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Calls `work` with the value, and returns its result. If this is called from within another `work`, calls it without the value.
    #[inline(always)]
    pub fn with_if_free<R>(&self, _: &Server<'_>, work: impl FnOnce(Option<&mut T>) -> R) -> R {
        // There is only one place that calls `work`, so that the compiler inlines it.
        work(self.0.try_borrow_mut().ok().as_deref_mut())
    }

    /// Calls `work` with the value, and returns its result; `None` if this is called from within another `work`.
    #[inline(always)]
    pub fn with<R>(&self, _: &Server<'_>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_borrow_mut().ok().map(|mut value| work(&mut value))
    }
}
