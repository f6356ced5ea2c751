//! Operations on their way: what is queued, sent, repeated, and when it is given up.
//!
//! Every operation waits for the connection to its partition's owner; one whose owner is not
//! connected waits with the others of its kind until the routes change.
//!
//! Invariant: an operation that may have arrived somewhere is sent again only as it was (same id,
//! same request number) and with the same `first_sent`, and never later than the repeat horizon;
//! after that its outcome is unknown. Only a broker's word that nothing was done makes it fresh
//! again.
//!
//! Not in here: sockets, tasks, the clock. The owner passes the time in and puts the frames on the
//! wire.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_types::Time;
use mtimer_types::limits::{MAX_BATCH, MAX_FRAME};
use tokio::time::Instant;

use crate::RequestError;
use crate::call::{First, PendingOp, RequestFrame, RetryPlan, unknown};
use crate::routes::{Goal, Routes};

/// Most bytes of operations in a frame: what else waits for the connection need not wait long.
const FRAME_BYTES: usize = 1024 * 1024;
/// Why the outcome of something is unknown that may have left.
const CLOSED: &str = "the client was closed before an answer came";

/// What belongs to one connection.
#[derive(Debug)]
struct SessionRequests {
    max_ops: usize,
    max_bytes: usize,
    queue: VecDeque<PendingOp>,
    /// Frames that [`Requests::next`] gave out and that were not handed back yet.
    out: usize,
    sent: BTreeMap<u64, RequestFrame>,
}

impl SessionRequests {
    fn none_sent(&self) -> bool {
        self.out == 0 && self.sent.is_empty()
    }
}

/// All operations of a client.
#[derive(Debug)]
pub(crate) struct Requests {
    sessions: BTreeMap<u64, SessionRequests>,
    /// The owners of their partitions are not connected.
    unrouted: VecDeque<PendingOp>,
    /// To be queued again at that time.
    waiting: BTreeMap<(Instant, u64), PendingOp>,
    next_number: u64,
    /// How long after its first sending something is repeated.
    answer_timeout: Duration,
}

impl Requests {
    pub(crate) fn new(answer_timeout: Duration) -> Self {
        let (sessions, unrouted, waiting) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Self { sessions, unrouted, waiting, next_number: 1, answer_timeout }
    }

    /// A connection is there, with the broker's limits.
    pub(crate) fn opened(&mut self, session: u64, max_frame: u32, max_batch: u32) {
        let connection = SessionRequests {
            max_ops: (max_batch as usize).clamp(1, MAX_BATCH),
            max_bytes: FRAME_BYTES.min(max_frame.min(MAX_FRAME as u32) as usize / 2),
            queue: VecDeque::new(),
            out: 0,
            sent: BTreeMap::new(),
        };
        self.sessions.insert(session, connection);
    }

    /// Queues an operation; says for which connection.
    pub(crate) fn push(&mut self, call: PendingOp, routes: &Routes) -> Option<u64> {
        let session = routes.request_session(call.partition);
        match session.and_then(|s| self.sessions.get_mut(&s)) {
            Some(connection) => connection.queue.push_back(call),
            None => self.unrouted.push_back(call),
        }
        session
    }

    /// Whether nothing waits for an answer or for its turn, and nothing is about to be written.
    pub(crate) fn is_empty(&self) -> bool {
        let idle = |connection: &SessionRequests| connection.queue.is_empty() && connection.none_sent();
        self.unrouted.is_empty() && self.waiting.is_empty() && self.sessions.values().all(idle)
    }

    /// Whether everything that was sent over this connection is answered.
    pub(crate) fn none_sent(&self, session: u64) -> bool {
        self.sessions.get(&session).is_none_or(SessionRequests::none_sent)
    }

