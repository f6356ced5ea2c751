//! A destination with limits: nothing of it starts beyond them, and everything of it in the end.

use mtimer_protocol::ops::{Configure, ConfigureReply};
use mtimer_types::{DeliveryLimits, DeliveryRate, DestinationSettings, LateCause, SettingsVersion};

use super::*;
use crate::engine::claims::OWNERSHIP_MS;

/// Until nothing of an earlier lender can be in use: a share, and a callback timeout of the rig's.
const QUIET_MS: u64 = 1_600;

fn limits(concurrency: Option<u32>, rate: Option<(u32, u32)>) -> DeliveryLimits {
    let rate = rate.map(|(starts, burst)| DeliveryRate { starts, per_ms: 1_000, burst });
    DeliveryLimits { concurrency, rate }
}

fn configure(rig: &mut Rig, version: u64, limits: DeliveryLimits) {
    let settings = Box::new(DestinationSettings { limits, ..DestinationSettings::default() });
    rig.sent.retain(|(_, message)| !matches!(message, ServerMessage::Reply { .. }));
    let given = SettingsVersion::Given(version);
    rig.ask(1, vec![Configure { partition: P, dest: dest("a"), settings, version: given }.into()]);
    rig.turn();
    let done = [ConfigureReply::Done(version).into()];
    let is_done =
        |message: &ServerMessage| matches!(message, ServerMessage::Reply { replies, .. } if *replies == done);
    assert!(rig.sent.iter().any(|(_, message)| is_done(message)), "{:?}", rig.sent);
}

/// A broker whose leader has lent for so long that it alone does, and a client of "a".
fn rig(limits: DeliveryLimits) -> Rig {
    let mut rig = Rig::new(EngineOptions { callback_timeout_ms: 500, ..EngineOptions::default() });
    rig.join(1, "a", 1_000);
    rig.run(OWNERSHIP_MS);
    configure(&mut rig, 1, limits);
    rig.run(QUIET_MS);
    rig
}

