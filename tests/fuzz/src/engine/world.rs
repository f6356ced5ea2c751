//! An engine, its sessions, and the steps that a program takes with them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mtimer_core::{Effect, Engine, EngineOptions, Input, Now, SessionEvent, SessionId};
use mtimer_protocol::sample::{all_counts, all_forecast, all_pending};
use mtimer_protocol::{
    BrokerEntry, Delivery, OpReply, PendingQuery, Query, QueryAnswer, Request, RequestOp, ServerMessage,
    Settlement, Topology,
};
use mtimer_store::{Health, LaneError};
use mtimer_types::{Destination, Epoch, HandlerOutcome, Key, PartitionId, RetryTiers, Term, Time};

use super::backend::{Acquired, Backend, Known};
use super::input::Program;

pub(super) const START: u64 = 1_700_000_000_000;
pub(super) const PARTITIONS: u16 = 2;
const SLOTS: usize = 4;
const APPS: [&str; 3] = ["a", "b", "c"];
const ADDRESS: &str = "a:1";
/// Steps of one program at most.
const MAX_STEPS: usize = 300;

struct Client {
    session: SessionId,
    /// Requests and queries without an answer, with the number of their operations (queries: 0).
    unanswered: HashMap<u64, usize>,
    /// Settlements of the messages without an answer.
    unsettled: Vec<usize>,
}

pub(super) struct World<B: Backend> {
    pub(super) engine: Engine,
    options: EngineOptions,
    pub(super) known: Known,
    pub(super) backend: B,
    lanes: [Option<(Epoch, VecDeque<B::Open>)>; PARTITIONS as usize],
    clients: [Option<Client>; SLOTS],
    sessions: u64,
    corr: u64,
    pub(super) requests: u64,
    /// Deliveries to clients, the latest last.
    deliveries: Vec<(SessionId, Delivery)>,
    /// What the last view of the broker said.
    view: Option<mtimer_protocol::BrokerView>,
    topology: u64,
    pub(super) draining: bool,
    released: bool,
    /// Print what goes in and what comes out.
    trace: bool,
}

pub(super) fn dest(n: usize) -> Destination {
    Destination::new("g", APPS[n % APPS.len()]).expect("these names are valid")
}

pub(super) fn key(n: usize) -> Option<Key> {
    ["", "k", "l", "m"].get(n % 4).and_then(|k| Key::new(k).ok())
}

impl<B: Backend> World<B> {
    pub(super) fn new(backend: B, program: &mut Program<'_>) -> Self {
        let now = Now { time: Time::from_ms(START), mono_ms: 1_000 };
        let options = EngineOptions {
            address: program.flag().then(|| ADDRESS.to_owned()),
            partitions: PARTITIONS,
            preload_ms: 2_000,
            memory_bytes: program.one([256 << 20, 20_000, 3_000, 0]),
            batch_ops: program.one([500, 3, 1, 0]),
            park_after_ms: program.one([250, 20]),
            retry: RetryTiers(vec![100, 500]),
            jitter_percent: 10,
            callback_timeout_ms: 1_000,
            dead_max_count: program.one([1_000, 1]),
            ..EngineOptions::default()
        };
        let known = Known { now, timers: Vec::new() };
        let mut world = Self {
            engine: Engine::new(options.clone(), now),
            options,
            known,
            backend,
            lanes: [None, None],
            clients: [const { None }; SLOTS],
            sessions: 0,
            corr: 0,
            requests: 0,
            deliveries: Vec::new(),
            view: None,
            topology: 0,
            draining: false,
            released: false,
            trace: std::env::var_os("MTIMER_FUZZ_TRACE").is_some(),
        };
        (0..PARTITIONS).for_each(|p| world.acquire(PartitionId(p), program));
        world.flush();
        world
    }

    /// Takes steps until the program is over.
    pub(super) fn run(&mut self, program: &mut Program<'_>) {
        for _ in 0..MAX_STEPS {
            if program.is_over() {
                return;
            }
            let step = program.byte();
            self.step(step & 0x3f, program);
            // Some turns have several inputs.
            if step & 0xc0 != 0xc0 {
                self.flush();
            }
        }
    }

