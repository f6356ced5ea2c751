//! How many timers wait in memory for a destination's credit, and which of the others are parked.

use super::flow::Condition;
use super::pressure::Pressure;

/// A destination that makes progress while memory is full keeps about two seconds' worth of timers:
/// this many times its intake in 250 ms.
const FULL_FACTOR: u64 = 8;

/// Limit on the timers that wait in memory for a destination's credit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BacklogLimit {
    /// Everything.
    All,
    /// So many. Those beyond are parked once they have waited for the park delay.
    AfterDelay(u64),
    /// So many. Those beyond are parked at once.
    AtMost(u64),
    /// Nothing new: a timer is parked when it comes due. Timers that wait already are parked once
    /// they have waited for the park delay.
    NoMore,
}

/// Decides by a destination's condition, the memory in use, and `pace`: about how many deliveries
/// the destination took in the last 250 ms.
pub(super) fn backlog_limit(condition: Condition, pressure: Pressure, pace: u64) -> BacklogLimit {
    use Condition::{Flowing, Idle, Settling, Stuck};
    use Pressure::{Free, Full, Pressed};
    match (condition, pressure) {
        (Flowing, Free | Pressed) => BacklogLimit::All,
        (Flowing, Full) => BacklogLimit::AfterDelay(pace.saturating_mul(FULL_FACTOR)),
        // Not while memory is full, see `Flow::condition`.
        (Settling, _) => BacklogLimit::All,
        (Idle, Free) => BacklogLimit::All,
        (Idle, Pressed | Full) => BacklogLimit::AtMost(pace),
        (Stuck, Free) => BacklogLimit::NoMore,
        (Stuck, Pressed | Full) => BacklogLimit::AtMost(0),
    }
}

impl BacklogLimit {
    /// Whether a timer that comes due is parked at once if `waiting` wait already.
    pub(super) fn parks_new(self, waiting: usize) -> bool {
        match self {
            Self::All | Self::AfterDelay(_) => false,
            Self::AtMost(most) => waiting as u64 >= most,
            Self::NoMore => true,
        }
    }

    /// Returns how many timers may stay, and after how many ms the others are parked; `None`: all
    /// stay. `park_after_ms`: the park delay.
    pub(super) fn limit(self, park_after_ms: u64) -> Option<(usize, u64)> {
        let (most, after_ms) = match self {
            Self::All => return None,
            Self::AfterDelay(most) => (most, park_after_ms),
            Self::AtMost(most) => (most, 0),
            Self::NoMore => (0, park_after_ms),
        };
        Some((usize::try_from(most).unwrap_or(usize::MAX), after_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decision_table() {
        use BacklogLimit::{AfterDelay, All, AtMost, NoMore};
        use Condition::{Flowing, Idle, Settling, Stuck};
        let table = [
            //          free    pressed     full
            (Flowing, [All, All, AfterDelay(40)]),
            (Settling, [All, All, All]),
            (Idle, [All, AtMost(5), AtMost(5)]),
            (Stuck, [NoMore, AtMost(0), AtMost(0)]),
        ];
        for (condition, expected) in table {
            let pressures = [Pressure::Free, Pressure::Pressed, Pressure::Full];
            assert_eq!(pressures.map(|p| backlog_limit(condition, p, 5)), expected, "{condition:?}");
        }
        assert_eq!(backlog_limit(Flowing, Pressure::Full, u64::MAX), AfterDelay(u64::MAX));
    }

    #[test]
    fn what_each_limit_means_for_new_timers_and_for_those_that_wait() {
        let table = [
            (BacklogLimit::All, [false, false, false], None),
            (BacklogLimit::AfterDelay(5), [false, false, false], Some((5, 1_000))),
            (BacklogLimit::AtMost(5), [false, true, true], Some((5, 0))),
            (BacklogLimit::NoMore, [true, true, true], Some((0, 1_000))),
        ];
        for (backlog_limit, parks_new, limit) in table {
            assert_eq!(
                [4, 5, 6].map(|waiting| backlog_limit.parks_new(waiting)),
                parks_new,
                "{backlog_limit:?}"
            );
            assert_eq!(backlog_limit.limit(1_000), limit, "{backlog_limit:?}");
        }
    }
}
