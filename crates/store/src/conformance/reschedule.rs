//! A timer that moves: its id stays valid, wherever it was born.

use mtimer_types::{SlotWidth, Time, Timer, TimerId};

use super::kit::Kit;
use super::values::{DAY, HOUR, MINUTE, NEW, OLD, SECOND, YEAR, pending_at, unique};
use crate::ops::{MoveAnswer, Park, Reschedule, SettleAnswer};
use crate::{Answer, CancelAnswer, Op, RescheduleAnswer, Verdict};

/// Moves a timer born at `now + from` to `now + to` and uses its id for everything.
async fn moves(mut kit: Kit, ways: &[(u64, u64)]) {
    let owner = kit.owner().await;
    for (from, to) in ways {
        let (from, to) = (kit.now + *from, kit.now + *to);
        let timer = kit.timer(from);
        owner.add(&timer).await;
        assert_eq!(owner.reschedule(timer.id, to).await, RescheduleAnswer::Rescheduled(timer.id));
        let (record, place) = owner.see(timer.id).await.unwrap();
        assert_eq!((record.timer.due, Some(place)), (to, pending_at(to)));
        assert_eq!(owner.schedule(&timer).await, OLD);
        let pending = owner.pending().await;
        assert_eq!(pending[&timer.id].fire, to);
        assert_eq!(pending.len(), 1, "the old time never fires");
        assert_eq!(owner.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
        assert_eq!(owner.pending().await.len(), 0);
    }
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn nearer(kit: Kit) {
    let ways = [(SECOND, 0), (HOUR, MINUTE), (DAY, 10), (9 * DAY, 3 * DAY), (YEAR, 0), (9 * YEAR, 40 * DAY)];
    moves(kit, &ways).await;
}

pub(super) async fn farther(kit: Kit) {
    let ways =
        [(0, 1), (0, 9 * YEAR), (SECOND, MINUTE), (MINUTE, 3 * HOUR), (HOUR, 3 * DAY), (3 * DAY, YEAR)];
    moves(kit, &ways).await;
}

pub(super) async fn within_its_slot(kit: Kit) {
    moves(kit, &[(SECOND, SECOND), (HOUR, HOUR + 1), (DAY, DAY - 1), (40 * DAY, 40 * DAY + 1)]).await;
}

pub(super) async fn into_the_past(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + YEAR);
    owner.add(&timer).await;
    assert_eq!(owner.reschedule(timer.id, kit.now - DAY).await, RescheduleAnswer::Rescheduled(timer.id));
    let loaded = owner.load(kit.now).await;
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].fire, kit.now - DAY);
}

pub(super) async fn many_times_and_back(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + HOUR);
    owner.add(&timer).await;
    let stops = [DAY, 5, 30 * DAY, HOUR, MINUTE, HOUR, 0, YEAR, HOUR];
    for ahead in stops {
        let due = kit.now + ahead;
        assert_eq!(owner.reschedule(timer.id, due).await, RescheduleAnswer::Rescheduled(timer.id));
        assert_eq!(owner.fires().await, [(timer.id, due)]);
    }
    assert_eq!(owner.record(timer.id).await.timer.due, timer.due, "back where it was born");
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn it_is_loaded_at_the_new_time_only(mut kit: Kit) {
    let owner = kit.owner().await;
    let (near, far) = (kit.timer(kit.now + SECOND), kit.timer(kit.now + 30 * DAY));
    owner.add_all(&[near.clone(), far.clone()]).await;
    owner.reschedule(near.id, kit.now + 20 * DAY).await;
    owner.reschedule(far.id, kit.now + 2 * SECOND).await;
    owner.lane.unload(Time::ZERO).await.unwrap();
    let first = owner.load_in_steps(kit.now + MINUTE, 1_000, 1 << 20).await;
    let horizon = first.last().unwrap().horizon;
    let ids: Vec<_> = first.iter().flat_map(|s| &s.timers).map(|t| (t.record.timer.id, t.fire)).collect();
    assert!(ids.contains(&(far.id, kit.now + 2 * SECOND)));
    assert!(!ids.contains(&(near.id, kit.now + SECOND)));
    assert!(horizon < kit.now + 20 * DAY || ids.contains(&(near.id, kit.now + 20 * DAY)));
}

pub(super) async fn it_stays_moved_for_the_next_owner(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<_> = (0..40).map(|n| kit.timer(kit.now + n * HOUR)).collect();
    first.add_all(&timers).await;
    for (n, timer) in (0..).zip(&timers) {
        first.reschedule(timer.id, kit.now + n * MINUTE).await;
    }
    let second = kit.owner().await;
    let mut expected: Vec<_> = (0..).zip(&timers).map(|(n, t)| (t.id, kit.now + n * MINUTE)).collect();
    expected.sort_unstable();
    assert_eq!(second.fires().await, expected);
}

