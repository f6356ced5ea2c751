//! Everything that waits to be sent or answered, behind one lock that is held for moments only.
//!
//! Invariant: what is in here is bounded: operations and questions by the room that their callers took, outcomes by the
//! credit that was given, registrations by their limit, pongs and pings by their own.
//!
//! Not in here: sockets and tasks. A session takes messages out ([`Outbox::gather`]) and puts answers in.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use mtimer_protocol::{ClientMessage, Query, QueryAnswer, Settlement};
use mtimer_types::limits::MAX_REGISTRATIONS;
use mtimer_types::{Epoch, Time, TimerId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::RegisterError;
use crate::inbox::Inbox;
use crate::queries::Queries;
use crate::requests::{Frame, Requests};
use crate::settling::Settling;

/// Pongs and the like that may wait for a connection that takes nothing.
const MAX_CONTROL: usize = 2 * MAX_REGISTRATIONS + 64;
/// Questions sent in one go.
const QUERIES_AT_ONCE: usize = 64;
/// Pings without an answer.
const MAX_PINGS: usize = 64;

/// How far a client is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
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
    /// To be handed to [`Requests::sent`] before it is written.
    Frame(Frame),
}

/// What happens once the broker has taken in what was sent before, and everything that it sent until then has come in.
/// A pong does not tell that: it is sent past everything else. The answer to a question does, so one is asked about
/// the timer with id 0.
#[derive(Debug)]
enum Barrier {
    /// Nothing comes for this registration any more.
    Unregistered(u32),
    /// Somebody waits.
    Notify(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) stage: Stage,
    /// Counts connections; 0 before the first.
    pub(crate) session: u64,
    pub(crate) connected: bool,
    /// Why there is no connection, for errors.
    pub(crate) fault: String,
    /// The broker wants to stop: it gets outcomes only.
    pub(crate) stopping: bool,
    /// Deliveries of this connection whose outcome was not queued yet.
    pub(crate) unsettled: u64,
    pub(crate) requests: Requests,
    pub(crate) queries: Queries,
    pub(crate) settling: Settling,
    /// Somebody looks at the time every now and then.
    pub(crate) ticking: bool,
    control: VecDeque<ClientMessage>,
    extends: HashMap<(TimerId, Epoch, u32), u32>,
    barriers: VecDeque<Barrier>,
    /// By the number of the question.
    barriers_sent: BTreeMap<u64, Barrier>,
    ping: bool,
    pings_sent: BTreeMap<u64, Instant>,
    last_ping: u64,
    registrations: BTreeMap<u32, Arc<Inbox>>,
    last_registration: u32,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Open,
            session: 0,
            connected: false,
            fault: "not connected yet".to_owned(),
            stopping: false,
            unsettled: 0,
            requests: Requests::new(),
            queries: Queries::default(),
            settling: Settling::default(),
            ticking: false,
            control: VecDeque::new(),
            extends: HashMap::new(),
            barriers: VecDeque::new(),
            barriers_sent: BTreeMap::new(),
            ping: false,
            pings_sent: BTreeMap::new(),
            last_ping: 0,
            registrations: BTreeMap::new(),
            last_registration: 0,
        }
    }

    /// A connection is there: renews the registrations.
    pub(crate) fn connected(&mut self, max_frame: u32, max_batch: u32) {
        self.session += 1;
        self.connected = true;
        self.stopping = false;
        self.requests.limits(max_frame, max_batch);
        if self.stage == Stage::Open {
            let all = self.registrations.iter().map(|(number, inbox)| register(*number, inbox));
            self.control.extend(all);
        } else {
            self.control.push_back(ClientMessage::Goodbye);
        }
        self.ping = true;
    }

    /// The connection is gone. Returns how many outcomes became pointless, and how many callbacks.
    pub(crate) fn disconnected(&mut self, fault: String) -> (u64, u64) {
        self.connected = false;
        self.fault = fault;
        self.unsettled = 0;
        self.control.clear();
        self.extends.clear();
        self.requests.disconnected();
        self.queries.disconnected();
        let pointless = self.settling.disconnected();
        let dropped = self.registrations.values().map(|inbox| inbox.disconnected()).sum();
        self.pings_sent.clear();
        let sent = std::mem::take(&mut self.barriers_sent).into_values();
        for barrier in std::mem::take(&mut self.barriers).into_iter().chain(sent) {
            self.pass(barrier);
        }
        (pointless, dropped)
    }

    /// The client is closed.
    pub(crate) fn close(&mut self) {
        self.stage = Stage::Closed;
        self.connected = false;
        self.barriers.clear();
        self.barriers_sent.clear();
        self.requests.close();
        self.queries.close();
        std::mem::take(&mut self.registrations).into_values().for_each(|inbox| inbox.close());
    }

    /// Whether nothing waits for the broker.
    pub(crate) fn is_idle(&self) -> bool {
        self.settling.unconfirmed() == 0 && self.requests.is_empty() && self.queries.is_empty()
    }

    /// Whether a broker that wants to stop owes nothing and is owed nothing.
    pub(crate) fn may_leave(&self) -> bool {
        self.stopping && self.unsettled == 0 && self.settling.unconfirmed() == 0 && self.requests.none_sent()
    }

    pub(crate) fn register(&mut self, inbox: Arc<Inbox>) -> Result<u32, RegisterError> {
        if self.stage != Stage::Open {
            return Err(RegisterError::Closed);
        }
        if self.registrations.len() >= MAX_REGISTRATIONS {
            return Err(RegisterError::TooMany { limit: MAX_REGISTRATIONS });
        }
        self.last_registration += 1;
        if self.connected {
            self.control.push_back(register(self.last_registration, &inbox));
        }
        self.registrations.insert(self.last_registration, inbox);
        Ok(self.last_registration)
    }

    /// Takes no more callbacks; the inbox closes when everything that was on its way is in it.
    pub(crate) fn unregister(&mut self, number: u32) {
        if !self.registrations.get(&number).is_some_and(|inbox| inbox.begin_end()) {
            return;
        }
        if !self.connected {
            return self.pass(Barrier::Unregistered(number));
        }
        if self.stage == Stage::Open {
            self.control.push_back(ClientMessage::Unregister { registration: number });
        }
        self.barriers.push_back(Barrier::Unregistered(number));
    }

    /// Takes no more callbacks at all. What it returns ends when everything that was on its way is in.
    pub(crate) fn drain(&mut self) -> oneshot::Receiver<()> {
        let (notify, passed) = oneshot::channel();
        if self.connected && self.stage == Stage::Open {
            self.control.push_back(ClientMessage::Goodbye);
        }
        self.stage = self.stage.max(Stage::Draining);
        if self.connected {
            self.barriers.push_back(Barrier::Notify(notify));
        }
        passed
    }

    /// The registrations there are; they get no more callbacks.
    pub(crate) fn end_registrations(&mut self) -> Vec<Arc<Inbox>> {
        let inboxes: Vec<_> = self.registrations.values().cloned().collect();
        inboxes.iter().for_each(|inbox| inbox.close());
        inboxes
    }

    pub(crate) fn inbox(&self, registration: u32) -> Option<&Arc<Inbox>> {
        self.registrations.get(&registration)
    }

    /// Whether this number was ever given out.
    pub(crate) fn knows(&self, registration: u32) -> bool {
        (1..=self.last_registration).contains(&registration)
    }

    /// Queues outcomes of deliveries that came over connection `session`. Returns how many are pointless.
    pub(crate) fn settle(&mut self, session: u64, outcomes: &mut Vec<Settlement>) -> u64 {
        if self.connected && session == self.session {
            self.unsettled = self.unsettled.saturating_sub(outcomes.len() as u64);
            self.settling.push(outcomes.drain(..));
            return 0;
        }
        let all = outcomes.len();
        outcomes.retain(|s| s.outcome == mtimer_types::HandlerOutcome::Ok);
        let pointless = all - outcomes.len();
        self.settling.push(outcomes.drain(..));
        pointless as u64
    }

    pub(crate) fn extend(&mut self, id: TimerId, epoch: Epoch, attempt: u32, by_ms: u32) {
        if self.connected {
            self.extends.insert((id, epoch, attempt), by_ms);
        }
    }

    pub(crate) fn ping(&mut self) {
        self.ping = true;
    }

    /// An error is a breach of the protocol.
    pub(crate) fn pong(&mut self, number: u64) -> Result<(), &'static str> {
        if self.control.len() >= MAX_CONTROL {
            return Err("pings faster than they can be answered");
        }
        self.control.push_back(ClientMessage::Pong(number));
        Ok(())
    }

    /// A ping was answered: when it was sent. An error is a breach of the protocol.
    pub(crate) fn ponged(&mut self, number: u64) -> Result<Instant, &'static str> {
        self.pings_sent.remove(&number).ok_or("a pong to a ping that was never sent")
    }

    /// A question was answered. An error is a breach of the protocol.
    pub(crate) fn answer(
        &mut self,
        corr: u64,
        answer: QueryAnswer,
        now: Instant,
    ) -> Result<(), &'static str> {
        match self.barriers_sent.remove(&corr) {
            Some(barrier) => self.pass(barrier),
            None => self.queries.answer(corr, answer, now)?,
        }
        Ok(())
    }

    /// Whether the broker leaves pings unanswered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.pings_sent.len() >= MAX_PINGS
    }

    /// What can be sent now; a little of everything, in this order.
    pub(crate) fn gather(&mut self, time: Time, now: Instant, out: &mut Vec<Outgoing>) {
        out.extend(self.control.drain(..).map(Outgoing::Message));
        for barrier in std::mem::take(&mut self.barriers) {
            let corr = self.queries.number();
            self.barriers_sent.insert(corr, barrier);
            let query = Query::Get(TimerId::from_u128(0).into());
            out.push(Outgoing::Message(ClientMessage::Query { corr, query }));
        }
        if std::mem::take(&mut self.ping) {
            self.last_ping += 1;
            self.pings_sent.insert(self.last_ping, now);
            out.push(Outgoing::Message(ClientMessage::Ping(self.last_ping)));
        }
        let extends = self.extends.drain();
        out.extend(extends.map(|((id, epoch, attempt), by_ms)| {
            Outgoing::Message(ClientMessage::Extend { id, epoch, attempt, by_ms })
        }));
        out.extend(self.settling.next().map(|s| Outgoing::Message(ClientMessage::Settle(s))));
        if self.stopping {
            return;
        }
        out.extend(self.requests.next(time, now).map(Outgoing::Frame));
        let queries = std::iter::from_fn(|| self.queries.next()).take(QUERIES_AT_ONCE);
        out.extend(
            queries
                .map(|(corr, query): (u64, Query)| Outgoing::Message(ClientMessage::Query { corr, query })),
        );
    }

    /// Looks at the time. Says whether there is something to send, and whether to look again.
    pub(crate) fn sweep(&mut self, now: Instant) -> (bool, bool) {
        let reason = if self.connected { "the broker does not take it" } else { self.fault.as_str() };
        let requests = self.requests.sweep(now, reason);
        let queries = self.queries.sweep(now, reason);
        self.ticking = !self.requests.is_empty() || !self.queries.is_empty();
        (requests || queries, self.ticking)
    }

    fn pass(&mut self, barrier: Barrier) {
        match barrier {
            Barrier::Unregistered(number) => {
                if let Some(inbox) = self.registrations.remove(&number) {
                    inbox.close();
                }
            }
            // Whoever waited may have stopped waiting.
            Barrier::Notify(notify) => drop(notify.send(())),
        }
    }
}

fn register(registration: u32, inbox: &Inbox) -> ClientMessage {
    ClientMessage::Register { registration, dest: inbox.dest.clone(), credit: inbox.credit }
}
