//! One operation that somebody waits for, and operations that travel together.

use std::time::Duration;

use mtimer_protocol::{ClientMessage, ErrorCode, OpReply, Request, RequestOp};
use mtimer_types::{PartitionId, Time};

use crate::RequestError;
use crate::machine::backoff::RETRY;
use crate::machine::caller::Waiting;
use crate::machine::moment::Moment;
use crate::machine::random::Random;

/// Why the outcome of something is unknown that may have left.
const CLOSED: &str = "the client was closed before an answer came";

/// One operation that somebody waits for.
#[derive(Debug)]
pub(crate) struct PendingOp<T> {
    pub(crate) op: RequestOp,
    /// Its timer's.
    pub(crate) partition: PartitionId,
    pub(crate) waiter: Waiter<T>,
}

/// The waiting caller, and the history of the operation so far.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    token: T,
    asked: Moment,
    deadline: Moment,
    sendings: Sendings,
    pace: Pace,
}

/// The known state of an operation's sendings.
#[derive(Debug)]
enum Sendings {
    /// There are none, or each was answered by a word that nothing was done.
    Undone { refusal: Option<Box<RequestError>> },
    /// As [`Sendings::Undone`], and one more is on its way.
    Underway { first: First, refusal: Option<Box<RequestError>> },
    /// Of one at least nobody knows whether it was done: its connection is gone, or the broker says
    /// so.
    Lost { first: First, repeated: bool, refusal: Option<Box<RequestError>> },
    /// A broker said that it is stored, but not confirmed. It stays so after any later sending.
    Stored { first: First, message: String, loss: Loss },
}

/// Whether an answer is missing since a broker said that an operation is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    None,
    Lost,
    /// And it was sent again since.
    Repeated,
}

/// How often an operation was put off.
#[derive(Clone, Copy, Default, Debug)]
struct Pace {
    /// It has followed a [`OpReply::Moved`] without a pause.
    followed: bool,
    pauses: u32,
}

/// When an operation was first sent, by both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct First {
    pub(crate) time: Time,
    /// Until when it may be repeated: the repeat horizon at the latest.
    pub(crate) horizon: Moment,
}

/// An operation has ended.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    pub(crate) call: T,
    pub(crate) answer: Result<OpReply, RequestError>,
}

/// The next step of an operation that was sent.
#[derive(Debug)]
pub(crate) enum RetryPlan<T> {
    /// It has ended.
    Ended(Answered<T>),
    /// Sent again at once.
    Now(PendingOp<T>),
    /// Sent again at that time. `astray`: or as soon as its partition is another broker's.
    At { again: Moment, astray: bool, call: PendingOp<T> },
}

impl<T: Waiting> Waiter<T> {
    pub(crate) fn new(token: T, asked: Moment, timeout: Duration) -> Self {
        let sendings = Sendings::Undone { refusal: None };
        Self { token, asked, deadline: asked + timeout, sendings, pace: Pace::default() }
    }

    pub(crate) fn answer(self, answer: Result<OpReply, RequestError>) -> Answered<T> {
        Answered { call: self.token, answer }
    }

