//! Which timers an owner may have sent, as its successors know it: claimed-until, covered, fresh,
//! attempts.

use mtimer_types::{DeadReason, Time};

use super::kit::Kit;
use super::values::{HOUR, MINUTE, NEW, SECOND, pending_at, schedule_op};
use crate::ops::{MoveAnswer, Park, SettleAnswer};
use crate::{Answer, Batch, CancelAnswer, Load, Op, Place, RescheduleAnswer, Verdict};

pub(super) async fn an_empty_batch_can_carry_one(mut kit: Kit) {
    let owner = kit.owner().await;
    owner.claim(kit.now + SECOND).await;
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + SECOND);
}

pub(super) async fn a_batch_can_carry_one(mut kit: Kit) {
    let owner = kit.owner().await;
    let batch = Batch { now: kit.now, claim: Some(kit.now), ops: vec![schedule_op(&kit.timer(kit.now))] };
    assert_eq!(owner.lane.apply(batch).await.unwrap(), [Answer::Schedule(NEW)]);
    assert_eq!(kit.owner_record().await.claimed_until, kit.now);
}

pub(super) async fn a_load_can_carry_one(mut kit: Kit) {
    let owner = kit.owner().await;
    owner.add(&kit.timer(kit.now)).await;
    let claim = Some(kit.now + 20);
    let load = Load { until: kit.now + 20, max_timers: 100, max_bytes: 1 << 20, claim };
    assert_eq!(owner.lane.load(load).await.unwrap().timers.len(), 1);
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + 20);
}

pub(super) async fn a_load_of_nothing_can_carry_one(mut kit: Kit) {
    let owner = kit.owner().await;
    let load = Load { until: kit.now, max_timers: 1, max_bytes: 1, claim: Some(kit.now) };
    owner.lane.load(load).await.unwrap();
    assert_eq!(kit.owner_record().await.claimed_until, kit.now);
    // Once more, when everything is loaded.
    let load = Load { claim: Some(kit.now + 7), ..load };
    owner.lane.load(load).await.unwrap();
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + 7);
}

pub(super) async fn they_never_go_back(mut kit: Kit) {
    let owner = kit.owner().await;
    owner.claim(kit.now + MINUTE).await;
    owner.claim(kit.now).await;
    owner.claim(Time::ZERO).await;
    let load = Load { until: kit.now, max_timers: 1, max_bytes: 1, claim: Some(kit.now + SECOND) };
    owner.lane.load(load).await.unwrap();
    owner.add(&kit.timer(kit.now)).await;
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + MINUTE);
    let next = kit.owner().await;
    next.claim(kit.now).await;
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + MINUTE, "not in a later epoch, either");
}

pub(super) async fn the_next_owner_learns_of_it(mut kit: Kit) {
    let first = kit.owner().await;
    assert_eq!(first.prior_claim, Time::ZERO);
    first.claim(kit.now + SECOND).await;
    let second = kit.owner().await;
    assert_eq!(second.prior_claim, kit.now + SECOND);
    let third = kit.owner().await;
    assert_eq!(third.prior_claim, kit.now + SECOND, "also when the second claimed nothing");
    third.claim(kit.now + MINUTE).await;
    assert_eq!(kit.owner().await.prior_claim, kit.now + MINUTE);
}

pub(super) async fn they_survive_a_restart(mut kit: Kit) {
    let first = kit.owner().await;
    first.claim(kit.now + MINUTE).await;
    drop(first);
    if kit.restart().await {
        assert_eq!(kit.owner().await.prior_claim, kit.now + MINUTE);
    }
}

pub(super) async fn an_owners_own_claim_covers_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    let (before, after) = (kit.timer(kit.now), kit.timer(kit.now + 1));
    owner.add(&before).await;
    owner.claim(kit.now + MINUTE).await;
    owner.add(&after).await;
    assert!(owner.pending().await.values().all(|t| !t.covered));
    assert_eq!(owner.cancel(before.id).await, CancelAnswer::Cancelled(before.id));
    let moved = owner.reschedule(after.id, kit.now + HOUR).await;
    assert_eq!(moved, RescheduleAnswer::Rescheduled(after.id));
}

pub(super) async fn a_successor_finds_covered_what_fires_up_to_it(mut kit: Kit) {
    let first = kit.owner().await;
    let claim = kit.now + SECOND;
    let timers = [kit.timer(Time::from_ms(1)), kit.timer(claim - 1), kit.timer(claim), kit.timer(claim + 1)];
    first.add_all(&timers).await;
    first.claim(claim).await;
    let second = kit.owner().await;
    let pending = second.pending().await;
    let covered: Vec<_> = timers.iter().map(|t| pending[&t.id].covered).collect();
    assert_eq!(covered, [true, true, true, false], "at the claim is covered, behind it is not");
    let attempts: Vec<_> = pending.values().map(|t| t.record.attempt(t.covered)).collect();
    assert_eq!(attempts.iter().sum::<u32>(), 7);
}

pub(super) async fn what_a_successor_files_below_it_is_not_covered(mut kit: Kit) {
    let first = kit.owner().await;
    first.claim(kit.now + MINUTE).await;
    let second = kit.owner().await;
    let timer = kit.timer(kit.now + SECOND);
    second.add(&timer).await;
    let loaded = &second.pending().await[&timer.id];
    assert!(!loaded.covered, "it was filed in this epoch");
    assert_eq!(loaded.record.progress.fresh, Some(second.epoch));
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
}

