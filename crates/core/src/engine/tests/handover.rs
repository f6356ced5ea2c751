//! A release in good order, and what the next owner makes of the word that was left.

use mtimer_types::{Key, Target};

use super::*;

#[test]
fn a_graceful_stop_leaves_word_and_the_next_owner_honours_it() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t.clone());
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.run(50);
    assert_eq!(rig.engine.unsettled(), 1);
    let late = rig.timer("a", 1);
    rig.schedule(1, late);
    rig.run(1);
    assert_eq!(code(rig.take_replies().last().unwrap()), Some(ErrorCode::Stopping));
    let now = rig.now();
    rig.engine.handle(now, Input::Release);
    rig.turn();
    assert!(rig.released);

    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(100);
    assert!(next.take_deliveries().is_empty(), "delivered again although the handler is still at work");
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), []);
    assert_eq!((next.engine.memory().0, next.engine.unsettled()), (0, 0));
    let found = next.lane.get(Target::Id(t.id)).now_or_never().unwrap().unwrap();
    assert_eq!(found, None);
}

#[test]
fn an_outcome_that_comes_before_its_inherited_timer_is_loaded_is_to_be_offered_again() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t);
    rig.stop();
    // The release took the claims back: in the store nothing but the word of it tells that it was sent.
    let mut next = Rig::acquired(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), [SettleRefusal::Moved]);
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), []);
    assert_eq!((next.engine.memory().0, next.engine.unsettled()), (0, 0));
}

/// The first owner sends it and dies, the second sends it again and leaves in good order; the third comes after the timeout.
fn sent_twice_and_left(credit: u32) -> (Timer, Delivery, Rig) {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let mut t = rig.timer("a", 1);
    t.callback_timeout_ms = Some(1_000);
    rig.schedule(1, t.clone());
    rig.run(5);
    assert_eq!(rig.take_deliveries().len(), 1);
    let mut rig = Rig::on(store.clone(), 2, rig.ms, EngineOptions::default());
    rig.join(1, "a", 10);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    assert_eq!(d.attempt, 2);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.engine.handle(now, Input::Release);
    rig.turn();
    let mut next = Rig::on(store, 3, rig.ms + 1_200, EngineOptions::default());
    next.join(1, "a", credit);
    next.run(100);
    (t, d, next)
}

#[test]
fn an_ok_that_comes_after_the_timeout_of_an_inherited_delivery_ends_the_timer() {
    let (t, d, mut next) = sent_twice_and_left(0);
    assert!(next.take_deliveries().is_empty());
    next.settle(1, &Delivery { attempt: d.attempt + 1, ..d.clone() }, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), [SettleRefusal::Late], "that one was never sent");
    next.settle(1, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), []);
    let found = next.lane.get(Target::Id(t.id)).now_or_never().unwrap().unwrap();
    assert_eq!((found, next.engine.memory().0, next.engine.unsettled()), (None, 0, 0));
}

#[test]
fn after_the_timeout_of_an_inherited_delivery_comes_the_attempt_after_it() {
    let (_, _, mut next) = sent_twice_and_left(10);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_retry_of_a_delivery_that_was_inherited_comes_at_its_time() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let mut t = rig.timer("a", 1);
    t.callback_timeout_ms = Some(60_000);
    let d = rig.deliver(1, t);
    rig.stop();
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(10);
    next.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "not yet".into() });
    next.run(300);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_stop_answers_what_waited_for_another_edit_of_its_key() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().hold(P);
    for _ in 0..3 {
        let mut timer = rig.timer("a", 60_000);
        timer.key = Some(Key::new("order-1").unwrap());
        rig.schedule(1, timer);
    }
    rig.run(1);
    rig.stop();
    rig.store.faults().heal(P);
    rig.turn();
    assert!(rig.released);
    let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
    assert_eq!(codes, [None, Some(ErrorCode::NotOwner), Some(ErrorCode::NotOwner)]);
}
