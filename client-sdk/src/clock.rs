//! The cluster clock as a client sees it.
//!
//! Every answer that carries the cluster's time bounds it: when the answer arrives, the cluster's
//! clock shows at least that time, and at most that time plus the round trip (and the millisecond
//! that was cut off). The estimate stays inside the bounds of every sample, at their upper end, so
//! that "in five seconds" is never less.
//!
//! A delivery proves that its due time has been reached. It moves the estimate up to that time, so
//! that no callback seems early; an answer to a ping, which bounds the time from both sides, moves
//! it back if need be.
//!
//! Several brokers may see the cluster's clock a little differently. Each has its own estimate; the
//! one that is furthest ahead counts, so that the client is behind none of them.
//!
//! The estimate is carried on by the runtime's clock, which stands still while this host is
//! suspended. A read of the time looks for suspensions first, and adds them at once.
//!
//! Not in here: the host's wall clock, which a client has no use for.

use std::collections::BTreeMap;
use std::sync::Mutex;

use mtimer_suspension::{Suspensions, boottime_ahead_us};
use mtimer_types::Time;
use tokio::time::Instant;

use crate::sync::Locked;

/// How far a due time may move the estimate, µs. Brokers tell of a correction by more than 1 ms
/// before they deliver what is due by it, so the estimate lags by a few milliseconds at most,
/// unless this host was frozen and cannot tell. A due time that is further ahead may be that of a
/// broker that started after the deciding clock had stepped back.
const MOST_PROVED_US: u64 = 250_000;

#[derive(Debug)]
pub(crate) struct ClientClock {
    origin: Instant,
    /// How far the clock that counts suspensions is ahead, µs; replaced in tests.
    ahead_us: fn() -> i64,
    state: Mutex<ClockState>,
}

#[derive(Debug)]
struct ClockState {
    /// The cluster's time at the origin plus all suspensions since then, µs.
    at_origin: u64,
    /// The same by each connection's samples.
    sources: BTreeMap<u64, u64>,
    suspensions: Suspensions,
    /// How long this host has been suspended since the start, µs.
    suspended: u64,
    /// When the last suspension was noticed, and its length, µs.
    resumed: Option<(Instant, u64)>,
}

impl ClientClock {
    /// From a first sample, of connection 1: `time` came in at `received` as the answer to
    /// something sent at `sent`.
    pub(crate) fn new(time: Time, sent: Instant, received: Instant) -> Self {
        Self::with(boottime_ahead_us, time, sent, received)
    }

    fn with(ahead_us: fn() -> i64, time: Time, sent: Instant, received: Instant) -> Self {
        let state = ClockState {
            at_origin: 0,
            sources: BTreeMap::new(),
            suspensions: Suspensions::new(ahead_us()),
            suspended: 0,
            resumed: None,
        };
        let clock = Self { origin: sent, ahead_us, state: Mutex::new(state) };
        clock.observe(1, time, sent, received);
        clock
    }

    /// Takes in another sample of connection `session`.
    pub(crate) fn observe(&self, session: u64, time: Time, sent: Instant, received: Instant) {
        let elapsed = self.elapsed(received);
        let mut state = self.state.locked();
        state.look(self.ahead_us);
        // The answer may have been given before this host was suspended or after.
        let suspended = state.resumed.filter(|(at, _)| sent < *at).map_or(0, |(_, length)| length);
        let lowest = time.as_ms() * 1_000;
        let highest = lowest + 999 + micros(received.saturating_duration_since(sent)) + suspended;
        let before = state.sources.get(&session).copied();
        let estimate = before.map_or(0, |at_origin| at_origin + elapsed);
        if estimate < lowest || estimate > highest {
            state.sources.insert(session, highest.saturating_sub(elapsed));
        }
        state.at_origin = state.sources.values().copied().max().unwrap_or(0);
    }

    /// Connection `session` says unasked that the cluster's clock shows `time`, because it was
    /// corrected: it shows that at least.
    pub(crate) fn corrected(&self, session: u64, time: Time, received: Instant) {
        let lowest = time.as_ms() * 1_000 + 999;
        let elapsed = self.elapsed(received);
        let mut state = self.state.locked();
        state.look(self.ahead_us);
        let at_origin = state.sources.entry(session).or_default();
        *at_origin = (*at_origin).max(lowest.saturating_sub(elapsed));
        state.at_origin = state.sources.values().copied().max().unwrap_or(0);
    }

    /// Connection `session` has delivered a timer that was due at `due`: its broker's clock showed
    /// that at least. Returns whether that is too far ahead to be believed without asking the
    /// broker for its time.
    pub(crate) fn proved(&self, session: u64, due: Time, received: Instant) -> bool {
        let elapsed = self.elapsed(received);
        let proved = (due.as_ms() * 1_000).saturating_sub(elapsed);
        let mut state = self.state.locked();
        state.look(self.ahead_us);
        let Some(at_origin) = state.sources.get_mut(&session).filter(|known| **known < proved) else {
            return false;
        };
        if proved - *at_origin > MOST_PROVED_US {
            return true;
        }
        *at_origin = proved;
        state.at_origin = state.at_origin.max(proved);
        false
    }

