//! Edits that come without an end, or wait behind a backlog: they hold no timer that they cannot
//! change.

use mtimer_protocol::ops::{self, CancelReply, RescheduleReply, ScheduleReply};
use mtimer_store::Op;
use mtimer_store::ops::Park;
use mtimer_types::Key;

use super::*;
use crate::engine::partition::OwnedPartition;
use crate::engine::pending::{Own, Pending};
use crate::engine::table::{EntryState, TakeState};

impl Rig {
    /// Lets a ms pass. Calls on their way to the store before are answered after it: something
    /// always is.
    fn run_pipelined(&mut self) {
        let before = self.unanswered.len();
        self.answers_wait = true;
        self.run(1);
        let (now, epoch) = (self.now(), self.lane.epoch());
        for answer in self.unanswered.drain(..before).filter_map(FutureExt::now_or_never) {
            self.engine.handle(now, Input::Answered { partition: P, epoch, answer });
        }
    }

    /// Asks for one thing every ms until the timer is delivered, or it is hopeless; returns how
    /// many were asked.
    fn flood(&mut self, mut op: impl FnMut(&mut Self, u64) -> RequestOp) -> Option<u64> {
        (1..200).find(|n| {
            let op = op(self, *n);
            self.ask(1, vec![op]);
            self.run_pipelined();
            let delivered = |(_, m): &(SessionId, ServerMessage)| matches!(m, ServerMessage::Deliver { .. });
            self.sent.iter().any(delivered)
        })
    }
}

fn reschedule(id: TimerId, due: Time, request: u64) -> RequestOp {
    RequestOp::Reschedule(ops::Reschedule { target: Target::Id(id), due, request })
}

/// A partition's next owner, after a crash in the moment before this timer was due.
fn covered(change: impl FnOnce(&mut Timer)) -> (Rig, Timer) {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "b", 1);
    let mut timer = rig.timer("a", 50);
    change(&mut timer);
    rig.schedule(1, timer.clone());
    rig.run(45);
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    (next, timer)
}

#[test]
fn a_due_timer_is_sent_however_often_its_reschedule_is_too_late() {
    for mode in [Mode::AtMostOnce, Mode::AtLeastOnce] {
        let (mut rig, timer) = covered(|t| {
            t.mode = mode;
            t.key = Some(Key::new("k").unwrap());
        });
        let id = timer.id;
        let asked = rig.flood(|rig, n| reschedule(id, rig.now().time + 5_000, n));
        assert!(asked.is_some(), "{mode:?}: held by reschedules that change nothing");
        rig.answers_wait = false;
        rig.run(20);
        let late = rig.take_replies();
        assert!(
            late.iter().all(|reply| *reply == OpReply::Reschedule(RescheduleReply::TooLate(id))),
            "{late:?}"
        );
        assert_eq!(late.len() as u64, asked.unwrap(), "each is answered");
    }
}

#[test]
fn a_due_timer_is_sent_however_often_it_is_to_be_moved_past_its_deadline() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let mut timer = rig.timer("a", 50);
    timer.deadline = Some(timer.due + 5_000);
    let id = timer.id;
    rig.schedule(1, timer);
    rig.run(5);
    let asked = rig.flood(|rig, n| reschedule(id, rig.now().time + 60_000, n));
    assert!(asked.is_some(), "held by reschedules that change nothing");
}

#[test]
fn a_due_timer_is_sent_however_often_its_deadline_is_extended() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 50);
    let target = Target::Id(timer.id);
    rig.schedule(1, timer);
    rig.run(5);
    let asked = rig.flood(|rig, request| {
        let (target, deadline) = (target.clone(), rig.now().time + 5_000);
        ops::ExtendDeadline { target, deadline, request }.into()
    });
    assert!(asked.is_some(), "held by extensions");
}

#[test]
fn a_due_timer_is_sent_between_two_operations_on_its_key() {
    let key = Some(Key::new("k").unwrap());
    for policy in [KeyPolicy::Create, KeyPolicy::Keep, KeyPolicy::Replace] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        // It has ended: to schedule it again changes nothing, which only the store knows.
        let mut ended = rig.timer("a", 50);
        ended.key = key.clone();
        rig.schedule(1, ended.clone());
        rig.run(2);
        rig.ask(1, vec![RequestOp::Cancel(ops::Cancel { target: Target::Id(ended.id), request: 1 })]);
        rig.run(2);
        let mut timer = rig.timer("a", 50);
        timer.key = key.clone();
        rig.schedule(1, timer);
        rig.run(2);
        let asked =
            rig.flood(|_, _| RequestOp::Schedule(ops::Schedule { timer: ended.clone().into(), policy }));
        assert!(asked.is_some(), "{policy:?}: held by schedules that change nothing");
    }
}

#[test]
fn an_edit_behind_a_backlog_holds_no_timer_and_learns_that_it_was_sent() {
    for moves in [false, true] {
        let mut rig = Rig::new(EngineOptions { batch_ops: 1, ..EngineOptions::default() });
        rig.join(1, "a", 10);
        let timer = rig.timer("a", 50);
        let id = timer.id;
        rig.schedule(1, timer);
        rig.run(45);
        rig.engine.partition(P).unwrap().calls.hold_batches();
        rig.ask(1, vec![RequestOp::Purge(ops::Purge { id: TimerId::from_u128(0) })]);
        rig.ask(
            1,
            vec![match moves {
                true => reschedule(id, rig.now().time + 5_000, 1),
                false => RequestOp::Cancel(ops::Cancel { target: Target::Id(id), request: 1 }),
            }],
        );
        rig.run(10);
        let delivery = rig.take_deliveries().pop().expect("held by what waits in the broker").1;
        rig.engine.partition(P).unwrap().calls.release_batches();
        rig.take_replies();
        rig.run(5);
        let late = rig.take_replies();
        let too_late = match moves {
            true => OpReply::Reschedule(RescheduleReply::TooLate(id)),
            false => OpReply::Cancel(CancelReply::TooLate(id)),
        };
        assert_eq!(late.last(), Some(&too_late), "moves: {moves}");
        rig.settle(1, &delivery, HandlerOutcome::Ok);
        rig.run(20);
        assert_eq!((rig.refusals(), rig.place(id)), (vec![], None));
    }
}