pub(super) async fn what_one_filed_below_it_is_covered_for_the_next(mut kit: Kit) {
    let first = kit.owner().await;
    first.claim(kit.now + MINUTE).await;
    let second = kit.owner().await;
    let timer = kit.timer(kit.now + SECOND);
    second.add(&timer).await;
    let third = kit.owner().await;
    assert!(
        third.pending().await[&timer.id].covered,
        "the second owner could send it under the first one's claim"
    );
    assert_eq!(third.cancel(timer.id).await, CancelAnswer::Died { id: timer.id, failed: 1 });
}

pub(super) async fn a_refiled_timer_is_fresh_only_below_it(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now + HOUR);
    first.add(&timer).await;
    first.claim(kit.now + MINUTE).await;
    let second = kit.owner().await;
    assert_eq!(second.reschedule(timer.id, kit.now).await, RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(second.record(timer.id).await.progress.fresh, Some(second.epoch));
    assert_eq!(second.reschedule(timer.id, kit.now + HOUR).await, RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(
        second.record(timer.id).await.progress.fresh,
        None,
        "above the claim there is nothing to mark"
    );
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
}

pub(super) async fn a_covered_timer_cannot_be_cancelled(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now);
    first.add(&timer).await;
    first.claim(kit.now).await;
    let second = kit.owner().await;
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Died { id: timer.id, failed: 1 });
    assert_eq!(second.place(timer.id).await, Some(Place::Dead), "but it is stopped");
    let letter = second.all_dead().await.remove(0);
    assert_eq!(letter.reason, DeadReason::Stopped);
    assert_eq!(letter.record.progress.failed, 1, "the covered attempt counts");
}

pub(super) async fn a_covered_timer_cannot_be_rescheduled(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now);
    first.add(&timer).await;
    first.claim(kit.now).await;
    let second = kit.owner().await;
    let before = second.see(timer.id).await;
    assert_eq!(second.reschedule(timer.id, kit.now + HOUR).await, RescheduleAnswer::TooLate(timer.id));
    assert_eq!(second.see(timer.id).await, before);
}

pub(super) async fn the_attempt_rises_by_one_after_a_takeover(mut kit: Kit) {
    let first = kit.owner().await;
    let (timer, retried) = (kit.timer(kit.now), kit.timer(kit.now));
    first.add_all(&[timer.clone(), retried.clone()]).await;
    assert_eq!(first.retry(retried.id, kit.now + 1, 1, 1).await, SettleAnswer::Done);
    first.claim(kit.now + SECOND).await;
    for _ in 0..2 {
        // A second takeover changes nothing: the epoch rises instead.
        let next = kit.owner().await;
        let pending = next.pending().await;
        let attempt = |id| pending[&id].record.attempt(pending[&id].covered);
        assert_eq!((attempt(timer.id), attempt(retried.id)), (2, 3));
    }
}

pub(super) async fn a_failed_covered_attempt_is_stored(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now);
    first.add(&timer).await;
    first.claim(kit.now + SECOND).await;
    let second = kit.owner().await;
    // Its own delivery, the second attempt, fails.
    assert_eq!(second.retry(timer.id, kit.now + 2, 1, 2).await, SettleAnswer::Done);
    let loaded = &second.pending().await[&timer.id];
    assert!(!loaded.covered, "it was filed in this epoch");
    assert_eq!(loaded.record.attempt(loaded.covered), 3);
    let third = kit.owner().await;
    let loaded = &third.pending().await[&timer.id];
    assert_eq!(loaded.record.attempt(loaded.covered), 4, "and the third attempt may have been sent");
}

pub(super) async fn a_parked_timer_is_never_covered(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now);
    first.add_parked(&timer).await;
    first.claim(kit.now + MINUTE).await;
    let second = kit.owner().await;
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
}

pub(super) async fn a_timer_back_from_the_park_is_fresh(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now);
    first.add_parked(&timer).await;
    first.claim(kit.now + MINUTE).await;
    let second = kit.owner().await;
    assert_eq!(second.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    assert!(!second.pending().await[&timer.id].covered);
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
}

pub(super) async fn parking_keeps_the_count_of_a_covered_attempt(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now);
    first.add(&timer).await;
    first.claim(kit.now).await;
    let second = kit.owner().await;
    assert_eq!(second.one(Op::Park(Park { id: timer.id, failed: 1 })).await, Answer::Park(MoveAnswer::Done));
    assert_eq!(second.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    let loaded = &second.pending().await[&timer.id];
    assert_eq!((loaded.covered, loaded.record.attempt(false)), (false, 2));
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Died { id: timer.id, failed: 1 });
}

pub(super) async fn a_late_ok_of_a_predecessor_settles_a_covered_timer(mut kit: Kit) {
    let first = kit.owner().await;
    let (sent, unsent) = (kit.timer(kit.now), kit.timer(kit.now + MINUTE));
    first.add_all(&[sent.clone(), unsent.clone()]).await;
    first.claim(kit.now).await;
    let second = kit.owner().await;
    let late = |attempt| Verdict::LateAck { attempt };
    assert_eq!(second.settle(sent.id, late(2)).await, SettleAnswer::Gone, "a second delivery was never made");
    assert_eq!(second.settle(sent.id, late(1)).await, SettleAnswer::Done);
    assert_eq!(second.settle(unsent.id, late(1)).await, SettleAnswer::Gone, "nobody can have sent it");
    assert_eq!(second.place(unsent.id).await, pending_at(kit.now + MINUTE));
}

pub(super) async fn a_late_ok_of_a_failed_attempt_settles_the_retry(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.retry(timer.id, kit.now + MINUTE, 1, 1).await;
    assert_eq!(owner.settle(timer.id, Verdict::LateAck { attempt: 2 }).await, SettleAnswer::Gone);
    assert_eq!(owner.settle(timer.id, Verdict::LateAck { attempt: 1 }).await, SettleAnswer::Done);
    assert_eq!(owner.place(timer.id).await, None);
}
