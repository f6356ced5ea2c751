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
//! The estimate is carried on by the caller's monotonic clock, which may stand still while the host
//! is suspended. The caller tells of suspensions, which are added at once.
//!
//! Not in here: the host's wall clock, which a client has no use for.

use std::collections::BTreeMap;
use std::time::Duration;

use mtimer_types::Time;

use crate::machine::moment::Moment;

/// How far a due time may move the estimate, µs. Brokers tell of a correction by more than 1 ms
/// before they deliver timers that are due by it, so the estimate lags by a few milliseconds at
/// most, unless this host was frozen and cannot tell. A due time that is further ahead may be that
/// of a broker that started after the deciding clock had stepped back.
const MOST_PROVED_US: i64 = 250_000;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// The cluster's time at the origin of moments plus all suspensions since then, µs.
    at_origin: i64,
    /// The same by each connection's samples.
    sources: BTreeMap<u64, i64>,
    /// When the last suspension was noticed, and its length, µs.
    resumed: Option<(Moment, i64)>,
}

impl Clock {
    /// Takes in a sample of a connection: `time` came in at `received` as the answer to something
    /// sent at `sent`.
    pub(crate) fn observe(&mut self, connection: u64, time: Time, sent: Moment, received: Moment) {
        let elapsed = elapsed(received);
        // The answer may have been given before this host was suspended or after.
        let suspended = self.resumed.filter(|(at, _)| sent < *at).map_or(0, |(_, length)| length);
        let lowest = micros(time);
        let highest = lowest + 999 + us(received.since(sent)) + suspended;
        let estimate = self.sources.get(&connection).map(|at_origin| at_origin + elapsed);
        if estimate.is_none_or(|estimate| !(lowest..=highest).contains(&estimate)) {
            self.sources.insert(connection, highest - elapsed);
        }
        self.take_furthest();
    }

    /// A connection says unasked that the cluster's clock shows `time`, because it was corrected:
    /// it shows that at least.
    pub(crate) fn corrected(&mut self, connection: u64, time: Time, received: Moment) {
        let lowest = micros(time) + 999 - elapsed(received);
        let at_origin = self.sources.entry(connection).or_insert(lowest);
        *at_origin = (*at_origin).max(lowest);
        self.take_furthest();
    }

    /// A connection has delivered a timer that was due at `due`: its broker's clock showed that at
    /// least. Returns whether that is too far ahead to be believed without asking the broker for
    /// its time.
    pub(crate) fn proved(&mut self, connection: u64, due: Time, received: Moment) -> bool {
        let proved = micros(due) - elapsed(received);
        let Some(at_origin) = self.sources.get_mut(&connection).filter(|known| **known < proved) else {
            return false;
        };
        if proved - *at_origin > MOST_PROVED_US {
            return true;
        }
        *at_origin = proved;
        self.at_origin = self.at_origin.max(proved);
        false
    }

    /// A connection is gone: its samples count no more, if there are others.
    pub(crate) fn forget(&mut self, connection: u64) {
        self.sources.remove(&connection);
        self.take_furthest();
    }

    /// The host was suspended for so long, and has noticed it at `now`.
    pub(crate) fn suspended(&mut self, by: Duration, now: Moment) {
        let length = us(by);
        self.resumed = Some((now, length));
        self.at_origin += length;
        self.sources.values_mut().for_each(|at_origin| *at_origin += length);
    }

    pub(crate) fn at(&self, moment: Moment) -> Time {
        shown(self.at_origin, moment)
    }

    /// The time that the broker of a connection shows at `moment`, for a time that this broker
    /// compares with its own.
    pub(crate) fn at_broker(&self, connection: u64, moment: Moment) -> Time {
        shown(self.sources.get(&connection).copied().unwrap_or(self.at_origin), moment)
    }

    /// The cluster's time at the origin of moments, µs; [`shown`] carries it on.
    pub(crate) const fn at_origin(&self) -> i64 {
        self.at_origin
    }

    fn take_furthest(&mut self) {
        self.at_origin = self.sources.values().copied().max().unwrap_or(self.at_origin);
    }
}

/// The time at `moment` of a clock that showed `at_origin` µs at the origin.
pub(crate) fn shown(at_origin: i64, moment: Moment) -> Time {
    Time::from_ms((at_origin + elapsed(moment)).max(0).unsigned_abs() / 1_000)
}

fn micros(time: Time) -> i64 {
    time.as_ms() as i64 * 1_000
}

fn elapsed(moment: Moment) -> i64 {
    us(moment.since_origin())
}

fn us(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests;
