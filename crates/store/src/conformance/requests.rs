//! Schedules, cancels and reschedules as clients repeat and overtake them.

use mtimer_types::{Ended, Extensions, Headers, Target, Timer};

use super::kit::Kit;
use super::values::{DAY, HOUR, MINUTE, NEW, OLD, SECOND, dest, pending_at, schedule_op, unique};
use crate::ops::{PurgeAnswer, Reschedule, SettleAnswer};
use crate::{Answer, CancelAnswer, Op, Place, RequestId, RescheduleAnswer, ScheduleAnswer, Verdict};

pub(super) async fn a_schedule_is_filed_at_its_time(mut kit: Kit) {
    let owner = kit.owner().await;
    let (past, future) = (kit.timer(kit.now - DAY), kit.timer(kit.now + DAY));
    for timer in [&past, &kit.timer(kit.now), &future] {
        assert_eq!(owner.schedule(timer).await, NEW);
        let (record, place) = owner.see(timer.id).await.unwrap();
        assert_eq!(Some(place), pending_at(timer.due));
        assert_eq!(*record.timer, *timer);
        assert_eq!(record.progress, Default::default());
    }
}

pub(super) async fn a_repeated_schedule_is_the_same(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    owner.add(&timer).await;
    assert_eq!(owner.schedule(&timer).await, OLD);
    assert_eq!(owner.fires().await, [(timer.id, timer.due)]);
    let next = kit.owner().await;
    assert_eq!(next.schedule(&timer).await, OLD, "also to the next owner");
}

pub(super) async fn a_repeat_in_one_batch_is_the_same(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    let answers = owner.apply(vec![schedule_op(&timer), schedule_op(&timer)]).await;
    assert_eq!(answers, [Answer::Schedule(NEW), Answer::Schedule(OLD)]);
    assert_eq!(owner.census().await.pending, 1);
}

pub(super) async fn a_repeat_after_a_reschedule_does_not_undo_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    owner.add(&timer).await;
    owner.reschedule(timer.id, kit.now + HOUR).await;
    assert_eq!(owner.schedule(&timer).await, OLD);
    assert_eq!(owner.fires().await, [(timer.id, kit.now + HOUR)]);
}

pub(super) async fn every_difference_but_the_times_is_a_conflict(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = Timer {
        deadline: Some(kit.now + DAY),
        callback_timeout_ms: Some(5_000),
        retry: Some(mtimer_types::RetryTiers(vec![10, 20])),
        headers: headers(&[("tenant", "acme"), ("traceparent", "1")]),
        extensions: extensions(&[(4, "a"), (6, "volatile")]),
        ..kit.keyed(kit.now + MINUTE, &kit.key("c-"))
    };
    owner.add(&timer).await;
    let t = || timer.clone();
    let others = [
        Timer { payload: "other".into(), ..t() },
        Timer { payload: Default::default(), ..t() },
        Timer { dest: super::values::other_dest(), key: None, ..t() },
        Timer { key: None, ..t() },
        Timer { key: Some(kit.key("d-")), ..t() },
        Timer { mode: mtimer_types::Mode::AtMostOnce, ..t() },
        Timer { callback_timeout_ms: None, ..t() },
        Timer { callback_timeout_ms: Some(5_001), ..t() },
        Timer { retry: None, ..t() },
        Timer { retry: Some(mtimer_types::RetryTiers(vec![])), ..t() },
        Timer { headers: Headers::NONE, ..t() },
        Timer { headers: headers(&[("tenant", "other"), ("traceparent", "1")]), ..t() },
        Timer { headers: headers(&[("tenant", "acme"), ("traceparent", "1"), ("z", "")]), ..t() },
        Timer { extensions: Extensions::NONE, ..t() },
        Timer { extensions: extensions(&[(4, "b"), (6, "volatile")]), ..t() },
        Timer { extensions: extensions(&[(4, "a"), (6, "volatile"), (8, "")]), ..t() },
    ];
    for other in others {
        assert_eq!(owner.schedule(&other).await, ScheduleAnswer::Conflict, "{other:?}");
    }
    // The stored timer may have been given others since.
    for deadline in [None, Some(kit.now + 2 * DAY)] {
        assert_eq!(owner.schedule(&Timer { deadline, due: kit.now + 1, ..t() }).await, OLD);
    }
    assert_eq!(*owner.record(timer.id).await.timer, timer, "nothing changed");
    assert_eq!(owner.census().await.keys, 1);
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    Headers::new(pairs.iter().copied()).unwrap()
}

fn extensions(fields: &[(u32, &str)]) -> Extensions {
    Extensions::new(fields.iter().copied()).unwrap()
}

