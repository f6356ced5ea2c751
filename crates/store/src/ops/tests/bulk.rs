//! What bulk jobs do with single timers.

use mtimer_types::{Bulk, BulkAction, BulkId, BulkObstacle, Filter};

use super::*;

/// Begins a job on all timers, and returns its number.
fn begin_bulk(b: &mut Bench, action: BulkAction) -> u32 {
    b.requests += 1;
    let bulk = Bulk::new(action, Filter::default()).into();
    let begin = BeginBulk { id: BulkId(b.requests.into()), bulk };
    assert_eq!(b.apply(begin.into()), Answer::BeginBulk(BeginBulkAnswer::Begun));
    b.table.bulks().all().last().expect("a job").number
}

fn bulk_act(b: &mut Bench, number: u32, id: TimerId) -> BulkActAnswer {
    match b.apply(BulkAct { number, id, sent_attempt: None, is_begun: false, adds: false }.into()) {
        Answer::BulkAct(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bulk_move_is_too_late_before_it_is_past_the_deadline() {
    let mut b = Bench::new();
    let id = b.given(&Timer { deadline: Some(Time::from_ms(65_000)), ..timer(1, 60_000) });
    b.settle(id, retry(1));
    let number = begin_bulk(&mut b, BulkAction::MoveTo { due: Time::from_ms(70_000) });
    let late = BulkActAnswer::NotDone(BulkObstacle::TooLate);
    assert_eq!(bulk_act(&mut b, number, id), late, "as a reschedule");
}

#[test]
fn a_bulk_job_cannot_act_on_what_another_epoch_has_taken() {
    let mut b = Bench::new();
    let ids = [b.given(&once(1, 60_000)), b.given(&once(2, 60_000))];
    b.apply(Op::take(ids[0], 0));
    b.succeed(0);
    b.apply(Op::take(ids[1], 0));
    let number = begin_bulk(&mut b, BulkAction::Cancel);
    assert_eq!(bulk_act(&mut b, number, ids[0]), BulkActAnswer::Stopped);
    assert!(matches!(b.at(ids[0]), Some(At::Taken { .. })));
    assert_eq!(bulk_act(&mut b, number, ids[1]), BulkActAnswer::Cancelled, "it was not sent");
}

#[test]
fn a_shift_to_before_the_beginning_of_time_ends_there() {
    let mut b = Bench::new();
    let id = b.given(&Timer { deadline: Some(Time::from_ms(1_000_000)), ..timer(1, 60_000) });
    let number = begin_bulk(&mut b, BulkAction::Shift { ms: -62_000 });
    assert_eq!(bulk_act(&mut b, number, id), BulkActAnswer::Moved { due: Time::ZERO });
    let Ok(Some(row)) = b.table.row(id) else { panic!("it is there") };
    assert_eq!(row.record.timer.deadline, Some(Time::from_ms(938_000)));
    assert_eq!(row.record.accepted, Some(b.ctx.now), "it is late from now on");
}

#[test]
fn whether_a_retained_timer_was_retried_does_not_matter_to_a_bulk_job() {
    let mut b = Bench::new();
    let ids = [b.given(&timer(1, 60_000)), b.given(&timer(2, 60_000))];
    b.settle(ids[0], dead(3));
    b.settle(ids[1], dead(0));
    let bulk = Bulk { retrying: Some(true), ..Bulk::new(BulkAction::Purge, Filter::default()) };
    b.apply(BeginBulk { id: BulkId(1), bulk: bulk.into() }.into());
    for id in ids {
        assert_eq!(bulk_act(&mut b, 1, id), BulkActAnswer::Purged);
    }
}

#[test]
fn a_replay_by_a_bulk_job_is_passed_by_the_jobs_that_wait() {
    let mut b = Bench::new();
    let id = b.given(&timer(1, 60_000));
    b.settle(id, dead(1));
    let replay = begin_bulk(&mut b, BulkAction::Replay);
    let cancel = begin_bulk(&mut b, BulkAction::Cancel);
    assert_eq!(bulk_act(&mut b, replay, id), BulkActAnswer::Replayed);
    assert_eq!(bulk_act(&mut b, cancel, id), BulkActAnswer::Passed);
    assert!(matches!(b.at(id), Some(At::Pending { .. })));
}
