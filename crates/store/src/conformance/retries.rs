//! Retry tiers: a failed timer waits under its tier and comes back with its count.

use mtimer_types::{
    Attempt, AttemptEnd, DeadReason, Epoch, FailedAttempt, LateCause, Postponed, Time, Timer,
};

use super::kit::Kit;
use super::values::{DAY, HOUR, MINUTE, SECOND, pending_at};
use crate::ops::{MoveAnswer, Park, ReplayAnswer, Settle, SettleAnswer, Unpark};
use crate::{Answer, Op, Place, Verdict};

fn retry(fire: Time, tier: u8, failed: u32, error: &str) -> Verdict {
    Verdict::Retry { fire, tier, failed, error: error.into() }
}

pub(super) async fn a_retry_waits_in_its_tier(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let fire = kit.now + 5 * SECOND;
    assert_eq!(owner.settle(timer.id, retry(fire, 2, 1, "busy")).await, SettleAnswer::Done);
    let (record, place) = owner.see(timer.id).await.unwrap();
    assert_eq!(place, Place::Pending { fire, tier: 2 });
    assert_eq!((record.progress.failed, record.attempt(false)), (1, 2));
    assert_eq!(record.progress.last_error.as_deref(), Some("busy"));
    assert_eq!(record.timer.due, kit.now, "its due time stays what the client asked for");
    let census = owner.census().await;
    assert_eq!((census.pending, census.retrying), (0, 1));
}

pub(super) async fn it_is_loaded_in_time(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let fire = kit.now + MINUTE;
    owner.settle(timer.id, retry(fire, 1, 1, "busy")).await;
    owner.lane.unload(Time::ZERO).await.unwrap();
    let loaded = owner.load(fire).await;
    assert_eq!(loaded.len(), 1);
    assert_eq!((loaded[0].fire, loaded[0].tier, loaded[0].record.progress.failed), (fire, 1, 1));
}

pub(super) async fn through_all_tiers(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    for n in 1..=32u8 {
        let fire = kit.now + u64::from(n) * 17 * MINUTE;
        let answer = owner.settle(timer.id, retry(fire, n, n.into(), &format!("error {n}"))).await;
        assert_eq!(answer, SettleAnswer::Done);
        let pending = owner.pending().await;
        assert_eq!(pending.len(), 1);
        let loaded = &pending[&timer.id];
        assert_eq!((loaded.fire, loaded.tier, loaded.record.attempt(false)), (fire, n, u32::from(n) + 1));
    }
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.census().await, Default::default());
}

/// A verdict that is told of an attempt.
fn told(timer: &Timer, verdict: Verdict, attempt: &FailedAttempt) -> Op {
    Settle { id: timer.id, verdict, timer: None, attempt: Some(attempt.clone().into()) }.into()
}

fn attempt(number: u32, error: &str) -> FailedAttempt {
    let (epoch, client, late_by) = (Epoch(u64::from(number)), 7, Some(LateCause::Credit));
    FailedAttempt {
        attempt: Attempt { number, epoch, client, sent: Some(Time::from_ms(1_000)), late_ms: 20, late_by },
        ended: Time::from_ms(2_000),
        end: AttemptEnd::TimedOut,
        error: error.into(),
    }
}

pub(super) async fn a_story_grows_with_each_attempt(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = Timer { payload: b"payload".as_slice().into(), ..kit.timer(kit.now) };
    owner.add(&timer).await;
    let mut expected: Vec<FailedAttempt> = Vec::new();
    for number in 1..=12 {
        // One in the middle is not told of.
        let attempt = attempt(number, &"ä".repeat(number as usize));
        let verdict = retry(kit.now + MINUTE, 1, number, "busy");
        if number == 3 {
            owner.settle(timer.id, verdict).await;
        } else {
            let answers = owner.apply(vec![told(&timer, verdict, &attempt)]).await;
            assert_eq!(answers, [Answer::Settle(SettleAnswer::Done)]);
            expected.push(attempt);
        }
        let kept = &expected[expected.len().saturating_sub(8)..];
        assert_eq!(owner.record(timer.id).await.extensions.story(), kept, "after attempt {number}");
    }
    // A repeat adds nothing.
    let repeat = told(&timer, retry(kit.now + MINUTE, 1, 12, "busy"), &attempt(12, "again"));
    owner.apply(vec![repeat]).await;
    assert_eq!(owner.record(timer.id).await.extensions.story(), &expected[expected.len() - 8..]);
    assert_eq!(owner.record(timer.id).await.timer.payload, timer.payload);
}

