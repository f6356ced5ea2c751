//! Which timers are loaded and when, which go back, and how a new owner treats the timers that it
//! reads.

use mtimer_store::ops::{MoveAnswer, Park};
use mtimer_store::{Batch, ListPage, Load, Loaded, Op, Page};

use super::*;
use crate::engine::calls::OpenCall;
use crate::engine::pending::Own;
use crate::engine::table::ENTRY_BYTES;

/// A broker of several partitions that have just been acquired, all with this claim of a
/// predecessor.
fn acquired(partitions: u16, memory_bytes: u64, prior_claim: Time) -> (Engine, Now) {
    let now = Now { time: Time::from_ms(START), mono_ms: 0 };
    let options = EngineOptions { partitions, memory_bytes, ..EngineOptions::default() };
    let mut engine = Engine::new(options, now);
    for partition in (0..partitions).map(PartitionId) {
        let epoch = Epoch(1);
        engine.handle(now, Input::Acquired { partition, epoch, prior_claim, in_flight: vec![] });
        for answer in [
            CallAnswer::List(ListPage::Taken(Page { rows: vec![], next: None })),
            CallAnswer::ParkedDestinations(vec![]),
            CallAnswer::Controls(Box::default()),
        ] {
            engine.handle(now, Input::Answered { partition, epoch, answer: Ok(answer) });
        }
        engine.partition(partition).unwrap().trim_from(u64::MAX);
    }
    (engine, now)
}

/// The loads that a flush asks for.
fn loads(engine: &mut Engine, now: Now) -> Vec<(PartitionId, Load)> {
    let mut effects = Vec::new();
    engine.flush(now, &mut effects);
    let load = |effect| match effect {
        Effect::Call(at, Call::Load(load)) => Some((at, load)),
        _ => None,
    };
    effects.into_iter().filter_map(load).collect()
}

/// Answers these loads: there is nothing, up to where they reach.
fn answer(engine: &mut Engine, now: Now, loads: Vec<(PartitionId, Load)>) {
    for (partition, load) in loads {
        let answer =
            CallAnswer::Load(Loaded { timers: vec![], horizon: load.until, is_claim_unconfirmed: false });
        engine.handle(now, Input::Answered { partition, epoch: Epoch(1), answer: Ok(answer) });
    }
}

fn later(now: Now, ms: u64) -> Now {
    Now { time: now.time + ms, mono_ms: now.mono_ms + ms }
}

#[test]
fn four_partitions_that_are_behind_are_read_at_once() {
    let (mut engine, now) = acquired(10, 1 << 30, Time::ZERO);
    let first = loads(&mut engine, now);
    assert_eq!(first.len(), 4);
    assert_eq!(loads(&mut engine, now).len(), 0, "while these are under way");
    answer(&mut engine, now, first);
    assert_eq!(loads(&mut engine, now).len(), 4);
}

#[test]
fn what_is_not_near_is_read_four_partitions_at_once_and_what_is_near_without_delay() {
    let (mut engine, now) = acquired(10, 1 << 30, Time::ZERO);
    for partition in (0..10).map(PartitionId) {
        engine.partition(partition).unwrap().extend_horizon(now.time + 5_000);
    }
    assert_eq!(loads(&mut engine, later(now, 2_500)).len(), 0, "half of the window is left");
    // Less than half is left, and more than a quarter.
    let at = later(now, 2_501);
    assert_eq!(loads(&mut engine, at).len(), 4);
    assert_eq!(loads(&mut engine, later(now, 3_750)).len(), 0, "while these are under way");
    assert_eq!(loads(&mut engine, later(now, 3_751)).len(), 6, "a quarter is left");
}

#[test]
fn first_loads_reach_differently_far_and_later_ones_equally() {
    let (mut engine, now) = acquired(2, 1 << 30, Time::ZERO);
    let reach = |now: Now, loads: &[(PartitionId, Load)]| -> Vec<u64> {
        loads.iter().map(|(_, load)| load.until.ms_since(now.time)).collect()
    };
    let first = loads(&mut engine, now);
    assert_eq!(reach(now, &first), [5_000, 3_455]);
    answer(&mut engine, now, first);
    let at = later(now, 3_000);
    assert_eq!(reach(at, &loads(&mut engine, at)), [5_000, 5_000]);
}

