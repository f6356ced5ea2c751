//! Operations on their way: what is queued, sent, repeated, and when it is given up.
//!
//! Invariant: an operation that may have arrived somewhere is sent again only in the same frame (same number, same
//! operations, same `first_sent`) or with the same `first_sent`, and never later than the repeat horizon; after that
//! its outcome is unknown. Only a broker's word that nothing was done makes it fresh again.
//!
//! Not in here: sockets, tasks, the clock. The owner passes the time in and puts the frames on the wire.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, OpReply, Request, RequestOp};
use mtimer_types::limits::{MAX_BATCH, MAX_FRAME, REPEAT_HORIZON_MS};
use mtimer_types::{Target, Time};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::RequestError;
use crate::backoff::backoff;

/// Most bytes of operations in a frame: what else waits for the connection need not wait long.
const FRAME_BYTES: usize = 1024 * 1024;
/// Delay before an operation that could not be done yet is sent again, and how far the delay grows.
const RETRY_FIRST: Duration = Duration::from_millis(25);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// One operation that somebody waits for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) op: RequestOp,
    pub(crate) waiter: Waiter,
}

/// Who waits, and what happened to the operation so far.
#[derive(Debug)]
pub(crate) struct Waiter {
    reply: oneshot::Sender<Result<OpReply, RequestError>>,
    /// Its part of the room for operations on their way.
    _room: OwnedSemaphorePermit,
    asked: Instant,
    deadline: Instant,
    /// Since when it may have been done.
    first: Option<First>,
    /// It was sent and the connection lost before an answer came.
    lost: bool,
    tries: u32,
    last: Option<RequestError>,
}

/// When an operation was first sent, by both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct First {
    time: Time,
    at: Instant,
}

impl First {
    fn horizon(self) -> Instant {
        self.at + Duration::from_millis(REPEAT_HORIZON_MS)
    }
}

/// Operations that travel together.
#[derive(Debug)]
pub(crate) struct Frame {
    first: First,
    repeated: bool,
    request: Request,
    waiters: Vec<Waiter>,
}

impl Frame {
    /// What goes on the wire; [`Frame::put_back`] follows.
    pub(crate) fn take_request(&mut self) -> Request {
        let empty = Request { corr: self.request.corr, first_sent: self.request.first_sent, ops: Vec::new() };
        std::mem::replace(&mut self.request, empty)
    }

    /// After [`Frame::take_request`].
    pub(crate) fn put_back(&mut self, request: Request) {
        self.request = request;
    }

    /// It cannot be sent: an error to all who wait.
    pub(crate) fn fail(self, reason: &str) {
        for waiter in self.waiters {
            let error = match waiter.lost {
                true => unknown(reason),
                false => RequestError::Refused { code: ErrorCode::Invalid, message: reason.to_owned() },
            };
            waiter.answer(Err(error));
        }
    }

    /// How many operations it repeats.
    pub(crate) fn repeats(&self) -> usize {
        if self.repeated { self.waiters.len() } else { 0 }
    }
}

impl Waiter {
    pub(crate) fn new(
        reply: oneshot::Sender<Result<OpReply, RequestError>>,
        room: OwnedSemaphorePermit,
        asked: Instant,
        timeout: Duration,
    ) -> Self {
        let deadline = asked + timeout;
        Self { reply, _room: room, asked, deadline, first: None, lost: false, tries: 0, last: None }
    }

    fn answer(self, answer: Result<OpReply, RequestError>) {
        // Whoever asked may have stopped waiting.
        let _ = self.reply.send(answer);
    }

    /// Nobody waits, and nothing has left yet.
    fn abandoned(&self) -> bool {
        self.first.is_none() && self.reply.is_closed()
    }

    /// Whether every sending but the one at hand is known to have done nothing.
    fn is_fresh(&self) -> bool {
        !self.lost && !matches!(self.last, Some(RequestError::NotReplicated { .. }))
    }

    /// When it is given up.
    fn limit(&self) -> Instant {
        match self.first {
            Some(first) if self.lost => first.horizon(),
            Some(first) => first.horizon().min(self.deadline),
            None => self.deadline,
        }
    }

    fn give_up(mut self, now: Instant, reason: &str) {
        let ms = now.saturating_duration_since(self.asked).as_millis() as u64;
        let error = match self.last.take() {
            Some(error @ RequestError::NotReplicated { .. }) => error,
            _ if self.lost => unknown(reason),
            Some(error) => error,
            None => RequestError::NotSent { ms, reason: reason.to_owned() },
        };
        self.answer(Err(error));
    }
}

