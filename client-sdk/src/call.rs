//! One operation that somebody waits for, and operations that travel together.

use std::time::Duration;

use mtimer_protocol::{ClientMessage, ErrorCode, OpReply, Request, RequestOp};
use mtimer_types::{PartitionId, Time};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::RequestError;
use crate::backoff::RETRY;
use crate::batch::Part;

/// One operation that somebody waits for.
#[derive(Debug)]
pub(crate) struct PendingOp {
    pub(crate) op: RequestOp,
    /// Its timer's.
    pub(crate) partition: PartitionId,
    pub(crate) waiter: Waiter,
}

impl PendingOp {
    pub(crate) fn new(op: RequestOp, partitions: u16, waiter: Waiter) -> Self {
        let partition = op.subject().partition(partitions);
        Self { op, partition, waiter }
    }
}

/// Who waits, and what happened to the operation so far.
#[derive(Debug)]
pub(crate) struct Waiter {
    reply: ReplyTarget,
    asked: Instant,
    deadline: Instant,
    /// Since when it may have been done.
    pub(crate) first: Option<First>,
    /// It was sent, and no answer said whether it was done.
    lost: bool,
    /// The next sending repeats one that may have been done.
    pub(crate) repeats: bool,
    /// It waits because its partition is, or was, another broker's.
    pub(crate) astray: bool,
    followed: bool,
    tries: u32,
    last: Option<Box<RequestError>>,
}

/// Where the answer goes. With it the operation's permits are released.
#[derive(Debug)]
pub(crate) enum ReplyTarget {
    /// To a call for this operation alone.
    Alone(oneshot::Sender<Result<OpReply, RequestError>>, OwnedSemaphorePermit),
    /// To one for many.
    Together(Part),
}

/// When an operation was first sent, by both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct First {
    pub(crate) time: Time,
    /// Until when it may be repeated: the repeat horizon at the latest.
    pub(crate) horizon: Instant,
}

/// What becomes of an operation that was not done.
#[derive(Debug)]
pub(crate) enum RetryPlan {
    /// The caller has its answer.
    Answered,
    /// Sent again at once.
    Now(PendingOp),
    /// Sent again at that time.
    At(Instant, PendingOp),
}

impl Waiter {
    pub(crate) fn new(reply: ReplyTarget, asked: Instant, timeout: Duration) -> Self {
        Self {
            reply,
            asked,
            deadline: asked + timeout,
            first: None,
            lost: false,
            repeats: false,
            astray: false,
            followed: false,
            tries: 0,
            last: None,
        }
    }

    pub(crate) fn answer(self, answer: Result<OpReply, RequestError>) {
        match self.reply {
            // The caller may have stopped waiting.
            ReplyTarget::Alone(reply, _permits) => _ = reply.send(answer),
            ReplyTarget::Together(part) => part.answer(answer),
        }
    }

    /// Nobody waits, and nothing has left yet.
    pub(crate) fn abandoned(&self) -> bool {
        self.first.is_none()
            && match &self.reply {
                ReplyTarget::Alone(reply, _) => reply.is_closed(),
                ReplyTarget::Together(part) => part.is_abandoned(),
            }
    }

    /// Whether every sending but the one at hand is known to have done nothing.
    fn is_fresh(&self) -> bool {
        !self.lost && !self.is_stored()
    }

    /// Whether a broker said that it is stored, but not confirmed.
    fn is_stored(&self) -> bool {
        matches!(self.last.as_deref(), Some(RequestError::NotReplicated { .. }))
    }

    /// When it is given up.
    pub(crate) fn limit(&self) -> Instant {
        match self.first {
            Some(first) if self.lost => first.horizon,
            Some(first) => first.horizon.min(self.deadline),
            None => self.deadline,
        }
    }

    pub(crate) fn give_up(mut self, now: Instant, reason: &str) {
        let ms = now.saturating_duration_since(self.asked).as_millis() as u64;
        let error = match self.last.take().map(|last| *last) {
            Some(error @ RequestError::NotReplicated { .. }) => error,
            _ if self.lost => unknown(reason),
            Some(error) => error,
            None => RequestError::NotSent { ms, reason: reason.to_owned() },
        };
        self.answer(Err(error));
    }

    /// It was sent, and nobody knows whether it was done: the connection is gone, or the broker
    /// says so.
    pub(crate) fn lost(&mut self) {
        (self.lost, self.repeats) = (true, true);
    }
}

