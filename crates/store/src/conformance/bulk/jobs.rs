//! The jobs themselves: how they begin, wait, end and are kept.

use mtimer_types::limits::{MAX_BULK_FAILURES, MAX_BULK_JOBS, MAX_FILTER_BYTES};
use mtimer_types::{Bulk, BulkAction, BulkId, Filter, PartitionId, Time, Timer, TimerId};

use super::super::kit::Kit;
use super::super::values::{DAY, HOUR, MINUTE, dest, other_dest, pending_at, unique};
use super::{SHIFT, TOO_LATE, all, begin, begin_all, counts, end, job, mark};
use crate::bulk::{BulkEnd, BulkJob, BulkPlace};
use crate::ops::{BeginBulkAnswer, BulkAct, BulkActAnswer, MoveAnswer, StopBulkAnswer};
use crate::{Answer, RescheduleAnswer};

fn ids(timers: &[Timer]) -> Vec<TimerId> {
    timers.iter().map(|timer| timer.id).collect()
}

pub(in crate::conformance) async fn it_is_listed_as_it_began(mut kit: Kit) {
    let owner = kit.owner().await;
    let filter = Filter {
        group: Some("orders".into()),
        app: Some("Größe".into()),
        key_prefix: Some("x".repeat(MAX_FILTER_BYTES - 100)),
        header: Some(("tenant".into(), "acme".into())),
    };
    let (from, until) = (kit.now - DAY, kit.now + DAY);
    let full = Bulk { retrying: Some(true), from, until, rate: 500, ..Bulk::new(SHIFT, filter) };
    let dry = Bulk { dry_run: true, ..all(BulkAction::Purge) };
    for (bulk, at) in [
        (full, BulkPlace::Pending((from, TimerId::from_u128(0)))),
        (all(BulkAction::Cancel), BulkPlace::Pending((Time::ZERO, TimerId::from_u128(0)))),
        (all(BulkAction::MoveTo { due: kit.now }), BulkPlace::Pending((Time::ZERO, TimerId::from_u128(0)))),
        (all(BulkAction::Replay), BulkPlace::Unconfirmed),
        (dry, BulkPlace::Unconfirmed),
    ] {
        let id = BulkId(u128::MAX - u128::from(unique()));
        assert_eq!(owner.begin_bulk(id, bulk.clone()).await, BeginBulkAnswer::Begun);
        let jobs = owner.bulks().await;
        let number = jobs.len() as u32;
        let (begun, ended, failures) = (owner.now, None, vec![]);
        let expected = BulkJob { number, id, bulk, begun, ended, at, done: 0, not_done: 0, failures };
        assert_eq!(jobs.last(), Some(&expected));
    }
    let jobs = owner.bulks().await;
    assert_eq!(kit.owner().await.bulks().await, jobs, "the next owner finds them");
}

pub(in crate::conformance) async fn it_goes_on_after_a_takeover(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<Timer> = (0..6).map(|n| kit.timer(kit.now + n * MINUTE)).collect();
    first.add_all(&timers).await;
    let id = BulkId(7);
    first.begin_bulk(id, all(SHIFT)).await;
    for timer in &timers[..3] {
        first.bulk_act(1, timer.id).await;
    }
    let at = BulkPlace::Pending((timers[2].due, timers[2].id));
    assert_eq!(first.bulk_advance(1, at, 0).await, MoveAnswer::Done);
    let jobs = first.bulks().await;
    assert_eq!((jobs[0].at, jobs[0].done), (at, 3));
    let second = kit.owner().await;
    assert_eq!(second.bulks().await, jobs);
    assert_eq!(second.begin_bulk(id, all(SHIFT)).await, BeginBulkAnswer::Begun, "a repeat");
    assert_eq!(second.bulks().await, jobs);
    for (n, timer) in timers.iter().enumerate() {
        let answer = second.bulk_act(1, timer.id).await;
        let moved = BulkActAnswer::Moved { due: timer.due + HOUR };
        assert_eq!(answer, if n < 3 { BulkActAnswer::Passed } else { moved });
    }
    end(&second, 1).await;
    let ended =
        BulkJob { ended: Some((kit.now, BulkEnd::Done)), at: BulkPlace::End, done: 6, ..jobs[0].clone() };
    assert_eq!(kit.owner().await.bulks().await, [ended]);
}

