//! Single scenes of the engine on the in-memory model; whole lives are simulated in `tests/simulation.rs`.

use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_protocol::{
    Delivery, ErrorCode, OpReply, Request, RequestOp, ServerMessage, SettleRefusal, Settlement,
};
use mtimer_store::memory::MemoryStore;
use mtimer_store::{Acquire, Answer, CancelAnswer, Lane, LaneError, Op, Page, Refusal, RequestId, Store};
use mtimer_types::{
    Destination, Epoch, HandlerOutcome, Key, KeyPolicy, Mode, Nonce, PartitionId, RetryTiers, Target, Term,
    Time, Timer, TimerId,
};

use super::partition::APPLIES_OUT;
use crate::{Call, CallAnswer, Effect, Engine, EngineOptions, Input, Now, SessionEvent, SessionId};

const START: u64 = 1_700_000_000_000;
const P: PartitionId = PartitionId(0);

/// An engine, a store, and what was sent to sessions.
struct Rig {
    engine: Engine,
    store: MemoryStore,
    lane: Arc<dyn Lane>,
    unanswered: std::collections::VecDeque<mtimer_store::LaneFuture<CallAnswer>>,
    ms: u64,
    sent: Vec<(SessionId, ServerMessage)>,
    released: bool,
    /// Why the reign has ended, if it has.
    ended: Option<LaneError>,
    /// What is applied is answered as not confirmed by enough replicas.
    unconfirmed: bool,
    random: u64,
}

impl Rig {
    fn new(options: EngineOptions) -> Self {
        Self::on(MemoryStore::new(1), 1, 0, options)
    }

    fn on(store: MemoryStore, term: u64, ms: u64, options: EngineOptions) -> Self {
        let mut rig = Self::acquired(store, term, ms, options);
        rig.run(10);
        rig
    }

    /// The partition has just been acquired, and nothing is loaded yet.
    fn acquired(store: MemoryStore, term: u64, ms: u64, options: EngineOptions) -> Self {
        let owner = store.owner(P).now_or_never().unwrap().unwrap();
        let (nonce, term) = (Nonce(term), Term(term));
        let acquire = Acquire { partition: P, expected: owner.epoch, nonce, term, version: 1 };
        let acquired = store.acquire(acquire).now_or_never().unwrap().unwrap();
        let retry = RetryTiers(vec![100, 100]);
        let options = EngineOptions { partitions: 1, jitter_percent: 0, retry, ..options };
        let now = Now { time: Time::from_ms(START + ms), mono_ms: ms };
        let mut engine = Engine::new(options, now);
        let (epoch, prior_claim) = (acquired.epoch, acquired.prior_claim);
        engine
            .handle(now, Input::Acquired { partition: P, epoch, prior_claim, in_flight: acquired.in_flight });
        let unanswered = std::collections::VecDeque::new();
        Self {
            engine,
            store,
            lane: acquired.lane,
            unanswered,
            ms,
            sent: vec![],
            released: false,
            ended: None,
            unconfirmed: false,
            random: term.0 << 32,
        }
    }

    fn now(&self) -> Now {
        Now { time: Time::from_ms(START + self.ms), mono_ms: self.ms }
    }

    fn session(&mut self, n: u64, event: SessionEvent) {
        let now = self.now();
        self.engine.handle(now, Input::Session(SessionId(n), event));
    }

    fn join(&mut self, n: u64, app: &str, credit: u32) {
        self.session(n, SessionEvent::Opened { client: u128::from(n) });
        self.session(n, SessionEvent::Register { registration: 1, dest: dest(app), credit });
    }

