//! Operations on their way: how they are queued, sent and repeated, and when they are given up.
//!
//! Every operation waits for the connection to its partition's owner; one whose owner is not
//! connected waits with the others of its kind until the routes change.
//!
//! Invariant: an operation that may have arrived somewhere is sent again only as it was (same id,
//! same request number) and with the same `first_sent`, and never later than the repeat horizon;
//! after that its outcome is unknown. Only a broker's word that nothing was done makes it fresh
//! again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_types::Time;
use mtimer_types::limits::{MAX_BATCH, MAX_FRAME};

use crate::error::within;
use crate::machine::call::{Answered, First, PendingOp, RequestFrame, RetryPlan};
use crate::machine::caller::Waiting;
use crate::machine::moment::{Moment, earlier};
use crate::machine::random::Random;
use crate::machine::routes::{Goal, Routes};

/// Most bytes of operations in a frame: other messages for the connection need not wait long.
const FRAME_BYTES: usize = 1024 * 1024;
/// How soon the permits of operations are free that nobody waits for any more.
pub(crate) const ABANDONED_WITHIN: Duration = Duration::from_millis(20);

/// The requests of one connection.
#[derive(Debug)]
struct ConnectionRequests<T> {
    max_ops: usize,
    max_bytes: usize,
    queue: VecDeque<PendingOp<T>>,
    /// Frames that [`Requests::next`] gave out and that were not handed back yet.
    out: usize,
    sent: BTreeMap<u64, RequestFrame<T>>,
}

impl<T> ConnectionRequests<T> {
    fn none_sent(&self) -> bool {
        self.out == 0 && self.sent.is_empty()
    }
}

/// An operation that is queued again at a certain time.
#[derive(Debug)]
struct PutOff<T> {
    /// It waits because its partition is, or was, another broker's.
    astray: bool,
    call: PendingOp<T>,
}

/// All operations of a client.
#[derive(Debug)]
pub(crate) struct Requests<T> {
    connections: BTreeMap<u64, ConnectionRequests<T>>,
    /// The owners of their partitions are not connected.
    unrouted: VecDeque<PendingOp<T>>,
    waiting: BTreeMap<(Moment, u64), PutOff<T>>,
    next_number: u64,
    /// How long after its first sending something is repeated.
    answer_timeout: Duration,
    /// Nothing that is queued or sent has to be given up before.
    look_at: Option<Moment>,
    /// Operations that have ended, for the caller.
    answered: VecDeque<Answered<T>>,
    closed: bool,
}

impl<T: Waiting> Requests<T> {
    pub(crate) const fn new(answer_timeout: Duration) -> Self {
        Self {
            connections: BTreeMap::new(),
            unrouted: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_number: 1,
            answer_timeout,
            look_at: None,
            answered: VecDeque::new(),
            closed: false,
        }
    }

    /// Returns the next operation that has ended.
    pub(crate) fn poll_answered(&mut self) -> Option<Answered<T>> {
        self.answered.pop_front()
    }

