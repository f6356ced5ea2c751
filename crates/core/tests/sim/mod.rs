//! The simulated world.

mod broker;
mod clients;
mod history;
mod sabotage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use futures_util::FutureExt;
use mtimer_core::{Engine, EngineOptions, Input, Now, SessionEvent};
use mtimer_store::memory::MemoryStore;
use mtimer_types::{Key, PartitionId, Target, Time, TimerId};

use broker::LaneLink;
use clients::{Asked, Client};
pub(crate) use history::History;
pub(crate) use sabotage::Sabotage;

const START: u64 = 1_700_000_000_000;
const PARTITIONS: u16 = 2;

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

impl World {
    fn new(seed: u64, plan: Plan) -> Self {
        let store = MemoryStore::new(PARTITIONS);
        let clients = (0..3).map(|n| Client::new(100 + n)).collect();
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