    /// Lets so many ms pass.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.ms += 1;
            let health = self.lane.health().borrow().clone();
            let now = self.now();
            self.engine.handle(now, Input::Health { partition: P, health });
            self.turn();
        }
    }

    fn turn(&mut self) {
        loop {
            while let Some(answer) = self.unanswered.front_mut().and_then(FutureExt::now_or_never) {
                self.unanswered.pop_front();
                let answer = answer.unwrap_or_else(CallAnswer::Ended);
                let epoch = self.lane.epoch();
                let now = self.now();
                self.engine.handle(now, Input::Answered { partition: P, epoch, answer });
            }
            let mut effects = Vec::new();
            let now = self.now();
            self.engine.flush(now, &mut effects);
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|e| self.carry_out(e));
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let call = match effect {
            Effect::Send(session, message) => return self.sent.push((session, message)),
            Effect::Call(_, call) => call,
            Effect::Released => return self.released = true,
            Effect::Alarm(_) => return,
            Effect::LaneEnded(_, error) => return self.ended = Some(error),
            other => panic!("unexpected: {other:?}"),
        };
        let lane = &self.lane;
        self.unanswered.push_back(match call {
            Call::Apply(batch) if self.unconfirmed => {
                let refused = |_| Answer::Refused(Refusal::NotReplicated);
                let all = move |a: Vec<Answer>| CallAnswer::Apply(a.into_iter().map(refused).collect());
                lane.apply(batch).map(move |a| a.map(all)).boxed()
            }
            Call::Apply(batch) => lane.apply(batch).map(|a| a.map(CallAnswer::Apply)).boxed(),
            Call::Load(load) => lane.load(load).map(|a| a.map(CallAnswer::Load)).boxed(),
            Call::Unload(beyond) => lane.unload(beyond).map(|a| a.map(|()| CallAnswer::Unload)).boxed(),
            Call::Get(target) => lane.get(target).map(|a| a.map(CallAnswer::Get)).boxed(),
            Call::ParkedDestinations => {
                lane.parked_destinations().map(|a| a.map(CallAnswer::ParkedDestinations)).boxed()
            }
            Call::Parked(dest, from, limit) => {
                lane.parked(dest, from, limit).map(|a| a.map(CallAnswer::Parked)).boxed()
            }
            Call::Dead(filter, from, limit) => {
                lane.dead(filter, from, limit).map(|a| a.map(CallAnswer::Dead)).boxed()
            }
            Call::Taken(from, limit) => lane.taken(from, limit).map(|a| a.map(CallAnswer::Taken)).boxed(),
            Call::Census => lane.census().map(|a| a.map(CallAnswer::Census)).boxed(),
            Call::Release(left) => lane.release(left).map(|a| a.map(|()| CallAnswer::Release)).boxed(),
        });
    }

    fn timer(&mut self, app: &str, due_in: u64) -> Timer {
        self.random += 1;
        let now = self.now().time;
        let due = now + due_in;
        Timer {
            id: TimerId::new(due, now, P, self.random),
            dest: dest(app),
            key: None,
            due,
            mode: Mode::AtLeastOnce,
            deadline: None,
            callback_timeout_ms: Some(500),
            retry: None,
            payload: b"payload".as_slice().into(),
        }
    }

    fn ask(&mut self, n: u64, ops: Vec<RequestOp>) {
        let first_sent = self.now().time;
        self.session(n, SessionEvent::Request(Request { corr: 1, first_sent, ops }));
    }

    fn schedule(&mut self, n: u64, timer: Timer) {
        self.ask(n, vec![RequestOp::Schedule { timer, policy: KeyPolicy::Create }]);
    }

    fn settle(&mut self, n: u64, d: &Delivery, outcome: HandlerOutcome) {
        let s = Settlement { id: d.id, epoch: d.epoch, attempt: d.attempt, outcome };
        self.session(n, SessionEvent::Settle(vec![s]));
    }

    fn take_deliveries(&mut self) -> Vec<(SessionId, Delivery)> {
        let mut all = Vec::new();
        self.sent.retain_mut(|(session, message)| match message {
            ServerMessage::Deliver { deliveries, .. } => {
                all.extend(deliveries.drain(..).map(|d| (*session, d)));
                false
            }
            _ => true,
        });
        all
    }

    fn take_replies(&mut self) -> Vec<OpReply> {
        let mut all = Vec::new();
        for (_, message) in self.sent.drain(..) {
            if let ServerMessage::Reply { replies, .. } = message {
                all.extend(replies);
            }
        }
        all
    }

    fn refusals(&mut self) -> Vec<SettleRefusal> {
        let mut all = Vec::new();
        for (_, message) in self.sent.drain(..) {
            if let ServerMessage::Settled { refused, .. } = message {
                all.extend(refused.into_iter().map(|r| r.1));
            }
        }
        all
    }
}

