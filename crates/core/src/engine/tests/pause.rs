//! A paused destination: nothing of it starts, and everything of it goes on afterwards.

use mtimer_protocol::TimerStory;
use mtimer_protocol::ops::{Configure, ConfigureReply};
use mtimer_types::{DestinationSettings, LateCause, Pause, SettingsVersion};

use super::*;
use crate::engine::claims::OWNERSHIP_MS;

/// A broker that has had its partition for long enough to be its only sender, and a client of "a".
fn rig() -> Rig {
    rig_on(MemoryStore::new(1), 1, 0)
}

fn rig_on(store: MemoryStore, term: u64, ms: u64) -> Rig {
    let mut rig = Rig::on(store, term, ms, EngineOptions::default());
    rig.join(1, "a", 1_000);
    rig.run(OWNERSHIP_MS);
    rig
}

fn configure(rig: &mut Rig, app: &str, version: u64, pause: Option<Pause>) -> OpReply {
    let settings = Box::new(DestinationSettings { pause, ..DestinationSettings::default() });
    let version = SettingsVersion::Given(version);
    rig.sent.retain(|(_, message)| !matches!(message, ServerMessage::Reply { .. }));
    rig.ask(1, vec![Configure { partition: P, dest: dest(app), settings, version }.into()]);
    rig.turn();
    // What the pause has put in order goes along.
    let reply = rig.sent.iter().rposition(|(_, message)| matches!(message, ServerMessage::Reply { .. }));
    let (_, message) = rig.sent.remove(reply.expect("an answer"));
    let ServerMessage::Reply { mut replies, .. } = message else { unreachable!() };
    replies.remove(0)
}

/// Pauses "a", with the first version.
fn pause(rig: &mut Rig) {
    let since = rig.now().time;
    let paused = configure(rig, "a", 1, Some(Pause { since, ..Pause::default() }));
    assert_eq!(paused, ConfigureReply::Done(1).into());
}

/// Resumes it.
fn resume(rig: &mut Rig, over_ms: u64) {
    let until = Some(rig.now().time);
    let resumed = configure(rig, "a", 2, Some(Pause { until, over_ms, ..Pause::default() }));
    assert_eq!(resumed, ConfigureReply::Done(2).into());
}

fn ids(deliveries: Vec<(SessionId, Delivery)>) -> Vec<TimerId> {
    deliveries.into_iter().map(|(_, d)| d.id).collect()
}

fn counted(rig: &Rig, counter: Counter) -> u64 {
    rig.engine.counters[counter as usize]
}

fn story(rig: &mut Rig, id: TimerId) -> TimerStory {
    rig.session(1, SessionEvent::Query { corr: 9, query: Query::Story(Target::Id(id)) });
    rig.turn();
    let answer = rig.sent.drain(..).find_map(|(_, message)| match message {
        ServerMessage::Answer { corr: 9, answer: QueryAnswer::Story(story) } => story,
        _ => None,
    });
    *answer.expect("it is there")
}

#[test]
fn what_comes_due_waits_in_the_park_and_uses_no_attempt() {
    let mut rig = rig();
    let timers: Vec<Timer> = (0..20).map(|n| rig.timer("a", 10 * n)).collect();
    let other = Timer { callback_timeout_ms: None, ..rig.timer("b", 50) };
    rig.join(2, "b", 10);
    pause(&mut rig);
    timers.iter().chain([&other]).for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(2_000);
    assert_eq!(ids(rig.take_deliveries()), [other.id], "others go on");
    assert!(timers.iter().all(|timer| rig.place(timer.id) == Some(Place::Parked)));
    assert_eq!(story(&mut rig, timers[3].id).waits_for, Some(LateCause::Paused));
    resume(&mut rig, 0);
    rig.run(200);
    let delivered = rig.take_deliveries();
    assert!(delivered.iter().all(|(_, d)| d.attempt == 1));
    let mut got = ids(delivered);
    got.sort_unstable();
    assert!(got.iter().eq(timers.iter().map(|timer| &timer.id)));
    let story = story(&mut rig, timers[3].id).under_way.expect("it is under way");
    assert_eq!(story.late_by, Some(LateCause::Paused));
    let tallies = rig.engine.figures(0).tallies;
    assert_eq!((tallies.sent_after.count(), tallies.sent_after_pause.count()), (1, 20));
    assert!(tallies.sent_after_pause.sum_us < 20 * 200_000, "they count from the resume");
}

#[test]
fn what_is_under_way_is_finished_and_its_retry_waits() {
    let mut rig = rig();
    let [done, again] = [rig.timer("a", 0), rig.timer("a", 0)];
    let [done, again] = [rig.deliver(1, done), rig.deliver(1, again)];
    pause(&mut rig);
    rig.settle(1, &done, HandlerOutcome::Ok);
    rig.settle(1, &again, HandlerOutcome::Retry { error: "no".into(), after_ms: None });
    rig.run(1_000);
    assert_eq!(rig.place(done.id), None);
    assert_eq!(ids(rig.take_deliveries()), []);
    resume(&mut rig, 0);
    rig.run(100);
    let (_, second) = rig.take_deliveries().remove(0);
    assert_eq!((second.id, second.attempt), (again.id, 2));
}

#[test]
fn it_ends_by_itself() {
    let mut rig = rig();
    let until = Some(rig.now().time + 300);
    configure(&mut rig, "a", 1, Some(Pause { until, ..Pause::default() }));
    let timer = rig.timer("a", 10);
    rig.schedule(1, timer.clone());
    rig.run(290);
    assert_eq!(ids(rig.take_deliveries()), []);
    rig.run(60);
    assert_eq!(ids(rig.take_deliveries()), [timer.id]);
}

