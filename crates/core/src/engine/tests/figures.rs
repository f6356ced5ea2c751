//! The figures that the engine shows to its operators follow the events.

use mtimer_types::{DeadReason, Headers};

use super::*;
use crate::figures::{Backlog, DEAD_REASONS, Figures, REFUSALS, RedeliveryCause};

fn figures(rig: &Rig) -> Figures {
    rig.engine.figures(10)
}

fn backlog(rig: &Rig, app: &str) -> Backlog {
    let top = figures(rig).top;
    top.into_iter().find(|(name, _)| *name == dest(app)).map(|(_, backlog)| backlog).unwrap_or_default()
}

/// How often a cause of redeliveries was counted.
fn caused(rig: &Rig, cause: RedeliveryCause) -> u64 {
    figures(rig).tallies.redeliveries[cause as usize]
}

#[test]
fn lateness_is_counted_once_for_each_timer_that_is_sent_and_acknowledged() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 100);
    rig.schedule(1, timer);
    rig.run(100);
    let sent = figures(&rig).tallies.sent_after;
    assert_eq!((sent.count(), sent.buckets[0]), (1, 1), "sent within a millisecond");
    let (_, d) = rig.take_deliveries().remove(0);
    rig.run(30);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(200), error: String::new() });
    rig.run(300);
    let (_, d) = rig.take_deliveries().remove(0);
    assert_eq!(figures(&rig).tallies.acknowledged_after.count(), 0);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(DEFER_MS);
    let tallies = figures(&rig).tallies;
    assert_eq!(tallies.sent_after.count(), 1, "a second attempt is late for another reason");
    assert_eq!(tallies.acknowledged_after.count(), 1);
    assert!((230_000..600_000).contains(&tallies.acknowledged_after.sum_us), "{tallies:?}");
}

/// A timer that was due in 1970.
fn ancient(rig: &mut Rig) -> Timer {
    let (timer, now) = (rig.timer("a", 0), rig.now().time);
    let due = Time::from_ms(1_000);
    Timer { id: TimerId::new(due, now, P, rig.random), due, ..timer }
}

#[test]
fn a_timer_that_was_due_before_it_was_accepted_is_late_from_then_on() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = ancient(&mut rig);
    rig.schedule(1, timer);
    rig.run(5);
    let (_, d) = rig.take_deliveries().remove(0);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(DEFER_MS);
    let Figures { tallies, .. } = figures(&rig);
    assert_eq!((tallies.sent_after.count(), tallies.acknowledged_after.count()), (1, 1));
    assert!(tallies.sent_after.sum_us <= 5_000, "{tallies:?}");
    assert!(tallies.acknowledged_after.sum_us <= 100_000, "{tallies:?}");
}

