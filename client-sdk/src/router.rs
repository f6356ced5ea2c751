//! Everything that waits to be sent or answered, for all connections, behind one lock that is held
//! for moments only.
//!
//! Invariant: what is in here is bounded: operations and questions by the permits that their
//! callers hold, outcomes by the credit that was given, registrations by their limit, the rest by
//! its connection's [`SessionOutbox`].
//!
//! Not in here: sockets and tasks. A session takes messages out ([`Router::gather`]) and puts
//! answers in; which connections there should be is decided by the [pool](crate::pool).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::{ClientMessage, OpReply, Query, QueryAnswer, SettleRefusal, Topology, Welcome};
use mtimer_types::{Epoch, PartitionId, Time, TimerId};
use tokio::time::Instant;

use crate::call::{PendingOp, RequestFrame};
use crate::handle::{Fate, SessionHandle};
use crate::inbox::Inbox;
use crate::outbox::SessionOutbox;
use crate::queries::{PendingQuery, Queries};
use crate::requests::Requests;
use crate::routes::{Goal, Routes};
use crate::settling::{OutgoingOutcome, Pushed, Settling};

/// Questions sent in one go.
const QUERIES_AT_ONCE: usize = 64;

/// How far a client is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ClientStage {
    /// At work.
    Open,
    /// Takes no more callbacks; handlers may still make requests.
    Draining,
    /// Done.
    Closed,
}

/// One thing for the wire.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Message(ClientMessage),
    /// To be handed to [`Router::sent`] before it is written, or to [`Router::unsent`].
    Frame(RequestFrame),
}

/// What a change of the connections or the topology cost.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Losses {
    /// Outcomes that are pointless now.
    pub(crate) pointless: u64,
    /// Callbacks that are left to their next delivery.
    pub(crate) dropped: u64,
}

#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) stage: ClientStage,
    /// Why there is no connection, for errors.
    pub(crate) fault: String,
    /// Somebody looks at the time every now and then.
    pub(crate) ticking: bool,
    pub(crate) routes: Routes,
    pub(crate) settling: Settling,
    pub(crate) sessions: BTreeMap<u64, SessionOutbox>,
    requests: Requests,
    queries: Queries,
    pub(crate) registrations: BTreeMap<u32, Arc<Inbox>>,
    pub(crate) last_registration: u32,
    /// Registrations that take no more callbacks, in the order of when they are closed in any case.
    pub(crate) ending: VecDeque<(Instant, u32)>,
    /// Of registrations that have ended, those whose handlers may still run.
    pub(crate) finishing: Vec<Arc<Inbox>>,
    last_session: u64,
    /// By partition: the highest epoch seen, over all connections.
    pub(crate) epochs: Vec<Epoch>,
}

impl Router {
    pub(crate) fn new(partitions: u16, answer_timeout: Duration) -> Self {
        Self {
            stage: ClientStage::Open,
            fault: "not connected yet".to_owned(),
            ticking: false,
            routes: Routes::new(partitions),
            settling: Settling::default(),
            sessions: BTreeMap::new(),
            requests: Requests::new(answer_timeout),
            queries: Queries::default(),
            registrations: BTreeMap::new(),
            last_registration: 0,
            ending: VecDeque::new(),
            finishing: Vec::new(),
            last_session: 0,
            epochs: vec![Epoch(0); usize::from(partitions)],
        }
    }

    /// A connection is there: the registrations are renewed over it. After the end it is nobody's:
    /// its session finds nothing to do and leaves.
    pub(crate) fn opened(&mut self, welcome: &Welcome) -> (Arc<SessionHandle>, Losses) {
        self.last_session += 1;
        let session = self.last_session;
        let handle = Arc::new(SessionHandle::new(session, welcome.broker.clone()));
        if self.stage == ClientStage::Closed {
            return (handle, Losses::default());
        }
        self.routes.opened(&handle);
        self.requests.opened(session, welcome.max_frame, welcome.max_batch);
        self.queries.opened(session);
        self.settling.opened(session);
        let mut outbox = SessionOutbox::new(Arc::clone(&handle));
        if self.stage == ClientStage::Open {
            let brokers = self.routes.brokers();
            for (number, inbox) in self.registrations.iter().filter(|(_, inbox)| !inbox.is_ending()) {
                outbox.register(*number, inbox.dest.clone(), inbox.share(brokers));
            }
        } else {
            outbox.goodbye();
        }
        self.sessions.insert(session, outbox);
        (handle, self.reroute())
    }

