//! A release in good order, and how the next owner treats the deliveries that it lists.

use mtimer_protocol::ops::{self, CancelReply};
use mtimer_store::ops::Schedule;
use mtimer_store::{Batch, InFlight, Op, Verdict};
use mtimer_types::Key;

use super::*;
use crate::engine::calls::OpenCall;
use crate::engine::hash::Seeded;
use crate::engine::partition::OwnedPartition;

/// One of these is delivered by an owner that then stops in good order, and lists it.
fn left_under_way(timer: impl FnOnce(&mut Timer)) -> (MemoryStore, Delivery, u64) {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let mut t = rig.timer("a", 1);
    timer(&mut t);
    let d = rig.deliver(1, t);
    rig.stop();
    (store, d, rig.ms)
}

/// Returns how many deliveries the next owner of the partition inherits.
fn inherited(store: &MemoryStore, term: u64, ms: u64) -> usize {
    Rig::acquired(store.clone(), term, ms, EngineOptions::default()).inherited()
}

#[test]
fn a_graceful_stop_lists_deliveries_and_the_next_owner_honours_it() {
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
    // The release took the claims back: in the store nothing but the list shows that it was
    // sent.
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

/// The first owner sends it and dies, the second sends it again and leaves in good order; the third
/// comes after the timeout.
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
fn an_ok_of_an_inherited_delivery_from_another_client_changes_nothing() {
    let (_, d, mut next) = sent_twice_and_left(0);
    next.join(2, "a", 0);
    next.settle(2, &d, HandlerOutcome::Ok);
    next.run(5);
    assert_eq!(next.refusals(), [SettleRefusal::Late]);
    next.session(2, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 1 });
    next.run(50);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [3]);
}

