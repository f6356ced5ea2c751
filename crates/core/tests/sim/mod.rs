//! The simulated world: brokers, their clients, the store, and the clocks of all of them, in one
//! thread and from one seed.
//!
//! Time is a queue of events: the time between two of them costs nothing, so a run may take days.
//! The brokers are real engines with real cluster clocks; the store is the in-memory model of the
//! contract. The simulated part is all between and around them: shells, connections, the way to the
//! store, hosts.
//!
//! One file each: `plan` (the parameters of a run), `broker` (a broker's shell), `lanes` (its ways
//! to the store), `owners` (who has which partition), `clients`, `load` (their requests), `faults`,
//! `clocks`, `finish` (the checks in the end), `history` (the events), `check` (the rules), `later`
//! (what handlers put off), `priority` (who goes first), `operations` (what each operation means to
//! both), `sabotage` (brokers that are broken on purpose).

mod broker;
mod bulk;
mod check;
mod clients;
mod clocks;
mod faults;
mod finish;
mod history;
mod import;
mod keys;
mod lanes;
mod later;
mod load;
mod operations;
mod owners;
mod pause;
pub(crate) mod plan;
mod priority;
mod sabotage;
pub(crate) mod stats;
mod story;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mtimer_core::{Input, SessionId};
use mtimer_protocol::{ServerMessage, Settlement, Topology};
use mtimer_store::InFlight;
use mtimer_store::conformance::SeededRandom;
use mtimer_store::memory::MemoryStore;
use mtimer_types::{Epoch, Time};

use broker::Broker;
use clients::{Client, Sessions};
use clocks::StoreClocks;
use faults::Heal;
use history::History;
use lanes::{Lanes, Link};
use load::Load;
use plan::Plan;
pub(crate) use sabotage::Sabotage;
use stats::Stats;

/// Reference time begins here, ms since the Unix epoch.
pub(crate) const START: u64 = 1_700_000_000_000;
const PARTITIONS: u16 = 3;
/// The longest that a frame is on its way between a client and a broker, ms.
const HOP_MS: u64 = 5;

/// Something that happens at its time.
enum Event {
    /// A broker process starts, on its host.
    Start(usize),
    /// A paused broker process goes on.
    Resume(usize, u64),
    /// Something arrives at a broker's incarnation.
    Arrive(usize, u64, Input),
    /// A broker learns the topology as it is then.
    Topology(usize, u64),
    /// A round of readings of the clocks.
    Observe(usize, u64),
    /// Calls reach the store.
    Reach(u64),
    /// Answers of the store reach the broker.
    Answered(u64),
    /// A broker notices how a partition of the store is.
    Notice(u16),
    /// A broker tries to acquire a partition.
    Acquire(usize, u64, u16),
    /// It learns that it has.
    Acquired {
        broker: usize,
        inc: u64,
        lane: u64,
        prior_claim: Time,
        in_flight: Vec<InFlight>,
    },
    /// A broker that stops gives up the partitions that it still has.
    Release(usize, u64),
    /// A client connects to a broker.
    Connect(usize, usize),
    /// A frame arrives at a client.
    Frame(SessionId, ServerMessage),
    /// A client finds its connection closed.
    Hangup(SessionId),
    /// A handler is done.
    Handled(usize, Settlement),
    /// A request is repeated unless it was answered.
    Repeat(u64),
    /// The clients ask for something.
    Load,
    /// Something fails.
    Fault,
    Heal(Heal),
    /// Timers whose cancel came too late are looked at.
    Probe,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) wrong: Option<String>,
    pub(crate) stats: Stats,
    pub(crate) digest: u64,
}

pub(crate) struct World {
    plan: Plan,
    rng: SeededRandom,
    /// Reference time, ms.
    ms: u64,
    seq: u64,
    queue: BTreeMap<(u64, u64), Event>,
    store: MemoryStore,
    clocks: StoreClocks,
    brokers: Vec<Broker>,
    lanes: Lanes,
    /// How the way to each partition of the store is.
    links: Vec<Link>,
    topology: Arc<Topology>,
    /// By partition: when an owner that does not let go is treated as dead, ms.
    forced: Vec<u64>,
    /// Acquisitions under way, by broker and partition.
    acquiring: BTreeSet<(usize, u16)>,
    acquisitions: u64,
    clients: Vec<Client>,
    load: Load,
    /// Faults happen until then, ms.
    faulty_until: u64,
    /// Every fault that has begun has ended then, ms.
    healed_at: u64,
    /// The last fault began or ended then, ms.
    disturbed: u64,
    incarnations: u64,
    sessions: Sessions,
    last_session: u64,
    /// Somebody is registered for every destination.
    all_served: bool,
    history: History,
    stats: Stats,
}

