//! Schedules, cancels and reschedules: refusals, repeats, and edits of timers that are on their way
//! elsewhere.

use mtimer_protocol::ops::{
    Cancel, CancelReply, Purge, Replay, ReplayReply, Reschedule, RescheduleReply, Schedule, ScheduleReply,
};
use mtimer_types::limits::{MAX_AHEAD_MS, MAX_BATCH, MAX_SENT_AHEAD_MS, MAX_SESSION_INFLIGHT};
use mtimer_types::{Extensions, Key};

use super::*;
use crate::engine::key_edits::KEY_OPS;
use crate::engine::partition::QUEUE_OPS;

#[test]
fn requests_that_are_too_old_or_not_ours_are_refused() {
    let mut rig = Rig::new(EngineOptions { partitions: 1, ..EngineOptions::default() });
    rig.join(1, "a", 0);
    rig.run(40_000);
    let timer = rig.timer("a", 10);
    let ops = vec![RequestOp::Schedule(Schedule { timer: timer.clone().into(), policy: KeyPolicy::Create })];
    let first_sent = Time::from_ms(START);
    rig.session(1, SessionEvent::Request(Request { corr: 1, first_sent, ops }));
    let id = TimerId::new(timer.due, timer.due, PartitionId(7), 1);
    rig.schedule(1, Timer { id, ..timer.clone() });
    rig.schedule(1, Timer { due: timer.due + 1, ..timer });
    rig.run(1);
    let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
    assert_eq!(codes, [Some(ErrorCode::Unknown), Some(ErrorCode::Invalid), Some(ErrorCode::Invalid)]);
}

#[test]
fn an_extension_that_must_be_understood_refuses_its_schedule_alone() {
    let mut rig = Rig::new(EngineOptions { partitions: 1, ..EngineOptions::default() });
    rig.join(1, "a", 0);
    let op = |timer: Timer| RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create });
    let mut with =
        |tag| Timer { extensions: Extensions::new([(tag, "x")]).unwrap(), ..rig.timer("a", 60_000) };
    let ops = [4, 5, 6].map(|tag| op(with(tag))).into();
    rig.ask(1, ops);
    rig.run(1);
    let replies = rig.take_replies();
    assert_eq!(replies.iter().map(code).collect::<Vec<_>>(), [None, Some(ErrorCode::Invalid), None]);
    let OpReply::Failed { message, .. } = &replies[1] else { panic!("{:?}", replies[1]) };
    assert!(message.contains("extension 5, which must be understood"), "{message}");
}

#[test]
fn a_request_from_the_future_is_refused_until_its_age_can_be_told() {
    let mut rig = Rig::new(EngineOptions { partitions: 1, ..EngineOptions::default() });
    rig.join(1, "a", 0);
    let first_sent = rig.now().time + MAX_SENT_AHEAD_MS + 1;
    let timer = rig.timer("a", 60_000);
    let ask = |rig: &mut Rig| {
        let ops =
            vec![RequestOp::Schedule(Schedule { timer: timer.clone().into(), policy: KeyPolicy::Create })];
        rig.session(1, SessionEvent::Request(Request { corr: 1, first_sent, ops }));
        rig.run(1);
        rig.take_replies().pop().unwrap()
    };
    assert_eq!(code(&ask(&mut rig)), Some(ErrorCode::Unavailable));
    assert!(
        matches!(ask(&mut rig), OpReply::Schedule(ScheduleReply::Scheduled { .. })),
        "the clock is a millisecond further"
    );
}

fn unknown_timers(count: usize) -> Vec<RequestOp> {
    vec![RequestOp::Purge(Purge { id: TimerId::from_u128(1) }); count]
}

#[test]
fn a_request_has_as_many_operations_as_it_may() {
    for (count, closed) in [(0, true), (1, false), (MAX_BATCH, false), (MAX_BATCH + 1, true)] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 0);
        rig.ask(1, unknown_timers(count));
        let (now, mut effects) = (rig.now(), Vec::new());
        rig.engine.flush(now, &mut effects);
        let closes = |e: &Effect| matches!(e, Effect::Close(..));
        assert_eq!(effects.iter().any(closes), closed, "{count} operations");
    }
}

