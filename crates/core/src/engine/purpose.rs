//! What operations that are queued or under way are for: whom their answers go to, and what they
//! hold.
//!
//! Not in here: the queue, the calls, what follows from an answer.

use std::sync::Arc;

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_store::ops::{Park, Unpark};
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
        /// With keep: an attempt to deliver the timer that has the key may have begun.
        begun: bool,
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
            Self::Park { id, failed } => Some(Op::Park(Park { id: *id, failed: *failed })),
            // The time to fire is filled in when the batch is made.
            Self::Unpark { id } => Some(Op::Unpark(Unpark { id: *id, fire: Time::ZERO })),
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

#[cfg(test)]
mod tests {
    use mtimer_types::PartitionId;

    use super::*;

    const REPLY: ReplyRef = ReplyRef { request: 3, index: 4 };

    fn id() -> TimerId {
        TimerId::with_width(Time::from_ms(5), mtimer_types::SlotWidth::Second, PartitionId(0), 6)
    }

    /// Those that clients ask for.
    fn of_clients() -> Vec<OpCtx> {
        let dest = Destination::new("test", "a").unwrap();
        let timer = Arc::new(Timer::new(id(), dest, Time::from_ms(5)));
        vec![
            OpCtx::Schedule { reply: REPLY, timer, name: None, begun: false },
            OpCtx::Cancel { reply: REPLY, id: Some(id()), name: None },
            OpCtx::Reschedule { reply: REPLY, id: None, name: None, due: Time::from_ms(7) },
            OpCtx::Replay { reply: REPLY, id: id() },
            OpCtx::Purge { reply: REPLY },
        ]
    }

    #[test]
    fn what_a_client_asks_for_is_answered_and_never_repeated_by_the_owner() {
        for ctx in of_clients() {
            let reply = ctx.reply().map(|reply| (reply.request, reply.index));
            assert_eq!(reply, Some((REPLY.request, REPLY.index)), "{ctx:?}");
            assert!(ctx.own_op().is_none(), "{ctx:?}");
        }
    }

    #[test]
    fn what_the_owner_has_to_do_is_the_same_operation_when_it_is_repeated() {
        let (id, verdict) = (id(), Verdict::Ack);
        let cases = [
            (OpCtx::Take { id, failed: 2 }, Op::take(id, 2)),
            (
                OpCtx::Settle { id, verdict: verdict.clone(), report: Some(1), late: false },
                Op::settle(id, verdict),
            ),
            (OpCtx::Park { id, failed: 2 }, Op::Park(Park { id, failed: 2 })),
            (OpCtx::Unpark { id }, Op::Unpark(Unpark { id, fire: Time::ZERO })),
        ];
        for (ctx, op) in cases {
            assert_eq!(format!("{:?}", ctx.own_op()), format!("{:?}", Some(op)));
            assert!(ctx.reply().is_none(), "{ctx:?}");
        }
    }

    #[test]
    fn a_trim_is_neither_answered_nor_repeated() {
        let trim = OpCtx::Trim(Retained::Dead);
        assert!(trim.reply().is_none() && trim.own_op().is_none());
    }
}
