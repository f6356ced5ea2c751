//! Counts by destination.

use mtimer_protocol::sample::{all_counts, all_forecast};
use mtimer_protocol::{CountsQuery, DestinationCounts, ForecastQuery, encode};
use mtimer_store::CountsRange;
use mtimer_types::{DueSpan, Filter, limits};

use super::*;

const HOUR: u64 = 3_600_000;

fn ask(rig: &mut Rig, query: CountsQuery) -> QueryAnswer {
    rig.sent.clear();
    rig.session(1, SessionEvent::Query { corr: 7, query: Query::Counts(query) });
    rig.turn();
    let answer = |(_, message)| match message {
        ServerMessage::Answer { corr: 7, answer } => Some(answer),
        _ => None,
    };
    rig.sent.drain(..).find_map(answer).unwrap()
}

/// Asks for a page, and where it goes on. Everything is counted.
fn page(rig: &mut Rig, query: CountsQuery) -> (Vec<DestinationCounts>, Option<Destination>) {
    match ask(rig, query) {
        QueryAnswer::Counts { rows, next, uncounted: 0 } => (rows, next),
        other => panic!("{other:?}"),
    }
}

/// The counts of all destinations.
fn all(rig: &mut Rig) -> Vec<DestinationCounts> {
    let (rows, next) = page(rig, all_counts(0));
    assert_eq!(next, None);
    rows
}

fn none(app: &str) -> DestinationCounts {
    DestinationCounts::none(dest(app))
}

#[test]
fn pages_lead_through_the_destinations_that_were_asked_for() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    for app in ["c", "b", "a", "b"] {
        let timer = rig.timer(app, 60_000);
        rig.schedule(1, timer);
    }
    rig.run(5);
    let row = |app, pending| DestinationCounts { pending, ..none(app) };
    assert_eq!(all(&mut rig), [row("a", 1), row("b", 2), row("c", 1)]);
    let first = CountsQuery { limit: 2, ..all_counts(0) };
    assert_eq!(page(&mut rig, first.clone()), (vec![row("a", 1), row("b", 2)], Some(dest("b"))));
    let second = CountsQuery { after: Some(dest("b")), ..first };
    assert_eq!(page(&mut rig, second), (vec![row("c", 1)], None));
    let app = CountsQuery { app: Some("b".into()), ..all_counts(0) };
    assert_eq!(page(&mut rig, app), (vec![row("b", 2)], None));
    let group = CountsQuery { group: Some("elsewhere".into()), ..all_counts(0) };
    assert_eq!(page(&mut rig, group), (vec![], None));
}

#[test]
fn the_store_is_asked_for_what_the_client_asks_and_for_no_more_rows_than_a_page_has() {
    for (limit, rows) in [(0, 1), (7, 7), (u32::MAX, limits::MAX_PAGE)] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        let (group, app, after) = (Some("g".to_owned()), Some("a".to_owned()), Some(dest("b")));
        let filter = Filter { group: group.clone(), app: app.clone(), ..Filter::default() };
        let range = CountsRange { filter, after: after.clone(), limit: rows };
        let query = CountsQuery { partition: 0, group, app, after, limit };
        rig.session(1, SessionEvent::Query { corr: 7, query: Query::Counts(query) });
        let (now, mut effects) = (rig.now(), Vec::new());
        rig.engine.flush(now, &mut effects);
        let asked = effects.into_iter().find_map(|effect| match effect {
            Effect::Call(P, Call::Counts(range)) => Some(range),
            _ => None,
        });
        assert_eq!(asked, Some(range));
    }
}

#[test]
fn the_largest_page_fits_a_frame() {
    let name = "n".repeat(limits::MAX_NAME_BYTES);
    let dest = Destination::new(&name, &name).unwrap();
    let most = DestinationCounts {
        pending: u64::MAX,
        retrying: u64::MAX,
        parked: u64::MAX,
        in_flight: u64::MAX,
        taken: u64::MAX,
        unconfirmed: u64::MAX,
        dead: u64::MAX,
        oldest_overdue: Some(Time::MAX),
        ..DestinationCounts::none(dest.clone())
    };
    let rows = vec![most; limits::MAX_PAGE as usize];
    let answer = QueryAnswer::Counts { rows, next: Some(dest), uncounted: u64::MAX };
    let body = encode(&ServerMessage::Answer { corr: u64::MAX, answer }).unwrap();
    assert!(body.len() <= limits::MAX_FRAME, "{} bytes", body.len());
}

