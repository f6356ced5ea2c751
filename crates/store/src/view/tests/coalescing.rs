//! Which reads a batch needs, and its net effect.

use std::sync::Arc;

use mtimer_types::{DeadReason, Ended, KeyPolicy, Mode, Target, Timer};

use super::*;
use crate::ops::{
    Cancel, CancelAnswer, Park, Purge, Replay, Reschedule, RescheduleAnswer, Schedule, ScheduleAnswer,
    SettleAnswer, Trim, TrimAnswer, Unpark,
};
use crate::remembered::Repeated;

/// A store with its owner.
struct Bench {
    remote: Remote,
    ctx: Context,
    rounds: usize,
}

impl Bench {
    fn new() -> Self {
        let ctx = Context { epoch: Epoch(7), prior_claim: Time::ZERO, now: Time::from_ms(50_000) };
        Self { remote: Remote::default(), ctx, rounds: 0 }
    }

    fn turn(&mut self, ops: &[Op]) -> Decided {
        self.ctx.now = self.ctx.now + 1;
        let (decided, rounds) = self.remote.prepared_turn(&mut self.remote.view(ops), &self.ctx, ops);
        self.rounds = rounds;
        decided
    }

    fn changes(&mut self, ops: &[Op]) -> Changes {
        self.turn(ops).changes
    }
}

fn plain(n: u64) -> Timer {
    Timer { key: None, mode: Mode::AtLeastOnce, ..cases::timer(n, false) }
}

fn keyed(n: u64) -> Timer {
    Timer { key: Some(key(0)), ..plain(n) }
}

fn once(n: u64) -> Timer {
    Timer { mode: Mode::AtMostOnce, ..plain(n) }
}

fn schedule(timer: &Timer) -> Op {
    Op::Schedule(Schedule::new(Arc::new(timer.clone()), KeyPolicy::Replace))
}

fn cancel(n: u64) -> Op {
    Op::Cancel(Cancel { target: Target::Id(id(n)), sent_attempt: None, request: RequestId(n) })
}

fn by_key() -> Target {
    Target::Key(dest(0), key(0))
}

fn settle(n: u64, verdict: Verdict) -> Op {
    Op::settle(id(n), verdict)
}

fn retry(n: u64, failed: u32) -> Op {
    let fire = Time::from_ms(70_000);
    settle(n, Verdict::Retry { fire, tier: 1, failed, error: "no".into() })
}

fn dead(n: u64) -> Op {
    settle(n, Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "never".into() })
}

fn ids(changes: &Changes) -> Vec<TimerId> {
    changes.rows.iter().map(RowChange::id).collect()
}

fn holders(changes: &Changes) -> Vec<(Option<TimerId>, Option<TimerId>)> {
    changes.keys.iter().map(|change| (change.before, change.after)).collect()
}

#[test]
fn nothing_is_decided_before_everything_is_read() {
    let mut view = View::new();
    let (a, b) = (plain(1), keyed(2));
    let ctx = Bench::new().ctx;
    view.learn(Fact::Row(a.id, None));
    view.learn(Fact::Ended(a.id, None));
    let needs = view.decide(&ctx, &[schedule(&a), schedule(&b)]).unwrap_err();
    assert_eq!(needs, [Need::Row(b.id), Need::Ended(b.id), Need::Key(dest(2), key(0))]);
    let again = view.decide(&ctx, &[cancel(1)]).unwrap_err();
    assert_eq!(again, [Need::Answered(RequestId(1))], "the schedule before left nothing behind");
    view.learn(Fact::Answered(RequestId(1), None));
    let decided = view.decide(&ctx, &[cancel(1)]).unwrap();
    assert_eq!(decided.answers, [Answer::Cancel(CancelAnswer::NotFound)]);
}

#[test]
fn common_operations_take_one_round() {
    let mut b = Bench::new();
    for op in [schedule(&plain(1)), schedule(&keyed(2)), schedule(&once(3)), retry(1, 1), cancel(4)] {
        let one = !matches!(op, Op::Cancel(_));
        b.turn(&[op]);
        assert_eq!(b.rounds, if one { 1 } else { 2 });
    }
    b.turn(&[Op::take(id(3), 0), settle(1, Verdict::Ack), settle(3, Verdict::Ack)]);
    assert_eq!(b.rounds, 1);
    b.turn(&[Op::Trim(Trim { of: Retained::Dead, before: Time::ZERO, keep: 0, limit: 10 })]);
    assert_eq!(b.rounds, 1);
    assert!(b.turn(&[]).changes.is_empty());
    assert_eq!(b.rounds, 0);
}

