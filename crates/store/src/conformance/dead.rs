//! Dead letters: complete, listed, replayed, purged, trimmed.

use mtimer_types::{DeadReason, Destination, Ended, RetryTiers, Time, Timer, TimerId};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{DAY, HOUR, MINUTE, NEW, OLD, SECOND, dest, other_dest, pending_at};
use crate::ops::{MoveAnswer, PurgeAnswer, Replay, ReplayAnswer, SettleAnswer, Trim, TrimAnswer};
use crate::{Answer, CancelAnswer, DeadFilter, DeadLetter, Op, Place, Retained, ScheduleAnswer, Verdict};

fn dead_letter(id: TimerId, reason: DeadReason, failed: u32, error: &str) -> Op {
    Op::settle(id, Verdict::Dead { reason, failed, error: error.into() })
}

/// Schedules timers and makes dead letters of them, one a minute.
async fn dead_letters(kit: &Kit, owner: &mut Owner, count: u64) -> Vec<Timer> {
    let timers: Vec<_> = (0..count).map(|n| kit.timer(kit.now + n)).collect();
    owner.add_all(&timers).await;
    for (n, timer) in (0..).zip(&timers) {
        owner.now = kit.now + n * MINUTE;
        assert_eq!(owner.dead_letter(timer.id).await, SettleAnswer::Done);
    }
    owner.now = kit.now;
    timers
}

fn ids(rows: &[DeadLetter]) -> Vec<TimerId> {
    rows.iter().map(|r| r.record.timer.id).collect()
}

fn of(timers: &[Timer]) -> Vec<TimerId> {
    timers.iter().map(|t| t.id).collect()
}

pub(super) async fn a_letter_is_complete(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let reasons = [DeadReason::Exhausted, DeadReason::Failed, DeadReason::Stopped, DeadReason::AtMostOnce];
    for (n, reason) in (1..).zip(reasons) {
        let timer = Timer {
            deadline: Some(kit.now + DAY),
            callback_timeout_ms: Some(700),
            retry: Some(RetryTiers(vec![1, 2, 3])),
            payload: vec![n as u8; 300].into(),
            ..kit.keyed(kit.now - n, &kit.key(&format!("letter-{n}-")))
        };
        owner.add(&timer).await;
        owner.now = kit.now + n;
        let error = format!("failed because of \u{2116} {n}");
        assert_eq!(
            owner.one(dead_letter(timer.id, reason, n as u32 + 4, &error)).await,
            Answer::Settle(SettleAnswer::Done)
        );
        let letter = owner.all_dead().await.pop().unwrap();
        assert_eq!(*letter.record.timer, timer);
        assert_eq!((letter.reason, letter.died), (reason, kit.now + n));
        assert_eq!(letter.record.progress.failed, n as u32 + 4);
        assert_eq!(letter.record.progress.last_error.as_deref(), Some(&*error));
        let (record, place) = owner.see(timer.id).await.unwrap();
        assert_eq!((record, place), (letter.record, Place::Dead));
    }
    assert_eq!(owner.pending().await.len(), 0);
    assert_eq!(owner.census().await.dead, 4);
}

pub(super) async fn the_first_death_counts(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_dead(&timer).await;
    let before = owner.all_dead().await;
    owner.now = kit.now + HOUR;
    assert_eq!(
        owner.one(dead_letter(timer.id, DeadReason::Exhausted, 9, "again")).await,
        Answer::Settle(SettleAnswer::Done)
    );
    assert_eq!(owner.all_dead().await, before);
}

pub(super) async fn an_error_is_cut_at_512_bytes(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let long = format!("abc{}", "\u{1f570}".repeat(200));
    assert_eq!(
        owner.one(dead_letter(timer.id, DeadReason::Failed, 1, &long)).await,
        Answer::Settle(SettleAnswer::Done)
    );
    let letter = owner.all_dead().await.remove(0);
    assert_eq!(letter.record.progress.last_error.as_deref(), Some(&long[..3 + 4 * 127]));
}

pub(super) async fn it_dies_in_the_park_and_taken(mut kit: Kit) {
    let owner = kit.owner().await;
    let (parked, taken) = (kit.timer(kit.now), kit.amo(kit.now));
    owner.add_parked(&parked).await;
    owner.add_taken(&taken).await;
    for id in [parked.id, taken.id] {
        assert_eq!(owner.dead_letter(id).await, SettleAnswer::Done);
        assert_eq!(owner.place(id).await, Some(Place::Dead));
    }
    let census = owner.census().await;
    assert_eq!((census.parked, census.taken, census.dead), (0, 0, 2));
    assert_eq!(owner.parked_counts().await.len(), 0);
}

