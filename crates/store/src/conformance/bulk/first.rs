//! What is scheduled or moved while a job is under way.

use mtimer_types::{BulkAction, Ended, Target, Timer};

use super::super::kit::Kit;
use super::super::values::{DAY, HOUR, MINUTE, dest, pending_at, unique};
use super::{SHIFT, TOO_LATE, begin_all, counts, end, mark};
use crate::ops::{BulkAct, BulkActAnswer, MoveAnswer, ReplayAnswer};
use crate::{Answer, Place, RequestId, RescheduleAnswer, ScheduleAnswer};

pub(in crate::conformance) async fn what_comes_after_its_beginning_is_passed_by(mut kit: Kit) {
    let owner = kit.owner().await;
    let [before, letter, after] = [(); 3].map(|()| kit.timer(kit.now));
    owner.add(&before).await;
    owner.add_dead(&letter).await;
    let number = begin_all(&owner, BulkAction::Cancel).await;
    owner.add(&after).await;
    assert_eq!(owner.replay(letter.id, kit.now).await, ReplayAnswer::Done);
    for id in [after.id, letter.id] {
        assert_eq!(mark(&owner, id).await, number);
        assert_eq!(owner.bulk_act(number, id).await, BulkActAnswer::Passed);
    }
    assert_eq!(mark(&owner, before.id).await, 0);
    assert_eq!(owner.bulk_act(number, before.id).await, BulkActAnswer::Cancelled);
    end(&owner, number).await;
    let later = kit.timer(kit.now);
    owner.add(&later).await;
    assert_eq!(mark(&owner, later.id).await, 0, "no job is under way any more");
    // The next job wants them all.
    let next = begin_all(&owner, BulkAction::Cancel).await;
    assert_eq!(next, number + 1);
    for id in [after.id, letter.id, later.id] {
        assert_ne!(owner.bulk_act(next, id).await, BulkActAnswer::Passed);
    }
}

pub(in crate::conformance) async fn a_reschedule_has_it_cancel_first(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("moved");
    let timers = [kit.keyed(kit.now, &key), kit.timer(kit.now)];
    owner.add(&timers[0]).await;
    owner.add_parked(&timers[1]).await;
    let number = begin_all(&owner, BulkAction::Cancel).await;
    let targets = [Target::Key(dest(), key), Target::Id(timers[1].id)];
    for (timer, target) in timers.iter().zip(targets) {
        let request = RequestId(unique());
        for _ in 0..2 {
            let answer = owner.reschedule_as(target.clone(), kit.now + DAY, false, request).await;
            assert_eq!(answer, RescheduleAnswer::Cancelled(timer.id), "a repeat gets the same answer");
        }
        assert_eq!(owner.place(timer.id).await, None);
        assert_eq!(owner.schedule(timer).await, ScheduleAnswer::Ended(Ended::Cancelled));
        assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Passed);
        assert_eq!(owner.reschedule(timer.id, kit.now).await, RescheduleAnswer::NotFound);
    }
    assert_eq!(counts(&owner, number).await, (2, 0));
}

pub(in crate::conformance) async fn a_reschedule_moves_what_it_would_have_moved(mut kit: Kit) {
    let owner = kit.owner().await;
    let deadline = kit.now + DAY;
    let timer = Timer { deadline: Some(deadline), ..kit.timer(kit.now + HOUR) };
    let refused = Timer { deadline: Some(deadline), ..kit.timer(kit.now + HOUR) };
    owner.add_all(&[timer.clone(), refused.clone()]).await;
    let number = begin_all(&owner, BulkAction::Shift { ms: -(HOUR as i64) }).await;
    let answer = owner.reschedule(refused.id, deadline + 1).await;
    assert_eq!(answer, RescheduleAnswer::PastDeadline(refused.id));
    assert_eq!(counts(&owner, number).await, (0, 0), "nothing was moved");
    assert_eq!(owner.reschedule(timer.id, deadline).await, RescheduleAnswer::Rescheduled(timer.id));
    let (record, place) = owner.see(timer.id).await.unwrap();
    assert_eq!((record.timer.due, Some(place)), (deadline, pending_at(deadline)));
    assert_eq!(record.timer.deadline, Some(deadline), "as the request was told");
    assert_eq!(counts(&owner, number).await, (1, 0));
    assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Passed);
}

