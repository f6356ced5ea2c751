//! The cluster clock as a client sees it.
//!
//! Every answer that carries the cluster's time bounds it: when the answer arrives, the cluster's clock shows at least
//! that time, and at most that time plus the round trip (and the millisecond that was cut off). The estimate stays
//! inside the bounds of every sample, at their upper end, so that "in five seconds" is never less.
//!
//! Not in here: the host's wall clock, which a client has no use for.

use std::sync::atomic::{AtomicU64, Ordering};

use mtimer_types::Time;
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The cluster's time at the origin, in µs.
    at_origin: AtomicU64,
}

impl Clock {
    /// From a first sample: `time` came in at `received` as the answer to something sent at `sent`.
    pub(crate) fn new(time: Time, sent: Instant, received: Instant) -> Self {
        let clock = Self { origin: sent, at_origin: AtomicU64::new(0) };
        clock.observe(time, sent, received);
        clock
    }

    /// Takes in another sample. Only one task does this.
    pub(crate) fn observe(&self, time: Time, sent: Instant, received: Instant) {
        let lowest = time.as_ms() * 1_000;
        let highest = lowest + 999 + micros(received.saturating_duration_since(sent));
        let estimate = self.micros_at(received);
        if estimate < lowest || estimate > highest {
            let elapsed = micros(received.saturating_duration_since(self.origin));
            self.at_origin.store(highest.saturating_sub(elapsed), Ordering::Relaxed);
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> Time {
        Time::from_ms(self.micros_at(instant) / 1_000)
    }

    fn micros_at(&self, instant: Instant) -> u64 {
        self.at_origin.load(Ordering::Relaxed) + micros(instant.saturating_duration_since(self.origin))
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_estimate_stays_within_every_sample() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // A slow handshake: somewhere in 1,000..=1,100.
        let clock = Clock::new(Time::from_ms(1_000), at(0), at(100));
        assert_eq!(clock.at(at(100)), Time::from_ms(1_100));
        // A fast answer tightens it.
        clock.observe(Time::from_ms(1_050), at(148), at(150));
        assert_eq!(clock.at(at(150)), Time::from_ms(1_052));
        // A slow one that agrees changes nothing.
        clock.observe(Time::from_ms(1_150), at(200), at(300));
        assert_eq!(clock.at(at(300)), Time::from_ms(1_202));
        // The cluster's clock went ahead of the estimate.
        clock.observe(Time::from_ms(5_000), at(399), at(400));
        assert_eq!(clock.at(at(400)), Time::from_ms(5_001));
        // And back.
        clock.observe(Time::from_ms(2_000), at(499), at(500));
        assert_eq!(clock.at(at(500)), Time::from_ms(2_001));
    }
}