#[test]
fn a_session_has_as_many_operations_unanswered_as_it_may() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    rig.store.faults().hold(P);
    let ask = |rig: &mut Rig, count| {
        rig.ask(1, unknown_timers(count));
        rig.run(1);
        rig.take_replies().first().and_then(code)
    };
    for _ in 0..MAX_SESSION_INFLIGHT / MAX_BATCH {
        assert_eq!(ask(&mut rig, MAX_BATCH), None);
    }
    assert_eq!(ask(&mut rig, 1), Some(ErrorCode::Overloaded));
    rig.store.faults().heal(P);
    rig.run(100);
    assert_eq!(rig.take_replies().len(), MAX_SESSION_INFLIGHT);
    assert_eq!(ask(&mut rig, 1), None);
}

#[test]
fn what_is_being_cancelled_is_not_sent() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 50);
    rig.schedule(1, t.clone());
    rig.run(45);
    rig.store.faults().hold(P);
    rig.ask(1, vec![RequestOp::Cancel(Cancel { target: Target::Id(t.id), request: 9 })]);
    rig.run(100);
    assert!(rig.take_deliveries().is_empty(), "sent although its cancel was under way");
    rig.store.faults().heal(P);
    rig.run(2);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Cancel(CancelReply::Cancelled(t.id))));
    rig.run(100);
    assert!(rig.take_deliveries().is_empty());
}

#[test]
fn memory_follows_what_was_applied_but_not_confirmed() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let (cancelled, moved) = (rig.timer("a", 100), rig.timer("a", 100));
    rig.schedule(1, cancelled.clone());
    rig.schedule(1, moved.clone());
    rig.run(5);
    rig.unconfirmed = true;
    let due = moved.due + 500;
    let filed = rig.timer("a", 100);
    rig.ask(
        1,
        vec![
            RequestOp::Cancel(Cancel { target: Target::Id(cancelled.id), request: 1 }),
            RequestOp::Reschedule(Reschedule { target: Target::Id(moved.id), due, request: 2 }),
            RequestOp::Schedule(Schedule { timer: filed.clone().into(), policy: KeyPolicy::Create }),
        ],
    );
    rig.run(1);
    let codes: Vec<_> = rig.take_replies().iter().filter_map(code).collect();
    assert_eq!(codes, [ErrorCode::NotReplicated; 3]);
    // Held in memory or not, a repeat is for the store to answer.
    rig.schedule(1, filed.clone());
    rig.run(1);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::NotReplicated)]);
    rig.unconfirmed = false;
    rig.run(300);
    let early: Vec<_> = rig.take_deliveries().iter().map(|(_, d)| d.id).collect();
    assert_eq!(early, [filed.id]);
    rig.run(300);
    assert!(rig.take_deliveries().iter().any(|(_, d)| d.id == moved.id));
}

#[test]
fn what_was_moved_by_its_key_and_not_confirmed_is_sent_at_its_new_time() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let far = Timer { key: Some(Key::new("k").unwrap()), ..rig.timer("a", 3_600_000) };
    rig.schedule(1, far.clone());
    rig.run(5);
    rig.unconfirmed = true;
    let due = rig.now().time + 100;
    let target = Target::Key(far.dest.clone(), far.key.clone().unwrap());
    rig.ask(1, vec![RequestOp::Reschedule(Reschedule { target, due, request: 1 })]);
    rig.run(5);
    // The client asks no more.
    rig.unconfirmed = false;
    rig.run(150);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [far.id]);
}

#[test]
fn a_repeat_beside_a_late_acknowledgement_brings_nothing_back() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    rig.schedule(1, timer.clone());
    rig.run(30);
    let (_, first) = rig.take_deliveries().remove(0);
    rig.settle(1, &first, HandlerOutcome::Retry { after_ms: None, error: "again".into() });
    rig.run(10);
    // It waits for its second attempt; an ok of the first is late, and ends it.
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.sent.clear();
    rig.schedule(1, timer.clone());
    rig.run(500);
    let replies = rig.take_replies();
    assert!(matches!(replies[..], [OpReply::Failed { code: ErrorCode::Overloaded, .. }]), "{replies:?}");
    rig.schedule(1, timer);
    rig.run(500);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Ended(mtimer_types::Ended::Acknowledged))]
    );
}