pub(in crate::conformance) async fn a_return_from_the_park_has_it_act_first(mut kit: Kit) {
    let owner = kit.owner().await;
    let [cancelled, moved, failed] = [(); 3].map(|()| kit.timer(kit.now));
    for timer in [&cancelled, &moved, &failed] {
        owner.add_parked(timer).await;
    }
    let number = begin_all(&owner, BulkAction::Cancel).await;
    for _ in 0..2 {
        assert_eq!(owner.unpark(cancelled.id, kit.now).await, MoveAnswer::Gone);
    }
    assert_eq!((counts(&owner, number).await, owner.place(cancelled.id).await), ((1, 0), None));
    end(&owner, number).await;
    let number = begin_all(&owner, SHIFT).await;
    assert_eq!(owner.unpark(moved.id, kit.now).await, MoveAnswer::Gone, "it is elsewhere");
    assert_eq!(owner.place(moved.id).await, pending_at(kit.now + HOUR));
    let late = BulkAct { number, id: failed.id, sent_attempt: None, is_begun: true, adds: false };
    assert_eq!(owner.one(late.into()).await, Answer::BulkAct(TOO_LATE));
    assert_eq!(owner.unpark(failed.id, kit.now).await, MoveAnswer::Done, "it is decided");
    assert_eq!(counts(&owner, number).await, (1, 1));
    assert_eq!(owner.place(failed.id).await, pending_at(kit.now));
}

pub(in crate::conformance) async fn a_return_of_one_it_cannot_move_is_counted(mut kit: Kit) {
    let owner = kit.owner().await;
    let due = kit.now + DAY;
    let timer = Timer { deadline: Some(kit.now + HOUR), ..kit.timer(kit.now) };
    owner.add_parked(&timer).await;
    let number = begin_all(&owner, BulkAction::MoveTo { due }).await;
    assert_eq!(owner.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    assert_eq!(owner.place(timer.id).await, pending_at(kit.now));
    assert_eq!((counts(&owner, number).await, mark(&owner, timer.id).await), ((0, 1), number));
}

pub(in crate::conformance) async fn a_park_of_a_taken_one_has_it_act_first(mut kit: Kit) {
    let owner = kit.owner().await;
    let [cancelled, stays] = [(); 2].map(|()| kit.amo(kit.now));
    let pending = kit.timer(kit.now);
    owner.add_taken(&cancelled).await;
    owner.add_taken(&stays).await;
    owner.add(&pending).await;
    let number = begin_all(&owner, BulkAction::Cancel).await;
    for _ in 0..2 {
        assert_eq!(owner.park(cancelled.id).await, MoveAnswer::Gone);
    }
    assert_eq!(owner.park(pending.id).await, MoveAnswer::Done, "the job comes to the park later");
    assert_eq!(owner.schedule(&cancelled).await, ScheduleAnswer::Ended(Ended::Cancelled));
    assert_eq!(counts(&owner, number).await, (1, 0));
    assert_eq!(owner.bulk_act(number, pending.id).await, BulkActAnswer::Cancelled);
    end(&owner, number).await;
    let number = begin_all(&owner, SHIFT).await;
    assert_eq!(owner.park(stays.id).await, MoveAnswer::Done);
    assert_eq!((owner.place(stays.id).await, mark(&owner, stays.id).await), (Some(Place::Parked), number));
    assert_eq!(counts(&owner, number).await, (0, 1), "a taken one is not moved");
}

pub(in crate::conformance) async fn marks_stay_whatever_happens_to_a_timer(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    let number = begin_all(&owner, BulkAction::Cancel).await;
    owner.add(&timer).await;
    let id = timer.id;
    let is_marked = async |what: &str| assert_eq!(mark(&owner, id).await, number, "{what}");
    is_marked("new").await;
    end(&owner, number).await;
    owner.reschedule(id, kit.now + MINUTE).await;
    is_marked("moved").await;
    owner.retry(id, kit.now + HOUR, 1, 1).await;
    is_marked("retried").await;
    owner.park(id).await;
    is_marked("parked").await;
    owner.unpark(id, kit.now).await;
    is_marked("back").await;
    owner.dead_letter(id).await;
    is_marked("dead").await;
    owner.replay(id, kit.now).await;
    is_marked("replayed").await;
    let loaded = owner.pending().await.remove(&id).unwrap();
    assert_eq!(loaded.record.extensions.bulk_mark(), number, "as loaded");
    assert_eq!(kit.owner().await.record(id).await.extensions.bulk_mark(), number);
}
