//! Operations on timers, and their answers.
//!
//! The order of variants and fields is the wire format, see [`crate::message`].

use std::sync::Arc;

use mtimer_types::limits::MAX_BATCH;
use mtimer_types::{Ended, KeyPolicy, Target, Time, Timer, TimerId};
use serde::{Deserialize, Deserializer, Serialize};

use crate::bounded::at_most;

/// A batch of operations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, comes back in the reply.
    pub corr: u64,
    /// When these operations were first sent, by the cluster clock: the same in every repeat. Older
    /// than the repeat horizon (30 s), all of them are answered [`ErrorCode::Unknown`].
    pub first_sent: Time,
    /// At most 2,000. They are independent of each other and may be applied in any order.
    #[serde(deserialize_with = "at_most::<MAX_BATCH, _, _>")]
    pub ops: Vec<RequestOp>,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RequestOp {
    /// Schedule a timer.
    Schedule {
        /// The timer.
        #[serde(deserialize_with = "shared")]
        timer: Arc<Timer>,
        /// If its key is taken.
        policy: KeyPolicy,
    },
    /// Cancel a timer.
    Cancel {
        /// Which.
        target: Target,
        /// Random, the same in every repeat.
        request: u64,
    },
    /// Give a timer another due time.
    Reschedule {
        /// Which.
        target: Target,
        /// The new due time.
        due: Time,
        /// Random, the same in every repeat.
        request: u64,
    },
    /// Deliver a dead or unconfirmed timer again, now, with a new retry budget.
    Replay {
        /// Which.
        id: TimerId,
    },
    /// Remove a dead or unconfirmed timer.
    Purge {
        /// Which.
        id: TimerId,
    },
}

/// Reads a timer into the place where it stays: it is shared from then on.
fn shared<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<Timer>, D::Error> {
    Timer::deserialize(d).map(Arc::new)
}

/// The answer to one [`RequestOp`].
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
