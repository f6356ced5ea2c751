//! Outcomes and callback timeouts: who may settle, how late, and for how long.

use mtimer_protocol::ops::{Cancel, CancelReply, Replay};
use mtimer_types::DeadReason;

use super::super::deferral::DEFER_MS;
use super::*;
use crate::engine::table::EntryState;

#[test]
fn a_settlement_is_refused_to_a_stranger_and_too_late() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "a", 0);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t);
    rig.settle(2, &d, HandlerOutcome::Ok);
    rig.run(2);
    assert_eq!(rig.refusals(), [SettleRefusal::NotYours]);
    // Timed out, retried; the failure report of the first attempt is late, its ok is not.
    rig.run(600);
    let (_, again) = rig.take_deliveries().remove(0);
    assert_eq!(again.attempt, 2);
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(2);
    assert_eq!(rig.refusals(), [SettleRefusal::Late]);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(2);
    assert_eq!(rig.refusals(), []);
    assert_eq!((rig.engine.memory().0, rig.engine.unsettled()), (0, 0));
}

#[test]
fn extending_moves_the_callback_timeout() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t);
    rig.run(400);
    rig.session(1, SessionEvent::Extend { id: d.id, epoch: d.epoch, attempt: 1, by_ms: 2_000 });
    rig.run(1_500);
    assert!(rig.take_deliveries().is_empty());
    rig.run(1_000);
    assert_eq!(rig.take_deliveries()[0].1.attempt, 2);
}

#[test]
fn only_whoever_has_a_delivery_extends_it() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "b", 1);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t);
    let (id, epoch, by_ms) = (d.id, d.epoch, 2_000);
    rig.session(2, SessionEvent::Extend { id, epoch, attempt: 1, by_ms });
    rig.session(1, SessionEvent::Extend { id, epoch: Epoch(epoch.0 + 1), attempt: 1, by_ms });
    rig.session(1, SessionEvent::Extend { id, epoch, attempt: 2, by_ms });
    rig.run(700);
    assert_eq!(rig.take_deliveries()[0].1.attempt, 2);
}

#[test]
fn what_a_lost_session_had_goes_to_the_next_at_once() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = Timer { callback_timeout_ms: Some(60_000), ..rig.timer("a", 0) };
    rig.deliver(1, t);
    rig.session(1, SessionEvent::Closed);
    rig.join(2, "a", 10);
    rig.run(150);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [2]);
}

#[test]
fn outcomes_are_counted() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let error = String::from("no");
    for outcome in [
        HandlerOutcome::Ok,
        HandlerOutcome::Fail { error: error.clone() },
        HandlerOutcome::Retry { after_ms: None, error },
    ] {
        let timer = rig.timer("a", 0);
        let d = rig.deliver(1, timer);
        rig.settle(1, &d, outcome);
        rig.run(20);
    }
    let missed = Timer { deadline: Some(rig.now().time + 1), ..rig.timer("c", 0) };
    rig.schedule(1, missed);
    rig.run(100);
    let names = ["acknowledged", "late_acknowledged", "dead", "retried", "expired"];
    let counted = names.map(|name| {
        let of = |c: &(&str, u64)| c.0 == format!("{name}_total");
        rig.engine.counters().find(of).unwrap_or_else(|| panic!("no counter {name}")).1
    });
    assert_eq!(counted, [1, 0, 1, 1, 1]);
}

#[test]
fn extending_often_costs_no_memory() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t);
    for by_ms in 0..1_000 {
        rig.session(1, SessionEvent::Extend { id: d.id, epoch: d.epoch, attempt: 1, by_ms: 5_000 + by_ms });
    }
    assert_eq!(rig.engine.timeouts.len(), 1);
}