    fn step(&mut self, step: u8, program: &mut Program<'_>) {
        let at = PartitionId(u16::from(step) % PARTITIONS);
        match step / 2 {
            0 => self.advance(u64::from(program.byte() % 32)),
            1 => self.advance(u64::from(program.byte()) * 20),
            // The cluster's clock stands still.
            2 => self.known.now.mono_ms += u64::from(program.byte()) * 10,
            3 => self.open(program),
            4 => self.close(program),
            5 | 6 => self.register(program),
            7 => {
                let registration = u32::from(program.byte() % 4);
                self.tell(program, SessionEvent::Unregister { registration });
            }
            8..=11 => self.request(program),
            12..=14 => self.settle(program),
            15 => self.extend(program),
            16 => self.query(program),
            17 => self.tell(program, SessionEvent::Goodbye),
            18..=21 => self.answer_some(at, 1 + program.below(8), program),
            22 | 23 => (0..PARTITIONS).for_each(|p| self.answer_some(PartitionId(p), 64, program)),
            24 => self.input(Input::Disown(at)),
            25 => self.acquire(at, program),
            26 | 27 => {
                let health = self.backend.disturb(at, program);
                if let Some(health) = health.filter(|_| self.lanes[usize::from(at.0)].is_some()) {
                    self.input(Input::Health { partition: at, health });
                }
            }
            28 => self.adopt_topology(program),
            29 => self.input(Input::Tick),
            30 if program.byte() > 200 => {
                self.draining = true;
                self.input(Input::Drain);
            }
            _ => self.advance(1),
        }
    }

    fn input(&mut self, input: Input) {
        if self.trace {
            eprintln!("{:?} <- {input:?}", self.known.now);
        }
        self.engine.handle(self.known.now, input);
    }

    pub(super) fn advance(&mut self, ms: u64) {
        self.known.now.mono_ms += ms;
        self.known.now.time = self.known.now.time + ms;
    }

    pub(super) fn acquire(&mut self, at: PartitionId, program: &mut Program<'_>) {
        if self.lanes[usize::from(at.0)].is_some() || self.released {
            return;
        }
        let Some(Acquired { epoch, prior_claim, in_flight }) = self.backend.acquire(at, &self.known, program)
        else {
            return;
        };
        self.lanes[usize::from(at.0)] = Some((epoch, VecDeque::new()));
        self.input(Input::Acquired { partition: at, epoch, prior_claim, in_flight });
    }

    fn adopt_topology(&mut self, program: &mut Program<'_>) {
        self.topology += 1;
        let owners = (0..PARTITIONS).map(|_| program.one([None, Some(0), Some(1)])).collect();
        let brokers =
            [ADDRESS, "b:1"].map(|address| BrokerEntry { address: address.to_owned(), draining: false });
        let topology = Topology {
            term: Term(1),
            version: self.topology,
            leader: ADDRESS.to_owned(),
            brokers: brokers.into(),
            owners,
        };
        self.input(Input::Topology(Arc::new(topology)));
    }

    fn open(&mut self, program: &mut Program<'_>) {
        let slot = program.below(SLOTS);
        self.open_at(slot);
    }

    fn open_at(&mut self, slot: usize) {
        if self.clients[slot].is_some() {
            return;
        }
        self.sessions += 1;
        let session = SessionId(self.sessions);
        self.clients[slot] = Some(Client { session, unanswered: HashMap::new(), unsettled: Vec::new() });
        // A slot is a client: it comes back under its name.
        self.input(Input::Session(session, SessionEvent::Opened { client: slot as u128 % 3 }));
    }

    fn close(&mut self, program: &mut Program<'_>) {
        let slot = program.below(SLOTS);
        self.close_at(slot);
    }

    fn close_at(&mut self, slot: usize) {
        if let Some(client) = self.clients[slot].take() {
            self.input(Input::Session(client.session, SessionEvent::Closed));
        }
    }

    /// The session of some slot, if it is open.
    fn session(&self, program: &mut Program<'_>) -> Option<SessionId> {
        self.clients[program.below(SLOTS)].as_ref().map(|c| c.session)
    }

    fn client(&mut self, session: SessionId) -> Option<&mut Client> {
        self.clients.iter_mut().flatten().find(|c| c.session == session)
    }