#[test]
fn the_holder_of_a_key_takes_a_second_round() {
    let mut b = Bench::new();
    b.turn(&[schedule(&keyed(1))]);
    let decided = b.turn(&[schedule(&keyed(2))]);
    assert_eq!(b.rounds, 2);
    let answer = ScheduleAnswer::Scheduled { new: true, replaced: Some(id(1)) };
    assert_eq!(decided.answers, [Answer::Schedule(answer)]);
    assert_eq!(holders(&decided.changes), [(Some(id(1)), Some(id(2)))]);
    let due = Time::from_ms(80_000);
    let decided = b.turn(&[Op::Reschedule(Reschedule {
        target: by_key(),
        due,
        is_begun: false,
        request: RequestId(5),
    })]);
    assert_eq!(b.rounds, 2);
    assert_eq!(decided.answers, [Answer::Reschedule(RescheduleAnswer::Rescheduled(id(2)))]);
}

#[test]
fn the_end_of_a_timer_that_the_batch_removes_takes_a_third_round() {
    let mut b = Bench::new();
    b.turn(&[schedule(&keyed(1))]);
    let decided = b.turn(&[settle(1, Verdict::Ack), cancel(1)]);
    assert_eq!(b.rounds, MAX_ROUNDS);
    assert_eq!(decided.answers, [Answer::Settle(SettleAnswer::Done), Answer::Cancel(CancelAnswer::NotFound)]);
}

#[test]
fn a_key_that_names_nothing_takes_one_round_more() {
    let mut b = Bench::new();
    b.remote.keys.insert((dest(0), key(0)), id(1));
    let decided =
        b.turn(&[Op::Cancel(Cancel { target: by_key(), sent_attempt: None, request: RequestId(1) })]);
    assert_eq!(b.rounds, 3);
    assert_eq!(decided.answers, [Answer::Cancel(CancelAnswer::NotFound)]);
    let decided = b.turn(&[schedule(&keyed(2))]);
    assert_eq!(holders(&decided.changes), [(Some(id(1)), Some(id(2)))]);
}

#[test]
fn a_timer_scheduled_and_cancelled_leaves_its_outcome_only() {
    let changes = Bench::new().changes(&[schedule(&keyed(1)), cancel(1)]);
    assert_eq!((changes.rows.len(), changes.keys.len()), (0, 0));
    assert_eq!(changes.ended, [(id(1), Ended::Cancelled)]);
    assert_eq!(changes.answered, [(RequestId(1), CancelAnswer::Cancelled(id(1)).remember())]);
    assert!(!changes.is_empty());
}

#[test]
fn of_a_chain_of_replacements_the_last_is_stored() {
    let mut b = Bench::new();
    b.turn(&[schedule(&keyed(1))]);
    let changes = b.changes(&[schedule(&keyed(2)), schedule(&keyed(3)), schedule(&keyed(4))]);
    assert_eq!(ids(&changes), [id(1), id(4)]);
    assert_eq!(holders(&changes), [(Some(id(1)), Some(id(4)))]);
    assert_eq!(changes.ended, [1, 2, 3].map(|n| (id(n), Ended::Replaced)));
}

#[test]
fn a_key_that_returns_to_its_holder_is_not_written() {
    let mut b = Bench::new();
    b.turn(&[schedule(&keyed(1)), dead(1)]);
    b.turn(&[schedule(&keyed(2))]);
    let fire = Time::from_ms(70_000);
    let changes = b.changes(&[
        dead(2),
        Op::Replay(Replay { id: id(1), fire }),
        settle(1, Verdict::Ack),
        Op::Replay(Replay { id: id(2), fire }),
    ]);
    assert_eq!(ids(&changes), [id(1), id(2)], "in the order of their last moves");
    assert_eq!(holders(&changes), [], "from 2 to 1 and back");
    assert!(changes.adds());
}

#[test]
fn a_retry_and_its_acknowledgement_are_one_removal() {
    let mut b = Bench::new();
    b.turn(&[schedule(&plain(1))]);
    let stored = b.remote.rows[&id(1)].clone();
    let changes = b.changes(&[retry(1, 1), settle(1, Verdict::LateAck { attempt: 1 })]);
    let [removed] = &changes.rows[..] else { panic!("{changes:?}") };
    assert_eq!((&removed.before, &removed.after), (&Some(stored), &None));
    assert_eq!((changes.ended.len(), changes.answered.len()), (0, 0));
}

