//! The memory budget: it is kept to, nothing is dropped, nothing is kept out by it for ever.

use mtimer_protocol::ops;
use mtimer_store::Op;
use mtimer_store::ops::Schedule;

use super::*;
use crate::engine::pending::Own;

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

#[test]
fn batches_of_all_partitions_together_take_a_part_of_the_budget() {
    const PARTITIONS: u16 = 4;
    let budget = 16 << 20;
    let now = Now { time: Time::from_ms(START), mono_ms: 0 };
    let options = EngineOptions { partitions: PARTITIONS, memory_bytes: budget, ..EngineOptions::default() };
    let mut engine = Engine::new(options, now);
    engine.handle(now, Input::Session(SessionId(1), SessionEvent::Opened { client: 1 }));
    for partition in (0..PARTITIONS).map(PartitionId) {
        let (epoch, prior_claim) = (Epoch(1), Time::ZERO);
        engine.handle(now, Input::Acquired { partition, epoch, prior_claim, in_flight: vec![] });
        let due = now.time + 3_600_000;
        let schedule = |n| {
            let id = TimerId::new(due, now.time, partition, n);
            let payload = vec![7; 60_000].into();
            let (dest, mode) = (dest("a"), Mode::AtLeastOnce);
            let (key, deadline, retry, callback_timeout_ms) = (None, None, None, None);
            let timer = Timer {
                key,
                mode,
                deadline,
                callback_timeout_ms,
                retry,
                payload,
                ..Timer::new(id, dest, due)
            };
            RequestOp::Schedule(ops::Schedule { timer: timer.into(), policy: KeyPolicy::Create })
        };
        let request = Request { corr: 1, first_sent: now.time, ops: (0..60).map(schedule).collect() };
        engine.handle(now, Input::Session(SessionId(1), SessionEvent::Request(request)));
    }
    let mut effects = Vec::new();
    engine.flush(now, &mut effects);
    let mut bytes = 0;
    for effect in effects {
        let Effect::Call(_, Call::Apply(batch)) = effect else { continue };
        let payload =
            |op: &Op| if let Op::Schedule(Schedule { timer, .. }) = op { timer.payload.len() } else { 0 };
        bytes += batch.ops.iter().map(payload).sum::<usize>() as u64;
    }
    // A partition has one batch under way, of a sixteenth of its share and up to one timer more.
    let (least, most) = (budget / 16, budget / 16 + u64::from(PARTITIONS) * 60_000);
    assert!((least..=most).contains(&bytes), "{bytes} bytes under way, of {budget}");
}

#[test]
fn a_timer_counts_with_its_payload_while_it_is_in_memory() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    for n in 1..=2 {
        let timer = Timer { payload: vec![0; 10_000].into(), ..rig.timer("a", 100) };
        rig.schedule(1, timer);
        rig.run(5);
        assert!((n * 10_000..n * 11_000).contains(&rig.engine.memory().1), "{:?}", rig.engine.memory());
    }
    rig.run(100);
    let bytes_after_each = rig.take_deliveries().into_iter().map(|(_, d)| {
        rig.settle(1, &d, HandlerOutcome::Ok);
        rig.run(DEFER_MS);
        rig.engine.memory().1 / 10_000
    });
    assert_eq!(bytes_after_each.collect::<Vec<_>>(), [1, 0]);
    assert_eq!(rig.engine.memory(), (0, 0));
}

#[test]
fn headers_count_as_payloads_do_and_are_delivered() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let value = "v".repeat(1_000);
    let headers = Headers::new(["a", "b", "c"].map(|name| (name, &value))).unwrap();
    let timer = Timer { headers: headers.clone(), payload: Vec::new().into(), ..rig.timer("a", 100) };
    rig.schedule(1, timer);
    rig.run(5);
    let bytes = rig.engine.memory().1;
    assert!((3_000..3_500).contains(&bytes), "{bytes}");
    rig.run(100);
    let deliveries = rig.take_deliveries();
    assert_eq!(deliveries[0].1.headers, headers);
}

#[test]
fn what_was_moved_to_an_earlier_time_is_not_unloaded_with_its_old_one() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 4_000);
    rig.schedule(1, timer.clone());
    rig.run(5);
    let now = rig.now().time;
    let target = Target::Id(timer.id);
    rig.ask(1, vec![RequestOp::Reschedule(ops::Reschedule { target, due: now + 1_000, request: 1 })]);
    rig.run(5);
    rig.engine.unloaded(P, now + 2_000);
    rig.run(1_000);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn nothing_is_left_of_a_destination_that_nobody_needs() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(20);
    assert_eq!(rig.engine.roster.dests().count(), 1);
    rig.session(1, SessionEvent::Closed);
    rig.run(100);
    assert_eq!(rig.engine.roster.dests().count(), 0);
}

#[test]
fn nothing_is_loaded_while_very_much_is_on_its_way_to_the_park() {
    let mut rig = Rig::new(EngineOptions::default());
    let p = rig.engine.partition(P).unwrap();
    p.calls.hold_batches();
    for n in 0..20_001 {
        p.queue.push_own(Own::Park(TimerId::from_u128(n)));
    }
    let horizon = p.horizon();
    rig.run(6_000);
    assert_eq!(rig.engine.partition(P).unwrap().horizon(), horizon);
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(200);
    let now = rig.now().time;
    assert!(rig.engine.partition(P).unwrap().horizon() > now);
}

#[test]
fn memory_is_looked_over_often_while_there_is_something_to_look_for() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    rig.run(200);
    let pause = |rig: &Rig| rig.engine.next_tick().map(|at| at.saturating_sub(rig.ms));
    assert!(pause(&rig).is_some_and(|ms| (900..=1_000).contains(&ms)), "{:?}", pause(&rig));
    let far = rig.timer("a", 3_000);
    rig.schedule(1, far.clone());
    rig.run(60);
    assert!(pause(&rig).is_some_and(|ms| ms <= 50), "a timer is in memory: {:?}", pause(&rig));
    let (target, request) = (Target::Id(far.id), 9);
    rig.ask(1, vec![RequestOp::Cancel(ops::Cancel { target, request })]);
    rig.run(60);
    assert!(pause(&rig).is_some_and(|ms| ms > 50), "{:?}", pause(&rig));
    rig.store.faults().down(P, "test");
    rig.run(60);
    assert!(pause(&rig).is_some_and(|ms| ms <= 50), "the store is away: {:?}", pause(&rig));
    rig.store.faults().heal(P);
    rig.run(1);
    let stuck = rig.timer("a", 0);
    rig.schedule(1, stuck.clone());
    rig.run(1_000);
    assert_eq!((rig.place(stuck.id), rig.engine.memory().0), (Some(Place::Parked), 0));
    assert!(pause(&rig).is_some_and(|ms| ms <= 50), "a timer is parked: {:?}", pause(&rig));
}

#[test]
fn an_engine_that_owns_nothing_asks_for_no_tick() {
    let now = Now { time: Time::from_ms(START), mono_ms: 0 };
    assert_eq!(Engine::new(EngineOptions::default(), now).next_tick(), None);
}
