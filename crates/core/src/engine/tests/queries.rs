//! Questions: their cost for the store, however many are asked at once.

use std::collections::VecDeque;
use std::sync::Arc;

use mtimer_protocol::ops::Schedule;
use mtimer_protocol::{BrokerView, Status, TimerState};
use mtimer_store::{Census, Health};

use super::*;

/// An engine that owns several partitions. Calls are answered when a test says so.
struct Rig {
    engine: Engine,
    lanes: Vec<Arc<dyn Lane>>,
    unanswered: Vec<VecDeque<Call>>,
    /// Counts that the store was asked for, and the most of them at the same time.
    counts: usize,
    most_counts: usize,
    /// The most calls of one partition that were under way.
    most_calls: usize,
    sent: Vec<(SessionId, ServerMessage)>,
    /// The store's contents as reported to the shell.
    stored: Vec<Option<Census>>,
    ms: u64,
}

const PARTITIONS: u16 = 16;

impl Rig {
    fn new() -> Self {
        let store = MemoryStore::new(PARTITIONS);
        let options = EngineOptions { partitions: PARTITIONS, ..EngineOptions::default() };
        let now = Now { time: Time::from_ms(START), mono_ms: 0 };
        let mut engine = Engine::new(options, now);
        let mut lanes = Vec::new();
        for partition in (0..PARTITIONS).map(PartitionId) {
            let (nonce, term) = (Nonce(1), Term(1));
            let acquire = Acquire { partition, expected: Epoch(0), floor: Epoch(0), nonce, term, version: 1 };
            let acquired = store.acquire(acquire).now_or_never().unwrap().unwrap();
            let (epoch, prior_claim) = (acquired.epoch, acquired.prior_claim);
            engine.handle(now, Input::Acquired { partition, epoch, prior_claim, in_flight: Vec::new() });
            lanes.push(acquired.lane);
        }
        let unanswered = lanes.iter().map(|_| VecDeque::new()).collect();
        let (counts, most_counts, most_calls) = (0, 0, 0);
        let (sent, stored) = (Vec::new(), Vec::new());
        let mut rig =
            Self { engine, lanes, unanswered, counts, most_counts, most_calls, sent, stored, ms: 0 };
        rig.turn();
        rig.engine.handle(rig.now(), Input::Session(SessionId(1), SessionEvent::Opened { client: 1 }));
        rig
    }

    fn now(&self) -> Now {
        Now { time: Time::from_ms(START + self.ms), mono_ms: self.ms }
    }

    fn ask(&mut self, corr: u64, query: Query) {
        let now = self.now();
        self.engine.handle(now, Input::Session(SessionId(1), SessionEvent::Query { corr, query }));
    }

    fn flush(&mut self) {
        let mut effects = Vec::new();
        self.engine.flush(self.now(), &mut effects);
        for effect in effects {
            match effect {
                Effect::Call(at, call) => {
                    self.counts += usize::from(matches!(call, Call::Census));
                    self.unanswered[usize::from(at.0)].push_back(call);
                }
                Effect::Send(session, message) => self.sent.push((session, message)),
                Effect::Stored(census) => self.stored.push(census),
                _ => {}
            }
        }
        let counting = |call: &&Call| matches!(call, Call::Census);
        let counts = self.unanswered.iter().flatten().filter(counting).count();
        self.most_counts = self.most_counts.max(counts);
        let calls = self.unanswered.iter().map(VecDeque::len).max().unwrap();
        self.most_calls = self.most_calls.max(calls);
    }

    /// Answers the oldest call of each partition; says whether there was any.
    fn answer(&mut self) -> bool {
        let mut any = false;
        for at in (0..PARTITIONS).map(PartitionId) {
            let Some(call) = self.unanswered[usize::from(at.0)].pop_front() else { continue };
            let lane = &self.lanes[usize::from(at.0)];
            let (now, epoch) = (self.now(), lane.epoch());
            let answer = lane.call(call).now_or_never().unwrap();
            self.engine.handle(now, Input::Answered { partition: at, epoch, answer });
            any = true;
        }
        any
    }

    /// Answers calls until there are none.
    fn turn(&mut self) {
        self.flush();
        while self.answer() {
            self.flush();
        }
    }

    /// Answers calls until there are none: counts with this, all others by the store.
    fn turn_with(&mut self, census: impl Fn(u64) -> Census) {
        self.flush();
        while let Some(at) = self.unanswered.iter().position(|calls| !calls.is_empty()) {
            self.answer_one(PartitionId(at as u16), &census);
            self.flush();
        }
    }