fn schedule(rig: &mut Rig, timers: usize) -> Vec<TimerId> {
    let timers: Vec<Timer> = (0..timers).map(|_| rig.timer("a", 0)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    timers.iter().map(|timer| timer.id).collect()
}

fn running(rig: &mut Rig) -> u64 {
    let ix = rig.engine.roster.dest_ix(&dest("a"));
    let now = rig.ms;
    rig.engine.roster.dest_mut(ix).limit.in_use(now)
}

#[test]
fn so_many_run_and_each_that_ends_lets_another_one_go() {
    let mut rig = rig(limits(Some(2), None));
    schedule(&mut rig, 5);
    rig.run(50);
    let first = rig.take_deliveries();
    assert_eq!((first.len(), running(&mut rig)), (2, 2));
    rig.settle(1, &first[0].1, HandlerOutcome::Ok);
    rig.run(10);
    let second = rig.take_deliveries();
    assert_eq!(second.len(), 1);
    let fail = HandlerOutcome::Fail { error: "no".into() };
    rig.settle(1, &first[1].1, fail);
    rig.settle(1, &second[0].1, HandlerOutcome::NotBegun);
    rig.run(10);
    let third = rig.take_deliveries();
    assert_eq!((third.len(), running(&mut rig)), (2, 2));
    third.iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
    rig.run(10);
    rig.take_deliveries().iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
    rig.run(100);
    assert_eq!((running(&mut rig), rig.engine.unsettled()), (0, 0));
}

#[test]
fn a_handler_counts_until_its_timeout_whatever_becomes_of_its_timer_and_session() {
    let mut rig = rig(limits(Some(1), None));
    let ids = schedule(&mut rig, 2);
    rig.run(20);
    let (_, lost) = rig.take_deliveries().remove(0);
    assert!(ids.contains(&lost.id));
    rig.session(1, SessionEvent::Closed);
    rig.join(2, "a", 10);
    // Both wait for the handler that may go on, though one has failed with its session.
    rig.run(400);
    assert_eq!((rig.take_deliveries().len(), running(&mut rig)), (0, 1));
    rig.run(200);
    let (_, next) = rig.take_deliveries().remove(0);
    assert_eq!(running(&mut rig), 1);
    // One that is beyond its timeout does not count.
    rig.run(600);
    let (_, after) = rig.take_deliveries().remove(0);
    assert_ne!((next.id, next.attempt), (after.id, after.attempt));
    assert_eq!(running(&mut rig), 1);
}

#[test]
fn a_timer_that_is_replaced_while_it_is_delivered_counts_on() {
    let mut rig = rig(limits(Some(1), None));
    let key = Some(mtimer_types::Key::new("k").unwrap());
    let [old, new] = [0, 0].map(|_| Timer { key: key.clone(), ..rig.timer("a", 0) });
    let first = rig.deliver(1, old);
    rig.ask(1, vec![RequestOp::Schedule(Schedule { timer: new.into(), policy: KeyPolicy::Replace })]);
    rig.run(300);
    assert_eq!((rig.take_deliveries().len(), running(&mut rig)), (0, 1), "{first:?} runs");
    rig.run(300);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn starts_keep_to_the_rate_and_what_waits_says_so() {
    let mut rig = rig(limits(None, Some((100, 5))));
    let ids = schedule(&mut rig, 60);
    let mut starts = Vec::new();
    for _ in 0..1_000 {
        rig.run(1);
        let started = rig.take_deliveries();
        starts.extend(started.iter().map(|_| rig.ms));
        started.iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
        if starts.len() == 20 && started.len() == 1 {
            rig.session(1, SessionEvent::Query { corr: 9, query: Query::Story(Target::Id(ids[59])) });
        }
    }
    assert_eq!(starts.len(), 60);
    for (at, first) in starts.iter().enumerate() {
        for (more, last) in starts[at..].iter().enumerate() {
            assert!((more as u64) < (last - first) / 10 + 5 + 1, "{} within {} ms", more + 1, last - first);
        }
    }
    assert!(starts[59] - starts[0] < 600, "a rate of 100/s is used: {starts:?}");
    let waits = rig.sent.iter().find_map(|(_, message)| match message {
        ServerMessage::Answer { corr: 9, answer: QueryAnswer::Story(Some(story)) } => story.waits_for,
        _ => None,
    });
    assert_eq!(waits, Some(LateCause::Limited));
}

#[test]
fn what_limits_hold_back_is_told_apart_from_what_is_overdue() {
    let mut rig = rig(limits(Some(1), None));
    let backlog = |rig: &Rig| rig.engine.figures(1).top[0].1;
    schedule(&mut rig, 3);
    rig.run(20);
    let (_, first) = rig.take_deliveries().remove(0);
    let held_back = backlog(&rig);
    assert_eq!((held_back.limited, held_back.oldest), (1, None));
    assert_eq!(held_back.waiting + held_back.parked, 2);
    let since = held_back.oldest_limited.unwrap();
    rig.session(1, SessionEvent::Query { corr: 9, query: Query::Status });
    rig.run(2);
    let status = rig.sent.iter().find_map(|(_, message)| match message {
        ServerMessage::Answer { corr: 9, answer: QueryAnswer::Status(status) } => Some(status),
        _ => None,
    });
    let told = &status.unwrap().limited_destinations[0];
    assert_eq!((&told.dest, told.limits, told.waiting), (&dest("a"), limits(Some(1), None), 2));
    assert!((20..=22).contains(&told.oldest_ms), "{told:?}");
    // With no client at all it is not for the limits that they wait.
    rig.settle(1, &first, HandlerOutcome::Ok);
    rig.session(1, SessionEvent::Closed);
    rig.run(10);
    let overdue = backlog(&rig);
    assert_eq!((overdue.limited, overdue.oldest_limited, overdue.oldest), (0, None, Some(since)));
}

#[test]
fn at_most_once_timers_keep_to_both_limits() {
    let mut rig = rig(limits(Some(3), Some((1_000, 50))));
    for _ in 0..30 {
        let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 0) };
        rig.schedule(1, timer);
    }
    let mut delivered = 0;
    for _ in 0..300 {
        rig.run(1);
        let started = rig.take_deliveries();
        delivered += started.len();
        assert!(running(&mut rig) <= 3);
        started.iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
    }
    rig.run(100);
    assert_eq!((delivered, running(&mut rig), rig.engine.unsettled()), (30, 0, 0));
}