#[test]
fn late_settlements_wait_in_a_queue_that_has_an_end() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().down(P, "test");
    rig.run(1);
    let t = rig.timer("a", 1);
    let epoch = rig.lane.epoch();
    let late = Settlement { id: t.id, epoch, attempt: 1, outcome: HandlerOutcome::Ok };
    for _ in 0..60 {
        rig.session(1, SessionEvent::Settle(vec![late.clone(); 1_000]));
    }
    rig.run(1);
    assert!(rig.refusals().len() >= 5_000);
    rig.store.faults().heal(P);
    rig.run(100);
    assert!(rig.refusals().len() >= 50_000, "every settlement is answered in the end");
}

#[test]
fn an_ok_of_what_was_never_sent_is_late_without_asking_the_store() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 1_000);
    rig.schedule(1, timer.clone());
    rig.run(5);
    rig.take_replies();
    rig.store.faults().hold(P);
    let epoch = rig.lane.epoch();
    for attempt in [0, 1] {
        let forged = Settlement { id: timer.id, epoch, attempt, outcome: HandlerOutcome::Ok };
        rig.session(1, SessionEvent::Settle(vec![forged]));
        rig.turn();
        assert_eq!(rig.refusals(), [SettleRefusal::Late], "attempt {attempt}");
    }
}

#[test]
fn an_ok_that_the_store_refuses_does_not_hold_its_timer_back() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 7_000) };
    rig.schedule(1, timer.clone());
    rig.run(5);
    rig.take_replies();
    assert_eq!(rig.engine.memory().0, 0, "not loaded yet: only the store knows that it was never sent");
    let epoch = rig.lane.epoch();
    let forged = Settlement { id: timer.id, epoch, attempt: 1, outcome: HandlerOutcome::Ok };
    rig.session(1, SessionEvent::Settle(vec![forged]));
    rig.run(5);
    assert_eq!(rig.refusals(), [SettleRefusal::Late]);
    rig.run(7_000);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn a_failure_is_a_dead_letter_with_the_reason_of_its_mode() {
    for (mode, reason) in
        [(Mode::AtLeastOnce, DeadReason::Failed), (Mode::AtMostOnce, DeadReason::AtMostOnce)]
    {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        let timer = Timer { mode, ..rig.timer("a", 0) };
        let d = rig.deliver(1, timer);
        rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
        rig.run(5);
        let dead = rig.lane.dead(Default::default(), 0, 10).now_or_never().unwrap().unwrap();
        assert_eq!(dead.rows.iter().map(|d| d.reason).collect::<Vec<_>>(), [reason]);
    }
}

/// An at-most-once timer whose first delivery was not confirmed in time, replayed by a person. Its
/// take is under way for another client, the answer to it is not here yet.
fn replay_being_taken() -> (Rig, Delivery) {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 0) };
    let first = rig.deliver(1, once);
    rig.run(600);
    assert!(matches!(rig.place(first.id), Some(Place::Taken { unconfirmed: true, .. })));
    let other = rig.timer("a", 0);
    rig.deliver(1, other);
    rig.ask(1, vec![RequestOp::Replay(Replay { id: first.id })]);
    rig.run(5);
    rig.answers_wait = true;
    rig.join(2, "a", 1);
    rig.turn();
    let entry = rig.engine.partition(P).unwrap().table.get(first.id);
    assert!(matches!(entry.unwrap().state, EntryState::Taking { .. }));
    rig.sent.clear();
    (rig, first)
}

#[test]
fn a_replay_that_is_acknowledged_while_it_is_taken_is_not_sent() {
    let (mut rig, first) = replay_being_taken();
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.run(5);
    // The late ok waits until the take is answered.
    assert_eq!(rig.unanswered.len(), 1);
    let taken = rig.unanswered.pop_front().unwrap().now_or_never().unwrap();
    let (now, epoch) = (rig.now(), rig.lane.epoch());
    rig.engine.handle(now, Input::Answered { partition: P, epoch, answer: taken });
    rig.turn();
    rig.answers_wait = false;
    rig.run(50);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.refusals(), []);
    assert_eq!(rig.place(first.id), None);
    assert_eq!(rig.engine.memory().0, 1, "the other timer");
    let next = rig.timer("a", 0);
    rig.deliver(1, next);
}

