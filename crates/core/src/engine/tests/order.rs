//! The order of operations on one timer, and how memory corrects itself by the store's answers.

use mtimer_protocol::ops::{self, CancelReply, ScheduleReply};
use mtimer_store::ops::Schedule;
use mtimer_store::{Batch, Op, Verdict};
use mtimer_types::Key;

use super::*;
use crate::engine::table::EntryState;

fn key() -> Key {
    Key::new("order-1").unwrap()
}

/// A broker whose client has eight deliveries; while a batch is under way it acknowledges them. A
/// batch takes four operations.
fn backlog_of_acknowledgements() -> Rig {
    let mut rig = Rig::new(EngineOptions { batch_ops: 4, ..EngineOptions::default() });
    rig.join(1, "a", 100);
    for _ in 0..8 {
        let timer = Timer { callback_timeout_ms: Some(60_000), ..rig.timer("a", 0) };
        rig.schedule(1, timer);
    }
    rig.run(20);
    rig
}

/// The client acknowledges these; a batch is under way until [`go_on`].
fn acknowledge(rig: &mut Rig, deliveries: &[Delivery]) {
    rig.engine.partition(P).unwrap().calls.hold_batches();
    deliveries.iter().for_each(|d| rig.settle(1, d, HandlerOutcome::Ok));
}

/// Lets the held batches go. Returns the replies that the client gets.
fn go_on(rig: &mut Rig) -> Vec<OpReply> {
    rig.take_replies();
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(20);
    rig.take_replies()
}

fn deliveries(rig: &mut Rig) -> Vec<Delivery> {
    rig.take_deliveries().into_iter().map(|(_, d)| d).collect()
}

fn cancel(id: TimerId) -> RequestOp {
    RequestOp::Cancel(ops::Cancel { target: Target::Id(id), request: 1 })
}

#[test]
fn a_cancel_does_not_overtake_an_acknowledgement() {
    let mut rig = backlog_of_acknowledgements();
    let all = deliveries(&mut rig);
    acknowledge(&mut rig, &all);
    rig.ask(1, vec![cancel(all[7].id)]);
    assert_eq!(go_on(&mut rig), [OpReply::Cancel(CancelReply::NotFound)]);
}

#[test]
fn a_cancel_does_not_overtake_a_late_acknowledgement() {
    let mut rig = backlog_of_acknowledgements();
    let timer = rig.timer("a", 0);
    rig.schedule(1, timer);
    rig.run(20);
    let all = deliveries(&mut rig);
    let late = all[8].clone();
    let waits = |rig: &mut Rig| {
        let entry = rig.engine.partition(P).unwrap().table.get(late.id);
        entry.is_some_and(|e| matches!(e.state, EntryState::Waiting))
    };
    // Its timeout passes, and it waits for the next attempt.
    while !waits(&mut rig) {
        rig.run(1);
    }
    acknowledge(&mut rig, &all);
    rig.ask(1, vec![cancel(late.id)]);
    assert_eq!(go_on(&mut rig), [OpReply::Cancel(CancelReply::NotFound)]);
}

#[test]
fn a_schedule_does_not_overtake_the_acknowledgement_of_who_has_its_key() {
    let mut rig = backlog_of_acknowledgements();
    let timer = Timer { key: Some(key()), callback_timeout_ms: Some(60_000), ..rig.timer("a", 0) };
    rig.schedule(1, timer);
    rig.run(20);
    let all = deliveries(&mut rig);
    acknowledge(&mut rig, &all);
    let next = Timer { key: Some(key()), ..rig.timer("a", 60_000) };
    rig.schedule(1, next);
    assert_eq!(go_on(&mut rig), [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None })]);
}

/// The store does this, and the owner does not know of it.
fn apply(rig: &Rig, op: Op) {
    let batch = Batch { now: rig.now().time, claim: None, ops: vec![op] };
    rig.lane.apply(batch).now_or_never().unwrap().unwrap();
}

#[test]
fn a_retry_that_the_store_does_not_take_is_not_sent_again() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer);
    apply(&rig, Op::settle(d.id, Verdict::Ack));
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(10), error: "again".into() });
    rig.run(200);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.engine.memory().0, 0);
}

#[test]
fn who_had_the_key_of_a_repeated_schedule_is_looked_up() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let first = Timer { key: Some(key()), ..rig.timer("a", 50) };
    rig.schedule(1, first);
    rig.run(5);
    let next = Timer { key: Some(key()), ..rig.timer("a", 60_000) };
    let policy = KeyPolicy::Replace;
    apply(&rig, Op::Schedule(Schedule::new(next.clone().into(), policy)));
    rig.ask(1, vec![RequestOp::Schedule(ops::Schedule { timer: next.into(), policy })]);
    rig.run(200);
    assert_eq!(rig.take_deliveries(), [], "it was replaced");
}
