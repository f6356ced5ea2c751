//! Operations, from when they are wanted until the store has answered them.
//!
//! An operation is kept as it was asked for. It becomes one of the store when its batch leaves
//! ([`OwnedPartition::complete`](super::partition::OwnedPartition::complete)): only then is it
//! known whether a delivery of its timer is under way.
//!
//! Not in here: the queue, the calls, the effects of an answer.

use std::sync::Arc;

use mtimer_protocol::{ErrorCode, OpReply, RequestOp};
use mtimer_store::Verdict;
use mtimer_store::ops::{BulkAdvance, Trim};
use mtimer_types::{Destination, FailedAttempt, Key, Timer, TimerId};

use super::bulk_work::BulkKind;

/// A key within its destination.
pub(super) type KeyName = (Destination, Key);

/// Where the answer to one operation of a request goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyRef {
    pub(super) request: usize,
    /// Its place in the request.
    pub(super) index: usize,
}

/// An operation that waits for its batch, or for the store's answer.
#[derive(Debug)]
pub(super) enum Pending {
    /// Of a client.
    Asked(Asked),
    /// Of the owner.
    Own(Own),
}

impl Pending {
    /// Whether it takes an at-most-once timer.
    pub(super) fn is_take(&self) -> bool {
        match self {
            Self::Asked(_) => false,
            Self::Own(own) => own.is_take(),
        }
    }
}

/// An operation that a client asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) op: RequestOp,
    pub(super) reply: ReplyRef,
    /// The key that it names or brings along.
    pub(super) key: Option<KeyName>,
    /// The timer that it holds.
    pub(super) held: Option<TimerId>,
}

impl Asked {
    pub(super) fn new(op: RequestOp, reply: ReplyRef) -> Self {
        let key = op.subject().key().map(|(dest, key)| (dest.clone(), key.clone()));
        Self { op, reply, key, held: None }
    }
}

/// An operation of the owner's own.
#[derive(Debug)]
pub(super) enum Own {
    Take {
        id: TimerId,
        /// Failed attempts before it.
        failed: u32,
    },
    Settle(Settling),
    Park(TimerId),
    Unpark(TimerId),
    Trim(Trim),
    BulkAct(BulkActing),
    BulkAdvance {
        advance: BulkAdvance,
        kind: BulkKind,
    },
}

/// A bulk job's act on one timer, on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct BulkActing {
    /// The job.
    pub(super) number: u32,
    pub(super) id: TimerId,
    pub(super) kind: BulkKind,
    /// See [`mtimer_store::ops::BulkAct::adds`].
    pub(super) adds: bool,
    /// The timer is not sent until this is answered.
    pub(super) is_held: bool,
}

/// A verdict on its way to the store.
#[derive(Debug)]
pub(super) struct Settling {
    pub(super) id: TimerId,
    pub(super) verdict: Verdict,
    /// The timer, if it is in memory.
    pub(super) timer: Option<Arc<Timer>>,
    /// The attempt that it ends without success.
    pub(super) attempt: Option<Box<FailedAttempt>>,
    /// The client's message that reports it.
    pub(super) report: Option<usize>,
    /// Of a delivery that is not under way any more: the timer is not on its way to the store by
    /// its state.
    pub(super) late: bool,
}

impl Own {
    /// A verdict on a timer that is not in memory, which no client reports.
    pub(super) fn settle(id: TimerId, verdict: Verdict) -> Self {
        Self::Settle(Settling { id, verdict, timer: None, attempt: None, report: None, late: false })
    }

    /// Whether it takes an at-most-once timer.
    pub(super) fn is_take(&self) -> bool {
        match self {
            Self::Take { .. } => true,
            Self::Settle(_) | Self::Park(_) | Self::Unpark(_) | Self::Trim(_) => false,
            Self::BulkAct(_) | Self::BulkAdvance { .. } => false,
        }
    }

    /// Whether it moves a timer to the park or back.
    pub(super) fn is_about_the_park(&self) -> bool {
        match self {
            Self::Park(_) | Self::Unpark(_) => true,
            Self::Take { .. } | Self::Settle(_) | Self::Trim(_) => false,
            Self::BulkAct(_) | Self::BulkAdvance { .. } => false,
        }
    }

    /// The timer that it is about.
    pub(super) fn id(&self) -> Option<TimerId> {
        match self {
            Self::Take { id, .. } | Self::Park(id) | Self::Unpark(id) => Some(*id),
            Self::Settle(settling) => Some(settling.id),
            Self::BulkAct(acting) => Some(acting.id),
            Self::Trim(_) | Self::BulkAdvance { .. } => None,
        }
    }
}

/// Makes the reply of an operation that was not done.
pub(super) fn failed(code: ErrorCode, message: impl Into<String>) -> OpReply {
    OpReply::Failed { code, message: message.into() }
}
