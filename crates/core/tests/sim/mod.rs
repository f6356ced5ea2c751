//! The simulated world.

mod history;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_core::{Call, CallAnswer, Effect, Engine, EngineOptions, Input, Now, SessionEvent, SessionId};
use mtimer_protocol::{BrokerEntry, Request, RequestOp, ServerMessage, SettleRefusal, Settlement, Topology};
use mtimer_store::memory::MemoryStore;
use mtimer_store::{Acquire, Answer, Lane, LaneError, Op, Store};
use mtimer_types::{
    Destination, HandlerOutcome, Key, KeyPolicy, Mode, Nonce, PartitionId, RetryTiers, Target, Term, Time,
    Timer, TimerId,
};

pub(crate) use history::History;

const START: u64 = 1_700_000_000_000;
const PARTITIONS: u16 = 2;
const ADDRESS: &str = "a:1";

/// What a run does.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub timers: usize,
    pub faults: bool,
    pub memory_bytes: u64,
    pub credit: u32,
    /// Partitions are handed over in good order now and then.
    pub handovers: bool,
    pub sabotage: Option<Sabotage>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            timers: 300,
            faults: true,
            memory_bytes: 1 << 20,
            credit: 20,
            handovers: false,
            sabotage: None,
        }
    }
}

/// Ways to break a broker, in order to see the checker notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sabotage {
    /// Schedules are answered before the store has them, and a crash loses some.
    AnswerEarly,
    /// Claims are not written.
    SkipClaim,
    /// At-most-once timers are not taken.
    SkipTake,
    /// Acknowledgements are not stored.
    LoseAck,
}

impl Sabotage {
    pub(crate) const ALL: [Self; 4] = [Self::AnswerEarly, Self::SkipClaim, Self::SkipTake, Self::LoseAck];
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

struct LaneLink {
    lane: Arc<dyn Lane>,
    answers: VecDeque<(u64, BoxFuture<'static, Result<CallAnswer, LaneError>>)>,
}

struct Client {
    session: Option<SessionId>,
    back_at: u64,
    durable: u128,
    /// Settlements to send, by time.
    handling: BTreeMap<u64, Vec<Settlement>>,
    /// What was sent and not confirmed.
    sent: Vec<Settlement>,
}

/// A request of a client that was not answered yet.
struct Asked {
    op: RequestOp,
    first_sent: Time,
    sent: u64,
    /// Of each time that it was sent.
    corrs: Vec<u64>,
}

pub(crate) struct World {
    plan: Plan,
    rng: Rng,
    ms: u64,
    store: MemoryStore,
    engine: Engine,
    lanes: Vec<Option<LaneLink>>,
    reacquire: BTreeMap<u16, u64>,
    alarms: BTreeSet<u64>,
    clients: Vec<Client>,
    sessions: u64,
    term: u64,
    version: u64,
    asked: Vec<Asked>,
    corr: u64,
    /// After how long an unanswered request is repeated, ms.
    patience: u64,
    ids: Vec<(TimerId, Option<Key>)>,
    /// The latest deliveries: edits of these are the delicate ones.
    latest: VecDeque<TimerId>,
    heal_at: Option<u64>,
    history: History,
}

/// Runs a plan to the end: load and faults, then healing, then a drain.
pub(crate) fn run(seed: u64, plan: Plan) -> History {
    let mut w = World::new(seed, plan);
    w.start_broker();
    let load_until = 20_000;
    while w.ms < load_until {
        if (w.ids.len() as u64) < w.plan.timers as u64 * w.ms / load_until {
            w.schedule_one();
        }
        if w.rng.chance(2) {
            w.edit_one();
        }
        if w.plan.faults {
            w.disturb();
        }
        if w.plan.handovers && w.rng.chance(1) && w.rng.chance(20) {
            let partition = PartitionId(w.rng.below(u64::from(PARTITIONS)) as u16);
            w.input(Input::Disown(partition));
        }
        w.step();
    }
    w.heal();
    // Long enough for every retry tier, every callback timeout, every reconnect.
    let mut quiet = 0;
    while (quiet < 3_000 || w.ms < load_until + 60_000) && w.ms < load_until + 400_000 {
        w.step();
        // Looking is dear, so it is done now and then.
        if w.ms.is_multiple_of(100) {
            quiet = if w.is_idle() { quiet + 100 } else { 0 };
        }
    }
    w.finish()
}

fn dest(n: u64) -> Destination {
    Destination::new("sim", &format!("app{n}")).expect("a valid name")
}

impl World {
    fn new(seed: u64, plan: Plan) -> Self {
        let store = MemoryStore::new(PARTITIONS);
        let clients = (0..3)
            .map(|n| Client {
                session: None,
                back_at: 0,
                durable: 100 + n,
                handling: BTreeMap::new(),
                sent: Vec::new(),
            })
            .collect();
        let engine = Engine::new(EngineOptions::default(), Now { time: Time::from_ms(START), mono_ms: 0 });
        Self {
            rng: Rng(seed),
            ms: 0,
            store,
            engine,
            lanes: (0..PARTITIONS).map(|_| None).collect(),
            reacquire: BTreeMap::new(),
            alarms: BTreeSet::new(),
            clients,
            sessions: 0,
            term: 0,
            version: 0,
            asked: Vec::new(),
            corr: 0,
            patience: if seed.is_multiple_of(3) { 4 } else { 200 },
            ids: Vec::new(),
            latest: VecDeque::new(),
            heal_at: None,
            history: History::default(),
            plan,
        }
    }