/// All operations of a client.
#[derive(Debug)]
pub(crate) struct Requests {
    max_ops: usize,
    max_bytes: usize,
    queue: VecDeque<Call>,
    /// To be queued again at that time.
    waiting: BTreeMap<(Instant, u64), Call>,
    /// Sent over a connection that was lost.
    repeats: VecDeque<Frame>,
    sent: BTreeMap<u64, Frame>,
    next_number: u64,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            max_ops: MAX_BATCH,
            max_bytes: FRAME_BYTES,
            queue: VecDeque::new(),
            waiting: BTreeMap::new(),
            repeats: VecDeque::new(),
            sent: BTreeMap::new(),
            next_number: 1,
        }
    }

    /// Takes on a broker's limits.
    pub(crate) fn limits(&mut self, max_frame: u32, max_batch: u32) {
        self.max_ops = (max_batch as usize).clamp(1, MAX_BATCH);
        self.max_bytes = FRAME_BYTES.min(max_frame.min(MAX_FRAME as u32) as usize / 2);
    }

    pub(crate) fn push(&mut self, call: Call) {
        self.queue.push_back(call);
    }

    /// Whether anything waits for an answer or for its turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.waiting.is_empty() && self.repeats.is_empty() && self.sent.is_empty()
    }

    /// Whether anything was sent over this connection and not answered.
    pub(crate) fn none_sent(&self) -> bool {
        self.sent.is_empty()
    }

    /// The next frame for the wire, if there is something to send; [`Requests::sent`] follows.
    pub(crate) fn next(&mut self, time: Time, now: Instant) -> Option<Frame> {
        if let Some(frame) = self.repeats.pop_front() {
            return Some(frame);
        }
        while self.queue.front().is_some_and(|c| c.waiter.abandoned()) {
            self.queue.pop_front();
        }
        let before = self.queue.front()?.waiter.first;
        let first = before.unwrap_or(First { time, at: now });
        let (mut ops, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(call) = self.queue.pop_front() {
            if call.waiter.abandoned() {
                continue;
            }
            bytes += op_bytes(&call.op);
            let full = ops.len() == self.max_ops || (bytes > self.max_bytes && !ops.is_empty());
            if full || call.waiter.first != before {
                self.queue.push_front(call);
                break;
            }
            ops.push(call.op);
            waiters.push(Waiter { first: Some(first), ..call.waiter });
        }
        let corr = self.next_number;
        self.next_number += 1;
        let request = Request { corr, first_sent: first.time, ops };
        Some(Frame { first, repeated: false, request, waiters })
    }

    /// The frame is about to be written.
    pub(crate) fn sent(&mut self, frame: Frame) {
        self.sent.insert(frame.request.corr, frame);
    }

    /// Takes in a reply. An error is a breach of the protocol, and changes nothing.
    pub(crate) fn reply(
        &mut self,
        corr: u64,
        replies: Vec<OpReply>,
        now: Instant,
    ) -> Result<u64, &'static str> {
        if corr == 0 || corr >= self.next_number {
            return Err("a reply to a request that was never made");
        }
        // Given up already, or answered before over another connection.
        let Some(frame) = self.sent.get(&corr) else { return Ok(0) };
        if frame.request.ops.len() != replies.len() {
            return Err("a reply with too few or too many answers");
        }
        if !frame.request.ops.iter().zip(&replies).all(|(op, reply)| fits(op, reply)) {
            return Err("an answer that does not fit its operation");
        }
        let Some(frame) = self.sent.remove(&corr) else { return Ok(0) };
        let mut retried = 0;
        for ((op, waiter), reply) in frame.request.ops.into_iter().zip(frame.waiters).zip(replies) {
            retried += u64::from(self.answer(Call { op, waiter }, reply, now));
        }
        Ok(retried)
    }

    /// Answers one operation, or files it for another try; says which.
    fn answer(&mut self, mut call: Call, reply: OpReply, now: Instant) -> bool {
        let OpReply::Failed { code, message } = reply else {
            call.waiter.answer(Ok(reply));
            return false;
        };
        let waiter = &mut call.waiter;
        let error = match code {
            // As with a lost connection: a repeat finds out, as long as it comes in time.
            ErrorCode::Unknown => {
                waiter.lost = true;
                RequestError::Unknown { reason: message }
            }
            ErrorCode::NotReplicated => {
                waiter.lost = false;
                RequestError::NotReplicated { message }
            }
            ErrorCode::NotOwner | ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::Stopping => {
                if waiter.is_fresh() {
                    waiter.first = None;
                }
                RequestError::Refused { code, message }
            }
            // The first sending may have found room where the repeat did not.
            ErrorCode::StoreFull if !waiter.is_fresh() => {
                call.waiter.give_up(now, &message);
                return false;
            }
            _ => {
                call.waiter.answer(Err(RequestError::Refused { code, message }));
                return false;
            }
        };
        let again = now + backoff(waiter.tries, RETRY_FIRST, RETRY_MOST);
        waiter.tries += 1;
        // What was stored once stays "stored, not confirmed", whatever a later try meets.
        if !matches!(waiter.last, Some(RequestError::NotReplicated { .. })) {
            waiter.last = Some(error);
        }
        if again >= waiter.limit() {
            call.waiter.give_up(now, "the broker could not do it in time");
            return false;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.insert((again, number), call);
        true
    }

    /// The connection is gone: what was sent over it is to be repeated over the next.
    pub(crate) fn disconnected(&mut self) {
        for mut frame in std::mem::take(&mut self.sent).into_values() {
            frame.repeated = true;
            frame.waiters.iter_mut().for_each(|w| w.lost = true);
            self.repeats.push_back(frame);
        }
    }

    /// Queues what has waited long enough, and gives up what has waited too long. Says whether something was queued.
    pub(crate) fn sweep(&mut self, now: Instant, reason: &str) -> bool {
        let mut queued = false;
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            self.queue.push_back(entry.remove());
            queued = true;
        }
        if self.queue.iter().any(|c| c.waiter.limit() <= now) {
            let (late, rest): (VecDeque<_>, _) =
                std::mem::take(&mut self.queue).into_iter().partition(|c| c.waiter.limit() <= now);
            self.queue = rest;
            late.into_iter().for_each(|c| c.waiter.give_up(now, reason));
        }
        let late = |frame: &Frame| frame.first.horizon() <= now;
        if self.repeats.iter().any(late) || self.sent.values().any(late) {
            let (late_repeats, repeats) = std::mem::take(&mut self.repeats).into_iter().partition(late);
            let (late_sent, sent): (BTreeMap<_, _>, _) =
                std::mem::take(&mut self.sent).into_iter().partition(|(_, frame)| late(frame));
            (self.repeats, self.sent) = (repeats, sent);
            let late: VecDeque<Frame> = late_repeats;
            for waiter in late.into_iter().chain(late_sent.into_values()).flat_map(|f| f.waiters) {
                waiter.answer(Err(unknown("no answer within the 30 s in which it could be repeated")));
            }
        }
        queued
    }

    /// The client is closed: nothing is sent or answered any more.
    pub(crate) fn close(&mut self) {
        let queued = std::mem::take(&mut self.queue).into_iter();
        let waiting = std::mem::take(&mut self.waiting).into_values();
        for call in queued.chain(waiting) {
            let done = call.waiter.first.is_some();
            let error = if done { unknown("the client was closed") } else { RequestError::Closed };
            call.waiter.answer(Err(error));
        }
        let frames =
            std::mem::take(&mut self.repeats).into_iter().chain(std::mem::take(&mut self.sent).into_values());
        for waiter in frames.flat_map(|f| f.waiters) {
            waiter.answer(Err(unknown("the client was closed before an answer came")));
        }
    }
}