    /// Answers the oldest call of a partition: a count with this, any other by the store.
    fn answer_one(&mut self, partition: PartitionId, census: impl Fn(u64) -> Census) {
        let at = usize::from(partition.0);
        let lane = &self.lanes[at];
        let answer = match self.unanswered[at].pop_front().unwrap() {
            Call::Census => Ok(CallAnswer::Census(census(at as u64))),
            call => lane.call(call).now_or_never().unwrap(),
        };
        let (now, epoch) = (self.now(), lane.epoch());
        self.engine.handle(now, Input::Answered { partition, epoch, answer });
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.ms += 1;
            self.turn();
        }
    }

    fn take_answers(&mut self) -> Vec<(u64, QueryAnswer)> {
        let answers = self.sent.drain(..).filter_map(|(_, message)| match message {
            ServerMessage::Answer { corr, answer } => Some((corr, answer)),
            _ => None,
        });
        answers.collect()
    }
}

#[test]
fn however_many_ask_for_the_state_each_partition_is_counted_once() {
    let mut rig = Rig::new();
    (0..64).for_each(|corr| rig.ask(corr, Query::Status));
    rig.turn();
    assert_eq!(rig.counts, usize::from(PARTITIONS));
    let answers = rig.take_answers();
    assert_eq!(answers.len(), 64);
    assert!(answers.iter().all(|(_, a)| matches!(a, QueryAnswer::Status(s) if s.sessions == 1)));
    assert!(rig.most_counts <= 4, "{} at the same time", rig.most_counts);
}

#[test]
fn who_asks_during_a_count_gets_the_next_one() {
    let mut rig = Rig::new();
    rig.ask(1, Query::Status);
    rig.flush();
    let timer = Timer {
        payload: b"x".as_slice().into(),
        ..Timer::new(
            TimerId::new(Time::from_ms(START + 60_000), rig.now().time, P, 1),
            dest("a"),
            Time::from_ms(START + 60_000),
        )
    };
    let (ops, first_sent) = (
        vec![RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create })],
        rig.now().time,
    );
    let request = SessionEvent::Request(Request { corr: 9, first_sent, ops });
    rig.engine.handle(rig.now(), Input::Session(SessionId(1), request));
    rig.turn();
    rig.ms += 1;
    (2..64).for_each(|corr| rig.ask(corr, Query::Status));
    rig.run(1_000);
    assert_eq!(rig.counts, 2 * usize::from(PARTITIONS));
    let answers = rig.take_answers();
    assert_eq!(answers.len(), 63);
    let pending = |(_, answer): &(u64, QueryAnswer)| match answer {
        QueryAnswer::Status(Status { pending, .. }) => *pending,
        other => panic!("{other:?}"),
    };
    assert!(answers[1..].iter().all(|a| pending(a) == 1), "they asked after it was stored");
}

#[test]
fn a_client_that_asks_without_end_does_not_keep_the_store_busy() {
    let mut rig = Rig::new();
    for ms in 0..1_000 {
        rig.ask(ms, Query::Status);
        rig.run(1);
    }
    rig.run(1_000);
    assert_eq!(rig.take_answers().len(), 1_000);
    assert!(rig.counts <= 21 * usize::from(PARTITIONS), "{} counts in a second", rig.counts);
}

#[test]
fn the_state_and_the_view_of_a_broker_share_a_count() {
    let mut rig = Rig::new();
    rig.ask(1, Query::Status);
    rig.ask(2, Query::Broker);
    rig.turn();
    assert_eq!(rig.counts, usize::from(PARTITIONS));
    let answers = rig.take_answers();
    let [(1, QueryAnswer::Status(_)), (2, QueryAnswer::Broker(view))] = &answers[..] else {
        panic!("{answers:?}")
    };
    let BrokerView { partitions, .. } = view;
    let numbers: Vec<u16> = partitions.iter().map(|p| p.partition.0).collect();
    assert_eq!(numbers, (0..PARTITIONS).collect::<Vec<u16>>());
    assert!(partitions.iter().all(|p| p.reachable));
}

#[test]
fn a_partition_whose_store_goes_away_during_a_count_is_not_waited_for() {
    let mut rig = Rig::new();
    rig.ask(1, Query::Broker);
    rig.flush();
    let away = PartitionId(0);
    let now = rig.now();
    rig.engine.handle(now, Input::Health { partition: away, health: Health::Down("away".to_owned()) });
    // Its calls are answered when the store is back.
    let held = std::mem::take(&mut rig.unanswered[0]);
    rig.turn();
    let answers = rig.take_answers();
    let [(1, QueryAnswer::Broker(view))] = &answers[..] else { panic!("{answers:?}") };
    let away: Vec<u16> = view.partitions.iter().filter(|p| !p.reachable).map(|p| p.partition.0).collect();
    assert_eq!(away, [0]);
    // The late answer belongs to no count any more.
    rig.unanswered[0] = held;
    rig.turn();
    assert_eq!(rig.take_answers(), []);
}

