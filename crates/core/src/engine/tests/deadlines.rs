//! No delivery begins after a timer's deadline, wherever the timer waits, and a timer that has
//! missed its deadline ends soon.

use mtimer_protocol::ops::{
    Cancel, ExtendDeadline, ExtendDeadlineReply, Reschedule, RescheduleReply, ScheduleReply,
};
use mtimer_types::{Ended, limits::REPEAT_HORIZON_MS};

use super::*;

/// How a timer ended, as the store remembers it.
fn ended(rig: &mut Rig, timer: &Timer) -> OpReply {
    assert!(rig.ms < REPEAT_HORIZON_MS);
    rig.take_replies();
    rig.schedule(1, timer.clone());
    rig.run(5);
    rig.take_replies().remove(0)
}

/// A timer that is due in `due_in` ms and may be delivered for `open` ms.
fn with_deadline(rig: &mut Rig, due_in: u64, open: u64) -> Timer {
    let timer = rig.timer("a", due_in);
    Timer { deadline: Some(timer.due + open), ..timer }
}

/// A client with credit for one delivery has one; three timers with deadlines and one without wait.
fn waiting_for_credit() -> (Rig, Delivery, Vec<Timer>) {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let first = rig.timer("a", 0);
    let first = rig.deliver(1, first);
    let timers: Vec<Timer> = (0..3).map(|n| with_deadline(&mut rig, 10 + n, 50)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    let open = rig.timer("a", 10);
    rig.schedule(1, open);
    rig.run(30);
    (rig, first, timers)
}

#[test]
fn what_waits_for_credit_is_not_delivered_after_its_deadline() {
    let (mut rig, first, timers) = waiting_for_credit();
    // No housekeeping comes between the deadline and the credit.
    rig.run(20);
    rig.engine.housekeeping_at += 1_000;
    rig.run(50);
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.run(5);
    let sent: Vec<_> = rig.take_deliveries().iter().map(|(_, d)| d.id).collect();
    assert!(timers.iter().all(|t| !sent.contains(&t.id)), "delivered after the deadline");
    assert_eq!(sent.len(), 1);
    assert_eq!(ended(&mut rig, &timers[0]), OpReply::Schedule(ScheduleReply::Ended(Ended::Expired)));
}

#[test]
fn what_waits_for_credit_expires_although_no_credit_comes() {
    let (mut rig, _, timers) = waiting_for_credit();
    rig.run(150);
    assert_eq!(timers.iter().filter(|t| rig.place(t.id).is_some()).count(), 0, "still there");
    assert_eq!(rig.engine.counters[crate::api::Counter::Parked as usize], 0);
    assert_eq!((rig.engine.memory().0, rig.engine.unsettled()), (2, 1));
    assert_eq!(ended(&mut rig, &timers[2]), OpReply::Schedule(ScheduleReply::Ended(Ended::Expired)));
}

#[test]
fn a_delivery_may_begin_at_the_deadline_itself() {
    let (mut rig, first, timers) = waiting_for_credit();
    let deadline = timers[0].deadline.unwrap();
    while rig.now().time < deadline {
        rig.run(1);
    }
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.turn();
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [timers[0].id]);
}

#[test]
fn what_expires_in_the_queue_does_not_stay_in_it() {
    let mut rig = Rig::new(EngineOptions { park_after_ms: 60_000, ..EngineOptions::default() });
    rig.join(1, "a", 1);
    let first = rig.timer("a", 0);
    rig.deliver(1, Timer { callback_timeout_ms: Some(60_000), ..first });
    let open = rig.timer("a", 0);
    rig.schedule(1, open);
    rig.run(5);
    for _ in 0..20 {
        for _ in 0..100 {
            let timer = with_deadline(&mut rig, 0, 20);
            rig.schedule(1, timer);
        }
        rig.run(100);
    }
    let (_, dest) = rig.engine.roster.dests().next().unwrap();
    assert!(dest.ready.len() <= 201, "{} ids of timers that have ended", dest.ready.len());
}

#[test]
fn a_cancelled_timer_leaves_nothing_behind_among_the_deadlines() {
    let (mut rig, _, timers) = waiting_for_credit();
    for (request, timer) in timers.iter().enumerate() {
        let (target, request) = (Target::Id(timer.id), request as u64);
        rig.ask(1, vec![RequestOp::Cancel(Cancel { target, request })]);
    }
    rig.run(5);
    let (_, dest) = rig.engine.roster.dests().next().unwrap();
    assert_eq!(dest.ready.next_deadline(), None);
}

