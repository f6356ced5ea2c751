//! At-most-once timers: taken before they are sent, never again by themselves.

use mtimer_types::{DeadReason, Ended, KeyPolicy, Time, Timer, TimerId};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{HOUR, MINUTE, NEW, SECOND, dead_verdict, pending_at};
use crate::ops::{MoveAnswer, PurgeAnswer, ReplayAnswer, SettleAnswer, Trim, TrimAnswer};
use crate::{Answer, CancelAnswer, Op, Place, Retained, ScheduleAnswer, Taken, Unconfirmed, Verdict};

pub(super) async fn a_taken_timer_is_not_pending(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_taken(&timer).await;
    assert_eq!(owner.place(timer.id).await, Some(Place::Taken { epoch: owner.epoch, unconfirmed: false }));
    assert_eq!(owner.pending().await.len(), 0);
    let rows = owner.all_taken(10).await;
    let expected = Taken { record: owner.record(timer.id).await, epoch: owner.epoch };
    assert_eq!(rows, [expected]);
    assert_eq!(owner.all_unconfirmed(10).await, []);
}

pub(super) async fn taking_twice_in_an_epoch_is_a_repeat(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_taken(&timer).await;
    assert_eq!(owner.take(timer.id).await, MoveAnswer::Done);
    assert_eq!(owner.census().await.taken, 1);
}

pub(super) async fn a_later_epoch_cannot_take_it_again(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.amo(kit.now);
    first.add_taken(&timer).await;
    let second = kit.owner().await;
    assert_eq!(second.pending().await.len(), 0, "it is never loaded again");
    assert_eq!(second.take(timer.id).await, MoveAnswer::Gone);
    assert_eq!(second.park(timer.id).await, MoveAnswer::Gone);
    assert_eq!(second.unpark(timer.id, kit.now).await, MoveAnswer::Gone);
    assert_eq!(second.retry(timer.id, kit.now, 1, 1).await, SettleAnswer::Gone);
    assert_eq!(second.replay(timer.id, kit.now).await, ReplayAnswer::Gone, "not before somebody gave it up");
    assert_eq!(second.place(timer.id).await, Some(Place::Taken { epoch: first.epoch, unconfirmed: false }));
}

pub(super) async fn takes_survive_a_restart(mut kit: Kit) {
    let first = kit.owner().await;
    let (timer, epoch) = (kit.amo(kit.now), first.epoch);
    first.add_taken(&timer).await;
    drop(first);
    if kit.restart().await {
        let second = kit.owner().await;
        assert_eq!(second.place(timer.id).await, Some(Place::Taken { epoch, unconfirmed: false }));
        assert_eq!(second.take(timer.id).await, MoveAnswer::Gone);
        assert_eq!(second.pending().await.len(), 0);
    }
}

pub(super) async fn a_batch_of_takes(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..500).map(|n| kit.amo(kit.now + n)).collect();
    owner.add_all(&timers).await;
    let answers = owner.apply(timers.iter().map(|t| Op::take(t.id, 0)).collect()).await;
    assert!(answers.iter().all(|a| *a == Answer::Take(MoveAnswer::Done)));
    assert_eq!(owner.all_taken(100).await.len(), 500);
    assert_eq!(owner.pending().await.len(), 0);
}

pub(super) async fn an_at_least_once_timer_cannot_be_taken(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    assert_eq!(owner.take(timer.id).await, MoveAnswer::Gone);
    assert_eq!(owner.place(timer.id).await, pending_at(kit.now));
}

pub(super) async fn a_parked_one_can_be_taken(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_parked(&timer).await;
    assert_eq!(owner.take(timer.id).await, MoveAnswer::Done);
    assert_eq!((owner.census().await.parked, owner.census().await.taken), (0, 1));
    assert_eq!(owner.parked_counts().await.len(), 0);
}

