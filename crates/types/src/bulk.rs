//! Bulk jobs: one action on every timer that matches.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::filter::Filter;
use crate::id::TimerId;
use crate::import::ImportId;
use crate::invalid::{InvalidBulk, InvalidTimer};
use crate::limits::{MAX_AHEAD_MS, MAX_FILTER_BYTES};
use crate::time::Time;
use crate::timer::check_distance;

/// The name of a bulk job: random, the same in every partition and every repeat of its request.
/// People see 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BulkId(pub u128);

/// A text that is no [`BulkId`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no bulk job's id: it has 32 hexadecimal digits")]
pub struct NoBulkId(String);

impl fmt::Display for BulkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for BulkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BulkId {
    type Err = NoBulkId;

    fn from_str(text: &str) -> Result<Self, NoBulkId> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or_else(|| NoBulkId(text.to_owned()))
    }
}

/// What a bulk job does with each timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BulkAction {
    /// Cancels live ones.
    Cancel,
    /// Moves due times by so many ms, to earlier ones if it is negative, and deadlines with them.
    /// Only of live ones whose first attempt is to come.
    Shift {
        /// By how many.
        ms: i64,
    },
    /// Makes this their due time, likewise.
    MoveTo {
        /// The new due time.
        due: Time,
    },
    /// Delivers dead and unconfirmed ones again.
    Replay,
    /// Removes dead and unconfirmed ones for good.
    Purge,
    /// Ends the staging of an import's timers: each becomes what it is to become.
    Release {
        /// Which import.
        import: ImportId,
    },
    /// Removes an import's staged timers for good.
    Withdraw {
        /// Which import.
        import: ImportId,
    },
}

impl BulkAction {
    /// Whether it is about live timers: pending and parked ones, or staged ones. Else it is about
    /// retained ones: dead and unconfirmed ones.
    pub const fn is_of_live(self) -> bool {
        match self {
            Self::Cancel | Self::Shift { .. } | Self::MoveTo { .. } => true,
            Self::Release { .. } | Self::Withdraw { .. } => true,
            Self::Replay | Self::Purge => false,
        }
    }

    /// Whether it can make a store hold more than before: a full store refuses it, timer by timer.
    pub const fn adds(self) -> bool {
        match self {
            Self::Shift { .. } | Self::MoveTo { .. } | Self::Replay | Self::Release { .. } => true,
            Self::Cancel | Self::Purge | Self::Withdraw { .. } => false,
        }
    }

    /// Returns its name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Shift { .. } | Self::MoveTo { .. } => "reschedule",
            Self::Replay => "replay",
            Self::Purge => "purge",
            Self::Release { .. } => "release",
            Self::Withdraw { .. } => "withdraw",
        }
    }

    /// The import whose staged timers it is about; `None`: it is about no staged ones.
    pub const fn import(self) -> Option<ImportId> {
        match self {
            Self::Release { import } | Self::Withdraw { import } => Some(import),
            Self::Cancel | Self::Shift { .. } | Self::MoveTo { .. } | Self::Replay | Self::Purge => None,
        }
    }
}

/// A bulk job: what it does, and with which timers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bulk {
    /// What.
    pub action: BulkAction,
    /// What the timers have in common.
    pub filter: Filter,
    /// Only timers of which an attempt has failed, or only others; of live ones.
    pub retrying: Option<bool>,
    /// Only timers that fire at or after this; parked ones: that are due; retained ones: that have
    /// ended.
    pub from: Time,
    /// Only timers that fire at or before this; parked and retained ones likewise.
    pub until: Time,
    /// At most about so many timers a second, in all partitions together. 0: as fast as it goes.
    pub rate: u32,
    /// Only counts them.
    pub dry_run: bool,
}

impl Bulk {
    /// A job on all that match a filter, as fast as it goes.
    pub fn new(action: BulkAction, filter: impl Into<Filter>) -> Self {
        let (from, until) = (Time::ZERO, Time::MAX);
        Self { action, filter: filter.into(), retrying: None, from, until, rate: 0, dry_run: false }
    }

