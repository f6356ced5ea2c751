//! Edits that cross with a take or with a handover: after the answer nothing is sent that it rules
//! out, and a stopped timer ends at once.

mod outcomes;

use mtimer_protocol::ops::{
    Cancel, CancelReply, Replay, Reschedule, RescheduleReply, Schedule, ScheduleReply,
};
use mtimer_types::{DeadReason, Headers, Key};

use super::*;

const A_MONTH: u32 = 2_592_000_000;

fn key() -> Key {
    Key::new("order-1").unwrap()
}

/// The two ways to name a timer.
fn targets(timer: &Timer) -> [Target; 2] {
    [Target::Id(timer.id), Target::Key(timer.dest.clone(), key())]
}

fn cancel(rig: &mut Rig, target: &Target) {
    rig.ask(2, vec![RequestOp::Cancel(Cancel { target: target.clone(), request: 9 })]);
}

fn replace(rig: &mut Rig) -> Timer {
    let next = Timer { key: Some(key()), ..rig.timer("a", 60_000) };
    let op = RequestOp::Schedule(Schedule { timer: next.clone().into(), policy: KeyPolicy::Replace });
    rig.ask(2, vec![op]);
    next
}

/// The timer has ended, as a dead letter for `reason`, which the shell was told once, or without
/// one, and its key is free.
fn assert_ended(rig: &mut Rig, timer: &Timer, reason: Option<DeadReason>) {
    let all = rig.lane.dead(Default::default(), 0, 100).now_or_never().unwrap().unwrap();
    let letter = all.rows.iter().find(|d| d.record.timer.id == timer.id);
    assert_eq!(letter.map(|d| d.reason), reason);
    let told = rig.died.iter().filter(|died| died.id == timer.id && Some(died.reason) == reason);
    let attempts: Vec<u32> = told.map(|died| died.attempts).collect();
    let failed: Vec<u32> = letter.map(|d| d.record.progress.failed).into_iter().collect();
    assert_eq!(attempts, failed, "each dead letter is told");
    let counted = rig.engine.counters[Counter::Dead as usize];
    assert_eq!(counted, rig.died.len() as u64);
    assert_eq!(rig.engine.tallies.dead.iter().sum::<u64>(), counted);
    assert_eq!(rig.place(timer.id), reason.map(|_| Place::Dead));
    assert!(rig.engine.partition(P).unwrap().table.get(timer.id).is_none(), "still in memory");
    let next = Timer { key: Some(key()), ..rig.timer("a", 60_000) };
    rig.take_replies();
    rig.schedule(2, next);
    rig.run(2);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None })],
        "the key is held"
    );
    assert_eq!(rig.take_deliveries(), []);
}

fn rig() -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "b", 1);
    rig
}

/// An at-most-once timer whose take is carried out, and whose answer does not arrive yet.
fn taking() -> (Rig, Timer) {
    let mut rig = rig();
    let once = Timer { mode: Mode::AtMostOnce, key: Some(key()), ..rig.timer("a", 50) };
    rig.schedule(1, once.clone());
    rig.run(45);
    rig.take_replies();
    rig.answers_wait = true;
    rig.run(10);
    assert!(matches!(rig.place(once.id), Some(Place::Taken { unconfirmed: false, .. })));
    (rig, once)
}

/// A keyed timer that its client has, before it answers.
fn delivered() -> (Rig, Timer, Delivery) {
    let mut rig = rig();
    let timer = Timer { key: Some(key()), ..rig.timer("a", 0) };
    let d = rig.deliver(1, timer.clone());
    rig.take_replies();
    (rig, timer, d)
}

/// The answers arrive, all in one turn.
fn answers_arrive(rig: &mut Rig) {
    rig.answers_wait = false;
    rig.turn();
}