    fn now(&self) -> Now {
        Now { time: Time::from_ms(START + self.ms), mono_ms: self.ms }
    }

    fn start_broker(&mut self) {
        let options = EngineOptions {
            partitions: PARTITIONS,
            memory_bytes: self.plan.memory_bytes,
            preload_ms: 2_000,
            // Small ones make operations wait, and go out in another order than they came in.
            batch_ops: [1, 2, 5, 250][self.rng.below(4) as usize],
            retry: RetryTiers(vec![100, 500, 1_000]),
            callback_timeout_ms: 1_000,
            seed: self.rng.next(),
            address: self.plan.handovers.then(|| ADDRESS.to_owned()),
            ..EngineOptions::default()
        };
        self.engine = Engine::new(options, self.now());
        if self.plan.handovers {
            let topology = Topology {
                term: Term(1),
                version: 1,
                leader: ADDRESS.to_owned(),
                brokers: vec![BrokerEntry { address: ADDRESS.to_owned(), draining: false }],
                owners: vec![Some(0); usize::from(PARTITIONS)],
            };
            self.input(Input::Topology(Arc::new(topology)));
        }
        self.alarms.clear();
        self.term += 1;
        for p in 0..PARTITIONS {
            self.lanes[usize::from(p)] = None;
            self.reacquire.insert(p, self.ms);
        }
        for c in &mut self.clients {
            c.session = None;
            c.back_at = self.ms + 5;
        }
    }

