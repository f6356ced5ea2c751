//! The cluster clock as a client sees it.
//!
//! Every answer that carries the cluster's time bounds it: when the answer arrives, the cluster's clock shows at least
//! that time, and at most that time plus the round trip (and the millisecond that was cut off). The estimate stays
//! inside the bounds of every sample, at their upper end, so that "in five seconds" is never less.
//!
//! Several brokers may see the cluster's clock a little differently. Each has its own estimate; the one that is furthest
//! ahead counts, so that the client is behind none of them.
//!
//! Not in here: the host's wall clock, which a client has no use for.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mtimer_types::Time;
use tokio::time::Instant;

use crate::sync::Locked;

#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The cluster's time at the origin, in µs.
    at_origin: AtomicU64,
    /// The same by each connection's samples.
    sources: Mutex<BTreeMap<u64, u64>>,
}

impl Clock {
    /// From a first sample, of connection 1: `time` came in at `received` as the answer to something sent at `sent`.
    pub(crate) fn new(time: Time, sent: Instant, received: Instant) -> Self {
        let clock = Self { origin: sent, at_origin: AtomicU64::new(0), sources: Mutex::default() };
        clock.observe(1, time, sent, received);
        clock
    }

    /// Takes in another sample of connection `session`.
    pub(crate) fn observe(&self, session: u64, time: Time, sent: Instant, received: Instant) {
        let lowest = time.as_ms() * 1_000;
        let highest = lowest + 999 + micros(received.saturating_duration_since(sent));
        let elapsed = micros(received.saturating_duration_since(self.origin));
        let mut sources = self.sources.locked();
        let before = sources.get(&session).copied();
        let estimate = before.map_or(0, |at_origin| at_origin + elapsed);
        if estimate < lowest || estimate > highest {
            sources.insert(session, highest.saturating_sub(elapsed));
        }
        self.at_origin.store(sources.values().copied().max().unwrap_or(0), Ordering::Relaxed);
    }

    /// Connection `session` says unasked that the cluster's clock shows `time`, because it has stepped: it shows that at
    /// least.
    pub(crate) fn stepped(&self, session: u64, time: Time, received: Instant) {
        let lowest = time.as_ms() * 1_000 + 999;
        let elapsed = micros(received.saturating_duration_since(self.origin));
        let mut sources = self.sources.locked();
        let at_origin = sources.entry(session).or_default();
        *at_origin = (*at_origin).max(lowest.saturating_sub(elapsed));
        self.at_origin.store(sources.values().copied().max().unwrap_or(0), Ordering::Relaxed);
    }

    /// A connection is gone: its samples count no more, if there are others.
    pub(crate) fn forget(&self, session: u64) {
        let mut sources = self.sources.locked();
        sources.remove(&session);
        if let Some(at_origin) = sources.values().copied().max() {
            self.at_origin.store(at_origin, Ordering::Relaxed);
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
        clock.observe(1, Time::from_ms(1_050), at(148), at(150));
        assert_eq!(clock.at(at(150)), Time::from_ms(1_052));
        // A slow one that agrees changes nothing.
        clock.observe(1, Time::from_ms(1_150), at(200), at(300));
        assert_eq!(clock.at(at(300)), Time::from_ms(1_202));
        // The cluster's clock went ahead of the estimate.
        clock.observe(1, Time::from_ms(5_000), at(399), at(400));
        assert_eq!(clock.at(at(400)), Time::from_ms(5_001));
        // And back.
        clock.observe(1, Time::from_ms(2_000), at(499), at(500));
        assert_eq!(clock.at(at(500)), Time::from_ms(2_001));
        // Another broker is ahead of this one, and then gone.
        clock.observe(2, Time::from_ms(2_060), at(549), at(550));
        assert_eq!(clock.at(at(550)), Time::from_ms(2_061));
        clock.observe(1, Time::from_ms(2_100), at(599), at(600));
        assert_eq!(clock.at(at(600)), Time::from_ms(2_111));
        clock.forget(2);
        assert_eq!(clock.at(at(600)), Time::from_ms(2_101));
        clock.forget(1);
        assert_eq!(clock.at(at(600)), Time::from_ms(2_101));
        // A broker says unasked that its clock has gone ahead, and says nothing new.
        clock.stepped(3, Time::from_ms(9_000), at(700));
        assert_eq!(clock.at(at(700)), Time::from_ms(9_000));
        clock.stepped(3, Time::from_ms(8_000), at(800));
        assert_eq!(clock.at(at(800)), Time::from_ms(9_100));
    }
}
