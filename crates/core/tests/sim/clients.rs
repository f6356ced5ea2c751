//! The clients: what they schedule and edit, repeat, handle and settle.

use std::collections::BTreeMap;

use mtimer_core::{Input, SessionEvent, SessionId};
use mtimer_protocol::{Request, RequestOp, ServerMessage, SettleRefusal, Settlement};
use mtimer_types::{
    Destination, HandlerOutcome, Key, KeyPolicy, Mode, PartitionId, RetryTiers, Target, Time, Timer, TimerId,
};

use super::{PARTITIONS, START, World, history};

pub(super) struct Client {
    pub(super) session: Option<SessionId>,
    pub(super) back_at: u64,
    durable: u128,
    /// Settlements to send, by time.
    pub(super) handling: BTreeMap<u64, Vec<Settlement>>,
    /// What was sent and not confirmed.
    sent: Vec<Settlement>,
}

impl Client {
    /// Comes at once. `durable`: by what brokers know it again.
    pub(super) fn new(durable: u128) -> Self {
        let (handling, sent) = (BTreeMap::new(), Vec::new());
        Self { session: None, back_at: 0, durable, handling, sent }
    }
}

/// A request of a client that was not answered yet.
pub(super) struct Asked {
    op: RequestOp,
    first_sent: Time,
    sent: u64,
    /// Of each time that it was sent.
    corrs: Vec<u64>,
}

fn dest(n: u64) -> Destination {
    Destination::new("sim", &format!("app{n}")).expect("a valid name")
}

impl World {
    pub(super) fn run_clients(&mut self) {
        for n in 0..self.clients.len() {
            let ms = self.ms;
            let c = &mut self.clients[n];
            let Some(session) = c.session else {
                if c.back_at <= ms {
                    self.sessions += 1;
                    let session = SessionId(self.sessions);
                    c.session = Some(session);
                    let client = c.durable;
                    self.input(Input::Session(session, SessionEvent::Opened { client }));
                    let credit = self.plan.credit;
                    let event = SessionEvent::Register { registration: 1, dest: dest(n as u64), credit };
                    self.input(Input::Session(session, event));
                    // A destination that two sessions share.
                    let event = SessionEvent::Register { registration: 2, dest: dest(9), credit };
                    self.input(Input::Session(session, event));
                }
                continue;
            };
            let mut due = Vec::new();
            while let Some(e) = c.handling.first_entry().filter(|e| *e.key() <= ms) {
                due.extend(e.remove());
            }
            if !due.is_empty() {
                for s in &due {
                    self.history.settled(ms, s);
                }
                self.clients[n].sent.extend(due.iter().cloned());
                self.input(Input::Session(session, SessionEvent::Settle(due)));
            }
        }
        self.repeat_requests();
    }

    /// Asks again what was not answered for a while, as the SDK does.
    fn repeat_requests(&mut self) {
        let Some(session) = self.clients.iter().find_map(|c| c.session) else { return };
        let now = self.now().time;
        self.asked.retain(|a| now.ms_since(a.first_sent) < 25_000);
        let mut requests = Vec::new();
        for a in self.asked.iter_mut().filter(|a| a.sent == 0 || a.sent + self.patience < self.ms) {
            a.sent = self.ms;
            self.corr += 1;
            a.corrs.push(self.corr);
            requests.push(Request { corr: self.corr, first_sent: a.first_sent, ops: vec![a.op.clone()] });
        }
        for request in requests {
            self.input(Input::Session(session, SessionEvent::Request(request)));
        }
    }

    fn ask(&mut self, op: RequestOp) {
        self.asked.push(Asked { op, first_sent: self.now().time, sent: 0, corrs: Vec::new() });
    }

