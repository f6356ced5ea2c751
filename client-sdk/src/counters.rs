//! What the client counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::answer::Stats;

/// See [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    pub(crate) connections: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) not_begun: AtomicU64,
    pub(crate) deduplicated: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) settled: AtomicU64,
    pub(crate) settle_refused: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl ClientCounters {
    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            connections: read(&self.connections),
            repeated: read(&self.repeated),
            retried: read(&self.retried),
            received: read(&self.received),
            stale: read(&self.stale),
            dropped: read(&self.dropped),
            not_begun: read(&self.not_begun),
            deduplicated: read(&self.deduplicated),
            panics: read(&self.panics),
            settled: read(&self.settled),
            settle_refused: read(&self.settle_refused),
        }
    }
}