    fn tell(&mut self, program: &mut Program<'_>, event: SessionEvent) {
        if let Some(session) = self.session(program) {
            self.input(Input::Session(session, event));
        }
    }

    fn register(&mut self, program: &mut Program<'_>) {
        let byte = usize::from(program.byte());
        let (registration, dest) = ((byte % 4) as u32, dest(byte / 4));
        let credit = program.one([1, 2, 0, 10, u32::MAX]);
        self.tell(program, SessionEvent::Register { registration, dest, credit });
    }

    fn request(&mut self, program: &mut Program<'_>) {
        let Some(session) = self.session(program) else { return };
        let count = program.one([1, 1, 1, 2, 3, 8]);
        let ops: Vec<RequestOp> = (0..count).map(|_| self.operation(program)).collect();
        let first_sent = self.known.now.time - program.one([0, 0, 0, 20_000, 40_000]);
        self.corr += 1;
        let corr = self.corr;
        if let Some(client) = self.client(session) {
            client.unanswered.insert(corr, ops.len());
        }
        self.input(Input::Session(session, SessionEvent::Request(Request { corr, first_sent, ops })));
    }

    fn settle(&mut self, program: &mut Program<'_>) {
        let Some(session) = self.session(program) else { return };
        let count = program.one([1, 1, 2, 4]);
        let mut settlements = Vec::new();
        for _ in 0..count {
            let back = program.below(self.deliveries.len().min(256));
            let Some((_, d)) = self.deliveries.iter().rev().nth(back) else { continue };
            let (id, epoch, attempt) = (d.id, d.epoch, d.attempt);
            let error = || "no".to_owned();
            let byte = program.byte();
            let outcome = match byte % 8 {
                // Other bytes keep their meaning, so that the corpus keeps its value.
                _ if byte == 255 => HandlerOutcome::Later { after_ms: 30 },
                0..=3 => HandlerOutcome::Ok,
                4 | 5 => HandlerOutcome::Retry { after_ms: None, error: error() },
                6 => HandlerOutcome::Retry { after_ms: Some(30), error: error() },
                _ => HandlerOutcome::Fail { error: error() },
            };
            let attempt = program.one([attempt, attempt, attempt, attempt.wrapping_sub(1), attempt + 1]);
            settlements.push(Settlement { id, epoch, attempt, outcome });
        }
        self.send_settlements(session, settlements);
    }

    fn send_settlements(&mut self, session: SessionId, settlements: Vec<Settlement>) {
        if settlements.is_empty() {
            return;
        }
        if let Some(client) = self.client(session) {
            client.unsettled.push(settlements.len());
        }
        self.input(Input::Session(session, SessionEvent::Settle(settlements)));
    }

    fn extend(&mut self, program: &mut Program<'_>) {
        let back = program.below(self.deliveries.len().min(256));
        let Some((session, d)) = self.deliveries.iter().rev().nth(back) else { return };
        // Much less than a day, for which the next owner would honour it, too.
        let by_ms = program.one([0, 100, 2_000, 8_000]);
        let event = SessionEvent::Extend { id: d.id, epoch: d.epoch, attempt: d.attempt, by_ms };
        self.input(Input::Session(*session, event));
    }

    fn query(&mut self, program: &mut Program<'_>) {
        let byte = program.byte();
        let query = match byte % 9 {
            // So that recorded inputs mean what they meant.
            _ if byte == 0xff => {
                let (dest, partition) =
                    (dest((program.byte() % 2).into()), u16::from(program.byte()) % (PARTITIONS + 1));
                Query::Parked { dest, cursor: Some((partition, 0)), limit: u32::MAX }
            }
            _ if byte == 0xfe => Query::Forecast(all_forecast(u16::from(program.byte()) % (PARTITIONS + 1))),
            _ if byte >= 0xfc => Query::Bulks { partition: u16::from(program.byte()) % (PARTITIONS + 1) },
            _ if byte == 0xfa => Query::Settings { partition: u16::from(program.byte()) % (PARTITIONS + 1) },
            _ if byte == 0xfb => Query::Story(self.target(program)),
            0 => Query::Get(self.target(program)),
            1 => Query::Dead { group: None, app: None, cursor: None, limit: 2 },
            2 => Query::Unconfirmed { cursor: Some((program.byte().into(), 1)), limit: u32::MAX },
            3 => Query::Status,
            4 => Query::Broker,
            5 => Query::Ready,
            6 => {
                let payloads = program.flag();
                let all = all_pending(u16::from(program.byte()) % (PARTITIONS + 1));
                Query::Pending(PendingQuery { payloads, ..all }.into())
            }
            7 => Query::Counts(all_counts(u16::from(program.byte()) % (PARTITIONS + 1))),
            _ => Query::Cluster,
        };
        if let Some(session) = self.session(program) {
            self.ask(session, query);
        }
    }

