//! A broker's shell: it takes inputs in turns, carries effects out, and has a host with clocks.

use std::collections::BTreeSet;

use mtimer_core::{Effect, Engine, EngineOptions, Input, Now};
use mtimer_protocol::ServerMessage;
use mtimer_store::conformance::SeededRandom;
use mtimer_types::{Epoch, RetryTiers, Time};

use super::check::{CLOCK_BOUND_US, Excuse, FORGETFUL_MS, Moment};
use super::clocks::{BrokerClock, Host, deciding_us};
use super::owners::address;
use super::plan::Plan;
use super::{Event, HOP_MS, PARTITIONS, START, World};

/// How often a broker reads the clocks, ms.
const ROUND_MS: u64 = 1_000;
/// The longest pause between two turns of a broker that has nothing to do, ms.
const LONGEST_IDLE_MS: u64 = 600_000;

/// A process.
pub(super) struct Process {
    pub(super) inc: u64,
    pub(super) engine: Engine,
    pub(super) clock: BrokerClock,
    /// By partition: its lane.
    pub(super) lanes: Vec<Option<u64>>,
    /// By partition: the epoch of the last lane it had.
    pub(super) epochs: Vec<Epoch>,
    alarms: BTreeSet<Time>,
    /// Inputs that have come while it was paused.
    inbox: Vec<Input>,
    pub(super) paused: bool,
    pub(super) stopping: bool,
    /// It gives up its partitions, and takes none any more.
    pub(super) releasing: bool,
    /// Turns since something came from a client, or was due.
    idle_turns: u32,
}

/// A host with a broker, if it runs.
pub(super) struct Broker {
    pub(super) host: Host,
    pub(super) process: Option<Process>,
    /// When its next turn is, ms.
    pub(super) wake: Option<u64>,
    /// When its process goes on that was paused last, ms.
    resumes_at: u64,
    /// Up to when its time may be behind the clock that decides, ms: it has not read the clocks
    /// since that stepped.
    behind_until: u64,
    /// By how much its time may be ahead, because the deciding clock has stepped back, µs; and when
    /// that was looked at, ms.
    ahead_us: i64,
    ahead_at: u64,
}

impl Broker {
    pub(super) fn new(plan: &Plan, rng: &mut SeededRandom, disciplined: bool) -> Self {
        let host =
            if plan.has_clocks() { Host::draw(rng, disciplined, plan.sabotage) } else { Host::exact() };
        Self { host, process: None, wake: None, resumes_at: 0, behind_until: 0, ahead_us: 0, ahead_at: 0 }
    }

    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// The deciding clock has stepped, or the host has stood still until `at`, ms, and cannot tell.
    pub(super) fn excuse_from(&mut self, at: u64, by_us: i64) {
        // A process that is paused reads the clocks when it goes on.
        let at = at.max(self.resumes_at);
        self.behind_until = self.behind_until.max(at + 2 * ROUND_MS + 500);
        self.ahead_us += (-by_us).max(0);
        // It stands still when it has read the clocks.
        self.ahead_at = self.ahead_at.max(self.behind_until);
    }

    /// The process stands still until `at`, ms.
    pub(super) fn pause_until(&mut self, ms: u64, at: u64) {
        self.resumes_at = at;
        if ms <= self.behind_until {
            self.excuse_from(at, 0);
        }
    }

    /// The clock error that is excused now.
    fn excuse(&mut self, ms: u64) -> Excuse {
        let stood = ms.saturating_sub(self.ahead_at);
        self.ahead_at = self.ahead_at.max(ms);
        self.ahead_us = (self.ahead_us - stood as i64 * 1_000).max(0);
        Excuse { ahead_us: self.ahead_us, behind: ms <= self.behind_until }
    }
}

impl World {
    pub(super) fn start(&mut self, b: usize) {
        if self.brokers[b].runs() {
            return;
        }
        if self.clocks.are_silent() {
            // It does not know the time.
            return self.at(1_000, Event::Start(b));
        }
        self.incarnations += 1;
        let inc = self.incarnations;
        let us = self.us();
        let mut clock = BrokerClock::start(us, &self.brokers[b].host, &self.clocks, self.plan.sabotage);
        let options = EngineOptions {
            partitions: PARTITIONS,
            memory_bytes: self.plan.memory_bytes,
            preload_ms: 2_000,
            batch_ops: self.plan.batch_ops,
            retry: RetryTiers(vec![100, 500, 1_000]),
            // Without faults no broker is away for longer than a handler may take.
            callback_timeout_ms: if self.plan.has_faults() { 2_000 } else { 30_000 },
            dead_max_age_ms: 365 * 86_400_000,
            seed: self.rng.next_u64(),
            address: self.plan.clustered.then(|| address(b)),
            ..EngineOptions::default()
        };
        let now = clock.now(us, &self.brokers[b].host);
        let engine = Engine::new(options, now);
        self.history.note(self.ms, None, || format!("broker {b} starts"));
        self.brokers[b].process = Some(Process {
            inc,
            engine,
            clock,
            lanes: vec![None; usize::from(PARTITIONS)],
            epochs: vec![Epoch::default(); usize::from(PARTITIONS)],
            alarms: BTreeSet::new(),
            inbox: Vec::new(),
            paused: false,
            stopping: false,
            releasing: false,
            idle_turns: 0,
        });
        if self.plan.clustered {
            let topology = Input::Topology(self.topology.clone());
            self.arrive(b, inc, topology);
        }
        for p in 0..PARTITIONS {
            self.want(b, p);
        }
        for n in 0..self.clients.len() {
            let after = self.rng.between(1, 50);
            self.at(after, Event::Connect(n, b));
        }
        if self.plan.has_clocks() {
            self.at(ROUND_MS, Event::Observe(b, inc));
        }
    }

