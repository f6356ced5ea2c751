//! When a call was handed to its lane.
//!
//! A call may wait for long: Redis is away, the process is stopped, the host is suspended. Not in
//! here: how long is too long.

use std::time::Duration;

use mtimer_suspension::boottime_ahead_us;
use tokio::time::Instant;

/// A moment by the runtime's clock, and by one that counts suspensions of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOver {
    instant: Instant,
    boottime_ahead_us: i64,
}

impl HandedOver {
    /// The present.
    pub(crate) fn now() -> Self {
        Self { instant: Instant::now(), boottime_ahead_us: boottime_ahead_us() }
    }

    /// How long ago it was, suspensions included.
    pub(crate) fn age(self) -> Duration {
        let suspended = boottime_ahead_us().saturating_sub(self.boottime_ahead_us);
        self.instant.elapsed() + Duration::from_micros(u64::try_from(suspended).unwrap_or(0))
    }
}