pub(super) async fn its_birth_width_does_not_matter(mut kit: Kit) {
    let owner = kit.owner().await;
    for width in SlotWidth::ALL {
        for ahead in [0, SECOND, HOUR, 2 * DAY] {
            let due = kit.now + ahead;
            let id = TimerId::with_width(due, width, kit.partition, unique());
            let timer = Timer { id, ..kit.timer(due) };
            assert_eq!(owner.schedule(&timer).await, NEW);
            let to = kit.now + 3 * HOUR;
            assert_eq!(owner.reschedule(id, to).await, RescheduleAnswer::Rescheduled(id));
            assert_eq!(owner.reschedule(id, due).await, RescheduleAnswer::Rescheduled(id));
            assert_eq!(owner.pending().await[&id].fire, due);
        }
    }
    assert_eq!(owner.census().await.pending, 16);
}

pub(super) async fn in_one_batch_with_its_schedule_and_end(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + DAY);
    let target = || mtimer_types::Target::Id(timer.id);
    let request = || crate::RequestId(unique());
    let ops = vec![
        super::values::schedule_op(&timer),
        Op::Reschedule(Reschedule { target: target(), due: kit.now, is_begun: false, request: request() }),
        Op::Park(Park { id: timer.id, failed: 0 }),
        Op::Reschedule(Reschedule {
            target: target(),
            due: kit.now + HOUR,
            is_begun: false,
            request: request(),
        }),
        Op::settle(timer.id, Verdict::Ack),
        Op::Reschedule(Reschedule { target: target(), due: kit.now, is_begun: false, request: request() }),
    ];
    let moved = Answer::Reschedule(RescheduleAnswer::Rescheduled(timer.id));
    let gone = Answer::Reschedule(RescheduleAnswer::NotFound);
    let (parked, settled) = (Answer::Park(MoveAnswer::Done), Answer::Settle(SettleAnswer::Done));
    let expected = [Answer::Schedule(NEW), moved.clone(), parked, moved, settled, gone];
    assert_eq!(owner.apply(ops).await, expected);
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn a_parked_timer_leaves_the_park(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_parked(&timer).await;
    assert_eq!(owner.reschedule(timer.id, kit.now + HOUR).await, RescheduleAnswer::Rescheduled(timer.id));
    assert_eq!(owner.parked_counts().await.len(), 0);
    assert_eq!(owner.fires().await, [(timer.id, kit.now + HOUR)]);
}

pub(super) async fn not_past_its_deadline(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = Timer { deadline: Some(kit.now + HOUR), ..kit.timer(kit.now + MINUTE) };
    owner.add(&timer).await;
    let answer = owner.reschedule(timer.id, kit.now + HOUR + 1).await;
    assert_eq!(answer, RescheduleAnswer::PastDeadline(timer.id));
    assert_eq!(owner.fires().await, [(timer.id, timer.due)], "nothing changed");
    let answer = owner.reschedule(timer.id, kit.now + HOUR).await;
    assert_eq!(answer, RescheduleAnswer::Rescheduled(timer.id), "up to its deadline");
    assert_eq!(owner.record(timer.id).await.timer.deadline, Some(kit.now + HOUR), "which stays");
}

pub(super) async fn not_once_it_was_delivered(mut kit: Kit) {
    let owner = kit.owner().await;
    let (sent, stopped, retried) = (kit.timer(kit.now), kit.timer(kit.now), kit.timer(kit.now));
    owner.add_all(&[sent.clone(), stopped.clone(), retried.clone()]).await;
    let request = crate::RequestId(unique());
    let target = mtimer_types::Target::Id(sent.id);
    let answer = owner.reschedule_as(target, kit.now + HOUR, true, request).await;
    assert_eq!(answer, RescheduleAnswer::TooLate(sent.id), "in flight");
    owner.cancel_in_flight(stopped.id).await;
    assert_eq!(owner.reschedule(stopped.id, kit.now + HOUR).await, RescheduleAnswer::TooLate(stopped.id));
    owner.retry(retried.id, kit.now + MINUTE, 1, 1).await;
    assert_eq!(owner.reschedule(retried.id, kit.now + HOUR).await, RescheduleAnswer::TooLate(retried.id));
    let pending = owner.pending().await;
    assert_eq!(pending[&sent.id].fire, kit.now);
    assert_eq!(pending[&stopped.id].fire, kit.now);
    assert_eq!(pending[&retried.id].fire, kit.now + MINUTE);
    assert!(!owner.record(sent.id).await.progress.stopped, "a reschedule stops nothing");
}

pub(super) async fn a_thousand_at_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..1_000).map(|n| kit.timer(kit.now + MINUTE + n)).collect();
    owner.add_all(&timers).await;
    let ops = (0..).zip(&timers).map(|(n, t)| {
        Op::Reschedule(Reschedule {
            target: mtimer_types::Target::Id(t.id),
            due: kit.now + DAY + n * MINUTE,
            is_begun: false,
            request: crate::RequestId(unique()),
        })
    });
    let answers = owner.apply(ops.collect()).await;
    for (timer, answer) in timers.iter().zip(answers) {
        assert_eq!(answer, Answer::Reschedule(RescheduleAnswer::Rescheduled(timer.id)));
    }
    let mut expected: Vec<_> = (0..).zip(&timers).map(|(n, t)| (t.id, kit.now + DAY + n * MINUTE)).collect();
    expected.sort_unstable();
    assert_eq!(owner.fires().await, expected);
}