#[test]
fn without_a_leader_nothing_starts_when_the_share_has_ended() {
    let mut rig = rig(limits(None, Some((1_000, 50))));
    schedule(&mut rig, 1);
    rig.run(20);
    let (_, first) = rig.take_deliveries().remove(0);
    rig.settle(1, &first, HandlerOutcome::Ok);
    let lender = rig.lender.take();
    rig.run(1_000);
    schedule(&mut rig, 5);
    rig.run(1_000);
    assert_eq!(rig.take_deliveries().len(), 0);
    rig.lender = lender;
    rig.run(500);
    assert_eq!(rig.take_deliveries().len(), 5);
}

#[test]
fn limits_that_are_lifted_let_everything_go_and_lower_ones_hold_soon() {
    let mut rig = rig(limits(Some(1), None));
    schedule(&mut rig, 10);
    rig.run(50);
    assert_eq!(rig.take_deliveries().len(), 1);
    configure(&mut rig, 2, DeliveryLimits::default());
    rig.run(50);
    let rest = rig.take_deliveries();
    assert_eq!(rest.len(), 9);
    configure(&mut rig, 3, limits(Some(4), None));
    schedule(&mut rig, 10);
    rig.run(300);
    assert_eq!((rig.take_deliveries().len(), running(&mut rig)), (0, 10));
    rest.iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
    rig.run(50);
    // The first one runs still.
    assert_eq!((rig.take_deliveries().len(), running(&mut rig)), (3, 4));
}

#[test]
fn a_delivery_that_has_not_left_in_time_goes_out_again_with_the_same_attempt() {
    let mut rig = rig(limits(Some(5), Some((100, 2))));
    rig.stalled = true;
    schedule(&mut rig, 2);
    rig.run(20);
    let sent = rig.take_deliveries();
    assert_eq!(sent.len(), 2);
    rig.session(1, SessionEvent::Recalled(sent.iter().map(|(_, d)| d.id).collect()));
    rig.stalled = false;
    rig.run(300);
    let again = rig.take_deliveries();
    assert!(again.iter().all(|(_, d)| d.attempt == 1));
    assert_eq!((again.len(), running(&mut rig)), (2, 2));
    again.iter().for_each(|(_, d)| rig.settle(1, d, HandlerOutcome::Ok));
    rig.run(100);
    assert_eq!((running(&mut rig), rig.engine.unsettled()), (0, 0));
}

#[test]
fn the_next_owner_counts_the_deliveries_that_it_inherits() {
    let store = MemoryStore::new(1);
    let options = EngineOptions { callback_timeout_ms: 500, ..EngineOptions::default() };
    let mut first = Rig::on(store.clone(), 1, 0, options.clone());
    first.join(1, "a", 10);
    first.run(OWNERSHIP_MS);
    configure(&mut first, 1, limits(Some(2), None));
    first.run(QUIET_MS);
    let ids: Vec<TimerId> = (0..4)
        .map(|_| {
            let timer = Timer { callback_timeout_ms: Some(60_000), ..first.timer("a", 0) };
            first.schedule(1, timer.clone());
            timer.id
        })
        .collect();
    first.run(200);
    let sent = first.take_deliveries();
    assert_eq!((sent.len(), ids.len()), (2, 4));
    first.stop();
    let mut second = Rig::on(store, 2, first.ms, options);
    second.lender = first.lender.take();
    second.join(1, "a", 10);
    second.run(1_000);
    assert_eq!((second.take_deliveries().len(), running(&mut second)), (0, 2));
}