fn dest(app: &str) -> Destination {
    Destination::new("test", app).unwrap()
}

fn code(reply: &OpReply) -> Option<ErrorCode> {
    if let OpReply::Failed { code, .. } = reply { Some(*code) } else { None }
}

#[test]
fn a_stuck_destination_leaves_memory_and_holds_up_nobody() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "busy", 10);
    for _ in 0..500 {
        let stuck = rig.timer("stuck", 0);
        rig.schedule(1, stuck);
    }
    rig.run(400);
    assert_eq!(rig.engine.memory().0, 0, "stuck timers are still in memory");
    let busy = rig.timer("busy", 5);
    rig.schedule(1, busy.clone());
    rig.run(5);
    let got = rig.take_deliveries();
    assert_eq!(got.iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [busy.id]);
    // When somebody comes at last, each of them is delivered, as a first attempt.
    rig.join(2, "stuck", 50);
    let mut seen = Vec::new();
    for _ in 0..200 {
        rig.run(1);
        for (session, d) in rig.take_deliveries() {
            assert_eq!((session, d.attempt), (SessionId(2), 1));
            rig.settle(2, &d, HandlerOutcome::Ok);
            seen.push(d.id);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 500);
}

#[test]
fn a_slow_store_makes_no_destination_look_stuck() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 1);
    for _ in 0..10 {
        let t = rig.timer("a", 50);
        rig.schedule(1, t);
    }
    rig.run(60);
    let (_, d) = rig.take_deliveries().remove(0);
    // The client is done at once; the store does not say so for longer than anything waits before it is parked.
    store.faults().hold(P);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(900);
    store.faults().heal(P);
    rig.run(5);
    assert_eq!(rig.engine.counters[crate::api::Counter::Parked as usize], 0);
    let (_, d) = rig.take_deliveries().remove(0);
    // A client that is not done is another matter.
    rig.run(900);
    assert!(rig.engine.counters[crate::api::Counter::Parked as usize] >= 8);
    rig.settle(1, &d, HandlerOutcome::Ok);
}

#[test]
fn deliveries_go_to_the_least_loaded_and_never_beyond_credit() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 3);
    rig.join(2, "a", 100);
    for _ in 0..20 {
        let t = rig.timer("a", 1);
        rig.schedule(1, t);
    }
    rig.run(10);
    let got = rig.take_deliveries();
    let first = got.iter().filter(|(s, _)| *s == SessionId(1)).count();
    assert_eq!((got.len(), first), (20, 3));
}

#[test]
fn a_session_has_no_more_bytes_to_settle_than_it_may() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10_000);
    let payload = vec![0; 64 * 1024];
    for _ in 0..600 {
        let mut t = rig.timer("a", 0);
        t.payload = payload.clone().into();
        t.callback_timeout_ms = None;
        rig.schedule(1, t);
    }
    rig.run(20);
    let first = rig.take_deliveries();
    assert_eq!(first.len(), 256, "16 MiB and not more");
    for (_, d) in &first {
        rig.settle(1, d, HandlerOutcome::Ok);
    }
    rig.run(400);
    assert_eq!(rig.take_deliveries().len(), 256);
}

#[test]
fn a_settlement_is_refused_to_a_stranger_and_too_late() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "a", 0);
    let t = rig.timer("a", 1);
    rig.schedule(1, t);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    rig.settle(2, &d, HandlerOutcome::Ok);
    rig.run(2);
    assert_eq!(rig.refusals(), [SettleRefusal::NotYours]);
    // Timed out, retried; the failure report of the first attempt is late, its ok is not.
    rig.run(600);
    let (_, again) = rig.take_deliveries().remove(0);
    assert_eq!(again.attempt, 2);
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(2);
    assert_eq!(rig.refusals(), [SettleRefusal::Late]);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(2);
    assert_eq!(rig.refusals(), []);
    assert_eq!((rig.engine.memory().0, rig.engine.unsettled()), (0, 0));
}