/// A timer that is due in 5 ms, at most once, with 20 ms more to its deadline. The store's answers
/// wait.
fn about_to_be_taken() -> (Rig, Timer) {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = with_deadline(&mut rig, 50, 20);
    let once = Timer { mode: Mode::AtMostOnce, ..timer };
    rig.schedule(1, once.clone());
    rig.run(45);
    rig.take_replies();
    rig.answers_wait = true;
    (rig, once)
}

#[test]
fn what_is_taken_too_late_expires_and_is_not_sent() {
    let (mut rig, once) = about_to_be_taken();
    rig.run(30);
    // The take is answered after the deadline.
    rig.answers_wait = false;
    rig.run(50);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.place(once.id), None, "neither sent nor ended");
    assert_eq!((rig.engine.memory().0, rig.engine.unsettled()), (0, 0));
    assert_eq!(ended(&mut rig, &once), OpReply::Schedule(ScheduleReply::Ended(Ended::Expired)));
    let other = rig.timer("a", 0);
    rig.deliver(1, other);
}

#[test]
fn a_process_that_stops_between_a_take_and_its_delivery_does_not_send_it_too_late() {
    let (mut rig, once) = about_to_be_taken();
    rig.run(10);
    rig.hear_answers();
    rig.ms += 30;
    rig.answers_wait = false;
    rig.turn();
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.engine.counters[crate::api::Counter::Delivered as usize], 0);
    assert_eq!((rig.engine.memory().0, rig.engine.unsettled()), (0, 0));
    assert_eq!(ended(&mut rig, &once), OpReply::Schedule(ScheduleReply::Ended(Ended::Expired)));
    // The credit is free again.
    let other = rig.timer("a", 0);
    rig.deliver(1, other);
}

#[test]
fn what_comes_back_from_the_park_too_late_expires() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timer = with_deadline(&mut rig, 0, 1_000);
    rig.schedule(1, timer.clone());
    rig.run(900);
    assert_eq!(rig.place(timer.id), Some(Place::Parked));
    rig.answers_wait = true;
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.run(200);
    rig.answers_wait = false;
    rig.run(50);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(ended(&mut rig, &timer), OpReply::Schedule(ScheduleReply::Ended(Ended::Expired)));
}

#[test]
fn a_retry_that_waits_for_credit_expires_too() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = with_deadline(&mut rig, 0, 200);
    let first = rig.deliver(1, timer.clone());
    rig.settle(1, &first, HandlerOutcome::Retry { after_ms: Some(100), error: "later".into() });
    rig.run(10);
    let other = rig.timer("a", 0);
    rig.deliver(1, other);
    rig.run(300);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(ended(&mut rig, &timer), OpReply::Schedule(ScheduleReply::Ended(Ended::Expired)));
}

/// A client gives a timer a deadline that comes so many ms from now; it takes effect.
fn extend(rig: &mut Rig, id: TimerId, ahead_ms: u64) {
    let (target, deadline) = (Target::Id(id), rig.now().time + ahead_ms);
    rig.take_replies();
    rig.ask(1, vec![ExtendDeadline { target, deadline, request: rig.ms }.into()]);
    rig.run(2);
    assert_eq!(rig.take_replies(), [ExtendDeadlineReply::Extended(id).into()]);
}

/// The two timers that are delivered next, the handlers of all being done.
fn both_delivered(rig: &mut Rig, first: Delivery) -> [TimerId; 2] {
    let mut last = first;
    [(); 2].map(|()| {
        rig.settle(1, &last, HandlerOutcome::Ok);
        rig.run(5);
        last = rig.take_deliveries().remove(0).1;
        last.id
    })
}

#[test]
fn what_waits_for_credit_waits_until_its_new_deadline() {
    let (mut rig, first, timers) = waiting_for_credit();
    extend(&mut rig, timers[0].id, 400);
    extend(&mut rig, timers[1].id, 10);
    rig.run(200);
    let there = [0, 1, 2].map(|n: usize| rig.place(timers[n].id).is_some());
    assert_eq!(there, [true, false, false]);
    assert!(both_delivered(&mut rig, first).contains(&timers[0].id), "it is delivered after the old one");
}

#[test]
fn a_delivery_under_way_that_fails_is_retried_until_the_new_deadline() {
    for (ahead_ms, is_retried) in [(1_000, true), (50, false)] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 1);
        let timer = with_deadline(&mut rig, 0, if is_retried { 200 } else { 1_000 });
        let first = rig.deliver(1, timer.clone());
        extend(&mut rig, timer.id, ahead_ms);
        rig.settle(1, &first, HandlerOutcome::Retry { after_ms: Some(400), error: "later".into() });
        rig.run(500);
        assert_eq!(rig.take_deliveries().len(), usize::from(is_retried), "{ahead_ms} ms");
    }
}

