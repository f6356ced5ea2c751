//! Timers whose destination takes nothing: out of memory, and back.

use mtimer_protocol::ops::{self, RescheduleReply};
use mtimer_store::ops::Cancel;
use mtimer_store::{CancelAnswer, ListPage, Op, Page, RequestId};
use mtimer_types::{Epoch, Target};

use super::*;
use crate::engine::sweeps::Sweeps;

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
    // The client is done at once; the store does not say so for longer than anything waits before
    // it is parked.
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
fn what_comes_back_from_the_park_is_not_sent_before_a_claim_covers_it() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 0);
    let t = rig.timer("a", 0);
    rig.schedule(1, t.clone());
    rig.run(1_000);
    // A claim for another timer reaches a little ahead; a timer that comes back waits until after
    // that.
    rig.join(2, "b", 1);
    let other = rig.timer("b", 10);
    rig.schedule(2, other);
    rig.run(12);
    rig.engine.partition(P).unwrap().calls.hold_batches();
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.turn();
    rig.ms += 200;
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.turn();
    let sent = rig.take_deliveries().iter().any(|(_, d)| d.id == t.id);
    assert!(sent);
    // The next owner must know of every delivery: after it, a cancel is too late.
    let next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    let op = Op::Cancel(Cancel { target: Target::Id(t.id), sent_attempt: None, request: RequestId(1) });
    let batch = mtimer_store::Batch { now: next.now().time, claim: None, ops: vec![op] };
    let answer = next.lane.apply(batch).now_or_never().unwrap().unwrap().remove(0);
    let cancelled = answer == Answer::Cancel(CancelAnswer::Cancelled(t.id));
    assert!(!cancelled, "cancelled although it was delivered");
}

/// An engine of three partitions that have just begun, each with so many timers parked for "a". The
/// other calls that an acquisition begins with are not answered, so that every answer is to a page.
pub(super) fn parked_in_three() -> (Engine, Now) {
    let now = Now { time: Time::from_ms(START), mono_ms: 0 };
    let mut engine = Engine::new(EngineOptions { partitions: 3, ..EngineOptions::default() }, now);
    engine.handle(now, Input::Session(SessionId(1), SessionEvent::Opened { client: 1 }));
    for partition in (0..3).map(PartitionId) {
        let (epoch, prior_claim) = (Epoch(1), Time::ZERO);
        engine.handle(now, Input::Acquired { partition, epoch, prior_claim, in_flight: vec![] });
        page(
            &mut engine,
            now,
            partition,
            CallAnswer::List(ListPage::Taken(Page { rows: vec![], next: None })),
        );
        page(&mut engine, now, partition, CallAnswer::ParkedDestinations(vec![(dest("a"), 1_000)]));
        page(&mut engine, now, partition, CallAnswer::Controls(Box::default()));
        engine.partition(partition).unwrap().calls.hold_loads();
        engine.partition(partition).unwrap().trim_from(u64::MAX);
    }
    (engine, now)
}

pub(super) fn page(engine: &mut Engine, now: Now, partition: PartitionId, answer: CallAnswer) {
    engine.handle(now, Input::Answered { partition, epoch: Epoch(1), answer: Ok(answer) });
}

fn closed(engine: &mut Engine, now: Now, partition: PartitionId) {
    let answer = Err(LaneError::Closed);
    engine.handle(now, Input::Answered { partition, epoch: Epoch(1), answer });
}

fn empty_page(next: Option<u64>) -> CallAnswer {
    CallAnswer::List(ListPage::Parked(Page { rows: vec![], next }))
}

/// A flush, and the pages of parks that are asked for in it: of which partition, from where.
pub(super) fn asked_pages(engine: &mut Engine, now: Now) -> Vec<(u16, u64)> {
    let mut effects = Vec::new();
    engine.flush(now, &mut effects);
    let asked = effects.into_iter().filter_map(|effect| match effect {
        Effect::Call(partition, Call::List(Listing { of: Listed::Parked(_), cursor, .. })) => {
            Some((partition.0, cursor))
        }
        _ => None,
    });
    asked.collect()
}

#[test]
fn partitions_take_turns_when_parked_timers_come_back() {
    let (mut engine, now) = parked_in_three();
    // Sweeps ask for pages as well.
    engine.sweeps = Sweeps::new(u64::MAX);
    engine.handle(
        now,
        Input::Session(SessionId(1), SessionEvent::Register { registration: 1, dest: dest("a"), credit: 1 }),
    );
    let mut asked = Vec::new();
    for _ in 0..6 {
        for (partition, _) in asked_pages(&mut engine, now) {
            asked.push(partition);
            page(&mut engine, now, PartitionId(partition), empty_page(Some(1)));
        }
    }
    assert_eq!(asked, [0, 1, 2, 0, 1, 2]);
}