/// Runs a plan to its end. With `log`, a failure is told together with the events that led to it.
pub(crate) fn run(plan: &Plan, log: bool) -> Outcome {
    let mut world = World::new(plan.clone(), log);
    world.play();
    let World { mut history, mut stats, ms, .. } = world;
    let events = history.log_of_failure();
    stats.runs = 1;
    stats.simulated_ms = ms;
    stats.timers = history.lives.len() as u64;
    let wrong = history.wrong.take().map(|wrong| if log { format!("{events}\n{wrong}") } else { wrong });
    Outcome { wrong, stats, digest: history.digest() }
}

impl World {
    fn new(plan: Plan, log: bool) -> Self {
        let mut rng = SeededRandom::new(plan.seed);
        let clocks = match plan.has_clocks() {
            true => StoreClocks::draw(&mut rng, plan.store_clocks),
            false => StoreClocks::default(),
        };
        let disciplined = clocks.len() == 0;
        let brokers = (0..plan.brokers).map(|_| Broker::new(&plan, &mut rng, disciplined)).collect();
        let history = History::new(plan.clone(), PARTITIONS, log);
        let store = MemoryStore::new(PARTITIONS);
        if plan.sabotage == Some(Sabotage::BulkForgets) {
            (0..PARTITIONS).for_each(|p| store.faults().forget_bulk_marks(mtimer_types::PartitionId(p)));
        }
        let mut world = Self {
            ms: 0,
            seq: 0,
            queue: BTreeMap::new(),
            store,
            clocks,
            brokers,
            lanes: Lanes::default(),
            links: (0..PARTITIONS).map(|_| Link::default()).collect(),
            forced: vec![0; usize::from(PARTITIONS)],
            acquiring: BTreeSet::new(),
            acquisitions: 0,
            topology: Arc::new(owners::first_topology(plan.brokers)),
            clients: (0..3).map(|n| Client::new(n, plan.brokers)).collect(),
            load: Load::default(),
            faulty_until: plan.load_ms + plan.far_ms,
            healed_at: 0,
            disturbed: 0,
            incarnations: 0,
            sessions: Sessions::default(),
            last_session: 0,
            all_served: false,
            history,
            stats: Stats::default(),
            rng,
            plan,
        };
        for b in 0..world.brokers.len() {
            world.at(0, Event::Start(b));
        }
        world.at(10, Event::Load);
        world.at(2_000, Event::Fault);
        world.at(5_000, Event::Probe);
        world
    }

    fn at(&mut self, after: u64, event: Event) {
        self.seq += 1;
        self.queue.insert((self.ms + after, self.seq), event);
    }

    /// Reference time, µs since the beginning.
    fn us(&self) -> i64 {
        self.ms as i64 * 1_000
    }

    /// Runs up to and including a moment.
    fn run_until(&mut self, until: u64) {
        while self.history.wrong.is_none() {
            let event = self.queue.first_key_value().map(|((at, _), _)| *at);
            let wake = (0..self.brokers.len()).filter_map(|b| Some((self.brokers[b].wake?, b))).min();
            match (event, wake) {
                // Inputs that have come go into one turn.
                (Some(at), wake) if at <= until && wake.is_none_or(|(wake, _)| at <= wake) => {
                    self.ms = self.ms.max(at);
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.happen(event);
                    }
                }
                (_, Some((wake, b))) if wake <= until => {
                    self.ms = self.ms.max(wake);
                    self.turn(b);
                }
                _ => break,
            }
        }
        self.ms = self.ms.max(until);
    }

    /// When something happens next that is not a broker's own housekeeping, ms.
    fn next_event(&self) -> u64 {
        self.queue.first_key_value().map_or(u64::MAX, |((at, _), _)| *at)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(b) => self.start(b),
            Event::Resume(b, inc) => self.resume(b, inc),
            Event::Arrive(b, inc, input) => self.arrive(b, inc, input),
            Event::Topology(b, inc) => self.arrive(b, inc, Input::Topology(self.topology.clone())),
            Event::Observe(b, inc) => self.observe(b, inc),
            Event::Reach(lane) => self.reach(lane),
            Event::Answered(lane) => self.take_answers(lane),
            Event::Notice(p) => self.notice(p),
            Event::Acquire(b, inc, p) => self.try_acquire(b, inc, p),
            Event::Acquired { broker, inc, lane, prior_claim, in_flight } => {
                self.acquired(broker, inc, lane, prior_claim, in_flight);
            }
            Event::Release(b, inc) => self.release(b, inc),
            Event::Connect(n, b) => self.connect(n, b),
            Event::Frame(session, message) => self.receive(session, message),
            Event::Hangup(session) => self.hung_up(session),
            Event::Handled(n, settlement) => self.settle(n, settlement),
            Event::Repeat(ask) => self.repeat(ask),
            Event::Load => self.ask_something(),
            Event::Fault => self.disturb(),
            Event::Heal(heal) => self.heal(heal),
            Event::Probe => self.probe(),
        }
    }

    fn epoch_of(&self, lane: u64) -> Epoch {
        self.lanes.get(lane).map_or(Epoch::default(), |l| l.lane.epoch())
    }
}