#[test]
fn what_an_outage_adds_to_a_timers_lateness_is_counted_and_no_more() {
    let store = mtimer_store::memory::MemoryStore::new(1);
    let mut first = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    first.session(1, SessionEvent::Opened { client: 1 });
    let (old, new) = (ancient(&mut first), first.timer("a", 200));
    first.schedule(1, old);
    first.schedule(1, new);
    first.run(5);
    first.stop();
    let mut next = Rig::on(store, 2, first.ms + 1_000, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(100);
    assert_eq!(next.take_deliveries().len(), 2);
    let sent = figures(&next).tallies.sent_after;
    assert_eq!(sent.count(), 2);
    assert!((1_700_000..2_500_000).contains(&sent.sum_us), "{sent:?}");
}

#[test]
fn the_age_of_a_backlog_counts_from_when_its_timers_were_accepted() {
    let mut rig = Rig::new(EngineOptions { park_after_ms: 50, ..EngineOptions::default() });
    rig.session(1, SessionEvent::Opened { client: 1 });
    let timer = ancient(&mut rig);
    rig.schedule(1, timer);
    for ms in [5, 200] {
        rig.run(ms);
        let oldest = backlog(&rig, "a").oldest.unwrap();
        assert!(rig.now().time.ms_since(oldest) < 1_000, "{oldest:?} after {ms} ms");
    }
    assert_eq!(backlog(&rig, "a").parked, 1);
}

#[test]
fn the_lateness_of_traced_timers_has_an_exemplar_in_each_bucket() {
    let mut rig = Rig::new(EngineOptions { park_after_ms: 60_000, ..EngineOptions::default() });
    let send = |rig: &mut Rig, due_in, headers: &[(&str, &str)]| {
        let headers = Headers::new(headers.iter().copied()).unwrap();
        let timer = Timer { headers, ..rig.timer("a", due_in) };
        rig.schedule(1, timer);
        rig.run(due_in + 40);
    };
    let traced = |trace: &str, flags| format!("00-{trace:0>32}-b7ad6b7169203331-{flags}");
    let of = |rig: &Rig| figures(rig).tallies.sent_after_of.buckets;
    rig.join(1, "a", 100);
    send(&mut rig, 50, &[]);
    send(&mut rig, 50, &[("traceparent", &traced("7", "00"))]);
    send(&mut rig, 50, &[("tenant", "acme")]);
    assert_eq!(of(&rig), [None; 17], "none is recorded");
    send(&mut rig, 50, &[("traceparent", &traced("7", "01"))]);
    send(&mut rig, 50, &[("traceparent", &traced("8", "01"))]);
    let [Some(latest), rest @ ..] = of(&rig) else { panic!("{:?}", of(&rig)) };
    assert_eq!((latest.trace, rest), (8, [None; 16]), "the latest in time");
    assert!(latest.ms <= 1 && latest.at < rig.now().time && latest.at.as_ms() + 45 > rig.now().time.as_ms());
    // Nobody takes it for a while.
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 0 });
    send(&mut rig, 50, &[("traceparent", &traced("9", "01"))]);
    rig.run(150);
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 100 });
    rig.run(10);
    let late = of(&rig)[7].expect("one between 100 and 250 ms");
    assert!((late.trace, of(&rig)[0]) == (9, Some(latest)) && (101..=250).contains(&late.ms), "{late:?}");
}

#[test]
fn retries_are_counted_by_tier_and_redeliveries_by_cause() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 0);
    let d = rig.deliver(1, t);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: String::new() });
    rig.run(110);
    assert_eq!(rig.take_deliveries().len(), 1);
    assert_eq!((caused(&rig, RedeliveryCause::Handler), caused(&rig, RedeliveryCause::Timeout)), (1, 0));
    rig.run(600);
    assert_eq!((caused(&rig, RedeliveryCause::Handler), caused(&rig, RedeliveryCause::Timeout)), (1, 1));
    assert_eq!(figures(&rig).tallies.retries[..3], [1, 1, 0]);
    // The third attempt is the last: that its connection is lost brings no redelivery.
    rig.run(200);
    rig.session(1, SessionEvent::Closed);
    rig.run(5);
    assert_eq!(caused(&rig, RedeliveryCause::ConnectionLost), 0);
    assert_eq!(figures(&rig).tallies.dead[DeadReason::Exhausted as usize], 1);
    rig.join(2, "a", 10);
    let t = rig.timer("a", 0);
    rig.deliver(2, t);
    rig.session(2, SessionEvent::Closed);
    rig.run(5);
    assert_eq!(caused(&rig, RedeliveryCause::ConnectionLost), 1);
}

#[test]
fn what_a_former_owner_may_have_sent_is_counted_as_taken_over() {
    let store = MemoryStore::new(1);
    let mut first = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    first.join(1, "a", 10);
    let t = first.timer("a", 0);
    first.deliver(1, t);
    let mut second = Rig::on(store, 2, first.ms, EngineOptions::default());
    second.join(1, "a", 10);
    second.run(10);
    assert_eq!(second.take_deliveries()[0].1.attempt, 2);
    assert_eq!(caused(&second, RedeliveryCause::Takeover), 1);
    assert_eq!(figures(&second).tallies.sent_after.count(), 0);
}

