//! Single scenes of the engine on the in-memory model; whole lives are simulated in
//! `tests/simulation.rs`.

mod ahead;
mod bulk;
mod computed_due;
mod counted;
mod crossing;
mod crowded;
mod deadlines;
mod deferral;
mod delivery;
mod edits;
mod fencing;
mod figures;
mod handover;
mod keep;
mod later;
mod limits;
mod listing;
mod loading;
mod memory;
mod order;
mod park;
mod pause;
mod priority;
mod queries;
mod registrations;
mod requests;
mod returning;
mod roster;
mod rules_in_order;
mod settle;
mod stopping;
mod story;
mod sweeps;
mod topology;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_protocol::ops::Schedule;
use mtimer_protocol::{
    Delivery, ErrorCode, OpReply, Query, QueryAnswer, Request, RequestOp, ServerMessage, SettleRefusal,
    Settlement,
};
use mtimer_store::memory::MemoryStore;
use mtimer_store::ops::Take;
use mtimer_store::{
    Acquire, Answer, Lane, LaneError, LaneFuture, Listed, Listing, Op, Place, Refusal, Store, Verdict,
};
use mtimer_types::{
    Destination, Epoch, HandlerOutcome, Headers, KeyPolicy, Mode, Nonce, PartitionId, RetryTiers, Target,
    Term, Time, Timer, TimerId,
};

use crate::cluster::Lender;
use crate::engine::deferral::DEFER_MS;
use crate::{
    Call, CallAnswer, Counter, Died, Effect, Engine, EngineOptions, Input, Now, SessionEvent, SessionId,
};

const START: u64 = 1_700_000_000_000;
const P: PartitionId = PartitionId(0);