    /// A process ends: killed, or when everything is given up.
    pub(super) fn end(&mut self, b: usize) {
        let Some(process) = self.brokers[b].process.take() else { return };
        self.brokers[b].wake = None;
        process.lanes.into_iter().flatten().for_each(|lane| self.lanes.abandon(lane));
        self.hang_up_all(b);
    }

    pub(super) fn process(&mut self, b: usize, inc: u64) -> Option<&mut Process> {
        self.brokers[b].process.as_mut().filter(|p| p.inc == inc)
    }

    pub(super) fn now_of(&mut self, b: usize) -> Option<Now> {
        let us = self.us();
        let Broker { host, process, .. } = &mut self.brokers[b];
        process.as_mut().map(|p| p.clock.now(us, host))
    }

    pub(super) fn arrive(&mut self, b: usize, inc: u64, input: Input) {
        let Some(now) = self.now_of(b) else { return };
        let ms = self.ms;
        let Some(p) = self.process(b, inc) else { return };
        if p.paused {
            p.inbox.push(input);
            return;
        }
        if matches!(input, Input::Session(..)) {
            p.idle_turns = 0;
        }
        p.engine.handle(now, input);
        self.brokers[b].wake = Some(ms);
    }

    pub(super) fn resume(&mut self, b: usize, inc: u64) {
        let ms = self.ms;
        let Some(p) = self.process(b, inc) else { return };
        p.paused = false;
        let inbox = std::mem::take(&mut p.inbox);
        self.history.note(ms, None, || format!("broker {b} goes on"));
        for input in inbox {
            self.arrive(b, inc, input);
        }
        self.brokers[b].wake = Some(ms);
    }

    pub(super) fn observe(&mut self, b: usize, inc: u64) {
        let ways_us = (self.rng.between(100, 5_000) as i64, self.rng.between(100, 5_000) as i64);
        let (us, ms) = (self.us(), self.ms);
        let Broker { host, process, .. } = &mut self.brokers[b];
        let Some(p) = process.as_mut().filter(|p| p.inc == inc) else { return };
        if !p.paused {
            p.clock.observe(us, ways_us, host, &self.clocks);
            // Instants are derived again.
            self.brokers[b].wake = Some(ms);
        }
        self.at(ROUND_MS, Event::Observe(b, inc));
    }

    /// One turn of a broker: ticks its engine, carries out the effects of the inputs so far, and
    /// plans the next turn.
    pub(super) fn turn(&mut self, b: usize) {
        self.brokers[b].wake = None;
        let Some(now) = self.now_of(b) else { return };
        self.stats.turns += 1;
        self.check_clock(b, now);
        let Some(p) = self.brokers[b].process.as_mut().filter(|p| !p.paused) else { return };
        let inc = p.inc;
        while p.alarms.first().is_some_and(|a| *a <= now.time) {
            p.alarms.pop_first();
            p.idle_turns = 0;
        }
        p.engine.handle(now, Input::Tick);
        let mut effects = Vec::new();
        p.engine.flush(now, &mut effects);
        p.idle_turns = p.idle_turns.saturating_add(1);
        for effect in effects {
            self.carry_out(b, inc, now, effect);
        }
        self.plan_turn(b);
    }

    fn check_clock(&mut self, b: usize, now: Now) {
        if !self.plan.has_clocks() {
            return;
        }
        let (us, ms) = (self.us(), self.ms);
        let broker = &mut self.brokers[b];
        let excuse = broker.excuse(ms);
        let error_us = now.time.as_ms() as i64 * 1_000 - deciding_us(us, &broker.host, &self.clocks);
        let Some(p) = broker.process.as_mut() else { return };
        let advance = p.clock.advance(now);
        if !excuse.behind {
            let most = self.stats.clock_error_us;
            self.stats.clock_error_us = most.max((error_us - excuse.ahead_us).max(-error_us).max(0) as u64);
        }
        let m = Moment { ms, broker: b, time: now.time, mono_ms: now.mono_ms };
        self.history.timed(m, error_us, excuse, advance);
    }

