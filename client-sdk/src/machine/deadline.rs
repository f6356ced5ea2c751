//! When the time of one callback is over, by this client.
//!
//! The broker counts from the sending, so it gives a callback up a little earlier than this says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::machine::moment::Moment;

/// The end of a callback's time, which only moves away.
#[derive(Debug)]
pub(crate) struct CallbackDeadline {
    received: Moment,
    /// Counted from there.
    after_ms: AtomicU64,
}

impl CallbackDeadline {
    pub(crate) fn new(received: Moment, timeout_ms: u32) -> Self {
        Self { received, after_ms: AtomicU64::new(u64::from(timeout_ms)) }
    }

    pub(crate) fn at(&self) -> Moment {
        self.received + Duration::from_millis(self.after_ms.load(Ordering::Relaxed))
    }

    /// Gives it `by_ms` from now, unless it has more.
    pub(crate) fn extend(&self, now: Moment, by_ms: u32) {
        let passed = now.since(self.received).as_millis() as u64;
        self.after_ms.fetch_max(passed + u64::from(by_ms), Ordering::Relaxed);
    }
}