#[test]
fn what_is_parked_expires_at_its_new_deadline() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timers = [500, 10_000].map(|open| with_deadline(&mut rig, 0, open));
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(400);
    assert_eq!(timers.each_ref().map(|timer| rig.place(timer.id)), [Some(Place::Parked); 2]);
    extend(&mut rig, timers[0].id, 60_000);
    extend(&mut rig, timers[1].id, 300);
    rig.run(5_000);
    assert_eq!(timers.each_ref().map(|timer| rig.place(timer.id)), [Some(Place::Parked), None]);
}

/// The store is given another deadline between the expiry and its answer.
#[test]
fn a_timer_that_the_store_does_not_let_expire_is_delivered() {
    let (mut rig, first, timers) = waiting_for_credit();
    rig.answers_wait = true;
    let (target, deadline) = (Target::Id(timers[0].id), rig.now().time + 10_000);
    rig.ask(1, vec![ExtendDeadline { target, deadline, request: 1 }.into()]);
    rig.run(100);
    rig.answers_wait = false;
    rig.run(20);
    assert!(matches!(rig.place(timers[0].id), Some(Place::Pending { .. })), "it has expired");
    assert!(both_delivered(&mut rig, first).contains(&timers[0].id));
}

/// A client asks for another deadline, so many ms from now; the answer is not awaited.
fn ask_extension(rig: &mut Rig, id: TimerId, ahead_ms: u64) {
    let (target, deadline) = (Target::Id(id), rig.now().time + ahead_ms);
    rig.ask(1, vec![ExtendDeadline { target, deadline, request: rig.ms }.into()]);
}

/// A store that need not read the timer writes it as the take brings it.
#[test]
fn a_take_does_not_bring_back_the_deadline_of_before() {
    for (open, ahead_ms) in [(100, 10_000), (10_000, 100)] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 1);
        let first = rig.timer("a", 0);
        rig.deliver(1, first);
        let once = Timer { mode: Mode::AtMostOnce, ..with_deadline(&mut rig, 5, open) };
        rig.schedule(1, once.clone());
        rig.run(10);
        rig.answers_wait = true;
        ask_extension(&mut rig, once.id, ahead_ms);
        rig.turn();
        rig.join(2, "a", 1);
        rig.run(1);
        let entry = rig.engine.partition(P).unwrap().table.get(once.id).unwrap();
        assert!(entry.state.taking().is_some(), "{:?}", entry.state);
        rig.answers_wait = false;
        rig.run(5);
        assert_eq!(rig.take_deliveries().len(), 1);
        let (stored, _) = rig.lane.get(once.id.into()).now_or_never().unwrap().unwrap().unwrap();
        assert!(rig.brought.iter().all(|timer| **timer == *stored.timer), "{:?}", rig.brought);
    }
}

#[test]
fn what_is_moved_beyond_a_deadline_that_is_being_extended_does_not_fire_at_its_old_time() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = with_deadline(&mut rig, 20, 50);
    rig.schedule(1, timer.clone());
    rig.run(15);
    rig.take_replies();
    rig.answers_wait = true;
    let target = Target::Id(timer.id);
    let (deadline, due) = (timer.due + 10_000, timer.due + 5_000);
    rig.ask(
        1,
        vec![
            ExtendDeadline { target: target.clone(), deadline, request: 1 }.into(),
            Reschedule { target, due, request: 2 }.into(),
        ],
    );
    rig.run(20);
    let sent = rig.take_deliveries().len();
    rig.answers_wait = false;
    rig.run(5);
    let replies = rig.take_replies();
    let is_moved = replies[1] == RescheduleReply::Rescheduled(timer.id).into();
    assert!(!is_moved || sent == 0, "moved, and sent at its old time: {replies:?}");
}

#[test]
fn a_timer_whose_deadline_was_extended_can_be_moved_beyond_the_old_one_at_once() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = with_deadline(&mut rig, 30, 50);
    rig.schedule(1, timer.clone());
    rig.run(5);
    rig.take_replies();
    rig.answers_wait = true;
    ask_extension(&mut rig, timer.id, 10_000);
    rig.run(5);
    // The extension is answered; the timer has not been read since.
    rig.hear_answers();
    rig.turn();
    assert_eq!(rig.take_replies(), [ExtendDeadlineReply::Extended(timer.id).into()]);
    let due = timer.due + 5_000;
    rig.ask(1, vec![Reschedule { target: timer.id.into(), due, request: 2 }.into()]);
    rig.run(40);
    assert_eq!(rig.take_deliveries(), [], "at its old time");
    rig.answers_wait = false;
    rig.run(5);
    assert_eq!(rig.take_replies(), [RescheduleReply::Rescheduled(timer.id).into()]);
}