impl PendingOp {
    /// Takes in the answer.
    pub(crate) fn answered(self, reply: OpReply, now: Instant) -> RetryPlan {
        match reply {
            OpReply::Failed { code, message } => self.failed(code, message, now),
            OpReply::Moved { owner } => self.moved(owner, now),
            reply => {
                self.waiter.answer(Ok(reply));
                RetryPlan::Answered
            }
        }
    }

    fn moved(mut self, owner: String, now: Instant) -> RetryPlan {
        let waiter = &mut self.waiter;
        if waiter.is_fresh() {
            waiter.first = None;
        }
        waiter.astray = true;
        if !std::mem::replace(&mut waiter.followed, true) {
            return RetryPlan::Now(self);
        }
        let message = format!("the partition is moving, to {owner} at last sight");
        self.again(RequestError::Refused { code: ErrorCode::NotOwner, message }, now)
    }

    fn failed(mut self, code: ErrorCode, message: String, now: Instant) -> RetryPlan {
        let waiter = &mut self.waiter;
        waiter.astray = code == ErrorCode::NotOwner;
        let error = match code {
            // As with a lost connection: a repeat finds out, as long as it comes in time.
            ErrorCode::Unknown => {
                waiter.lost();
                RequestError::Unknown { reason: message }
            }
            ErrorCode::NotReplicated => {
                waiter.lost = false;
                RequestError::NotReplicated { message }
            }
            ErrorCode::NotOwner
            | ErrorCode::Unavailable
            | ErrorCode::Overloaded
            | ErrorCode::LimitReached
            | ErrorCode::Stopping => {
                if waiter.is_fresh() {
                    waiter.first = None;
                }
                RequestError::Refused { code, message }
            }
            // A refusal speaks of this sending alone: an earlier one may have been done.
            _ if !waiter.is_fresh() => {
                self.waiter.give_up(now, &format!("a repeat was refused: {message}"));
                return RetryPlan::Answered;
            }
            _ => {
                self.waiter.answer(Err(RequestError::Refused { code, message }));
                return RetryPlan::Answered;
            }
        };
        self.again(error, now)
    }

    fn again(mut self, error: RequestError, now: Instant) -> RetryPlan {
        let waiter = &mut self.waiter;
        let again = now + RETRY.jittered(waiter.tries, rand::random());
        waiter.tries += 1;
        // What was stored once stays "stored, not confirmed", whatever a later try meets.
        if !waiter.is_stored() {
            waiter.last = Some(Box::new(error));
        }
        if again >= waiter.limit() {
            self.waiter.give_up(now, "the broker could not do it in time");
            return RetryPlan::Answered;
        }
        RetryPlan::At(again, self)
    }
}

/// Operations that travel together.
#[derive(Debug)]
pub(crate) struct RequestFrame {
    pub(crate) session: u64,
    pub(crate) first: First,
    pub(crate) corr: u64,
    /// What goes on the wire: a request with the operations.
    pub(crate) message: ClientMessage,
    /// The rest of them, in the same order.
    pub(crate) waiters: Vec<(PartitionId, Waiter)>,
}

impl RequestFrame {
    pub(crate) fn new(
        session: u64,
        first: First,
        corr: u64,
        ops: Vec<RequestOp>,
        waiters: Vec<(PartitionId, Waiter)>,
    ) -> Self {
        let message = ClientMessage::Request(Request { corr, first_sent: first.time, ops });
        Self { session, first, corr, message, waiters }
    }

    pub(crate) fn ops(&self) -> &[RequestOp] {
        match &self.message {
            ClientMessage::Request(request) => &request.ops,
            _ => &[],
        }
    }

    pub(crate) fn into_calls(self) -> impl Iterator<Item = PendingOp> {
        let ops = match self.message {
            ClientMessage::Request(request) => request.ops,
            _ => Vec::new(),
        };
        ops.into_iter().zip(self.waiters).map(|(op, (partition, waiter))| PendingOp { op, partition, waiter })
    }

    /// It cannot be sent: an error to all who wait.
    pub(crate) fn fail(self, now: Instant, reason: &str) {
        for (_, waiter) in self.waiters {
            if waiter.is_fresh() {
                let message = reason.to_owned();
                waiter.answer(Err(RequestError::Refused { code: ErrorCode::Invalid, message }));
            } else {
                waiter.give_up(now, reason);
            }
        }
    }
}

pub(crate) fn unknown(reason: &str) -> RequestError {
    RequestError::Unknown { reason: reason.to_owned() }
}
