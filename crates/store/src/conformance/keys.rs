//! Keys chosen by the application: unique while their timer lives, free afterwards.

use mtimer_types::{Ended, Key, KeyPolicy, Mode, Target, Time, Timer};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{DAY, HOUR, MINUTE, NEW, OLD, SECOND, dest, other_dest, pending_at, unique};
use crate::ops::{Cancel, MoveAnswer, PurgeAnswer, ReplayAnswer, Schedule, SettleAnswer};
use crate::{Answer, CancelAnswer, Op, Place, RequestId, RescheduleAnswer, ScheduleAnswer, Verdict};

pub(super) async fn create_refuses_a_key_in_use(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (first, second) = (kit.keyed(kit.now + MINUTE, &key), kit.keyed(kit.now + HOUR, &key));
    owner.add(&first).await;
    assert_eq!(owner.schedule(&second).await, ScheduleAnswer::KeyTaken(first.id));
    assert_eq!(owner.fires().await, [(first.id, first.due)], "nothing changed");
    assert_eq!(owner.census().await.keys, 1);
}

pub(super) async fn keep_answers_with_the_holder(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (first, second) = (kit.keyed(kit.now + MINUTE, &key), kit.keyed(kit.now + HOUR, &key));
    assert_eq!(owner.schedule_as(&first, KeyPolicy::Keep).await, NEW);
    let kept = ScheduleAnswer::Kept { id: first.id, begun: false };
    assert_eq!(owner.schedule_as(&second, KeyPolicy::Keep).await, kept);
    assert_eq!(owner.fires().await, [(first.id, first.due)], "nothing changed");
    assert_eq!(owner.place(second.id).await, None);
}

pub(super) async fn keep_tells_whether_an_attempt_may_have_begun(mut kit: Kit) {
    let owner = kit.owner().await;
    let names = ["waiting-", "parked-", "failed-", "taken-", "covered-"];
    let keys = names.map(|name| kit.key(name));
    let timers = keys.each_ref().map(|key| kit.keyed(kit.now + SECOND, key));
    let [waiting, parked, failed, mut taken, covered] = timers;
    taken.mode = Mode::AtMostOnce;
    for timer in [&parked, &failed, &taken, &covered] {
        owner.add(timer).await;
    }
    owner.add(&Timer { due: kit.now + HOUR, id: kit.keyed(kit.now + HOUR, &keys[0]).id, ..waiting }).await;
    assert_eq!(owner.park(parked.id).await, MoveAnswer::Done);
    assert_eq!(owner.retry(failed.id, kit.now + HOUR, 1, 1).await, SettleAnswer::Done);
    assert_eq!(owner.take(taken.id).await, MoveAnswer::Done);
    let nexts = keys.each_ref().map(|key| kit.keyed(kit.now + DAY, key));
    let begun = async |owner: &Owner| {
        let mut all = Vec::new();
        for next in &nexts {
            match owner.schedule_as(next, KeyPolicy::Keep).await {
                ScheduleAnswer::Kept { begun, .. } => all.push(begun),
                other => panic!("{other:?}"),
            }
        }
        all
    };
    assert_eq!(begun(&owner).await, [false, false, true, true, false]);
    let waits = Schedule { may_have_begun: true, ..Schedule::new(nexts[0].clone().into(), KeyPolicy::Keep) };
    let kept =
        Answer::Schedule(ScheduleAnswer::Kept { id: owner.see_key(&keys[0]).await.unwrap(), begun: true });
    assert_eq!(owner.one(waits.into()).await, kept, "its owner has sent it, and the store does not know");
    // A predecessor may have sent the timers that its claim covers.
    owner.claim(kit.now + MINUTE).await;
    assert_eq!(begun(&owner).await, [false, false, true, true, false], "an owner knows what it has sent");
    let next = kit.owner().await;
    assert_eq!(begun(&next).await, [false, false, true, true, true]);
}