#[test]
fn extending_moves_the_callback_timeout() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    rig.schedule(1, t);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    rig.run(400);
    rig.session(1, SessionEvent::Extend { id: d.id, epoch: d.epoch, attempt: 1, by_ms: 2_000 });
    rig.run(1_500);
    assert!(rig.take_deliveries().is_empty());
    rig.run(1_000);
    assert_eq!(rig.take_deliveries()[0].1.attempt, 2);
}

#[test]
fn what_is_being_cancelled_is_not_sent() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 50);
    rig.schedule(1, t.clone());
    rig.run(45);
    rig.store.faults().hold(P);
    rig.ask(1, vec![RequestOp::Cancel { target: Target::Id(t.id), request: 9 }]);
    rig.run(100);
    assert!(rig.take_deliveries().is_empty(), "sent although its cancel was under way");
    rig.store.faults().heal(P);
    rig.run(2);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Cancelled(t.id)));
    rig.run(100);
    assert!(rig.take_deliveries().is_empty());
}

#[test]
fn nothing_is_sent_without_a_recent_fenced_write() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 3_000);
    rig.schedule(1, t);
    rig.run(100);
    rig.store.faults().down(P, "test");
    rig.run(4_000);
    assert!(rig.take_deliveries().is_empty(), "sent while the store was away");
    let t = rig.timer("a", 10);
    rig.schedule(1, t);
    rig.run(1);
    assert_eq!(code(rig.take_replies().last().unwrap()), Some(ErrorCode::Unavailable));
    rig.store.faults().heal(P);
    rig.run(60);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn requests_that_are_too_old_or_not_ours_are_refused() {
    let mut rig = Rig::new(EngineOptions { partitions: 1, ..EngineOptions::default() });
    rig.join(1, "a", 0);
    rig.run(40_000);
    let timer = rig.timer("a", 10);
    let ops = vec![RequestOp::Schedule { timer: timer.clone(), policy: KeyPolicy::Create }];
    let first_sent = Time::from_ms(START);
    rig.session(1, SessionEvent::Request(Request { corr: 1, first_sent, ops }));
    let id = TimerId::new(timer.due, timer.due, PartitionId(7), 1);
    rig.schedule(1, Timer { id, ..timer.clone() });
    rig.schedule(1, Timer { due: timer.due + 1, ..timer });
    rig.run(1);
    let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
    assert_eq!(codes, [Some(ErrorCode::Unknown), Some(ErrorCode::Invalid), Some(ErrorCode::Invalid)]);
}

#[test]
fn little_memory_is_kept_to_and_nothing_is_dropped() {
    let budget = 100_000;
    let mut rig = Rig::new(EngineOptions { memory_bytes: budget, ..EngineOptions::default() });
    rig.join(1, "a", 1_000);
    for n in 0..2_000 {
        let t = rig.timer("a", 2_000 + n);
        rig.schedule(1, t);
    }
    let mut seen = 0;
    for _ in 0..6_000 {
        rig.run(1);
        for (_, d) in rig.take_deliveries() {
            rig.settle(1, &d, HandlerOutcome::Ok);
            seen += 1;
        }
        if rig.ms > 1_500 {
            let bytes = rig.engine.memory().1;
            assert!(bytes < budget * 13 / 10, "{bytes} bytes in memory, the budget is {budget}");
        }
    }
    assert_eq!(seen, 2_000);
}

#[test]
fn a_graceful_stop_leaves_word_and_the_next_owner_honours_it() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    rig.schedule(1, t.clone());
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.run(50);
    assert_eq!(rig.engine.unsettled(), 1);
    let late = rig.timer("a", 1);
    rig.schedule(1, late);
    rig.run(1);
    assert_eq!(code(rig.take_replies().last().unwrap()), Some(ErrorCode::Stopping));
    let now = rig.now();
    rig.engine.handle(now, Input::Release);
    rig.turn();
    assert!(rig.released);

    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(100);
    assert!(next.take_deliveries().is_empty(), "delivered again although the handler is still at work");
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), []);
    assert_eq!((next.engine.memory().0, next.engine.unsettled()), (0, 0));
    let found = next.lane.get(Target::Id(t.id)).now_or_never().unwrap().unwrap();
    assert_eq!(found, None);
}

