//! Edits that cross with a take, with an outcome on its way to the store, or with a handover: after
//! the answer nothing is sent that it rules out, and a stopped timer ends at once.

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

/// A keyed timer that its client has, before it answers.
fn delivered() -> (Rig, Timer, Delivery) {
    let mut rig = rig();
    let timer = Timer { key: Some(key()), ..rig.timer("a", 0) };
    let d = rig.deliver(1, timer.clone());
    rig.take_replies();
    (rig, timer, d)
}

fn retry(rig: &mut Rig, d: &Delivery, after_ms: u32) {
    let error = "later".into();
    rig.settle(1, d, HandlerOutcome::Retry { after_ms: Some(after_ms), error });
}

#[test]
fn a_cancel_that_crosses_with_a_retry_in_one_batch_ends_the_timer() {
    for (n, after_ms) in [(0, A_MONTH), (1, A_MONTH), (0, 100), (1, 100)] {
        let (mut rig, timer, d) = delivered();
        cancel(&mut rig, &targets(&timer)[n]);
        retry(&mut rig, &d, after_ms);
        rig.run(5);
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))]);
        assert_ended(&mut rig, &timer, Some(DeadReason::Stopped));
        rig.run(1_000);
        assert_eq!(rig.take_deliveries(), []);
    }
}

#[test]
fn the_trace_of_a_retry_that_the_store_finds_stopped_ends_as_dead() {
    let mut rig = Rig::new(EngineOptions { traces: true, ..EngineOptions::default() });
    rig.join(1, "a", 10);
    rig.join(2, "b", 1);
    let headers = Headers::new([("traceparent", "00-1-2-01")]).unwrap();
    let timer = Timer { headers, ..rig.timer("a", 1) };
    let d = rig.deliver(1, timer.clone());
    rig.answers_wait = true;
    cancel(&mut rig, &Target::Id(timer.id));
    rig.turn();
    retry(&mut rig, &d, 100);
    rig.run(5);
    answers_arrive(&mut rig);
    let [(id, Some(Verdict::Dead { reason, failed, error }))] = &rig.settled[..] else {
        panic!("{:?}", rig.settled)
    };
    assert_eq!((*id, *reason, *failed, &**error), (timer.id, DeadReason::Stopped, 1, "later"));
}

#[test]
fn a_cancel_before_a_retry_ends_the_timer() {
    for (n, after_ms) in [(0, A_MONTH), (1, A_MONTH), (0, 100), (1, 100)] {
        let (mut rig, timer, d) = delivered();
        rig.answers_wait = true;
        cancel(&mut rig, &targets(&timer)[n]);
        rig.turn();
        retry(&mut rig, &d, after_ms);
        rig.run(5);
        answers_arrive(&mut rig);
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))]);
        assert_ended(&mut rig, &timer, Some(DeadReason::Stopped));
    }
}

#[test]
fn a_cancel_after_a_retry_ends_the_timer() {
    for (n, after_ms) in [(0, A_MONTH), (1, A_MONTH), (0, 100), (1, 100)] {
        for arrived in [false, true] {
            let (mut rig, timer, d) = delivered();
            rig.answers_wait = true;
            retry(&mut rig, &d, after_ms);
            rig.turn();
            rig.answers_wait = !arrived;
            rig.turn();
            cancel(&mut rig, &targets(&timer)[n]);
            rig.run(5);
            answers_arrive(&mut rig);
            assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))]);
            assert_ended(&mut rig, &timer, Some(DeadReason::Stopped));
        }
    }
}

#[test]
fn a_cancel_that_overtakes_a_refused_retry_ends_the_timer() {
    for n in 0..2 {
        let (mut rig, timer, d) = delivered();
        rig.read_only = true;
        retry(&mut rig, &d, A_MONTH);
        rig.turn();
        rig.read_only = false;
        cancel(&mut rig, &targets(&timer)[n]);
        rig.turn();
        assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))], "it was delivered");
        rig.run(100);
        assert_ended(&mut rig, &timer, Some(DeadReason::Stopped));
    }
}

