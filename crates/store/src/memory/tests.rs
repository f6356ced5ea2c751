//! Lanes, owners and faults of the in-memory store. Nothing here needs a runtime: an answer that is
//! ready is ready at the first poll.

use futures_util::FutureExt;
use mtimer_types::{DeadReason, Destination, Ended, KeyPolicy, Mode, Nonce, Target, Time, Timer, TimerId};

use super::*;
use crate::call::{InFlight, Load};
use crate::census::Census;
use crate::error::StoreError;
use crate::ops::{Answer, Batch, Cancel, Op, Park, Schedule, ScheduleAnswer, SettleAnswer, Verdict};
use crate::refusal::Refusal;
use crate::remembered::RequestId;
use crate::table::Table;

const P: PartitionId = PartitionId(0);

fn timer(n: u64, due: u64) -> Timer {
    Timer {
        payload: vec![n as u8].into(),
        ..Timer::new(
            TimerId::new(Time::from_ms(due), Time::ZERO, P, n),
            Destination::new("g", "a").unwrap(),
            Time::from_ms(due),
        )
    }
}

fn batch(ops: Vec<Op>) -> Batch {
    Batch { now: Time::from_ms(50_000), claim: None, ops }
}

fn schedule(n: u64, due: u64) -> Batch {
    batch(vec![Op::Schedule(Schedule::new(Arc::new(timer(n, due)), KeyPolicy::Create))])
}

fn scheduled(new: bool) -> Vec<Answer> {
    vec![Answer::Schedule(ScheduleAnswer::Scheduled { new, replaced: None })]
}

fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the answer is ready")
}

fn acquire(store: &MemoryStore, nonce: u64) -> Acquired {
    let owner = now(store.owner(P)).unwrap();
    let (expected, version) = (owner.epoch, owner.version + 1);
    now(store.acquire(Acquire {
        floor: Epoch(0),
        partition: P,
        expected,
        nonce: Nonce(nonce),
        term: owner.term,
        version,
    }))
    .map_err(|e| e.to_string())
    .unwrap()
}

fn load(until: u64, max_timers: usize) -> Load {
    Load { until: Time::from_ms(until), max_timers, max_bytes: usize::MAX, claim: None }
}

#[test]
fn acquisition_needs_the_expected_epoch_and_a_newer_assignment() {
    let store = MemoryStore::new(1);
    let first = acquire(&store, 1);
    let try_it = |expected: Epoch, nonce, version| {
        let acquire =
            Acquire { floor: Epoch(0), partition: P, expected, nonce: Nonce(nonce), term: Term(0), version };
        now(store.acquire(acquire)).map(|acquired| acquired.epoch)
    };
    assert!(matches!(try_it(Epoch(9), 2, 5), Err(AcquireError::Epoch { .. })));
    assert!(matches!(try_it(first.epoch, 2, 1), Err(AcquireError::Assignment { .. })));
    assert_eq!(try_it(Epoch(9), 1, 1), Ok(first.epoch), "its own nonce: the answer had been lost");
    store.faults().set_clock(Time::from_ms(1_000));
    assert_eq!(try_it(first.epoch, 2, 2), Ok(Epoch(1_000)));
    assert_eq!(try_it(Epoch(1_000), 3, 3), Ok(Epoch(1_001)));
}

#[test]
fn a_fenced_lane_changes_nothing() {
    let store = MemoryStore::new(1);
    let old = acquire(&store, 1).lane;
    let new = acquire(&store, 2).lane;
    let fenced = now(old.apply(schedule(1, 60_000)));
    let (stored, ours) = (new.epoch(), old.epoch());
    assert_eq!(fenced, Err(LaneError::Fenced { partition: P, stored, ours }));
    assert!(matches!(&*old.health().borrow(), Health::Ended(LaneError::Fenced { .. })));
    assert_eq!(now(new.census()), Ok(Census::default()));
}

#[test]
fn held_answers_come_in_order() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    store.faults().hold(P);
    let (mut first, mut second) = (lane.apply(schedule(1, 60_000)), lane.census());
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    store.faults().heal(P);
    assert_eq!(now(second).unwrap().pending, 1);
    assert_eq!(now(first), Ok(scheduled(true)));
}

#[test]
fn calls_wait_while_the_store_is_down() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    store.faults().down(P, "no route");
    assert_eq!(*lane.health().borrow(), Health::Down("no route".into()));
    assert_eq!(now(store.owner(P)), Err(StoreError::Unavailable("no route".into())));
    let mut answer = lane.apply(schedule(1, 60_000));
    assert!((&mut answer).now_or_never().is_none());
    store.faults().heal(P);
    assert_eq!(*lane.health().borrow(), Health::Up);
    assert_eq!(now(answer), Ok(scheduled(true)));
}