#[test]
fn what_has_waited_comes_back_over_the_time_that_was_set() {
    let mut rig = rig();
    pause(&mut rig);
    for _ in 0..200 {
        let timer = Timer { callback_timeout_ms: None, ..rig.timer("a", 10) };
        rig.schedule(1, timer);
    }
    rig.run(500);
    resume(&mut rig, 10_000);
    let mut after = |ms| {
        rig.run(ms);
        rig.take_deliveries().into_iter().for_each(|(_, d)| rig.settle(1, &d, HandlerOutcome::Ok));
        counted(&rig, Counter::Delivered)
    };
    let delivered = [after(1_000), after(4_000), after(4_000)];
    for (delivered, expected) in delivered.into_iter().zip([20, 100, 180]) {
        assert!((expected - 3..=expected).contains(&delivered), "{delivered} of {expected}");
    }
    assert_eq!(after(1_200), 200);
}

#[test]
fn a_delivery_that_has_not_left_is_withdrawn_before_the_pause_is_answered() {
    let mut rig = rig();
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 0) };
    let timers = [rig.timer("a", 0), timer];
    rig.stalled = true;
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    assert_eq!(rig.sent.iter().filter(|(_, m)| matches!(m, ServerMessage::Deliver { .. })).count(), 2);
    pause(&mut rig);
    assert_eq!(ids(rig.take_deliveries()), []);
    assert_eq!(counted(&rig, Counter::Recalled), 2);
    rig.run(200);
    assert!(timers.iter().all(|timer| rig.place(timer.id) == Some(Place::Parked)));
    assert_eq!(rig.engine.unsettled(), 0);
    resume(&mut rig, 0);
    rig.run(100);
    let again = rig.take_deliveries();
    assert!(again.iter().all(|(_, d)| d.attempt == 1));
    assert_eq!(again.len(), 2);
    again.iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
    rig.run(100);
    assert!(timers.iter().all(|timer| rig.place(timer.id).is_none()));
}

#[test]
fn a_taken_timer_that_was_not_sent_is_parked_and_sent_once() {
    let mut rig = rig();
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 60) };
    rig.schedule(1, timer.clone());
    rig.run(45);
    assert!(matches!(rig.place(timer.id), Some(Place::Taken { .. })), "{:?}", rig.place(timer.id));
    pause(&mut rig);
    rig.run(500);
    assert_eq!((ids(rig.take_deliveries()), rig.place(timer.id)), (vec![], Some(Place::Parked)));
    resume(&mut rig, 0);
    rig.run(500);
    assert_eq!(ids(rig.take_deliveries()), [timer.id]);
}

#[test]
fn deadlines_run_and_cancels_work_while_it_lasts() {
    let mut rig = rig();
    pause(&mut rig);
    let expires = Timer { deadline: Some(rig.now().time + 1_000), ..rig.timer("a", 10) };
    let cancelled = rig.timer("a", 10);
    for timer in [&expires, &cancelled] {
        rig.schedule(1, timer.clone());
    }
    rig.run(500);
    rig.take_replies();
    let op = mtimer_protocol::ops::Cancel { target: Target::Id(cancelled.id), request: 77 };
    rig.ask(1, vec![op.into()]);
    rig.run(5);
    let answer = mtimer_protocol::ops::CancelReply::Cancelled(cancelled.id);
    assert_eq!(rig.take_replies(), [answer.into()]);
    rig.run(2_000);
    assert_eq!([rig.place(expires.id), rig.place(cancelled.id)], [None, None]);
    assert_eq!(counted(&rig, Counter::Expired), 1);
}

#[test]
fn the_next_owner_sends_nothing_either() {
    let store = MemoryStore::new(1);
    let mut first = rig_on(store.clone(), 1, 0);
    pause(&mut first);
    let timer = first.timer("a", 100);
    first.schedule(1, timer.clone());
    first.run(10);
    let mut second = rig_on(store, 2, first.ms);
    second.run(1_000);
    assert_eq!(ids(second.take_deliveries()), []);
    assert_eq!(second.place(timer.id), Some(Place::Parked));
    resume(&mut second, 0);
    second.run(100);
    assert_eq!(ids(second.take_deliveries()), [timer.id]);
}

#[test]
fn it_is_not_answered_while_a_former_owner_may_still_send() {
    let mut rig = Rig::on(MemoryStore::new(1), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let settings = Some(Pause::default());
    rig.run(OWNERSHIP_MS - rig.ms);
    assert_eq!(code(&configure(&mut rig, "a", 1, settings.clone())), Some(ErrorCode::Overloaded));
    rig.run(1);
    assert_eq!(configure(&mut rig, "a", 1, settings), ConfigureReply::Done(1).into());
}

#[test]
fn newer_settings_hold_whichever_comes_last() {
    let mut rig = rig();
    assert_eq!(configure(&mut rig, "a", 5, Some(Pause::default())), ConfigureReply::Done(5).into());
    let older = configure(&mut rig, "a", 4, None);
    assert_eq!(older, ConfigureReply::Done(5).into());
    let timer = rig.timer("a", 10);
    rig.schedule(1, timer.clone());
    rig.run(500);
    assert_eq!(ids(rig.take_deliveries()), []);
    configure(&mut rig, "a", 6, None);
    rig.run(100);
    assert_eq!(ids(rig.take_deliveries()), [timer.id]);
}