    /// Whether this time is behind the clock that decides for a broker by much of the time for
    /// which outcomes are remembered: outcomes that it stores now may be forgotten early.
    pub(super) fn is_far_behind(&self, b: usize, time: Time) -> bool {
        let deciding_ms = deciding_us(self.us(), &self.brokers[b].host, &self.clocks) / 1_000;
        deciding_ms.saturating_sub_unsigned(time.as_ms()) > FORGETFUL_MS as i64
    }

    /// By how much a client of this broker may be early by the clock that decides, ms.
    pub(super) fn may_be_early_ms(&mut self, b: usize) -> u64 {
        if !self.plan.has_clocks() {
            return 0;
        }
        let excuse = self.brokers[b].excuse(self.ms);
        ((CLOCK_BOUND_US + excuse.ahead_us) / 1_000) as u64
    }

    /// When a broker's next turn is.
    fn plan_turn(&mut self, b: usize) {
        let (us, ms, next) = (self.us(), self.ms, self.next_event());
        let first = self.history.upcoming.first().map_or(u64::MAX, |(t, _)| t.as_ms().saturating_sub(START));
        let Broker { host, process, wake, .. } = &mut self.brokers[b];
        let Some(p) = process.as_mut() else { return };
        let alarm = p.alarms.first().map(|at| p.clock.reaches(us, host, *at));
        let mut tick = p.engine.next_tick().map(|at| p.clock.reaches_mono(host, at));
        // A broker that has nothing to do looks about every 50 ms or every second. Of a quiet time
        // that lasts for hours most of these looks are left out.
        let quiet = next.min(first.saturating_sub(5_000));
        if p.engine.unsettled() == 0 && quiet > ms + 1_000 && p.idle_turns > 20 {
            let pause = (50 << (p.idle_turns - 20).min(14)).min(LONGEST_IDLE_MS);
            tick = tick.map(|t| t.max((ms + pause).min(quiet)));
        }
        let next = [alarm, tick].into_iter().flatten().min().map(|t| t.max(ms + 1));
        *wake = [*wake, next].into_iter().flatten().min();
    }

    fn carry_out(&mut self, b: usize, inc: u64, now: Now, effect: Effect) {
        let m = Moment { ms: self.ms, broker: b, time: now.time, mono_ms: now.mono_ms };
        match effect {
            // What is sent leaves at once.
            Effect::Send(session, message) | Effect::SendBy(session, message, _) => {
                self.look_at(m, &message);
                self.send_down(session, message);
            }
            Effect::Close(_, reason) => {
                self.history.fail(self.ms, None, &format!("a client was thrown out: {reason}"));
            }
            Effect::Alarm(at) => {
                if let Some(p) = self.process(b, inc) {
                    p.alarms.insert(at);
                }
            }
            Effect::LaneEnded(partition, _) => {
                if let Some(lane) =
                    self.process(b, inc).and_then(|p| p.lanes[usize::from(partition.0)].take())
                {
                    self.lanes.abandon(lane);
                }
                self.want(b, partition.0);
            }
            // There is nothing to take back.
            Effect::Recall(..) => {}
            // No destination of a simulation has limits.
            Effect::AskShares(_) => {}
            // No timer of a simulation has a trace; dead letters are looked up in the store.
            Effect::Settled(..) | Effect::Died(_) | Effect::Stored(_) => {}
            Effect::Released => {
                self.end(b);
                let after = self.rng.between(50, 3_000);
                self.at(after, Event::Start(b));
            }
            Effect::Call(partition, call) => {
                let lane = self.process(b, inc).and_then(|p| p.lanes[usize::from(partition.0)]);
                if let Some(lane) = lane {
                    self.send_to_store(lane, call);
                }
            }
        }
    }

    /// Messages from a broker to its clients are checked as they leave: that is when a delivery
    /// begins and an answer is given.
    fn look_at(&mut self, m: Moment, message: &ServerMessage) {
        match message {
            ServerMessage::Deliver { deliveries, .. } => {
                for d in deliveries {
                    self.stats.deliveries += 1;
                    let claimed = self.claimed(d.id.partition());
                    self.history.sent(m, d, claimed);
                }
            }
            ServerMessage::Reply { corr, replies } => {
                for reply in replies {
                    let Some(op) = self.load.op_of(*corr) else { continue };
                    let at = super::load::partition_of(&op);
                    let epoch = self.brokers[m.broker].process.as_ref().map(|p| p.epochs[usize::from(at.0)]);
                    let epoch = epoch.unwrap_or_default();
                    self.history.answered(m, epoch, &op, reply);
                    if let Some(d) = self.plan.sabotage.and_then(|s| s.sends_besides(epoch, reply)) {
                        self.history.sent(m, &d, None);
                    }
                }
            }
            _ => {}
        }
    }

    /// A hop between a client and a broker, ms.
    pub(super) fn hop(&mut self) -> u64 {
        self.rng.below(HOP_MS + 1)
    }
}