    /// The next frame for the wire, if there is something to send; [`Requests::sent`] or
    /// [`Requests::unsent`] follows, and until then it counts as under way. A session that ends
    /// between takes the count with it.
    pub(crate) fn next(&mut self, session: u64, time: Time, now: Instant) -> Option<RequestFrame> {
        let connection = self.sessions.get_mut(&session)?;
        let fresh = First { time, horizon: now + self.answer_timeout };
        let most = connection.queue.len().min(connection.max_ops);
        let (mut ops, mut waiters, mut bytes) = (Vec::with_capacity(most), Vec::with_capacity(most), 0);
        let mut together = None;
        while let Some(call) = connection.queue.front() {
            // A caller may give up at any moment, so each is asked once, and the frame goes by
            // the first that is in it.
            if call.waiter.abandoned() {
                connection.queue.pop_front();
                continue;
            }
            let before = *together.get_or_insert(call.waiter.first);
            bytes += call.op.bytes();
            let full = ops.len() == connection.max_ops || (bytes > connection.max_bytes && !ops.is_empty());
            if full || call.waiter.first != before {
                break;
            }
            let Some(PendingOp { op, partition, mut waiter }) = connection.queue.pop_front() else { break };
            waiter.first = Some(before.unwrap_or(fresh));
            ops.push(op);
            waiters.push((partition, waiter));
        }
        let first = together?.unwrap_or(fresh);
        connection.out += 1;
        let corr = self.number();
        Some(RequestFrame::new(session, first, corr, ops, waiters))
    }

    /// The frame is about to be written. Says how many operations it repeats.
    pub(crate) fn sent(&mut self, mut frame: RequestFrame) -> u64 {
        let mut repeated = 0;
        for (_, waiter) in &mut frame.waiters {
            repeated += u64::from(std::mem::take(&mut waiter.repeats));
        }
        match self.sessions.get_mut(&frame.session) {
            Some(connection) => {
                connection.out -= 1;
                connection.sent.insert(frame.corr, frame);
            }
            // The client was closed between, and the frame may still leave.
            None => frame.into_calls().for_each(|call| call.waiter.answer(Err(unknown(CLOSED)))),
        }
        repeated
    }

    /// The frame cannot be written: an error to all who wait.
    pub(crate) fn unsent(&mut self, frame: RequestFrame, now: Instant, reason: &str) {
        if let Some(connection) = self.sessions.get_mut(&frame.session) {
            connection.out -= 1;
        }
        frame.fail(now, reason);
    }