pub(super) async fn replace_ends_the_holder(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (first, second) = (kit.keyed(kit.now + MINUTE, &key), kit.keyed(kit.now + HOUR, &key));
    assert_eq!(owner.schedule_as(&first, KeyPolicy::Replace).await, NEW);
    let answer = owner.schedule_as(&second, KeyPolicy::Replace).await;
    assert_eq!(answer, ScheduleAnswer::Scheduled { new: true, replaced: Some(first.id) });
    assert_eq!(owner.fires().await, [(second.id, second.due)]);
    assert_eq!(owner.see_key(&key).await, Some(second.id));
    assert_eq!(owner.schedule(&first).await, ScheduleAnswer::Ended(Ended::Replaced), "a late repeat");
    assert_eq!(owner.cancel(first.id).await, CancelAnswer::NotFound);
    assert_eq!(
        owner.schedule_as(&second, KeyPolicy::Replace).await,
        OLD,
        "a repeat replaces nobody, least itself"
    );
    assert_eq!(owner.census().await.keys, 1);
}

pub(super) async fn replace_takes_it_from_whatever_holds_it(mut kit: Kit) {
    let owner = kit.owner().await;
    for (n, parked) in [(0, true), (1, false)] {
        let key = kit.key(&format!("holder{n}-"));
        let (old, new) = (kit.keyed(kit.now, &key), kit.keyed(kit.now + DAY, &key));
        owner.add(&old).await;
        if parked {
            assert_eq!(owner.park(old.id).await, MoveAnswer::Done);
        } else {
            assert_eq!(owner.retry(old.id, kit.now + HOUR, 1, 1).await, SettleAnswer::Done);
        }
        let answer = owner.schedule_as(&new, KeyPolicy::Replace).await;
        assert_eq!(answer, ScheduleAnswer::Scheduled { new: true, replaced: Some(old.id) });
        assert_eq!(owner.place(old.id).await, None);
        assert_eq!(
            owner.settle(old.id, Verdict::Ack).await,
            SettleAnswer::Gone,
            "later outcomes find nothing"
        );
    }
    assert_eq!(owner.parked_counts().await.len(), 0);
    assert_eq!((owner.census().await.pending, owner.census().await.retrying), (2, 0));
}

/// A debounce of 10 s, at most 25 s.
const DEBOUNCE: KeyPolicy = KeyPolicy::Debounce { quiet_ms: 10_000, max_ms: 25_000 };

fn timed(replaced: &Timer, due: Time) -> ScheduleAnswer {
    ScheduleAnswer::Timed { new: true, replaced: Some(replaced.id), due }
}

pub(super) async fn latest_and_earliest_move_the_key_one_way(mut kit: Kit) {
    let owner = kit.owner().await;
    for (policy, dues) in [
        (KeyPolicy::Latest, [(HOUR, HOUR), (MINUTE, HOUR), (DAY, DAY)]),
        (KeyPolicy::Earliest, [(HOUR, HOUR), (DAY, HOUR), (MINUTE, MINUTE)]),
    ] {
        let key = kit.key(&format!("{policy:?}-"));
        let mut before: Option<Timer> = None;
        for (asked, is) in dues.map(|(asked, is)| (kit.now + asked, kit.now + is)) {
            let next = kit.keyed(asked, &key);
            let answer = ScheduleAnswer::Timed { new: true, replaced: before.map(|t| t.id), due: is };
            assert_eq!(owner.schedule_as(&next, policy).await, answer);
            assert_eq!(owner.place(next.id).await, pending_at(is));
            let again = ScheduleAnswer::Timed { new: false, replaced: None, due: is };
            assert_eq!(owner.schedule_as(&next, policy).await, again, "a repeat changes nothing");
            before = Some(next);
        }
    }
    assert_eq!(owner.census().await.pending, 2, "the others have ended");
}

pub(super) async fn a_time_beyond_the_deadline_is_refused(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (old, next) = (kit.keyed(kit.now + HOUR, &key), kit.keyed(kit.now + MINUTE, &key));
    let with = |deadline| Timer { deadline: Some(deadline), ..next.clone() };
    owner.add(&old).await;
    let refused = ScheduleAnswer::PastDeadline(old.due);
    assert_eq!(owner.schedule_as(&with(old.due - 1), KeyPolicy::Latest).await, refused);
    assert_eq!(owner.fires().await, [(old.id, old.due)], "nothing changed");
    assert_eq!(owner.see_key(&key).await, Some(old.id));
    assert_eq!(owner.schedule_as(&with(old.due), KeyPolicy::Latest).await, timed(&old, old.due));
    let alone = Timer { deadline: Some(kit.now + 9 * SECOND), ..kit.keyed(kit.now, &kit.key("alone-")) };
    let refused = ScheduleAnswer::PastDeadline(kit.now + 10 * SECOND);
    assert_eq!(owner.schedule_as(&alone, DEBOUNCE).await, refused);
    assert_eq!(owner.place(alone.id).await, None);
}