/// The answers to questions that an engine with one partition gave.
fn take_answers(rig: &mut super::Rig) -> Vec<QueryAnswer> {
    let answer = |(_, message)| match message {
        ServerMessage::Answer { answer, .. } => Some(answer),
        _ => None,
    };
    rig.sent.drain(..).filter_map(answer).collect()
}

/// Returns the census of a partition of this number, in a test: no two counts are equal.
fn census(at: u64) -> Census {
    let n = at + 1;
    Census {
        pending: n,
        retrying: 100 * n,
        parked: 200 * n,
        taken: 300 * n,
        dead: 400 * n,
        keys: 500 * n,
        staged: 700 * n,
        residue: 600 * n,
    }
}

#[test]
fn the_state_is_the_sum_of_all_partitions_and_the_view_has_each() {
    let mut rig = Rig::new();
    rig.ask(1, Query::Status);
    rig.ask(2, Query::Broker);
    rig.turn_with(census);
    let answers = rig.take_answers();
    let [(1, QueryAnswer::Status(status)), (2, QueryAnswer::Broker(view))] = &answers[..] else {
        panic!("{answers:?}")
    };
    let all = u64::from(PARTITIONS * (PARTITIONS + 1) / 2);
    let sums = [status.pending, status.retrying, status.parked, status.taken, status.dead];
    assert_eq!(sums, [all, 100 * all, 200 * all, 300 * all, 400 * all]);
    assert_eq!([status.keys, status.residue, status.staged], [500 * all, 600 * all, 700 * all]);
    for (row, c) in view.partitions.iter().zip((0..).map(census)) {
        assert_eq!((row.epoch, row.reachable, row.loaded, row.in_flight), (Epoch(1), true, 0, 0));
        assert_eq!(
            [row.pending, row.retrying, row.parked, row.taken, row.dead],
            [c.pending, c.retrying, c.parked, c.taken, c.dead]
        );
        assert_eq!(row.overdue, c.parked, "nothing in memory is due");
    }
}

#[test]
fn the_shell_is_told_once_what_the_store_holds_however_often_it_asks_before_the_count() {
    let mut rig = Rig::new();
    let count = |rig: &mut Rig| {
        let now = rig.now();
        rig.engine.handle(now, Input::CountStored);
    };
    (0..8).for_each(|_| count(&mut rig));
    rig.turn_with(census);
    let all = u64::from(PARTITIONS * (PARTITIONS + 1) / 2);
    let sum = Census {
        pending: all,
        retrying: 100 * all,
        parked: 200 * all,
        taken: 300 * all,
        dead: 400 * all,
        keys: 500 * all,
        staged: 700 * all,
        residue: 600 * all,
    };
    assert_eq!((std::mem::take(&mut rig.stored), rig.counts), (vec![Some(sum)], usize::from(PARTITIONS)));
    // A client's question shares it.
    count(&mut rig);
    rig.ask(1, Query::Status);
    rig.run(1_000);
    assert_eq!((rig.stored.len(), rig.take_answers().len()), (1, 1));
    assert_eq!(rig.counts, 2 * usize::from(PARTITIONS));
}