#[test]
fn an_outcome_that_comes_before_its_inherited_timer_is_loaded_is_to_be_offered_again() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    rig.schedule(1, t);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.engine.handle(now, Input::Release);
    rig.turn();
    // The release took the claims back: in the store nothing but the word of it tells that it was sent.
    let mut next = Rig::acquired(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), [SettleRefusal::Moved]);
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), []);
    assert_eq!((next.engine.memory().0, next.engine.unsettled()), (0, 0));
}

/// The first owner sends it and dies, the second sends it again and leaves in good order; the third comes after the timeout.
fn sent_twice_and_left(credit: u32) -> (Timer, Delivery, Rig) {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let mut t = rig.timer("a", 1);
    t.callback_timeout_ms = Some(1_000);
    rig.schedule(1, t.clone());
    rig.run(5);
    assert_eq!(rig.take_deliveries().len(), 1);
    let mut rig = Rig::on(store.clone(), 2, rig.ms, EngineOptions::default());
    rig.join(1, "a", 10);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    assert_eq!(d.attempt, 2);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.engine.handle(now, Input::Release);
    rig.turn();
    let mut next = Rig::on(store, 3, rig.ms + 1_200, EngineOptions::default());
    next.join(1, "a", credit);
    next.run(100);
    (t, d, next)
}

#[test]
fn an_ok_that_comes_after_the_timeout_of_an_inherited_delivery_ends_the_timer() {
    let (t, d, mut next) = sent_twice_and_left(0);
    assert!(next.take_deliveries().is_empty());
    next.settle(1, &Delivery { attempt: d.attempt + 1, ..d.clone() }, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), [SettleRefusal::Late], "that one was never sent");
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), []);
    let found = next.lane.get(Target::Id(t.id)).now_or_never().unwrap().unwrap();
    assert_eq!((found, next.engine.memory().0, next.engine.unsettled()), (None, 0, 0));
}

#[test]
fn after_the_timeout_of_an_inherited_delivery_comes_the_attempt_after_it() {
    let (_, _, mut next) = sent_twice_and_left(10);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_retry_of_a_delivery_that_was_inherited_comes_at_its_time() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let mut t = rig.timer("a", 1);
    t.callback_timeout_ms = Some(60_000);
    rig.schedule(1, t);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.engine.handle(now, Input::Release);
    rig.turn();
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(10);
    next.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "not yet".into() });
    next.run(300);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [2]);
}

#[test]
fn little_memory_and_a_short_preload_go_together() {
    let options = EngineOptions { memory_bytes: 100_000, preload_ms: 100, ..EngineOptions::default() };
    let mut rig = Rig::new(EngineOptions { preload_ms: 5_000, ..options.clone() });
    rig.join(1, "a", 1_000);
    rig.run(10);
    for n in 0..500 {
        let t = rig.timer("a", 2_000 + n);
        rig.schedule(1, t);
    }
    rig.engine.options = options;
    let mut seen = 0;
    for _ in 0..4_000 {
        rig.run(1);
        for (_, d) in rig.take_deliveries() {
            rig.settle(1, &d, HandlerOutcome::Ok);
            seen += 1;
        }
    }
    assert_eq!(seen, 500);
}

