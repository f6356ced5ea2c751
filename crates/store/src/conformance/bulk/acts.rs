//! What a job does with each timer.

use mtimer_types::limits::MAX_AHEAD_MS;
use mtimer_types::{
    Bulk, BulkAction, BulkFailure, BulkObstacle, DeadReason, Ended, Filter, Headers, Time, Timer,
};

use super::super::kit::Kit;
use super::super::values::{DAY, HOUR, MINUTE, NEW, SECOND, dest, other_dest, pending_at};
use super::{SHIFT, TOO_LATE, all, begin, begin_all, counts, end, job, mark};
use crate::ops::{BulkAct, BulkActAnswer, SettleAnswer};
use crate::{Answer, Op, Place, ScheduleAnswer};

pub(in crate::conformance) async fn it_acts_on_what_matches_and_counts_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("mine");
    let (pending, parked) = (kit.keyed(kit.now + DAY, &key), kit.timer(kit.now));
    let other = Timer { dest: other_dest(), ..kit.timer(kit.now) };
    owner.add_all(&[pending.clone(), other.clone()]).await;
    owner.add_parked(&parked).await;
    let number = begin(&owner, Bulk::new(BulkAction::Cancel, dest())).await;
    assert_eq!(owner.bulk_act(number, pending.id).await, BulkActAnswer::Cancelled);
    assert_eq!(owner.bulk_act(number, parked.id).await, BulkActAnswer::Cancelled);
    assert_eq!(owner.bulk_act(number, other.id).await, BulkActAnswer::Passed);
    assert_eq!(owner.bulk_act(number, kit.timer(kit.now).id).await, BulkActAnswer::Passed, "nowhere");
    assert_eq!(owner.bulk_act(number + 1, other.id).await, BulkActAnswer::Passed, "no job");
    assert_eq!(counts(&owner, number).await, (2, 0));
    assert_eq!(owner.fires().await, [(other.id, other.due)]);
    assert_eq!(owner.schedule(&pending).await, ScheduleAnswer::Ended(Ended::Cancelled));
    assert_eq!(owner.schedule(&kit.keyed(kit.now, &key)).await, NEW, "its key is free");
    assert_eq!((owner.census().await.pending, owner.census().await.parked), (2, 0));
}

pub(in crate::conformance) async fn a_repeat_counts_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = [(); 3].map(|()| kit.timer(kit.now));
    owner.add_all(&timers).await;
    let number = begin_all(&owner, SHIFT).await;
    let moved = BulkActAnswer::Moved { due: kit.now + HOUR };
    assert_eq!(owner.bulk_act(number, timers[0].id).await, moved);
    assert_eq!(owner.bulk_act(number, timers[0].id).await, BulkActAnswer::Passed);
    let act = |id, is_begun| Op::from(BulkAct { number, id, sent_attempt: None, is_begun, adds: false });
    let (once, late) = (act(timers[1].id, false), act(timers[2].id, true));
    let answers = owner.apply(vec![once.clone(), once, late.clone(), late]).await;
    let expected = [moved, BulkActAnswer::Passed, TOO_LATE, BulkActAnswer::Passed].map(Answer::BulkAct);
    assert_eq!(answers, expected);
    assert_eq!(counts(&owner, number).await, (2, 1));
    assert_eq!(owner.fires().await.iter().filter(|(_, fire)| *fire == kit.now + HOUR).count(), 2);
}

pub(in crate::conformance) async fn it_does_not_meet_what_it_has_moved(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<Timer> = (0..4).map(|n| kit.timer(kit.now + n * HOUR)).collect();
    owner.add_all(&timers).await;
    let number = begin_all(&owner, SHIFT).await;
    // As an owner reads on, in the order of fire times: each lands where the next one was.
    for _ in 0..2 {
        for timer in &timers {
            owner.bulk_act(number, timer.id).await;
        }
    }
    assert_eq!(counts(&owner, number).await, (4, 0));
    let mut expected: Vec<_> = timers.iter().map(|timer| (timer.id, timer.due + HOUR)).collect();
    expected.sort_unstable();
    assert_eq!(owner.fires().await, expected);
}