#[test]
fn a_row_that_ends_as_it_began_is_not_written() {
    let mut b = Bench::new();
    b.turn(&[schedule(&plain(1)), schedule(&plain(2)), Op::Park(Park { id: id(1), failed: 0 })]);
    let due = plain(2).due;
    let changes = b.changes(&[
        Op::Unpark(Unpark { id: id(1), fire: due }),
        Op::Park(Park { id: id(1), failed: 0 }),
        settle(2, Verdict::Ack),
        schedule(&plain(2)),
    ]);
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn rows_are_in_the_order_of_their_arrival() {
    let mut b = Bench::new();
    b.turn(&[schedule(&plain(1)), schedule(&plain(2)), schedule(&plain(3))]);
    let park = |n| Op::Park(Park { id: id(n), failed: 0 });
    let changes = b.changes(&[retry(1, 1), dead(3), park(2), Op::Park(Park { id: id(1), failed: 1 })]);
    assert_eq!(ids(&changes), [id(3), id(2), id(1)]);
    let again = b.changes(&[
        Op::Cancel(Cancel { target: Target::Id(id(1)), sent_attempt: Some(2), request: RequestId(1) }),
        Op::Unpark(Unpark { id: id(2), fire: Time::from_ms(70_000) }),
        Op::Cancel(Cancel { target: Target::Id(id(2)), sent_attempt: Some(1), request: RequestId(2) }),
        Op::Cancel(Cancel { target: Target::Id(id(1)), sent_attempt: Some(2), request: RequestId(3) }),
    ]);
    assert_eq!(ids(&again), [id(1), id(2)], "who stays in its place keeps its place in the order");
}

#[test]
fn only_what_is_stored_by_an_operation_that_adds_adds() {
    let mut b = Bench::new();
    assert!(b.changes(&[schedule(&keyed(1))]).adds());
    assert!(!b.changes(&[schedule(&keyed(1))]).adds(), "it was stored before");
    let create = Op::Schedule(Schedule::new(Arc::new(keyed(2)), KeyPolicy::Create));
    let changes = b.changes(&[retry(1, 1), create, cancel(3)]);
    assert!(!changes.adds(), "the key was taken");
    let target = Target::Id(id(4));
    let reschedule = Op::Reschedule(Reschedule {
        target,
        due: Time::from_ms(80_000),
        is_begun: false,
        request: RequestId(9),
    });
    b.turn(&[schedule(&plain(4))]);
    assert!(b.changes(&[reschedule]).adds());
    b.turn(&[dead(4)]);
    let replay = Op::Replay(Replay { id: id(4), fire: Time::from_ms(70_000) });
    assert!(b.changes(std::slice::from_ref(&replay)).adds());
    assert!(!b.changes(&[replay, settle(4, Verdict::Ack)]).adds());
}

#[test]
fn trims_see_what_the_batch_has_dead_lettered_and_removed() {
    let mut b = Bench::new();
    let trim = |keep, limit| Op::Trim(Trim { of: Retained::Dead, before: Time::ZERO, keep, limit });
    for n in 0..5 {
        b.turn(&[schedule(&plain(n)), dead(n)]);
    }
    b.turn(&[schedule(&plain(5)), schedule(&plain(6))]);
    let decided = b.turn(&[Op::Purge(Purge { id: id(0) }), dead(5), trim(3, 2), dead(6), trim(1, 3)]);
    let trimmed = |removed, more| Answer::Trim(TrimAnswer { removed, more });
    assert_eq!(decided.answers[2], trimmed(2, false));
    assert_eq!(decided.answers[4], trimmed(3, false));
    assert_eq!(b.remote.listings[0], [id(6)]);
    assert_eq!(b.rounds, 2, "more is read than one trim alone would need");
    assert_eq!(ids(&decided.changes), [0, 1, 2, 6, 3, 4, 5].map(id), "in the order of their last moves");
}

#[test]
fn a_view_that_has_decided_knows_nothing_any_more() {
    let mut b = Bench::new();
    b.turn(&[schedule(&keyed(1))]);
    let mut view = View::new();
    b.remote.prepared_turn(&mut view, &b.ctx, &[dead(1)]);
    assert!(!view.knows(&Need::Row(id(1))));
    let trim = Op::Trim(Trim { of: Retained::Dead, before: Time::ZERO, keep: 0, limit: 5 });
    let (trimmed, rounds) = b.remote.prepared_turn(&mut view, &b.ctx, &[trim]);
    assert_eq!((rounds, ids(&trimmed.changes)), (1, vec![id(1)]), "it is read anew");
}