pub(in crate::conformance) async fn it_survives_a_restart(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = [(); 2].map(|()| kit.timer(kit.now));
    owner.add_all(&timers).await;
    let number = begin_all(&owner, SHIFT).await;
    owner.bulk_act(number, timers[0].id).await;
    let after = kit.timer(kit.now);
    owner.add(&after).await;
    let jobs = owner.bulks().await;
    drop(owner);
    if !kit.restart().await {
        return;
    }
    let owner = kit.owner().await;
    assert_eq!(owner.bulks().await, jobs);
    for id in [timers[0].id, after.id] {
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Passed);
    }
    assert_eq!(owner.bulk_act(number, timers[1].id).await, BulkActAnswer::Moved { due: kit.now + HOUR });
}

pub(in crate::conformance) async fn of_two_about_live_timers_the_second_waits(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = [(); 2].map(|()| kit.timer(kit.now));
    owner.add_all(&timers).await;
    let first = begin_all(&owner, SHIFT).await;
    let second = begin_all(&owner, BulkAction::Cancel).await;
    let at = BulkPlace::Parked;
    assert_eq!(owner.bulk_act(second, timers[0].id).await, BulkActAnswer::Passed);
    assert_eq!(owner.bulk_advance(second, at, 0).await, MoveAnswer::Gone);
    assert_eq!(owner.bulk_act(first, timers[0].id).await, BulkActAnswer::Moved { due: kit.now + HOUR });
    let answer = owner.reschedule(timers[1].id, kit.now).await;
    assert_eq!(answer, RescheduleAnswer::Rescheduled(timers[1].id), "the second one does not act first");
    let between = kit.timer(kit.now);
    owner.add(&between).await;
    assert_eq!(mark(&owner, between.id).await, second, "both pass it by");
    end(&owner, first).await;
    assert_eq!(owner.bulk_act(first, timers[0].id).await, BulkActAnswer::Passed);
    assert_eq!(owner.bulk_act(second, between.id).await, BulkActAnswer::Passed);
    for timer in &timers {
        assert_eq!(owner.bulk_act(second, timer.id).await, BulkActAnswer::Cancelled);
    }
    assert_eq!(owner.bulk_advance(second, at, 0).await, MoveAnswer::Done);
    assert_eq!((counts(&owner, first).await, counts(&owner, second).await), ((2, 0), (2, 0)));
}

pub(in crate::conformance) async fn one_about_retained_timers_does_not_wait(mut kit: Kit) {
    let owner = kit.owner().await;
    let (live, letter) = (kit.timer(kit.now), kit.timer(kit.now));
    owner.add(&live).await;
    owner.add_dead(&letter).await;
    let shift = begin_all(&owner, SHIFT).await;
    let purge = begin_all(&owner, BulkAction::Purge).await;
    let replay = begin_all(&owner, BulkAction::Replay).await;
    assert_eq!(owner.bulk_act(replay, letter.id).await, BulkActAnswer::Passed, "it waits for the purge");
    assert_eq!(owner.bulk_act(shift, letter.id).await, BulkActAnswer::Passed, "it is about live ones");
    assert_eq!(owner.bulk_act(purge, live.id).await, BulkActAnswer::Passed, "it is about retained ones");
    assert_eq!(owner.bulk_act(purge, letter.id).await, BulkActAnswer::Purged);
    assert_eq!(owner.bulk_act(shift, live.id).await, BulkActAnswer::Moved { due: kit.now + HOUR });
}