/// The pages that sweeps ask for within a second.
pub(super) fn sweep_for_a_second(engine: &mut Engine, now: &mut Now) -> Vec<(u16, u64)> {
    let mut asked = Vec::new();
    for _ in 0..1_000 {
        now.mono_ms += 1;
        now.time = now.time + 1;
        asked.append(&mut asked_pages(engine, *now));
    }
    asked
}

/// Three partitions to sweep; the first one's sweep is under way when it is given up, and the
/// second one's has begun.
fn swept_and_disowned() -> (Engine, Now) {
    let (mut engine, mut now) = parked_in_three();
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(0, 0)]);
    engine.handle(now, Input::Disown(PartitionId(0)));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(1, 0)]);
    (engine, now)
}

#[test]
fn the_page_of_a_partition_that_is_given_up_holds_up_no_other_sweep() {
    let (mut engine, mut now) = swept_and_disowned();
    page(&mut engine, now, PartitionId(0), empty_page(Some(7)));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [], "one at a time");
    page(&mut engine, now, PartitionId(1), empty_page(Some(8)));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(1, 8)]);
    page(&mut engine, now, PartitionId(1), empty_page(None));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(2, 0)]);
}

#[test]
fn the_end_of_a_partition_that_is_given_up_ends_no_other_sweep() {
    let (mut engine, mut now) = swept_and_disowned();
    page(&mut engine, now, PartitionId(1), empty_page(Some(8)));
    // Its page never comes.
    closed(&mut engine, now, PartitionId(0));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(1, 8)]);
    page(&mut engine, now, PartitionId(1), empty_page(None));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(2, 0)]);
}

#[test]
fn the_end_of_the_partition_that_is_swept_lets_the_next_begin() {
    let (mut engine, mut now) = swept_and_disowned();
    closed(&mut engine, now, PartitionId(1));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(2, 0)]);
}

#[test]
fn a_page_of_parked_timers_may_arrive_after_its_destination_was_forgotten() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timer = rig.timer("a", 0);
    rig.schedule(1, timer.clone());
    rig.run(1_000);
    assert_eq!(rig.place(timer.id), Some(Place::Parked));
    rig.answers_wait = true;
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.turn();
    // A page of parked timers is asked for. Before it arrives the client and the partition go.
    rig.session(1, SessionEvent::Closed);
    let now = rig.now();
    rig.engine.handle(now, Input::Disown(P));
    rig.turn();
    rig.answers_wait = false;
    rig.turn();
    assert_eq!(rig.ended, Some(LaneError::Closed));
    assert_eq!((rig.engine.memory().0, rig.engine.unsettled()), (0, 0));
    // Nothing was done with the page: the next owner finds the timer where it was.
    let mut next = Rig::on(rig.store.clone(), 2, rig.ms, EngineOptions::default());
    assert_eq!(next.place(timer.id), Some(Place::Parked));
    next.join(1, "a", 10);
    next.run(50);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [timer.id]);
}

#[test]
fn what_is_read_anew_while_it_returns_from_the_park_is_not_lost() {
    let mut rig = Rig::new(EngineOptions { park_after_ms: 5, ..EngineOptions::default() });
    rig.join(1, "b", 1);
    let timer = rig.timer("a", 20);
    let id = timer.id;
    rig.schedule(1, timer);
    rig.run(2);
    let target = Target::Id(id);
    let reschedule = RequestOp::Reschedule(ops::Reschedule { target, due: rig.now().time + 20, request: 1 });
    rig.ask(1, vec![reschedule.clone()]);
    rig.run(150);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Reschedule(RescheduleReply::Rescheduled(id))));
    assert_eq!(rig.place(id), Some(Place::Parked));
    // The page of parked timers and the answer to a repeat come together.
    rig.answers_wait = true;
    rig.session(1, SessionEvent::Register { registration: 2, dest: dest("a"), credit: 1 });
    rig.ask(1, vec![reschedule]);
    rig.turn();
    rig.answers_wait = false;
    rig.run(150);
    assert_eq!(rig.take_deliveries().len(), 1, "it is {:?}", rig.place(id));
}