    pub(super) fn schedule_one(&mut self) {
        let r = self.rng.next();
        let d = dest([0, 0, 1, 2, 9, 9, 7][(r % 7) as usize]);
        let now = self.now().time;
        let due = match self.rng.below(10) {
            0 => now - 50,
            1..=5 => now + self.rng.below(3_000),
            _ => now + self.rng.below(15_000),
        };
        let key = self.rng.chance(30).then(|| Key::new(&format!("k{}", r % 12)).expect("a valid key"));
        let partition = match &key {
            Some(key) => PartitionId::of_key(&d, key, PARTITIONS),
            None => PartitionId((r >> 8) as u16 % PARTITIONS),
        };
        let id = TimerId::new(due, now, partition, self.rng.next());
        let mode = if self.rng.chance(25) { Mode::AtMostOnce } else { Mode::AtLeastOnce };
        let deadline = self.rng.chance(10).then(|| due + self.rng.below(2_000));
        let retry = self.rng.chance(20).then(|| RetryTiers(vec![50]));
        let timer = Timer {
            id,
            dest: d,
            key: key.clone(),
            due,
            mode,
            deadline,
            callback_timeout_ms: None,
            retry,
            payload: vec![7; (r % 300) as usize].into(),
        };
        let policy = [KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep][(r >> 20) as usize % 3];
        self.history.asked_schedule(&timer, policy);
        self.ids.push((id, key));
        self.ask(RequestOp::Schedule { timer: timer.into(), policy });
    }

    pub(super) fn edit_one(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        let pick = self.rng.below(self.ids.len() as u64) as usize;
        let late = self.rng.chance(50);
        let id = self.latest.front().copied().filter(|_| late).unwrap_or(self.ids[pick].0);
        let target = Target::Id(id);
        let request = self.rng.next();
        let op = if self.rng.chance(50) {
            RequestOp::Cancel { target, request }
        } else {
            let due = self.now().time + self.rng.below(6_000);
            RequestOp::Reschedule { target, due, request }
        };
        self.ask(op);
    }

    pub(super) fn receive(&mut self, session: SessionId, message: ServerMessage) {
        match message {
            ServerMessage::Reply { corr, replies } => {
                let Some(ix) = self.asked.iter().position(|a| a.corrs.contains(&corr)) else { return };
                let again = history::is_temporary(&replies[0]);
                if !again {
                    let asked = self.asked.swap_remove(ix);
                    let since = asked.first_sent.as_ms() - START;
                    self.history.answered(since, self.ms, &asked.op, &replies[0]);
                }
            }
            ServerMessage::Deliver { deliveries, .. } => {
                let Some(n) = self.clients.iter().position(|c| c.session == Some(session)) else { return };
                for d in deliveries {
                    self.history.delivered_at(self.ms, START + self.ms, &d);
                    self.latest.push_back(d.id);
                    if self.latest.len() > 8 {
                        self.latest.pop_front();
                    }
                    let outcome = match self.rng.below(100) {
                        0..=74 => HandlerOutcome::Ok,
                        75..=84 => HandlerOutcome::Retry { after_ms: None, error: "later".into() },
                        85..=87 => HandlerOutcome::Retry { after_ms: Some(300), error: "later".into() },
                        88..=91 => HandlerOutcome::Fail { error: "no".into() },
                        // Never answers, when there are faults.
                        92..=95 if self.plan.faults => continue,
                        _ => HandlerOutcome::Ok,
                    };
                    let takes =
                        if self.plan.faults && self.rng.chance(3) { 1_500 } else { self.rng.below(40) };
                    let s = Settlement { id: d.id, epoch: d.epoch, attempt: d.attempt, outcome };
                    self.clients[n].handling.entry(self.ms + 1 + takes).or_default().push(s);
                }
            }
            ServerMessage::Settled { refused, .. } => {
                let Some(n) = self.clients.iter().position(|c| c.session == Some(session)) else { return };
                let again = self.ms + 10;
                let c = &mut self.clients[n];
                for (id, why) in refused {
                    let latest = c.sent.iter().rposition(|s| s.id == id);
                    if let Some(at) = latest.filter(|_| why == SettleRefusal::Moved) {
                        let s = c.sent.remove(at);
                        c.handling.entry(again).or_default().push(s);
                    }
                }
                let most = 10_000.min(c.sent.len());
                c.sent.drain(..c.sent.len() - most);
            }
            _ => {}
        }
    }
}