    /// When [`Requests::sweep`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Moment> {
        earlier(self.look_at, self.waiting.keys().next().map(|(at, _)| *at))
    }

    /// A connection is there, with the broker's limits.
    pub(crate) fn opened(&mut self, connection: u64, max_frame: u32, max_batch: u32) {
        let requests = ConnectionRequests {
            max_ops: (max_batch as usize).clamp(1, MAX_BATCH),
            max_bytes: FRAME_BYTES.min(max_frame.min(MAX_FRAME as u32) as usize / 2),
            queue: VecDeque::new(),
            out: 0,
            sent: BTreeMap::new(),
        };
        self.connections.insert(connection, requests);
    }

    /// Queues an operation; says for which connection. Once the client is closed it is answered.
    pub(crate) fn push(&mut self, call: PendingOp<T>, routes: &Routes) -> Option<u64> {
        if self.closed {
            self.answered.push_back(call.waiter.close());
            return None;
        }
        self.look_at = earlier(self.look_at, Some(call.waiter.limit()));
        let connection = routes.request_connection(call.partition);
        match connection.and_then(|c| self.connections.get_mut(&c)) {
            Some(requests) => requests.queue.push_back(call),
            None => self.unrouted.push_back(call),
        }
        connection
    }

    /// Somebody does not wait any more.
    pub(crate) fn abandoned(&mut self, now: Moment) {
        if !self.is_empty() {
            self.look_at = earlier(self.look_at, Some(now + ABANDONED_WITHIN));
        }
    }

    /// Whether nothing waits for an answer or for its turn, and nothing is about to be written.
    pub(crate) fn is_empty(&self) -> bool {
        let idle = |requests: &ConnectionRequests<T>| requests.queue.is_empty() && requests.none_sent();
        self.unrouted.is_empty() && self.waiting.is_empty() && self.connections.values().all(idle)
    }

    /// Whether everything that was sent over this connection is answered.
    pub(crate) fn none_sent(&self, connection: u64) -> bool {
        self.connections.get(&connection).is_none_or(ConnectionRequests::none_sent)
    }

    /// The next frame for the wire, if there is something to send; [`Requests::sent`] or
    /// [`Requests::unsent`] follows, and until then it counts as under way. A connection that ends
    /// between takes the count with it.
    pub(crate) fn next(&mut self, connection: u64, time: Time, now: Moment) -> Option<RequestFrame<T>> {
        let requests = self.connections.get_mut(&connection)?;
        let fresh = First { time, horizon: now + self.answer_timeout };
        let most = requests.queue.len().min(requests.max_ops);
        let (mut ops, mut waiters, mut bytes) = (Vec::with_capacity(most), Vec::with_capacity(most), 0);
        let mut together = None;
        while let Some(call) = requests.queue.front() {
            // A caller may give up at any moment, so each is asked once, and the frame goes by
            // the first that is in it.
            if call.waiter.is_abandoned() {
                requests.queue.pop_front();
                continue;
            }
            let first = call.waiter.first();
            let before = *together.get_or_insert(first);
            bytes += call.op.bytes();
            let full = ops.len() == requests.max_ops || (bytes > requests.max_bytes && !ops.is_empty());
            if full || first != before {
                break;
            }
            let Some(PendingOp { op, partition, mut waiter }) = requests.queue.pop_front() else { break };
            waiter.depart(fresh);
            ops.push(op);
            waiters.push((partition, waiter));
        }
        let first = together?.unwrap_or(fresh);
        requests.out += 1;
        let corr = self.number();
        Some(RequestFrame::new(connection, first, corr, ops, waiters))
    }

    /// The frame is about to be written. Says how many operations it repeats.
    pub(crate) fn sent(&mut self, mut frame: RequestFrame<T>, routes: &Routes) -> u64 {
        let repeated = frame.waiters.iter_mut().map(|(_, waiter)| u64::from(waiter.departed())).sum();
        match self.connections.get_mut(&frame.connection) {
            Some(requests) => {
                self.look_at = earlier(self.look_at, Some(frame.first.horizon));
                requests.out -= 1;
                requests.sent.insert(frame.corr, frame);
            }
            // The connection ended between, and the frame may still leave.
            None if self.closed => {
                self.answered.extend(frame.into_calls().map(|call| call.waiter.close()));
            }
            None => {
                for mut call in frame.into_calls() {
                    call.waiter.lost();
                    self.push(call, routes);
                }
            }
        }
        repeated
    }

    /// The frame cannot be written: an error to all who wait.
    pub(crate) fn unsent(&mut self, frame: RequestFrame<T>, now: Moment, reason: &str) {
        if let Some(requests) = self.connections.get_mut(&frame.connection) {
            requests.out -= 1;
        }
        self.answered.extend(frame.fail(now, reason));
    }

    /// Takes in a reply; says how many operations are sent again. An error is a breach of the
    /// protocol, and changes nothing.
    pub(crate) fn reply(
        &mut self,
        connection: u64,
        corr: u64,
        replies: Vec<OpReply>,
        now: Moment,
        routes: &mut Routes,
        random: &mut impl Random,
    ) -> Result<u64, &'static str> {
        if corr == 0 || corr >= self.next_number {
            return Err("a reply to a request that was never made");
        }
        // Given up already, or answered before over another connection.
        let Some(requests) = self.connections.get_mut(&connection) else { return Ok(0) };
        let Some(frame) = requests.sent.remove(&corr) else { return Ok(0) };
        if let Err(breach) = check(&frame, &replies) {
            requests.sent.insert(corr, frame);
            return Err(breach);
        }
        let mut retried = 0;
        for (call, reply) in frame.into_calls().zip(replies) {
            match &reply {
                OpReply::Moved { owner } => routes.moved(call.partition, owner),
                OpReply::Failed { code: ErrorCode::NotOwner, .. } => {
                    routes.disowned(call.partition, connection);
                }
                _ => {}
            }
            match call.answered(reply, now, random) {
                RetryPlan::Ended(answered) => {
                    self.answered.push_back(answered);
                    continue;
                }
                RetryPlan::Now(call) => _ = self.push(call, routes),
                RetryPlan::At { again, astray, call } => {
                    let number = self.number();
                    self.waiting.insert((again, number), PutOff { astray, call });
                }
            }
            retried += 1;
        }
        Ok(retried)
    }

    /// A connection is gone: operations sent over it are to be repeated, at the present owners of
    /// their partitions.
    pub(crate) fn closed(&mut self, connection: u64, routes: &Routes) {
        let Some(requests) = self.connections.remove(&connection) else { return };
        let mut sent: Vec<PendingOp<T>> =
            requests.sent.into_values().flat_map(RequestFrame::into_calls).collect();
        sent.iter_mut().for_each(|call| call.waiter.lost());
        for call in sent.into_iter().chain(requests.queue) {
            self.push(call, routes);
        }
    }

    /// The routes have changed: everything that is queued finds its way again, and an operation
    /// that waited because its partition was elsewhere waits no longer.
    pub(crate) fn reroute(&mut self, routes: &Routes) {
        let queues = self.connections.values_mut().map(|requests| std::mem::take(&mut requests.queue));
        let mut all: Vec<_> = queues.collect();
        all.push(std::mem::take(&mut self.unrouted));
        let (astray, waiting): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, put_off)| put_off.astray);
        self.waiting = waiting;
        for call in all.into_iter().flatten().chain(astray.into_values().map(|put_off| put_off.call)) {
            self.push(call, routes);
        }
    }

    /// Queues operations that have waited long enough, and gives up operations that have waited too
    /// long; `unrouted` says why something cannot be sent. Says whether something was queued.
    pub(crate) fn sweep(&mut self, now: Moment, unrouted: impl Fn(&Goal) -> String, routes: &Routes) -> bool {
        let mut queued = false;
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            let PutOff { call, .. } = entry.remove();
            self.push(call, routes);
            queued = true;
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.give_up(now, unrouted);
            self.look_at = self.next_limit();
        }
        queued
    }

    fn give_up(&mut self, now: Moment, unrouted: impl Fn(&Goal) -> String) {
        let out = &mut self.answered;
        give_up(&mut self.unrouted, now, out, |call| unrouted(&Goal::Partition(call.partition)));
        for requests in self.connections.values_mut() {
            give_up(&mut requests.queue, now, out, |_| "the broker does not take it".to_owned());
            if !requests.sent.values().any(|frame| frame.first.horizon <= now) {
                continue;
            }
            let (late, sent): (BTreeMap<_, _>, _) =
                std::mem::take(&mut requests.sent).into_iter().partition(|(_, f)| f.first.horizon <= now);
            requests.sent = sent;
            for mut call in late.into_values().flat_map(RequestFrame::into_calls) {
                let reason = format!("no answer{}", within(self.answer_timeout.as_millis() as u64));
                call.waiter.lost();
                out.push_back(call.waiter.give_up(now, &reason));
            }
        }
    }

    /// When the first of the queued or sent operations has to be given up.
    fn next_limit(&self) -> Option<Moment> {
        let queues = self.connections.values().map(|requests| &requests.queue).chain([&self.unrouted]);
        let queued = queues.flatten().map(|call| call.waiter.limit()).min();
        let sent = self.connections.values().flat_map(|requests| requests.sent.values());
        earlier(queued, sent.map(|frame| frame.first.horizon).min())
    }

    /// The client is closed: nothing is sent or answered any more.
    pub(crate) fn close(&mut self) {
        let connections = std::mem::take(&mut self.connections).into_values();
        let (mut queued, mut sent) = (std::mem::take(&mut self.unrouted), Vec::new());
        for requests in connections {
            queued.extend(requests.queue);
            sent.extend(requests.sent.into_values().flat_map(RequestFrame::into_calls));
        }
        queued.extend(std::mem::take(&mut self.waiting).into_values().map(|put_off| put_off.call));
        self.answered.extend(queued.into_iter().chain(sent).map(|call| call.waiter.close()));
        (self.look_at, self.closed) = (None, true);
    }

    const fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

/// Whether these can be the replies to a frame.
fn check<T: Waiting>(frame: &RequestFrame<T>, replies: &[OpReply]) -> Result<(), &'static str> {
    if frame.waiters.len() != replies.len() {
        return Err("a reply with too few or too many answers");
    }
    match frame.ops().iter().zip(replies).all(|(op, reply)| op.is_answered_by(reply)) {
        true => Ok(()),
        false => Err("an answer that does not fit its operation"),
    }
}

/// Gives up operations that have waited too long for their turn, and those that nobody waits for.
fn give_up<T: Waiting>(
    queue: &mut VecDeque<PendingOp<T>>,
    now: Moment,
    out: &mut VecDeque<Answered<T>>,
    reason: impl Fn(&PendingOp<T>) -> String,
) {
    let over = |call: &PendingOp<T>| call.waiter.limit() <= now || call.waiter.is_abandoned();
    if !queue.iter().any(over) {
        return;
    }
    let (late, rest): (VecDeque<_>, _) = std::mem::take(queue).into_iter().partition(over);
    *queue = rest;
    for call in late {
        let reason = reason(&call);
        out.push_back(call.waiter.give_up(now, &reason));
    }
}

#[cfg(test)]
mod tests;