#[test]
fn the_state_says_what_memory_has() {
    let mut rig = super::Rig::new(EngineOptions { park_after_ms: 60_000, ..EngineOptions::default() });
    rig.join(1, "a", 2);
    let timers: Vec<Timer> = [1, 1, 1, 1, 1, 500].map(|due_in| rig.timer("a", due_in)).into();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    rig.session(2, SessionEvent::Opened { client: 2 });
    rig.session(2, SessionEvent::Query { corr: 1, query: Query::Status });
    rig.session(2, SessionEvent::Query { corr: 2, query: Query::Broker });
    rig.turn();
    let answers = take_answers(&mut rig);
    let [QueryAnswer::Status(status), QueryAnswer::Broker(view)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((status.sessions, status.loaded, status.ready, status.in_flight), (2, 6, 3, 2));
    assert!(status.loaded_bytes > 0 && status.loaded_bytes == view.loaded_bytes);
    assert_eq!((rig.engine.in_memory(), rig.engine.unsettled()), (6, 2));
    assert!(status.counters.contains(&("delivered_total".to_owned(), 2)), "{:?}", status.counters);
    assert_eq!((view.load.sessions, view.load.loaded, view.load.in_flight), (2, 6, 2));
    let row = &view.partitions[0];
    assert_eq!((row.loaded, row.in_flight, row.overdue), (6, 2, 3));
}

#[test]
fn a_late_answer_to_an_earlier_count_is_not_taken_for_one_to_the_next() {
    let mut rig = Rig::new();
    rig.ask(1, Query::Status);
    rig.flush();
    let health = |rig: &mut Rig, health| {
        let now = rig.now();
        rig.engine.handle(now, Input::Health { partition: P, health });
    };
    health(&mut rig, Health::Down("away".to_owned()));
    let held = std::mem::take(&mut rig.unanswered[0]);
    rig.turn();
    assert_eq!(rig.take_answers().len(), 1);
    health(&mut rig, Health::Up);
    rig.unanswered[0] = held;
    rig.ask(2, Query::Broker);
    rig.ms += 100;
    rig.flush();
    assert_eq!(rig.unanswered[0].len(), 2, "the late one, and the one of this count");
    rig.answer_one(P, |_| census(99));
    rig.turn_with(census);
    let answers = rig.take_answers();
    let [(2, QueryAnswer::Broker(view))] = &answers[..] else { panic!("{answers:?}") };
    let row = &view.partitions[0];
    assert_eq!((row.pending, row.overdue), (census(0).pending, census(0).parked));
}

#[test]
fn the_pause_after_a_count_is_nine_times_as_long_as_the_count() {
    let mut rig = Rig::new();
    rig.ask(1, Query::Status);
    rig.flush();
    rig.ms += 40;
    rig.turn();
    let once = rig.counts;
    rig.ask(2, Query::Status);
    rig.run(359);
    assert_eq!(rig.counts, once);
    rig.run(1);
    assert_eq!((rig.counts, rig.take_answers().len()), (2 * once, 2));
    rig.run(2_000);
    assert_eq!(rig.counts, 2 * once, "nobody asks any more");
}

#[test]
fn a_partition_whose_store_is_away_is_not_counted() {
    let mut rig = Rig::new();
    let now = rig.now();
    rig.engine.handle(now, Input::Health { partition: P, health: Health::Down("away".to_owned()) });
    rig.ask(1, Query::Broker);
    rig.turn();
    assert_eq!(rig.counts, usize::from(PARTITIONS) - 1);
    let answers = rig.take_answers();
    let [(1, QueryAnswer::Broker(view))] = &answers[..] else { panic!("{answers:?}") };
    assert!(view.partitions.iter().all(|row| row.reachable == (row.partition != P)));
}

#[test]
fn questions_to_one_partition_go_to_the_store_a_few_at_a_time() {
    let mut rig = Rig::new();
    for corr in 0..64 {
        let id = TimerId::new(Time::from_ms(START), Time::ZERO, P, corr);
        rig.ask(corr, Query::Get(Target::Id(id)));
        rig.ask(64 + corr, Query::Dead { group: None, app: None, cursor: None, limit: 10 });
    }
    rig.most_calls = 0;
    rig.turn();
    assert!(rig.most_calls <= 4, "{} calls at the same time", rig.most_calls);
    let answers = rig.take_answers();
    assert_eq!(answers.len(), 128);
    let order: Vec<u64> = answers.iter().map(|(corr, _)| *corr).collect();
    assert_eq!(order, (0..64).flat_map(|n| [n, 64 + n]).collect::<Vec<_>>());
}

/// A client that closes asks this, to hear that all before it was taken in.
#[test]
fn a_question_about_nobodys_timer_is_answered_without_the_store() {
    let mut rig = Rig::new();
    rig.ask(7, Query::Get(Target::Id(TimerId::NOBODYS)));
    rig.flush();
    let answers = rig.take_answers();
    assert!(
        matches!(answers[..], [(7, QueryAnswer::Failed { code: ErrorCode::NotOwner, .. })]),
        "{answers:?}"
    );
}

#[test]
fn questions_that_wait_are_answered_when_the_lane_ends() {
    let mut rig = Rig::new();
    for corr in 0..10 {
        let id = TimerId::new(Time::from_ms(START), Time::ZERO, P, corr);
        rig.ask(corr, Query::Get(Target::Id(id)));
    }
    let now = rig.now();
    let health = Health::Ended(LaneError::Closed);
    rig.engine.handle(now, Input::Health { partition: P, health });
    rig.unanswered[0].clear();
    rig.flush();
    let answers = rig.take_answers();
    assert_eq!(answers.len(), 10);
    assert!(answers.iter().all(|(_, a)| matches!(a, QueryAnswer::Failed { .. })), "{answers:?}");
}

#[test]
fn a_listing_goes_from_partition_to_partition_and_ends_with_the_last() {
    for unconfirmed in [false, true] {
        let mut rig = Rig::new();
        let mut cursor = None;
        for at in 0..PARTITIONS {
            rig.ask(
                1,
                match unconfirmed {
                    true => Query::Unconfirmed { cursor, limit: 10 },
                    false => Query::Dead { group: None, app: None, cursor, limit: 10 },
                },
            );
            rig.turn();
            let answers = rig.take_answers();
            let [(1, QueryAnswer::Dead { next, .. } | QueryAnswer::Unconfirmed { next, .. })] = &answers[..]
            else {
                panic!("{answers:?}")
            };
            cursor = *next;
            assert_eq!(cursor, (at + 1 < PARTITIONS).then_some((at + 1, 0)));
        }
    }
}

#[test]
fn parked_and_taken_timers_are_listed_as_they_stand() {
    let mut rig = super::Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let (first, second) = (rig.timer("nobody", 2), rig.timer("nobody", 3));
    [&first, &second].into_iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5_000);
    let taken = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 1) };
    rig.schedule(1, taken.clone());
    rig.run(100);
    let ask = |rig: &mut super::Rig, query| {
        rig.sent.clear();
        rig.session(1, SessionEvent::Query { corr: 1, query });
        rig.turn();
        match take_answers(rig).pop() {
            Some(QueryAnswer::Timers { rows, next }) => {
                (rows.into_iter().map(|row| (row.timer.id, row.state)).collect::<Vec<_>>(), next)
            }
            other => panic!("{other:?}"),
        }
    };
    let of = |app| super::dest(app);
    let parked = |cursor, limit| Query::Parked { dest: of("nobody"), cursor, limit };
    let (mut rows, next) = ask(&mut rig, parked(None, 1));
    assert!(rows.len() == 1 && next.is_some(), "{rows:?}");
    let (rest, next) = ask(&mut rig, parked(next, 10));
    rows.extend(rest);
    rows.sort_by_key(|(id, _)| *id);
    assert_eq!(rows, [first, second].map(|timer| (timer.id, TimerState::Parked)));
    assert_eq!(next, None);
    let nothing = ask(&mut rig, Query::Parked { dest: of("a"), cursor: None, limit: 10 });
    assert_eq!(nothing, (vec![], None));
    let (rows, _) = ask(&mut rig, Query::Taken { cursor: None, limit: 10 });
    assert!(
        matches!(rows[..], [(id, TimerState::InFlight { attempt: 1, .. })] if id == taken.id),
        "{rows:?}"
    );
}