#[test]
fn an_inherited_delivery_is_extended_by_the_client_that_has_it_and_no_other() {
    for (client, attempts) in [(1, vec![]), (2, vec![2])] {
        let (store, d, ms) = left_under_way(|_| {});
        let mut next = Rig::on(store, 2, ms, EngineOptions::default());
        next.join(1, "a", 10);
        next.join(2, "b", 1);
        let extend = SessionEvent::Extend { id: d.id, epoch: d.epoch, attempt: d.attempt, by_ms: 2_000 };
        next.session(client, extend);
        next.run(1_000);
        let sent: Vec<_> = next.take_deliveries().iter().map(|(_, d)| d.attempt).collect();
        assert_eq!(sent, attempts, "client {client}");
    }
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

#[test]
fn what_was_taken_after_a_replay_is_unconfirmed_although_an_old_delivery_of_it_is_listed() {
    let (store, d, ms) = left_under_way(|t| {
        t.mode = Mode::AtMostOnce;
        t.callback_timeout_ms = Some(60_000);
    });
    let mut second = Rig::on(store.clone(), 2, ms, EngineOptions::default());
    second.join(1, "a", 10);
    second.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    second.run(5);
    second.ask(1, vec![RequestOp::Replay(ops::Replay { id: d.id })]);
    second.run(5);
    assert_eq!(second.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [2]);
    // It dies with that.
    let mut third = Rig::on(store, 3, second.ms, EngineOptions::default());
    third.join(1, "a", 10);
    third.run(100);
    assert!(third.take_deliveries().is_empty(), "delivered again");
    assert!(
        matches!(third.place(d.id), Some(Place::Taken { unconfirmed: true, .. })),
        "{:?}",
        third.place(d.id)
    );
}

#[test]
fn deliveries_that_have_ended_are_not_handed_on() {
    let (store, d, ms) = left_under_way(|t| t.callback_timeout_ms = Some(60_000));
    let mut second = Rig::on(store.clone(), 2, ms, EngineOptions::default());
    second.join(1, "a", 10);
    second.settle(1, &d, HandlerOutcome::Ok);
    second.run(5);
    assert_eq!((second.refusals(), second.inherited()), (vec![], 0));
    // It dies, and its successor is given the old list.
    let mut third = Rig::acquired(store.clone(), 3, second.ms, EngineOptions::default());
    assert_eq!(third.inherited(), 1);
    third.run(5_000);
    assert_eq!(third.inherited(), 0);
    third.stop();
    assert_eq!(inherited(&store, 4, third.ms), 0);
}

#[test]
fn deliveries_that_end_with_the_ownership_are_handed_on_once() {
    let (store, d, ms) = left_under_way(|t| t.callback_timeout_ms = Some(60_000));
    let mut second = Rig::on(store.clone(), 2, ms, EngineOptions::default());
    second.join(1, "a", 10);
    // Whether the store takes its outcome is open when the list is written.
    second.settle(1, &d, HandlerOutcome::Ok);
    second.stop();
    let mut third = Rig::on(store.clone(), 3, second.ms, EngineOptions::default());
    third.run(5_000);
    third.stop();
    assert_eq!(inherited(&store, 4, third.ms), 0);
}

#[test]
fn the_inherited_delivery_of_a_replaced_timer_goes_with_it() {
    let key = Key::new("order-1").unwrap();
    let (store, _, ms) = left_under_way(|t| {
        t.callback_timeout_ms = Some(60_000);
        t.key = Some(key.clone());
    });
    let mut second = Rig::on(store, 2, ms, EngineOptions::default());
    second.join(1, "a", 10);
    assert_eq!(second.inherited(), 1);
    let mut timer = second.timer("a", 60_000);
    timer.key = Some(key);
    second
        .ask(1, vec![RequestOp::Schedule(ops::Schedule { timer: timer.into(), policy: KeyPolicy::Replace })]);
    second.run(5);
    assert_eq!(second.inherited(), 0);
}

#[test]
fn a_delivery_that_is_still_under_way_is_handed_on() {
    let (store, d, ms) = left_under_way(|t| t.callback_timeout_ms = Some(60_000));
    let mut second = Rig::on(store.clone(), 2, ms, EngineOptions::default());
    second.join(1, "a", 10);
    second.run(5_000);
    second.stop();
    let mut third = Rig::on(store, 3, second.ms, EngineOptions::default());
    third.join(1, "a", 10);
    third.run(5_000);
    assert!(third.take_deliveries().is_empty(), "delivered again although the handler is still at work");
    third.settle(1, &d, HandlerOutcome::Ok);
    third.run(5);
    assert_eq!((third.refusals(), third.place(d.id)), (vec![], None));
}

/// The handler of the delivery left under way is gone, and nobody takes it; so it is parked.
fn left_and_parked() -> (MemoryStore, Delivery, Rig) {
    let (store, d, ms) = left_under_way(|t| t.callback_timeout_ms = Some(1_000));
    let mut next = Rig::on(store.clone(), 2, ms + 1_200, EngineOptions::default());
    next.join(1, "b", 1);
    next.run(1_000);
    assert_eq!(next.place(d.id), Some(Place::Parked));
    (store, d, next)
}

#[test]
fn a_cancel_of_what_was_left_under_way_and_then_parked_ends_it() {
    let (_, d, mut next) = left_and_parked();
    assert_eq!(next.inherited(), 0);
    next.ask(1, vec![RequestOp::Cancel(ops::Cancel { target: Target::Id(d.id), request: 1 })]);
    next.run(5);
    assert_eq!(next.take_replies(), [OpReply::Cancel(CancelReply::TooLate(d.id))]);
    assert_eq!(next.place(d.id), Some(Place::Dead));
}

#[test]
fn a_cancel_of_what_is_parked_and_has_an_inherited_delivery_ends_it() {
    let (store, d, next) = left_and_parked();
    // The next owner has the list, and has not looked for its timer yet.
    let mut third = Rig::acquired(store, 3, next.ms, EngineOptions::default());
    third.join(1, "b", 1);
    assert_eq!(third.inherited(), 1);
    third.ask(1, vec![RequestOp::Cancel(ops::Cancel { target: Target::Id(d.id), request: 1 })]);
    third.run(5);
    assert_eq!(third.take_replies(), [OpReply::Cancel(CancelReply::TooLate(d.id))]);
    assert_eq!(third.place(d.id), Some(Place::Dead));
}

#[test]
fn what_is_read_anew_is_not_forgotten_to_have_been_sent() {
    let (store, d, ms) = left_under_way(|t| t.callback_timeout_ms = Some(1_000));
    let mut next = Rig::on(store, 2, ms + 1_200, EngineOptions::default());
    next.join(1, "a", 0);
    // Its time is over, and it waits for credit: an edit that is not confirmed makes the owner read
    // it anew.
    next.run(50);
    next.unconfirmed = true;
    next.ask(
        1,
        vec![RequestOp::Reschedule(ops::Reschedule { target: Target::Id(d.id), due: d.due, request: 1 })],
    );
    next.turn();
    assert_eq!(next.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::NotReplicated)]);
    next.unconfirmed = false;
    next.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    next.run(50);
    assert_eq!(next.take_deliveries().iter().map(|(_, d)| d.attempt).collect::<Vec<_>>(), [2]);
}