#[test]
fn a_timer_that_was_replaced_while_it_was_taken_is_not_sent() {
    let (mut rig, once) = taking();
    let next = replace(&mut rig);
    rig.turn();
    answers_arrive(&mut rig);
    assert_eq!(rig.take_deliveries(), [], "sent after the reply that names it as replaced");
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: Some(once.id) })]
    );
    rig.run(5_000);
    assert_eq!((rig.take_deliveries(), rig.place(once.id)), (vec![], None));
    assert!(rig.place(next.id).is_some());
    assert_eq!(rig.engine.unsettled(), 0);
}

#[test]
fn a_timer_that_was_taken_and_not_sent_is_cancelled() {
    for n in 0..2 {
        let (mut rig, once) = taking();
        cancel(&mut rig, &targets(&once)[n]);
        rig.turn();
        answers_arrive(&mut rig);
        assert_eq!(rig.take_deliveries(), []);
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::Cancelled(once.id))]);
        rig.run(1_000);
        assert_ended(&mut rig, &once, None);
        assert_eq!(rig.engine.unsettled(), 0);
    }
}

#[test]
fn a_cancel_beside_a_take_whose_client_leaves_is_not_followed_by_a_delivery() {
    for n in 0..2 {
        let (mut rig, once) = taking();
        cancel(&mut rig, &targets(&once)[n]);
        rig.session(1, SessionEvent::Closed);
        rig.run(10);
        answers_arrive(&mut rig);
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::Cancelled(once.id))]);
        rig.join(3, "a", 10);
        rig.run(30_000);
        assert_eq!(rig.take_deliveries(), [], "delivered to the next client");
        assert_ended(&mut rig, &once, None);
    }
}

#[test]
fn a_cancel_beside_a_take_that_is_answered_late_is_not_followed_by_a_delivery() {
    for n in 0..2 {
        let (mut rig, once) = taking();
        cancel(&mut rig, &targets(&once)[n]);
        rig.run(1_500);
        answers_arrive(&mut rig);
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::Cancelled(once.id))]);
        rig.run(30_000);
        assert_eq!(rig.take_deliveries(), []);
        assert_ended(&mut rig, &once, None);
    }
}

/// A process stops between the answer to a take and a cancel, both heard in one turn: the delivery
/// is taken back, because the fence or its handler's time is over. A question that makes an
/// acknowledgement go is heard in the same turn.
#[test]
fn a_cancel_of_a_delivery_that_is_taken_back_in_the_same_turn_is_final() {
    for (stopped_ms, n) in [(2_000, 0), (2_000, 1), (600, 0), (600, 1)] {
        let (mut rig, other, d) = delivered();
        let once = Timer { mode: Mode::AtMostOnce, key: Key::new("order-2").ok(), ..rig.timer("a", 50) };
        rig.schedule(1, once.clone());
        rig.run(45);
        rig.take_replies();
        rig.answers_wait = true;
        rig.run(10);
        rig.hear_answers();
        rig.ms += stopped_ms;
        rig.settle(1, &d, HandlerOutcome::Ok);
        let target = [Target::Id(once.id), Target::Key(dest("a"), once.key.clone().unwrap())][n].clone();
        cancel(&mut rig, &target);
        rig.session(2, SessionEvent::Query { corr: 1, query: Query::Get(Target::Id(other.id)) });
        rig.turn();
        answers_arrive(&mut rig);
        rig.run(30_000);
        assert_eq!(rig.take_deliveries(), [], "stopped for {stopped_ms} ms; {:?}", rig.take_replies());
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::Cancelled(once.id))]);
        assert_eq!((rig.place(once.id), rig.engine.unsettled()), (None, 0));
    }
}

#[test]
fn a_replayed_timer_that_was_taken_and_not_sent_is_stopped_for_good() {
    let mut rig = rig();
    let once = Timer { mode: Mode::AtMostOnce, key: Some(key()), ..rig.timer("a", 0) };
    let d = rig.deliver(1, once.clone());
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(5);
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 0 });
    rig.ask(1, vec![RequestOp::Replay(Replay { id: once.id })]);
    rig.run(5);
    rig.take_replies();
    rig.answers_wait = true;
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.turn();
    assert!(matches!(rig.place(once.id), Some(Place::Taken { unconfirmed: false, .. })));
    cancel(&mut rig, &Target::Id(once.id));
    rig.turn();
    answers_arrive(&mut rig);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::TooLate(once.id))]);
    rig.run(1_000);
    assert_ended(&mut rig, &once, Some(DeadReason::Stopped));
}