#[test]
fn a_batch_whose_answer_was_lost_is_applied_once() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    store.faults().cut(P);
    let mut answer = lane.apply(schedule(1, 60_000));
    assert!((&mut answer).now_or_never().is_none());
    assert!(matches!(*lane.health().borrow(), Health::Down(_)));
    store.faults().heal(P);
    assert_eq!(now(answer), Ok(scheduled(true)));
    assert_eq!(now(lane.census()).unwrap().pending, 1);
}

#[test]
fn an_acquisition_whose_answer_was_lost_is_repeated_with_its_nonce_and_calls_without_answers_are_counted() {
    let store = MemoryStore::new(1);
    store.faults().lose_acquisition(P);
    let ask = |nonce| Acquire {
        partition: P,
        expected: Epoch(0),
        floor: Epoch(0),
        nonce: Nonce(nonce),
        term: Term(0),
        version: 1,
    };
    let lost = now(store.acquire(ask(1))).err();
    assert!(matches!(lost, Some(AcquireError::Store(StoreError::Unavailable(_)))), "{lost:?}");
    assert!(matches!(now(store.acquire(ask(2))).err(), Some(AcquireError::Epoch { .. })));
    let acquired = now(store.acquire(ask(1))).unwrap();
    assert_eq!((acquired.epoch, store.faults().met()), (Epoch(1), 1));
    now(acquired.lane.census()).unwrap();
    assert_eq!(store.faults().met(), 1);
    store.faults().down(P, "away");
    let _unanswered = acquired.lane.census();
    assert!(now(store.owner(P)).is_err());
    assert_eq!(store.faults().met(), 3);
}

#[test]
fn a_lost_answer_and_a_second_owner_end_the_lane() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    store.faults().cut(P);
    let answer = lane.apply(schedule(1, 60_000));
    store.faults().fence(P);
    store.faults().heal(P);
    assert!(matches!(now(answer), Err(LaneError::Fenced { .. })));
}

#[test]
fn a_rolled_back_partition_ends_its_lane() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    store.faults().save(P);
    now(lane.apply(schedule(1, 60_000))).unwrap();
    store.faults().roll_back(P);
    assert_eq!(now(lane.apply(schedule(2, 60_000))), Err(LaneError::RolledBack(P)));
    let lane = acquire(&store, 2).lane;
    assert_eq!(now(lane.census()).unwrap().pending, 0);
}

#[test]
fn a_full_store_still_lets_timers_leave() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    now(lane.apply(schedule(1, 60_000))).unwrap();
    store.faults().full(P, true);
    let ack = Op::settle(timer(1, 60_000).id, Verdict::Ack);
    let ops = vec![schedule(2, 60_000).ops.remove(0), ack];
    assert_eq!(
        now(lane.apply(batch(ops))),
        Ok(vec![Answer::Refused(Refusal::OutOfMemory), Answer::Settle(SettleAnswer::Done)])
    );
}

#[test]
fn what_was_stored_survives_a_restart_and_claims_cover_it() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    now(lane.apply(schedule(1, 60_000))).unwrap();
    let claimed = Load { claim: Some(Time::from_ms(60_000)), ..load(60_000, 10) };
    assert!(!now(lane.load(claimed)).unwrap().timers[0].covered);
    drop(lane);
    let again = acquire(&store, 2);
    assert_eq!(again.prior_claim, Time::from_ms(60_000));
    assert!(now(again.lane.load(load(60_000, 10))).unwrap().timers[0].covered);
    let flight = InFlight { id: timer(1, 60_000).id, attempt: 1, session: 4, until: Time::from_ms(9) };
    now(again.lane.release(vec![flight.clone()])).unwrap();
    assert_eq!(now(again.lane.census()), Err(LaneError::Closed));
    let third = acquire(&store, 3);
    assert_eq!((third.prior_claim, third.in_flight), (Time::from_ms(60_000), vec![flight]));
}

#[test]
fn one_millisecond_can_hold_more_than_one_load_returns() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    for n in 10..20 {
        now(lane.apply(schedule(n, 60_000))).unwrap();
    }
    let mut seen: Vec<TimerId> = Vec::new();
    let mut step = |lane: &Arc<dyn Lane>| {
        let loaded = now(lane.load(load(70_000, 4))).unwrap();
        seen.extend(loaded.timers.iter().map(|t| t.record.timer.id));
        (loaded.timers.len(), loaded.horizon)
    };
    assert_eq!(step(&lane), (4, Time::from_ms(59_999)));
    now(lane.apply(schedule(1, 60_000))).unwrap();
    assert_eq!(step(&lane), (4, Time::from_ms(59_999)));
    assert_eq!(step(&lane), (3, Time::from_ms(70_000)));
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 11, "also the one that was filed behind the cursor");
    now(lane.unload(Time::from_ms(59_000))).unwrap();
    assert_eq!(now(lane.load(load(70_000, 100))).unwrap().timers.len(), 11);
}

