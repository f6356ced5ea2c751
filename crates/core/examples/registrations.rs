//! Measures the engine's longest turn while registrations of one destination multiply.
//!
//! 2,000 timers of the destination come due at once, there is credit for all of them, and nobody
//! settles one. Registrations beyond those that one session may have are refused. Run it with
//!
//! ```text
//! cargo run -p mtimer-core --example registrations
//! ```
//!
//! Columns: registrations, of how many sessions; the longest turn in ms, and how many deliveries
//! were sent.

#![expect(clippy::disallowed_methods, reason = "it measures")]
#![allow(clippy::unwrap_used, reason = "a program for measuring")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use mtimer_core::{CallAnswer, Effect, Engine, EngineOptions, Input, Now, SessionEvent, SessionId};
use mtimer_protocol::ops::Schedule;
use mtimer_protocol::{Request, RequestOp, ServerMessage};
use mtimer_store::memory::MemoryStore;
use mtimer_store::{Acquire, Lane, LaneFuture, Store};
use mtimer_types::{Destination, Epoch, KeyPolicy, Nonce, PartitionId, Term, Time, Timer, TimerId};

const START: u64 = 1_700_000_000_000;
const PARTITION: PartitionId = PartitionId(0);
const TIMERS: u64 = 2_000;
const BATCH: u64 = 200;

struct World {
    engine: Engine,
    lane: Arc<dyn Lane>,
    answers: VecDeque<LaneFuture<CallAnswer>>,
    ms: u64,
    sent: usize,
    longest_ms: f64,
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::new(1);
        let expected = store.owner(PARTITION).now_or_never().unwrap().unwrap().epoch;
        let (floor, nonce, term) = (Epoch(0), Nonce(1), Term(1));
        let acquire = Acquire { partition: PARTITION, expected, floor, nonce, term, version: 1 };
        let acquired = store.acquire(acquire).now_or_never().unwrap().unwrap();
        let now = Now { time: Time::from_ms(START), mono_ms: 0 };
        let engine = Engine::new(EngineOptions { partitions: 1, ..EngineOptions::default() }, now);
        let (lane, answers) = (acquired.lane, VecDeque::new());
        let mut world = Self { engine, lane, answers, ms: 0, sent: 0, longest_ms: 0.0 };
        let (epoch, prior_claim, in_flight) = (acquired.epoch, acquired.prior_claim, acquired.in_flight);
        world.input(Input::Acquired { partition: PARTITION, epoch, prior_claim, in_flight });
        world
    }

    fn now(&self) -> Now {
        Now { time: Time::from_ms(START + self.ms), mono_ms: self.ms }
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.engine.handle(now, input);
    }

    fn session(&mut self, n: u64, event: SessionEvent) {
        self.input(Input::Session(SessionId(n), event));
    }

    /// Runs turns until nothing follows from them.
    fn turns(&mut self) {
        loop {
            let began = Instant::now();
            while let Some(answer) = self.answers.front_mut().and_then(FutureExt::now_or_never) {
                self.answers.pop_front();
                let epoch = self.lane.epoch();
                self.input(Input::Answered { partition: PARTITION, epoch, answer });
            }
            let mut effects = Vec::new();
            let now = self.now();
            self.engine.flush(now, &mut effects);
            self.longest_ms = self.longest_ms.max(began.elapsed().as_secs_f64() * 1_000.0);
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Send(_, ServerMessage::Deliver { deliveries, .. }) => {
                        self.sent += deliveries.len()
                    }
                    Effect::Call(_, call) => self.answers.push_back(self.lane.call(call)),
                    _ => {}
                }
            }
        }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.ms += 1;
            let health = self.lane.health().borrow().clone();
            self.input(Input::Health { partition: PARTITION, health });
            self.turns();
        }
    }

    /// Timers of the crowded destination, all due at the same time.
    fn schedule(&mut self) {
        let now = self.now().time;
        let due = now + 500;
        for first in (0..TIMERS).step_by(BATCH as usize) {
            let ops = (first..first + BATCH).map(|n| {
                let timer = Timer {
                    payload: b"payload".as_slice().into(),
                    ..Timer::new(TimerId::new(due, now, PARTITION, n), dest(), due)
                };
                RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create })
            });
            let request = Request { corr: first, first_sent: now, ops: ops.collect() };
            self.session(1, SessionEvent::Request(request));
        }
    }
}

fn dest() -> Destination {
    Destination::new("test", "crowded").unwrap()
}

fn main() {
    println!("registrations  sessions  longest turn, ms  sent");
    for (registrations, sessions) in
        [(100, 20), (1_000, 20), (20_000, 20), (100, 100), (1_000, 1_000), (20_000, 20_000)]
    {
        let mut world = World::new();
        for session in 1..=sessions {
            world.session(session, SessionEvent::Opened { client: u128::from(session) });
            for registration in 0..(registrations / sessions) as u32 {
                world.session(session, SessionEvent::Register { registration, dest: dest(), credit: 1_000 });
            }
        }
        world.run(10);
        world.schedule();
        world.run(400);
        world.longest_ms = 0.0;
        world.run(200);
        println!("{registrations:>13}  {sessions:>8}  {:>16.1}  {:>4}", world.longest_ms, world.sent);
    }
}
