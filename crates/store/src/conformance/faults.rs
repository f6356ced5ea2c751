//! Lost answers, a store that is away, a store that is full. A test whose fault the site cannot
//! provoke says so and passes.

use mtimer_types::{Ended, Key, KeyPolicy, Target, Time, Timer};

use super::harness::Fault;
use super::kit::Kit;
use super::owner::Owner;
use super::pair::{Pair, schedule_with};
use super::properties::{assert_all_occur, is_named};
use super::values::{DAY, HOUR, MINUTE, NEW, SECOND, dead_verdict, pending_at, schedule_op, unique};
use crate::ops::{
    Cancel, MoveAnswer, Park, Purge, PurgeAnswer, Replay, ReplayAnswer, Reschedule, SettleAnswer, Trim,
    Unpark,
};
use crate::{
    Answer, Batch, CancelAnswer, Health, Load, Op, Place, Refusal, RequestId, RescheduleAnswer, Retained,
    ScheduleAnswer, Verdict,
};

/// One of each operation, on timers that [`prepare`] has put where the operation changes something.
fn operations(kit: &Kit, timers: &[Timer], key: &Key) -> Vec<Op> {
    let id = |n: usize| timers[n].id;
    let request = || RequestId(unique());
    let settle = |n, verdict| Op::settle(id(n), verdict);
    let retry = Verdict::Retry { fire: kit.now + HOUR, tier: 2, failed: 1, error: "x".into() };
    let is_begun = false;
    let ops = vec![
        schedule_op(&kit.timer(kit.now)),
        schedule_op(&kit.timer(kit.now + 30 * DAY)),
        schedule_with(&kit.keyed(kit.now + DAY, key), KeyPolicy::Replace),
        Op::Cancel(Cancel { target: Target::Id(id(1)), sent_attempt: None, request: request() }),
        Op::Cancel(Cancel {
            target: Target::Id(kit.timer(kit.now).id),
            sent_attempt: None,
            request: request(),
        }),
        Op::Cancel(Cancel { target: Target::Id(id(2)), sent_attempt: Some(1), request: request() }),
        Op::Reschedule(Reschedule {
            target: Target::Id(id(3)),
            due: kit.now + SECOND,
            is_begun,
            request: request(),
        }),
        Op::take(id(4), 0),
        settle(4, Verdict::Unconfirmed),
        Op::Purge(Purge { id: id(4) }),
        settle(5, retry),
        settle(6, dead_verdict(2)),
        Op::Replay(Replay { id: id(6), fire: kit.now }),
        settle(7, Verdict::Expired),
        Op::Park(Park { id: id(8), failed: 0 }),
        Op::Unpark(Unpark { id: id(8), fire: kit.now + MINUTE }),
        settle(9, Verdict::Ack),
        settle(3, dead_verdict(1)),
        Op::Trim(Trim { of: Retained::Dead, before: Time::MAX, keep: 0, limit: 100 }),
        Op::Trim(Trim { of: Retained::Unconfirmed, before: Time::MAX, keep: 0, limit: 100 }),
    ];
    assert_all_occur(&ops);
    ops
}

async fn prepare(pair: &mut Pair) -> Vec<Op> {
    let kit = &pair.kit;
    let key = kit.key("faulty-");
    let timers: Vec<_> = (0..10)
        .map(|n| match n {
            0 => kit.keyed(kit.now + MINUTE, &key),
            4 => kit.amo(kit.now + MINUTE),
            _ => kit.timer(kit.now + n * n * n * MINUTE),
        })
        .collect();
    let ops = operations(kit, &timers, &key);
    pair.apply(timers.iter().map(schedule_op).collect()).await.unwrap();
    ops
}

