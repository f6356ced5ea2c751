//! The engine: a broker's decisions as one state machine.
//!
//! Time, store answers and client messages go in through [`Engine::handle`]; [`Engine::flush`] then
//! returns the effects of a whole turn of them: claims, group commits, deliveries, replies. One
//! timer's way through the files: `requests` (schedule) → `batches` (to the store) → `answers`,
//! `replies` (stored) → `loading` (into memory) → `delivery` (due, claimed, ready, sent) →
//! `settlements`, `settle` (acknowledged, retried, dead-lettered, expired), or → `park` and back.
//! These files are the methods of [`Engine`], which move timers from one part of it to another.
//! They stand in layers, and calls run down:
//!
//! - this file: an input, and the order of a turn;
//! - actions that an input or a turn begins: `answers`, `ownership`, `stop`, `counting`;
//!   `handover`, `queries`; `batches`, `replies`, `requests`; `settlements`, `loading`,
//!   `housekeeping`;
//! - changes of a timer that several of them share: `delivery`, `sweep`; `park`, `settle`;
//!   `transitions`;
//! - `outcomes` (counters, traces, dead letters), `owners` (who serves a partition), `state` (the
//!   small steps).
//!
//! The parts own their state and decide alone; none of them knows the engine:
//!
//! - of a partition (`partition`): the timers in memory (`table`), operations that wait (`queue`,
//!   `key_edits`), calls under way (`calls`), claims (`claims`), edits that hold timers (`holds`),
//!   questions (`questions`), inherited deliveries (`inherited`);
//! - of a destination (`destination`): timers that wait for credit (`ready`), parked ones
//!   (`parks`), progress (`flow`), how many may wait (`backlog_limit`), what its settings say
//!   (`policy`, `policies`), and who has credit (`credit`);
//! - of the broker: sessions and their credit (`roster`, `destination_members`), requests and
//!   settlements that are not answered (`open_requests`, `settle_reports`), how many deliveries are
//!   under way (`flights`), the times at which deferred work goes (`deferral`), callback timeouts
//!   (`timeouts`), ids of acknowledged timers (`recent`), memory (`pressure`), time that counts
//!   against clients (`attended`), counts of partitions (`counts`), sweeps of parks (`sweeps`).
//!
//! Invariants:
//!
//! - A timer is sent only if a stored claim covers it or (at most once) it is taken.
//! - A timer is not sent while an edit (cancel, reschedule, replace) holds it, see `edits`, nor
//!   after its deadline. `clearance` asks for both whenever a delivery is given out, not only when
//!   a timer is due. At the end of the turn, deliveries prepared during it are checked again:
//!   deadline, and recent ownership. Only then do edits leave, so an edit counts only deliveries
//!   that are sent.
//! - A credit is given back exactly once for each delivery; every operation gets one reply.
//! - Answers of the store are matched with calls by their order alone. A call that waits for its
//!   answer keeps names, or numbers that stay valid until then: a destination's number is valid
//!   while a timer in memory, a member or a park refers to it.
//!
//! Not in here: how the store files timers, sockets, clocks.

mod answers;
mod attended;
mod backlog_limit;
mod batches;
mod bulk;
mod bulk_turns;
mod bulk_work;
mod calls;
mod claims;
mod clearance;
mod counting;
mod counts;
mod credit;
mod deferral;
mod delivery;
mod destination;
mod destination_members;
mod edits;
mod figures;
mod flights;
mod flow;
mod handover;
mod hash;
mod holds;
mod housekeeping;
mod inherited;
mod key_edits;
mod lateness;
mod limit;
mod loading;
mod open_requests;
mod outcomes;
mod owners;
mod ownership;
mod park;
mod parks;
mod partition;
mod partitions;
mod pending;
mod policies;
mod policy;
mod pressure;
mod queries;
mod questions;
mod queue;
mod ready;
mod recent;
mod replies;
mod requests;
mod roster;
mod settings;
mod settle;
mod settle_reports;
mod settlements;
mod shares;
mod state;
mod stop;
mod story;
mod sweep;
mod sweeps;
mod table;
#[cfg(test)]
mod tests;
mod timeouts;
mod token_bucket;
mod transitions;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;

use mtimer_protocol::{ErrorCode, ServerMessage, ShareRequest, Topology};
use mtimer_types::TimerId;

use self::attended::AttendedTime;
use self::bulk_turns::BulkTurns;
use self::counts::Counting;
use self::deferral::Deferral;
use self::destination_members::DestIx;
use self::flights::Flights;
use self::hash::Seeded;
use self::open_requests::OpenRequests;
use self::partitions::Partitions;
use self::pressure::Pressure;
use self::questions::ListPages;
use self::recent::RecentIds;
use self::roster::{RegistrationError, Roster};
use self::settle_reports::SettleReports;
use self::sweeps::Sweeps;
use self::timeouts::Timeouts;
use crate::api::{Counter, Effect, EngineOptions, Input, Now, SessionEvent, SessionId};
use crate::figures::Tallies;
use crate::rng::Rng;

/// How often destinations and memory are looked over while there is something to look for, ms.
const HOUSEKEEPING_MS: u64 = 50;