#[test]
fn the_first_load_carries_a_claim_unless_one_reaches_as_far_as_it_is_needed() {
    let base = Time::from_ms(START);
    for (prior_claim, claims) in
        [(Time::ZERO, true), (base, true), (base + 19, true), (base + 20, false), (base + 21, false)]
    {
        let (mut engine, now) = acquired(1, 1 << 30, prior_claim);
        let load = loads(&mut engine, now).remove(0).1;
        assert_eq!(load.claim, claims.then(|| now.time + 70), "{prior_claim:?}");
    }
}

#[test]
fn a_load_takes_its_partitions_share_of_free_memory_within_bounds() {
    let bounds = |memory_bytes| {
        let (mut engine, now) = acquired(4, memory_bytes, Time::ZERO);
        let load = loads(&mut engine, now).remove(0).1;
        (load.max_timers, load.max_bytes)
    };
    assert_eq!(bounds(4 << 20), ((1 << 20) / ENTRY_BYTES as usize, 1 << 20));
    assert_eq!(bounds(1), (64, 64 * 1024));
    assert_eq!(bounds(1 << 30), (4_000, 4 << 20));
}

#[test]
fn fewer_timers_on_their_way_to_the_park_stop_loads_while_memory_is_full() {
    for (memory_bytes, parks, is_loaded) in
        [(1 << 30, 20_000, true), (1 << 30, 20_001, false), (1, 500, true), (1, 501, false)]
    {
        let mut rig = Rig::new(EngineOptions { memory_bytes: 1 << 30, ..EngineOptions::default() });
        rig.join(1, "a", 10);
        let timer = rig.timer("a", 4_000);
        rig.schedule(1, timer);
        rig.run(5);
        rig.engine.options.memory_bytes = memory_bytes;
        let p = rig.engine.partition(P).unwrap();
        p.calls.hold_batches();
        p.limit_horizon(Time::ZERO);
        for n in 0..parks {
            p.queue.push_own(Own::Park(TimerId::from_u128(n)));
        }
        let now = rig.now();
        assert_eq!(loads(&mut rig.engine, now).len() == 1, is_loaded, "{memory_bytes} bytes, {parks} parks");
    }
}

/// Up to where calls under way unload.
fn unloads(rig: &mut Rig) -> Vec<Time> {
    let calls = rig.engine.partition(P).unwrap().calls.iter();
    let beyond = |call: &OpenCall| if let OpenCall::Unload { beyond } = call { Some(*beyond) } else { None };
    calls.filter_map(beyond).collect()
}

/// A broker with timers in memory that are due in so many ms, and a budget that is too small for
/// them.
fn over_budget(due_in: u64) -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    for _ in 0..3 {
        let timer = rig.timer("a", due_in);
        rig.schedule(1, timer);
    }
    rig.turn();
    assert_eq!(rig.engine.memory().0, 3);
    rig.engine.options.memory_bytes = 3 * ENTRY_BYTES;
    rig.answers_wait = true;
    rig
}

#[test]
fn the_farther_half_goes_back_once_when_memory_is_over_its_budget() {
    let mut rig = over_budget(4_000);
    while unloads(&mut rig).is_empty() {
        rig.run(1);
    }
    let (beyond, left) = (unloads(&mut rig)[0], 4_010 - rig.ms);
    assert_eq!(beyond, rig.now().time + left / 2);
    rig.run(200);
    assert_eq!(unloads(&mut rig), [beyond], "one at a time");
}

#[test]
fn what_fires_within_a_second_does_not_go_back() {
    let mut rig = over_budget(900);
    rig.run(200);
    assert_eq!(unloads(&mut rig), []);
}