pub(super) async fn a_story_goes_wherever_its_timer_goes(mut kit: Kit) {
    let owner = kit.owner().await;
    let (timer, once) = (kit.timer(kit.now), kit.amo(kit.now));
    owner.add_all(&[timer.clone(), once.clone()]).await;
    let story = [1, 2].map(|number| attempt(number, "no"));
    owner.apply(vec![told(&timer, retry(kit.now, 1, 1, "no"), &story[0])]).await;
    owner.apply(vec![Op::Park(Park { id: timer.id, failed: 1 })]).await;
    owner.apply(vec![Op::Unpark(Unpark { id: timer.id, fire: kit.now })]).await;
    let owner = kit.owner().await;
    let dead = Verdict::Dead { reason: DeadReason::Exhausted, failed: 2, error: "no".into() };
    owner.apply(vec![told(&timer, dead.clone(), &story[1])]).await;
    owner.apply(vec![told(&timer, dead, &story[1])]).await;
    assert_eq!(owner.record(timer.id).await.extensions.story(), story, "a dead letter");
    owner.replay(timer.id, kit.now).await;
    assert_eq!(owner.record(timer.id).await.extensions.story(), story, "replayed");

    owner.apply(vec![Op::take(once.id, 0), told(&once, Verdict::Unconfirmed, &story[0])]).await;
    owner.apply(vec![told(&once, Verdict::Unconfirmed, &story[0])]).await;
    assert_eq!(owner.record(once.id).await.extensions.story(), story[..1], "unconfirmed");
}

pub(super) async fn a_repeat_changes_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let fire = kit.now + MINUTE;
    owner.settle(timer.id, retry(fire, 1, 2, "second")).await;
    for failed in [2, 1] {
        let answer = owner.settle(timer.id, retry(kit.now + HOUR, 3, failed, "late")).await;
        assert_eq!(answer, SettleAnswer::Done);
        let (record, place) = owner.see(timer.id).await.unwrap();
        assert_eq!(place, Place::Pending { fire, tier: 1 });
        assert_eq!(record.progress.last_error.as_deref(), Some("second"));
    }
}

pub(super) async fn an_empty_error_is_none(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.settle(timer.id, retry(kit.now, 1, 1, "first")).await;
    owner.settle(timer.id, retry(kit.now, 1, 2, "")).await;
    assert_eq!(owner.record(timer.id).await.progress.last_error, None);
}

pub(super) async fn a_long_error_is_cut(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.settle(timer.id, retry(kit.now, 1, 1, &format!("x{}", "é".repeat(600)))).await;
    let error = owner.record(timer.id).await.progress.last_error.unwrap();
    assert_eq!(*error, *format!("x{}", "é".repeat(255)), "at most 512 bytes, whole characters");
}

pub(super) async fn many_tiers_side_by_side(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..640).map(|n| kit.timer(kit.now + n)).collect();
    owner.add_all(&timers).await;
    let now = kit.now;
    let fire = |n: u64| now + (n % 5) * 13 * HOUR + n;
    let ops = (0..).zip(&timers).map(|(n, t)| {
        let verdict = retry(fire(n), 1 + (n % 32) as u8, 1, "again");
        Op::settle(t.id, verdict)
    });
    assert!(owner.apply(ops.collect()).await.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    assert_eq!(owner.census().await.retrying, 640);
    let next = kit.owner().await;
    let pending = next.pending().await;
    for (n, timer) in (0..).zip(&timers) {
        let loaded = &pending[&timer.id];
        assert_eq!((loaded.fire, u64::from(loaded.tier)), (fire(n), 1 + n % 32));
    }
}

pub(super) async fn it_can_be_parked_and_returns_in_tier_0(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.settle(timer.id, retry(kit.now + SECOND, 4, 4, "busy")).await;
    assert_eq!(owner.one(Op::Park(Park { id: timer.id, failed: 4 })).await, Answer::Park(MoveAnswer::Done));
    assert_eq!(owner.unpark(timer.id, kit.now + SECOND).await, MoveAnswer::Done);
    let (record, place) = owner.see(timer.id).await.unwrap();
    assert_eq!(place, Place::Pending { fire: kit.now + SECOND, tier: 0 });
    assert_eq!(record.progress.failed, 4);
    assert_eq!(record.progress.last_error.as_deref(), Some("busy"));
}

pub(super) async fn it_ends_in_the_dead_letters(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.settle(timer.id, retry(kit.now + SECOND, 1, 1, "first")).await;
    let verdict = Verdict::Dead { reason: DeadReason::Exhausted, failed: 2, error: "second".into() };
    assert_eq!(owner.settle(timer.id, verdict).await, SettleAnswer::Done);
    let letter = owner.all_dead().await.remove(0);
    assert_eq!((letter.reason, letter.record.progress.failed), (DeadReason::Exhausted, 2));
    assert_eq!(letter.record.progress.last_error.as_deref(), Some("second"));
    assert_eq!(owner.census().await.retrying, 0);
}