pub(in crate::conformance) async fn a_shift_moves_the_deadline_too(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = |due: Time| Timer { deadline: Some(due + MINUTE), ..kit.timer(due) };
    let (pending, parked) = (timer(kit.now + DAY), timer(kit.now));
    owner.add(&pending).await;
    owner.add_parked(&parked).await;
    for ms in [3 * HOUR as i64, -(2 * HOUR as i64)] {
        let number = begin_all(&owner, BulkAction::Shift { ms }).await;
        for timer in [&pending, &parked] {
            let before = owner.record(timer.id).await.timer;
            let due = Time::from_ms(before.due.as_ms().saturating_add_signed(ms));
            assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Moved { due });
            let (record, place) = owner.see(timer.id).await.unwrap();
            assert_eq!((record.timer.due, record.timer.deadline), (due, Some(due + MINUTE)));
            assert_eq!(Some(place), pending_at(due), "from the park, too");
        }
        end(&owner, number).await;
    }
}

pub(in crate::conformance) async fn a_shift_too_far_ahead_is_an_obstacle(mut kit: Kit) {
    let owner = kit.owner().await;
    let [near, far] = [0, HOUR].map(|ahead| kit.timer(kit.now + ahead));
    owner.add_all(&[near.clone(), far.clone()]).await;
    let number = begin_all(&owner, BulkAction::Shift { ms: MAX_AHEAD_MS as i64 }).await;
    let answer = owner.bulk_act(number, near.id).await;
    assert_eq!(answer, BulkActAnswer::Moved { due: kit.now + MAX_AHEAD_MS });
    let answer = owner.bulk_act(number, far.id).await;
    assert_eq!(answer, BulkActAnswer::NotDone(BulkObstacle::TooFar));
    assert_eq!(owner.place(far.id).await, pending_at(far.due));
    assert_eq!(job(&owner, number).await.failures, [BulkFailure { id: far.id, why: BulkObstacle::TooFar }]);
}

pub(in crate::conformance) async fn a_time_beyond_the_deadline_is_an_obstacle(mut kit: Kit) {
    let owner = kit.owner().await;
    let due = kit.now + DAY;
    let with = |deadline| Timer { deadline, ..kit.timer(kit.now) };
    let timers = [with(None), with(Some(due)), with(Some(due - 1))];
    owner.add_all(&timers).await;
    let number = begin_all(&owner, BulkAction::MoveTo { due }).await;
    for timer in &timers[..2] {
        assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Moved { due });
        assert_eq!(owner.record(timer.id).await.timer.deadline, timer.deadline, "it stays");
    }
    let id = timers[2].id;
    let why = BulkObstacle::PastDeadline;
    assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::NotDone(why));
    assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Passed);
    assert_eq!(owner.place(id).await, pending_at(kit.now));
    let job = job(&owner, number).await;
    assert_eq!((job.done, job.not_done, job.failures), (2, 1, vec![BulkFailure { id, why }]));
}

pub(in crate::conformance) async fn a_deadline_that_would_have_passed_is_an_obstacle(mut kit: Kit) {
    let owner = kit.owner().await;
    let with = |deadline| Timer { deadline: Some(kit.now + deadline), ..kit.timer(kit.now + HOUR) };
    let [long, short] = [2 * HOUR, 2 * HOUR - 1].map(with);
    owner.add_all(&[long.clone(), short.clone()]).await;
    let number = begin_all(&owner, BulkAction::Shift { ms: -2 * HOUR as i64 }).await;
    let due = long.due - 2 * HOUR;
    assert_eq!(owner.bulk_act(number, long.id).await, BulkActAnswer::Moved { due });
    let why = BulkObstacle::PastDeadline;
    assert_eq!(owner.bulk_act(number, short.id).await, BulkActAnswer::NotDone(why));
    assert_eq!(owner.place(short.id).await, pending_at(short.due));
    let record = owner.record(short.id).await;
    assert_eq!((record.timer.deadline, record.extensions.bulk_mark()), (short.deadline, number));
}