#[test]
fn a_reschedule_that_comes_too_late_for_a_take_changes_nothing() {
    let (mut rig, once) = taking();
    let (target, due) = (Target::Id(once.id), once.due + 5_000);
    rig.ask(2, vec![RequestOp::Reschedule(Reschedule { target, due, request: 9 })]);
    rig.turn();
    answers_arrive(&mut rig);
    rig.run(20);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [once.id]);
    assert_eq!(rig.take_replies(), [OpReply::Reschedule(RescheduleReply::TooLate(once.id))]);
    rig.run(10_000);
    assert_eq!(rig.take_deliveries(), []);
}

#[test]
fn what_was_taken_and_not_sent_is_left_to_the_next_owner() {
    let (mut rig, once) = taking();
    // An edit that changes nothing holds it back; nobody is there any more when that is answered.
    let (target, due) = (Target::Id(once.id), once.due + 5_000);
    rig.ask(2, vec![RequestOp::Reschedule(Reschedule { target, due, request: 9 })]);
    rig.session(1, SessionEvent::Closed);
    rig.turn();
    answers_arrive(&mut rig);
    let now = rig.now();
    rig.engine.handle(now, Input::Disown(P));
    rig.turn();
    assert_eq!(rig.ended, Some(LaneError::Closed));
    let mut next = Rig::on(rig.store.clone(), 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(50);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [once.id]);
}

#[test]
fn a_broker_is_released_when_the_store_has_its_partitions_back() {
    let mut rig = rig();
    rig.answers_wait = true;
    rig.stop();
    assert!(!rig.released);
    answers_arrive(&mut rig);
    assert!(rig.released);
}

#[test]
fn a_handover_waits_for_a_take_and_lists_its_delivery() {
    for way in ["queued", "asked", "refused for now"] {
        let mut rig = rig();
        let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 50) };
        rig.schedule(1, once);
        rig.run(45);
        rig.read_only = way == "refused for now";
        rig.answers_wait = way == "asked";
        if way == "queued" {
            rig.engine.partition(P).unwrap().calls.hold_batches();
        }
        rig.run(10);
        let now = rig.now();
        rig.engine.handle(now, Input::Disown(P));
        rig.run(5);
        (rig.read_only, rig.answers_wait) = (false, false);
        if way == "queued" {
            rig.engine.partition(P).unwrap().calls.release_batches();
        }
        rig.run(100);
        assert_eq!(rig.take_deliveries().len(), 1, "{way}");
        assert_eq!(rig.ended, Some(LaneError::Closed));
        let mut next = Rig::acquired(rig.store, 2, rig.ms, EngineOptions::default());
        assert_eq!(next.inherited(), 1, "{way}");
    }
}

#[test]
fn what_is_replaced_while_it_waits_for_credit_is_not_sent_with_the_credit() {
    let mut rig = rig();
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 0 });
    let old = Timer { key: Some(key()), ..rig.timer("a", 0) };
    rig.schedule(1, old.clone());
    rig.run(20);
    rig.take_replies();
    rig.answers_wait = true;
    replace(&mut rig);
    rig.turn();
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    answers_arrive(&mut rig);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: Some(old.id) })]
    );
    rig.run(1_000);
    assert_eq!(rig.take_deliveries(), []);
}

#[test]
fn what_the_lane_took_along_is_not_sent_in_the_same_turn() {
    let (mut rig, _) = taking();
    rig.store.faults().fence(P);
    rig.session(2, SessionEvent::Query { corr: 1, query: Query::Status });
    rig.turn();
    answers_arrive(&mut rig);
    assert!(rig.ended.is_some());
    assert_eq!(rig.take_deliveries(), []);
}