/// A broker's decisions.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    seed: Seeded,
    rng: Rng,
    partitions: Partitions,
    /// Sessions, destinations, credit.
    roster: Roster,
    requests: OpenRequests,
    reports: SettleReports,
    counting: Counting,
    /// The assigned owner of each partition, if there is a cluster around this broker.
    topology: Option<Arc<Topology>>,
    recent: RecentIds,
    timeouts: Timeouts,
    flights: Flights,
    list_pages: ListPages,
    bulk_turns: BulkTurns,
    /// Deliveries that closed sessions have not settled.
    lost: VecDeque<(SessionId, TimerId)>,
    deferral: Deferral,
    /// Memory in use at the beginning of the turn.
    pressure: Pressure,
    attended: AttendedTime,
    sweeps: Sweeps,
    /// Effects of the present turn.
    effects: Vec<Effect>,
    /// Destinations with limits of which deliveries were given out in the present turn.
    started: Vec<DestIx>,
    /// Shares that are asked for in the present turn.
    asks: Vec<ShareRequest>,
    /// Its answers to questions: they go behind its deliveries, see [`Engine::answer`].
    answers: Vec<Effect>,
    counters: [u64; Counter::ALL.len()],
    tallies: Tallies,
    /// Deliveries and takes not settled, settlements not stored.
    unsettled: usize,
    phase: EnginePhase,
    /// Monotonic ms.
    housekeeping_at: u64,
}

/// How far the engine is on its way from running to stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EnginePhase {
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
            rng: Rng::new(options.seed),
            partitions: Partitions::new(options.partitions),
            roster: Roster::new(seed),
            requests: OpenRequests::default(),
            reports: SettleReports::default(),
            counting: Counting::default(),
            topology: None,
            recent: RecentIds::new(seed, now),
            timeouts: Timeouts::default(),
            flights: Flights::new(seed),
            list_pages: ListPages::default(),
            bulk_turns: BulkTurns::default(),
            lost: VecDeque::new(),
            effects: Vec::new(),
            started: Vec::new(),
            asks: Vec::new(),
            answers: Vec::new(),
            counters: [0; Counter::ALL.len()],
            tallies: Tallies::default(),
            unsettled: 0,
            phase: EnginePhase::Running,
            housekeeping_at: now.mono_ms,
            deferral: Deferral::default(),
            pressure: Pressure::Free,
            attended: AttendedTime::new(now.mono_ms),
            sweeps: Sweeps::new(now.mono_ms),
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
            Input::Lent(shares) => self.lent(now, &shares),
            Input::CountStored => self.counting.want_stored(),
            Input::Tick => {}
            Input::Drain => self.drain(),
            Input::Release => self.release(now),
        }
    }

    /// Appends the effects of the inputs since the last flush to `out`, in order.
    pub fn flush(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.attended.turn(now.mono_ms);
        self.end_pauses(now);
        self.take_back(now);
        self.lose_unsettled(now);
        self.time_out(now);
        self.pressure = Pressure::of(self.memory().1, self.options.memory_bytes);
        self.collect_due(now);
        if now.mono_ms >= self.housekeeping_at {
            self.housekeeping_at = now.mono_ms + HOUSEKEEPING_MS;
            self.run_housekeeping(now);
        }
        self.roster.touch_limited(now.mono_ms);
        self.dispatch(now);
        self.load_more(now);
        self.work_in_bulk(now);
        self.commit(now);
        self.ask_waiting(now);
        self.hand_over(now);
        self.count_partitions(now);
        self.send(now);
        if !self.asks.is_empty() {
            self.effects.push(Effect::AskShares(std::mem::take(&mut self.asks)));
        }
        self.effects.append(&mut self.answers);
        out.append(&mut self.effects);
    }

    /// The next monotonic time, ms, at which the engine wants an [`Input::Tick`] for a timeout of
    /// its own.
    pub fn next_tick(&self) -> Option<u64> {
        let busy = self.partitions.iter().any(|p| p.table.len() > 0 || !p.is_up());
        let waiting = busy || self.roster.has_parks();
        let idle = if waiting { HOUSEKEEPING_MS } else { 1_000 };
        let owns = self.partitions.owned() > 0;
        let housekeeping = owns.then_some((self.housekeeping_at + idle).saturating_sub(HOUSEKEEPING_MS));
        let lost = (!self.lost.is_empty()).then_some(0);
        let bulk = self.bulk_wake_at();
        let limited = self.roster.next_limited();
        [
            lost,
            limited,
            self.timeouts.next(),
            housekeeping,
            self.deferral.wake_at(),
            self.counting.next(),
            bulk,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Deliveries sent and not settled, and settlements not stored yet: 0 when a drain is complete.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    fn session(&mut self, now: Now, session: SessionId, event: SessionEvent) {
        if let SessionEvent::Opened { client } = event {
            self.roster.open(session, client);
            self.introduce(session);
            if self.phase != EnginePhase::Running {
                self.effects.push(Effect::Send(session, ServerMessage::Closing));
            }
            return;
        }
        if !self.roster.is_open(session) {
            return;
        }
        match event {
            SessionEvent::Opened { .. } => {}
            SessionEvent::Register { registration, dest, credit } => {
                let credit = credit.min(mtimer_types::limits::MAX_CREDIT);
                if let Err(why) = self.roster.register(session, registration, &dest, credit) {
                    self.registration_refused(session, registration, &why);
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
            SessionEvent::Recalled(ids) => self.recalled(now, session, &ids),
            SessionEvent::Goodbye => self.roster.leave_all(session),
            SessionEvent::Closed => self.session_closed(session),
        }
    }

    fn registration_refused(&mut self, session: SessionId, registration: u32, why: &RegistrationError) {
        if !why.is_harmless() {
            return self.break_off(session, why.to_string());
        }
        let (code, message) = (ErrorCode::LimitReached, why.to_string());
        let refused = ServerMessage::RegisterRefused { registration, code, message };
        self.effects.push(Effect::Send(session, refused));
    }
}
