//! At-most-once timers that are taken with the claim, before they are due.

use mtimer_protocol::ops::{self, CancelReply, RescheduleReply, ScheduleReply};
use mtimer_types::{DeadReason, Key};

use super::*;
use crate::engine::partition::OwnedPartition;
use crate::engine::pending::{Own, Pending};
use crate::engine::table::TakeState;

/// When the timer of [`scheduled`] is due, ms.
const DUE: u64 = 100;

fn once(rig: &mut Rig, due_in: u64) -> Timer {
    Timer { mode: Mode::AtMostOnce, key: Key::new("k").ok(), ..rig.timer("a", due_in) }
}

fn is_taken(rig: &Rig, id: TimerId) -> bool {
    rig.place(id) == Some(Place::Taken { epoch: rig.lane.epoch(), unconfirmed: false })
}

/// A broker with a client, and a timer that is due in 40 ms and not claimed yet.
fn scheduled() -> (Rig, Timer) {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = once(&mut rig, DUE);
    rig.schedule(1, timer.clone());
    rig.run(DUE - 40);
    (rig, timer)
}

/// The same; the store has taken the timer, which is due in 10 ms.
fn taken_ahead() -> (Rig, Timer) {
    let (mut rig, timer) = scheduled();
    rig.run(30);
    assert!(is_taken(&rig, timer.id) && rig.take_deliveries().is_empty());
    rig.take_replies();
    (rig, timer)
}

fn sent(rig: &mut Rig) -> Vec<TimerId> {
    rig.take_deliveries().into_iter().map(|(_, delivery)| delivery.id).collect()
}

#[test]
fn it_is_sent_in_its_millisecond_without_another_question_to_the_store() {
    let (mut rig, timer) = taken_ahead();
    rig.answers_wait = true;
    rig.run(9);
    assert_eq!(sent(&mut rig), [], "early");
    rig.run(1);
    assert_eq!((sent(&mut rig), rig.brought.len()), (vec![timer.id], 1));
}

#[test]
fn no_more_are_taken_ahead_than_there_is_credit_for() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 2);
    let timers: Vec<Timer> =
        (0..5).map(|_| Timer { mode: Mode::AtMostOnce, ..rig.timer("a", DUE) }).collect();
    let absent = Timer { mode: Mode::AtMostOnce, ..rig.timer("nobody", DUE) };
    timers.iter().chain([&absent]).for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(DUE - 1);
    assert_eq!(timers.iter().filter(|timer| is_taken(&rig, timer.id)).count(), 2);
    assert!(!is_taken(&rig, absent.id));
    rig.run(10);
    let deliveries = rig.take_deliveries();
    assert_eq!(deliveries.len(), 2);
    deliveries.iter().for_each(|(_, delivery)| rig.settle(1, delivery, HandlerOutcome::Ok));
    rig.run(100);
    assert_eq!(rig.take_deliveries().len(), 2, "the others are taken when they are given out");
}

#[test]
fn one_that_is_taken_can_be_cancelled() {
    let (mut rig, timer) = taken_ahead();
    rig.ask(1, vec![ops::Cancel { target: timer.id.into(), request: 1 }.into()]);
    rig.run(50);
    assert_eq!(rig.take_replies(), [CancelReply::Cancelled(timer.id).into()]);
    assert_eq!((rig.take_deliveries(), rig.place(timer.id)), (vec![], None));
}

#[test]
fn one_that_is_taken_can_be_replaced() {
    let (mut rig, timer) = taken_ahead();
    let next = once(&mut rig, 5_000);
    let policy = KeyPolicy::Replace;
    rig.ask(1, vec![RequestOp::Schedule(Schedule { timer: next.clone().into(), policy })]);
    rig.run(50);
    let replaced = Some(timer.id);
    assert_eq!(rig.take_replies(), [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced })]);
    assert_eq!((rig.take_deliveries(), rig.place(timer.id)), (vec![], None));
    assert!(rig.place(next.id).is_some());
}

#[test]
fn it_is_too_late_to_move_one_that_is_taken_and_it_is_sent_at_its_time() {
    let (mut rig, timer) = taken_ahead();
    let due = timer.due + 5_000;
    rig.ask(1, vec![ops::Reschedule { target: timer.id.into(), due, request: 1 }.into()]);
    rig.run(5);
    assert_eq!(rig.take_replies(), [RescheduleReply::TooLate(timer.id).into()]);
    rig.run(5);
    assert_eq!(sent(&mut rig), [timer.id]);
}

#[test]
fn one_that_is_moved_with_the_claim_is_moved_and_not_taken() {
    let (mut rig, timer) = scheduled();
    rig.take_replies();
    let due = timer.due + 5_000;
    rig.ask(1, vec![ops::Reschedule { target: timer.id.into(), due, request: 1 }.into()]);
    rig.run(DUE);
    assert_eq!(rig.take_replies(), [RescheduleReply::Rescheduled(timer.id).into()]);
    assert!(!is_taken(&rig, timer.id) && rig.take_deliveries().is_empty());
}