pub(super) async fn taking_keeps_the_count_of_a_covered_attempt(mut kit: Kit) {
    let first = kit.owner().await;
    let (waits, parked) = (kit.amo(kit.now), kit.amo(kit.now));
    first.add(&waits).await;
    first.add_parked(&parked).await;
    first.claim(kit.now + SECOND).await;
    let second = kit.owner().await;
    let loaded = &second.pending().await[&waits.id];
    assert_eq!((loaded.covered, loaded.record.attempt(loaded.covered)), (true, 2));
    for (timer, failed) in [(&waits, 1), (&parked, 0)] {
        let take = Op::take(timer.id, failed);
        assert_eq!(second.one(take.clone()).await, Answer::Take(MoveAnswer::Done));
        assert_eq!(second.record(timer.id).await.progress.failed, failed);
        assert_eq!(second.one(take).await, Answer::Take(MoveAnswer::Done), "a repeat");
        assert_eq!(second.settle(timer.id, Verdict::Unconfirmed).await, SettleAnswer::Done);
        assert_eq!(second.replay(timer.id, kit.now).await, ReplayAnswer::Done);
        let record = second.record(timer.id).await;
        assert_eq!(record.attempt(false), failed + 2, "the attempt that was taken counts");
    }
}

pub(super) async fn one_that_was_not_sent_can_be_parked(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_taken(&timer).await;
    assert_eq!(owner.park(timer.id).await, MoveAnswer::Done);
    assert_eq!(owner.place(timer.id).await, Some(Place::Parked));
    assert_eq!(owner.all_taken(10).await, []);
    assert_eq!(owner.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    assert_eq!(owner.take(timer.id).await, MoveAnswer::Done);
}

pub(super) async fn ok_ends_it_and_is_remembered(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_taken(&timer).await;
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.place(timer.id).await, None);
    assert_eq!(owner.schedule(&timer).await, ScheduleAnswer::Ended(Ended::Acknowledged));
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Gone);
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::NotFound);
}

pub(super) async fn ok_of_an_earlier_epochs_delivery_ends_it(mut kit: Kit) {
    let first = kit.owner().await;
    let (a, b) = (kit.amo(kit.now), kit.amo(kit.now));
    first.add_taken(&a).await;
    first.add_unconfirmed(&b).await;
    let second = kit.owner().await;
    assert_eq!(second.settle(a.id, Verdict::LateAck { attempt: 1 }).await, SettleAnswer::Done);
    assert_eq!(second.settle(b.id, Verdict::LateAck { attempt: 1 }).await, SettleAnswer::Done);
    assert_eq!(second.all_taken(10).await, []);
    assert_eq!(second.all_unconfirmed(10).await, []);
}

pub(super) async fn a_failure_buries_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_taken(&timer).await;
    let verdict =
        Verdict::Dead { reason: DeadReason::AtMostOnce, failed: 1, error: "asked for a retry".into() };
    assert_eq!(owner.settle(timer.id, verdict).await, SettleAnswer::Done);
    let letter = owner.all_dead().await.remove(0);
    assert_eq!((letter.reason, letter.record.timer.id), (DeadReason::AtMostOnce, timer.id));
    assert_eq!(owner.all_taken(10).await, []);
}

/// Its client may give it back without having begun it.
pub(super) async fn a_cancel_of_one_that_was_sent_stops_it_wherever_it_goes(mut kit: Kit) {
    let first = kit.owner().await;
    let (parked, cancelled) = (kit.amo(kit.now), kit.amo(kit.now));
    for id in [parked.id, cancelled.id] {
        first.add_taken(if id == parked.id { &parked } else { &cancelled }).await;
        assert_eq!(first.cancel_in_flight(id).await, CancelAnswer::TooLate(id));
        assert!(first.record(id).await.progress.stopped);
        assert_eq!(first.place(id).await, Some(Place::Taken { epoch: first.epoch, unconfirmed: false }));
    }
    assert_eq!(first.all_taken(10).await.len(), 2);
    assert_eq!(first.cancel(cancelled.id).await, CancelAnswer::Died { id: cancelled.id, failed: 0 });
    assert_eq!(first.park(parked.id).await, MoveAnswer::Done);
    let second = kit.owner().await;
    assert!(second.record(parked.id).await.progress.stopped);
    assert_eq!(second.unpark(parked.id, kit.now).await, MoveAnswer::Done);
    assert!(second.pending().await.remove(&parked.id).unwrap().record.progress.stopped);
}