pub(super) async fn a_debounce_waits_for_quiet_and_not_longer_than_its_longest_time(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let (key, begun) = (kit.key("order-"), owner.now);
    let mut before: Option<Timer> = None;
    for (at, is) in [(0, 10), (8, 18), (16, 25), (24, 25)] {
        owner.now = begun + at * SECOND;
        let due = begun + is * SECOND;
        // The time of the client does not count, even if it is the same.
        let next = kit.keyed(if at == 0 { due } else { kit.now + DAY + at }, &key);
        let answer = ScheduleAnswer::Timed { new: true, replaced: before.map(|t| t.id), due };
        assert_eq!(owner.schedule_as(&next, DEBOUNCE).await, answer, "after {at} s");
        assert_eq!(owner.place(next.id).await, pending_at(due));
        if at == 8 {
            assert_eq!(owner.park(next.id).await, MoveAnswer::Done, "a chain goes on in the park");
        }
        before = Some(next);
    }
    // Another policy ends the chain.
    let (other, next) = (kit.keyed(begun + DAY, &key), kit.keyed(begun + DAY, &key));
    owner.schedule_as(&other, KeyPolicy::Replace).await;
    assert_eq!(owner.schedule_as(&next, DEBOUNCE).await, timed(&other, owner.now + 10 * SECOND));
}

pub(super) async fn what_has_begun_is_left_to_itself(mut kit: Kit) {
    let owner = kit.owner().await;
    let names = ["sent-", "failed-", "stopped-", "taken-", "covered-"];
    let keys = names.map(|name| kit.key(name));
    let timers = keys.each_ref().map(|key| kit.keyed(kit.now + SECOND, key));
    let [sent, failed, stopped, mut taken, covered] = timers;
    taken.mode = Mode::AtMostOnce;
    for timer in [&sent, &failed, &stopped, &taken, &covered] {
        owner.add(timer).await;
    }
    assert_eq!(owner.retry(failed.id, kit.now + HOUR, 1, 1).await, SettleAnswer::Done);
    assert_eq!(owner.cancel_in_flight(stopped.id).await, CancelAnswer::TooLate(stopped.id));
    assert_eq!(owner.take(taken.id).await, MoveAnswer::Done);
    let (later, sooner) = (kit.now + DAY, kit.now);
    let earliest = async |kit: &Kit, owner: &Owner, old: &Timer, sent_attempt, is| {
        let next = Timer { key: old.key.clone(), ..kit.timer(later) };
        let op = Schedule { sent_attempt, ..Schedule::new(next.clone().into(), KeyPolicy::Earliest) };
        assert_eq!(owner.one(op.into()).await, Answer::Schedule(timed(old, is)), "{old:?}");
        next
    };
    // Its owner has sent it: the new one is a first.
    earliest(&kit, &owner, &sent, Some(1), later).await;
    // An attempt has failed, and the next one counts; one that is under way is left to itself.
    let next = earliest(&kit, &owner, &failed, Some(1), kit.now + HOUR).await;
    earliest(&kit, &owner, &next, Some(u32::MAX), later).await;
    earliest(&kit, &owner, &stopped, None, later).await;
    // Taken and not sent.
    earliest(&kit, &owner, &taken, None, taken.due).await;
    owner.claim(kit.now + MINUTE).await;
    let owner = kit.owner().await;
    earliest(&kit, &owner, &covered, None, later).await;
    assert!(owner.fires().await.iter().all(|(_, fire)| *fire > sooner));
}

pub(super) async fn replace_does_not_touch_a_dead_letter(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (old, new) = (kit.keyed(kit.now, &key), kit.keyed(kit.now + DAY, &key));
    owner.add_dead(&old).await;
    assert_eq!(owner.schedule_as(&new, KeyPolicy::Replace).await, NEW);
    assert_eq!(owner.place(old.id).await, Some(Place::Dead));
}