pub(super) async fn a_dead_timer_is_out_of_reach(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_dead(&timer).await;
    let before = owner.state().await;
    let id = timer.id;
    for verdict in [
        Verdict::Ack,
        Verdict::LateAck { attempt: 1 },
        Verdict::Expired { next: Time::MAX },
        Verdict::Unconfirmed,
        Verdict::Retry { fire: kit.now, tier: 1, failed: 7, error: "x".into() },
    ] {
        assert_eq!(owner.settle(id, verdict).await, SettleAnswer::Gone);
    }
    assert_eq!(owner.take(id).await, MoveAnswer::Gone);
    assert_eq!(owner.park(id).await, MoveAnswer::Gone);
    assert_eq!(owner.unpark(id, kit.now).await, MoveAnswer::Gone);
    assert_eq!(owner.cancel(id).await, CancelAnswer::TooLate(id));
    assert_eq!(owner.reschedule(id, kit.now + HOUR).await, crate::RescheduleAnswer::TooLate(id));
    assert_eq!(owner.state().await, before);
}

pub(super) async fn the_oldest_come_first(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 60).await;
    assert_eq!(ids(&owner.all_dead().await), of(&timers));
    let next = kit.owner().await;
    assert_eq!(ids(&next.all_dead().await), of(&timers), "for the next owner, too");
}

pub(super) async fn pages_show_each_letter_once(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 50).await;
    for limit in [1, 3, 49, 50, 1_000] {
        let rows = owner.dead_where(&DeadFilter::default(), limit).await;
        assert_eq!(ids(&rows), of(&timers), "in pages of {limit}");
    }
}

pub(super) async fn many_that_died_together_are_listed_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..600).map(|n| kit.timer(kit.now + n)).collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| dead_letter(t.id, DeadReason::Failed, 1, "x")).collect()).await;
    for limit in [13, 600] {
        let mut listed = ids(&owner.dead_where(&DeadFilter::default(), limit).await);
        listed.sort_unstable();
        let mut expected = of(&timers);
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}

pub(super) async fn filters_by_group_and_app(mut kit: Kit) {
    let owner = kit.owner().await;
    let elsewhere = Destination::new("stock", "billing").unwrap();
    let dests = [dest(), other_dest(), elsewhere, dest()];
    let timers: Vec<_> =
        (0..40).map(|n| Timer { dest: dests[n % 4].clone(), ..kit.timer(kit.now + n as u64) }).collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| dead_letter(t.id, DeadReason::Failed, 1, "x")).collect()).await;
    let count = async |group: Option<&str>, app: Option<&str>, limit| {
        let filter = DeadFilter { group: group.map(Into::into), app: app.map(Into::into) };
        let rows = owner.dead_where(&filter, limit).await;
        assert!(rows.iter().all(|r| filter.accepts(&r.record.timer.dest)));
        rows.len()
    };
    for limit in [3, 100] {
        assert_eq!(count(None, None, limit).await, 40);
        assert_eq!(count(Some("orders"), None, limit).await, 30);
        assert_eq!(count(None, Some("billing"), limit).await, 30);
        assert_eq!(count(Some("orders"), Some("billing"), limit).await, 20);
        assert_eq!(count(Some("stock"), None, limit).await, 10);
        assert_eq!(count(Some("stock"), Some("shipping"), limit).await, 0);
        assert_eq!(count(Some("order"), None, limit).await, 0);
    }
}

pub(super) async fn a_replay_brings_it_back(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now - HOUR);
    owner.add(&timer).await;
    owner.one(dead_letter(timer.id, DeadReason::Exhausted, 6, "used up")).await;
    let fire = kit.now + SECOND;
    assert_eq!(owner.replay(timer.id, fire).await, ReplayAnswer::Done);
    let (record, place) = owner.see(timer.id).await.unwrap();
    assert_eq!(Some(place), pending_at(fire));
    assert_eq!(record.attempt(false), 7, "the number rises");
    assert_eq!((record.progress.failed, record.progress.budget_from), (6, 6), "with a new budget");
    assert_eq!(owner.all_dead().await, []);
    assert_eq!(owner.fires().await, [(timer.id, fire)]);
    assert_eq!(owner.replay(timer.id, kit.now + HOUR).await, ReplayAnswer::Done, "a repeat");
    assert_eq!(owner.fires().await, [(timer.id, fire)], "changes nothing");
}