/// An engine, a store, and the messages sent to sessions.
struct Rig {
    engine: Engine,
    store: MemoryStore,
    lane: Arc<dyn Lane>,
    unanswered: VecDeque<LaneFuture<CallAnswer>>,
    ms: u64,
    sent: Vec<(SessionId, ServerMessage)>,
    /// Reported outcomes of traced timers.
    settled: Vec<(TimerId, Option<Verdict>)>,
    /// Reported dead letters.
    died: Vec<Died>,
    released: bool,
    /// Why the ownership has ended, if it has.
    ended: Option<LaneError>,
    /// Applied operations are answered as not confirmed by enough replicas.
    unconfirmed: bool,
    /// The operations of batches are refused and not applied; their claims are.
    read_only: bool,
    /// Nothing that is sent leaves: deliveries can be taken back.
    stalled: bool,
    /// Lends shares of limits, unless nobody leads.
    lender: Option<Lender>,
    /// Answers of the store are on their way and do not arrive.
    answers_wait: bool,
    /// Calls made for taken timers, pages of one listing each counted.
    taken_calls: usize,
    /// Timers that takes have brought, so that the store need not read them.
    brought: Vec<Arc<Timer>>,
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
        let acquire =
            Acquire { partition: P, expected: owner.epoch, floor: Epoch(0), nonce, term, version: 1 };
        let acquired = store.acquire(acquire).now_or_never().unwrap().unwrap();
        let retry = RetryTiers(vec![100, 100]);
        let options = EngineOptions { partitions: 1, jitter_percent: 0, retry, ..options };
        let now = Now { time: Time::from_ms(START + ms), mono_ms: ms };
        let mut engine = Engine::new(options, now);
        let (epoch, prior_claim) = (acquired.epoch, acquired.prior_claim);
        engine
            .handle(now, Input::Acquired { partition: P, epoch, prior_claim, in_flight: acquired.in_flight });
        let unanswered = VecDeque::new();
        Self {
            engine,
            store,
            lane: acquired.lane,
            unanswered,
            ms,
            sent: vec![],
            settled: vec![],
            died: vec![],
            released: false,
            ended: None,
            unconfirmed: false,
            read_only: false,
            stalled: false,
            lender: Some(Lender::new(ms)),
            answers_wait: false,
            taken_calls: 0,
            brought: vec![],
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
            if !self.answers_wait {
                self.hear_answers();
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

    /// Hands the answers that are there to the engine; the turn does not end with it.
    fn hear_answers(&mut self) {
        while let Some(answer) = self.unanswered.front_mut().and_then(FutureExt::now_or_never) {
            self.unanswered.pop_front();
            let epoch = self.lane.epoch();
            let now = self.now();
            self.engine.handle(now, Input::Answered { partition: P, epoch, answer });
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let call = match effect {
            Effect::Send(session, message) => return self.sent.push((session, message)),
            Effect::SendBy(session, message, by) => {
                assert!(by >= self.ms, "it may not leave any more");
                return self.sent.push((session, message));
            }
            Effect::AskShares(asks) => {
                let ms = self.ms;
                let Some(lender) = &mut self.lender else { return };
                let shares = asks.iter().filter_map(|ask| lender.lend(ms, 1, ask)).collect();
                let now = self.now();
                return self.engine.handle(now, Input::Lent(shares));
            }
            Effect::Call(_, call) => call,
            Effect::Released => return self.released = true,
            Effect::Alarm(_) => return,
            Effect::Settled(id, verdict) => return self.settled.push((id, verdict)),
            Effect::Died(died) => return self.died.push(died),
            Effect::LaneEnded(_, error) => return self.ended = Some(error),
            Effect::Recall(session, registration) => return self.recall(session, registration),
            other => panic!("unexpected: {other:?}"),
        };
        if let Call::Apply(batch) = &call {
            self.brought.extend(batch.ops.iter().filter_map(|op| match op {
                Op::Take(Take { timer, .. }) => timer.clone(),
                _ => None,
            }));
        }
        let lane = &self.lane;
        self.unanswered.push_back(match call {
            Call::Apply(batch) if self.read_only => {
                let refused = batch.ops.iter().map(|_| Answer::Refused(Refusal::ReadOnly)).collect();
                let claim = lane.apply(mtimer_store::Batch { ops: Vec::new(), ..batch });
                claim.map(|a| a.map(|_| CallAnswer::Apply(refused))).boxed()
            }
            Call::Apply(batch) if self.unconfirmed => {
                let refused = |_| Answer::Refused(Refusal::NotReplicated);
                let all = move |a: Vec<Answer>| CallAnswer::Apply(a.into_iter().map(refused).collect());
                lane.apply(batch).map(move |a| a.map(all)).boxed()
            }
            call => {
                let taken = matches!(&call, Call::List(Listing { of: Listed::Taken, .. }));
                self.taken_calls += usize::from(taken);
                lane.call(call)
            }
        });
    }

    fn recall(&mut self, session: SessionId, registration: u32) {
        if !self.stalled {
            return;
        }
        let mut ids = Vec::new();
        self.sent.retain(|(to, message)| match message {
            ServerMessage::Deliver { registration: of, deliveries }
                if (*to, *of) == (session, registration) =>
            {
                ids.extend(deliveries.iter().map(|delivery| delivery.id));
                false
            }
            _ => true,
        });
        self.session(session.0, SessionEvent::Recalled(ids));
    }

    fn timer(&mut self, app: &str, due_in: u64) -> Timer {
        self.random += 1;
        let now = self.now().time;
        let due = now + due_in;
        Timer {
            callback_timeout_ms: Some(500),
            payload: b"payload".as_slice().into(),
            ..Timer::new(TimerId::new(due, now, P, self.random), dest(app), due)
        }
    }

    fn ask(&mut self, n: u64, ops: Vec<RequestOp>) {
        let first_sent = self.now().time;
        self.session(n, SessionEvent::Request(Request { corr: 1, first_sent, ops }));
    }

    fn schedule(&mut self, n: u64, timer: Timer) {
        self.ask(n, vec![RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create })]);
    }

    /// A client's timer, due at once, is delivered to it.
    fn deliver(&mut self, n: u64, timer: Timer) -> Delivery {
        self.schedule(n, timer);
        self.run(5);
        self.take_deliveries().remove(0).1
    }

    /// The broker stops in good order: it drains, and releases without waiting for handlers.
    fn stop(&mut self) {
        let now = self.now();
        self.engine.handle(now, Input::Drain);
        self.engine.handle(now, Input::Release);
        self.turn();
    }

    fn settle(&mut self, n: u64, d: &Delivery, outcome: HandlerOutcome) {
        let s = Settlement { id: d.id, epoch: d.epoch, attempt: d.attempt, outcome };
        self.session(n, SessionEvent::Settle(vec![s]));
    }

    /// Where the store has a timer.
    fn place(&self, id: TimerId) -> Option<Place> {
        self.lane.get(Target::Id(id)).now_or_never().unwrap().unwrap().map(|(_, place)| place)
    }

    /// How many deliveries the engine has inherited from predecessors.
    fn inherited(&mut self) -> usize {
        self.engine.partition(P).unwrap().inherited.len()
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

/// A broker in which the repeat of a schedule waits, and its timer's acknowledgement behind it,
/// because as many batches are under way as may be.
fn overtaken_repeat(options: EngineOptions) -> (Rig, Delivery) {
    let mut rig = Rig::new(options);
    rig.join(1, "a", 100);
    let timer = rig.timer("a", 50);
    rig.schedule(1, timer.clone());
    rig.run(45);
    rig.take_replies();
    rig.engine.partition(P).unwrap().calls.hold_batches();
    rig.schedule(1, timer);
    rig.run(10);
    let (_, delivery) = rig.take_deliveries().remove(0);
    rig.settle(1, &delivery, HandlerOutcome::Ok);
    (rig, delivery)
}

fn code(reply: &OpReply) -> Option<ErrorCode> {
    if let OpReply::Failed { code, .. } = reply { Some(*code) } else { None }
}