pub(in crate::conformance) async fn it_is_too_late_for_one_in_flight(mut kit: Kit) {
    let owner = kit.owner().await;
    let [stopped, held] = [(); 2].map(|()| kit.timer(kit.now));
    owner.add_all(&[stopped.clone(), held.clone()]).await;
    let cancel = begin_all(&owner, BulkAction::Cancel).await;
    let act = |number, id, sent_attempt, is_begun| {
        BulkAct { number, id, sent_attempt, is_begun, adds: false }.into()
    };
    let answer = owner.one(act(cancel, stopped.id, Some(1), true)).await;
    assert_eq!(answer, Answer::BulkAct(BulkActAnswer::Stopped));
    let record = owner.record(stopped.id).await;
    assert!(record.progress.stopped, "no attempt follows");
    assert_eq!((record.extensions.bulk_mark(), owner.place(stopped.id).await), (cancel, pending_at(kit.now)));
    assert_eq!(owner.bulk_act(cancel, stopped.id).await, BulkActAnswer::Passed);
    assert_eq!(owner.retry(stopped.id, kit.now + HOUR, 1, 1).await, SettleAnswer::Died);
    end(&owner, cancel).await;
    let shift = begin_all(&owner, SHIFT).await;
    assert_eq!(owner.one(act(shift, held.id, None, true)).await, Answer::BulkAct(TOO_LATE));
    assert_eq!((mark(&owner, held.id).await, owner.place(held.id).await), (shift, pending_at(kit.now)));
    assert!(!owner.record(held.id).await.progress.stopped, "a shift stops nothing");
    for (number, id) in [(cancel, stopped.id), (shift, held.id)] {
        let job = job(&owner, number).await;
        assert_eq!((job.done, job.not_done), (0, 1));
        assert_eq!(job.failures, [BulkFailure { id, why: BulkObstacle::TooLate }]);
    }
}

pub(in crate::conformance) async fn one_between_attempts_dies_and_is_not_moved(mut kit: Kit) {
    let owner = kit.owner().await;
    let [dies, stays] = [(); 2].map(|()| kit.timer(kit.now));
    owner.add_all(&[dies.clone(), stays.clone()]).await;
    for timer in [&dies, &stays] {
        owner.retry(timer.id, kit.now + HOUR, 1, 1).await;
    }
    let cancel = begin_all(&owner, BulkAction::Cancel).await;
    assert_eq!(owner.bulk_act(cancel, dies.id).await, BulkActAnswer::Died { failed: 1 });
    let letters = owner.all_dead().await;
    assert_eq!(
        letters.iter().map(|d| (d.record.timer.id, d.reason)).collect::<Vec<_>>(),
        [(dies.id, DeadReason::Stopped)]
    );
    assert_eq!(counts(&owner, cancel).await, (0, 1));
    assert_eq!(mark(&owner, dies.id).await, cancel);
    end(&owner, cancel).await;
    let shift = begin_all(&owner, SHIFT).await;
    assert_eq!(owner.bulk_act(shift, stays.id).await, TOO_LATE);
    assert_eq!(owner.place(stays.id).await, Some(Place::Pending { fire: kit.now + HOUR, tier: 1 }));
}

pub(in crate::conformance) async fn the_covered_are_too_late(mut kit: Kit) {
    let first = kit.owner().await;
    let [dies, stays] = [(); 2].map(|()| kit.timer(kit.now));
    first.add_all(&[dies.clone(), stays.clone()]).await;
    first.claim(kit.now + SECOND).await;
    let owner = kit.owner().await;
    let cancel = begin_all(&owner, BulkAction::Cancel).await;
    assert_eq!(owner.bulk_act(cancel, dies.id).await, BulkActAnswer::Died { failed: 1 });
    end(&owner, cancel).await;
    let shift = begin_all(&owner, SHIFT).await;
    assert_eq!(owner.bulk_act(shift, stays.id).await, TOO_LATE);
    assert_eq!(owner.place(stays.id).await, pending_at(kit.now));
}