    fn ask(&mut self, session: SessionId, query: Query) {
        self.corr += 1;
        let corr = self.corr;
        if let Some(client) = self.client(session) {
            client.unanswered.insert(corr, 0);
        }
        self.input(Input::Session(session, SessionEvent::Query { corr, query }));
    }

    /// Answers the oldest open calls of a partition.
    fn answer_some(&mut self, at: PartitionId, most: usize, program: &mut Program<'_>) {
        for _ in 0..most {
            let Some((epoch, open)) = &mut self.lanes[usize::from(at.0)] else { return };
            let (epoch, Some(call)) = (*epoch, open.pop_front()) else { return };
            match self.backend.answer(at, call, &self.known, program) {
                Ok(answer) => self.input(Input::Answered { partition: at, epoch, answer }),
                Err(call) => {
                    if let Some((_, open)) = &mut self.lanes[usize::from(at.0)] {
                        open.push_front(call);
                    }
                    return;
                }
            }
        }
    }

    /// Ends the turn and carries out what follows from it.
    pub(super) fn flush(&mut self) {
        let mut effects = Vec::new();
        self.engine.flush(self.known.now, &mut effects);
        for effect in effects {
            if self.trace {
                eprintln!("{:?} -> {effect:?}", self.known.now);
            }
            match effect {
                Effect::Send(session, message) | Effect::SendBy(session, message, _) => {
                    self.receive(session, message);
                }
                // No destination has limits here.
                Effect::AskShares(_) => {}
                // What is sent leaves at once: there is nothing to take back.
                Effect::Recall(..) => {}
                Effect::Close(session, _) => {
                    let slot =
                        self.clients.iter().position(|c| c.as_ref().is_some_and(|c| c.session == session));
                    slot.into_iter().for_each(|slot| self.close_at(slot));
                }
                Effect::Call(at, call) => {
                    // A lane that has ended in this turn takes nothing.
                    let open = self.backend.call(at, call);
                    match &mut self.lanes[usize::from(at.0)] {
                        Some((_, calls)) => calls.push_back(open),
                        None => self.backend.ended(at, VecDeque::from([open])),
                    }
                }
                Effect::Alarm(_) => {}
                Effect::LaneEnded(at, error) => {
                    if let LaneError::Broken(text) = &error {
                        assert!(!text.contains("another kind"), "the engine mistook an answer: {text}");
                    }
                    if let Some((_, open)) = self.lanes[usize::from(at.0)].take() {
                        self.backend.ended(at, open);
                    }
                }
                Effect::Settled(..) | Effect::Died(_) | Effect::Stored(_) => {}
                Effect::Released => self.released = true,
            }
        }
    }

    fn receive(&mut self, session: SessionId, message: ServerMessage) {
        // A message to a session that was closed in the same turn goes nowhere.
        let Some(client) = self.client(session) else { return };
        match message {
            ServerMessage::Reply { corr, replies } => {
                let asked = client.unanswered.remove(&corr);
                assert_eq!(asked, Some(replies.len()), "a reply for each operation of a request, once");
                assert!(
                    !replies
                        .iter()
                        .any(|r| matches!(r, OpReply::Failed { message, .. } if message.is_empty()))
                );
            }
            ServerMessage::Answer { corr, answer } => {
                assert_eq!(client.unanswered.remove(&corr), Some(0), "one answer to each query");
                if let QueryAnswer::Broker(view) = answer {
                    self.view = Some(view);
                }
            }
            ServerMessage::Settled { accepted, refused } => {
                let count = accepted as usize + refused.len();
                let asked = client.unsettled.iter().position(|n| *n == count);
                let asked = asked.expect("one answer to each message of settlements");
                client.unsettled.swap_remove(asked);
            }
            ServerMessage::Deliver { deliveries, .. } => {
                for delivery in deliveries {
                    self.backend.delivered(&self.known, &delivery);
                    self.deliveries.push((session, delivery));
                }
            }
            _ => {}
        }
    }

