//! Lost answers, a store that is away, a store that is full. A test whose fault the site cannot
//! provoke says so and passes.

use mtimer_types::{Ended, Time, Timer};

use super::harness::Fault;
use super::kit::Kit;
use super::pair::Pair;
use super::properties::{CANCEL_NOTHING, Trial, adds, trials};
use super::values::{DAY, HOUR, MINUTE, NEW, SECOND, schedule_op};
use crate::ops::SettleAnswer;
use crate::{Answer, Batch, CancelAnswer, Health, Load, Op, Refusal, ScheduleAnswer, Verdict};

/// Applies each operation with the fault upon it, compares its answer, then everything.
async fn each_with(kit: Kit, fault: impl Fn(&Kit) -> Fault) {
    let mut pair = Pair::new(kit).await;
    for Trial { before, op, .. } in trials(&pair.kit) {
        pair.apply(before).await.unwrap();
        let fault = fault(&pair.kit);
        if !pair.kit.fault(fault).await {
            return;
        }
        let called = pair.call(None, vec![op]);
        pair.kit.fault(Fault::ComeUp).await;
        pair.settle(called).await.unwrap();
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn each_operation_with_its_answer_lost(kit: Kit) {
    each_with(kit, |kit| Fault::LoseNextAnswer(kit.partition)).await;
}

pub(super) async fn each_operation_with_its_call_lost(kit: Kit) {
    each_with(kit, |kit| Fault::LoseNextCall(kit.partition)).await;
}

async fn batches_with(kit: Kit, fault: impl Fn(&Kit) -> Fault) {
    let mut pair = Pair::new(kit).await;
    let ops: Vec<Op> =
        trials(&pair.kit).into_iter().flat_map(|t| t.before.into_iter().chain([t.op])).collect();
    let fault = fault(&pair.kit);
    if !pair.kit.fault(fault).await {
        return;
    }
    // Many batches on their way, of different sizes, when the fault strikes.
    let mut calls = Vec::new();
    for chunk in ops.chunks(3) {
        calls.push(pair.call(Some(pair.kit.now), chunk.to_vec()));
        let more = (0..40).map(|n| schedule_op(&pair.kit.timer(pair.kit.now + n * SECOND))).collect();
        calls.push(pair.call(None, more));
    }
    pair.kit.fault(Fault::ComeUp).await;
    for call in calls {
        pair.settle(call).await.unwrap();
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn many_batches_with_an_answer_lost(kit: Kit) {
    batches_with(kit, |kit| Fault::LoseNextAnswer(kit.partition)).await;
}

pub(super) async fn many_batches_with_a_call_lost(kit: Kit) {
    batches_with(kit, |kit| Fault::LoseNextCall(kit.partition)).await;
}

pub(super) async fn a_load_with_its_answer_lost(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..300).map(|n| pair.kit.timer(now + n * MINUTE)).collect();
    pair.apply(timers.iter().map(schedule_op).collect()).await.unwrap();
    for round in 1..6 {
        // A store may have returned more than was asked for: only a load right after an unload can
        // be counted.
        pair.unload(Time::ZERO).await.unwrap();
        let fault = Fault::LoseNextAnswer(pair.kit.partition);
        if !pair.kit.fault(fault).await {
            return;
        }
        let until = now + round * HOUR;
        let claim = Some(now + round * SECOND);
        let loading = pair.owner.lane.load(Load { until, max_timers: 40, max_bytes: 1 << 20, claim });
        pair.kit.fault(Fault::ComeUp).await;
        let loaded = loading.await.unwrap();
        pair.model.claim(claim);
        // The pair has not seen this load: it loads once more, from the start.
        assert!(loaded.horizon < until || loaded.timers.len() as u64 >= 60);
        pair.unload(Time::ZERO).await.unwrap();
        let load = Load { until, max_timers: 1_000, max_bytes: 1 << 20, claim: None };
        pair.load(load, vec![]).await.unwrap();
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn a_release_with_its_answer_lost(mut kit: Kit) {
    let owner = kit.owner().await;
    owner.add(&kit.timer(kit.now)).await;
    if !kit.fault(Fault::LoseNextAnswer(kit.partition)).await {
        return;
    }
    let word = crate::InFlight { id: kit.timer(kit.now).id, attempt: 3, session: 9, until: kit.now + MINUTE };
    let released = owner.lane.release(vec![word.clone()]);
    kit.fault(Fault::ComeUp).await;
    released.await.unwrap();
    assert_eq!(kit.owner().await.in_flight, [word]);
}

pub(super) async fn calls_wait_while_the_store_is_away(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let mut ops = Vec::new();
    for Trial { before, op, .. } in trials(&pair.kit) {
        pair.apply(before).await.unwrap();
        ops.push(op);
    }
    if !pair.kit.fault(Fault::GoDown).await {
        return;
    }
    let calls: Vec<_> = ops.into_iter().map(|op| pair.call(None, vec![op])).collect();
    let mut health = pair.owner.lane.health();
    assert!(health.wait_for(|h| matches!(h, Health::Down(_))).await.is_ok(), "the lane says that it waits");
    pair.kit.fault(Fault::ComeUp).await;
    for call in calls {
        pair.settle(call).await.unwrap();
    }
    assert!(health.wait_for(|h| *h == Health::Up).await.is_ok(), "and that it does not any more");
    pair.check_all().await.unwrap();
}

pub(super) async fn a_lane_survives_many_outages(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    for round in 0..5 {
        let now = pair.kit.now;
        let before = pair.call(None, vec![schedule_op(&pair.kit.timer(now + round))]);
        if !pair.kit.fault(Fault::GoDown).await {
            return;
        }
        let during = pair.call(Some(now + round), vec![schedule_op(&pair.kit.timer(now + HOUR))]);
        pair.kit.fault(Fault::ComeUp).await;
        let after = pair.call(None, vec![schedule_op(&pair.kit.timer(now + DAY))]);
        for call in [before, during, after] {
            pair.settle(call).await.unwrap();
        }
    }
    pair.check_all().await.unwrap();
}

/// Whether an operation was refused because the store is full.
const fn is_full(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(Refusal::OutOfMemory | Refusal::DiskFull { .. }))
}

/// A partition with the timers of all trials, and then no space for more.
async fn full(kit: Kit) -> Option<(Pair, Vec<Trial>)> {
    let mut pair = Pair::new(kit).await;
    let trials = trials(&pair.kit);
    for trial in &trials {
        pair.apply(trial.before.clone()).await.unwrap();
    }
    pair.kit.fault(Fault::OutOfMemory(true)).await.then_some((pair, trials))
}

pub(super) async fn a_full_store_refuses_what_adds(kit: Kit) {
    let Some((mut pair, trials)) = full(kit).await else { return };
    let before = pair.owner.state().await;
    for Trial { name, op, .. } in trials.into_iter().filter(|trial| adds(&trial.op)) {
        assert!(op.adds(), "{name} adds");
        let answer = pair.owner.one(op).await;
        assert!(is_full(&answer), "{name}: {answer:?}");
    }
    assert_eq!(pair.owner.state().await, before, "nothing changed");
    pair.kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_full_store_does_everything_else(kit: Kit) {
    let Some((mut pair, trials)) = full(kit).await else { return };
    let claim = pair.kit.now + SECOND;
    let called = pair.call(Some(claim), vec![]);
    pair.settle(called).await.unwrap();
    let load = Load { until: pair.kit.now + HOUR, max_timers: 1_000, max_bytes: 1 << 20, claim: None };
    pair.load(load, vec![]).await.unwrap();
    // Trims, which come first, would take the timers of others along.
    for Trial { name, op, .. } in trials.into_iter().rev().filter(|trial| !adds(&trial.op)) {
        assert!(!op.adds(), "{name} does not add");
        // That a timer was cancelled which is not there would have to be remembered.
        if name != CANCEL_NOTHING {
            pair.apply(vec![op]).await.unwrap();
        }
    }
    pair.check_all().await.unwrap();
    pair.takeover(None).await.unwrap();
    assert_eq!(pair.owner.prior_claim, claim, "a partition can change hands, too");
    pair.kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_full_store_refuses_a_batch_in_part_only(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = [kit.timer(kit.now), kit.timer(kit.now)];
    owner.add_all(&timers).await;
    if !kit.fault(Fault::OutOfMemory(true)).await {
        return;
    }
    let new = kit.timer(kit.now);
    let ops = vec![
        Op::settle(timers[0].id, Verdict::Ack),
        schedule_op(&new),
        Op::settle(timers[1].id, Verdict::Ack),
    ];
    let batch = Batch { now: kit.now, claim: Some(kit.now + MINUTE), ops };
    let answers = owner.lane.apply(batch).await.unwrap();
    let settled = Answer::Settle(SettleAnswer::Done);
    assert!(answers[0] == settled && is_full(&answers[1]) && answers[2] == settled, "{answers:?}");
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + MINUTE);
    assert_eq!(owner.place(new.id).await, None);
    kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_refusal_by_a_full_store_is_not_final(kit: Kit) {
    let Some((mut pair, trials)) = full(kit).await else { return };
    let ops: Vec<Op> = trials.into_iter().map(|trial| trial.op).filter(adds).collect();
    let answers = pair.owner.apply(ops.clone()).await;
    assert!(answers.iter().all(is_full), "{answers:?}");
    pair.kit.fault(Fault::OutOfMemory(false)).await;
    pair.apply(ops).await.unwrap();
    pair.check_all().await.unwrap();
}

pub(super) async fn outcomes_are_forgotten_after_the_horizon(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let [cancelled, unseen] = [(); 2].map(|()| kit.timer(kit.now));
    let expired = Timer { deadline: Some(kit.now), ..kit.timer(kit.now) };
    owner.add_all(&[cancelled.clone(), expired.clone()]).await;
    assert_eq!(owner.cancel(cancelled.id).await, CancelAnswer::Cancelled(cancelled.id));
    assert_eq!(owner.settle(expired.id, Verdict::Expired { next: kit.now + 1 }).await, SettleAnswer::Done);
    assert_eq!(owner.cancel(unseen.id).await, CancelAnswer::NotFound);
    assert_eq!(owner.schedule(&expired).await, ScheduleAnswer::Ended(Ended::Expired));
    if !kit.fault(Fault::ForgetEnded).await {
        return;
    }
    owner.now = kit.now + MINUTE;
    for timer in [&cancelled, &expired, &unseen] {
        assert_eq!(owner.schedule(timer).await, NEW);
    }
}