#[test]
fn a_repeat_that_is_overtaken_by_its_acknowledgement_brings_nothing_back() {
    let (mut rig, _) = overtaken_repeat(EngineOptions { batch_ops: 1, ..EngineOptions::default() });
    rig.run(1);
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(500);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Ended(mtimer_types::Ended::Acknowledged))]
    );
    assert_eq!(rig.take_deliveries(), []);
    let census = rig.lane.census().now_or_never().unwrap().unwrap();
    assert_eq!(census.pending, 0, "{census:?}");
}

/// Requests that were admitted in time wait until outcomes from before may be forgotten.
#[test]
fn a_repeat_that_waits_for_longer_than_outcomes_are_kept_brings_nothing_back() {
    let (mut rig, _) = overtaken_repeat(EngineOptions { batch_ops: 1, ..EngineOptions::default() });
    // The acknowledgement goes to the store; the repeat stays in the queue.
    rig.answers_wait = true;
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(20);
    assert_eq!(rig.engine.partition(P).unwrap().calls.batches(), 1);
    rig.engine.partition(P).unwrap().calls.hold_batches();
    rig.answers_wait = false;
    rig.run(45_000);
    assert_eq!(rig.take_replies(), []);
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(500);
    assert_eq!(rig.take_deliveries(), []);
    let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
    assert_eq!(codes, [Some(ErrorCode::Unknown)]);
    let census = rig.lane.census().now_or_never().unwrap().unwrap();
    assert_eq!(census.pending, 0, "{census:?}");
}

#[test]
fn edits_that_wait_for_longer_than_outcomes_are_kept_change_nothing() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let moved = rig.timer("a", 60_000);
    let cancelled = Timer { key: Some(Key::new("order-1").unwrap()), ..rig.timer("a", 60_000) };
    rig.schedule(1, moved.clone());
    rig.schedule(1, cancelled.clone());
    rig.run(5);
    assert_eq!(rig.take_replies().len(), 2);
    rig.engine.partition(P).unwrap().calls.hold_batches();
    let by_key = || Target::Key(dest("a"), cancelled.key.clone().unwrap());
    let due = moved.due + 60_000;
    // The second cancel of the key waits for the first.
    rig.ask(
        1,
        vec![
            RequestOp::Cancel(Cancel { target: by_key(), request: 1 }),
            RequestOp::Cancel(Cancel { target: by_key(), request: 2 }),
            RequestOp::Reschedule(Reschedule { target: Target::Id(moved.id), due, request: 3 }),
            RequestOp::Purge(Purge { id: moved.id }),
        ],
    );
    rig.run(31_000);
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(5);
    let replies = rig.take_replies();
    assert_eq!(replies.iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::Unknown); 4], "{replies:?}");
    rig.run(29_100);
    let mut sent: Vec<_> = rig.take_deliveries().iter().map(|(_, d)| d.id).collect();
    sent.sort_unstable();
    assert_eq!(sent, [moved.id, cancelled.id], "neither held nor changed");
}

#[test]
fn repeats_that_wait_for_each_other_are_overtaken_together() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 100);
    let timer = Timer { key: Some(Key::new("order-1").unwrap()), ..rig.timer("a", 50) };
    rig.schedule(1, timer.clone());
    rig.run(45);
    rig.take_replies();
    rig.engine.partition(P).unwrap().calls.hold_batches();
    let repeats = 15_000;
    for _ in 0..repeats {
        rig.schedule(1, timer.clone());
    }
    rig.run(10);
    let (_, delivery) = rig.take_deliveries().remove(0);
    rig.settle(1, &delivery, HandlerOutcome::Ok);
    rig.turn();
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(20);
    let replies = rig.take_replies();
    assert_eq!(replies.len(), repeats);
    let ended = |reply: &&OpReply| {
        **reply == OpReply::Schedule(ScheduleReply::Ended(mtimer_types::Ended::Acknowledged))
    };
    assert!(replies.iter().filter(ended).count() >= KEY_OPS);
    let is_known = |reply: &OpReply| ended(&reply) || code(reply) == Some(ErrorCode::Overloaded);
    assert!(replies.iter().filter(|reply| !is_known(reply)).count() <= 1, "the one in the batch of the ok");
    assert_eq!(rig.take_deliveries(), []);
}