#[test]
fn one_that_is_taken_and_read_anew_is_not_sent_early() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = once(&mut rig, 5_000);
    rig.schedule(1, timer.clone());
    let due = rig.now().time + DUE;
    let moved = Request {
        corr: 1,
        first_sent: rig.now().time,
        ops: vec![ops::Reschedule { target: timer.id.into(), due, request: 1 }.into()],
    };
    rig.session(1, SessionEvent::Request(moved.clone()));
    rig.run(DUE - 10);
    assert!(is_taken(&rig, timer.id));
    // The repeat is answered as the request was; memory is read anew.
    rig.session(1, SessionEvent::Request(moved));
    rig.run(9);
    assert_eq!(sent(&mut rig), [], "early");
    rig.run(1);
    assert_eq!(sent(&mut rig), [timer.id]);
}

#[test]
fn one_that_is_taken_goes_to_the_park_at_a_handover_and_the_next_owner_sends_it() {
    let (mut rig, timer) = taken_ahead();
    rig.stop();
    assert!(rig.released && rig.take_deliveries().is_empty());
    let mut next = Rig::on(rig.store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(50);
    assert_eq!(sent(&mut next), [timer.id]);
}

#[test]
fn one_that_is_being_taken_when_the_broker_stops_goes_to_the_park_too() {
    for is_given_out in [false, true] {
        let (mut rig, timer) = scheduled();
        rig.answers_wait = true;
        rig.run(if is_given_out { 50 } else { 30 });
        assert!(is_taken(&rig, timer.id));
        rig.stop();
        rig.answers_wait = false;
        rig.turn();
        assert!(rig.released && rig.take_deliveries().is_empty());
        assert_eq!(rig.engine.unsettled(), 0);
        let mut next = Rig::on(rig.store, 2, rig.ms, EngineOptions::default());
        next.join(1, "a", 10);
        next.run(50);
        assert_eq!(sent(&mut next), [timer.id]);
    }
}

#[test]
fn one_that_is_taken_is_unconfirmed_when_its_broker_dies() {
    let (rig, timer) = taken_ahead();
    let mut next = Rig::on(rig.store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(500);
    assert_eq!(next.take_deliveries(), []);
    assert!(matches!(next.place(timer.id), Some(Place::Taken { unconfirmed: true, .. })));
}

#[test]
fn one_that_is_taken_expires_if_nobody_takes_it_until_its_deadline() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let mut timer = once(&mut rig, DUE);
    timer.deadline = Some(timer.due + 20);
    rig.schedule(1, timer.clone());
    rig.run(DUE - 10);
    assert!(is_taken(&rig, timer.id));
    rig.session(1, SessionEvent::Unregister { registration: 1 });
    rig.run(500);
    rig.join(2, "a", 10);
    rig.run(500);
    assert_eq!((rig.take_deliveries(), rig.place(timer.id)), (vec![], None));
}

#[test]
fn one_whose_client_has_gone_goes_to_the_park_and_is_sent_to_the_next() {
    let (mut rig, timer) = taken_ahead();
    rig.session(1, SessionEvent::Unregister { registration: 1 });
    rig.run(5_000);
    assert_eq!((rig.take_deliveries(), rig.place(timer.id)), (vec![], Some(Place::Parked)));
    rig.join(2, "a", 10);
    rig.run(50);
    assert_eq!(sent(&mut rig), [timer.id]);
}

#[test]
fn a_take_that_is_not_answered_when_the_timer_is_due_is_awaited_and_not_repeated() {
    let (mut rig, timer) = scheduled();
    rig.answers_wait = true;
    rig.run(70);
    assert_eq!(sent(&mut rig), []);
    rig.answers_wait = false;
    rig.run(1);
    assert_eq!((sent(&mut rig), rig.brought.len()), (vec![timer.id], 1));
}

#[test]
fn a_take_that_the_store_refuses_is_asked_for_again() {
    let (mut rig, timer) = scheduled();
    rig.read_only = true;
    rig.run(70);
    assert_eq!(sent(&mut rig), []);
    rig.read_only = false;
    rig.run(500);
    assert_eq!(sent(&mut rig), [timer.id]);
}

/// Its take waits behind others in the queue: the move to the park leaves first.
#[test]
fn a_take_that_its_park_has_overtaken_does_not_leave() {
    let (mut rig, timer) = scheduled();
    let p = rig.engine.partition(P).unwrap();
    let leaves = |p: &mut OwnedPartition, own| p.complete(Time::ZERO, &mut Pending::Own(own)).is_some();
    p.table.get_mut(timer.id).unwrap().take = TakeState::Asked;
    let now = rig.now();
    rig.engine.park(now, timer.id);
    let p = rig.engine.partition(P).unwrap();
    assert!(leaves(p, Own::Park(timer.id)));
    assert!(!leaves(p, Own::Take { id: timer.id, failed: 0 }));
    assert_eq!(p.table.get(timer.id).unwrap().take, TakeState::NotAsked, "it would wait for ever");
}

#[test]
fn a_handler_that_fails_one_that_was_taken_ahead_ends_it() {
    let (mut rig, timer) = taken_ahead();
    rig.run(10);
    let (_, delivery) = rig.take_deliveries().remove(0);
    rig.settle(1, &delivery, HandlerOutcome::Fail { error: "no".into() });
    rig.run(50);
    assert_eq!(rig.place(timer.id), Some(Place::Dead));
    assert_eq!(rig.died.iter().map(|died| died.reason).collect::<Vec<_>>(), [DeadReason::AtMostOnce]);
}