/// Applies each operation with the fault upon it, compares its answer, then everything.
async fn each_with(kit: Kit, fault: impl Fn(&Kit) -> Fault) {
    let mut pair = Pair::new(kit).await;
    for op in prepare(&mut pair).await {
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
    let ops = prepare(&mut pair).await;
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
    let ops = prepare(&mut pair).await;
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

/// A partition with a timer in each place, and then no space for more.
async fn full(kit: &mut Kit) -> Option<(Owner, Vec<Timer>)> {
    let owner = kit.owner().await;
    let timers: Vec<_> =
        (0..8).map(|n| if n == 2 { kit.amo(kit.now) } else { kit.timer(kit.now + n * MINUTE) }).collect();
    owner.add_all(&timers).await;
    assert_eq!(owner.dead_letter(timers[0].id).await, SettleAnswer::Done);
    assert_eq!(owner.park(timers[1].id).await, MoveAnswer::Done);
    kit.fault(Fault::OutOfMemory(true)).await.then_some((owner, timers))
}

pub(super) async fn a_full_store_refuses_what_adds(mut kit: Kit) {
    let Some((owner, timers)) = full(&mut kit).await else { return };
    let before = owner.state().await;
    let target = Target::Id(timers[3].id);
    let ops = vec![
        schedule_op(&kit.timer(kit.now)),
        Op::Reschedule(Reschedule {
            target,
            due: kit.now + DAY,
            is_begun: false,
            request: RequestId(unique()),
        }),
        Op::Replay(Replay { id: timers[0].id, fire: kit.now }),
    ];
    for (name, is) in Op::ALL {
        assert_eq!(is.adds, ops.iter().any(|op| is_named(op, name)), "{name} adds, and is in the list");
    }
    let answers = owner.apply(ops).await;
    assert!(answers.len() == 3 && answers.iter().all(is_full), "{answers:?}");
    assert_eq!(owner.state().await, before, "nothing changed");
    kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_full_store_does_everything_else(mut kit: Kit) {
    let Some((owner, timers)) = full(&mut kit).await else { return };
    let id = |n: usize| timers[n].id;
    owner.claim(kit.now + SECOND).await;
    assert_eq!(owner.load(kit.now + HOUR).await.len(), 6);
    assert_eq!(owner.take(id(2)).await, MoveAnswer::Done);
    assert_eq!(owner.ack(id(2)).await, SettleAnswer::Done);
    assert_eq!(owner.retry(id(3), kit.now + HOUR, 1, 1).await, SettleAnswer::Done);
    assert_eq!(owner.dead_letter(id(4)).await, SettleAnswer::Done);
    assert_eq!(owner.cancel(id(5)).await, CancelAnswer::Cancelled(id(5)));
    assert_eq!(owner.park(id(6)).await, MoveAnswer::Done);
    assert_eq!(owner.unpark(id(1), kit.now).await, MoveAnswer::Done);
    assert_eq!(owner.settle(id(7), Verdict::Expired).await, SettleAnswer::Done);
    assert_eq!(owner.purge(id(0)).await, PurgeAnswer::Done);
    let next = kit.owner().await;
    assert_eq!(next.prior_claim, kit.now + SECOND, "a partition can change hands, too");
    assert_eq!(next.place(id(4)).await, Some(Place::Dead));
    kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_full_store_refuses_a_batch_in_part_only(mut kit: Kit) {
    let Some((owner, timers)) = full(&mut kit).await else { return };
    let new = kit.timer(kit.now);
    let ops = vec![
        Op::settle(timers[3].id, Verdict::Ack),
        schedule_op(&new),
        Op::settle(timers[4].id, Verdict::Ack),
    ];
    let batch = Batch { now: kit.now, claim: Some(kit.now + MINUTE), ops };
    let answers = owner.lane.apply(batch).await.unwrap();
    assert!(
        matches!(&answers[..], [Answer::Settle(SettleAnswer::Done), full, Answer::Settle(SettleAnswer::Done)] if is_full(full)),
        "{answers:?}"
    );
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + MINUTE);
    assert_eq!(owner.place(new.id).await, None);
    kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_refusal_by_a_full_store_is_not_final(mut kit: Kit) {
    let Some((owner, timers)) = full(&mut kit).await else { return };
    let new = kit.timer(kit.now);
    let request = RequestId(unique());
    let target = || Target::Id(timers[3].id);
    let due = kit.now + DAY;
    let reschedule = || Op::Reschedule(Reschedule { target: target(), due, is_begun: false, request });
    let answers = owner.apply(vec![schedule_op(&new), reschedule()]).await;
    assert!(answers.len() == 2 && answers.iter().all(is_full), "{answers:?}");
    kit.fault(Fault::OutOfMemory(false)).await;
    let moved = Answer::Reschedule(RescheduleAnswer::Rescheduled(timers[3].id));
    assert_eq!(owner.apply(vec![schedule_op(&new), reschedule()]).await, [Answer::Schedule(NEW), moved]);
    assert_eq!(owner.replay(timers[0].id, kit.now).await, ReplayAnswer::Done);
    assert_eq!(owner.place(timers[3].id).await, pending_at(due));
}

pub(super) async fn outcomes_are_forgotten_after_the_horizon(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let (cancelled, expired, unseen) = (kit.timer(kit.now), kit.timer(kit.now), kit.timer(kit.now));
    owner.add_all(&[cancelled.clone(), expired.clone()]).await;
    assert_eq!(owner.cancel(cancelled.id).await, CancelAnswer::Cancelled(cancelled.id));
    assert_eq!(owner.settle(expired.id, Verdict::Expired).await, SettleAnswer::Done);
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