    /// The fire times under which the pending timers are stored that it may be about.
    pub fn stored_range(&self) -> (Time, Time) {
        match self.action.import() {
            Some(_) => (self.from.staged(), self.until.staged()),
            None => (self.from, self.until.min(Time::LAST_UNSTAGED)),
        }
    }

    /// Checks the job.
    ///
    /// # Errors
    ///
    /// [`InvalidBulk`], or [`InvalidTimer::TooFar`].
    pub fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        match self.action {
            BulkAction::MoveTo { due } => check_distance(due, now)?,
            BulkAction::Shift { ms } if ms.unsigned_abs() > MAX_AHEAD_MS => {
                return Err(InvalidBulk::Shift { ms, limit: MAX_AHEAD_MS }.into());
            }
            BulkAction::Shift { .. } | BulkAction::Cancel | BulkAction::Replay | BulkAction::Purge => {}
            BulkAction::Release { .. } | BulkAction::Withdraw { .. } => {}
        }
        if self.from > self.until {
            return Err(InvalidBulk::Range { from: self.from, until: self.until }.into());
        }
        let bytes = self.filter.bytes();
        if bytes > MAX_FILTER_BYTES {
            return Err(InvalidBulk::Filter { bytes, limit: MAX_FILTER_BYTES }.into());
        }
        Ok(())
    }
}

/// Why a bulk job could not act on a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BulkObstacle {
    /// An attempt had begun, or the timer was stopped.
    TooLate,
    /// Its deadline is before the new due time, or would have passed if it was moved along.
    PastDeadline,
    /// Another live timer has its key.
    KeyTaken,
    /// The new due time would be further ahead than one may be.
    TooFar,
}

impl fmt::Display for BulkObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLate => "too late: an attempt had begun",
            Self::PastDeadline => "its deadline would be over",
            Self::KeyTaken => "another timer has its key",
            Self::TooFar => "the new time would be too far ahead",
        })
    }
}

/// A timer on which a bulk job could not act.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BulkFailure {
    /// Which.
    pub id: TimerId,
    /// Why.
    pub why: BulkObstacle,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use super::*;

    const NOW: Time = Time::from_ms(1_700_000_000_000);

    fn refused(bulk: &Bulk) -> String {
        bulk.check(NOW).unwrap_err().to_string()
    }

    #[test]
    fn an_id_is_32_hexadecimal_digits() {
        let id = BulkId(0xab);
        assert_eq!(id.to_string(), "000000000000000000000000000000ab");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["ab", "", "+00000000000000000000000000000ab", "zz0000000000000000000000000000ab"] {
            assert!(text.parse::<BulkId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn jobs_beyond_a_limit_are_refused() {
        let of = |action| Bulk::new(action, Filter::default());
        let limit = MAX_AHEAD_MS as i64;
        assert_eq!(of(BulkAction::Shift { ms: -limit }).check(NOW), Ok(()));
        assert!(refused(&of(BulkAction::Shift { ms: limit + 1 })).contains("at most"));
        assert_eq!(of(BulkAction::MoveTo { due: NOW + MAX_AHEAD_MS }).check(NOW), Ok(()));
        assert!(refused(&of(BulkAction::MoveTo { due: NOW + MAX_AHEAD_MS + 1 })).contains("days ahead"));
        let range = |from, until| Bulk { from, until, ..of(BulkAction::Cancel) };
        assert_eq!(range(NOW, NOW).check(NOW), Ok(()));
        assert!(refused(&range(NOW + 1, NOW)).contains("before it begins"));
        let filter = |bytes: usize| Filter { key_prefix: Some("x".repeat(bytes)), ..Filter::default() };
        assert_eq!(Bulk::new(BulkAction::Purge, filter(MAX_FILTER_BYTES)).check(NOW), Ok(()));
        assert!(refused(&Bulk::new(BulkAction::Purge, filter(MAX_FILTER_BYTES + 1))).contains("2049 bytes"));
    }
}
