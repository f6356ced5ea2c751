//! The clients: their connections, their handlers, and the path of outcomes to the brokers.

use std::collections::BTreeMap;

use mtimer_core::{Input, SessionEvent, SessionId};
use mtimer_protocol::{Delivery, ServerMessage, SettleRefusal, Settlement};
use mtimer_types::{Destination, HandlerOutcome};

use super::clocks::deciding_us;
use super::load::dest;
use super::owners::index;
use super::{Event, START, World};

/// After how long an outcome that was not stored, or may not have been, is sent again, ms.
const AGAIN_MS: u64 = 10;

/// A connection.
#[derive(Debug)]
struct Session {
    client: usize,
    broker: usize,
    inc: u64,
    /// When the last frame arrives at either end, ms: frames keep their order.
    up: u64,
    down: u64,
    /// Outcomes that are not known to be dealt with. A confirmation does not say which outcome it
    /// is of, so they are kept until all of them are confirmed.
    unconfirmed: Vec<Settlement>,
    /// How many confirmations are missing.
    open: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    /// The id by which brokers know it again.
    durable: u128,
    /// By broker.
    pub(super) links: Vec<Option<SessionId>>,
    /// Does not connect before, ms.
    away_until: u64,
}

impl Client {
    pub(super) fn new(n: usize, brokers: usize) -> Self {
        Self { durable: 100 + n as u128, links: vec![None; brokers], away_until: 0 }
    }
}

#[derive(Default)]
pub(super) struct Sessions(BTreeMap<SessionId, Session>);

impl World {
    pub(super) fn connect(&mut self, n: usize, b: usize) {
        let Some(inc) = self.brokers[b].process.as_ref().map(|p| p.inc) else { return };
        if self.clients[n].links[b].is_some() {
            return;
        }
        if self.clients[n].away_until > self.ms {
            let after = self.clients[n].away_until - self.ms;
            return self.at(after, Event::Connect(n, b));
        }
        self.last_session += 1;
        let id = SessionId(self.last_session);
        let session = Session { client: n, broker: b, inc, up: 0, down: 0, unconfirmed: Vec::new(), open: 0 };
        self.sessions.0.insert(id, session);
        self.clients[n].links[b] = Some(id);
        let client = self.clients[n].durable;
        self.send_up(id, SessionEvent::Opened { client });
        self.register(id, 1, dest(n as u64));
        // A destination that all share.
        self.register(id, 2, dest(9));
        if self.all_served {
            self.register(id, 3, dest(7));
        }
    }

    pub(super) fn register(&mut self, session: SessionId, registration: u32, dest: Destination) {
        let credit = self.rng.pick(self.plan.credits);
        self.send_up(session, SessionEvent::Register { registration, dest, credit });
    }

    pub(super) fn send_up(&mut self, session: SessionId, event: SessionEvent) {
        let hop = self.hop();
        let ms = self.ms;
        let Some(s) = self.sessions.0.get_mut(&session) else { return };
        s.up = (ms + hop).max(s.up);
        let (after, b, inc) = (s.up - ms, s.broker, s.inc);
        self.at(after, Event::Arrive(b, inc, Input::Session(session, event)));
    }

    pub(super) fn send_down(&mut self, session: SessionId, message: ServerMessage) {
        let hop = self.hop();
        let ms = self.ms;
        let Some(s) = self.sessions.0.get_mut(&session) else { return };
        s.down = (ms + hop).max(s.down);
        let after = s.down - ms;
        self.at(after, Event::Frame(session, message));
    }

    /// A broker process is gone: its clients find out.
    pub(super) fn hang_up_all(&mut self, b: usize) {
        let ms = self.ms;
        let gone: Vec<(SessionId, u64)> = self
            .sessions
            .0
            .iter()
            .filter(|(_, s)| s.broker == b)
            .map(|(id, s)| (*id, (s.down.max(ms) - ms)))
            .collect();
        for (session, after) in gone {
            self.at(after + 1, Event::Hangup(session));
        }
    }

    pub(super) fn hung_up(&mut self, session: SessionId) {
        let Some(s) = self.sessions.0.remove(&session) else { return };
        let link = &mut self.clients[s.client].links[s.broker];
        if *link == Some(session) {
            *link = None;
        }
        // Whether the broker has dealt with these is unknown: they are sent again, to the present
        // owners of their partitions. But for those that were not begun: the same attempt may have
        // been sent again since.
        for settlement in s.unconfirmed.into_iter().filter(|s| s.outcome != HandlerOutcome::NotBegun) {
            self.at(AGAIN_MS, Event::Handled(s.client, settlement));
        }
        let after = self.rng.between(1, 50);
        self.at(after, Event::Connect(s.client, s.broker));
    }

    /// A client closes its connections and comes back later, with other credit.
    pub(super) fn leave(&mut self, n: usize, for_ms: u64) {
        self.clients[n].away_until = self.ms + for_ms;
        self.history.note(self.ms, None, || format!("client {n} leaves for {for_ms} ms"));
        for b in 0..self.brokers.len() {
            if let Some(session) = self.clients[n].links[b].take() {
                self.send_up(session, SessionEvent::Closed);
                self.sessions.0.remove(&session);
            }
            self.at(for_ms, Event::Connect(n, b));
        }
    }

    /// A client changes the credit of a registration, or gives it up for a moment.
    pub(super) fn change_credit(&mut self, n: usize) {
        let registered = self.rng.chance(70);
        for session in self.clients[n].links.clone().into_iter().flatten() {
            if !registered {
                self.send_up(session, SessionEvent::Unregister { registration: 1 });
            }
            self.register(session, 1, dest(n as u64));
        }
    }

