//! The answers of a store to each operation, and the number by which it knows a repeat.

use std::path::Path;
use std::sync::Arc;

#[cfg(doc)]
use mtimer_types::KeyPolicy;
use mtimer_types::{Ended, TimerId};

/// The store's answer to one operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To [`Schedule`](crate::ops::Schedule).
    Schedule(ScheduleAnswer),
    /// To [`Cancel`](crate::ops::Cancel).
    Cancel(CancelAnswer),
    /// To [`Reschedule`](crate::ops::Reschedule).
    Reschedule(RescheduleAnswer),
    /// Applied (or found applied).
    Done,
    /// To a settlement by `Verdict::Retry`: applied, and the timer was stopped, so it is a dead
    /// letter now.
    Died,
    /// The timer is not where the operation needs it; nothing changed.
    Gone,
    /// To [`Replay`](crate::ops::Replay): the key names this live timer; nothing changed.
    KeyTaken(TimerId),
    /// To [`Trim`](crate::ops::Trim).
    Trimmed {
        /// Timers removed.
        removed: u32,
        /// There are more to trim.
        more: bool,
    },
    /// The store would not take the write; nothing changed.
    Refused(Refusal),
}

impl Answer {
    /// Whether it was applied, or found applied.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

/// To [`Schedule`](crate::ops::Schedule).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleAnswer {
    /// Stored, now or by an earlier request with the same content (wherever the timer is by now:
    /// pending, parked, taken, dead).
    Scheduled {
        /// False if it was stored before.
        new: bool,
        /// The live timer whose key it took over, now ended as [`Ended::Replaced`] (wherever it
        /// was; if it had been delivered, later outcomes find nothing). `None` in the answer to a
        /// repeat.
        replaced: Option<TimerId>,
    },
    /// [`KeyPolicy::Keep`]: the key names this live timer; nothing changed.
    Kept {
        /// Which.
        id: TimerId,
        /// An attempt to deliver it may have begun, as far as the store knows, or it was stopped.
        /// The owner knows of deliveries under way that the store does not see.
        begun: bool,
    },
    /// [`KeyPolicy::Create`]: the key names this live timer; nothing changed.
    KeyTaken(TimerId),
    /// The id is in use with other content; nothing changed.
    Conflict,
    /// A timer with this id ended within the repeat horizon; nothing changed.
    Ended(Ended),
}

/// To [`Cancel`](crate::ops::Cancel).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelAnswer {
    /// No delivery starts afterwards, by anyone.
    Cancelled(TimerId),
    /// Delivered, being delivered, possibly so, dead or unconfirmed; no attempt follows.
    TooLate(TimerId),
    /// Too late, and this request has made the timer a dead letter. A repeat gets `TooLate`.
    Died {
        /// Which.
        id: TimerId,
        /// Its failed attempts, a covered one included.
        failed: u32,
    },
    /// Nothing of that name. For an id, [`Ended::CancelledUnseen`] is remembered. (An id that ended
    /// as [`Ended::Cancelled`] within the horizon gives `Cancelled`, one that ended otherwise gives
    /// `NotFound`.)
    NotFound,
}

impl CancelAnswer {
    /// The answer to a repeat of the request, which a store remembers.
    pub const fn to_repeat(self) -> Self {
        match self {
            Self::Died { id, .. } => Self::TooLate(id),
            Self::Cancelled(_) | Self::TooLate(_) | Self::NotFound => self,
        }
    }
}

/// To [`Reschedule`](crate::ops::Reschedule).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RescheduleAnswer {
    /// The old time never fires.
    Rescheduled(TimerId),
    /// As with cancel; nothing changed.
    TooLate(TimerId),
    /// The timer's deadline is before the new time; nothing changed.
    PastDeadline(TimerId),
    /// Nothing of that name.
    NotFound,
}

/// Names a client's cancel or reschedule, so that a repeat gets the old answer. Random, made by the
/// client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub u64);

/// Why a store would not take a write. None of these is final.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Only for operations that add: schedule, reschedule, replay; and for a cancel of a timer that
    /// is not there, which would be remembered.
    #[error("the store is out of memory: raise its limit or let timers drain")]
    OutOfMemory,
    /// Only for operations that add: the disk has too little space left.
    #[error("the store is full: {free} bytes are free at {}: free space there, or let timers drain", path.display())]
    DiskFull {
        /// The data directory.
        path: Arc<Path>,
        /// How many bytes were free.
        free: u64,
    },
    /// The store takes no writes for now, or took none for so long that it may have forgotten
    /// whether this is a repeat.
    #[error("the store takes no writes for now")]
    ReadOnly,
    /// Only for operations that add: the store may drop stored data when its memory is full.
    #[error(
        "the store may evict what it holds when its memory is full: set its maxmemory-policy to noeviction"
    )]
    MayEvict,
    /// Fewer replicas than the durability level asks for confirmed the write in time. It is stored
    /// and may stay.
    #[error("the write was not confirmed by enough replicas in time")]
    NotReplicated,
}