pub(in crate::conformance) async fn a_stopped_one_acts_no_more(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = [(); 2].map(|()| kit.timer(kit.now));
    owner.add_all(&timers).await;
    let id = BulkId(5);
    owner.begin_bulk(id, Bulk::new(SHIFT, dest())).await;
    owner.bulk_act(1, timers[0].id).await;
    let of_all = Filter::default();
    assert_eq!(owner.stop_bulk(id, &of_all).await, StopBulkAnswer::NotFound, "it is not of all");
    assert_eq!(owner.stop_bulk(id, &Filter::of(&other_dest())).await, StopBulkAnswer::NotFound);
    assert_eq!(owner.stop_bulk(BulkId(6), &Filter::of(&dest())).await, StopBulkAnswer::NotFound);
    assert_eq!(job(&owner, 1).await.ended, None);
    for _ in 0..2 {
        assert_eq!(owner.stop_bulk(id, &Filter::of(&dest())).await, StopBulkAnswer::Stopped);
    }
    assert_eq!(job(&owner, 1).await.ended, Some((kit.now, BulkEnd::Stopped)));
    assert_eq!(owner.bulk_act(1, timers[1].id).await, BulkActAnswer::Passed);
    assert_eq!(owner.bulk_advance(1, BulkPlace::Parked, 0).await, MoveAnswer::Gone);
    let answer = owner.reschedule(timers[1].id, kit.now).await;
    assert_eq!(answer, RescheduleAnswer::Rescheduled(timers[1].id));
    let after = kit.timer(kit.now);
    owner.add(&after).await;
    assert_eq!(mark(&owner, after.id).await, 0, "no job is under way any more");
    assert_eq!(counts(&owner, 1).await, (1, 0), "what it has done stays done");
    assert_eq!(owner.place(timers[0].id).await, pending_at(kit.now + HOUR));
    let done = BulkId(9);
    owner.begin_bulk(done, all(SHIFT)).await;
    end(&owner, 2).await;
    assert_eq!(owner.stop_bulk(done, &of_all).await, StopBulkAnswer::Done);
    assert_eq!(job(&owner, 2).await.ended, Some((kit.now, BulkEnd::Done)));
    assert_eq!(kit.owner().await.bulks().await.len(), 2);
}

pub(in crate::conformance) async fn one_that_waits_can_be_stopped(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let [first, second] = [1, 2].map(BulkId);
    for id in [first, second] {
        owner.begin_bulk(id, all(BulkAction::Cancel)).await;
    }
    assert_eq!(owner.stop_bulk(second, &Filter::default()).await, StopBulkAnswer::Stopped);
    assert_eq!(owner.bulk_act(2, timer.id).await, BulkActAnswer::Passed);
    // One before it is under way still, so what comes gets the newest mark.
    let after = kit.timer(kit.now);
    owner.add(&after).await;
    assert_eq!(owner.bulk_act(1, after.id).await, BulkActAnswer::Passed);
    assert_eq!(owner.bulk_act(1, timer.id).await, BulkActAnswer::Cancelled);
}

pub(in crate::conformance) async fn the_same_name_twice_is_one_job(mut kit: Kit) {
    let owner = kit.owner().await;
    let id = BulkId(3);
    for action in [BulkAction::Cancel, BulkAction::Cancel, BulkAction::Purge] {
        assert_eq!(owner.begin_bulk(id, all(action)).await, BeginBulkAnswer::Begun);
        let jobs = owner.bulks().await;
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].bulk, all(BulkAction::Cancel), "the first time counts");
    }
    end(&owner, 1).await;
    let jobs = owner.bulks().await;
    assert_eq!(owner.begin_bulk(id, all(BulkAction::Cancel)).await, BeginBulkAnswer::Begun);
    assert_eq!(owner.bulks().await, jobs, "also when it has ended");
}

pub(in crate::conformance) async fn there_are_so_many_at_most(mut kit: Kit) {
    let owner = kit.owner().await;
    let most = MAX_BULK_JOBS as u32;
    for number in 1..=most {
        assert_eq!(begin_all(&owner, SHIFT).await, number);
    }
    let (one_more, jobs) = (BulkId(99), owner.bulks().await);
    assert_eq!(owner.begin_bulk(one_more, all(SHIFT)).await, BeginBulkAnswer::TooMany(most));
    assert_eq!(owner.bulks().await, jobs, "nothing changed");
    let begun = owner.begin_bulk(jobs[3].id, all(SHIFT)).await;
    assert_eq!(begun, BeginBulkAnswer::Begun, "one of them is no new one");
    for n in [7, 4] {
        owner.stop_bulk(jobs[n].id, &Filter::default()).await;
    }
    assert_eq!(owner.begin_bulk(one_more, all(SHIFT)).await, BeginBulkAnswer::Begun);
    let now = owner.bulks().await;
    assert_eq!((now.len(), now.last().unwrap().number), (MAX_BULK_JOBS, most + 1));
    assert!(now.iter().all(|job| job.number != jobs[4].number), "the oldest one that had ended is gone");
    assert!(now.iter().any(|job| job.number == jobs[7].number));
    assert_eq!(kit.owner().await.bulks().await, now);
}