    /// A connection is gone.
    pub(crate) fn closed(&mut self, session: u64, fault: &str) -> Losses {
        let Some(outbox) = self.sessions.remove(&session) else { return Losses::default() };
        fault.clone_into(&mut self.fault);
        outbox.handle.ended(outbox.stopping);
        let lost = outbox.handle.fate() == Fate::Lost;
        self.routes.closed(session);
        outbox.into_barriers().for_each(|barrier| self.pass(barrier));
        self.requests.closed(session, &self.routes);
        self.queries.closed(session, &self.routes);
        let pointless = self.settling.closed(session, &self.routes);
        let fewer = self.registrations.iter().filter(|(_, inbox)| inbox.gone(session));
        let fewer: Vec<u32> = fewer.map(|(number, _)| *number).collect();
        fewer.into_iter().for_each(|number| self.renew(number));
        let dropped = match lost {
            true => self.registrations.values().map(|inbox| inbox.lost(session)).sum(),
            false => 0,
        };
        let more = self.reroute();
        Losses { pointless: pointless + more.pointless, dropped }
    }

    /// A broker wants to stop: it gets outcomes only.
    pub(crate) fn stopping(&mut self, session: u64) -> Losses {
        if let Some(outbox) = self.sessions.get_mut(&session) {
            outbox.stopping = true;
        }
        self.routes.stopping(session);
        self.reroute()
    }

    /// Takes a topology in. `None`: there is a newer one already.
    pub(crate) fn topology(&mut self, topology: Topology) -> Option<Losses> {
        let before = self.routes.brokers();
        if !self.routes.observe(topology) {
            return None;
        }
        let now = self.routes.brokers();
        if now != before {
            for inbox in self.registrations.values() {
                inbox.divide(now);
            }
        }
        if now != before && self.stage == ClientStage::Open {
            for (number, inbox) in self.registrations.iter().filter(|(_, inbox)| !inbox.is_ending()) {
                let share = inbox.share(now);
                if share != inbox.share(before) {
                    let sessions = self.sessions.values_mut();
                    sessions.for_each(|outbox| outbox.register(*number, inbox.dest.clone(), share));
                }
            }
        }
        Some(self.reroute())
    }

    fn reroute(&mut self) -> Losses {
        self.requests.reroute(&self.routes);
        self.queries.reroute(&self.routes);
        Losses { pointless: self.settling.reroute(&self.routes), dropped: 0 }
    }

    /// The client is closed.
    pub(crate) fn close(&mut self) {
        self.stage = ClientStage::Closed;
        self.sessions.clear();
        self.requests.close();
        self.queries.close();
        self.ending.clear();
        self.finishing.clear();
        std::mem::take(&mut self.registrations).into_values().for_each(|inbox| inbox.close());
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Whether nothing waits for a broker.
    pub(crate) fn is_idle(&self) -> bool {
        self.settling.unconfirmed() == 0 && self.requests.is_empty() && self.queries.is_empty()
    }

    /// Whether a broker owes nothing and is owed nothing that wants to stop and has no others
    /// around it, or that is no part of the cluster any more. (One of a cluster may still deliver
    /// what it had taken before it hands over.)
    pub(crate) fn may_leave(&self, session: u64) -> bool {
        let Some(outbox) = self.sessions.get(&session) else { return true };
        let stops = outbox.stopping && outbox.handle.name.is_none();
        (stops || self.routes.is_outside(session))
            && outbox.unsettled == 0
            && self.settling.none_open(session)
            && self.requests.none_sent(session)
            && self.queries.none_sent(session)
    }

    /// Callbacks that came over a connection were left out.
    pub(crate) fn left_out(&mut self, session: u64, n: u64) {
        if let Some(outbox) = self.sessions.get_mut(&session) {
            outbox.unsettled = outbox.unsettled.saturating_sub(n);
        }
    }

    /// Queues outcomes; says how many are pointless.
    pub(crate) fn settle(&mut self, outcomes: impl Iterator<Item = OutgoingOutcome>) -> u64 {
        let (mut last, mut pointless) = (None, 0);
        // Neighbours mostly go the same way.
        let (mut way, mut over, mut left_out) = (None, 0, 0);
        for outgoing in outcomes {
            let from = (outgoing.settlement.id.partition(), outgoing.over.session);
            let to = match way {
                Some((same, to)) if same == from => to,
                _ => self.routes.settle_session(from.0, &outgoing.over),
            };
            way = Some((from, to));
            if over != from.1 {
                self.left_out(over, std::mem::take(&mut left_out));
                over = from.1;
            }
            left_out += 1;
            match self.settling.push_to(to, outgoing, &self.routes) {
                Pushed::To(session) if last != Some(session) => {
                    last = Some(session);
                    self.wake(session);
                }
                Pushed::To(_) | Pushed::Waits => {}
                Pushed::Pointless => pointless += 1,
            }
        }
        self.left_out(over, left_out);
        pointless
    }

    pub(crate) fn settled(
        &mut self,
        session: u64,
        accepted: u32,
        refused: &[(TimerId, SettleRefusal)],
        now: Instant,
    ) -> Result<u64, &'static str> {
        self.settling.settled(session, accepted, refused, now, &self.routes)
    }