#[test]
fn dead_letters_and_refusals_are_counted_by_reason() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 0);
    let d = rig.deliver(1, t);
    rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    rig.run(5);
    let dead = figures(&rig).tallies.dead;
    let failed = DEAD_REASONS.iter().position(|(_, name)| *name == "failed").unwrap();
    assert_eq!((dead[failed], dead.iter().sum::<u64>()), (1, 1));
    let mut nowhere = rig.timer("a", 10);
    nowhere.id = TimerId::new(nowhere.due, Time::ZERO, PartitionId(7), 1);
    rig.schedule(1, nowhere);
    rig.run(1);
    let refusals = figures(&rig).tallies.refusals;
    let invalid = REFUSALS.iter().position(|name| *name == "invalid").unwrap();
    assert_eq!((refusals[invalid], refusals.iter().sum::<u64>()), (1, 1));
}

#[test]
fn a_backlog_follows_its_timers_into_the_park_and_back() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let (first, second, third) = (rig.timer("a", 50), rig.timer("a", 60), rig.timer("a", 60_000));
    let due = second.due;
    [first, second, third].into_iter().for_each(|timer| rig.schedule(1, timer));
    rig.run(5);
    let scheduled = Backlog { pending: 2, sessions: 1, ..Backlog::default() };
    assert_eq!(backlog(&rig, "a"), scheduled, "nothing is due, and the third is not in memory");
    rig.run(60);
    let waits = backlog(&rig, "a");
    assert_eq!((waits.in_flight, waits.waiting, waits.oldest), (1, 1, Some(due)), "{waits:?}");
    rig.run(350);
    let parked = backlog(&rig, "a");
    assert_eq!((parked.waiting, parked.parked, parked.oldest), (0, 1, Some(due)), "{parked:?}");
    let (_, d) = rig.take_deliveries().remove(0);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(60);
    let back = backlog(&rig, "a");
    assert_eq!((back.in_flight, back.parked, back.oldest), (1, 0, None), "{back:?}");
}

#[test]
fn what_waits_for_a_claim_is_waiting() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 100);
    let due = t.due;
    rig.schedule(1, t);
    rig.run(10);
    store.faults().hold(P);
    rig.run(200);
    let waits = backlog(&rig, "a");
    assert_eq!((waits.waiting, waits.in_flight, waits.oldest), (1, 0, Some(due)), "{waits:?}");
    store.faults().heal(P);
}

#[test]
fn only_the_destinations_with_the_most_are_named() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "none", 0);
    for (app, timers) in [("one", 1), ("three", 3), ("two", 2)] {
        for _ in 0..timers {
            let t = rig.timer(app, 1_000);
            rig.schedule(1, t);
        }
    }
    rig.run(5);
    let figures = rig.engine.figures(2);
    let named: Vec<_> = figures.top.iter().map(|(name, b)| (name.app(), b.pending)).collect();
    assert_eq!(named, [("three", 3), ("two", 2)]);
    assert_eq!((figures.others.0.pending, figures.others.0.sessions, figures.others.1), (1, 1, 2));
    assert_eq!(rig.engine.figures(0).others.0.pending, 6);
}

#[test]
fn a_destination_whose_timers_all_fail_is_named_though_nothing_of_it_is_pending() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "fails", 10);
    for _ in 0..3 {
        let t = rig.timer("fails", 1);
        let d = rig.deliver(1, t);
        rig.settle(1, &d, HandlerOutcome::Fail { error: "no".into() });
    }
    for _ in 0..2 {
        let t = rig.timer("waits", 1_000);
        rig.schedule(1, t);
    }
    rig.run(DEFER_MS);
    let named = rig.engine.figures(1).top;
    let named: Vec<_> = named.iter().map(|(name, b)| (name.app(), b.pending, b.failures)).collect();
    assert_eq!(named, [("fails", 0, 3)]);
}