pub(in crate::conformance) async fn the_dead_and_unconfirmed_are_replayed(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let key = kit.key("taken");
    let (letter, lost, live) = (kit.timer(kit.now), kit.amo(kit.now), kit.timer(kit.now + HOUR));
    let robbed = kit.keyed(kit.now, &key);
    for timer in [&letter, &robbed] {
        owner.add_dead(timer).await;
    }
    owner.add_unconfirmed(&lost).await;
    owner.add_all(&[live.clone(), kit.keyed(kit.now, &key)]).await;
    let number = begin_all(&owner, BulkAction::Replay).await;
    owner.now = kit.now + MINUTE;
    for id in [letter.id, lost.id] {
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Replayed);
        let (record, place) = owner.see(id).await.unwrap();
        assert_eq!(Some(place), pending_at(owner.now));
        assert_eq!(record.progress.budget_from, record.progress.failed, "a new budget");
        assert_eq!(record.extensions.bulk_mark(), number);
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Passed);
    }
    let why = BulkObstacle::KeyTaken;
    assert_eq!(owner.bulk_act(number, robbed.id).await, BulkActAnswer::NotDone(why));
    assert_eq!(owner.place(robbed.id).await, Some(Place::Dead));
    assert_eq!(owner.bulk_act(number, live.id).await, BulkActAnswer::Passed);
    let job = job(&owner, number).await;
    assert_eq!((job.done, job.not_done, job.failures), (2, 1, vec![BulkFailure { id: robbed.id, why }]));
    // One that dies again is not replayed again.
    owner.dead_letter(letter.id).await;
    assert_eq!(owner.bulk_act(number, letter.id).await, BulkActAnswer::Passed);
}

pub(in crate::conformance) async fn the_dead_and_unconfirmed_are_purged(mut kit: Kit) {
    let owner = kit.owner().await;
    let (letter, lost, live) = (kit.timer(kit.now), kit.amo(kit.now), kit.timer(kit.now));
    owner.add_dead(&letter).await;
    owner.add_unconfirmed(&lost).await;
    owner.add(&live).await;
    let number = begin_all(&owner, BulkAction::Purge).await;
    for id in [letter.id, lost.id] {
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Purged);
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Passed);
        assert_eq!(owner.place(id).await, None);
    }
    assert_eq!(owner.bulk_act(number, live.id).await, BulkActAnswer::Passed);
    assert_eq!(owner.schedule(&letter).await, ScheduleAnswer::Ended(Ended::Dead));
    assert_eq!(counts(&owner, number).await, (2, 0));
    let census = owner.census().await;
    assert_eq!((census.pending, census.dead, census.taken), (1, 0, 0));
}