/// The move to the park was queued before the reschedule left, and would have come to the store
/// after it.
#[test]
fn a_reschedule_overtakes_the_move_to_the_park() {
    const BATCH: usize = 8;
    let options = EngineOptions { batch_ops: BATCH, park_after_ms: 5, ..EngineOptions::default() };
    let mut rig = Rig::new(options);
    rig.join(1, "b", 10);
    // More moves to the park than one batch takes. Nobody takes these timers; the first ready is
    // parked last.
    let timers: Vec<Timer> = (0..BATCH).map(|_| rig.timer("a", 50)).collect();
    let last = timers[0].id;
    timers.into_iter().for_each(|timer| rig.schedule(1, timer));
    rig.run(45);
    rig.engine.partition(P).unwrap().calls.hold_batches();
    let unknown = |n: usize| RequestOp::Purge(ops::Purge { id: TimerId::from_u128(n as u128) });
    (0..BATCH).for_each(|n| rig.ask(1, vec![unknown(n)]));
    let due = rig.now().time + 5_000;
    rig.ask(1, vec![reschedule(last, due, 1)]);
    // One batch leaves, with all that is before the reschedule.
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.answers_wait = true;
    rig.turn();
    rig.engine.partition(P).unwrap().calls.hold_batches();
    rig.answers_wait = false;
    rig.run(100);
    let p = rig.engine.partition(P).unwrap();
    assert_eq!((p.queue.parks(), p.queue.len()), (BATCH, BATCH + 1), "the reschedule waits with the moves");
    p.calls.release_batches();
    rig.run(20);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Reschedule(RescheduleReply::Rescheduled(last))));
    assert_eq!(rig.place(last), Some(Place::Pending { fire: due, tier: 0 }));
}

/// Of two moves to the park, one from before an attempt failed, the first to leave is the one that
/// goes.
#[test]
fn a_move_to_the_park_takes_no_failed_attempt_back() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 50);
    let id = timer.id;
    rig.schedule(1, timer);
    rig.run(45);
    let p = rig.engine.partition(P).unwrap();
    let entry = p.table.get_mut(id).unwrap();
    entry.record.progress.failed = 1;
    entry.state = EntryState::Parking { sent: false };
    // The count with which it leaves, if it does.
    let now = rig.now().time;
    let p = rig.engine.partition(P).unwrap();
    let mut leaves = || {
        let op = p.complete(now, &mut Pending::Own(Own::Park(id)))?;
        let Op::Park(Park { failed, .. }) = op else { return None };
        Some(failed)
    };
    assert_eq!([leaves(), leaves()], [Some(1), None]);
}

#[test]
fn a_timer_that_an_edit_has_ended_is_not_taken() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 50) };
    rig.schedule(1, timer.clone());
    rig.run(45);
    rig.answers_wait = true;
    rig.run(10);
    let Some(p) = rig.engine.partition(P) else { panic!("the partition is owned") };
    let state = p.table.get(timer.id).map(|entry| &entry.state);
    assert!(matches!(state, Some(EntryState::Taking { .. })), "{state:?}");
    let leaves = |p: &mut OwnedPartition| {
        let take = Own::Take { id: timer.id, failed: 0 };
        p.complete(Time::ZERO, &mut Pending::Own(take)).is_some()
    };
    assert!(leaves(p));
    rig.engine.forget(timer.id);
    let Some(p) = rig.engine.partition(P) else { panic!("the partition is owned") };
    assert!(!leaves(p));
}

#[test]
fn a_due_timer_is_not_sent_while_it_is_being_replaced() {
    let key = Some(Key::new("k").unwrap());
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let old = Timer { key: key.clone(), ..rig.timer("a", 50) };
    rig.schedule(1, old.clone());
    rig.run(45);
    rig.take_replies();
    rig.answers_wait = true;
    let next = Timer { key, ..rig.timer("a", 60_000) };
    rig.ask(1, vec![RequestOp::Schedule(ops::Schedule { timer: next.into(), policy: KeyPolicy::Replace })]);
    rig.run(20);
    rig.answers_wait = false;
    rig.run(50);
    assert_eq!(rig.take_deliveries(), [], "sent while the store replaced it");
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: Some(old.id) })]
    );
}

#[test]
fn what_an_edit_holds_is_not_parked_unless_it_was_taken() {
    for take in [TakeState::NotAsked, TakeState::Taken] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        let timer = rig.timer("a", 50);
        let id = timer.id;
        rig.schedule(1, timer);
        rig.run(5);
        let p = rig.engine.partition(P).unwrap();
        p.edits.hold(id);
        let entry = p.table.get_mut(id).unwrap();
        (entry.take, entry.state) = (take, EntryState::Due);
        let now = rig.now();
        rig.engine.park(now, id);
        let state = &rig.engine.partition(P).unwrap().table.get(id).unwrap().state;
        assert_eq!(matches!(state, EntryState::Parking { .. }), take == TakeState::Taken, "{state:?}");
    }
}
