//! The engine: a broker's decisions as one state machine.
//!
//! Time, store answers and client messages go in through [`Engine::handle`]; [`Engine::flush`] then
//! brings out what follows from a whole turn of them: claims, group commits, deliveries, replies.
//! One timer's way through the files: `requests` (schedule) → `lanes` (stored) → `loading` (into
//! memory) → `delivery` (due, claimed, ready, sent) → `settle` (acknowledged, retried, buried,
//! expired), or → `park` and back. `table` holds the timers in memory, `roster` the sessions and
//! destinations, `partition` what belongs to the ownership of one partition.
//!
//! Invariants:
//!
//! - A timer is sent only if a stored claim covers it or (at most once) it is taken.
//! - A timer is not sent while an edit (cancel, reschedule, replace) holds it, see `edits`, nor
//!   after its deadline. Both are checked whenever a delivery is given out, not only when a timer
//!   is due. What is given out while an answer is handled is checked again for its deadline, and
//!   for a recent fenced write, when the turn ends. That is before edits leave for the store, so
//!   they count only what is sent as under way.
//! - A credit is given back exactly once for each delivery; every operation gets one reply.
//! - Answers of the store are matched with calls by their order alone. A call that waits for its
//!   answer keeps names, or numbers that stay valid until then: a destination's number is valid
//!   while a timer in memory, a member or a park refers to it.
//!
//! Not in here: how the store files timers, sockets, clocks.

mod counting;
mod delivery;
mod edits;
mod figures;
mod handover;
mod hash;
mod holds;
mod inherited;
mod lanes;
mod loading;
mod park;
mod partition;
mod purpose;
mod queries;
mod questions;
mod queue;
mod recent;
mod requests;
mod roster;
mod settle;
mod stop;
mod table;
#[cfg(test)]
mod tests;
mod timeouts;

use std::sync::Arc;

use mtimer_protocol::Topology;
use mtimer_types::PartitionId;
use slab::Slab;

use self::counting::Counting;
use self::hash::{Rng, Seeded};
use self::park::Sweep;
use self::partition::Partition;
use self::recent::RecentIds;
use self::requests::OpenRequest;
use self::roster::Roster;
use self::settle::Report;
use self::timeouts::Timeouts;
use crate::api::{Counter, Effect, EngineOptions, Input, Now, SessionEvent, SessionId};
use crate::figures::Tallies;

/// How often destinations and memory are looked over while there is something to look for, ms.
const HOUSEKEEPING_MS: u64 = 50;
/// The longest that a turn is taken for, ms: a little over the pause between two when there is
/// little to do.
const TURN_MS: u64 = HOUSEKEEPING_MS + 10;

/// A broker's decisions.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    seed: Seeded,
    rng: Rng,
    /// By partition number; `None`: not owned.
    partitions: Vec<Option<Box<Partition>>>,
    roster: Roster,
    requests: Slab<OpenRequest>,
    reports: Slab<Report>,
    counting: Counting,
    /// Who is to own what, if there is a cluster around this broker.
    topology: Option<Arc<Topology>>,
    recent: RecentIds,
    timeouts: Timeouts,
    effects: Vec<Effect>,
    counters: [u64; Counter::ALL.len()],
    tallies: Tallies,
    /// Deliveries and takes not settled, settlements not stored.
    unsettled: usize,
    phase: Phase,
    housekeeping_at: u64,
    /// The last tick, in multiples of [`partition::TICK_MS`] of the cluster's clock.
    ticked: u64,
    /// When the first partition sends the acknowledgements that wait there, monotonic ms.
    gather_at: Option<u64>,
    /// Somebody waits for credit that such an outcome holds.
    short: bool,
    /// Memory is more than half full: what nobody takes is parked without delay.
    pressed: bool,
    /// Memory is over its budget.
    full: bool,
    /// Time, ms, in which clients could have been heard and served: a turn counts for [`TURN_MS`]
    /// at most, so that a broker that stood still does not take its clients for stuck.
    attended: u64,
    flushed_at: u64,
    /// When the next sweep of parks may begin, monotonic ms.
    sweep_at: u64,
    /// The sweep of parks under way: one at a time, of a partition that is owned and not being
    /// given up.
    sweep: Option<Sweep>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Draining,
    Releasing,
    Released,
}

impl Engine {
    /// A new engine that owns nothing yet.
    pub fn new(options: EngineOptions, now: Now) -> Self {
        let seed = Seeded(options.seed);
        Self {
            seed,
            rng: Rng(options.seed),
            partitions: (0..options.partitions).map(|_| None).collect(),
            roster: Roster::new(seed),
            requests: Slab::new(),
            reports: Slab::new(),
            counting: Counting::default(),
            topology: None,
            recent: RecentIds::new(seed, now),
            timeouts: Timeouts::default(),
            effects: Vec::new(),
            counters: [0; Counter::ALL.len()],
            tallies: Tallies::default(),
            unsettled: 0,
            phase: Phase::Running,
            housekeeping_at: now.mono_ms,
            ticked: 0,
            gather_at: None,
            short: false,
            pressed: false,
            full: false,
            attended: 0,
            flushed_at: now.mono_ms,
            sweep_at: now.mono_ms,
            sweep: None,
            options,
        }
    }