pub(super) async fn a_repeat_in_another_trace_is_the_same(mut kit: Kit) {
    let owner = kit.owner().await;
    let first = headers(&[("tenant", "acme"), ("traceparent", "1"), ("tracestate", "a=1")]);
    let extensions = [extensions(&[(4, "a"), (6, "volatile")]), extensions(&[(4, "a")])];
    let timer = Timer { headers: first, extensions: extensions[0].clone(), ..kit.timer(kit.now + MINUTE) };
    owner.add(&timer).await;
    for extensions in extensions {
        assert_eq!(owner.schedule(&Timer { extensions, ..timer.clone() }).await, OLD);
    }
    for again in [headers(&[("tenant", "acme"), ("traceparent", "2")]), headers(&[("tenant", "acme")])] {
        assert_eq!(owner.schedule(&Timer { headers: again, ..timer.clone() }).await, OLD);
    }
    assert_eq!(*owner.record(timer.id).await.timer, timer, "the first trace stays");
}

pub(super) async fn a_cancelled_timer_stays_cancelled(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    owner.add(&timer).await;
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
    assert_eq!(owner.place(timer.id).await, None);
    assert_eq!(owner.schedule(&timer).await, ScheduleAnswer::Ended(Ended::Cancelled));
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id), "another cancel of it");
    assert_eq!(owner.reschedule(timer.id, kit.now + HOUR).await, RescheduleAnswer::NotFound);
    assert_eq!(owner.fires().await, []);
    let next = kit.owner().await;
    assert_eq!(
        next.schedule(&timer).await,
        ScheduleAnswer::Ended(Ended::Cancelled),
        "to the next owner, too"
    );
}

pub(super) async fn an_expired_timer_stays_expired(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = Timer { deadline: Some(kit.now), ..kit.timer(kit.now) };
    owner.add(&timer).await;
    assert_eq!(owner.settle(timer.id, Verdict::Expired { next: kit.now + 1 }).await, SettleAnswer::Done);
    assert_eq!(owner.schedule(&timer).await, ScheduleAnswer::Ended(Ended::Expired));
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::NotFound);
}

pub(super) async fn an_acknowledged_timer_leaves_no_trace(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.place(timer.id).await, None);
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Gone);
    assert_eq!(owner.reschedule(timer.id, kit.now).await, RescheduleAnswer::NotFound);
}

pub(super) async fn a_cancel_that_overtakes_its_schedule_wins(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::NotFound);
    assert_eq!(owner.schedule(&timer).await, ScheduleAnswer::Ended(Ended::CancelledUnseen));
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::NotFound);
    assert_eq!(owner.fires().await, []);
    let next = kit.owner().await;
    assert_eq!(next.schedule(&timer).await, ScheduleAnswer::Ended(Ended::CancelledUnseen));
}

pub(super) async fn a_reschedule_of_an_unknown_id_leaves_no_trace(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    assert_eq!(owner.reschedule(timer.id, kit.now).await, RescheduleAnswer::NotFound);
    assert_eq!(owner.schedule(&timer).await, NEW);
}

pub(super) async fn a_dead_timer_is_scheduled_already(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_dead(&timer).await;
    assert_eq!(owner.schedule(&timer).await, OLD);
    let other = Timer { payload: "other".into(), ..timer.clone() };
    assert_eq!(owner.schedule(&other).await, ScheduleAnswer::Conflict);
    assert_eq!(owner.place(timer.id).await, Some(Place::Dead));
}

pub(super) async fn a_purged_timer_stays_ended(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_dead(&timer).await;
    assert_eq!(owner.purge(timer.id).await, PurgeAnswer::Done);
    assert_eq!(owner.schedule(&timer).await, ScheduleAnswer::Ended(Ended::Dead));
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::NotFound);
}

pub(super) async fn a_repeated_cancel_gives_the_old_answer(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    owner.add(&timer).await;
    let request = RequestId(unique());
    for round in 0..3 {
        let answer = owner.cancel_as(Target::Id(timer.id), None, request).await;
        assert_eq!(answer, CancelAnswer::Cancelled(timer.id), "round {round}");
    }
    let next = kit.owner().await;
    let answer = next.cancel_as(Target::Id(timer.id), None, request).await;
    assert_eq!(answer, CancelAnswer::Cancelled(timer.id), "also to the next owner");
}

pub(super) async fn a_repeated_cancel_that_was_too_late_stays_so(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    let request = RequestId(unique());
    assert_eq!(
        owner.cancel_as(Target::Id(timer.id), Some(1), request).await,
        CancelAnswer::TooLate(timer.id)
    );
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.cancel_as(Target::Id(timer.id), None, request).await, CancelAnswer::TooLate(timer.id));
}

pub(super) async fn a_repeated_keyed_cancel_spares_the_next_holder(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let (first, second) = (kit.keyed(kit.now + MINUTE, &key), kit.keyed(kit.now + HOUR, &key));
    owner.add(&first).await;
    let request = RequestId(unique());
    let target = || Target::Key(dest(), key.clone());
    assert_eq!(owner.cancel_as(target(), None, request).await, CancelAnswer::Cancelled(first.id));
    owner.add(&second).await;
    assert_eq!(
        owner.cancel_as(target(), None, request).await,
        CancelAnswer::Cancelled(first.id),
        "the old answer"
    );
    assert_eq!(owner.place(second.id).await, pending_at(second.due), "the new timer lives");
    assert_eq!(owner.see_key(&key).await, Some(second.id));
    let next = kit.owner().await;
    assert_eq!(next.cancel_as(target(), None, request).await, CancelAnswer::Cancelled(first.id));
    assert_eq!(next.cancel_key(&key).await, CancelAnswer::Cancelled(second.id), "another request means it");
}