    /// Nobody waits, and nothing has left yet.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.first().is_none() && self.token.is_abandoned()
    }

    /// Since when it may have been done.
    pub(crate) const fn first(&self) -> Option<First> {
        match &self.sendings {
            Sendings::Undone { .. } => None,
            Sendings::Underway { first, .. }
            | Sendings::Lost { first, .. }
            | Sendings::Stored { first, .. } => Some(*first),
        }
    }

    /// When it is given up.
    pub(crate) fn limit(&self) -> Moment {
        match &self.sendings {
            Sendings::Undone { .. } => self.deadline,
            Sendings::Underway { first, .. } | Sendings::Stored { first, loss: Loss::None, .. } => {
                first.horizon.min(self.deadline)
            }
            Sendings::Lost { first, .. } | Sendings::Stored { first, .. } => first.horizon,
        }
    }

    /// It is put into a frame. Something new goes out as first sent at `fresh`.
    pub(crate) fn depart(&mut self, fresh: First) {
        if let Sendings::Undone { refusal } = &mut self.sendings {
            self.sendings = Sendings::Underway { first: fresh, refusal: refusal.take() };
        }
    }

    /// Its frame is about to be written. Says whether that repeats a sending that may have been
    /// done.
    pub(crate) fn departed(&mut self) -> bool {
        match &mut self.sendings {
            Sendings::Undone { .. } | Sendings::Underway { .. } => false,
            Sendings::Lost { repeated, .. } => !std::mem::replace(repeated, true),
            Sendings::Stored { loss, .. } => {
                let repeats = *loss == Loss::Lost;
                if repeats {
                    *loss = Loss::Repeated;
                }
                repeats
            }
        }
    }

    /// It was sent, and nobody knows whether it was done: the connection is gone, or the broker
    /// says so.
    pub(crate) fn lost(&mut self) {
        match &mut self.sendings {
            Sendings::Undone { .. } => {}
            Sendings::Underway { first, refusal } => {
                self.sendings = Sendings::Lost { first: *first, repeated: false, refusal: refusal.take() };
            }
            Sendings::Lost { repeated, .. } => *repeated = false,
            Sendings::Stored { loss, .. } => *loss = Loss::Lost,
        }
    }

    /// The sending at hand has done nothing.
    fn undone(&mut self) {
        if let Sendings::Underway { refusal, .. } = &mut self.sendings {
            self.sendings = Sendings::Undone { refusal: refusal.take() };
        }
    }

    /// A broker said that it is stored, but not confirmed.
    fn stored(&mut self, message: String) {
        match &mut self.sendings {
            Sendings::Undone { .. } => {}
            Sendings::Underway { first, .. } | Sendings::Lost { first, .. } => {
                self.sendings = Sendings::Stored { first: *first, message, loss: Loss::None };
            }
            Sendings::Stored { loss, .. } => *loss = Loss::None,
        }
    }

    /// Remembers why it was put off.
    fn refused(&mut self, error: RequestError) {
        match &mut self.sendings {
            Sendings::Undone { refusal }
            | Sendings::Underway { refusal, .. }
            | Sendings::Lost { refusal, .. } => *refusal = Some(Box::new(error)),
            Sendings::Stored { .. } => {}
        }
    }

    /// Whether every sending but the one at hand is known to have done nothing.
    const fn is_fresh(&self) -> bool {
        match &self.sendings {
            Sendings::Undone { .. } | Sendings::Underway { .. } => true,
            Sendings::Lost { .. } | Sendings::Stored { .. } => false,
        }
    }

    pub(crate) fn give_up(mut self, now: Moment, reason: &str) -> Answered<T> {
        let ms = now.since(self.asked).as_millis() as u64;
        let error = match &mut self.sendings {
            Sendings::Undone { refusal } | Sendings::Underway { refusal, .. } => match refusal.take() {
                Some(error) => *error,
                None => RequestError::NotSent { ms, reason: reason.to_owned() },
            },
            Sendings::Lost { .. } => unknown(reason),
            Sendings::Stored { message, .. } => {
                RequestError::NotReplicated { message: std::mem::take(message) }
            }
        };
        self.answer(Err(error))
    }

    /// The client is closed.
    pub(crate) fn close(self) -> Answered<T> {
        let error = match &self.sendings {
            Sendings::Undone { .. } => RequestError::Closed,
            Sendings::Underway { .. } => unknown(CLOSED),
            Sendings::Lost { .. } | Sendings::Stored { .. } => unknown("the client was closed"),
        };
        self.answer(Err(error))
    }
}

impl<T: Waiting> PendingOp<T> {
    pub(crate) fn new(op: RequestOp, partitions: u16, waiter: Waiter<T>) -> Self {
        let partition = op.subject().partition(partitions);
        Self { op, partition, waiter }
    }

    /// Takes in the answer.
    pub(crate) fn answered(self, reply: OpReply, now: Moment, random: &mut impl Random) -> RetryPlan<T> {
        match reply {
            OpReply::Failed { code, message } => self.failed(code, message, now, random),
            OpReply::Moved { owner } => self.moved(&owner, now, random),
            reply => RetryPlan::Ended(self.waiter.answer(Ok(reply))),
        }
    }