pub(super) async fn a_chain_of_replacements(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let timers: Vec<_> = (0..100).map(|n| kit.keyed(kit.now + n * MINUTE, &key)).collect();
    let ops = timers.iter().map(|t| super::pair::schedule_with(t, KeyPolicy::Replace)).collect();
    let answers = owner.apply(ops).await;
    let mut before = None;
    for (timer, answer) in timers.iter().zip(answers) {
        assert_eq!(answer, Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: before }));
        before = Some(timer.id);
    }
    assert_eq!(owner.fires().await, [(timers[99].id, timers[99].due)]);
}

/// The key is free after `end`, and the timer that takes it is not disturbed by the same `end` once
/// more.
async fn freed_by(mut kit: Kit, end: impl AsyncFn(&Owner, &Timer)) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let old = Timer { deadline: Some(kit.now + HOUR), ..kit.keyed(kit.now + MINUTE, &key) };
    let new = kit.keyed(kit.now + HOUR, &key);
    owner.add(&old).await;
    end(&owner, &old).await;
    assert_eq!(owner.see_key(&key).await, None, "the key is free");
    assert_eq!(owner.census().await.keys, 0);
    assert_eq!(owner.schedule(&new).await, NEW);
    end(&owner, &old).await;
    assert_eq!(owner.see_key(&key).await, Some(new.id), "the key names the new timer still");
    assert_eq!(owner.place(new.id).await, pending_at(new.due));
    assert_eq!(owner.census().await.keys, 1);
}

pub(super) async fn an_ack_frees_it(kit: Kit) {
    freed_by(kit, async |owner, old| {
        owner.ack(old.id).await;
    })
    .await;
}

pub(super) async fn a_cancel_frees_it(kit: Kit) {
    freed_by(kit, async |owner, old| {
        owner.cancel(old.id).await;
    })
    .await;
}

pub(super) async fn expiry_frees_it(kit: Kit) {
    freed_by(kit, async |owner, old| {
        owner.settle(old.id, Verdict::Expired { next: Time::MAX }).await;
    })
    .await;
}

pub(super) async fn death_frees_it(kit: Kit) {
    freed_by(kit, async |owner, old| {
        owner.dead_letter(old.id).await;
    })
    .await;
}

pub(super) async fn a_late_ok_frees_it(kit: Kit) {
    freed_by(kit, async |owner, old| {
        owner.retry(old.id, owner.now + SECOND, 1, 1).await;
        owner.settle(old.id, Verdict::LateAck { attempt: 1 }).await;
    })
    .await;
}

pub(super) async fn being_stopped_frees_it(kit: Kit) {
    freed_by(kit, async |owner, old| {
        owner.cancel_in_flight(old.id).await;
        owner.retry(old.id, owner.now + SECOND, 1, 1).await;
    })
    .await;
}

pub(super) async fn moves_do_not_free_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let timer = kit.keyed(kit.now + MINUTE, &key);
    owner.add(&timer).await;
    owner.reschedule(timer.id, kit.now + DAY).await;
    assert_eq!(owner.see_key(&key).await, Some(timer.id), "after a reschedule");
    owner.park(timer.id).await;
    assert_eq!(owner.see_key(&key).await, Some(timer.id), "parked");
    owner.unpark(timer.id, kit.now).await;
    owner.retry(timer.id, kit.now + HOUR, 2, 2).await;
    assert_eq!(owner.see_key(&key).await, Some(timer.id), "in a retry tier");
    let next = kit.owner().await;
    assert_eq!(next.see_key(&key).await, Some(timer.id), "for the next owner");
    assert_eq!(next.schedule(&kit.keyed(kit.now, &key)).await, ScheduleAnswer::KeyTaken(timer.id));
}

pub(super) async fn cancel_reschedule_and_get_accept_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let timer = kit.keyed(kit.now + MINUTE, &key);
    owner.add(&timer).await;
    let target = || Target::Key(dest(), key.clone());
    let moved = owner.reschedule_as(target(), kit.now + HOUR, false, RequestId(unique())).await;
    assert_eq!(moved, RescheduleAnswer::Rescheduled(timer.id));
    let (record, place) = owner.lane.get(target()).await.unwrap().unwrap();
    assert_eq!((record.timer.due, Some(place)), (kit.now + HOUR, pending_at(kit.now + HOUR)));
    assert_eq!(owner.cancel_key(&key).await, CancelAnswer::Cancelled(timer.id));
    assert_eq!(owner.see_key(&key).await, None);
}