#[test]
fn operations_that_wait_for_a_key_have_an_end() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().hold(P);
    for _ in 0..KEY_OPS + 3 {
        let mut timer = rig.timer("a", 60_000);
        timer.key = Some(Key::new("order-1").unwrap());
        rig.schedule(1, timer);
    }
    rig.turn();
    // The first is on its way, so many wait, and the others are told.
    let codes: Vec<_> = rig.take_replies().iter().map(code).collect();
    assert_eq!(codes, [Some(ErrorCode::Overloaded); 2]);
    let mut other = rig.timer("a", 60_000);
    other.key = Some(Key::new("order-2").unwrap());
    rig.schedule(1, other);
    rig.store.faults().heal(P);
    rig.run(5);
    let replies = rig.take_replies();
    let taken = replies.iter().filter(|r| matches!(r, OpReply::Schedule(ScheduleReply::KeyTaken(_)))).count();
    assert_eq!((replies.len(), taken), (KEY_OPS + 2, KEY_OPS));
    assert_eq!(rig.engine.partition(P).unwrap().key_edits.waiting(), 0);
}

#[test]
fn a_reschedule_beyond_the_farthest_time_is_refused() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timer = rig.timer("a", 60_000);
    rig.schedule(1, timer.clone());
    rig.run(5);
    rig.take_replies();
    let due = rig.now().time + MAX_AHEAD_MS + 60_000;
    rig.ask(1, vec![RequestOp::Reschedule(Reschedule { target: Target::Id(timer.id), due, request: 1 })]);
    rig.run(5);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::Invalid)]);
}

#[test]
fn new_and_refused_schedules_are_counted() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = Timer { key: Some(Key::new("order-1").unwrap()), ..rig.timer("a", 0) };
    let counted = |rig: &Rig| {
        let counter = |name| rig.engine.counters().find(|c| c.0 == name).unwrap().1;
        (counter("scheduled_total"), counter("schedule_refused_total"))
    };
    let d = rig.deliver(1, timer.clone());
    assert_eq!(counted(&rig), (1, 0));
    rig.take_replies();
    // It is known here to be a repeat, to differ from the first, and by the store to want a key
    // that is taken.
    let other = Timer { key: timer.key.clone(), ..rig.timer("a", 0) };
    for (again, reply, refused) in [
        (timer.clone(), OpReply::Schedule(ScheduleReply::Scheduled { new: false, replaced: None }), 0),
        (
            Timer { payload: b"other".as_slice().into(), ..timer },
            OpReply::Schedule(ScheduleReply::Conflict),
            1,
        ),
        (other, OpReply::Schedule(ScheduleReply::KeyTaken(d.id)), 2),
    ] {
        rig.schedule(1, again);
        rig.run(5);
        assert_eq!((rig.take_replies(), counted(&rig)), (vec![reply], (1, refused)));
    }
}

/// A dead letter with a key.
fn dead_lettered() -> (Rig, Timer) {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = Timer { key: Some(Key::new("order-1").unwrap()), ..rig.timer("a", 0) };
    let d = rig.deliver(1, timer.clone());
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(5);
    rig.take_replies();
    assert_eq!(rig.place(timer.id), Some(Place::Dead));
    (rig, timer)
}

#[test]
fn a_replay_says_who_has_its_key() {
    let (mut rig, timer) = dead_lettered();
    let next = Timer { key: timer.key.clone(), ..rig.timer("a", 60_000) };
    rig.schedule(1, next.clone());
    rig.ask(1, vec![RequestOp::Replay(Replay { id: timer.id })]);
    rig.run(5);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Replay(ReplayReply::KeyTaken(next.id))));
}

#[test]
fn a_replay_that_is_not_confirmed_is_delivered_all_the_same() {
    let (mut rig, timer) = dead_lettered();
    rig.unconfirmed = true;
    rig.ask(1, vec![RequestOp::Replay(Replay { id: timer.id })]);
    rig.turn();
    rig.unconfirmed = false;
    rig.run(100);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [timer.id]);
}