#[test]
fn an_edit_by_key_does_not_miss_what_was_left_under_way_and_is_not_loaded_yet() {
    let key = Key::new("order-1").unwrap();
    let (store, d, ms) = left_under_way(|t| t.key = Some(key.clone()));
    let mut next = Rig::acquired(store, 2, ms, EngineOptions::default());
    next.join(1, "a", 10);
    let target = Target::Key(dest("a"), key);
    next.ask(1, vec![RequestOp::Cancel(ops::Cancel { target: target.clone(), request: 1 })]);
    next.turn();
    let replies = next.take_replies();
    assert!(matches!(replies[..], [OpReply::Failed { code: ErrorCode::Overloaded, .. }]), "{replies:?}");
    next.run(5);
    next.ask(1, vec![RequestOp::Cancel(ops::Cancel { target, request: 1 })]);
    next.run(5);
    assert_eq!(next.take_replies(), [OpReply::Cancel(CancelReply::TooLate(d.id))]);
}

/// A store with so many unconfirmed timers, due long ago, and one that an owner has taken and not
/// settled.
fn store_with_unconfirmed(count: u64) -> (MemoryStore, TimerId) {
    let mut rig = Rig::new(EngineOptions::default());
    let timers: Vec<_> =
        (0..=count).map(|_| Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 3_600_000) }).collect();
    let now = rig.now().time;
    for some in timers.chunks(1_000) {
        let ops = some.iter().flat_map(|t| {
            let settle = Op::settle(t.id, Verdict::Unconfirmed);
            let timer = t.clone().into();
            [Op::Schedule(Schedule::new(timer, KeyPolicy::Create)), Op::take(t.id, 0), settle]
        });
        let mut ops: Vec<_> = ops.collect();
        if some.last().map(|t| t.id) == timers.last().map(|t| t.id) {
            ops.pop();
        }
        rig.lane.apply(Batch { now, claim: None, ops }).now_or_never().unwrap().unwrap();
    }
    let last = timers.last().unwrap().id;
    assert!(matches!(rig.place(last), Some(Place::Taken { unconfirmed: false, .. })));
    (rig.store, last)
}

#[test]
fn a_takeover_costs_the_same_however_many_timers_are_unconfirmed() {
    let calls = [0, 10_000].map(|count| {
        let (store, taken) = store_with_unconfirmed(count);
        let mut rig = Rig::on(store, 2, 1_000, EngineOptions::default());
        rig.run(50);
        let place = rig.place(taken);
        assert!(matches!(place, Some(Place::Taken { unconfirmed: true, .. })), "{place:?}");
        rig.taken_calls
    });
    assert_eq!(calls, [1, 1]);
}

#[test]
fn a_replay_of_what_was_sent_as_covered_has_a_higher_attempt() {
    let mut rig = Rig::new(EngineOptions::default());
    let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 100) };
    let ops = vec![Op::Schedule(Schedule::new(once.clone().into(), KeyPolicy::Create))];
    let batch = Batch { now: rig.now().time, claim: Some(once.due), ops };
    rig.lane.apply(batch).now_or_never().unwrap().unwrap();
    let mut next = Rig::on(rig.store, 2, 50, EngineOptions::default());
    next.join(1, "a", 1);
    let mut sent = Vec::new();
    for _ in 0..2 {
        next.run(100);
        sent.extend(next.take_deliveries().into_iter().map(|(_, d)| (d.epoch, d.attempt)));
        next.run(600);
        assert!(matches!(next.place(once.id), Some(Place::Taken { unconfirmed: true, .. })));
        next.ask(1, vec![RequestOp::Replay(ops::Replay { id: once.id })]);
    }
    let epoch = next.lane.epoch();
    assert_eq!(sent, [(epoch, 2), (epoch, 3)], "the first owner may have sent the first attempt");
}

#[test]
fn unconfirmed_timers_are_trimmed_by_count_and_by_age_and_that_is_counted() {
    let (store, _) = store_with_unconfirmed(700);
    let trimmed = |rig: &Rig| rig.engine.counters().find(|(name, _)| *name == "unconfirmed_trimmed_total");
    let taken = |rig: &Rig| rig.lane.census().now_or_never().unwrap().unwrap().taken;
    let options = EngineOptions { unconfirmed_max_count: 10, ..EngineOptions::default() };
    let mut rig = Rig::on(store.clone(), 2, 1_000, options);
    rig.run(500);
    // With the one that the takeover has made unconfirmed they were 701.
    assert_eq!((trimmed(&rig).map(|c| c.1), taken(&rig)), (Some(691), 10));
    let options = EngineOptions { unconfirmed_max_age_ms: 1_000, ..EngineOptions::default() };
    let mut rig = Rig::on(store, 3, 5_000, options);
    rig.run(500);
    assert_eq!((trimmed(&rig).map(|c| c.1), taken(&rig)), (Some(10), 0));
}