#[test]
fn a_replay_waits_for_the_late_ok_that_the_store_refuses_for_now() {
    let (mut rig, first) = replay_being_taken();
    rig.read_only = true;
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.run(5);
    rig.answers_wait = false;
    rig.run(100);
    assert!(matches!(rig.place(first.id), Some(Place::Taken { unconfirmed: false, .. })));
    rig.read_only = false;
    rig.run(2_000);
    assert_eq!(rig.take_deliveries().iter().filter(|(_, d)| d.id == first.id).count(), 0);
    assert_eq!(rig.place(first.id), None);
}

#[test]
fn a_retry_waits_as_long_as_the_handler_asks() {
    for after_ms in [20, 500] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        let t = rig.timer("a", 0);
        let first = rig.deliver(1, t);
        rig.settle(1, &first, HandlerOutcome::Retry { after_ms: Some(after_ms), error: "not yet".into() });
        rig.run(u64::from(after_ms) - 1);
        assert_eq!(rig.take_deliveries(), [], "a retry came before {after_ms} ms");
        rig.run(10);
        assert_eq!(rig.take_deliveries().len(), 1, "no retry came after {after_ms} ms");
    }
}

/// Delivers timers with these headers; the outcomes that are told to the shell.
fn told(options: EngineOptions, headers: &[(&str, &str)]) -> Vec<Option<Verdict>> {
    let mut rig = Rig::new(options);
    rig.join(1, "a", 10);
    let headers = Headers::new(headers.iter().copied()).unwrap();
    let outcomes = [
        HandlerOutcome::Ok,
        HandlerOutcome::Retry { after_ms: None, error: "later".into() },
        HandlerOutcome::Fail { error: "never".into() },
    ];
    for outcome in outcomes {
        let timer = Timer { headers: headers.clone(), ..rig.timer("a", 1) };
        let d = rig.deliver(1, timer);
        rig.settle(1, &d, outcome);
        rig.run(DEFER_MS);
    }
    // Later attempts of the second one are never settled.
    rig.run(5_000);
    rig.settled.into_iter().map(|(_, verdict)| verdict).collect()
}

#[test]
fn outcomes_of_traced_timers_are_told_if_that_is_wanted() {
    let traces = EngineOptions { traces: true, ..EngineOptions::default() };
    let traced = told(traces.clone(), &[("traceparent", "00-1-2-01")]);
    let kinds: Vec<&str> = traced
        .iter()
        .map(|verdict| match verdict {
            Some(Verdict::Ack) => "ack",
            Some(Verdict::Retry { error, .. }) if **error == *"later" => "retry",
            Some(Verdict::Dead { error, .. }) if **error == *"never" => "dead",
            Some(Verdict::Retry { error, .. } | Verdict::Dead { error, .. })
                if error.contains("no answer") =>
            {
                "timed out"
            }
            _ => "?",
        })
        .collect();
    assert_eq!(kinds, ["ack", "retry", "dead", "timed out", "timed out"]);
    assert_eq!(told(traces, &[("tenant", "acme")]), []);
    assert_eq!(told(EngineOptions::default(), &[("traceparent", "00-1-2-01")]), []);
}

#[test]
fn dead_letters_are_told_with_their_reason_and_attempts() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let once_more = Some(RetryTiers(vec![1]));
    let (failed, exhausted) = (rig.timer("a", 1), Timer { retry: once_more, ..rig.timer("a", 1) });
    let ids = [failed.id, exhausted.id];
    let d = rig.deliver(1, failed);
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(DEFER_MS);
    let d = rig.deliver(1, exhausted);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "no".into() });
    rig.run(200);
    let (_, d) = rig.take_deliveries().remove(0);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "no".into() });
    rig.run(DEFER_MS);
    let whose = Some(dest("a"));
    let told = [(DeadReason::Failed, 1), (DeadReason::Exhausted, 2)];
    let told = told.into_iter().zip(ids);
    let told = told.map(|((reason, attempts), id)| Died { id, dest: whose.clone(), reason, attempts });
    assert_eq!(rig.died, told.collect::<Vec<_>>());
}