#[test]
fn edits_that_overtake_a_refused_acknowledgement_come_too_late() {
    for n in 0..4 {
        let (mut rig, timer, d) = delivered();
        rig.read_only = true;
        rig.settle(1, &d, HandlerOutcome::Ok);
        rig.run(DEFER_MS);
        rig.read_only = false;
        let target = targets(&timer)[n % 2].clone();
        let due = timer.due + 60_000;
        rig.ask(
            2,
            vec![match n {
                0 | 1 => RequestOp::Cancel(Cancel { target, request: 9 }),
                _ => RequestOp::Reschedule(Reschedule { target, due, request: 9 }),
            }],
        );
        rig.turn();
        let replied = |m: &ServerMessage| match m {
            ServerMessage::Reply { replies, .. } => replies.clone(),
            _ => vec![],
        };
        let replies: Vec<_> = rig.sent.iter().flat_map(|(_, m)| replied(m)).collect();
        let too_late = match n {
            0 | 1 => OpReply::Cancel(CancelReply::TooLate(timer.id)),
            _ => OpReply::Reschedule(RescheduleReply::TooLate(timer.id)),
        };
        assert_eq!(replies, [too_late]);
        rig.run(100);
        assert_eq!(rig.refusals(), [], "the acknowledgement was refused");
        assert_ended(&mut rig, &timer, None);
    }
}

#[test]
fn a_cancel_of_a_retry_that_was_filed_with_the_release_ends_the_timer() {
    for n in 0..2 {
        let (mut first, timer, d) = delivered();
        first.stop();
        let mut second = Rig::on(first.store.clone(), 2, first.ms, EngineOptions::default());
        second.join(1, "a", 10);
        second.run(10);
        // The retry goes to the store together with the release, which hands the old list on.
        retry(&mut second, &d, A_MONTH);
        second.stop();
        let mut third = Rig::on(first.store, 3, second.ms, EngineOptions::default());
        third.join(2, "b", 1);
        third.run(1_100);
        cancel(&mut third, &targets(&timer)[n]);
        third.run(5);
        assert_eq!(third.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))]);
        assert_ended(&mut third, &timer, Some(DeadReason::Stopped));
    }
}

#[test]
fn a_cancel_right_after_a_handover_ends_a_retry_that_was_filed_with_the_release() {
    let (mut first, timer, d) = delivered();
    first.stop();
    let mut second = Rig::on(first.store.clone(), 2, first.ms, EngineOptions::default());
    second.join(1, "a", 10);
    second.run(10);
    retry(&mut second, &d, A_MONTH);
    second.stop();
    let mut third = Rig::acquired(first.store, 3, second.ms, EngineOptions::default());
    third.join(2, "b", 1);
    cancel(&mut third, &Target::Id(timer.id));
    third.run(5);
    assert_eq!(third.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))]);
    assert_ended(&mut third, &timer, Some(DeadReason::Stopped));
}

#[test]
fn a_stopped_delivery_that_was_handed_over_ends_with_its_failure() {
    for after_ms in [A_MONTH, 100] {
        let (mut first, timer, d) = delivered();
        cancel(&mut first, &Target::Id(timer.id));
        first.run(5);
        assert_eq!(first.take_replies(), [OpReply::Cancel(CancelReply::TooLate(timer.id))]);
        first.stop();
        let mut second = Rig::on(first.store.clone(), 2, first.ms, EngineOptions::default());
        second.join(1, "a", 10);
        second.join(2, "b", 1);
        second.run(10);
        retry(&mut second, &d, after_ms);
        second.run(5);
        assert_ended(&mut second, &timer, Some(DeadReason::Stopped));
    }
}

#[test]
fn a_stopped_timer_whose_owner_dies_ends_with_the_next_owner() {
    let (mut first, timer, _) = delivered();
    cancel(&mut first, &Target::Id(timer.id));
    first.run(5);
    let mut second = Rig::on(first.store.clone(), 2, first.ms, EngineOptions::default());
    second.join(1, "a", 10);
    second.join(2, "b", 1);
    second.run(50);
    let dead = second.lane.dead(Default::default(), 0, 10).now_or_never().unwrap().unwrap();
    assert_eq!(dead.rows[0].record.progress.failed, 1, "one attempt was made");
    assert_ended(&mut second, &timer, Some(DeadReason::Stopped));
}