    pub(crate) fn extend(
        &mut self,
        over: &SessionHandle,
        id: TimerId,
        epoch: Epoch,
        attempt: u32,
        by_ms: u32,
    ) {
        let to = self.routes.settle_session(id.partition(), over);
        let to = to.filter(|to| self.routes.may_know(*to, over));
        if let Some(outbox) = to.and_then(|to| self.sessions.get_mut(&to)) {
            outbox.extend(id, epoch, attempt, by_ms);
        }
    }

    /// Queues operations.
    pub(crate) fn request(&mut self, calls: impl IntoIterator<Item = PendingOp>) {
        let mut last = None;
        for call in calls {
            match self.requests.push(call, &self.routes) {
                Some(session) if last != Some(session) => {
                    last = Some(session);
                    self.wake(session);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn reply(
        &mut self,
        session: u64,
        corr: u64,
        replies: Vec<OpReply>,
        now: Instant,
    ) -> Result<u64, &'static str> {
        self.requests.reply(session, corr, replies, now, &mut self.routes)
    }

    /// See [`Requests::sent`].
    pub(crate) fn sent(&mut self, frame: RequestFrame) -> u64 {
        self.requests.sent(frame)
    }

    /// See [`Requests::unsent`].
    pub(crate) fn unsent(&mut self, frame: RequestFrame, now: Instant, reason: &str) {
        self.requests.unsent(frame, now, reason);
    }

    /// Queues a question.
    pub(crate) fn ask(&mut self, asked: PendingQuery) {
        if let Some(session) = self.queries.push(asked, &self.routes) {
            self.wake(session);
        }
    }

    /// A question was answered. An error is a breach of the protocol.
    pub(crate) fn answer(
        &mut self,
        session: u64,
        corr: u64,
        answer: QueryAnswer,
        now: Instant,
    ) -> Result<(), &'static str> {
        match self.sessions.get_mut(&session).and_then(|outbox| outbox.passed(corr)) {
            Some(barrier) => self.pass(barrier),
            None => self.queries.answer(session, corr, answer, now, &mut self.routes)?,
        }
        Ok(())
    }

    pub(crate) fn outbox(&mut self, session: u64) -> Option<&mut SessionOutbox> {
        self.sessions.get_mut(&session)
    }

    /// What can be sent over a connection now; a little of everything.
    pub(crate) fn gather(&mut self, session: u64, time: Time, now: Instant, out: &mut Vec<Outgoing>) {
        let Some(outbox) = self.sessions.get_mut(&session) else { return };
        let queries = &mut self.queries;
        outbox.gather(now, || queries.number(), |message| out.push(Outgoing::Message(message)));
        out.extend(self.settling.next(session).map(|s| Outgoing::Message(ClientMessage::Settle(s))));
        out.extend(self.requests.next(session, time, now).map(Outgoing::Frame));
        let queries = std::iter::from_fn(|| self.queries.next(session)).take(QUERIES_AT_ONCE);
        let message = |(corr, query): (u64, Query)| Outgoing::Message(ClientMessage::Query { corr, query });
        out.extend(queries.map(message));
    }

    /// Looks at the time. Says whether there is something to send, and how many outcomes were given
    /// up.
    pub(crate) fn sweep(&mut self, now: Instant) -> (bool, u64) {
        let is_connected = self.is_connected();
        let unrouted = |goal: &Goal| match is_connected {
            true => self.routes.why_unrouted(goal, &self.fault),
            false => self.fault.clone(),
        };
        let requests = self.requests.sweep(now, unrouted, &self.routes);
        let queries = self.queries.sweep(now, unrouted, &self.routes);
        let (settlements, over) = self.settling.sweep(now, &self.routes);
        self.close_ending(now);
        self.ticking = !self.requests.is_empty() || !self.queries.is_empty() || self.is_timed();
        (requests || queries || settlements, over)
    }

    /// Whether there are outcomes or registrations whose time comes.
    pub(crate) fn is_timed(&self) -> bool {
        self.settling.is_waiting() || !self.ending.is_empty()
    }

    fn wake(&self, session: u64) {
        if let Some(outbox) = self.sessions.get(&session) {
            outbox.handle.to_send.notify_one();
        }
    }

    /// Wakes the writers.
    pub(crate) fn wake_all(&self) {
        self.sessions.values().for_each(|outbox| outbox.handle.to_send.notify_one());
    }

    /// The partitions that requests can be sent about just now.
    pub(crate) fn reachable(&self) -> Vec<PartitionId> {
        self.routes.reachable()
    }
}

#[cfg(test)]
pub(crate) mod tests;
