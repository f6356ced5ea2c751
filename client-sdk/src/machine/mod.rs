//! The client as a state machine: everything that it decides, without I/O.
//!
//! Purpose: decides about connections, requests, callbacks and time, as `docs/client.md` says it in
//! words and `client-sdk/scenarios` byte by byte.
//!
//! Inputs go in by [`Machine::handle`], with the time at which they happen. Actions come out of
//! [`Machine::poll_event`], [`Machine::poll_transmit`] (for the wire) and [`Machine::poll_timeout`]
//! (when to come back), which are called until they have nothing more.
//!
//! Invariant: all state in here is bounded: operations and questions by the permits that their
//! callers hold, outcomes by the credit that was given, registrations by their limit, the rest by
//! its connection's [`Outbox`](outbox::Outbox). The same inputs give the same outputs: there is no
//! clock, no runtime and no randomness but the caller's.
//!
//! Not in here: sockets and tasks, encryption, the running of handlers, permits, logs.

pub(crate) mod backoff;
pub(crate) mod call;
pub(crate) mod caller;
pub(crate) mod clock;
mod closing;
mod connections;
pub(crate) mod deadline;
pub(crate) mod dial;
mod ending;
mod frames;
pub(crate) mod handshake;
pub(crate) mod inbox;
pub(crate) mod io;
pub(crate) mod moment;
pub(crate) mod origin;
mod outbox;
mod queries;
pub(crate) mod random;
mod registrations;
mod requests;
pub(crate) mod routes;
pub(crate) mod settling;
pub(crate) mod slots;
mod state;

use mtimer_protocol::{ClientMessage, Query, RequestOp};
use mtimer_types::{Epoch, PartitionId, TimerId};

use self::call::{PendingOp, Waiter};
use self::caller::Caller;
use self::dial::DialOrder;
pub(crate) use self::io::{ConnectionsLeft, Event, Input, Transmit};
use self::moment::{Moment, earlier};
use self::origin::Origin;
use self::outbox::Outbox;
use self::queries::PendingQuery;
use self::routes::Goal;
pub(crate) use self::state::{Machine, MachineSettings};
use crate::RegisterError;

/// Questions sent in one go.
const QUERIES_AT_ONCE: usize = 64;

impl<C: Caller> Machine<C> {
    /// Takes in an input that has happened at `now`.
    pub(crate) fn handle(&mut self, now: Moment, input: Input<C>) {
        match input {
            Input::Connected { connection, address } => {
                if self.dialling.connected(connection, address) {
                    self.events.push_back(Event::Transmit { connection });
                }
            }
            Input::Failed { connection, error } => self.unreached(connection, error, now),
            Input::Frame { connection, message } => self.frame(connection, message, now),
            Input::Closed { connection, end } => self.gone(connection, end, now),
            Input::Call { op, token } => self.call(op, token, now),
            Input::Calls(calls) => calls.into_iter().for_each(|(op, token)| self.call(op, token, now)),
            Input::Ask { query, goal, token } => self.ask(query, goal, token, now),
            Input::Abandoned => {
                self.requests.abandoned(now);
                self.queries.abandoned(now);
            }
            Input::Sent(frame) => self.stats.repeated += self.requests.sent(frame, &self.routes),
            Input::Unsent { frame, reason } => self.requests.unsent(frame, now, &reason),
            Input::Renew { registration } => self.renew(registration),
            Input::Unregister { registration } => self.unregister(registration, now),
            Input::Outcomes(outcomes) => self.settle(outcomes),
            Input::Extend { over, id, epoch, attempt, by_ms } => {
                self.extend(&over, id, epoch, attempt, by_ms);
            }
            Input::LeftOut { connection, callbacks } => {
                self.stats.dropped += callbacks;
                self.left_out(connection, callbacks);
            }
            Input::Suspended { by } => self.clock.suspended(by, now),
            Input::Timeout => self.sweep(now),
            Input::Drain => self.drain(now),
            Input::Flush => self.flush(now),
            Input::Stop => self.stop(),
        }
        self.leave(now);
        self.tell_flushed();
    }

    /// Begins a registration; returns its number.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Closed`], [`RegisterError::TooMany`]
    pub(crate) fn register(&mut self, callbacks: C::Callbacks) -> Result<u32, RegisterError> {
        if !self.closing.is_open() {
            return Err(RegisterError::Closed);
        }
        self.registrations.add(callbacks, self.routes.brokers(), &mut self.outboxes)
    }