#[test]
fn a_cancel_that_is_not_confirmed_and_crosses_with_a_retry_lets_nothing_out() {
    let (mut rig, timer, d) = delivered();
    rig.unconfirmed = true;
    cancel(&mut rig, &Target::Id(timer.id));
    rig.turn();
    retry(&mut rig, &d, 100);
    rig.turn();
    rig.unconfirmed = false;
    rig.run(1_000);
    assert_ended(&mut rig, &timer, Some(DeadReason::Stopped));
}

#[test]
fn an_unconfirmed_edit_by_key_of_what_is_being_loaded_is_not_overlooked() {
    for cancelled in [true, false] {
        let mut rig = rig();
        let timer = Timer { key: Some(key()), ..rig.timer("a", 7_000) };
        rig.schedule(1, timer.clone());
        rig.run(1_000);
        rig.take_replies();
        assert_eq!(rig.engine.memory().0, 0);
        // It is on its way into memory when the edit is made, and the edit's answer comes with it.
        while !rig.engine.partition(P).unwrap().calls.is_loading() {
            rig.answers_wait = false;
            rig.run(1);
            rig.answers_wait = true;
            rig.run(1);
        }
        assert_eq!(rig.engine.memory().0, 0);
        rig.unconfirmed = true;
        let target = Target::Key(dest("a"), key());
        let due = timer.due + 60_000;
        rig.ask(
            2,
            vec![match cancelled {
                true => RequestOp::Cancel(Cancel { target, request: 9 }),
                false => RequestOp::Reschedule(Reschedule { target, due, request: 9 }),
            }],
        );
        rig.turn();
        answers_arrive(&mut rig);
        rig.unconfirmed = false;
        let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
        assert_eq!(codes, [Some(ErrorCode::NotReplicated)]);
        rig.run(10_000);
        assert_eq!(rig.take_deliveries(), [], "the edit was applied");
    }
}

#[test]
fn a_refused_park_does_not_overtake_a_reschedule() {
    let mut rig = rig();
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 0 });
    let timer = rig.timer("a", 0);
    rig.schedule(1, timer.clone());
    rig.run(100);
    rig.read_only = true;
    rig.run(500);
    let parking = |rig: &mut Rig| {
        let entry = rig.engine.partition(P).unwrap().table.get(timer.id);
        entry.is_some_and(|e| matches!(e.state, crate::engine::table::EntryState::Parking { .. }))
    };
    assert!(parking(&mut rig));
    // The reschedule is carried out and not answered when the park is due again.
    rig.read_only = false;
    rig.answers_wait = true;
    let due = rig.now().time + 2_000;
    rig.ask(2, vec![RequestOp::Reschedule(Reschedule { target: Target::Id(timer.id), due, request: 9 })]);
    rig.run(200);
    answers_arrive(&mut rig);
    assert!(rig.take_replies().contains(&OpReply::Reschedule(RescheduleReply::Rescheduled(timer.id))));
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 1 });
    rig.run(1_500);
    assert_eq!(rig.take_deliveries(), [], "delivered before its new time");
    rig.run(500);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn what_is_found_parked_comes_back_when_there_is_credit() {
    let (mut rig, timer, d) = delivered();
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 0 });
    retry(&mut rig, &d, 50);
    rig.run(100);
    // It is parked, and a reschedule that changes nothing is answered before the park is confirmed.
    rig.unconfirmed = true;
    while rig.place(timer.id) != Some(Place::Parked) {
        rig.run(1);
    }
    let (target, due) = (Target::Id(timer.id), timer.due + 60_000);
    rig.ask(2, vec![RequestOp::Reschedule(Reschedule { target, due, request: 9 })]);
    rig.turn();
    rig.unconfirmed = false;
    rig.run(100);
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.run(100);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [2]);
}