#[test]
fn what_comes_back_from_the_park_is_not_sent_before_a_claim_covers_it() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 0);
    let t = rig.timer("a", 0);
    rig.schedule(1, t.clone());
    rig.run(1_000);
    // A claim for another timer reaches a little ahead; what comes back waits for its turn until after that.
    rig.join(2, "b", 1);
    let other = rig.timer("b", 10);
    rig.schedule(2, other);
    rig.run(12);
    rig.engine.partition(P).unwrap().applies_out += APPLIES_OUT;
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.turn();
    rig.ms += 200;
    rig.engine.partition(P).unwrap().applies_out -= APPLIES_OUT;
    rig.turn();
    let sent = rig.take_deliveries().iter().any(|(_, d)| d.id == t.id);
    assert!(sent);
    // Whoever comes next must know of every delivery: after it, a cancel is too late.
    let next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    let op = Op::Cancel { target: Target::Id(t.id), in_flight: false, request: RequestId(1) };
    let batch = mtimer_store::Batch { now: next.now().time, claim: None, ops: vec![op] };
    let answer = next.lane.apply(batch).now_or_never().unwrap().unwrap().remove(0);
    let cancelled = answer == Answer::Cancel(CancelAnswer::Cancelled(t.id));
    assert!(!cancelled, "cancelled although it was delivered");
}

#[test]
fn extending_often_costs_no_memory() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    rig.schedule(1, t);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    for by_ms in 0..1_000 {
        rig.session(1, SessionEvent::Extend { id: d.id, epoch: d.epoch, attempt: 1, by_ms: 5_000 + by_ms });
    }
    assert_eq!(rig.engine.timeouts.len(), 1);
}

#[test]
fn late_settlements_wait_in_a_queue_that_has_an_end() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().down(P, "test");
    rig.run(1);
    let t = rig.timer("a", 1);
    let epoch = rig.lane.epoch();
    let late = Settlement { id: t.id, epoch, attempt: 1, outcome: HandlerOutcome::Ok };
    for _ in 0..60 {
        rig.session(1, SessionEvent::Settle(vec![late.clone(); 1_000]));
    }
    rig.run(1);
    assert!(rig.refusals().len() >= 5_000);
    rig.store.faults().heal(P);
    rig.run(100);
    assert!(rig.refusals().len() >= 50_000, "every settlement is answered in the end");
}

#[test]
fn memory_follows_what_was_applied_but_not_confirmed() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let (cancelled, moved) = (rig.timer("a", 100), rig.timer("a", 100));
    rig.schedule(1, cancelled.clone());
    rig.schedule(1, moved.clone());
    rig.run(5);
    rig.unconfirmed = true;
    let due = moved.due + 500;
    let filed = rig.timer("a", 100);
    rig.ask(
        1,
        vec![
            RequestOp::Cancel { target: Target::Id(cancelled.id), request: 1 },
            RequestOp::Reschedule { target: Target::Id(moved.id), due, request: 2 },
            RequestOp::Schedule { timer: filed.clone(), policy: KeyPolicy::Create },
        ],
    );
    rig.run(1);
    let codes: Vec<_> = rig.take_replies().iter().filter_map(code).collect();
    assert_eq!(codes, [ErrorCode::NotReplicated; 3]);
    // Held in memory or not, a repeat is for the store to answer.
    rig.schedule(1, filed.clone());
    rig.run(1);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::NotReplicated)]);
    rig.unconfirmed = false;
    rig.run(300);
    let early: Vec<_> = rig.take_deliveries().iter().map(|(_, d)| d.id).collect();
    assert_eq!(early, [filed.id]);
    rig.run(300);
    assert!(rig.take_deliveries().iter().any(|(_, d)| d.id == moved.id));
}

#[test]
fn what_was_under_way_when_a_reign_ended_is_unknown() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().cut(P);
    let t = rig.timer("a", 1_000);
    rig.schedule(1, t);
    rig.run(1);
    rig.store.faults().fence(P);
    rig.store.faults().heal(P);
    rig.run(5);
    assert!(matches!(rig.ended, Some(LaneError::Fenced { .. })), "{:?}", rig.ended);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::Unknown)]);
}

#[test]
fn a_refusal_by_a_full_store_says_nothing_about_the_owner() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.run(2_000);
    rig.store.faults().full(P, true);
    let t = rig.timer("a", 60_000);
    rig.schedule(1, t);
    rig.run(5);
    let mono_ms = rig.ms;
    assert!(!rig.engine.partition(P).unwrap().is_fenced(mono_ms));
}

