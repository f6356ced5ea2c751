//! The runtime's clock, and the cluster clock that the machine has made of it.
//!
//! The time can be read without the machine's lock: the machine's estimate is published whenever it
//! has changed. The runtime's clock stands still while this host is suspended; a read looks for
//! suspensions first.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mtimer_suspension::{Suspensions, boottime_ahead_us};
use mtimer_types::Time;
use tokio::time::Instant;

use crate::machine::clock::shown;
use crate::machine::moment::Moment;

/// How much the clock that counts suspensions has to gain before a reader looks closer, µs.
const SUSPICIOUS_US: i64 = 1_000;

#[derive(Debug)]
pub(crate) struct RuntimeClock {
    origin: Instant,
    /// How far the clock that counts suspensions is ahead, µs; replaced in tests.
    ahead_us: fn() -> i64,
    /// How much of it the machine has been told.
    told_us: AtomicI64,
    /// The cluster's time at the origin, µs.
    at_origin: AtomicI64,
}

impl RuntimeClock {
    pub(crate) fn new() -> Self {
        Self::with(boottime_ahead_us)
    }

    fn with(ahead_us: fn() -> i64) -> Self {
        let told_us = AtomicI64::new(ahead_us());
        Self { origin: Instant::now(), ahead_us, told_us, at_origin: AtomicI64::new(0) }
    }

    /// The machine's word for now.
    pub(crate) fn moment(&self) -> Moment {
        Moment::after_origin(self.origin.elapsed())
    }

    /// The runtime's word for a moment.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.origin + moment.since_origin()
    }

    /// Returns a log that finds suspensions from here on.
    pub(crate) fn suspensions(&self) -> SuspensionLog {
        let log = Suspensions::new(self.told_us.load(Ordering::Relaxed));
        SuspensionLog { log, told_us: 0 }
    }

    /// Whether this host may have been suspended since the machine was told last.
    pub(crate) fn is_suspicious(&self) -> bool {
        (self.ahead_us)().saturating_sub(self.told_us.load(Ordering::Relaxed)) >= SUSPICIOUS_US
    }

    /// For how long this host was suspended since this was asked last.
    pub(crate) fn find_suspension(&self, log: &mut SuspensionLog) -> Option<Duration> {
        let ahead_us = (self.ahead_us)();
        let total = log.log.observe(ahead_us);
        let length = total - log.told_us;
        if length == 0 {
            return None;
        }
        log.told_us = total;
        self.told_us.store(ahead_us, Ordering::Relaxed);
        Some(Duration::from_micros(length))
    }

    /// The machine's estimate of the cluster's time at the origin, µs.
    pub(crate) fn publish(&self, at_origin: i64) {
        self.at_origin.store(at_origin, Ordering::Relaxed);
    }

    /// The cluster's time, as published last.
    pub(crate) fn time(&self) -> Time {
        shown(self.at_origin.load(Ordering::Relaxed), self.moment())
    }
}

/// Suspensions that the machine was told of.
#[derive(Debug)]
pub(crate) struct SuspensionLog {
    log: Suspensions,
    told_us: u64,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static AHEAD_US: Cell<i64> = const { Cell::new(0) };
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_is_found_once() {
        let clock = RuntimeClock::with(|| AHEAD_US.get());
        let mut log = clock.suspensions();
        assert!(!clock.is_suspicious() && clock.find_suspension(&mut log).is_none());
        AHEAD_US.set(60_000_000);
        assert!(clock.is_suspicious());
        assert_eq!(clock.find_suspension(&mut log), Some(Duration::from_secs(60)));
        assert!(!clock.is_suspicious() && clock.find_suspension(&mut log).is_none());
    }
}