fn unknown(reason: &str) -> RequestError {
    RequestError::Unknown { reason: reason.to_owned() }
}

/// Most bytes that an operation takes on the wire.
pub(crate) fn op_bytes(op: &RequestOp) -> usize {
    const NUMBERS: usize = 128;
    NUMBERS
        + match op {
            RequestOp::Schedule { timer, .. } => {
                let key = timer.key.as_ref().map_or(0, |k| k.as_str().len());
                let tiers = timer.retry.as_ref().map_or(0, |r| r.0.len() * 5);
                timer.dest.group().len() + timer.dest.app().len() + key + tiers + timer.payload.len()
            }
            RequestOp::Cancel { target: Target::Key(dest, key), .. }
            | RequestOp::Reschedule { target: Target::Key(dest, key), .. } => {
                dest.group().len() + dest.app().len() + key.as_str().len()
            }
            _ => 0,
        }
}

/// Whether a reply can be the answer to an operation.
fn fits(op: &RequestOp, reply: &OpReply) -> bool {
    use OpReply as R;
    match op {
        _ if matches!(reply, R::Failed { .. }) => true,
        RequestOp::Schedule { .. } => {
            matches!(reply, R::Scheduled { .. } | R::Kept(_) | R::KeyTaken(_) | R::Conflict | R::Ended(_))
        }
        RequestOp::Cancel { .. } => matches!(reply, R::Cancelled(_) | R::TooLate(_) | R::NotFound),
        RequestOp::Reschedule { .. } => matches!(reply, R::Rescheduled(_) | R::TooLate(_) | R::NotFound),
        RequestOp::Replay { .. } => matches!(reply, R::Done | R::KeyTaken(_) | R::NotFound),
        RequestOp::Purge { .. } => matches!(reply, R::Done | R::NotFound),
    }
}

#[cfg(test)]
mod tests;