pub(super) async fn unconfirmed_is_listed_and_stays(mut kit: Kit) {
    let mut first = kit.owner().await;
    let timer = kit.amo(kit.now);
    first.add_unconfirmed(&timer).await;
    assert_eq!(first.all_taken(10).await, [], "what takes over need not read it");
    first.now = kit.now + SECOND;
    assert_eq!(first.settle(timer.id, Verdict::Unconfirmed).await, SettleAnswer::Done, "a repeat");
    assert_eq!(first.take(timer.id).await, MoveAnswer::Gone, "it may have been sent");
    assert_eq!(first.park(timer.id).await, MoveAnswer::Gone);
    let second = kit.owner().await;
    let rows = second.all_unconfirmed(10).await;
    let expected = Unconfirmed { record: second.record(timer.id).await, epoch: first.epoch, since: kit.now };
    assert_eq!(rows, [expected], "since the first time");
    assert_eq!(second.all_taken(10).await, []);
    assert_eq!(second.pending().await.len(), 0);
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::TooLate(timer.id));
    assert_eq!(second.schedule(&timer).await, super::values::OLD);
}

pub(super) async fn a_successor_can_give_up_on_it(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.amo(kit.now);
    first.add_taken(&timer).await;
    let second = kit.owner().await;
    assert_eq!(second.settle(timer.id, Verdict::Unconfirmed).await, SettleAnswer::Done);
    assert_eq!(second.place(timer.id).await, Some(Place::Taken { epoch: first.epoch, unconfirmed: true }));
}

pub(super) async fn only_a_taken_one_becomes_unconfirmed(mut kit: Kit) {
    let owner = kit.owner().await;
    let (pending, parked, dead) = (kit.amo(kit.now), kit.amo(kit.now), kit.amo(kit.now));
    owner.add(&pending).await;
    owner.add_parked(&parked).await;
    owner.add_dead(&dead).await;
    for id in [pending.id, parked.id, dead.id, kit.amo(kit.now).id] {
        assert_eq!(owner.settle(id, Verdict::Unconfirmed).await, SettleAnswer::Gone);
    }
    assert_eq!(owner.census().await.taken, 0);
}

pub(super) async fn a_replay_counts_the_unconfirmed_attempt(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add_unconfirmed(&timer).await;
    assert_eq!(owner.replay(timer.id, kit.now + SECOND).await, ReplayAnswer::Done);
    let (record, place) = owner.see(timer.id).await.unwrap();
    assert_eq!(Some(place), pending_at(kit.now + SECOND));
    assert_eq!((record.progress.failed, record.progress.budget_from), (1, 1));
    assert_eq!(record.attempt(false), 2);
    assert_eq!(owner.all_taken(10).await, []);
    assert_eq!(owner.all_unconfirmed(10).await, []);
    assert_eq!(owner.take(timer.id).await, MoveAnswer::Done);
}

pub(super) async fn a_purge_removes_the_unconfirmed_only(mut kit: Kit) {
    let owner = kit.owner().await;
    let (taken, unconfirmed) = (kit.amo(kit.now), kit.amo(kit.now));
    owner.add_taken(&taken).await;
    owner.add_unconfirmed(&unconfirmed).await;
    assert_eq!(owner.purge(taken.id).await, PurgeAnswer::Gone);
    assert_eq!(owner.purge(unconfirmed.id).await, PurgeAnswer::Done);
    assert_eq!(owner.purge(unconfirmed.id).await, PurgeAnswer::Gone);
    assert_eq!(owner.all_taken(10).await.len(), 1);
    assert_eq!(owner.all_unconfirmed(10).await, []);
    assert_eq!(
        owner.schedule(&unconfirmed).await,
        ScheduleAnswer::Ended(Ended::Dead),
        "its end is remembered"
    );
}