    fn acquire(&mut self, p: u16) {
        let partition = PartitionId(p);
        self.version += 1;
        let nonce = Nonce(self.rng.next());
        let Some(Ok(owner)) = self.store.owner(partition).now_or_never() else {
            self.reacquire.insert(p, self.ms + 50);
            return;
        };
        let acquire =
            Acquire { partition, expected: owner.epoch, nonce, term: Term(self.term), version: self.version };
        match self.store.acquire(acquire).now_or_never() {
            Some(Ok(a)) => {
                self.lanes[usize::from(p)] = Some(LaneLink { lane: a.lane, answers: VecDeque::new() });
                let (epoch, prior_claim, in_flight) = (a.epoch, a.prior_claim, a.in_flight);
                self.input(Input::Acquired { partition, epoch, prior_claim, in_flight });
            }
            _ => _ = self.reacquire.insert(p, self.ms + 50),
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.engine.handle(now, input);
    }

    /// One millisecond.
    fn step(&mut self) {
        self.ms += 1;
        let due: Vec<u16> =
            self.reacquire.iter().filter(|(_, at)| **at <= self.ms).map(|(p, _)| *p).collect();
        for p in due {
            self.reacquire.remove(&p);
            self.acquire(p);
        }
        if self.heal_at.is_some_and(|at| at <= self.ms) {
            self.heal();
        }
        self.health();
        self.take_answers();
        self.run_clients();
        let tick = self.engine.next_tick().is_some_and(|t| t <= self.ms);
        while self.alarms.first().is_some_and(|a| *a <= START + self.ms) {
            self.alarms.pop_first();
        }
        if tick {
            self.input(Input::Tick);
        }
        let mut effects = Vec::new();
        let now = self.now();
        self.engine.flush(now, &mut effects);
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn health(&mut self) {
        for p in 0..PARTITIONS {
            if let Some(link) = &self.lanes[usize::from(p)] {
                let mut watch = link.lane.health();
                if watch.has_changed().unwrap_or(false) || self.ms.is_multiple_of(50) {
                    let health = watch.borrow_and_update().clone();
                    // Answers that are on their way come first.
                    if !matches!(health, mtimer_store::Health::Ended(_)) || link.answers.is_empty() {
                        self.input(Input::Health { partition: PartitionId(p), health });
                    }
                }
            }
        }
    }

    fn take_answers(&mut self) {
        for p in 0..PARTITIONS {
            while let Some(link) = &mut self.lanes[usize::from(p)] {
                let epoch = link.lane.epoch();
                let Some((ready, future)) = link.answers.front_mut() else { break };
                if *ready > self.ms {
                    break;
                }
                let Some(answer) = future.now_or_never() else { break };
                link.answers.pop_front();
                let answer = answer.unwrap_or_else(CallAnswer::Ended);
                self.input(Input::Answered { partition: PartitionId(p), epoch, answer });
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(session, message) => self.receive(session, message),
            Effect::Close(_, reason) => panic!("a client was thrown out: {reason}"),
            Effect::Alarm(at) => _ = self.alarms.insert(at.as_ms()),
            Effect::LaneEnded(p, _) => {
                self.lanes[usize::from(p.0)] = None;
                self.reacquire.insert(p.0, self.ms + 5);
            }
            Effect::Released => {}
            Effect::Call(p, call) => {
                let delay = self.rng.below(4);
                let Some(link) = &mut self.lanes[usize::from(p.0)] else { return };
                let future = call_lane(&*link.lane, call, self.plan.sabotage);
                link.answers.push_back((self.ms + delay, future));
            }
        }
    }

    fn run_clients(&mut self) {
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

    fn schedule_one(&mut self) {
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
        self.ask(RequestOp::Schedule { timer, policy });
    }

    fn edit_one(&mut self) {
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

    fn receive(&mut self, session: SessionId, message: ServerMessage) {
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

    fn disturb(&mut self) {
        let faults = self.store.faults();
        let p = PartitionId(self.rng.below(u64::from(PARTITIONS)) as u16);
        match self.rng.below(6_000) {
            0..=3 => {
                self.history.note(self.ms, "crash");
                self.start_broker();
            }
            4..=8 if self.heal_at.is_none() => {
                faults.hold(p);
                self.heal_at = Some(self.ms + self.rng.below(500));
            }
            9..=13 if self.heal_at.is_none() => {
                faults.cut(p);
                self.heal_at = Some(self.ms + self.rng.below(500));
            }
            14..=17 if self.heal_at.is_none() => {
                faults.down(p, "simulated");
                self.heal_at = Some(self.ms + self.rng.below(3_000));
            }
            18..=20 => {
                faults.full(p, true);
                self.heal_at.get_or_insert(self.ms + 300);
            }
            21..=30 => {
                let n = self.rng.below(self.clients.len() as u64) as usize;
                let c = &mut self.clients[n];
                if let Some(session) = c.session.take() {
                    c.back_at = self.ms + 1 + self.rng.next() % 2_000;
                    self.input(Input::Session(session, SessionEvent::Closed));
                }
            }
            31 => {
                // Somebody else owns it for a moment.
                faults.fence(p);
            }
            _ => {}
        }
    }

    fn heal(&mut self) {
        for p in 0..PARTITIONS {
            self.store.faults().heal(PartitionId(p));
            self.store.faults().full(PartitionId(p), false);
        }
        self.heal_at = None;
    }

    fn is_idle(&self) -> bool {
        self.asked.is_empty()
            && self.clients.iter().all(|c| c.handling.is_empty())
            && self.history.open(|id| self.place(id).is_some()) == 0
    }

    fn place(&self, id: TimerId) -> Option<mtimer_store::Place> {
        let unknown = Some(mtimer_store::Place::Pending { fire: Time::ZERO, tier: 0 });
        let Some(link) = self.lanes[usize::from(id.partition().0)].as_ref() else { return unknown };
        // A lane that was fenced while it was quiet says so now; its broker finds out in its own time.
        let Some(Ok(found)) = link.lane.get(Target::Id(id)).now_or_never() else { return unknown };
        found.map(|(_, place)| place).filter(|p| {
            !matches!(p, mtimer_store::Place::Dead | mtimer_store::Place::Taken { unconfirmed: true, .. })
                // Nobody ever registers for this one.
                && !matches!(p, mtimer_store::Place::Parked)
        })
    }

    fn finish(mut self) -> History {
        let mut residue = Vec::new();
        for (id, _) in std::mem::take(&mut self.ids) {
            let Some(link) = self.lanes[usize::from(id.partition().0)].as_ref() else { continue };
            if let Some(Ok(Some((record, place)))) = link.lane.get(Target::Id(id)).now_or_never() {
                self.history.left(id, place, &record);
            }
        }
        for link in self.lanes.iter().flatten() {
            if let Some(Ok(census)) = link.lane.census().now_or_never() {
                residue.push(census);
            }
        }
        self.history.census = residue;
        self.history.end = START + self.ms;
        self.history
    }
}

fn call_lane(
    lane: &dyn Lane,
    call: Call,
    sabotage: Option<Sabotage>,
) -> BoxFuture<'static, Result<CallAnswer, LaneError>> {
    match call {
        Call::Apply(mut batch) => {
            let mut skipped = Vec::new();
            match sabotage {
                Some(Sabotage::SkipClaim) => batch.claim = None,
                Some(Sabotage::SkipTake) => {
                    skip(&mut batch.ops, &mut skipped, |op| matches!(op, Op::Take { .. }))
                }
                Some(Sabotage::LoseAck) => skip(&mut batch.ops, &mut skipped, |op| {
                    matches!(op, Op::Settle { verdict: mtimer_store::Verdict::Ack, .. })
                }),
                Some(Sabotage::AnswerEarly) => skip(
                    &mut batch.ops,
                    &mut skipped,
                    |op| matches!(op, Op::Schedule { timer, .. } if timer.id.random() % 16 == 0),
                ),
                None => {}
            }
            let early = mtimer_store::ScheduleAnswer::Scheduled { new: true, replaced: None };
            let answers = lane.apply(batch);
            let fake =
                if sabotage == Some(Sabotage::AnswerEarly) { Answer::Schedule(early) } else { Answer::Done };
            answers
                .map(move |a| {
                    a.map(|mut answers| {
                        skipped.iter().for_each(|at| answers.insert(*at, fake.clone()));
                        CallAnswer::Apply(answers)
                    })
                })
                .boxed()
        }
        Call::Load(mut load) => {
            if sabotage == Some(Sabotage::SkipClaim) {
                load.claim = None;
            }
            lane.load(load).map(|a| a.map(CallAnswer::Load)).boxed()
        }
        Call::Unload(beyond) => lane.unload(beyond).map(|a| a.map(|()| CallAnswer::Unload)).boxed(),
        Call::Get(target) => lane.get(target).map(|a| a.map(CallAnswer::Get)).boxed(),
        Call::ParkedDestinations => {
            lane.parked_destinations().map(|a| a.map(CallAnswer::ParkedDestinations)).boxed()
        }
        Call::Parked(dest, cursor, limit) => {
            lane.parked(dest, cursor, limit).map(|a| a.map(CallAnswer::Parked)).boxed()
        }
        Call::Dead(filter, cursor, limit) => {
            lane.dead(filter, cursor, limit).map(|a| a.map(CallAnswer::Dead)).boxed()
        }
        Call::Taken(cursor, limit) => lane.taken(cursor, limit).map(|a| a.map(CallAnswer::Taken)).boxed(),
        Call::Census => lane.census().map(|a| a.map(CallAnswer::Census)).boxed(),
        Call::Release(left) => lane.release(left).map(|a| a.map(|()| CallAnswer::Release)).boxed(),
    }
}

/// Takes operations out of a batch and notes where their answers are to be put.
fn skip(ops: &mut Vec<Op>, skipped: &mut Vec<usize>, which: impl Fn(&Op) -> bool) {
    let mut at = 0;
    ops.retain(|op| {
        let out = which(op);
        if out {
            skipped.push(at);
        }
        at += 1;
        !out
    });
}