pub(super) async fn an_unknown_one_is_not_found(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("nobody-");
    let target = Target::Key(dest(), key.clone());
    assert_eq!(owner.see_key(&key).await, None);
    assert_eq!(owner.cancel_key(&key).await, CancelAnswer::NotFound);
    let moved = owner.reschedule_as(target, kit.now, false, RequestId(unique())).await;
    assert_eq!(moved, RescheduleAnswer::NotFound);
    assert_eq!(owner.schedule(&kit.keyed(kit.now, &key)).await, NEW, "a cancel of a key is not remembered");
}

pub(super) async fn it_belongs_to_a_destination(mut kit: Kit) {
    let owner = kit.owner().await;
    // The same key for two destinations, both of this partition.
    let key = (0..)
        .map(|n| kit.key(&format!("shared{n}-")))
        .find(|key| {
            let partitions = kit.store().info().partitions;
            mtimer_types::PartitionId::of_key(&other_dest(), key, partitions) == kit.partition
        })
        .unwrap();
    let here = kit.keyed(kit.now, &key);
    let there = Timer { dest: other_dest(), ..kit.keyed(kit.now, &key) };
    owner.add(&here).await;
    owner.add(&there).await;
    assert_eq!(owner.census().await.keys, 2);
    let found = owner.lane.get(Target::Key(other_dest(), key.clone())).await.unwrap().unwrap();
    assert_eq!(found.0.timer.id, there.id);
    assert_eq!(owner.cancel_key(&key).await, CancelAnswer::Cancelled(here.id));
    assert_eq!(owner.place(there.id).await, pending_at(kit.now));
}

pub(super) async fn a_replay_takes_it_back(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let timer = kit.keyed(kit.now, &key);
    owner.add_dead(&timer).await;
    assert_eq!(owner.see_key(&key).await, None);
    assert_eq!(owner.replay(timer.id, kit.now).await, ReplayAnswer::Done);
    assert_eq!(owner.see_key(&key).await, Some(timer.id));
    assert_eq!(owner.schedule(&kit.keyed(kit.now, &key)).await, ScheduleAnswer::KeyTaken(timer.id));
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.see_key(&key).await, None, "and frees it again");
}

pub(super) async fn a_replay_into_a_taken_key_is_refused(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (dead, live) = (kit.keyed(kit.now, &key), kit.keyed(kit.now + HOUR, &key));
    owner.add_dead(&dead).await;
    owner.add(&live).await;
    let before = owner.state().await;
    assert_eq!(owner.replay(dead.id, kit.now).await, ReplayAnswer::KeyTaken(live.id));
    assert_eq!(owner.state().await, before, "nothing changed");
    assert_eq!(owner.ack(live.id).await, SettleAnswer::Done);
    assert_eq!(owner.replay(dead.id, kit.now).await, ReplayAnswer::Done, "once it is free");
}

pub(super) async fn a_purge_leaves_it_to_its_holder(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (dead, live) = (kit.keyed(kit.now, &key), kit.keyed(kit.now + HOUR, &key));
    owner.add_dead(&dead).await;
    owner.add(&live).await;
    assert_eq!(owner.purge(dead.id).await, PurgeAnswer::Done);
    assert_eq!(owner.see_key(&key).await, Some(live.id));
}

pub(super) async fn a_thousand_keys(mut kit: Kit) {
    let owner = kit.owner().await;
    let keys: Vec<Key> = (0..1_000).map(|n| kit.key(&format!("bulk-{n}-"))).collect();
    let timers: Vec<_> = keys.iter().map(|key| kit.keyed(kit.now + MINUTE, key)).collect();
    owner.add_all(&timers).await;
    assert_eq!(owner.census().await.keys, 1_000);
    for n in [0, 1, 499, 999] {
        assert_eq!(owner.see_key(&keys[n]).await, Some(timers[n].id));
    }
    let ops = keys.iter().map(|key| {
        Op::Cancel(Cancel {
            target: Target::Key(dest(), key.clone()),
            sent_attempt: None,
            request: RequestId(unique()),
        })
    });
    let answers = owner.apply(ops.collect()).await;
    for (timer, answer) in timers.iter().zip(answers) {
        assert_eq!(answer, Answer::Cancel(CancelAnswer::Cancelled(timer.id)));
    }
    assert_eq!(owner.census().await.keys, 0);
}