#[test]
fn a_forecast_is_the_stores() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timers: Vec<_> = (0..5).map(|n| rig.timer("a", HOUR + n)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    let answer = |rig: &mut Rig, query: ForecastQuery| {
        rig.sent.clear();
        rig.session(1, SessionEvent::Query { corr: 9, query: Query::Forecast(query) });
        rig.turn();
        let answer = rig.sent.drain(..).find_map(|(_, message)| match message {
            ServerMessage::Answer { corr: 9, answer } => Some(answer),
            _ => None,
        });
        answer.unwrap()
    };
    let begin = Time::from_ms(timers[0].due.as_ms() / HOUR * HOUR);
    let spans = vec![DueSpan { begin, end: begin + HOUR, timers: 5 }];
    let hourly = ForecastQuery { step_ms: HOUR, ..all_forecast(0) };
    let expected = QueryAnswer::Forecast { spans, next: None, uncounted: 0 };
    assert_eq!(answer(&mut rig, hourly.clone()), expected);
    let nowhere = answer(&mut rig, ForecastQuery { partition: u16::MAX, ..hourly });
    assert!(matches!(nowhere, QueryAnswer::Failed { code: ErrorCode::Invalid, .. }), "{nowhere:?}");
}

#[test]
fn the_oldest_that_waits_or_is_parked_is_told() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timers: Vec<_> = (1..=3).map(|n| rig.timer("a", n * 10)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    let absent = rig.timer("nobody", 5);
    rig.schedule(1, absent.clone());
    rig.run(1);
    let oldest = |rig: &mut Rig| all(rig).into_iter().map(|row| row.oldest_overdue).collect::<Vec<_>>();
    assert_eq!(oldest(&mut rig), [None, None], "nothing is due");
    rig.run(100);
    assert_eq!(oldest(&mut rig), [Some(timers[1].due), Some(absent.due)], "one is being delivered");
}

#[test]
fn a_delivery_is_in_flight_until_its_outcome_comes_and_pending_until_that_is_stored() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let patient = |timer| Timer { callback_timeout_ms: Some(600_000), ..timer };
    let (timer, other) = (patient(rig.timer("a", 0)), patient(rig.timer("a", 0)));
    let d = rig.deliver(1, timer);
    let _unsettled = rig.deliver(1, other);
    let far = rig.timer("b", 60_000);
    rig.schedule(1, far);
    rig.run(5);
    let b = DestinationCounts { pending: 1, ..none("b") };
    let a = |pending, retrying, in_flight| DestinationCounts { pending, retrying, in_flight, ..none("a") };
    assert_eq!(all(&mut rig), [a(2, 0, 2), b.clone()]);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(2_000), error: "no".into() });
    rig.run(5);
    assert_eq!(all(&mut rig), [a(1, 1, 1), b.clone()]);
    rig.run(2_000);
    assert_eq!(all(&mut rig), [a(1, 1, 2), b.clone()]);
    // A handler that has not begun gives its delivery back, and gets it anew.
    rig.settle(1, &Delivery { attempt: 2, ..d.clone() }, HandlerOutcome::NotBegun);
    rig.run(5);
    assert_eq!(all(&mut rig), [a(1, 1, 2), b.clone()]);
    rig.settle(1, &Delivery { attempt: 2, ..d }, HandlerOutcome::Ok);
    rig.run(100);
    assert_eq!(all(&mut rig), [a(1, 0, 1), b.clone()]);
    // The session goes, and with it the delivery.
    rig.session(1, SessionEvent::Closed);
    rig.run(5);
    rig.session(1, SessionEvent::Opened { client: 1 });
    assert_eq!(all(&mut rig), [a(0, 1, 0), b]);
}

#[test]
fn a_partition_that_does_not_exist_is_invalid() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let QueryAnswer::Failed { code: ErrorCode::Invalid, message } = ask(&mut rig, all_counts(1)) else {
        panic!("it is answered")
    };
    assert!(message.contains("no partition 1"), "{message}");
}