#[test]
fn inherited_deliveries_are_kept_until_all_that_was_sent_before_has_been_read() {
    let since = Time::from_ms(5_000);
    let id = TimerId::from_u128(1);
    let left = |horizon, call: Option<OpenCall>| {
        let mut p = OwnedPartition::new(P, Epoch(2), Time::ZERO, Now { time: since, mono_ms: 0 }, Seeded(1));
        p.extend_horizon(Time::from_ms(horizon));
        call.into_iter().for_each(|call| p.calls.push(call));
        p.inherited.take_over([InFlight { id, attempt: 1, session: 1, until: since }]);
        p.drop_old_inherited();
        p.inherited.len()
    };
    // The predecessor's clock may have been ahead by a second.
    assert_eq!(left(5_999, None), 1);
    assert_eq!(left(6_000, Some(OpenCall::Taken)), 1);
    assert_eq!(left(6_000, Some(OpenCall::Fetch(id))), 1);
    assert_eq!(left(6_000, None), 0);
}

#[test]
fn an_inherited_delivery_whose_timer_is_not_loaded_yet_is_handed_on() {
    let (store, _, ms) = left_under_way(|t| t.callback_timeout_ms = Some(60_000));
    let mut second = Rig::acquired(store.clone(), 2, ms, EngineOptions::default());
    second.stop();
    assert_eq!(inherited(&store, 3, ms), 1);
}

#[test]
fn an_edit_by_key_right_after_a_takeover_waits_only_if_there_is_an_inherited_delivery() {
    let mut rig = Rig::acquired(MemoryStore::new(1), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let target = Target::Key(dest("a"), Key::new("order-1").unwrap());
    rig.ask(1, vec![RequestOp::Cancel(ops::Cancel { target, request: 1 })]);
    rig.run(5);
    assert_eq!(rig.take_replies(), [OpReply::Cancel(CancelReply::NotFound)]);
}

#[test]
fn each_session_of_a_broker_that_stops_is_told_once_whenever_it_opens() {
    let mut rig = Rig::new(EngineOptions::default());
    let told = |rig: &mut Rig| {
        let closing = |(session, m): (SessionId, ServerMessage)| {
            matches!(m, ServerMessage::Closing).then_some(session.0)
        };
        rig.sent.drain(..).filter_map(closing).collect::<Vec<u64>>()
    };
    rig.join(1, "a", 1);
    rig.turn();
    assert_eq!(told(&mut rig), []);
    let now = rig.now();
    rig.engine.handle(now, Input::Drain);
    rig.turn();
    assert_eq!(told(&mut rig), [1]);
    rig.join(2, "a", 1);
    rig.turn();
    assert_eq!(told(&mut rig), [2]);
}

#[test]
fn what_a_client_never_began_is_delivered_by_the_next_owner_as_the_same_attempt() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 1);
    let d = rig.deliver(1, t);
    rig.stop();
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(50);
    next.settle(1, &d, HandlerOutcome::NotBegun);
    next.run(50);
    let (_, again) = next.take_deliveries().remove(0);
    assert_eq!((again.attempt, again.epoch > d.epoch), (1, true));
    assert_eq!(next.refusals(), []);
    assert_eq!(next.inherited(), 0, "a third owner would wait for it");
    // Its failure is the first.
    next.settle(1, &again, HandlerOutcome::Retry { after_ms: Some(10), error: "no".into() });
    next.run(100);
    assert_eq!(next.take_deliveries().remove(0).1.attempt, 2);
}

#[test]
fn what_was_taken_by_a_predecessor_and_never_begun_is_unconfirmed() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 1) };
    let d = rig.deliver(1, t);
    rig.stop();
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(50);
    next.settle(1, &d, HandlerOutcome::NotBegun);
    next.run(50);
    assert!(next.take_deliveries().is_empty(), "the store lets only the owner send it that has taken it");
    assert!(
        matches!(next.place(d.id), Some(Place::Taken { unconfirmed: true, .. })),
        "{:?}",
        next.place(d.id)
    );
    assert_eq!((next.engine.memory().0, next.engine.unsettled()), (0, 0));
}

#[test]
fn a_delivery_of_a_predecessor_counts_on_when_the_one_after_it_was_never_begun() {
    let (store, d, ms) = left_under_way(|timer| timer.callback_timeout_ms = Some(1_000));
    // Its time is over when there is an owner again.
    let mut next = Rig::on(store, 2, ms + 2_000, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(100);
    let (_, again) = next.take_deliveries().remove(0);
    assert_eq!(again.attempt, 2);
    next.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 0 });
    next.settle(1, &again, HandlerOutcome::NotBegun);
    next.run(5);
    next.ask(1, vec![RequestOp::Cancel(ops::Cancel { target: d.id.into(), request: 7 })]);
    next.run(50);
    assert_eq!(
        next.take_replies().last(),
        Some(&OpReply::Cancel(CancelReply::TooLate(d.id))),
        "its handler may be at work"
    );
    assert_eq!(next.take_deliveries().len(), 0);
}
