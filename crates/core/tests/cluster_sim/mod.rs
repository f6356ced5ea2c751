//! A cluster in one thread: brokers whose clocks differ, links that are cut, a store that answers
//! late or not at all.
//!
//! A node knows durations only, by its host's monotonic clock: the hosts' wall clocks do not come
//! into it. (They do in `sim`.)

mod faults;
mod host;
mod net;
mod observe;
mod stats;
mod store;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mtimer_core::Now;
use mtimer_core::cluster::{Node, NodeEffect, NodeInput, NodeOptions, PeerId};
use mtimer_protocol::{Topology, encode};
use mtimer_store::conformance::SeededRandom;
use mtimer_store::{Candidate, Lease, StoreError};
use mtimer_types::{Epoch, PartitionId, Term, Time};

pub(crate) use self::faults::{Cut, Plan};
use self::host::Clock;
use self::net::{Conn, ConnId};
pub(crate) use self::stats::Stats;
use self::store::Store;
use self::watch::Watch;

/// A defect that a simulation is to fail by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sabotage {
    /// Requests seem to have left an hour later than they did: deadlines mean nothing.
    DeadlineIgnored,
    /// The store gives the lease to every broker that asks.
    LeaseForAll,
    /// The store raises no term.
    SameTermForAll,
    /// A broker keeps to itself that it has lost a partition.
    LossUntold,
    /// A broker that acquires a partition asks for an epoch above its own last one of that
    /// partition, and ignores the epochs of others.
    OwnEpochsOnly,
}

/// So many looks at the own address fail in a row before it counts.
const FAILURES: u32 = 3;

/// The time at which a run begins, ms.
const BEGINNING_MS: u64 = 1_000_000;

/// A partition that a shell tries to acquire.
#[derive(Clone, Copy, Debug)]
struct Want {
    stamp: (Term, u64),
    /// When it takes it by force.
    force: u64,
}

/// A broker's process: a node and the least of a shell.
struct Proc {
    node: Node,
    inc: u64,
    clock: Clock,
    paused: bool,
    inbox: VecDeque<NodeInput>,
    link: Option<ConnId>,
    peers: BTreeMap<PeerId, ConnId>,
    tick: u64,
    owned: BTreeMap<PartitionId, Epoch>,
    /// The last epoch that this process had of each partition.
    had: BTreeMap<PartitionId, Epoch>,
    wants: BTreeMap<PartitionId, Want>,
    reported: Vec<PartitionId>,
    /// Whether it was ever reached at its address.
    was_reached: bool,
    /// Looks at its own address that have failed since it was last reached.
    failures: u32,
    stops: bool,
}

enum Call {
    Campaign(Candidate),
    Look,
    Renew(Lease, u64),
    Resign(Lease),
    Publish(Lease, Topology),
}

enum Event {
    Tick(usize, u64, u64),
    Input(usize, u64, NodeInput),
    Call(usize, u64, u64, Call),
    Pump(ConnId, usize),
    Try(usize, u64, PartitionId),
    Release(usize, u64, PartitionId),
    Fenced(usize, u64, PartitionId, Epoch),
    Probe(usize, u64),
    Resume(usize, u64),
    Start(usize),
    Fault,
    Heal(Cut),
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) plan: Plan,
    rng: SeededRandom,
    queue: BTreeMap<(u64, u64), Event>,
    seq: u64,
    procs: Vec<Option<Proc>>,
    clocks: Vec<Clock>,
    conns: BTreeMap<ConnId, Conn>,
    /// Nothing arrives from the first at the second; of one and the same, it does not reach itself.
    cuts: BTreeSet<(usize, usize)>,
    /// Brokers to whose address nobody can connect. Connections that are there stay.
    unreached: BTreeSet<usize>,
    /// The broker does not reach this third of the store.
    apart: BTreeSet<(usize, u16)>,
    pub(crate) store: Store,
    pub(crate) watch: Watch,
    faulty: bool,
    /// Faults so far.
    faults: u64,
    /// Deaths and orderly ends so far.
    pub(crate) ends: u64,
}

pub(crate) fn address(i: usize) -> String {
    format!("n{i}:7000")
}