    /// Returns the next thing that the caller is to do or to know.
    pub(crate) fn poll_event(&mut self) -> Option<Event<C>> {
        if let Some(answered) = self.requests.poll_answered() {
            let call::Answered { call, answer } = answered;
            return Some(Event::Answered { call, answer });
        }
        if let Some(queries::Told { question, answer }) = self.queries.poll_told() {
            return Some(Event::Told { question, answer });
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if let Some(order) = self.dialling.poll_order() {
            return Some(match order {
                DialOrder::Connect { connection, place } => Event::Connect { connection, place },
                DialOrder::Disconnect { connection } => Event::Disconnect { connection },
            });
        }
        self.outboxes.poll_to_send().map(|connection| Event::Transmit { connection })
    }

    /// Appends the messages that can be sent over a connection now, some of each kind. The caller
    /// asks again once it has written it, until there is nothing more.
    pub(crate) fn poll_transmit(&mut self, now: Moment, connection: u64, out: &mut Vec<Transmit<C>>) {
        if self.dialling.poll_hello(connection, now) {
            out.push(Transmit::Message(self.hello.clone()));
        }
        let Some(outbox) = self.outboxes.of_silently(connection) else { return };
        let queries = &mut self.queries;
        outbox.gather(now, || queries.number(), |message| out.push(Transmit::Message(message)));
        out.extend(self.settling.next(connection).map(|s| Transmit::Message(ClientMessage::Settle(s))));
        let time = self.clock.at_broker(connection, now);
        out.extend(self.requests.next(connection, time, now).map(Transmit::Request));
        let queries = std::iter::from_fn(|| self.queries.next(connection)).take(QUERIES_AT_ONCE);
        let message = |(corr, query): (u64, Query)| Transmit::Message(ClientMessage::Query { corr, query });
        out.extend(queries.map(message));
    }

    /// When [`Input::Timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Moment> {
        let beats = self.outboxes.iter().map(Outbox::next_timeout).min();
        let all = [
            beats,
            self.dialling.next_timeout(),
            self.requests.next_timeout(),
            self.queries.next_timeout(),
            self.settling.next_timeout(),
            self.registrations.next_timeout(),
            self.closing.next_timeout(),
        ];
        all.into_iter().fold(None, earlier)
    }

    fn call(&mut self, op: RequestOp, token: C::Call, now: Moment) {
        let waiter = Waiter::new(token, now, self.request_timeout);
        let call = PendingOp::new(op, self.partitions.max(1), waiter);
        if let Some(connection) = self.requests.push(call, &self.routes) {
            self.outboxes.wake(connection);
        }
    }

    fn ask(&mut self, query: Query, goal: Option<Goal>, token: C::Question, now: Moment) {
        let goal = goal.unwrap_or_else(|| goal_of(&query, self.partitions.max(1)));
        let asked = PendingQuery::new(query, goal, token, now, self.request_timeout);
        if let Some(connection) = self.queries.push(asked, &self.routes) {
            self.outboxes.wake(connection);
        }
    }

    fn unregister(&mut self, registration: u32, now: Moment) {
        let (by, open) = (now + self.request_timeout, self.closing.is_open());
        if let Some(barrier) = self.registrations.remove(registration, by, open, &mut self.outboxes) {
            self.barrier(barrier);
        }
    }

    fn extend(&mut self, over: &Origin, id: TimerId, epoch: Epoch, attempt: u32, by_ms: u32) {
        let to = self.routes.settle_connection(id.partition(), over);
        let to = to.filter(|to| self.routes.may_know(*to, over));
        if let Some(outbox) = to.and_then(|to| self.outboxes.of(to)) {
            outbox.extend(id, epoch, attempt, by_ms);
        }
    }

    /// Looks at the time.
    fn sweep(&mut self, now: Moment) {
        while let Some((connection, error)) = self.dialling.poll_late(now) {
            self.unreached(connection, error, now);
        }
        self.dialling.begin(now);
        self.beat(now);
        let (is_connected, routes, fault) = (self.is_connected(), &self.routes, &self.fault);
        let unrouted = |goal: &Goal| match is_connected {
            true => routes.why_unrouted(goal, fault),
            false => fault.clone(),
        };
        let requests = self.requests.sweep(now, unrouted, routes);
        let queries = self.queries.sweep(now, unrouted, routes);
        let (settlements, over) = self.settling.sweep(now, routes);
        self.stats.settle_refused += over;
        if requests || queries || settlements {
            self.outboxes.wake_all();
        }
        for (number, callbacks, look) in self.registrations.sweep(now) {
            if !look.hung.is_empty() {
                self.events.push_back(Event::Hung { callbacks, handlers: look.hung });
                // First, so that the broker does not send here again the callbacks that are given
                // back.
                self.renew(number);
            }
            self.stats.not_begun += look.given_back.len() as u64;
            self.settle(look.given_back);
        }
        self.closing_timeout(now);
    }
}

/// Who can answer a question.
fn goal_of(query: &Query, partitions: u16) -> Goal {
    match query {
        Query::Get(target) | Query::Story(target) => Goal::Partition(target.partition(partitions)),
        Query::Dead { cursor, .. }
        | Query::Unconfirmed { cursor, .. }
        | Query::Parked { cursor, .. }
        | Query::Taken { cursor, .. } => {
            Goal::Partition(PartitionId(cursor.map_or(0, |(partition, _)| partition)))
        }
        Query::Pending(query) => Goal::Partition(PartitionId(query.partition)),
        Query::Counts(query) => Goal::Partition(PartitionId(query.partition)),
        Query::Forecast(query) => Goal::Partition(PartitionId(query.partition)),
        Query::Bulks { partition } | Query::Settings { partition } => {
            Goal::Partition(PartitionId(*partition))
        }
        Query::Drain { .. } => Goal::Leader,
        Query::Status | Query::Cluster | Query::Broker | Query::Ready => Goal::Informed,
    }
}

#[cfg(test)]
pub(crate) mod tests;