#[test]
fn what_was_taken_long_ago_is_not_sent_before_the_store_has_answered_again() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let first = rig.timer("a", 100);
    let mut once = rig.timer("a", 120);
    once.mode = Mode::AtMostOnce;
    rig.schedule(1, first);
    rig.schedule(1, once);
    rig.run(110);
    assert_eq!(rig.take_deliveries().len(), 1);
    // Taken in the store; the answer comes when somebody else has the partition.
    rig.store.faults().hold(P);
    rig.run(3_000);
    rig.store.faults().fence(P);
    rig.store.faults().heal(P);
    rig.run(5);
    assert!(rig.take_deliveries().is_empty(), "sent by an owner that is none any more");
    assert!(matches!(rig.ended, Some(LaneError::Fenced { .. })), "{:?}", rig.ended);
}

#[test]
fn a_stop_answers_what_waited_for_another_edit_of_its_key() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().hold(P);
    for _ in 0..3 {
        let mut timer = rig.timer("a", 60_000);
        timer.key = Some(Key::new("order-1").unwrap());
        rig.schedule(1, timer);
    }
    rig.run(1);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.engine.handle(now, Input::Release);
    rig.turn();
    rig.store.faults().heal(P);
    rig.turn();
    assert!(rig.released);
    let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
    assert_eq!(codes, [None, Some(ErrorCode::NotOwner), Some(ErrorCode::NotOwner)]);
}

#[test]
fn partitions_take_turns_when_parked_timers_come_back() {
    let now = Now { time: Time::from_ms(START), mono_ms: 0 };
    let mut engine = Engine::new(EngineOptions { partitions: 3, ..EngineOptions::default() }, now);
    let session = SessionId(1);
    engine.handle(now, Input::Session(session, SessionEvent::Opened { client: 1 }));
    let (epoch, prior_claim) = (Epoch(1), Time::ZERO);
    for partition in (0..3).map(PartitionId) {
        engine.handle(now, Input::Acquired { partition, epoch, prior_claim, in_flight: vec![] });
        for answer in [
            CallAnswer::Taken(Page { rows: vec![], next: None }),
            CallAnswer::ParkedDestinations(vec![(dest("a"), 1_000)]),
        ] {
            engine.handle(now, Input::Answered { partition, epoch, answer });
        }
        // What else a reign begins with is not answered here, so that the next answer is to a page.
        engine.partition(partition).unwrap().load_out = true;
        engine.partition(partition).unwrap().trim_at = u64::MAX;
    }
    // Sweeps ask for pages as well.
    engine.sweep_at = u64::MAX;
    engine.handle(
        now,
        Input::Session(session, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 1 }),
    );
    let mut asked = Vec::new();
    for _ in 0..6 {
        let mut effects = Vec::new();
        engine.flush(now, &mut effects);
        for effect in effects {
            if let Effect::Call(partition, Call::Parked(..)) = effect {
                asked.push(partition.0);
                let answer = CallAnswer::Parked(Page { rows: vec![], next: Some(1) });
                engine.handle(now, Input::Answered { partition, epoch, answer });
            }
        }
    }
    assert_eq!(asked, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_repeat_beside_a_late_acknowledgement_brings_nothing_back() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    rig.schedule(1, timer.clone());
    rig.run(30);
    let (_, first) = rig.take_deliveries().remove(0);
    rig.settle(1, &first, HandlerOutcome::Retry { after_ms: None, error: "again".into() });
    rig.run(10);
    // It waits for its second attempt; an ok of the first is late, and ends it.
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.sent.clear();
    rig.schedule(1, timer.clone());
    rig.run(500);
    let replies = rig.take_replies();
    assert!(matches!(replies[..], [OpReply::Failed { code: ErrorCode::Overloaded, .. }]), "{replies:?}");
    rig.schedule(1, timer);
    rig.run(500);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.take_replies(), [OpReply::Ended(mtimer_types::Ended::Acknowledged)]);
}

