//! Without the feature `zone` there are no windows of the calendar.

use std::time::SystemTime;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zone {}

impl Zone {
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {}
    }

    pub(super) fn window(self, _: SystemTime) -> (i64, i64) {
        match self {}
    }
}
