//! Keep: how the answer reports deliveries of the timer that has the key.

use mtimer_protocol::ops::{Schedule, ScheduleReply};
use mtimer_types::Key;

use super::*;

fn keyed(rig: &mut Rig, due_in: u64) -> Timer {
    Timer { key: Key::new("k").ok(), ..rig.timer("a", due_in) }
}

/// Whether a schedule with keep is answered that the live timer is being delivered.
fn being_delivered(rig: &mut Rig) -> bool {
    let timer = keyed(rig, 60_000);
    rig.take_replies();
    rig.ask(1, vec![RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Keep })]);
    rig.run(1);
    match rig.take_replies()[..] {
        [OpReply::Schedule(ScheduleReply::Kept { being_delivered, .. })] => being_delivered,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_timer_whose_handler_has_begun_is_kept_and_that_is_said() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = keyed(&mut rig, 50);
    rig.schedule(1, timer);
    rig.run(10);
    assert!(!being_delivered(&mut rig), "it waits");
    rig.run(50);
    let (_, delivery) = rig.take_deliveries().remove(0);
    assert!(being_delivered(&mut rig), "its handler may have read what was there before");
    rig.settle(1, &delivery, HandlerOutcome::Retry { after_ms: Some(5_000), error: String::new() });
    rig.run(20);
    assert!(being_delivered(&mut rig), "an ok of the first attempt may still come");
}

#[test]
fn a_timer_whose_outcome_is_not_stored_yet_is_being_delivered() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = keyed(&mut rig, 1);
    let delivery = rig.deliver(1, timer);
    let next = keyed(&mut rig, 60_000);
    rig.answers_wait = true;
    rig.ask(1, vec![RequestOp::Schedule(Schedule { timer: next.into(), policy: KeyPolicy::Keep })]);
    rig.turn();
    rig.settle(1, &delivery, HandlerOutcome::Ok);
    rig.run(50);
    rig.answers_wait = false;
    rig.take_replies();
    rig.turn();
    let replies = rig.take_replies();
    assert!(
        matches!(replies[..], [OpReply::Schedule(ScheduleReply::Kept { being_delivered: true, .. })]),
        "{replies:?}"
    );
}

#[test]
fn a_timer_that_waits_for_credit_is_not_being_delivered() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timer = keyed(&mut rig, 1);
    rig.schedule(1, timer);
    rig.run(20);
    assert!(!being_delivered(&mut rig), "it is due and nobody has it");
    rig.run(2_000);
    assert!(!being_delivered(&mut rig), "it is parked");
}

#[test]
fn a_timer_that_a_former_owner_may_have_sent_is_being_delivered() {
    let store = MemoryStore::new(1);
    let mut first = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    first.join(1, "a", 10);
    let timer = keyed(&mut first, 1);
    first.deliver(1, timer);
    let mut next = Rig::on(store, 2, first.ms, EngineOptions::default());
    next.session(1, SessionEvent::Opened { client: 1 });
    assert!(being_delivered(&mut next));
}

#[test]
fn a_delivery_that_a_former_owner_has_left_counts_before_its_timer_is_read() {
    let store = MemoryStore::new(1);
    let mut first = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    first.join(1, "a", 10);
    let timer = keyed(&mut first, 1);
    first.deliver(1, timer);
    first.stop();
    let mut next = Rig::acquired(store, 2, first.ms, EngineOptions::default());
    next.session(1, SessionEvent::Opened { client: 1 });
    assert!(being_delivered(&mut next));
    next.run(20);
    assert!(being_delivered(&mut next), "it is read by now");
}