#[test]
fn failures_of_a_destination_are_counted_until_the_next_success() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let mut failures_after = |outcome: HandlerOutcome| {
        let t = rig.timer("a", 1);
        let d = rig.deliver(1, t);
        rig.settle(1, &d, outcome);
        rig.run(DEFER_MS);
        rig.engine.figures(1).top[0].1.failures
    };
    let retry = || HandlerOutcome::Retry { after_ms: Some(60_000), error: "later".into() };
    assert_eq!(failures_after(retry()), 1);
    assert_eq!(failures_after(HandlerOutcome::Fail { error: "no".into() }), 2);
    assert_eq!(failures_after(HandlerOutcome::Ok), 0);
    assert_eq!(failures_after(retry()), 1);
}

#[test]
fn what_was_not_begun_is_delivered_again_as_the_same_attempt() {
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 1);
        let first = Timer { mode, ..rig.timer("a", 1) };
        let d = rig.deliver(1, first);
        // Its handlers are all busy: no credit, so another client gets it, at once.
        rig.session(1, register("a", 0));
        rig.settle(1, &d, HandlerOutcome::NotBegun);
        rig.run(5);
        assert!(rig.take_deliveries().is_empty(), "{mode:?}: sent to a client without credit");
        assert_eq!(rig.refusals(), []);
        rig.join(2, "a", 1);
        rig.run(50);
        let (session, again) = rig.take_deliveries().remove(0);
        assert_eq!((session, again.attempt, again.epoch), (SessionId(2), 1, d.epoch), "{mode:?}");
        // The first client has nothing to say about it any more.
        rig.settle(1, &d, HandlerOutcome::NotBegun);
        rig.run(5);
        assert_eq!(rig.refusals(), [SettleRefusal::NotYours]);
        rig.settle(2, &again, HandlerOutcome::Ok);
        rig.run(50);
        assert_eq!((rig.refusals(), rig.engine.unsettled(), rig.place(d.id)), (vec![], 0, None));
        // Nobody's credit is lost.
        rig.session(1, register("a", 1));
        for _ in 0..2 {
            let next = Timer { mode, ..rig.timer("a", 1) };
            rig.schedule(1, next);
        }
        rig.run(50);
        assert_eq!(rig.take_deliveries().len(), 2, "{mode:?}");
    }
}

#[test]
fn what_was_not_begun_may_be_cancelled_and_expires() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = rig.timer("a", 1);
    let d = rig.deliver(1, timer);
    rig.session(1, register("a", 0));
    rig.settle(1, &d, HandlerOutcome::NotBegun);
    rig.run(2);
    rig.ask(1, vec![RequestOp::Cancel(Cancel { target: d.id.into(), request: 7 })]);
    rig.run(5);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Cancel(CancelReply::Cancelled(d.id))));
    let deadline = Some(rig.now().time + 100);
    let timer = Timer { deadline, ..rig.timer("a", 1) };
    rig.session(1, register("a", 1));
    let d = rig.deliver(1, timer);
    rig.run(200);
    rig.settle(1, &d, HandlerOutcome::NotBegun);
    rig.run(50);
    assert!(rig.take_deliveries().is_empty(), "delivered after its deadline");
    assert_eq!((rig.place(d.id), rig.engine.unsettled()), (None, 0));
}

fn register(app: &str, credit: u32) -> SessionEvent {
    SessionEvent::Register { registration: 1, dest: dest(app), credit }
}