    /// Takes one input. Call [`Engine::flush`] after a few of them.
    pub fn handle(&mut self, now: Now, input: Input) {
        match input {
            Input::Acquired { partition, epoch, prior_claim, in_flight } => {
                self.acquired(now, partition, epoch, prior_claim, in_flight);
            }
            Input::Answered { partition, epoch, answer } => self.answered(now, partition, epoch, answer),
            Input::Health { partition, health } => self.health(partition, health),
            Input::Session(session, event) => self.session(now, session, event),
            Input::Topology(topology) => self.adopt_topology(topology),
            Input::Disown(partition) => self.disown(partition),
            Input::Tick => {}
            Input::Drain => self.drain(),
            Input::Release => self.release(now),
        }
    }

    /// Brings out what follows from the inputs since the last flush. Effects are in order.
    pub fn flush(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.attended += now.mono_ms.saturating_sub(self.flushed_at).min(TURN_MS);
        self.flushed_at = now.mono_ms;
        self.take_back(now);
        self.time_out(now);
        let used = self.memory().1;
        self.pressed = used > self.options.memory_bytes / 2;
        self.full = used >= self.options.memory_bytes;
        self.collect_due(now);
        if now.mono_ms >= self.housekeeping_at {
            self.housekeeping_at = now.mono_ms + HOUSEKEEPING_MS;
            self.run_housekeeping(now);
        }
        self.dispatch(now);
        self.load_more(now);
        self.commit(now);
        self.ask_waiting(now);
        self.hand_over(now);
        self.count_partitions(now);
        self.send(now);
        out.append(&mut self.effects);
    }

    /// The next monotonic time, ms, at which the engine wants an [`Input::Tick`] for a timeout of
    /// its own.
    pub fn next_tick(&self) -> Option<u64> {
        let busy = self.partitions.iter().flatten().any(|p| p.table.len() > 0 || p.down.is_some());
        let waiting = busy || self.roster.dests().any(|(_, d)| !d.parks.is_empty());
        let idle = if waiting { HOUSEKEEPING_MS } else { 1_000 };
        let owns = self.partitions.iter().any(Option::is_some);
        let housekeeping = owns.then_some((self.housekeeping_at + idle).saturating_sub(HOUSEKEEPING_MS));
        [self.timeouts.next(), housekeeping, self.gather_at, self.counting.next()].into_iter().flatten().min()
    }

    /// Deliveries sent and not settled, and settlements not stored yet: 0 when a drain is complete.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Timers in memory.
    pub fn in_memory(&self) -> u64 {
        self.memory().0
    }

    /// Counters since the start, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|(c, name)| (*name, self.counters[*c as usize]))
    }

    fn session(&mut self, now: Now, session: SessionId, event: SessionEvent) {
        if let SessionEvent::Opened { client } = event {
            self.roster.open(session, client);
            self.introduce(session);
            if self.phase != Phase::Running {
                self.effects.push(Effect::Send(session, mtimer_protocol::ServerMessage::Closing));
            }
            return;
        }
        if !self.roster.sessions.contains_key(&session) {
            return;
        }
        match event {
            SessionEvent::Opened { .. } => {}
            SessionEvent::Register { registration, dest, credit } => {
                let credit = credit.min(mtimer_types::limits::MAX_CREDIT);
                if let Err(reason) = self.roster.register(session, registration, &dest, credit) {
                    self.break_off(session, reason);
                }
            }
            SessionEvent::Unregister { registration } => self.roster.unregister(session, registration),
            SessionEvent::Request(request) => self.request(now, session, request, Vec::new()),
            SessionEvent::Screened { request, denied } => self.request(now, session, request, denied),
            SessionEvent::Settle(settlements) => self.settlements(now, session, settlements),
            SessionEvent::Extend { id, epoch, attempt, by_ms } => {
                self.extend(now, session, id, epoch, attempt, by_ms)
            }
            SessionEvent::Query { corr, query } => self.query(session, corr, query),
            SessionEvent::Goodbye => self.roster.leave_all(session),
            SessionEvent::Closed => self.session_closed(now, session),
        }
    }

    fn break_off(&mut self, session: SessionId, reason: impl Into<String>) {
        self.count(Counter::ProtocolErrors, 1);
        self.effects.push(Effect::Close(session, reason.into()));
    }

    fn partition(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.partitions.get_mut(usize::from(id.0))?.as_deref_mut()
    }

    fn count(&mut self, counter: Counter, n: u64) {
        self.counters[counter as usize] += n;
    }
}