fn index(address: &str) -> Option<usize> {
    address.strip_prefix('n')?.strip_suffix(":7000")?.parse().ok()
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = SeededRandom::new(seed);
        let clocks = (0..plan.brokers)
            .map(|_| Clock { offset: rng.below(1 << 40), per_mille: rng.between(990, 1_010) })
            .collect();
        let mut world = Self {
            now: BEGINNING_MS,
            rng,
            queue: BTreeMap::new(),
            seq: 0,
            procs: (0..plan.brokers).map(|_| None).collect(),
            clocks,
            conns: BTreeMap::new(),
            cuts: BTreeSet::new(),
            unreached: BTreeSet::new(),
            apart: BTreeSet::new(),
            store: Store::new(plan.partitions, plan.sabotage),
            watch: Watch::default(),
            faulty: false,
            faults: 0,
            ends: 0,
            plan,
        };
        for i in 0..world.procs.len() {
            let after = world.rng.below(3_000);
            world.at(after, Event::Start(i));
        }
        world
    }

    fn at(&mut self, after: u64, event: Event) {
        self.seq += 1;
        self.queue.insert((self.now + after, self.seq), event);
    }

    /// Runs for so long.
    pub(crate) fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.watch.wrong.is_none()
            && let Some(((time, seq), _)) = self.queue.first_key_value()
            && *time <= until
        {
            let key = (*time, *seq);
            let Some(event) = self.queue.remove(&key) else { break };
            self.now = key.0;
            self.happen(event);
        }
        self.now = until;
    }

    /// Runs until it holds; `None` if it does not within `ms`. Says how long it took.
    pub(crate) fn until(&mut self, ms: u64, holds: impl Fn(&Self) -> bool) -> Option<u64> {
        let start = self.now;
        while self.now - start <= ms && self.watch.wrong.is_none() {
            if holds(self) {
                return Some(self.now - start);
            }
            self.run(20);
        }
        None
    }

    fn alive(&mut self, i: usize, inc: u64) -> Option<&mut Proc> {
        self.procs[i].as_mut().filter(|p| p.inc == inc)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(i, inc, tick) => {
                if self.alive(i, inc).is_some_and(|p| p.tick == tick) {
                    self.feed(i, inc, NodeInput::Tick);
                }
            }
            Event::Input(i, inc, input) => self.feed(i, inc, input),
            Event::Call(i, inc, sent, call) => self.call(i, inc, sent, call),
            Event::Pump(conn, to) => self.pump(conn, to),
            Event::Try(i, inc, p) => self.try_acquire(i, inc, p),
            Event::Release(i, inc, p) => self.release(i, inc, p),
            Event::Fenced(i, inc, p, epoch) => self.fenced(i, inc, p, epoch),
            Event::Probe(i, inc) => self.probe(i, inc),
            Event::Resume(i, inc) => self.resume(i, inc),
            Event::Start(i) => self.start(i),
            Event::Fault => self.fault(),
            Event::Heal(cut) => self.heal(cut),
        }
    }

    pub(crate) fn start(&mut self, i: usize) {
        if self.procs[i].is_some() {
            return;
        }
        let inc = self.rng.below(u64::MAX);
        let clock = self.clocks[i];
        let options = NodeOptions {
            cluster: "c".into(),
            partitions: self.plan.partitions,
            address: address(i),
            incarnation: inc,
            software: "sim".into(),
            seed: self.rng.below(u64::MAX),
            ..NodeOptions::default()
        };
        self.watch.note(self.now, format!("n{i} starts"));
        let node = Node::new(options, clock.local(self.now));
        self.procs[i] = Some(Proc {
            node,
            inc,
            clock,
            paused: false,
            inbox: VecDeque::new(),
            link: None,
            peers: BTreeMap::new(),
            tick: 0,
            owned: BTreeMap::new(),
            had: BTreeMap::new(),
            wants: BTreeMap::new(),
            reported: Vec::new(),
            was_reached: false,
            failures: 0,
            stops: false,
        });
        self.look_at_address(i, inc);
        self.at(1, Event::Probe(i, inc));
    }

    /// One input for one node, and everything that follows at once.
    fn feed(&mut self, i: usize, inc: u64, input: NodeInput) {
        let now = self.now;
        let Some(p) = self.alive(i, inc) else { return };
        if p.paused {
            p.inbox.push_back(input);
            return;
        }
        p.stops |= matches!(input, NodeInput::Stop);
        let local = p.clock.local(now);
        p.node.handle(Now { time: Time::from_ms(now), mono_ms: local }, input);
        self.follow_up(i, inc);
    }

    /// Carries out the effects of a node.
    fn follow_up(&mut self, i: usize, inc: u64) {
        let now = self.now;
        let Some(p) = self.alive(i, inc) else { return };
        let (effects, stops, term) = (p.node.effects(), p.stops, p.node.term());
        let leads = p.node.lease().map(|l| l.term);
        self.watch.term(now, (i, inc), term);
        for effect in &effects {
            self.watch.effect(now, (i, inc), &address(i), stops, effect);
        }
        if let Some(term) = leads {
            self.watch.leads(now, (i, inc), term);
            self.check_alone(i);
        }
        for effect in effects {
            self.carry_out(i, inc, effect);
        }
        if let Some(p) = self.alive(i, inc) {
            p.tick += 1;
            let (tick, real) = (p.tick, p.clock.real(p.node.next_tick()));
            self.at(real.saturating_sub(now).max(1), Event::Tick(i, inc, tick));
        }
    }

    /// Nobody else may act as leader while this one has just done.
    fn check_alone(&mut self, i: usize) {
        let now = self.now;
        let other = (0..self.procs.len()).filter(|j| *j != i).find(|j| {
            let p = self.procs[*j].as_ref().filter(|p| !p.paused && p.node.leads());
            p.is_some_and(|p| p.node.view(p.clock.local(now)).leads)
        });
        if let Some(j) = other {
            self.watch.fail(now, format!("n{i} and n{j} both lead"));
        }
    }

    fn carry_out(&mut self, i: usize, inc: u64, effect: NodeEffect) {
        match effect {
            NodeEffect::Campaign(c) => self.ask(i, inc, Call::Campaign(c)),
            NodeEffect::Look => self.ask(i, inc, Call::Look),
            NodeEffect::Renew(lease, ttl) => self.ask(i, inc, Call::Renew(lease, ttl)),
            NodeEffect::Resign(lease) => self.ask(i, inc, Call::Resign(lease)),
            NodeEffect::Publish(lease, t) => self.ask(i, inc, Call::Publish(lease, t)),
            NodeEffect::Connect(to) => self.connect(i, inc, index(&to)),
            NodeEffect::Disconnect => self.disconnect(i, inc),
            NodeEffect::ToLeader(frame) => self.towards_leader(i, inc, frame),
            NodeEffect::ToPeer(peer, frame) => self.towards_peer(i, inc, peer, frame),
            NodeEffect::Adopt(_) => {}
            NodeEffect::Own { partition, term, version } => {
                let force = self.now + 2_000;
                let Some(p) = self.alive(i, inc) else { return };
                if p.owned.contains_key(&partition) {
                    return;
                }
                let stamp = (term, version);
                let fresh = p.wants.insert(partition, Want { stamp, force }).is_none();
                if fresh {
                    let after = self.rng.between(1, 20);
                    self.at(after, Event::Try(i, inc, partition));
                }
            }
            NodeEffect::Disown(partition) => {
                let after = self.rng.between(1, 100);
                let Some(p) = self.alive(i, inc) else { return };
                p.wants.remove(&partition);
                self.at(after, Event::Release(i, inc, partition));
            }
            // Its earlier run died silently, a moment ago: its supervisor starts it again.
            NodeEffect::Refused(text) if text.starts_with("another broker that advertises") => {
                self.end(i, true);
                let after = self.rng.between(500, 2_000);
                self.at(after, Event::Start(i));
            }
            NodeEffect::Refused(text) => self.watch.fail(self.now, format!("n{i} was refused: {text}")),
            // No destination has limits here.
            NodeEffect::SteppedDown(..) | NodeEffect::Lent(_) => {}
            NodeEffect::Left => self.finish(i, inc),
        }
    }

    /// A stopping broker releases the partitions that it still has, and ends.
    fn finish(&mut self, i: usize, inc: u64) {
        let now = self.now;
        let Some(p) = self.alive(i, inc) else { return };
        let (lease, owned) = (p.node.lease(), std::mem::take(&mut p.owned));
        for (partition, epoch) in owned {
            if self.reaches(i, partition.0 % 3) && self.store.owner(partition).epoch == epoch.0 {
                self.store.owner(partition).released = true;
            }
        }
        if let Some(lease) = lease.filter(|_| self.reaches(i, 0)) {
            self.store.resign(now, &lease);
        }
        self.end(i, true);
        let after = self.rng.between(100, 3_000);
        self.at(after, Event::Start(i));
    }

    /// The process is gone. `loud`: its host says so to every peer that has a connection to it.
    pub(crate) fn end(&mut self, i: usize, loud: bool) {
        if let Some(p) = self.procs[i].take() {
            self.ends += 1;
            self.watch.note(self.now, format!("n{i} ends, loud: {loud}"));
            self.hang_up(i, p.inc, loud);
        }
    }

    fn reaches(&self, i: usize, third: u16) -> bool {
        !self.apart.contains(&(i, third))
    }

    /// A request leaves for the store.
    fn ask(&mut self, i: usize, inc: u64, call: Call) {
        let now = self.now;
        let Some(p) = self.alive(i, inc) else { return };
        let mut sent = p.clock.local(now);
        if self.plan.sabotage == Some(Sabotage::DeadlineIgnored) {
            sent += 3_600_000;
        }
        let delay = self.delay();
        self.at(delay, Event::Call(i, inc, sent, call));
    }

    fn delay(&mut self) -> u64 {
        let slow = self.faulty && self.rng.chance(2);
        if slow { self.rng.between(100, 2_500) } else { self.rng.between(1, 20) }
    }

    /// The request arrives, or does not.
    fn call(&mut self, i: usize, inc: u64, sent: u64, call: Call) {
        let now = self.now;
        let lost = StoreError::Unavailable("cut".into());
        let reached = self.reaches(i, 0) && !(self.faulty && self.rng.chance(1));
        let answered = !(self.faulty && self.rng.chance(2));
        let back = if reached && answered { self.delay() } else { 500 };
        let fate = |ok: bool| if ok { Ok(()) } else { Err(lost.clone()) };
        let input = match call {
            Call::Campaign(c) => {
                let answer = reached.then(|| self.store.campaign(now, &c)).filter(|_| answered);
                NodeInput::Campaigned { sent, answer: answer.ok_or(lost) }
            }
            Call::Look => {
                let answer = (reached && answered).then(|| self.store.holder(now));
                NodeInput::Looked { sent, answer: answer.ok_or(lost) }
            }
            Call::Renew(lease, ttl) => {
                let ok = reached && self.store.renew(now, &lease, ttl);
                NodeInput::Renewed { sent, answer: fate(reached && answered).map(|()| ok) }
            }
            Call::Publish(lease, t) => {
                let bytes = encode(&t).expect("a small topology");
                let ok = reached && self.store.publish(now, &lease, bytes);
                NodeInput::Published {
                    term: t.term,
                    version: t.version,
                    answer: fate(reached && answered).map(|()| ok),
                }
            }
            Call::Resign(lease) => {
                if reached {
                    self.store.resign(now, &lease);
                }
                return;
            }
        };
        self.at(back, Event::Input(i, inc, input));
    }

    fn try_acquire(&mut self, i: usize, inc: u64, partition: PartitionId) {
        let now = self.now;
        let reached = self.reaches(i, partition.0 % 3);
        let Some(p) = self.procs[i].as_mut().filter(|p| p.inc == inc) else { return };
        let Some(want) = p.wants.get(&partition).copied() else { return };
        let known: Vec<usize> = p
            .node
            .topology()
            .map_or(Vec::new(), |t| t.brokers.iter().filter_map(|b| index(&b.address)).collect());
        let record = self.store.owner(partition);
        let other = record.holder.filter(|(o, _)| *o != i && !record.released && known.contains(o));
        if !reached || p.paused || (other.is_some() && now < want.force) {
            self.at(50, Event::Try(i, inc, partition));
            return;
        }
        p.wants.remove(&partition);
        if record.stamp > want.stamp {
            return;
        }
        let before = record.holder.filter(|_| !record.released).zip(Some(Epoch(record.epoch)));
        let own = p.had.get(&partition).copied().unwrap_or_default();
        let only_own = self.plan.sabotage == Some(Sabotage::OwnEpochsOnly);
        let floor = if only_own { own } else { p.node.epoch() };
        let epoch = self.store.acquire(now, partition, floor, (i, inc), want.stamp);
        self.watch.acquired(now, partition, epoch);
        p.owned.insert(partition, epoch);
        p.had.insert(partition, epoch);
        if let Some(((o, of), epoch)) = before.filter(|(holder, _)| *holder != (i, inc)) {
            let after = self.rng.between(1, 300);
            self.at(after, Event::Fenced(o, of, partition, epoch));
        }
        self.watch.note(now, format!("n{i} owns {}", partition.0));
        self.feed(i, inc, NodeInput::Owned(partition, epoch));
    }

    fn fenced(&mut self, i: usize, inc: u64, partition: PartitionId, epoch: Epoch) {
        let reached = self.reaches(i, partition.0 % 3);
        let Some(p) = self.alive(i, inc).filter(|p| p.owned.get(&partition) == Some(&epoch)) else { return };
        if !reached || p.paused {
            self.at(300, Event::Fenced(i, inc, partition, epoch));
            return;
        }
        p.owned.remove(&partition);
        self.watch.note(self.now, format!("n{i} is fenced from {}", partition.0));
        if self.plan.sabotage != Some(Sabotage::LossUntold) {
            self.feed(i, inc, NodeInput::Lost(partition));
        }
    }

    fn release(&mut self, i: usize, inc: u64, partition: PartitionId) {
        let reached = self.reaches(i, partition.0 % 3);
        let Some(p) = self.alive(i, inc) else { return };
        if p.paused || (!reached && p.owned.contains_key(&partition)) {
            self.at(100, Event::Release(i, inc, partition));
            return;
        }
        if let Some(epoch) = p.owned.remove(&partition) {
            let record = self.store.owner(partition);
            record.released |= record.epoch == epoch.0;
            self.watch.note(self.now, format!("n{i} releases {}", partition.0));
        }
        self.feed(i, inc, NodeInput::Lost(partition));
    }

    /// A broker connects to its own address, as it does before it does anything else.
    fn look_at_address(&mut self, i: usize, inc: u64) {
        let is_reached = !self.unreached.contains(&i) && !self.cuts.contains(&(i, i));
        let Some(p) = self.alive(i, inc) else { return };
        p.failures = if is_reached { 0 } else { p.failures + 1 };
        p.was_reached |= is_reached;
        if is_reached || !p.was_reached || p.failures >= FAILURES {
            self.feed(i, inc, NodeInput::Reached(is_reached));
        }
    }

    fn probe(&mut self, i: usize, inc: u64) {
        self.look_at_address(i, inc);
        let was_reached = self.alive(i, inc).is_some_and(|p| p.was_reached);
        let apart = |p: &u16| !was_reached || !self.reaches(i, p % 3);
        let all = (0..self.plan.partitions).filter(apart).map(PartitionId).collect();
        let Some(p) = self.alive(i, inc) else { return };
        if p.reported != all {
            p.reported.clone_from(&all);
            self.feed(i, inc, NodeInput::Unreachable(all));
        }
        self.at(500, Event::Probe(i, inc));
    }

    fn resume(&mut self, i: usize, inc: u64) {
        let Some(p) = self.alive(i, inc) else { return };
        p.paused = false;
        let inbox = std::mem::take(&mut p.inbox);
        self.watch.note(self.now, format!("n{i} goes on"));
        for input in inbox {
            self.feed(i, inc, input);
        }
        self.feed(i, inc, NodeInput::Tick);
    }
}