#[test]
fn what_waits_for_a_key_counts_as_waiting() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().hold(P);
    for n in 0..=QUEUE_OPS / KEY_OPS {
        // Of many sessions: each may have so many unanswered only.
        let session = 2 + n as u64;
        rig.session(session, SessionEvent::Opened { client: 1 });
        for _ in 0..=KEY_OPS {
            let mut timer = rig.timer("a", 60_000);
            timer.key = Some(Key::new(&format!("order-{n}")).unwrap());
            rig.schedule(session, timer);
        }
    }
    rig.turn();
    assert!(rig.take_replies().iter().any(|r| code(r) == Some(ErrorCode::Overloaded)));
    rig.store.faults().heal(P);
    rig.run(5);
    let timer = rig.timer("a", 60_000);
    rig.take_replies();
    rig.schedule(1, timer);
    rig.run(5);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None })]
    );
}

#[test]
fn an_edit_waits_behind_the_park_of_its_timer() {
    let mut rig = Rig::new(EngineOptions { batch_ops: 8, ..EngineOptions::default() });
    rig.join(1, "busy", 10);
    let timers: Vec<Timer> = (0..20).map(|_| rig.timer("stuck", 0)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(100);
    // Everything waits, until the timers are on their way to the park and are moved to a later
    // time. (The first of them is the last one that is parked.)
    rig.engine.partition(P).unwrap().calls.hold_batches();
    rig.run(300);
    let due = rig.now().time + 1_000;
    for (request, timer) in timers.iter().enumerate() {
        let (target, request) = (Target::Id(timer.id), request as u64);
        rig.ask(1, vec![RequestOp::Reschedule(Reschedule { target, due, request })]);
    }
    rig.run(1);
    rig.engine.partition(P).unwrap().calls.release_batches();
    rig.run(10);
    rig.join(2, "stuck", 20);
    rig.run(900);
    assert_eq!(rig.take_deliveries(), [], "what was moved comes at its old time");
    rig.run(200);
    assert_eq!(rig.take_deliveries().len(), 20);
}

#[test]
fn an_at_most_once_timer_that_was_taken_and_not_sent_is_not_lost_by_a_reschedule_that_came_too_late() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "b", 1);
    let mut once = rig.timer("a", 50);
    once.mode = Mode::AtMostOnce;
    rig.schedule(1, once.clone());
    rig.run(45);
    // It is being taken when it is to be moved and its client goes.
    rig.store.faults().hold(P);
    rig.run(10);
    let due = once.due + 10_000;
    rig.ask(2, vec![RequestOp::Reschedule(Reschedule { target: Target::Id(once.id), due, request: 9 })]);
    rig.session(1, SessionEvent::Closed);
    rig.run(10);
    rig.store.faults().heal(P);
    rig.run(10);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Reschedule(RescheduleReply::TooLate(once.id))));
    rig.join(3, "a", 10);
    rig.run(30_000);
    let place = rig.place(once.id);
    assert!(!rig.take_deliveries().is_empty(), "{place:?}, and {:?} in memory", rig.engine.memory());
}

#[test]
fn an_at_most_once_timer_that_was_taken_and_not_sent_expires_when_its_deadline_passes() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.join(2, "b", 1);
    let mut once = rig.timer("a", 50);
    once.mode = Mode::AtMostOnce;
    once.deadline = Some(once.due + 20);
    rig.schedule(1, once.clone());
    rig.run(45);
    rig.store.faults().hold(P);
    rig.run(10);
    let due = once.due + 10;
    rig.ask(2, vec![RequestOp::Reschedule(Reschedule { target: Target::Id(once.id), due, request: 9 })]);
    rig.session(1, SessionEvent::Closed);
    rig.run(100);
    rig.store.faults().heal(P);
    rig.run(10);
    assert_eq!(rig.take_replies().last(), Some(&OpReply::Reschedule(RescheduleReply::TooLate(once.id))));
    rig.join(3, "a", 10);
    rig.run(1_000);
    assert!(rig.take_deliveries().is_empty());
    assert_eq!((rig.place(once.id), rig.engine.memory().0), (None, 0));
    rig.take_replies();
    rig.schedule(2, once);
    rig.run(5);
    assert_eq!(rig.take_replies(), [OpReply::Schedule(ScheduleReply::Ended(mtimer_types::Ended::Expired))]);
}
