//! Counters of handlers; the rest of [`Stats`] is the machine's.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::answer::Stats;

/// See [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct HandlerCounters {
    pub(crate) deduplicated: AtomicU64,
    pub(crate) panics: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl HandlerCounters {
    /// Adds these to the machine's.
    pub(crate) fn add_to(&self, stats: Stats) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats { deduplicated: read(&self.deduplicated), panics: read(&self.panics), ..stats }
    }
}
