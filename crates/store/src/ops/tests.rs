//! One test a rule of [`crate::ops`], on the in-memory table.

mod bulk;

use std::sync::Arc;

use mtimer_types::{
    DeadReason, Destination, Ended, Epoch, Extensions, Key, KeyPolicy, Mode, PartitionId, Target, Timer,
    limits,
};

use super::*;
use crate::memory::MemoryTable;
use crate::record::Record;
use crate::remembered::{RequestId, letters_of};
use crate::table::{At, Row};

const EPOCH: Epoch = Epoch(7);
const PRIOR: Time = Time::from_ms(1_000);

/// A table, and the owner who works on it.
struct Bench {
    table: MemoryTable,
    ctx: Context,
    requests: u64,
}

impl Bench {
    fn new() -> Self {
        let ctx = Context { epoch: EPOCH, prior_claim: PRIOR, now: Time::from_ms(50_000) };
        Self { table: MemoryTable::default(), ctx, requests: 0 }
    }

    fn apply(&mut self, op: Op) -> Answer {
        let Ok(answer) = op.decide(&mut self.table, &self.ctx);
        answer
    }

    fn schedule(&mut self, timer: &Timer, policy: KeyPolicy) -> ScheduleAnswer {
        match self.apply(Op::Schedule(Schedule::new(Arc::new(timer.clone()), policy))) {
            Answer::Schedule(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// Schedules a timer that must be new.
    fn given(&mut self, timer: &Timer) -> TimerId {
        assert_eq!(
            self.schedule(timer, KeyPolicy::Create),
            ScheduleAnswer::Scheduled { new: true, replaced: None }
        );
        timer.id
    }

    fn cancel(&mut self, target: Target, sent_attempt: Option<u32>) -> CancelAnswer {
        self.requests += 1;
        match self.apply(Op::Cancel(Cancel { target, sent_attempt, request: RequestId(self.requests) })) {
            Answer::Cancel(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn reschedule(&mut self, id: TimerId, due: u64, is_begun: bool) -> RescheduleAnswer {
        self.requests += 1;
        let (due, request) = (Time::from_ms(due), RequestId(self.requests));
        match self.apply(Op::Reschedule(Reschedule { target: Target::Id(id), due, is_begun, request })) {
            Answer::Reschedule(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, id: TimerId, verdict: Verdict) -> Answer {
        self.apply(Op::settle(id, verdict))
    }

    fn at(&mut self, id: TimerId) -> Option<At> {
        let Ok(row) = self.table.row(id);
        row.map(|row| row.at)
    }

    fn failed(&mut self, id: TimerId) -> u32 {
        let Ok(row) = self.table.row(id);
        row.expect("the timer is there").record.progress.failed
    }

    fn holder(&mut self, timer: &Timer) -> Option<TimerId> {
        let Ok(holder) = self.table.key(&timer.dest, timer.key.as_ref().expect("the timer has a key"));
        holder
    }

    fn ended(&mut self, id: TimerId) -> Option<Ended> {
        let Ok(ended) = self.table.ended(id, self.ctx.now);
        ended
    }

    /// A successor whose predecessor had claimed everything up to `prior`.
    fn succeed(&mut self, prior: u64) {
        self.ctx.epoch.0 += 1;
        self.ctx.prior_claim = Time::from_ms(prior);
    }
}

fn timer(n: u64, due: u64) -> Timer {
    Timer {
        payload: vec![n as u8].into(),
        ..Timer::new(
            TimerId::new(Time::from_ms(due), Time::ZERO, PartitionId(0), n),
            Destination::new("g", "a").unwrap(),
            Time::from_ms(due),
        )
    }
}

fn keyed(n: u64, due: u64) -> Timer {
    Timer { key: Some(Key::new("k").unwrap()), ..timer(n, due) }
}

fn once(n: u64, due: u64) -> Timer {
    Timer { mode: Mode::AtMostOnce, ..timer(n, due) }
}

fn retry(failed: u32) -> Verdict {
    Verdict::Retry { fire: Time::from_ms(60_000), tier: 1, failed, error: "no".into() }
}

fn dead(failed: u32) -> Verdict {
    Verdict::Dead { reason: DeadReason::Failed, failed, error: "never".into() }
}

const fn pending(fire: u64, tier: u8) -> Option<At> {
    Some(At::Pending { fire: Time::from_ms(fire), tier })
}

#[test]
fn a_repeated_schedule_is_the_same_and_other_content_a_conflict() {
    let mut b = Bench::new();
    let t = timer(1, 60_000);
    b.given(&t);
    let again = ScheduleAnswer::Scheduled { new: false, replaced: None };
    assert_eq!(b.schedule(&t, KeyPolicy::Create), again);
    assert_eq!(b.reschedule(t.id, 70_000, false), RescheduleAnswer::Rescheduled(t.id));
    assert_eq!(b.schedule(&t, KeyPolicy::Create), again, "also when it has moved");
    assert_eq!(b.at(t.id), pending(70_000, 0));
    let other = Timer { payload: "x".into(), ..t.clone() };
    assert_eq!(b.schedule(&other, KeyPolicy::Create), ScheduleAnswer::Conflict);
    b.settle(t.id, dead(1));
    assert_eq!(b.schedule(&t, KeyPolicy::Create), again, "also when it is dead");
}

#[test]
fn a_key_is_created_kept_or_taken_over() {
    let mut b = Bench::new();
    let (old, new) = (keyed(1, 60_000), keyed(2, 70_000));
    b.given(&old);
    assert_eq!(b.schedule(&new, KeyPolicy::Create), ScheduleAnswer::KeyTaken(old.id));
    assert_eq!(b.schedule(&new, KeyPolicy::Keep), ScheduleAnswer::Kept { id: old.id, begun: false });
    assert_eq!(b.at(new.id), None);
    assert_eq!(
        b.schedule(&new, KeyPolicy::Replace),
        ScheduleAnswer::Scheduled { new: true, replaced: Some(old.id) }
    );
    assert_eq!((b.at(old.id), b.holder(&new)), (None, Some(new.id)));
    assert_eq!(b.schedule(&old, KeyPolicy::Replace), ScheduleAnswer::Ended(Ended::Replaced));
    assert_eq!(b.settle(old.id, Verdict::Ack), Answer::Settle(SettleAnswer::Gone));
    assert_eq!(b.holder(&new), Some(new.id), "a late outcome of the old one does not free the key");
}

#[test]
fn every_ending_frees_the_key() {
    let endings: [fn(&mut Bench, TimerId) -> Answer; 4] = [
        |b, id| b.settle(id, Verdict::Ack),
        |b, id| b.settle(id, dead(1)),
        |b, id| b.settle(id, Verdict::Expired { next: Time::MAX }),
        |b, id| Answer::Cancel(b.cancel(Target::Id(id), None)),
    ];
    for ending in endings {
        let mut b = Bench::new();
        let t = Timer { deadline: Some(Time::from_ms(60_000)), ..keyed(1, 60_000) };
        let id = b.given(&t);
        ending(&mut b, id);
        assert_eq!(b.holder(&t), None);
    }
}

#[test]
fn cancel_is_exact_about_attempts() {
    let mut b = Bench::new();
    let id = b.given(&timer(1, 60_000));
    assert_eq!(b.cancel(Target::Id(id), None), CancelAnswer::Cancelled(id));
    assert_eq!(b.ended(id), Some(Ended::Cancelled));
    assert_eq!(b.cancel(Target::Id(id), None), CancelAnswer::Cancelled(id), "by what is remembered");

    let retried = b.given(&timer(2, 60_000));
    b.settle(retried, retry(1));
    assert_eq!(b.cancel(Target::Id(retried), None), CancelAnswer::Died { id: retried, failed: 1 });
    assert!(matches!(b.at(retried), Some(At::Dead { reason: DeadReason::Stopped, .. })));
    assert_eq!(b.cancel(Target::Id(retried), None), CancelAnswer::TooLate(retried));
}

#[test]
fn cancel_of_what_is_in_flight_stops_the_next_attempt() {
    let mut b = Bench::new();
    let id = b.given(&timer(1, 60_000));
    assert_eq!(b.cancel(Target::Id(id), Some(1)), CancelAnswer::TooLate(id));
    assert_eq!(b.at(id), pending(60_000, 0));
    assert_eq!(b.reschedule(id, 70_000, false), RescheduleAnswer::TooLate(id), "it is stopped");
    assert_eq!(b.settle(id, retry(1)), Answer::Settle(SettleAnswer::Died));
    assert!(matches!(b.at(id), Some(At::Dead { reason: DeadReason::Stopped, .. })));
    assert_eq!(b.failed(id), 1);
    assert_eq!(b.settle(id, retry(1)), Answer::Settle(SettleAnswer::Gone), "it dies once");
}

#[test]
fn cancel_of_a_delivery_whose_retry_is_filed_stops_it_at_once() {
    let mut b = Bench::new();
    let t = keyed(1, 60_000);
    let id = b.given(&t);
    b.settle(id, retry(1));
    assert_eq!(b.cancel(Target::Id(id), Some(1)), CancelAnswer::Died { id, failed: 1 });
    assert!(matches!(b.at(id), Some(At::Dead { reason: DeadReason::Stopped, .. })));
    assert_eq!((b.failed(id), b.holder(&t)), (1, None));
    // The second attempt is under way.
    let id = b.given(&timer(2, 60_000));
    b.settle(id, retry(1));
    assert_eq!(b.cancel(Target::Id(id), Some(2)), CancelAnswer::TooLate(id));
    assert!(matches!(b.at(id), Some(At::Pending { .. })));
    assert_eq!(b.settle(id, retry(2)), Answer::Settle(SettleAnswer::Died));
    assert!(matches!(b.at(id), Some(At::Dead { reason: DeadReason::Stopped, .. })));
}

#[test]
fn a_timer_expires_by_the_deadline_that_it_has_by_now() {
    let mut b = Bench::new();
    let id = b.given(&Timer { deadline: Some(Time::from_ms(60_000)), ..timer(1, 50_000) });
    let expired = |ms| Verdict::Expired { next: Time::from_ms(ms) };
    assert_eq!(b.settle(id, expired(60_000)), Answer::Settle(SettleAnswer::Gone));
    assert!(matches!(b.at(id), Some(At::Pending { .. })));
    assert_eq!(b.settle(id, expired(60_001)), Answer::Settle(SettleAnswer::Done));
    assert_eq!((b.at(id), b.ended(id)), (None, Some(Ended::Expired)));
    let failed = b.given(&Timer { deadline: Some(Time::from_ms(60_000)), ..timer(3, 50_000) });
    let retry = |fire, failed| {
        let (fire, error) = (Time::from_ms(fire), "no".into());
        Verdict::Retry { fire, tier: 1, failed, error }
    };
    assert_eq!(b.settle(failed, retry(60_000, 1)), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.settle(failed, retry(60_001, 2)), Answer::Settle(SettleAnswer::Expired));
    assert_eq!((b.at(failed), b.ended(failed)), (None, Some(Ended::Expired)));
    let without = b.given(&timer(2, 50_000));
    assert_eq!(b.settle(without, Verdict::Expired { next: Time::MAX }), Answer::Settle(SettleAnswer::Gone));
}

#[test]
fn what_this_epoch_has_taken_and_not_sent_can_be_cancelled_and_expire() {
    let deadline = Some(Time::from_ms(60_000));
    let once = |n| Timer { mode: Mode::AtMostOnce, deadline, ..timer(n, 60_000) };
    let mut b = Bench::new();
    let taken: Vec<TimerId> = (0..4).map(|n| b.given(&once(n))).collect();
    for id in &taken {
        assert_eq!(b.apply(Op::take(*id, 0)), Answer::Take(MoveAnswer::Done));
    }
    assert_eq!(b.cancel(Target::Id(taken[0]), None), CancelAnswer::Cancelled(taken[0]));
    assert_eq!(b.ended(taken[0]), Some(Ended::Cancelled));
    assert_eq!(b.settle(taken[1], Verdict::Expired { next: Time::MAX }), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.ended(taken[1]), Some(Ended::Expired));
    assert_eq!(b.cancel(Target::Id(taken[2]), Some(1)), CancelAnswer::TooLate(taken[2]), "it was sent");
    assert!(matches!(b.at(taken[2]), Some(At::Taken { .. })));
    b.succeed(3_000);
    assert_eq!(b.cancel(Target::Id(taken[3]), None), CancelAnswer::TooLate(taken[3]), "it may have been");
    assert_eq!(b.settle(taken[3], Verdict::Expired { next: Time::MAX }), Answer::Settle(SettleAnswer::Gone));
    assert!(matches!(b.at(taken[3]), Some(At::Taken { .. })));
}

#[test]
fn a_predecessors_claim_covers_what_was_filed_before() {
    let mut b = Bench::new();
    let (early, late) = (b.given(&timer(1, 2_000)), b.given(&timer(2, 3_001)));
    b.succeed(3_000);
    let fresh = b.given(&timer(3, 2_500));
    assert_eq!(b.reschedule(early, 9_000, false), RescheduleAnswer::TooLate(early));
    assert_eq!(b.reschedule(late, 2_000, false), RescheduleAnswer::Rescheduled(late), "filed again");
    for id in [late, fresh] {
        assert_eq!(b.cancel(Target::Id(id), None), CancelAnswer::Cancelled(id));
    }
    assert_eq!(b.cancel(Target::Id(early), None), CancelAnswer::Died { id: early, failed: 1 });
    assert_eq!(b.failed(early), 1, "the covered attempt stays counted");
    let again = b.given(&timer(4, 2_500));
    b.succeed(3_000);
    let died = CancelAnswer::Died { id: again, failed: 1 };
    assert_eq!(b.cancel(Target::Id(again), None), died, "fresh was another epoch's");
}

#[test]
fn a_request_is_answered_the_same_way_for_the_horizon() {
    let mut b = Bench::new();
    let t = keyed(1, 60_000);
    let id = b.given(&t);
    let target = Target::Key(t.dest.clone(), t.key.clone().unwrap());
    let cancel = Op::Cancel(Cancel { target, sent_attempt: None, request: RequestId(99) });
    let first = b.apply(cancel.clone());
    assert_eq!(first, Answer::Cancel(CancelAnswer::Cancelled(id)));
    let successor = b.given(&keyed(2, 70_000));
    assert_eq!(b.apply(cancel.clone()), first, "the repeat does not hit the key's next holder");
    assert!(b.at(successor).is_some());
    b.ctx.now = b.ctx.now + limits::REPEAT_HORIZON_MS + 1;
    assert_eq!(b.apply(cancel), Answer::Cancel(CancelAnswer::Cancelled(successor)));
}

#[test]
fn a_repeated_reschedule_does_not_undo_a_later_one() {
    let mut b = Bench::new();
    let id = b.given(&timer(1, 60_000));
    let move_to = |due, n| {
        Op::Reschedule(Reschedule {
            target: Target::Id(id),
            due: Time::from_ms(due),
            is_begun: false,
            request: RequestId(n),
        })
    };
    let done = Answer::Reschedule(RescheduleAnswer::Rescheduled(id));
    for (due, n) in [(70_000, 1), (80_000, 2), (70_000, 1)] {
        assert_eq!(b.apply(move_to(due, n)), done);
    }
    assert_eq!(b.at(id), pending(80_000, 0));
}

#[test]
fn a_cancel_that_overtakes_its_schedule_wins() {
    let mut b = Bench::new();
    let t = timer(1, 60_000);
    assert_eq!(b.cancel(Target::Id(t.id), None), CancelAnswer::NotFound);
    assert_eq!(b.schedule(&t, KeyPolicy::Create), ScheduleAnswer::Ended(Ended::CancelledUnseen));
    b.ctx.now = b.ctx.now + limits::REPEAT_HORIZON_MS + 1;
    b.given(&t);
}

#[test]
fn reschedule_respects_the_deadline() {
    let mut b = Bench::new();
    let t = Timer { deadline: Some(Time::from_ms(65_000)), ..timer(1, 60_000) };
    let id = b.given(&t);
    assert_eq!(b.reschedule(id, 65_001, false), RescheduleAnswer::PastDeadline(id));
    assert_eq!(b.reschedule(id, 65_000, false), RescheduleAnswer::Rescheduled(id));
    assert_eq!(b.reschedule(id, 66_000, true), RescheduleAnswer::TooLate(id));
    assert_eq!(b.reschedule(timer(2, 1).id, 1, false), RescheduleAnswer::NotFound);
}

#[test]
fn taken_timers_are_settled_parked_or_unconfirmed() {
    let mut b = Bench::new();
    let t = Timer { key: Some(Key::new("k").unwrap()), ..once(1, 60_000) };
    let id = b.given(&t);
    let often = b.given(&timer(9, 60_000));
    assert_eq!(b.apply(Op::take(often, 0)), Answer::Take(MoveAnswer::Gone), "at-least-once is never taken");
    for _ in 0..2 {
        assert_eq!(b.apply(Op::take(id, 0)), Answer::Take(MoveAnswer::Done));
    }
    assert_eq!(b.holder(&t), Some(id));
    assert_eq!(b.cancel(Target::Id(id), Some(1)), CancelAnswer::TooLate(id));
    assert_eq!(b.apply(Op::Park(Park { id, failed: 0 })), Answer::Park(MoveAnswer::Done));
    assert_eq!(b.apply(Op::take(id, 0)), Answer::Take(MoveAnswer::Done));
    b.succeed(0);
    assert_eq!(b.apply(Op::take(id, 0)), Answer::Take(MoveAnswer::Gone), "another epoch took it");
    assert_eq!(b.apply(Op::Park(Park { id, failed: 0 })), Answer::Park(MoveAnswer::Gone));
    for _ in 0..2 {
        assert_eq!(b.settle(id, Verdict::Unconfirmed), Answer::Settle(SettleAnswer::Done));
    }
    assert_eq!(b.holder(&t), None);
    assert_eq!(b.settle(id, Verdict::LateAck { attempt: 0 }), Answer::Settle(SettleAnswer::Gone));
    assert_eq!(b.settle(id, Verdict::LateAck { attempt: 1 }), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.ended(id), Some(Ended::Acknowledged));
    assert_eq!(b.settle(often, Verdict::Unconfirmed), Answer::Settle(SettleAnswer::Gone));
}

#[test]
fn unconfirmed_in_its_own_epoch_is_not_taken_again() {
    let mut b = Bench::new();
    let id = b.given(&once(1, 60_000));
    b.apply(Op::take(id, 0));
    b.settle(id, Verdict::Unconfirmed);
    assert_eq!(b.apply(Op::take(id, 0)), Answer::Take(MoveAnswer::Gone));
    assert_eq!(b.apply(Op::Park(Park { id, failed: 0 })), Answer::Park(MoveAnswer::Gone));
}

#[test]
fn retry_counts_once_and_files_by_tier() {
    let mut b = Bench::new();
    let id = b.given(&timer(1, 51_000));
    assert_eq!(b.settle(id, retry(1)), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.at(id), pending(60_000, 1));
    let repeat = Verdict::Retry { fire: Time::from_ms(99_000), tier: 1, failed: 1, error: "x".into() };
    assert_eq!(b.settle(id, repeat), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.at(id), pending(60_000, 1), "a repeat leaves it as it is");
    b.apply(Op::Park(Park { id, failed: 1 }));
    assert_eq!(b.settle(id, retry(2)), Answer::Settle(SettleAnswer::Gone));
}

#[test]
fn a_late_ok_settles_what_can_have_been_delivered() {
    let mut b = Bench::new();
    let (retried, covered) = (b.given(&timer(1, 51_000)), b.given(&timer(2, 2_000)));
    let above = b.given(&timer(3, 60_000));
    b.settle(retried, retry(2));
    b.succeed(3_000);
    assert_eq!(b.settle(retried, Verdict::LateAck { attempt: 3 }), Answer::Settle(SettleAnswer::Gone));
    assert_eq!(b.settle(retried, Verdict::LateAck { attempt: 2 }), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.settle(above, Verdict::LateAck { attempt: 1 }), Answer::Settle(SettleAnswer::Gone));
    assert_eq!(b.settle(covered, Verdict::LateAck { attempt: 2 }), Answer::Settle(SettleAnswer::Gone));
    assert_eq!(b.settle(covered, Verdict::LateAck { attempt: 1 }), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.ended(covered), None, "plain acknowledgements leave nothing");
}

#[test]
fn parked_timers_are_never_covered() {
    let mut b = Bench::new();
    let id = b.given(&timer(1, 2_000));
    b.succeed(3_000);
    assert_eq!(b.apply(Op::Park(Park { id, failed: 1 })), Answer::Park(MoveAnswer::Done));
    assert_eq!(b.failed(id), 1);
    b.succeed(5_000);
    assert_eq!(
        b.apply(Op::Unpark(Unpark { id, fire: Time::from_ms(4_000) })),
        Answer::Unpark(MoveAnswer::Done)
    );
    assert_eq!(
        b.apply(Op::Unpark(Unpark { id, fire: Time::from_ms(9_000) })),
        Answer::Unpark(MoveAnswer::Done),
        "it is pending"
    );
    assert_eq!(b.at(id), pending(4_000, 0));
    let Ok(Some(row)) = b.table.row(id) else { panic!("it is there") };
    assert!(!b.ctx.covered(&row), "filed in this epoch");
}

#[test]
fn replay_gives_a_new_budget_and_takes_the_key_back() {
    let mut b = Bench::new();
    let t = Timer { deadline: Some(Time::from_ms(55_000)), ..keyed(1, 51_000) };
    let id = b.given(&t);
    b.settle(id, dead(3));
    let other = b.given(&keyed(2, 60_000));
    b.ctx.now = Time::from_ms(56_000);
    let replay = Op::Replay(Replay { id, fire: b.ctx.now });
    assert_eq!(b.apply(replay.clone()), Answer::Replay(ReplayAnswer::KeyTaken(other)));
    b.settle(other, Verdict::Ack);
    for _ in 0..2 {
        assert_eq!(b.apply(replay.clone()), Answer::Replay(ReplayAnswer::Done));
    }
    let Ok(Some(row)) = b.table.row(id) else { panic!("it is there") };
    assert_eq!((row.record.progress.failed, row.record.progress.budget_from), (3, 3));
    assert_eq!(row.record.timer.deadline, None);
    assert_eq!(b.holder(&t), Some(id));
}

#[test]
fn replay_of_an_unconfirmed_timer_counts_the_attempt() {
    let mut b = Bench::new();
    let id = b.given(&once(1, 51_000));
    b.apply(Op::take(id, 0));
    let replay = Op::Replay(Replay { id, fire: b.ctx.now });
    assert_eq!(b.apply(replay.clone()), Answer::Replay(ReplayAnswer::Gone), "somebody may still settle it");
    b.settle(id, Verdict::Unconfirmed);
    assert_eq!(b.apply(replay), Answer::Replay(ReplayAnswer::Done));
    assert_eq!(b.failed(id), 1);
}

#[test]
fn a_purged_timer_does_not_come_back() {
    let mut b = Bench::new();
    let t = timer(1, 51_000);
    let id = b.given(&t);
    assert_eq!(b.apply(Op::Purge(Purge { id })), Answer::Purge(PurgeAnswer::Gone), "it is live");
    b.settle(id, dead(1));
    assert_eq!(b.apply(Op::Purge(Purge { id })), Answer::Purge(PurgeAnswer::Done));
    assert_eq!(b.apply(Op::Purge(Purge { id })), Answer::Purge(PurgeAnswer::Gone));
    assert_eq!(b.schedule(&t, KeyPolicy::Create), ScheduleAnswer::Ended(Ended::Dead));
    let old = b.given(&timer(2, 51_000));
    b.settle(old, dead(1));
    b.ctx.now = b.ctx.now + limits::REPEAT_HORIZON_MS + 1;
    b.apply(Op::Purge(Purge { id: old }));
    assert_eq!(b.ended(old), None, "no repeat is that late");
}

#[test]
fn trimming_goes_by_age_and_by_count() {
    let mut b = Bench::new();
    for n in 0..10 {
        let id = b.given(&timer(n, 51_000));
        b.settle(id, dead(1));
        b.ctx.now = b.ctx.now + 1;
    }
    let trim = |before, keep, limit| {
        Op::Trim(Trim { of: Retained::Dead, before: Time::from_ms(before), keep, limit })
    };
    assert_eq!(b.apply(trim(50_004, 100, 3)), Answer::Trim(TrimAnswer { removed: 3, more: true }));
    assert_eq!(b.apply(trim(50_004, 100, 3)), Answer::Trim(TrimAnswer { removed: 1, more: false }));
    assert_eq!(b.apply(trim(0, 2, 4)), Answer::Trim(TrimAnswer { removed: 4, more: false }));
    assert_eq!(b.apply(trim(0, 2, 0)), Answer::Trim(TrimAnswer { removed: 0, more: false }));
    assert_eq!(b.table.retained_count(Retained::Dead), Ok(2));
}

/// They are in stores: a letter keeps its meaning, and no two operations share one.
#[test]
fn answers_are_remembered_by_letters() {
    assert_eq!(letters_of::<CancelAnswer>(), ["LX", "F"]);
    assert_eq!(letters_of::<RescheduleAnswer>(), ["BHMP", "G"]);
}

#[test]
fn a_records_extensions_stay_and_volatile_ones_go_when_progress_changes() {
    let of = |tags: &[u32]| Extensions::new(tags.iter().map(|tag| (*tag, "x"))).unwrap();
    let mut b = Bench::new();
    let t = Timer { extensions: of(&[4, 6]), ..timer(1, 60_000) };
    let record = Record { extensions: of(&[4, 6, 8]), ..Record::new(Arc::new(t.clone())) };
    let at = At::Pending { fire: t.due, tier: 0 };
    let Ok(()) = b.table.put(None, Row { record, at });
    let found = |b: &mut Bench| {
        let Ok(row) = b.table.row(t.id);
        let record = row.expect("the timer is there").record;
        assert_eq!(record.timer.extensions, t.extensions, "those of the timer always stay");
        record.extensions
    };
    assert_eq!(b.reschedule(t.id, 70_000, false), RescheduleAnswer::Rescheduled(t.id));
    assert_eq!(b.apply(Op::Park(Park { id: t.id, failed: 0 })), Answer::Park(MoveAnswer::Done));
    assert_eq!(b.apply(Op::Unpark(Unpark { id: t.id, fire: t.due })), Answer::Unpark(MoveAnswer::Done));
    assert_eq!(found(&mut b), of(&[4, 6, 8]), "no progress");
    assert_eq!(b.settle(t.id, retry(1)), Answer::Settle(SettleAnswer::Done));
    assert_eq!(found(&mut b), of(&[4, 8]), "a failed attempt");
    assert_eq!(b.settle(t.id, dead(2)), Answer::Settle(SettleAnswer::Done));
    assert_eq!(b.apply(Op::Replay(Replay { id: t.id, fire: t.due })), Answer::Replay(ReplayAnswer::Done));
    assert_eq!(found(&mut b), of(&[4, 8]));
}