pub(super) async fn its_key_is_held_while_taken_and_free_when_unconfirmed(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("once");
    let keyed = |due: Time| mtimer_types::Timer { key: Some(key.clone()), ..kit.amo(due) };
    let timer = keyed(kit.now);
    owner.add_taken(&timer).await;
    assert_eq!(owner.schedule(&keyed(kit.now + MINUTE)).await, ScheduleAnswer::KeyTaken(timer.id));
    assert_eq!(owner.see_key(&key).await, Some(timer.id));
    assert_eq!(owner.settle(timer.id, Verdict::Unconfirmed).await, SettleAnswer::Done);
    assert_eq!(owner.see_key(&key).await, None);
    let next = keyed(kit.now + HOUR);
    assert_eq!(owner.schedule(&next).await, NEW);
    assert_eq!(owner.replay(timer.id, kit.now).await, ReplayAnswer::KeyTaken(next.id));
    assert_eq!(owner.settle(timer.id, Verdict::LateAck { attempt: 1 }).await, SettleAnswer::Done);
    assert_eq!(
        owner.see_key(&key).await,
        Some(next.id),
        "the end of the old one leaves the key to the new one"
    );
}

pub(super) async fn a_taken_one_can_be_replaced(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("once");
    let keyed = |due: Time| mtimer_types::Timer { key: Some(key.clone()), ..kit.amo(due) };
    let (old, new) = (keyed(kit.now), keyed(kit.now + MINUTE));
    owner.add_taken(&old).await;
    let answer = owner.schedule_as(&new, KeyPolicy::Replace).await;
    assert_eq!(answer, ScheduleAnswer::Scheduled { new: true, replaced: Some(old.id) });
    assert_eq!(owner.ack(old.id).await, SettleAnswer::Gone, "a later outcome of the old one finds nothing");
    assert_eq!(owner.settle(old.id, dead_verdict(1)).await, SettleAnswer::Gone);
    assert_eq!(owner.all_taken(10).await, []);
    assert_eq!(owner.see_key(&key).await, Some(new.id));
}

pub(super) async fn taken_timers_are_listed_in_pages(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<_> = (0..230).map(|n| kit.amo(kit.now + n)).collect();
    first.add_all(&timers).await;
    first.apply(timers[..130].iter().map(|t| Op::take(t.id, 0)).collect()).await;
    let second = kit.owner().await;
    second.apply(timers[130..].iter().map(|t| Op::take(t.id, 0)).collect()).await;
    for limit in [1, 7, 100, 1_000] {
        let rows = second.all_taken(limit).await;
        let mut ids: Vec<_> = rows.iter().map(|r| r.record.timer.id).collect();
        ids.sort_unstable();
        let mut expected: Vec<_> = timers.iter().map(|t| t.id).collect();
        expected.sort_unstable();
        assert_eq!(ids, expected, "each one once, in pages of {limit}");
        let of_first = rows.iter().filter(|r| r.epoch == first.epoch).count();
        assert_eq!(of_first, 130);
    }
}

/// Timers that became unconfirmed one a minute.
async fn unconfirmed(kit: &Kit, owner: &mut Owner, count: u64) -> Vec<Timer> {
    let timers: Vec<_> = (0..count).map(|n| kit.amo(kit.now + (count - n))).collect();
    for (n, timer) in (0..).zip(&timers) {
        owner.now = kit.now + n * MINUTE;
        owner.add_unconfirmed(timer).await;
    }
    owner.now = kit.now;
    timers
}

fn of(timers: &[Timer]) -> Vec<TimerId> {
    timers.iter().map(|t| t.id).collect()
}

async fn listed(owner: &Owner, limit: u32) -> Vec<TimerId> {
    owner.all_unconfirmed(limit).await.iter().map(|u| u.record.timer.id).collect()
}

pub(super) async fn the_unconfirmed_are_listed_oldest_first_in_pages(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = unconfirmed(&kit, &mut owner, 30).await;
    owner.add_taken(&kit.amo(kit.now)).await;
    for limit in [1, 7, 30, 100] {
        assert_eq!(listed(&owner, limit).await, of(&timers), "in pages of {limit}");
    }
    assert_eq!(owner.all_taken(10).await.len(), 1);
    assert_eq!(owner.census().await.taken, 31);
}