pub(super) async fn a_replayed_timer_can_die_again(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.one(dead_letter(timer.id, DeadReason::Exhausted, 2, "first")).await;
    owner.replay(timer.id, kit.now).await;
    owner.now = kit.now + MINUTE;
    owner.one(dead_letter(timer.id, DeadReason::Failed, 3, "second")).await;
    let letters = owner.all_dead().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason, letters[0].died), (DeadReason::Failed, kit.now + MINUTE));
    assert_eq!(owner.replay(timer.id, kit.now).await, ReplayAnswer::Done);
    assert_eq!(owner.record(timer.id).await.progress.budget_from, 3);
}

pub(super) async fn a_replay_forgets_that_it_was_stopped(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.cancel_in_flight(timer.id).await;
    owner.retry(timer.id, kit.now, 1, 1).await;
    assert_eq!(owner.replay(timer.id, kit.now).await, ReplayAnswer::Done);
    assert!(!owner.record(timer.id).await.progress.stopped);
    assert_eq!(owner.retry(timer.id, kit.now + SECOND, 1, 2).await, SettleAnswer::Done);
    assert_eq!(owner.place(timer.id).await, Some(Place::Pending { fire: kit.now + SECOND, tier: 1 }));
}

pub(super) async fn a_replay_drops_a_deadline_that_has_passed(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let now = kit.now + HOUR;
    // (deadline, fire, deadline after the replay)
    let cases = [
        (now - 1, now, None),
        (now - MINUTE, now + DAY, None),
        (now, now, Some(now)),
        (now + MINUTE, now, Some(now + MINUTE)),
        (now + MINUTE, now + DAY, Some(now + MINUTE)),
    ];
    for (deadline, fire, left) in cases {
        let timer = Timer { deadline: Some(deadline), ..kit.timer(kit.now) };
        owner.now = kit.now;
        owner.add_dead(&timer).await;
        owner.now = now;
        assert_eq!(owner.replay(timer.id, fire).await, ReplayAnswer::Done);
        let found = owner.record(timer.id).await.timer.deadline;
        assert_eq!(found, left, "deadline {deadline}, replayed at {now} for {fire}");
        assert_eq!(owner.schedule(&timer).await, OLD, "a repeat of its schedule is one still");
    }
}

pub(super) async fn only_the_dead_and_unconfirmed_are_replayed(mut kit: Kit) {
    let owner = kit.owner().await;
    let (parked, taken) = (kit.timer(kit.now), kit.amo(kit.now));
    owner.add_parked(&parked).await;
    owner.add_taken(&taken).await;
    let before = owner.state().await;
    for id in [parked.id, taken.id, kit.timer(kit.now).id] {
        assert_eq!(owner.replay(id, kit.now).await, ReplayAnswer::Gone);
    }
    assert_eq!(owner.state().await, before);
}

pub(super) async fn hundreds_are_replayed(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..500).map(|n| kit.timer(kit.now - n * MINUTE)).collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| dead_letter(t.id, DeadReason::Failed, 1, "x")).collect()).await;
    let ops = timers.iter().map(|t| Op::Replay(Replay { id: t.id, fire: kit.now + 5 })).collect();
    assert!(owner.apply(ops).await.iter().all(|a| *a == Answer::Replay(ReplayAnswer::Done)));
    let fires = owner.fires().await;
    assert_eq!(fires.len(), 500);
    assert!(fires.iter().all(|(_, fire)| *fire == kit.now + 5));
    assert_eq!(owner.census().await.dead, 0);
}

pub(super) async fn a_purge_removes_one(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 3).await;
    assert_eq!(owner.purge(timers[1].id).await, PurgeAnswer::Done);
    assert_eq!(owner.purge(timers[1].id).await, PurgeAnswer::Gone);
    assert_eq!(owner.place(timers[1].id).await, None);
    assert_eq!(ids(&owner.all_dead().await), [timers[0].id, timers[2].id]);
    assert_eq!(owner.replay(timers[1].id, kit.now).await, ReplayAnswer::Gone);
}

pub(super) async fn a_purge_spares_the_living(mut kit: Kit) {
    let owner = kit.owner().await;
    let (pending, parked) = (kit.timer(kit.now), kit.timer(kit.now));
    owner.add(&pending).await;
    owner.add_parked(&parked).await;
    for id in [pending.id, parked.id, kit.timer(kit.now).id] {
        assert_eq!(owner.purge(id).await, PurgeAnswer::Gone);
    }
    assert_eq!((owner.census().await.pending, owner.census().await.parked), (1, 1));
}

