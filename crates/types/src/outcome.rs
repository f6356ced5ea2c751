//! How deliveries and timers end.

use serde::{Deserialize, Serialize};

/// Names the outcome of one delivery, in a handler's view.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HandlerOutcome {
    /// Done.
    Ok,
    /// Not done; try again by the retry tiers, or `after_ms` from now if given.
    Retry {
        /// Delay in ms instead of the tier's own.
        after_ms: Option<u32>,
        /// Why; kept with the timer, cut at 512 bytes.
        error: String,
    },
    /// Will never be done: dead letter now.
    Fail {
        /// Why; kept with the dead letter, cut at 512 bytes.
        error: String,
    },
    /// No handler has seen this delivery. The timer is delivered again as the same attempt; while
    /// an edit of it is under way, the attempt counts as failed.
    NotBegun,
    /// Not now: deliver again `after_ms` from now, as a new attempt that uses none of the retry
    /// budget.
    Later {
        /// Delay in ms; a broker takes [`MAX_LATER_MS`](crate::limits::MAX_LATER_MS) for a longer
        /// one.
        after_ms: u32,
    },
}

/// Says why a timer is in the dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum DeadReason {
    /// Every retry tier was used up.
    Exhausted = 0,
    /// The handler said so.
    Failed = 1,
    /// A cancel came after the first delivery and stopped the further attempts.
    Stopped = 2,
    /// An at-most-once delivery whose handler asked for another one, now or later, or failed.
    AtMostOnce = 3,
}

impl DeadReason {
    /// From its number in storage.
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Exhausted),
            1 => Some(Self::Failed),
            2 => Some(Self::Stopped),
            3 => Some(Self::AtMostOnce),
            _ => None,
        }
    }
}

/// Says how a timer has ended; remembered for the repeat horizon, 30 s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Ended {
    /// A client settled it with ok.
    Acknowledged = 0,
    /// Cancelled before any delivery.
    Cancelled = 1,
    /// Its key was taken over by a replacing schedule before any delivery.
    Replaced = 2,
    /// Its own deadline passed.
    Expired = 3,
    /// It went to the dead letters.
    Dead = 4,
    /// A cancel named an id that was not there; a schedule that arrives later is refused.
    CancelledUnseen = 5,
}

impl Ended {
    /// From its number in storage.
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Acknowledged),
            1 => Some(Self::Cancelled),
            2 => Some(Self::Replaced),
            3 => Some(Self::Expired),
            4 => Some(Self::Dead),
            5 => Some(Self::CancelledUnseen),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_storage_mean_what_they_meant() {
        let reasons =
            [DeadReason::Exhausted, DeadReason::Failed, DeadReason::Stopped, DeadReason::AtMostOnce];
        for (n, reason) in (0..).zip(reasons) {
            assert_eq!((reason as u8, DeadReason::from_u8(n)), (n, Some(reason)));
        }
        assert_eq!(DeadReason::from_u8(4), None);

        let ends = [
            Ended::Acknowledged,
            Ended::Cancelled,
            Ended::Replaced,
            Ended::Expired,
            Ended::Dead,
            Ended::CancelledUnseen,
        ];
        for (n, end) in (0..).zip(ends) {
            assert_eq!((end as u8, Ended::from_u8(n)), (n, Some(end)));
        }
        assert_eq!(Ended::from_u8(6), None);
    }
}