#[test]
fn it_is_told_where_a_timer_stands() {
    let mut rig = super::Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "stuck", 0);
    let state = |rig: &mut super::Rig, timer: &Timer| {
        rig.sent.clear();
        rig.session(2, SessionEvent::Query { corr: 1, query: Query::Get(Target::Id(timer.id)) });
        rig.turn();
        match &take_answers(rig)[..] {
            [QueryAnswer::Timer(Some(view))] => (view.state, view.failed, view.last_error.clone()),
            other => panic!("{other:?}"),
        }
    };
    let error = || Some("no".to_owned());
    let pending = rig.timer("a", 60_000);
    rig.schedule(1, pending.clone());
    rig.run(5);
    assert_eq!(state(&mut rig, &pending), (TimerState::Pending { fire: pending.due }, 0, None));
    let retried = rig.timer("a", 0);
    let d = rig.deliver(1, retried.clone());
    let in_flight = |attempt| TimerState::InFlight { epoch: Epoch(1), attempt };
    assert_eq!(state(&mut rig, &retried), (in_flight(1), 0, None));
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(2_000), error: "no".into() });
    let fire = rig.now().time + 2_000;
    rig.run(5);
    assert_eq!(state(&mut rig, &retried), (TimerState::Retrying { fire, tier: 1 }, 1, error()));
    rig.run(2_000);
    assert_eq!(state(&mut rig, &retried), (in_flight(2), 1, error()));
    let dead = rig.timer("a", 0);
    let d = rig.deliver(1, dead.clone());
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(5);
    assert_eq!(state(&mut rig, &dead), (TimerState::Dead, 1, error()));
    let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 0) };
    rig.deliver(1, once.clone());
    assert_eq!(state(&mut rig, &once), (in_flight(1), 0, None));
    rig.run(600);
    assert_eq!(state(&mut rig, &once).0, TimerState::Unconfirmed);
    let parked = rig.timer("stuck", 0);
    rig.schedule(1, parked.clone());
    rig.run(1_000);
    assert_eq!(state(&mut rig, &parked), (TimerState::Parked, 0, None));
}
