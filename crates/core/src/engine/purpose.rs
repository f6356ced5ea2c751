//! What operations that are queued or under way are for: whom their answers go to, and what they
//! hold.
//!
//! Not in here: the queue, the calls, what follows from an answer.

use std::sync::Arc;

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_store::{Op, Retained, Verdict};
use mtimer_types::{Destination, Key, Time, Timer, TimerId};

use super::questions::QueryPart;

/// A key within its destination.
pub(super) type KeyName = (Destination, Key);

/// Where the answer to one operation of a request goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyRef {
    pub(super) request: usize,
    /// Its place in the request.
    pub(super) index: usize,
}

/// What an operation in the lane is for.
#[derive(Debug)]
pub(super) enum OpCtx {
    Schedule {
        reply: ReplyRef,
        timer: Arc<Timer>,
        name: Option<KeyName>,
    },
    Cancel {
        reply: ReplyRef,
        /// The timer that it holds.
        id: Option<TimerId>,
        name: Option<KeyName>,
    },
    Reschedule {
        reply: ReplyRef,
        /// The timer that it holds.
        id: Option<TimerId>,
        name: Option<KeyName>,
        due: Time,
    },
    Replay {
        reply: ReplyRef,
        id: TimerId,
    },
    Purge {
        reply: ReplyRef,
    },
    Take {
        id: TimerId,
        failed: u32,
    },
    Settle {
        id: TimerId,
        verdict: Verdict,
        report: Option<usize>,
        /// Of a delivery that is not under way any more: the timer is not on its way to the store
        /// by its state.
        late: bool,
    },
    Park {
        id: TimerId,
        failed: u32,
    },
    Unpark {
        id: TimerId,
    },
    Trim(Retained),
    /// Not an operation but a call; only while an ownership ends.
    Query(QueryPart),
}

impl OpCtx {
    /// The operation anew, if it is one of the owner's own that must be done.
    pub(super) fn own_op(&self) -> Option<Op> {
        match self {
            Self::Take { id, failed } => Some(Op::take(*id, *failed)),
            Self::Settle { id, verdict, .. } => Some(Op::settle(*id, verdict.clone())),
            Self::Park { id, failed } => Some(Op::Park { id: *id, failed: *failed }),
            // The time to fire is filled in when the batch is made.
            Self::Unpark { id } => Some(Op::Unpark { id: *id, fire: Time::ZERO }),
            _ => None,
        }
    }

    /// Where the answer goes, if a client asks for this operation.
    pub(super) fn reply(&self) -> Option<ReplyRef> {
        match self {
            Self::Schedule { reply, .. }
            | Self::Cancel { reply, .. }
            | Self::Reschedule { reply, .. }
            | Self::Replay { reply, .. }
            | Self::Purge { reply } => Some(*reply),
            _ => None,
        }
    }
}

/// Makes the reply of an operation that was not done.
pub(super) fn failed(code: ErrorCode, message: impl Into<String>) -> OpReply {
    OpReply::Failed { code, message: message.into() }
}