#[test]
fn listings_go_page_by_page() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    for n in 0..5 {
        let id = timer(n, 60_000).id;
        now(lane.apply(schedule(n, 60_000))).unwrap();
        now(lane.apply(batch(vec![Op::Park(Park { id, failed: 0 })]))).unwrap();
    }
    let dest = timer(0, 1).dest;
    assert_eq!(now(lane.parked_destinations()), Ok(vec![(dest.clone(), 5)]));
    let (mut cursor, mut seen) = (Some(0), Vec::new());
    while let Some(at) = cursor {
        let page = now(lane.parked(dest.clone(), at, 2)).unwrap();
        seen.extend(page.rows.iter().map(|r| r.timer.id.random()));
        cursor = page.next;
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn timers_in_every_place_are_no_residue() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    let apply = |op| _ = now(lane.apply(batch(vec![op]))).unwrap();
    for n in 0..9 {
        let timer = Timer { mode: Mode::AtMostOnce, ..timer(n, 60_000) };
        let id = timer.id;
        apply(Op::Schedule(Schedule::new(Arc::new(timer), KeyPolicy::Create)));
        match n {
            0 => {}
            1 | 2 => apply(Op::Park(Park { id, failed: 0 })),
            3 | 4 => apply(Op::settle(
                id,
                Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() },
            )),
            _ => apply(Op::take(id, 0)),
        }
        if n > 6 {
            apply(Op::settle(id, Verdict::Unconfirmed));
        }
    }
    let census = now(lane.census()).unwrap();
    assert_eq!((census.pending, census.parked, census.taken, census.dead), (1, 2, 4, 2));
    assert_eq!(census.residue, 0);
}

#[test]
fn a_timer_that_is_changed_where_it_is_keeps_its_place_in_the_listing() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    for n in 1..=2 {
        now(lane.apply(schedule(n, 60_000))).unwrap();
        now(lane.apply(batch(vec![Op::Park(Park { id: timer(n, 60_000).id, failed: 0 })]))).unwrap();
    }
    // The first is stopped while the owner takes it for being under way.
    let (target, request) = (Target::Id(timer(1, 60_000).id), RequestId(1));
    now(lane.apply(batch(vec![Op::Cancel(Cancel { target, sent_attempt: Some(1), request })]))).unwrap();
    let rows = now(lane.parked(timer(1, 1).dest, 0, 10)).unwrap().rows;
    let listed: Vec<_> = rows.iter().map(|r| (r.timer.id.random(), r.progress.stopped)).collect();
    assert_eq!(listed, [(1, true), (2, false)]);
}

#[test]
fn an_outcome_is_remembered_from_when_it_was_last_told() {
    let mut table = MemoryTable::default();
    let mut set = |n, ms| {
        let Ok(()) = table.set_ended(timer(n, 1).id, Ended::Cancelled, Time::from_ms(ms));
        [1, 2].map(|n| {
            let Ok(ended) = table.ended(timer(n, 1).id, Time::from_ms(ms));
            ended.is_some()
        })
    };
    assert_eq!(set(1, 1_000), [true, false]);
    assert_eq!(set(1, 21_000), [true, false]);
    // The outcome that was told first is forgotten by now.
    assert_eq!(set(2, 32_000), [true, true]);
}

#[test]
fn a_broken_lane_ends_at_once() {
    let store = MemoryStore::new(1);
    let lane = acquire(&store, 1).lane;
    store.faults().break_lanes(P, "broken by a test");
    let broken = LaneError::Broken("broken by a test".into());
    assert_eq!(*lane.health().borrow(), Health::Ended(broken.clone()));
    assert_eq!(now(lane.census()), Err(broken));
}

#[test]
fn a_lane_from_before_a_rollback_is_told_what_has_happened() {
    for (acquired_again, is_fenced) in [(false, false), (true, true)] {
        let store = MemoryStore::new(1);
        store.faults().save(P);
        let lane = acquire(&store, 1).lane;
        store.faults().roll_back(P);
        if acquired_again {
            acquire(&store, 2);
        }
        let error = now(lane.census()).unwrap_err();
        assert_eq!(matches!(error, LaneError::Fenced { .. }), is_fenced, "{error}");
    }
}

#[test]
fn a_store_has_the_clock_that_a_test_gives_it_and_says_who_owns_nothing_while_it_is_cut() {
    let store = MemoryStore::new(1);
    assert_eq!(store.clocks().len(), 0);
    store.faults().set_clock(Time::from_ms(1_000));
    let shown: Vec<_> = store.clocks().into_iter().map(|clock| now(clock.reading)).collect();
    assert_eq!(shown, [Ok(1_000_000)]);
    store.faults().cut(P);
    assert!(now(store.owner(P)).is_err());
}