pub(super) async fn the_end_of_one_long_dead_is_forgotten(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let (old, young) = (kit.timer(kit.now), kit.timer(kit.now));
    owner.now = kit.now - MINUTE;
    owner.add_dead(&old).await;
    owner.now = kit.now - SECOND;
    owner.add_dead(&young).await;
    owner.now = kit.now;
    assert_eq!(owner.purge(old.id).await, PurgeAnswer::Done);
    assert_eq!(owner.purge(young.id).await, PurgeAnswer::Done);
    assert_eq!(owner.schedule(&young).await, ScheduleAnswer::Ended(Ended::Dead));
    assert_eq!(owner.schedule(&old).await, NEW);
}

pub(super) async fn trim_by_age(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 10).await;
    let trim = async |before| {
        owner.one(Op::Trim(Trim { of: Retained::Dead, before, keep: u64::MAX, limit: 100 })).await
    };
    assert_eq!(trim(kit.now).await, Answer::Trim(TrimAnswer { removed: 0, more: false }));
    assert_eq!(trim(kit.now + 4 * MINUTE).await, Answer::Trim(TrimAnswer { removed: 4, more: false }));
    assert_eq!(ids(&owner.all_dead().await), of(&timers[4..]), "who died at the bound stays");
    assert_eq!(trim(Time::MAX).await, Answer::Trim(TrimAnswer { removed: 6, more: false }));
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn trim_by_count(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 10).await;
    let trim = async |keep| {
        owner.one(Op::Trim(Trim { of: Retained::Dead, before: Time::ZERO, keep, limit: 100 })).await
    };
    assert_eq!(trim(10).await, Answer::Trim(TrimAnswer { removed: 0, more: false }));
    assert_eq!(trim(7).await, Answer::Trim(TrimAnswer { removed: 3, more: false }));
    assert_eq!(ids(&owner.all_dead().await), of(&timers[3..]), "the oldest go");
    assert_eq!(trim(0).await, Answer::Trim(TrimAnswer { removed: 7, more: false }));
    assert_eq!(owner.all_dead().await, []);
}

pub(super) async fn trim_in_portions(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 10).await;
    let trim = async |keep, limit| {
        owner.one(Op::Trim(Trim { of: Retained::Dead, before: Time::ZERO, keep, limit })).await
    };
    assert_eq!(trim(2, 0).await, Answer::Trim(TrimAnswer { removed: 0, more: true }));
    assert_eq!(trim(2, 3).await, Answer::Trim(TrimAnswer { removed: 3, more: true }));
    assert_eq!(trim(2, 5).await, Answer::Trim(TrimAnswer { removed: 5, more: false }));
    assert_eq!(ids(&owner.all_dead().await), of(&timers[8..]));
}

pub(super) async fn trim_by_age_and_count(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let timers = dead_letters(&kit, &mut owner, 10).await;
    let trim = Op::Trim(Trim { of: Retained::Dead, before: kit.now + 3 * MINUTE, keep: 5, limit: 100 });
    assert_eq!(
        owner.one(trim).await,
        Answer::Trim(TrimAnswer { removed: 5, more: false }),
        "whichever takes more"
    );
    let trim = Op::Trim(Trim { of: Retained::Dead, before: kit.now + 8 * MINUTE, keep: 4, limit: 2 });
    assert_eq!(owner.one(trim).await, Answer::Trim(TrimAnswer { removed: 2, more: true }));
    assert_eq!(ids(&owner.all_dead().await), of(&timers[7..]));
}

pub(super) async fn trim_of_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    owner.add(&kit.timer(kit.now)).await;
    let trim = Op::Trim(Trim { of: Retained::Dead, before: Time::MAX, keep: 0, limit: 100 });
    assert_eq!(owner.one(trim).await, Answer::Trim(TrimAnswer { removed: 0, more: false }));
    assert_eq!(owner.census().await.pending, 1);
}

pub(super) async fn trimmed_timers_stay_ended(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_dead(&timer).await;
    owner.one(Op::Trim(Trim { of: Retained::Dead, before: Time::MAX, keep: 0, limit: 100 })).await;
    assert_eq!(owner.schedule(&timer).await, ScheduleAnswer::Ended(Ended::Dead));
}