    pub(super) fn receive(&mut self, session: SessionId, message: ServerMessage) {
        let Some(s) = self.sessions.0.get_mut(&session) else { return };
        let (client, broker) = (s.client, s.broker);
        match message {
            ServerMessage::Reply { corr, replies } => {
                if let Some(reply) = replies.into_iter().next() {
                    self.replied(corr, reply);
                }
            }
            ServerMessage::Deliver { deliveries, .. } => {
                for d in deliveries {
                    self.handle(session, client, broker, &d);
                }
            }
            ServerMessage::Settled { refused, .. } => {
                s.open -= 1;
                let mut again = Vec::new();
                for (id, why) in refused {
                    let at = s.unconfirmed.iter().rposition(|s| s.id == id);
                    let refused = at.map(|at| s.unconfirmed.remove(at));
                    again.extend(refused.filter(|_| why == SettleRefusal::Moved));
                }
                if s.open == 0 {
                    s.unconfirmed.clear();
                }
                for settlement in again {
                    self.at(AGAIN_MS, Event::Handled(client, settlement));
                }
            }
            _ => {}
        }
    }

    /// A handler takes a delivery, and will have an outcome after a while.
    fn handle(&mut self, session: SessionId, client: usize, broker: usize, d: &Delivery) {
        let us = self.us();
        let deciding = deciding_us(us, &self.brokers[broker].host, &self.clocks).max(0) as u64 / 1_000;
        let ahead = self.may_be_early_ms(broker);
        self.history.received(self.ms, deciding, ahead, d);
        self.load.delivered(d.id);
        let faults = self.plan.has_faults();
        let takes = match self.rng.below(100) {
            0..=3 if faults => self.rng.between(1_000, 3_000),
            4..=9 => self.rng.between(100, 1_200),
            _ => self.rng.below(40),
        };
        let outcome = match self.rng.below(100) {
            0..=9 => HandlerOutcome::Retry { after_ms: None, error: "later".into() },
            10..=16 => {
                let after_ms = self.rng.log_between(10, 5_000) as u32;
                let at = self.ms + 1 + takes + u64::from(after_ms);
                // Clocks that are corrected make the delay shorter or longer.
                let error = if self.plan.has_clocks() { "later".into() } else { format!("after {at}") };
                HandlerOutcome::Retry { after_ms: Some(after_ms), error }
            }
            17..=20 => HandlerOutcome::Fail { error: "no".into() },
            // No handler was free.
            25..=30 => HandlerOutcome::NotBegun,
            // Never says anything.
            21..=24 if faults => return,
            _ => HandlerOutcome::Ok,
        };
        let outcome =
            if self.plan.postpones { self.postponed(client, d, takes).unwrap_or(outcome) } else { outcome };
        if takes > 1_000 && self.rng.chance(50) {
            let (id, epoch, attempt) = (d.id, d.epoch, d.attempt);
            self.send_up(session, SessionEvent::Extend { id, epoch, attempt, by_ms: 5_000 });
        }
        let settlement = Settlement { id: d.id, epoch: d.epoch, attempt: d.attempt, outcome };
        self.at(1 + takes, Event::Handled(client, settlement));
    }

    /// The outcome of a handler that answers later, if this one does. Some say ok afterwards, in
    /// vain.
    fn postponed(&mut self, client: usize, d: &Delivery, takes: u64) -> Option<HandlerOutcome> {
        if !self.rng.chance(12) {
            return None;
        }
        if self.rng.chance(50) {
            let ok = Settlement { id: d.id, epoch: d.epoch, attempt: d.attempt, outcome: HandlerOutcome::Ok };
            let after = self.rng.between(1, 2_000);
            self.at(1 + takes + after, Event::Handled(client, ok));
        }
        Some(HandlerOutcome::Later { after_ms: self.rng.log_between(10, 20_000) as u32 })
    }

    /// An outcome goes to the broker that has the partition, if there is a connection to it.
    pub(super) fn settle(&mut self, n: usize, mut settlement: Settlement) {
        let owner = self.topology.owner(settlement.id.partition()).and_then(index).unwrap_or(0);
        let links = &self.clients[n].links;
        let Some(session) = links[owner].or_else(|| links.iter().flatten().next().copied()) else {
            return self.at(20, Event::Handled(n, settlement));
        };
        let Settlement { id, epoch, attempt, outcome } = &settlement;
        self.history.settled(self.ms, *id, *epoch, *attempt, outcome);
        if let Some(s) = self.sessions.0.get_mut(&session) {
            s.unconfirmed.push(settlement.clone());
            s.open += 1;
        }
        if let Some(sabotage) = self.plan.sabotage {
            sabotage.mishear_settlement(&mut settlement);
        }
        self.send_up(session, SessionEvent::Settle(vec![settlement]));
    }

    /// From now on somebody is registered for every destination, and has credit.
    pub(super) fn serve_all(&mut self) {
        self.all_served = true;
        for n in 0..self.clients.len() {
            for session in self.clients[n].links.clone().into_iter().flatten() {
                self.register(session, 3, dest(7));
            }
        }
    }

    /// The time as a client knows it: a broker has told it.
    pub(super) fn client_time(&mut self) -> mtimer_types::Time {
        let known = (0..self.brokers.len()).find_map(|b| self.now_of(b));
        known.map_or(mtimer_types::Time::from_ms(START + self.ms), |now| now.time)
    }
}
