//! Edits that cross with an outcome on its way to the store, or with a write that the store puts
//! off.

use super::*;

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
