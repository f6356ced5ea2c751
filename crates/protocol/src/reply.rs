//! Answers to operations on timers.
//!
//! The order of variants and fields is the wire format, see [`crate::message`].

use mtimer_types::{Ended, TimerId};
use serde::{Deserialize, Serialize};

/// The answer to one [`RequestOp`](crate::RequestOp).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OpReply {
    /// Schedule: stored at the broker's durability level.
    Scheduled {
        /// False: an earlier request with the same content had stored it.
        new: bool,
        /// The timer that this one replaced.
        replaced: Option<TimerId>,
    },
    /// Schedule with keep: a live timer has the key.
    Kept {
        /// Which.
        id: TimerId,
        /// An attempt to deliver it has begun, or may have, or it was stopped: its handler may have
        /// read the state of before this request.
        being_delivered: bool,
    },
    /// Cancel: no delivery starts after this answer.
    Cancelled(TimerId),
    /// Cancel, reschedule: delivered, being delivered, or possibly so. After a cancel no further
    /// attempt follows.
    TooLate(TimerId),
    /// Cancel, reschedule, replay, purge: nothing of that name.
    NotFound,
    /// Reschedule: the old time never fires.
    Rescheduled(TimerId),
    /// Replay, purge: done.
    Done,
    /// Schedule with create, replay: this live timer has the key.
    KeyTaken(TimerId),
    /// Schedule: the id is in use with other content.
    Conflict,
    /// Schedule: the timer of this id has ended already, so.
    Ended(Ended),
    /// Not done.
    Failed {
        /// The kind.
        code: ErrorCode,
        /// For people: value, limit, fix.
        message: String,
    },
    /// Not done: this partition is another broker's. Ask there.
    Moved {
        /// Its address.
        owner: String,
    },
}

impl OpReply {
    /// Whether it can be the answer to any operation.
    pub const fn fits_any(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Moved { .. })
    }
}

/// Kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ErrorCode {
    /// The request breaks a limit or a rule; it will be refused again.
    Invalid,
    /// The token does not open this.
    Unauthorized,
    /// No common protocol version.
    Version,
    /// This broker does not own the timer's partition.
    NotOwner,
    /// The store is away; nothing was done. Try again.
    Unavailable,
    /// The store takes no more timers for now; nothing was done.
    StoreFull,
    /// Too much at once; nothing was done. Try again later.
    Overloaded,
    /// Whether it was done is not known. Repeated as it was and in time it gets the answer; later,
    /// `get` tells what is.
    Unknown,
    /// Stored, but not confirmed by enough replicas in time. Repeat it.
    NotReplicated,
    /// The connection broke the protocol.
    Protocol,
    /// The broker is stopping; nothing was done. Try another, or again later.
    Stopping,
    /// A limit that is set for the token or the group is reached; nothing was done. Try again
    /// later.
    LimitReached,
}