#[test]
fn a_flood_of_overdue_timers_stays_within_the_budget() {
    let budget = 1_000_000;
    let mut rig = Rig::new(EngineOptions { memory_bytes: budget, ..EngineOptions::default() });
    rig.join(1, "busy", 10);
    for _ in 0..200 {
        // Far more than the budget holds before it is known that nobody takes them.
        for _ in 0..100 {
            let stuck = rig.timer("stuck", 0);
            rig.schedule(1, stuck);
        }
        let one = rig.timer("busy", 1);
        rig.schedule(1, one);
        rig.run(1);
        let bytes = rig.engine.memory().1;
        assert!(bytes <= budget, "{bytes} bytes in memory, the budget is {budget}");
        for (_, d) in rig.take_deliveries() {
            rig.settle(1, &d, HandlerOutcome::Ok);
        }
    }
    rig.run(500);
    let census = rig.lane.census().now_or_never().unwrap().unwrap();
    assert_eq!((census.parked, census.pending), (20_000, 0));
}

#[test]
fn an_edit_waits_behind_the_park_of_its_timer() {
    let mut rig = Rig::new(EngineOptions { batch_ops: 8, ..EngineOptions::default() });
    rig.join(1, "busy", 10);
    let timers: Vec<Timer> = (0..20).map(|_| rig.timer("stuck", 0)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(100);
    // Everything waits, until the timers are on their way to the park and are moved to a later time. (The first
    // of them is the last one that is parked.)
    rig.engine.partition(P).unwrap().applies_out += APPLIES_OUT;
    rig.run(300);
    let due = rig.now().time + 1_000;
    for (request, timer) in timers.iter().enumerate() {
        let (target, request) = (Target::Id(timer.id), request as u64);
        rig.ask(1, vec![RequestOp::Reschedule { target, due, request }]);
    }
    rig.run(1);
    rig.engine.partition(P).unwrap().applies_out -= APPLIES_OUT;
    rig.run(10);
    rig.join(2, "stuck", 20);
    rig.run(900);
    assert_eq!(rig.take_deliveries(), [], "what was moved comes at its old time");
    rig.run(200);
    assert_eq!(rig.take_deliveries().len(), 20);
}

#[test]
fn a_repeat_that_is_overtaken_by_its_acknowledgement_brings_nothing_back() {
    let mut rig = Rig::new(EngineOptions { batch_ops: 1, ..EngineOptions::default() });
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 50);
    rig.schedule(1, timer.clone());
    rig.run(45);
    rig.take_replies();
    rig.engine.partition(P).unwrap().applies_out += APPLIES_OUT;
    rig.schedule(1, timer);
    rig.run(10);
    let (_, first) = rig.take_deliveries().remove(0);
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.run(1);
    rig.engine.partition(P).unwrap().applies_out -= APPLIES_OUT;
    rig.run(500);
    assert_eq!(rig.take_replies(), [OpReply::Scheduled { new: false, replaced: None }]);
    assert_eq!(rig.take_deliveries(), []);
    let census = rig.lane.census().now_or_never().unwrap().unwrap();
    assert_eq!(census.pending, 0, "{census:?}");
}

#[test]
fn what_clients_have_keeps_no_other_from_being_loaded() {
    let (memory_bytes, callback_timeout_ms) = (100_000, 600_000);
    let mut rig = Rig::new(EngineOptions { memory_bytes, callback_timeout_ms, ..EngineOptions::default() });
    for session in 1..=3 {
        rig.join(session, "hot", 10_000);
    }
    rig.join(4, "other", 10);
    for _ in 0..210 {
        for _ in 0..100 {
            let mut hot = rig.timer("hot", 0);
            hot.callback_timeout_ms = None;
            rig.schedule(1, hot);
        }
        rig.run(2);
    }
    let other = rig.timer("other", 6_000);
    rig.schedule(4, other.clone());
    rig.run(500);
    rig.sent.clear();
    assert!(rig.engine.memory().0 > 20_000, "{:?}", rig.engine.memory());
    rig.run(5_600);
    let got = rig.take_deliveries();
    assert!(got.iter().any(|(session, d)| *session == SessionId(4) && d.id == other.id), "it was not loaded");
}