pub(super) async fn a_repeated_cancel_of_an_unknown_key_spares_its_first_holder(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let request = RequestId(unique());
    let target = || Target::Key(dest(), key.clone());
    assert_eq!(owner.cancel_as(target(), None, request).await, CancelAnswer::NotFound);
    let timer = kit.keyed(kit.now + MINUTE, &key);
    owner.add(&timer).await;
    assert_eq!(owner.cancel_as(target(), None, request).await, CancelAnswer::NotFound);
    assert_eq!(owner.place(timer.id).await, pending_at(timer.due));
}

pub(super) async fn a_repeated_reschedule_does_not_undo_a_later_one(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    owner.add(&timer).await;
    let request = RequestId(unique());
    let again = async |owner: &super::owner::Owner| {
        owner.reschedule_as(Target::Id(timer.id), kit.now + HOUR, false, request).await
    };
    assert_eq!(again(&owner).await, RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(owner.reschedule(timer.id, kit.now + DAY).await, RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(again(&owner).await, RescheduleAnswer::Rescheduled(timer.id), "the old answer");
    assert_eq!(owner.fires().await, [(timer.id, kit.now + DAY)], "but the later time");
}

pub(super) async fn a_repeated_reschedule_outlives_its_owner(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    first.add(&timer).await;
    let request = RequestId(unique());
    let to_hour = || Target::Id(timer.id);
    first.reschedule_as(to_hour(), kit.now + HOUR, false, request).await;
    first.reschedule(timer.id, kit.now + SECOND).await;
    let second = kit.owner().await;
    let answer = second.reschedule_as(to_hour(), kit.now + HOUR, false, request).await;
    assert_eq!(answer, RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(second.fires().await, [(timer.id, kit.now + SECOND)]);
    second.cancel(timer.id).await;
    let answer = second.reschedule_as(to_hour(), kit.now + HOUR, false, request).await;
    assert_eq!(answer, RescheduleAnswer::Rescheduled(timer.id), "even when it is gone");
    assert_eq!(second.fires().await, []);
}

pub(super) async fn a_repeat_in_one_batch_counts_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + MINUTE);
    owner.add(&timer).await;
    let (there, back) = (RequestId(unique()), RequestId(unique()));
    let reschedule = |due, request| {
        Op::Reschedule(Reschedule { target: Target::Id(timer.id), due, is_begun: false, request })
    };
    let ops = vec![
        reschedule(kit.now + HOUR, there),
        reschedule(kit.now + 2 * HOUR, back),
        reschedule(kit.now + HOUR, there),
    ];
    let done = Answer::Reschedule(RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(owner.apply(ops).await, [done.clone(), done.clone(), done]);
    assert_eq!(owner.fires().await, [(timer.id, kit.now + 2 * HOUR)]);
}

pub(super) async fn a_cancel_of_a_sent_timer_stops_what_follows(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    assert_eq!(owner.cancel_in_flight(timer.id).await, CancelAnswer::TooLate(timer.id));
    assert!(owner.record(timer.id).await.progress.stopped);
    assert_eq!(owner.place(timer.id).await, pending_at(kit.now), "its settlement is waited for");
    assert_eq!(
        owner.cancel(timer.id).await,
        CancelAnswer::Died { id: timer.id, failed: 0 },
        "and never cancelled after all"
    );
}

pub(super) async fn an_ok_settles_a_stopped_timer(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.cancel_in_flight(timer.id).await;
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.all_dead().await, []);
}

pub(super) async fn a_stopped_timer_is_not_retried(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.cancel_in_flight(timer.id).await;
    assert_eq!(owner.retry(timer.id, kit.now + SECOND, 1, 1).await, SettleAnswer::Died);
    let letter = owner.all_dead().await.remove(0);
    assert_eq!(letter.reason, mtimer_types::DeadReason::Stopped);
    assert_eq!(letter.record.progress.failed, 1);
    assert_eq!(letter.record.progress.last_error.as_deref(), Some("not yet"));
    assert_eq!(owner.fires().await, []);
}

pub(super) async fn a_cancel_between_retries_buries_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.retry(timer.id, kit.now + MINUTE, 2, 2).await;
    let request = RequestId(unique());
    let died = CancelAnswer::Died { id: timer.id, failed: 2 };
    assert_eq!(owner.cancel_as(Target::Id(timer.id), None, request).await, died);
    let repeat = owner.cancel_as(Target::Id(timer.id), None, request).await;
    assert_eq!(repeat, CancelAnswer::TooLate(timer.id), "it dies once");
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::TooLate(timer.id), "it was dead");
    let letter = owner.all_dead().await.remove(0);
    assert_eq!((letter.reason, letter.record.progress.failed), (mtimer_types::DeadReason::Stopped, 2));
    assert_eq!(owner.fires().await, []);
}