pub(in crate::conformance) async fn a_number_is_given_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let most = MAX_BULK_JOBS as u32;
    for number in 1..=most {
        assert_eq!(begin_all(&owner, SHIFT).await, number);
    }
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let newest = owner.bulks().await.pop().unwrap();
    owner.stop_bulk(newest.id, &Filter::default()).await;
    let next = begin_all(&owner, SHIFT).await;
    assert_eq!(next, most + 1, "although the one before it has gone");
    for number in 1..most {
        end(&owner, number).await;
    }
    let answer = owner.bulk_act(next, timer.id).await;
    assert_eq!(answer, BulkActAnswer::Moved { due: kit.now + HOUR }, "it was there before");
}

pub(in crate::conformance) async fn the_first_failures_are_named(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<Timer> = (0..MAX_BULK_FAILURES + 20).map(|_| kit.timer(kit.now)).collect();
    owner.add_all(&timers).await;
    let number = begin_all(&owner, SHIFT).await;
    let act = |timer: &Timer| {
        BulkAct { number, id: timer.id, sent_attempt: None, is_begun: true, adds: false }.into()
    };
    let answers = owner.apply(timers.iter().map(act).collect()).await;
    assert!(answers.iter().all(|answer| *answer == Answer::BulkAct(TOO_LATE)), "{answers:?}");
    let job = job(&owner, number).await;
    assert_eq!((job.done, job.not_done), (0, timers.len() as u64));
    let named: Vec<TimerId> = job.failures.iter().map(|failure| failure.id).collect();
    assert_eq!(named, ids(&timers)[..MAX_BULK_FAILURES]);
    assert_eq!(kit.owner().await.bulks().await, [job]);
}

pub(in crate::conformance) async fn a_dry_run_counts_and_changes_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    let (timer, parked) = (kit.timer(kit.now), kit.timer(kit.now));
    owner.add(&timer).await;
    owner.add_parked(&parked).await;
    let before = owner.state().await;
    let number = begin(&owner, Bulk { dry_run: true, ..all(BulkAction::Cancel) }).await;
    for id in [timer.id, parked.id] {
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Passed);
    }
    let stops = [(BulkPlace::Pending((timer.due, timer.id)), 7), (BulkPlace::Parked, 2), (BulkPlace::End, 1)];
    for (to, met) in stops {
        for _ in 0..2 {
            assert_eq!(owner.bulk_advance(number, to, met).await, MoveAnswer::Done, "a repeat counts once");
        }
    }
    assert_eq!(counts(&owner, number).await, (10, 0));
    assert_eq!(job(&owner, number).await.ended, Some((kit.now, BulkEnd::Done)));
    let mut after = owner.state().await;
    after.bulks.clear();
    assert_eq!(after, before);
    // It acts on nothing first, either.
    begin(&owner, Bulk { dry_run: true, ..all(BulkAction::Cancel) }).await;
    assert_eq!(owner.unpark(parked.id, kit.now).await, MoveAnswer::Done);
    assert_eq!(owner.reschedule(timer.id, kit.now).await, RescheduleAnswer::Rescheduled(timer.id));
}

pub(in crate::conformance) async fn partitions_have_jobs_of_their_own(mut kit: Kit) {
    let owner = kit.owner().await;
    let other = kit.owner_of(PartitionId(1)).await;
    owner.begin_bulk(BulkId(1), all(SHIFT)).await;
    assert_eq!(other.bulks().await, []);
    other.begin_bulk(BulkId(1), all(BulkAction::Purge)).await;
    other.begin_bulk(BulkId(2), all(SHIFT)).await;
    assert_eq!(owner.bulks().await.len(), 1);
    assert_eq!(other.bulks().await.iter().map(|job| job.number).collect::<Vec<_>>(), [1, 2]);
}