    /// Takes in a reply; says how many operations are sent again. An error is a breach of the
    /// protocol, and changes nothing.
    pub(crate) fn reply(
        &mut self,
        session: u64,
        corr: u64,
        replies: Vec<OpReply>,
        now: Instant,
        routes: &mut Routes,
    ) -> Result<u64, &'static str> {
        if corr == 0 || corr >= self.next_number {
            return Err("a reply to a request that was never made");
        }
        let sent = self.sessions.get_mut(&session).map(|connection| &mut connection.sent);
        // Given up already, or answered before over another connection.
        let Some((sent, frame)) =
            sent.and_then(|sent| Some((sent.remove(&corr)?, sent))).map(|(f, s)| (s, f))
        else {
            return Ok(0);
        };
        let breach = if frame.waiters.len() != replies.len() {
            Some("a reply with too few or too many answers")
        } else if !frame.ops().iter().zip(&replies).all(|(op, reply)| op.is_answered_by(reply)) {
            Some("an answer that does not fit its operation")
        } else {
            None
        };
        if let Some(breach) = breach {
            sent.insert(corr, frame);
            return Err(breach);
        }
        let mut retried = 0;
        for (call, reply) in frame.into_calls().zip(replies) {
            match &reply {
                OpReply::Moved { owner } => routes.moved(call.partition, owner),
                OpReply::Failed { code: ErrorCode::NotOwner, .. } => {
                    routes.disowned(call.partition, session);
                }
                _ => {}
            }
            let next = call.answered(reply, now);
            retried += u64::from(!matches!(next, RetryPlan::Answered));
            match next {
                RetryPlan::Answered => {}
                RetryPlan::Now(call) => _ = self.push(call, routes),
                RetryPlan::At(again, call) => {
                    let number = self.number();
                    self.waiting.insert((again, number), call);
                }
            }
        }
        Ok(retried)
    }

    /// A connection is gone: what was sent over it is to be repeated, at whoever owns its partition
    /// now.
    pub(crate) fn closed(&mut self, session: u64, routes: &Routes) {
        let Some(connection) = self.sessions.remove(&session) else { return };
        let mut sent: Vec<PendingOp> =
            connection.sent.into_values().flat_map(RequestFrame::into_calls).collect();
        sent.iter_mut().for_each(|call| call.waiter.lost());
        for call in sent.into_iter().chain(connection.queue) {
            self.push(call, routes);
        }
    }

    /// The routes have changed: everything that is queued finds its way again, and what waited
    /// because its partition was elsewhere waits no longer.
    pub(crate) fn reroute(&mut self, routes: &Routes) {
        let queues = self.sessions.values_mut().map(|connection| std::mem::take(&mut connection.queue));
        let mut all: Vec<_> = queues.collect();
        all.push(std::mem::take(&mut self.unrouted));
        let (astray, waiting): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, call)| call.waiter.astray);
        self.waiting = waiting;
        for call in all.into_iter().flatten().chain(astray.into_values()) {
            self.push(call, routes);
        }
    }

    /// Queues what has waited long enough, and gives up what has waited too long; `unrouted` says
    /// why something cannot be sent. Says whether something was queued.
    pub(crate) fn sweep(
        &mut self,
        now: Instant,
        unrouted: impl Fn(&Goal) -> String,
        routes: &Routes,
    ) -> bool {
        let mut queued = false;
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            let call = entry.remove();
            self.push(call, routes);
            queued = true;
        }
        give_up(&mut self.unrouted, now, |call| unrouted(&Goal::Partition(call.partition)));
        for connection in self.sessions.values_mut() {
            give_up(&mut connection.queue, now, |_| "the broker does not take it".to_owned());
            if !connection.sent.values().any(|frame| frame.first.horizon <= now) {
                continue;
            }
            let (late, sent): (BTreeMap<_, _>, _) =
                std::mem::take(&mut connection.sent).into_iter().partition(|(_, f)| f.first.horizon <= now);
            connection.sent = sent;
            for mut call in late.into_values().flat_map(RequestFrame::into_calls) {
                let reason = format!("no answer within {} ms", self.answer_timeout.as_millis());
                call.waiter.lost();
                call.waiter.give_up(now, &reason);
            }
        }
        queued
    }

    /// The client is closed: nothing is sent or answered any more.
    pub(crate) fn close(&mut self) {
        let sessions: Vec<SessionRequests> = std::mem::take(&mut self.sessions).into_values().collect();
        let (mut queued, mut sent) = (std::mem::take(&mut self.unrouted), Vec::new());
        for connection in sessions {
            queued.extend(connection.queue);
            sent.extend(connection.sent.into_values().flat_map(RequestFrame::into_calls));
        }
        for call in queued.into_iter().chain(std::mem::take(&mut self.waiting).into_values()) {
            let done = call.waiter.first.is_some();
            let error = if done { unknown("the client was closed") } else { RequestError::Closed };
            call.waiter.answer(Err(error));
        }
        for call in sent {
            call.waiter.answer(Err(unknown(CLOSED)));
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

/// Gives up what has waited too long for its turn, and what nobody waits for.
fn give_up(queue: &mut VecDeque<PendingOp>, now: Instant, reason: impl Fn(&PendingOp) -> String) {
    if !queue.iter().any(|c| c.waiter.limit() <= now || c.waiter.abandoned()) {
        return;
    }
    let (late, rest): (VecDeque<_>, _) =
        std::mem::take(queue).into_iter().partition(|c| c.waiter.limit() <= now || c.waiter.abandoned());
    *queue = rest;
    for call in late {
        let reason = reason(&call);
        call.waiter.give_up(now, &reason);
    }
}

#[cfg(test)]
mod tests;