/// The store does this with a timer, as if the engine had asked for it.
fn apply(rig: &Rig, op: Op, expected: Answer) {
    let batch = Batch { now: rig.now().time, claim: None, ops: vec![op] };
    assert_eq!(rig.lane.apply(batch).now_or_never().unwrap(), Ok(vec![expected]));
}

/// An at-most-once timer that is not in memory and is taken in the store.
fn taken() -> (Rig, TimerId) {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 7_000) };
    let id = timer.id;
    rig.schedule(1, timer);
    rig.run(5);
    apply(&rig, Op::take(id, 0), Answer::Take(MoveAnswer::Done));
    (rig, id)
}

#[test]
fn what_this_owner_has_taken_and_not_sent_is_sent_at_its_time_once_it_is_found() {
    let (mut rig, id) = taken();
    rig.engine.fetch(id);
    rig.run(6_990);
    assert_eq!(rig.take_deliveries(), [], "before it is due");
    rig.run(10);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [id]);
}

#[test]
fn what_is_found_taken_while_its_take_waits_in_the_queue_is_sent() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 20) };
    rig.schedule(1, timer.clone());
    rig.run(10);
    rig.engine.partition(P).unwrap().calls.hold_batches();
    rig.run(15);
    assert_eq!(rig.take_deliveries(), []);
    apply(&rig, Op::take(timer.id, 0), Answer::Take(MoveAnswer::Done));
    rig.engine.fetch(timer.id);
    rig.run(1);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [timer.id]);
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(20);
    assert_eq!(rig.take_deliveries(), []);
}

#[test]
fn what_a_predecessor_has_taken_is_not_sent_when_it_is_found() {
    let (rig, id) = taken();
    let mut next = Rig::acquired(rig.store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.engine.fetch(id);
    next.run(1_000);
    assert_eq!(next.take_deliveries(), [], "it may have been sent before");
    assert!(matches!(next.place(id), Some(Place::Taken { unconfirmed: true, .. })));
}

#[test]
fn an_at_most_once_delivery_is_awaited_after_a_handover_until_its_timeout() {
    for (wait, unconfirmed) in [(480, false), (500, true)] {
        let mut first = Rig::new(EngineOptions::default());
        first.join(1, "a", 10);
        let timer = Timer { mode: Mode::AtMostOnce, ..first.timer("a", 0) };
        let delivery = first.deliver(1, timer);
        let sent = first.ms;
        first.stop();
        let mut next = Rig::acquired(first.store, 2, sent + wait, EngineOptions::default());
        next.turn();
        let place = next.place(delivery.id);
        assert_eq!(
            place.map(|p| matches!(p, Place::Taken { unconfirmed: true, .. })),
            Some(unconfirmed),
            "{wait}"
        );
    }
}

#[test]
fn a_parked_timer_that_is_found_comes_back_when_there_is_credit() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timer = rig.timer("a", 7_000);
    let id = timer.id;
    rig.schedule(1, timer);
    rig.run(5);
    // Nobody but the store knows that it is parked.
    apply(&rig, Op::Park(Park { id, failed: 0 }), Answer::Park(MoveAnswer::Done));
    rig.engine.fetch(id);
    rig.turn();
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 1 });
    rig.run(6_900);
    assert_eq!(rig.take_deliveries().len(), 0, "the owner that has parked it may have had another clock");
    rig.run(200);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [id]);
}

#[test]
fn what_another_epoch_has_taken_stays_out_of_memory() {
    let (mut rig, id) = taken();
    let found = rig.lane.get(Target::Id(id)).now_or_never().unwrap().unwrap().map(|(record, _)| record);
    let (now, own) = (rig.now(), rig.lane.epoch());
    for (epoch, in_memory) in [(Epoch(own.0 + 1), 0), (own, 1)] {
        let place = Place::Taken { epoch, unconfirmed: false };
        rig.engine.fetched(now, id, found.clone().map(|record| (record, place)));
        assert_eq!(rig.engine.memory().0, in_memory, "{epoch:?}");
    }
}