pub(super) async fn only_a_pending_timer_is_retried(mut kit: Kit) {
    let owner = kit.owner().await;
    let (parked, taken, dead) = (kit.timer(kit.now), kit.amo(kit.now), kit.timer(kit.now));
    owner.add_parked(&parked).await;
    owner.add_taken(&taken).await;
    owner.add_dead(&dead).await;
    let before = owner.state().await;
    for id in [parked.id, taken.id, dead.id, kit.timer(kit.now).id] {
        assert_eq!(owner.settle(id, retry(kit.now + DAY, 1, 9, "x")).await, SettleAnswer::Gone);
    }
    assert_eq!(owner.state().await, before);
}

/// An owner's clock may be behind that of the owner before, which has sent or parked the timer.
pub(super) async fn what_is_filed_again_is_not_filed_before_its_due_time(mut kit: Kit) {
    let owner = kit.owner().await;
    let due = kit.now + SECOND;
    let (retried, parked, dead) = (kit.timer(due), kit.timer(due), kit.timer(due));
    let unconfirmed = kit.amo(due);
    owner.add(&retried).await;
    owner.add_parked(&parked).await;
    owner.add_dead(&dead).await;
    owner.add_unconfirmed(&unconfirmed).await;
    assert_eq!(owner.retry(retried.id, due - 1, 3, 1).await, SettleAnswer::Done);
    assert_eq!(owner.unpark(parked.id, kit.now).await, MoveAnswer::Done);
    assert_eq!(owner.replay(dead.id, due - 1).await, ReplayAnswer::Done);
    assert_eq!(owner.replay(unconfirmed.id, kit.now).await, ReplayAnswer::Done);
    assert_eq!(owner.place(retried.id).await, Some(Place::Pending { fire: due, tier: 3 }));
    for id in [parked.id, dead.id, unconfirmed.id] {
        assert_eq!(owner.place(id).await, pending_at(due));
    }
}

pub(super) async fn what_is_postponed_uses_no_retry(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.settle(timer.id, retry(kit.now + SECOND, 1, 1, "busy")).await;
    for n in 1..=3 {
        let fire = kit.now + u64::from(n) * HOUR;
        let later = Verdict::Later { fire, failed: 1 + n };
        assert_eq!(owner.settle(timer.id, later.clone()).await, SettleAnswer::Done);
        // The answer was lost.
        assert_eq!(owner.settle(timer.id, later).await, SettleAnswer::Done);
        let (record, place) = owner.see(timer.id).await.unwrap();
        assert_eq!(place, Place::Pending { fire, tier: 0 });
        assert_eq!((record.progress.failed, record.progress.budget_from), (1 + n, n));
        assert_eq!(record.progress.last_error.as_deref(), Some("busy"), "of the attempt that failed");
        assert_eq!(record.extensions.postponed(), Postponed { in_a_row: n, last: 1 + n });
    }
    // The next owner knows of it.
    let next = kit.owner().await;
    let loaded = &next.pending().await[&timer.id];
    assert_eq!((loaded.fire, loaded.record.attempt(false)), (kit.now + 3 * HOUR, 5));
    assert_eq!(loaded.record.extensions.postponed(), Postponed { in_a_row: 3, last: 4 });
}

pub(super) async fn a_late_ok_of_a_postponed_attempt_ends_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.settle(timer.id, Verdict::Later { fire: kit.now + HOUR, failed: 1 }).await;
    let before = owner.state().await;
    assert_eq!(owner.settle(timer.id, Verdict::LateAck { attempt: 1 }).await, SettleAnswer::Gone);
    assert_eq!(owner.state().await, before);
    // A failure later, the attempt in between can still be acknowledged.
    owner.settle(timer.id, retry(kit.now + HOUR, 1, 2, "busy")).await;
    assert_eq!(owner.settle(timer.id, Verdict::LateAck { attempt: 1 }).await, SettleAnswer::Gone);
    assert_eq!(owner.settle(timer.id, Verdict::LateAck { attempt: 2 }).await, SettleAnswer::Done);
    assert_eq!(owner.place(timer.id).await, None);
}

pub(super) async fn a_failure_ends_a_row_of_postponed_attempts(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let postponed = async || owner.record(timer.id).await.extensions.postponed();
    let later = |failed| Verdict::Later { fire: kit.now + SECOND, failed };
    owner.settle(timer.id, later(1)).await;
    owner.settle(timer.id, later(2)).await;
    assert_eq!(postponed().await, Postponed { in_a_row: 2, last: 2 });
    owner.settle(timer.id, retry(kit.now + SECOND, 1, 3, "busy")).await;
    assert_eq!(postponed().await, Postponed { in_a_row: 0, last: 2 });
    owner.settle(timer.id, later(4)).await;
    assert_eq!(postponed().await, Postponed { in_a_row: 1, last: 4 });
}