    fn moved(mut self, owner: &str, now: Moment, random: &mut impl Random) -> RetryPlan<T> {
        self.waiter.undone();
        if !std::mem::replace(&mut self.waiter.pace.followed, true) {
            return RetryPlan::Now(self);
        }
        let message = format!("the partition is moving, to {owner} at last sight");
        self.waiter.refused(RequestError::Refused { code: ErrorCode::NotOwner, message });
        self.again(now, true, random)
    }

    fn failed(
        mut self,
        code: ErrorCode,
        message: String,
        now: Moment,
        random: &mut impl Random,
    ) -> RetryPlan<T> {
        let waiter = &mut self.waiter;
        match code {
            // As with a lost connection: a repeat finds out, as long as it comes in time.
            ErrorCode::Unknown => {
                waiter.lost();
                waiter.refused(RequestError::Unknown { reason: message });
            }
            ErrorCode::NotReplicated => waiter.stored(message),
            ErrorCode::NotOwner
            | ErrorCode::Unavailable
            | ErrorCode::Overloaded
            | ErrorCode::LimitReached
            | ErrorCode::Stopping => {
                waiter.undone();
                waiter.refused(RequestError::Refused { code, message });
            }
            ErrorCode::Invalid
            | ErrorCode::Unauthorized
            | ErrorCode::Version
            | ErrorCode::StoreFull
            | ErrorCode::Protocol => {
                // A refusal speaks of this sending alone: an earlier one may have been done.
                let ended = match waiter.is_fresh() {
                    true => self.waiter.answer(Err(RequestError::Refused { code, message })),
                    false => self.waiter.give_up(now, &format!("a repeat was refused: {message}")),
                };
                return RetryPlan::Ended(ended);
            }
        }
        self.again(now, code == ErrorCode::NotOwner, random)
    }

    fn again(mut self, now: Moment, astray: bool, random: &mut impl Random) -> RetryPlan<T> {
        let again = now + RETRY.jittered(self.waiter.pace.pauses, random.jitter());
        self.waiter.pace.pauses += 1;
        if again >= self.waiter.limit() {
            return RetryPlan::Ended(self.waiter.give_up(now, "the broker could not do it in time"));
        }
        RetryPlan::At { again, astray, call: self }
    }
}

/// Operations that travel together.
#[derive(Debug)]
pub(crate) struct RequestFrame<T> {
    pub(crate) connection: u64,
    pub(crate) first: First,
    pub(crate) corr: u64,
    /// The message for the wire: a request with the operations.
    pub(crate) message: ClientMessage,
    /// The rest of them, in the same order.
    pub(crate) waiters: Vec<(PartitionId, Waiter<T>)>,
}

impl<T: Waiting> RequestFrame<T> {
    pub(crate) fn new(
        connection: u64,
        first: First,
        corr: u64,
        ops: Vec<RequestOp>,
        waiters: Vec<(PartitionId, Waiter<T>)>,
    ) -> Self {
        let message = ClientMessage::Request(Request { corr, first_sent: first.time, ops });
        Self { connection, first, corr, message, waiters }
    }

    pub(crate) fn ops(&self) -> &[RequestOp] {
        match &self.message {
            ClientMessage::Request(request) => &request.ops,
            _ => &[],
        }
    }

    pub(crate) fn into_calls(self) -> impl Iterator<Item = PendingOp<T>> {
        let ops = match self.message {
            ClientMessage::Request(request) => request.ops,
            _ => Vec::new(),
        };
        ops.into_iter().zip(self.waiters).map(|(op, (partition, waiter))| PendingOp { op, partition, waiter })
    }

    /// It cannot be sent: an error to all who wait.
    pub(crate) fn fail(self, now: Moment, reason: &str) -> impl Iterator<Item = Answered<T>> {
        self.waiters.into_iter().map(move |(_, waiter)| {
            if waiter.is_fresh() {
                let message = reason.to_owned();
                waiter.answer(Err(RequestError::Refused { code: ErrorCode::Invalid, message }))
            } else {
                waiter.give_up(now, reason)
            }
        })
    }
}

fn unknown(reason: &str) -> RequestError {
    RequestError::Unknown { reason: reason.to_owned() }
}
