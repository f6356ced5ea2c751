//! How often the engine asks for memory on the hot path: schedule, load, fire, settle.
//!
//! Counted, not timed: the number is the same on every machine, and a change that copies or boxes
//! once more for each timer shows at once. Only the engine is counted, not the store, nor making
//! the messages. A number below the bound by a quarter is a success to be written down: lower the
//! bound then.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_core::{CallAnswer, Effect, Engine, EngineOptions, Input, Now, SessionEvent, SessionId};
use mtimer_protocol::ops::{Schedule, ScheduleReply};
use mtimer_protocol::{OpReply, Request, RequestOp, ServerMessage, Settlement};
use mtimer_store::memory::MemoryStore;
use mtimer_store::{Acquire, Lane, LaneFuture, Store};
use mtimer_types::{
    Destination, Epoch, HandlerOutcome, KeyPolicy, Nonce, PartitionId, Term, Time, Timer, TimerId,
};

const START: u64 = 1_700_000_000_000;
const SESSION: SessionId = SessionId(1);
const PARTITION: PartitionId = PartitionId(0);
/// Timers of a round; those of the first round, in which tables grow, are not counted.
const TIMERS: u64 = 10_000;
/// Timers of a request.
const BATCH: u64 = 200;
/// Timers that the client takes at once.
const CREDIT: u32 = 2_000;

/// Allocations for 1,000 timers, at most: the measured count, and 15 % more.
const LOADED: u64 = 2_950;
const NEAR: u64 = 2_950;

/// An engine with one partition, one client, and the store in memory.
struct World {
    engine: Engine,
    lane: Arc<dyn Lane>,
    answers: VecDeque<LaneFuture<CallAnswer>>,
    ms: u64,
    random: u64,
    stored: u64,
    settled: u64,
    /// Made by the engine.
    allocations: u64,
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::new(1);
        let acquire = Acquire {
            partition: PARTITION,
            expected: store.owner(PARTITION).now_or_never().unwrap().unwrap().epoch,
            floor: Epoch(0),
            nonce: Nonce(1),
            term: Term(1),
            version: 1,
        };
        let acquired = store.acquire(acquire).now_or_never().unwrap().unwrap();
        let now = Now { time: Time::from_ms(START), mono_ms: 0 };
        let mut world = Self {
            engine: Engine::new(EngineOptions::default(), now),
            lane: acquired.lane,
            answers: VecDeque::new(),
            ms: 0,
            random: 0,
            stored: 0,
            settled: 0,
            allocations: 0,
        };
        let (epoch, prior_claim, in_flight) = (acquired.epoch, acquired.prior_claim, acquired.in_flight);
        world.input(Input::Acquired { partition: PARTITION, epoch, prior_claim, in_flight });
        world.input(Input::Session(SESSION, SessionEvent::Opened { client: 1 }));
        let event = SessionEvent::Register { registration: 1, dest: dest(), credit: CREDIT };
        world.input(Input::Session(SESSION, event));
        world
    }

    fn now(&self) -> Now {
        Now { time: Time::from_ms(START + self.ms), mono_ms: self.ms }
    }

    fn input(&mut self, input: Input) {
        let (now, engine) = (self.now(), &mut self.engine);
        self.allocations += allocation_counter::measure(|| engine.handle(now, input)).count_total;
    }

    /// One millisecond.
    fn step(&mut self) {
        self.ms += 1;
        while let Some(answer) = self.answers.pop_front() {
            let answer = answer.now_or_never().expect("the store in memory answers at once");
            self.input(Input::Answered { partition: PARTITION, epoch: self.lane.epoch(), answer });
        }
        // An alarm or a tick: the shell gives both.
        self.input(Input::Tick);
        let (now, engine, mut effects) = (self.now(), &mut self.engine, Vec::with_capacity(1_000));
        self.allocations += allocation_counter::measure(|| engine.flush(now, &mut effects)).count_total;
        effects.into_iter().for_each(|effect| self.carry_out(effect));
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(_, ServerMessage::Reply { replies, .. }) => {
                assert!(
                    replies.iter().all(|r| matches!(r, OpReply::Schedule(ScheduleReply::Scheduled { .. }))),
                    "{replies:?}"
                );
                self.stored += replies.len() as u64;
            }
            Effect::Send(_, ServerMessage::Deliver { deliveries, .. }) => {
                let outcome = HandlerOutcome::Ok;
                let settle = deliveries
                    .into_iter()
                    .map(|d| Settlement {
                        id: d.id,
                        epoch: d.epoch,
                        attempt: d.attempt,
                        outcome: outcome.clone(),
                    })
                    .collect();
                self.input(Input::Session(SESSION, SessionEvent::Settle(settle)));
            }
            Effect::Send(_, ServerMessage::Settled { accepted, refused }) => {
                assert!(refused.is_empty());
                self.settled += u64::from(accepted);
            }
            Effect::Call(_, call) => self.answers.push_back(self.lane.call(call)),
            Effect::Alarm(_) => {}
            other => panic!("not on the hot path: {other:?}"),
        }
    }

    /// Schedules timers that are due within a second, `ahead` ms from now, and lets them fire;
    /// allocations of the engine for 1,000 of them.
    fn round(&mut self, ahead: u64) -> u64 {
        let (stored, settled) = (self.stored, self.settled);
        let before = self.allocations;
        let first = self.now().time + ahead;
        for corr in 0..TIMERS / BATCH {
            let now = self.now().time;
            let ops = (0..BATCH).map(|n| self.timer(now, first + (corr * BATCH + n) % 1_000)).collect();
            let request = Request { corr, first_sent: now, ops };
            self.input(Input::Session(SESSION, SessionEvent::Request(request)));
            self.step();
        }
        let end = self.ms + ahead + 10_000;
        while self.settled < settled + TIMERS {
            assert!(self.ms < end, "{} of {} settled", self.settled - settled, self.stored - stored);
            self.step();
        }
        assert_eq!((self.stored - stored, self.settled - settled), (TIMERS, TIMERS));
        (self.allocations - before) * 1_000 / TIMERS
    }

    fn timer(&mut self, now: Time, due: Time) -> RequestOp {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let timer = Timer {
            payload: vec![7; 64].into(),
            ..Timer::new(TimerId::new(due, now, PARTITION, self.random >> 2), dest(), due)
        };
        RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create })
    }
}

fn dest() -> Destination {
    Destination::new("g", "a").unwrap()
}

/// The second round's count, for two ways of life.
fn count(what: &str, ahead: u64, bound: u64) {
    let mut world = World::new();
    world.round(ahead);
    let counted = world.round(ahead);
    println!("{what}: {counted} allocations for 1,000 timers, bound {bound}");
    assert!(counted <= bound, "{what}: {counted} allocations for 1,000 timers, the bound is {bound}");
}

#[test]
fn timers_that_are_loaded_from_the_store() {
    count("loaded", EngineOptions::default().preload_ms * 2, LOADED);
}

#[test]
fn timers_that_never_leave_memory() {
    count("near", 500, NEAR);
}