pub(super) async fn the_unconfirmed_outlive_their_owner(mut kit: Kit) {
    let mut first = kit.owner().await;
    let timers = unconfirmed(&kit, &mut first, 5).await;
    drop(first);
    kit.restart().await;
    let second = kit.owner().await;
    assert_eq!(listed(&second, 3).await, of(&timers));
    assert_eq!(second.all_taken(10).await, []);
    let times: Vec<_> = second.all_unconfirmed(3).await.iter().map(|u| u.since).collect();
    assert_eq!(times, [0, 1, 2, 3, 4].map(|n| kit.now + n * MINUTE));
}

pub(super) async fn the_unconfirmed_are_trimmed_by_age(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = unconfirmed(&kit, &mut owner, 10).await;
    let of_kind = Retained::Unconfirmed;
    let trim =
        async |before| owner.one(Op::Trim(Trim { of: of_kind, before, keep: u64::MAX, limit: 100 })).await;
    assert_eq!(trim(kit.now).await, Answer::Trim(TrimAnswer { removed: 0, more: false }));
    assert_eq!(trim(kit.now + 4 * MINUTE).await, Answer::Trim(TrimAnswer { removed: 4, more: false }));
    assert_eq!(listed(&owner, 100).await, of(&timers[4..]), "one of the bound itself stays");
    assert_eq!(trim(Time::MAX).await, Answer::Trim(TrimAnswer { removed: 6, more: false }));
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn the_unconfirmed_are_trimmed_by_count_in_portions(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = unconfirmed(&kit, &mut owner, 10).await;
    let trim = async |keep, limit| {
        owner.one(Op::Trim(Trim { of: Retained::Unconfirmed, before: Time::ZERO, keep, limit })).await
    };
    assert_eq!(trim(10, 100).await, Answer::Trim(TrimAnswer { removed: 0, more: false }));
    assert_eq!(trim(2, 3).await, Answer::Trim(TrimAnswer { removed: 3, more: true }));
    assert_eq!(trim(2, 5).await, Answer::Trim(TrimAnswer { removed: 5, more: false }));
    assert_eq!(listed(&owner, 100).await, of(&timers[8..]), "the oldest go");
}

pub(super) async fn a_trim_spares_what_is_taken_and_dead(mut kit: Kit) {
    let owner = kit.owner().await;
    let (taken, dead, gone) = (kit.amo(kit.now), kit.amo(kit.now), kit.amo(kit.now));
    owner.add_taken(&taken).await;
    owner.add_dead(&dead).await;
    owner.add_unconfirmed(&gone).await;
    let trim = |of| Op::Trim(Trim { of, before: Time::MAX, keep: 0, limit: 100 });
    let one = Answer::Trim(TrimAnswer { removed: 1, more: false });
    assert_eq!(owner.one(trim(Retained::Unconfirmed)).await, one);
    assert_eq!(owner.place(gone.id).await, None);
    assert_eq!(owner.place(dead.id).await, Some(Place::Dead));
    assert_eq!(owner.one(trim(Retained::Dead)).await, one);
    assert_eq!(owner.place(taken.id).await, Some(Place::Taken { epoch: owner.epoch, unconfirmed: false }));
}

pub(super) async fn the_end_of_one_long_unconfirmed_is_forgotten(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let (old, young) = (kit.amo(kit.now), kit.amo(kit.now));
    owner.now = kit.now - MINUTE;
    owner.add_unconfirmed(&old).await;
    owner.now = kit.now - SECOND;
    owner.add_unconfirmed(&young).await;
    owner.now = kit.now;
    let trim = Op::Trim(Trim { of: Retained::Unconfirmed, before: Time::MAX, keep: 0, limit: 100 });
    assert_eq!(owner.one(trim).await, Answer::Trim(TrimAnswer { removed: 2, more: false }));
    assert_eq!(owner.schedule(&young).await, ScheduleAnswer::Ended(Ended::Dead));
    assert_eq!(owner.schedule(&old).await, NEW);
}