    /// A connection is gone: its samples count no more, if there are others.
    pub(crate) fn forget(&self, session: u64) {
        let mut state = self.state.locked();
        state.sources.remove(&session);
        if let Some(at_origin) = state.sources.values().copied().max() {
            state.at_origin = at_origin;
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> Time {
        let mut state = self.state.locked();
        state.look(self.ahead_us);
        Time::from_ms((state.at_origin + self.elapsed(instant)) / 1_000)
    }

    /// What the broker of connection `session` shows at `instant`, for a time that this broker
    /// compares with its own.
    pub(crate) fn at_broker(&self, session: u64, instant: Instant) -> Time {
        let mut state = self.state.locked();
        state.look(self.ahead_us);
        let at_origin = state.sources.get(&session).copied().unwrap_or(state.at_origin);
        Time::from_ms((at_origin + self.elapsed(instant)) / 1_000)
    }

    /// By the runtime's clock, µs.
    fn elapsed(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.origin))
    }
}

impl ClockState {
    /// Looks whether this host was suspended.
    fn look(&mut self, ahead_us: fn() -> i64) {
        let total = self.suspensions.observe(ahead_us());
        let length = total - self.suspended;
        if length > 0 {
            self.suspended = total;
            self.resumed = Some((Instant::now(), length));
            self.at_origin += length;
            self.sources.values_mut().for_each(|at_origin| *at_origin += length);
        }
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    thread_local! {
        static AHEAD_US: Cell<i64> = const { Cell::new(0) };
    }

    fn suspend(ms: i64) {
        AHEAD_US.set(AHEAD_US.get() + ms * 1_000);
    }

    fn clock_at(ms: u64, now: Instant) -> ClientClock {
        ClientClock::with(|| AHEAD_US.get(), Time::from_ms(ms), now, now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_is_in_the_next_time_that_is_asked_for() {
        let start = Instant::now();
        let clock = clock_at(1_000, start);
        suspend(60_000);
        assert_eq!(clock.now(), Time::from_ms(61_000));
        suspend(500);
        assert_eq!(clock.now(), Time::from_ms(61_500));
        // The next heartbeat agrees, and changes nothing.
        let sent = Instant::now();
        advance(Duration::from_millis(2)).await;
        clock.observe(1, Time::from_ms(61_501), sent, Instant::now());
        assert_eq!(clock.now(), Time::from_ms(61_502));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sample_that_spans_a_suspension_makes_nothing_early() {
        // The answer was given before the suspension, after it, or in the middle, by a clock that
        // went on.
        for answered in [1_002, 31_000, 61_002] {
            let clock = clock_at(1_000, Instant::now());
            let sent = Instant::now();
            advance(Duration::from_millis(2)).await;
            suspend(60_000);
            advance(Duration::from_millis(2)).await;
            clock.observe(1, Time::from_ms(answered), sent, Instant::now());
            assert_eq!(clock.now(), Time::from_ms(61_004));
        }
    }

    #[test]
    fn the_estimate_stays_within_every_sample() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // A slow handshake: somewhere in 1,000..=1,100.
        let clock = ClientClock::new(Time::from_ms(1_000), at(0), at(100));
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
        clock.corrected(3, Time::from_ms(9_000), at(700));
        assert_eq!(clock.at(at(700)), Time::from_ms(9_000));
        clock.corrected(3, Time::from_ms(8_000), at(800));
        assert_eq!(clock.at(at(800)), Time::from_ms(9_100));
    }

    #[test]
    fn the_clock_never_shows_less_than_a_delivery_proves() {
        let start = Instant::now();
        let at = |us: u64| start + Duration::from_micros(us);
        let clock = ClientClock::new(Time::from_ms(1_000), at(0), at(0));
        // The broker's clock runs a little faster; 100 ms later it is at 1,101.0 ms.
        let arrived = at(100_000);
        assert_eq!(clock.at(arrived), Time::from_ms(1_100));
        assert!(!clock.proved(1, Time::from_ms(1_101), arrived));
        assert_eq!(clock.at(arrived), Time::from_ms(1_101));
        assert_eq!(clock.at(at(101_000)), Time::from_ms(1_102), "it goes on from there");
        assert_eq!(clock.at_broker(1, arrived), Time::from_ms(1_101));
        // What was due earlier proves nothing new.
        assert!(!clock.proved(1, Time::from_ms(500), arrived));
        assert_eq!(clock.at(arrived), Time::from_ms(1_101));
        // A pong that says less corrects it: a broker that was started after a step back.
        clock.observe(1, Time::from_ms(1_050), at(110_000), at(111_000));
        assert_eq!(clock.at(at(111_000)), Time::from_ms(1_051));
    }

    #[test]
    fn a_proof_far_ahead_is_no_time_to_go_by_but_a_reason_to_ask() {
        let start = Instant::now();
        let clock = ClientClock::new(Time::from_ms(1_000), start, start);
        let hour_ahead = Time::from_ms(1_000 + 3_600_000);
        assert!(clock.proved(1, hour_ahead, start), "the broker is to be asked");
        assert_eq!(clock.at(start), Time::from_ms(1_000), "in five seconds stays in five seconds");
        // Of a connection that is gone nothing is taken in.
        clock.observe(2, Time::from_ms(1_000), start, start);
        clock.forget(2);
        assert!(!clock.proved(2, Time::from_ms(1_100), start));
        assert_eq!(clock.at(start), Time::from_ms(1_000));
    }

    #[test]
    fn a_request_bears_the_time_of_the_broker_that_it_goes_to() {
        let start = Instant::now();
        let clock = ClientClock::new(Time::from_ms(1_000_000), start, start);
        // This broker started after the deciding clock had stepped back.
        clock.observe(2, Time::from_ms(1_000), start, start);
        let later = start + Duration::from_millis(10);
        assert_eq!(clock.at(later), Time::from_ms(1_000_010));
        assert_eq!(clock.at_broker(2, later), Time::from_ms(1_010));
        assert_eq!(clock.at_broker(3, later), clock.at(later), "of this one nothing is known");
    }
}