pub(in crate::conformance) async fn every_condition_of_its_filter(mut kit: Kit) {
    let owner = kit.owner().await;
    let headers = Headers::new([("tenant", "acme")]).unwrap();
    let keyed = kit.keyed(kit.now, &kit.key("order-17"));
    let with_header = Timer { headers, ..kit.timer(kit.now) };
    let elsewhere = Timer { dest: other_dest(), ..kit.timer(kit.now) };
    let (early, late) = (kit.timer(kit.now - DAY), kit.timer(kit.now + DAY));
    let (parked, retried) = (kit.timer(kit.now - DAY), kit.timer(kit.now));
    let timers = [&keyed, &with_header, &elsewhere, &early, &late, &retried];
    owner.add_all(&timers.map(Clone::clone)).await;
    owner.add_parked(&parked).await;
    owner.retry(retried.id, kit.now + DAY, 1, 1).await;
    let some = |text: &str| Some(text.to_owned());
    let of = |filter| Bulk::new(BulkAction::MoveTo { due: kit.now }, filter);
    let everything = || of(Filter::default());
    let header = |value: &str| Some(("tenant".to_owned(), value.to_owned()));
    for (bulk, matches) in [
        (of(Filter { key_prefix: some("order-1"), ..Filter::default() }), vec![&keyed]),
        (of(Filter { key_prefix: some(""), ..Filter::default() }), vec![&keyed]),
        (of(Filter { key_prefix: some("order-2"), ..Filter::default() }), vec![]),
        (of(Filter { header: header("acme"), ..Filter::default() }), vec![&with_header]),
        (of(Filter { header: header("acm"), ..Filter::default() }), vec![]),
        (of(Filter { app: some(other_dest().app()), ..Filter::default() }), vec![&elsewhere]),
        (of(Filter { group: some("other"), ..Filter::default() }), vec![]),
        (Bulk { until: kit.now - DAY, ..everything() }, vec![&early, &parked]),
        (Bulk { from: kit.now + DAY, ..everything() }, vec![&late, &retried]),
        (Bulk { from: kit.now + 1, until: kit.now + DAY - 1, ..everything() }, vec![]),
        (Bulk { retrying: Some(true), ..everything() }, vec![&retried]),
        (
            Bulk { retrying: Some(false), ..everything() },
            vec![&keyed, &with_header, &elsewhere, &early, &late, &parked],
        ),
    ] {
        let number = begin(&owner, bulk.clone()).await;
        for timer in timers.into_iter().chain([&parked]) {
            // An act that does not change the timer, except for its mark.
            let act = BulkAct { number, id: timer.id, sent_attempt: None, is_begun: true, adds: false };
            let is_wanted = matches.iter().any(|matching| matching.id == timer.id);
            let expected = if is_wanted { TOO_LATE } else { BulkActAnswer::Passed };
            assert_eq!(owner.one(act.into()).await, Answer::BulkAct(expected), "{timer:?} by {bulk:?}");
        }
        end(&owner, number).await;
    }
}

pub(in crate::conformance) async fn of_retained_ones_the_time_is_that_of_their_end(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let letters = [(); 2].map(|()| kit.timer(kit.now + DAY));
    let lost = [(); 2].map(|()| kit.amo(kit.now + DAY));
    for (letter, lost) in letters.iter().zip(&lost) {
        owner.add_dead(letter).await;
        owner.add_unconfirmed(lost).await;
        owner.now = owner.now + MINUTE;
    }
    let number = begin(&owner, Bulk { until: kit.now, ..all(BulkAction::Purge) }).await;
    for (n, timers) in [&letters, &lost].into_iter().flat_map(|timers| timers.iter().enumerate()) {
        let answer = owner.bulk_act(number, timers.id).await;
        assert_eq!(answer, if n == 0 { BulkActAnswer::Purged } else { BulkActAnswer::Passed });
    }
}

pub(in crate::conformance) async fn a_thousand_timers(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<Timer> = (0..1_000).map(|n| kit.timer(kit.now + n * MINUTE)).collect();
    owner.add_all(&timers).await;
    let number = begin_all(&owner, BulkAction::Shift { ms: DAY as i64 }).await;
    let act = |timer: &Timer| {
        BulkAct { number, id: timer.id, sent_attempt: None, is_begun: false, adds: false }.into()
    };
    for page in timers.chunks(250) {
        let answers = owner.apply(page.iter().map(act).collect()).await;
        for (timer, answer) in page.iter().zip(answers) {
            assert_eq!(answer, Answer::BulkAct(BulkActAnswer::Moved { due: timer.due + DAY }));
        }
    }
    assert_eq!(counts(&owner, number).await, (1_000, 0));
    let mut expected: Vec<_> = timers.iter().map(|timer| (timer.id, timer.due + DAY)).collect();
    expected.sort_unstable();
    assert_eq!(owner.fires().await, expected);
}