    /// Another process takes the place of one that has stopped.
    pub(super) fn restart(&mut self) {
        self.engine = Engine::new(self.options.clone(), self.known.now);
        self.clients = [const { None }; SLOTS];
        (self.draining, self.released) = (false, false);
    }

    /// A client that takes and acknowledges everything, and a store that is well: everything has to
    /// come to an end. Says whether it has, as far as the engine can tell.
    pub(super) fn serve_all(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) -> bool {
        let mut rest = Program::new(&[]);
        (0..SLOTS).for_each(|slot| self.close_at(slot));
        self.flush();
        self.open_at(0);
        let Some(session) = self.clients[0].as_ref().map(|c| c.session) else { return false };
        for n in 0..APPS.len() {
            let event = SessionEvent::Register { registration: n as u32, dest: dest(n), credit: 100 };
            self.input(Input::Session(session, event));
        }
        let mut answered = self.deliveries.len();
        for round in 0..600 {
            for at in (0..PARTITIONS).map(PartitionId) {
                self.acquire(at, &mut rest);
                if self.lanes[usize::from(at.0)].is_some() {
                    self.input(Input::Health { partition: at, health: Health::Up });
                }
            }
            self.advance(if round < 50 { 10 } else { 200 });
            self.flush();
            for _ in 0..3 {
                (0..PARTITIONS).for_each(|p| self.answer_some(PartitionId(p), usize::MAX, &mut rest));
                self.flush();
                let new: Vec<Settlement> =
                    self.deliveries[answered..].iter().map(|(_, d)| acknowledge(d)).collect();
                answered = self.deliveries.len();
                self.send_settlements(session, new);
                self.flush();
            }
            if self.engine.unsettled() == 0 && self.calls() == 0 && is_done(self) {
                return true;
            }
        }
        false
    }

    /// Calls that are not answered.
    fn calls(&self) -> usize {
        self.lanes.iter().flatten().map(|(_, open)| open.len()).sum()
    }

    /// What the broker says of itself once nothing is under way.
    pub(super) fn look(&mut self) -> Option<mtimer_protocol::BrokerView> {
        let session = self.clients[0].as_ref().map(|c| c.session)?;
        self.view = None;
        self.ask(session, Query::Broker);
        let mut rest = Program::new(&[]);
        for _ in 0..6 {
            self.advance(500);
            self.flush();
            (0..PARTITIONS).for_each(|p| self.answer_some(PartitionId(p), usize::MAX, &mut rest));
        }
        self.flush();
        self.view.take()
    }

    /// Stops the broker gracefully, and checks that it holds nothing and owes nothing.
    pub(super) fn stop(&mut self, program: &mut Program<'_>) {
        self.input(Input::Drain);
        self.flush();
        self.input(Input::Release);
        for _ in 0..10_000 {
            self.flush();
            if self.released {
                break;
            }
            (0..PARTITIONS).for_each(|p| self.answer_some(PartitionId(p), usize::MAX, program));
        }
        assert!(self.released, "the broker does not stop: {} calls are open", self.calls());
        // Counts are made one after another, with pauses.
        for _ in 0..4 {
            self.advance(1_000);
            self.flush();
        }
        assert_eq!(self.engine.unsettled(), 0, "deliveries are counted that nobody has");
        assert_eq!(self.engine.in_memory(), 0);
        for client in self.clients.iter().flatten() {
            assert!(client.unanswered.is_empty(), "requests without a reply: {:?}", client.unanswered);
            assert!(client.unsettled.is_empty(), "settlements without an answer: {:?}", client.unsettled);
        }
    }
}

fn acknowledge(d: &Delivery) -> Settlement {
    Settlement { id: d.id, epoch: d.epoch, attempt: d.attempt, outcome: HandlerOutcome::Ok }
}
