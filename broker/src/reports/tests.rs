use mtimer_store::MemoryStore;
use mtimer_types::{Bulk, BulkAction};

use super::*;

const NOW: Time = Time::from_ms(1_000_000);

fn dest(n: usize) -> Destination {
    Destination::new("shop", &format!("app{n}")).unwrap()
}

fn figures(tallies: Tallies, top: Vec<(Destination, Backlog)>) -> Figures {
    let (counters, others) = Default::default();
    let (partitions, memory, memory_budget) = (1, (0, 0), 0);
    let (unsettled, queued, put_off, paused) = (0, 0, 0, 0);
    let bulks = BTreeMap::new();
    Figures {
        tallies,
        counters,
        partitions,
        memory,
        memory_budget,
        unsettled,
        queued,
        put_off,
        paused,
        bulks,
        top,
        others,
    }
}

fn parked(sessions: u64, oldest_ms: u64) -> Backlog {
    let oldest = Some(Time::from_ms(1_000_000 - oldest_ms));
    Backlog { pending: 5, parked: 5, sessions, oldest, ..Backlog::default() }
}

fn states(reports: &[LogReport]) -> Vec<(Destination, DestinationHealth)> {
    let state = |report: &LogReport| match report {
        LogReport::Destination { dest, state, .. } => (dest.clone(), *state),
        other => panic!("{other:?}"),
    };
    reports.iter().map(state).collect()
}

#[test]
fn a_destination_has_a_line_when_its_state_changes() {
    let mut reporter = HealthReporter::default();
    let mut look =
        |top: Vec<(Destination, Backlog)>| states(&reporter.look(NOW, &figures(Tallies::default(), top)));
    assert_eq!(look(vec![(dest(1), Backlog { pending: 9, ..Backlog::default() })]), []);
    assert_eq!(look(vec![(dest(1), parked(0, 50))]), [(dest(1), DestinationHealth::Unserved)]);
    assert_eq!(look(vec![(dest(1), parked(0, 9_000))]), [], "nothing has changed");
    assert_eq!(look(vec![(dest(1), parked(1, 9_999))]), [(dest(1), DestinationHealth::Served)]);
    assert_eq!(look(vec![(dest(1), parked(1, 10_000))]), [(dest(1), DestinationHealth::Behind)]);
    let idle = Backlog { sessions: 1, oldest: Some(Time::ZERO), ..Backlog::default() };
    assert_eq!(look(vec![(dest(1), idle)]), [(dest(1), DestinationHealth::Served)]);
    let failed = |failures| vec![(dest(1), Backlog { failures, ..idle })];
    assert_eq!(look(failed(9)), []);
    assert_eq!(look(failed(10)), [(dest(1), DestinationHealth::Failing)]);
    assert_eq!(look(failed(11)), []);
    assert_eq!(look(failed(0)), [(dest(1), DestinationHealth::Served)]);
    assert_eq!(
        look(vec![(dest(1), parked(0, 1)), (dest(2), idle)]),
        [(dest(1), DestinationHealth::Unserved)]
    );
    assert_eq!(look(Vec::new()), [(dest(1), DestinationHealth::Served)]);
    assert_eq!(look(Vec::new()), []);
    let paused = Backlog { paused: 1, oldest: None, oldest_paused: Some(Time::ZERO), ..parked(0, 1) };
    assert_eq!(look(vec![(dest(1), paused)]), [(dest(1), DestinationHealth::Paused)], "nobody has to listen");
    assert_eq!(look(vec![(dest(1), parked(0, 1))]), [(dest(1), DestinationHealth::Unserved)]);
}

#[test]
fn what_limits_hold_back_for_long_is_said_and_failures_are_said_first() {
    let mut reporter = HealthReporter::default();
    let mut look = |backlog| {
        let reports = reporter.look(NOW, &figures(Tallies::default(), vec![(dest(1), backlog)]));
        states(&reports)
    };
    let limited = |ms, failures| Backlog {
        parked: 5,
        sessions: 1,
        failures,
        limited: 1,
        oldest_limited: Some(NOW - ms),
        ..Backlog::default()
    };
    assert_eq!(look(limited(BEHIND_MS - 1, 0)), []);
    assert_eq!(look(limited(BEHIND_MS, 0)), [(dest(1), DestinationHealth::Limited)]);
    assert_eq!(look(limited(BEHIND_MS, FAILURES)), [(dest(1), DestinationHealth::Failing)]);
    assert_eq!(look(limited(0, 0)), [(dest(1), DestinationHealth::Served)]);
}

#[test]
fn handlers_are_not_blamed_while_nothing_is_under_way() {
    assert!(DestinationHealth::why_behind(0).contains("see whether the store answers slowly"));
    assert!(DestinationHealth::why_behind(1).contains("its handlers take less"));
}

#[test]
fn failing_handlers_are_well_again_after_a_success_and_not_when_they_go_away() {
    let failed = |failures, sessions| vec![(dest(1), Backlog { failures, sessions, ..Backlog::default() })];
    let failing = || {
        let mut reporter = HealthReporter::default();
        let reports = reporter.look(NOW, &figures(Tallies::default(), failed(30, 1)));
        assert_eq!(states(&reports), [(dest(1), DestinationHealth::Failing)]);
        reporter
    };
    let served = vec![(dest(1), DestinationHealth::Served)];
    let cases = [
        ("an attempt has succeeded", failed(0, 1), served.clone()),
        ("some have failed since", failed(2, 1), served),
        ("the last session has ended", failed(30, 0), vec![]),
        ("nothing is left of the destination, or others have more", vec![], vec![]),
    ];
    for (what, top, expected) in cases {
        let mut reporter = failing();
        assert_eq!(states(&reporter.look(NOW, &figures(Tallies::default(), top))), expected, "{what}");
        assert!(reporter.troubled.is_empty(), "{what}");
    }
    let mut reporter = failing();
    let mut look = |top| states(&reporter.look(NOW, &figures(Tallies::default(), top)));
    assert_eq!(
        look(vec![(dest(1), Backlog { failures: 30, ..parked(0, 1) })]),
        [(dest(1), DestinationHealth::Unserved)]
    );
    assert_eq!(look(failed(30, 0)), [], "what was parked has been cancelled");
}

#[test]
fn many_destinations_have_a_few_lines() {
    let top = (0..100).map(|n| (dest(n), parked(0, 1))).collect();
    let reports = HealthReporter::default().look(NOW, &figures(Tallies::default(), top));
    assert_eq!((reports.len(), reports.last()), (MOST_LINES + 1, Some(&LogReport::MoreDestinations(80))));
    reports.iter().for_each(LogReport::log);
}

#[test]
fn what_was_counted_since_the_last_look_is_summed_up() {
    let mut tallies = Tallies::default();
    let mut reporter = HealthReporter::default();
    let mut look = |tallies: &Tallies| reporter.look(NOW, &figures(tallies.clone(), Vec::new()));
    assert_eq!(look(&tallies), []);
    let full = REFUSALS.iter().position(|name| *name == "store_full").unwrap();
    let taken = REFUSALS.iter().position(|name| *name == "key_taken").unwrap();
    (tallies.dead[1], tallies.refusals[full], tallies.refusals[taken]) = (3, 2, 7);
    tallies.redeliveries[RedeliveryCause::Timeout as usize] = 4;
    tallies.redeliveries[RedeliveryCause::Handler as usize] = 9;
    let expected = [
        LogReport::Died(vec![("failed", 3)]),
        LogReport::TimedOut(4),
        LogReport::Refused(vec![("store_full", 2)]),
    ];
    assert_eq!(look(&tallies), expected);
    assert_eq!(look(&tallies), [], "nothing since");
    tallies.dead = [1, 5, 0, 0];
    assert_eq!(look(&tallies), [LogReport::Died(vec![("exhausted", 1), ("failed", 2)])]);
    assert_eq!(listed(&[("exhausted", 1), ("failed", 2)]), "exhausted 1, failed 2");
}

#[test]
fn what_became_of_partitions_is_summed_up() {
    let mut reporter = HealthReporter::default();
    assert_eq!(reporter.partitions(0, [0, 0, 0, 3]), [], "given up in good order");
    let lost = LogReport::Lost(vec![("fenced", 2), ("rolled_back", 1)]);
    assert_eq!(reporter.partitions(7, [2, 1, 0, 3]), [LogReport::Replayed(7), lost]);
    assert_eq!(reporter.partitions(7, [2, 1, 0, 9]), []);
}

#[test]
fn what_is_wrong_is_told_in_numbers_until_it_is_well_again() {
    let mut reporter = HealthReporter::default();
    let mut tallies = Tallies::default();
    let mut look = |tallies: &Tallies, top, doubtful| {
        let figures = Figures { memory_budget: 9, ..figures(tallies.clone(), top) };
        reporter.look(NOW, &figures);
        let troubles = reporter.troubles(NOW, &figures, doubtful).into_iter();
        troubles.take(7).map(|(_, n)| n).collect::<Vec<_>>()
    };
    tallies.redeliveries[RedeliveryCause::Timeout as usize] = 6;
    let top = vec![(dest(1), parked(0, 1)), (dest(2), parked(0, 1)), (dest(3), parked(1, 60_000))];
    let failing = Backlog { failures: 10, ..parked(1, 1) };
    let top = [top, vec![(dest(4), failing)]].concat();
    assert_eq!(look(&tallies, top, 4), [1, 2, 1, 6, 0, 4, 9]);
    assert_eq!(look(&tallies, Vec::new(), 4), [0, 0, 0, 0, 0, 0, 9]);
}

#[test]
fn refusals_by_the_store_are_told_until_there_are_none() {
    let mut reporter = HealthReporter::default();
    let mut tallies = Tallies::default();
    let mut told = |tallies: &Tallies| {
        let figures = figures(tallies.clone(), Vec::new());
        reporter.look(NOW, &figures);
        let troubles = reporter.troubles(NOW, &figures, 0);
        troubles.into_iter().filter(|(name, n)| name.starts_with("refused_") && *n > 0).collect::<Vec<_>>()
    };
    for (reason, n) in [("store_full", 2), ("invalid", 7)] {
        tallies.refusals[REFUSALS.iter().position(|name| *name == reason).unwrap()] = n;
    }
    assert_eq!(told(&tallies), [("refused_store_full_lately", 2)], "a client's mistake is its own");
    assert_eq!(told(&tallies), []);
}

#[test]
fn a_store_is_slow_if_many_calls_that_somebody_waits_for_are() {
    assert!(BUCKETS_MS.contains(&SLOW_MS));
    let mut reporter = HealthReporter::default();
    let [mut apply, mut load, mut census] = [Durations::default(); 3];
    let mut look = |apply, load, census| {
        let report = reporter.store(&[("apply", apply), ("load", load), ("census", census)]);
        let slow = ("store_slow_lately", reporter.slow);
        assert!(reporter.troubles(NOW, &figures(Tallies::default(), Vec::new()), 0).contains(&slow));
        report
    };
    let add = |took: &mut Durations, n, ms| (0..n).for_each(|_| took.add_ms(ms));
    add(&mut apply, 100, SLOW_MS);
    add(&mut census, 100, 60_000);
    assert_eq!(look(apply, load, census), None, "nobody waits for a census");
    add(&mut apply, 2, SLOW_MS + 1);
    add(&mut load, 3, 5_000);
    add(&mut load, 45, 1);
    assert_eq!(look(apply, load, census), Some(LogReport::SlowStore { slow: 5, calls: 50 }));
    assert_eq!(look(apply, load, census), None, "nothing since");
    add(&mut apply, 4, 5_000);
    assert_eq!(look(apply, load, census), None, "a few");
    add(&mut apply, 6, 5_000);
    add(&mut apply, 55, 1);
    assert_eq!(look(apply, load, census), None, "a few of many");
}

#[test]
fn every_refusal_that_is_reported_is_counted() {
    assert!(REFUSED_BY_STORE.iter().all(|(reason, _)| WRONG.contains(reason)));
    assert!(WRONG.iter().all(|name| REFUSALS.contains(name)));
}

#[tokio::test(start_paused = true)]
async fn it_looks_every_ten_seconds_and_ends_with_the_engine() {
    let (control, mut asked) = mpsc::channel(1);
    let began = Instant::now();
    let limiter = Arc::new(Limiter::new(BTreeMap::new(), 0, Arc::default()));
    let task = tokio::spawn(run(control, limiter, Arc::default(), Arc::new(MemoryStore::new(1))));
    for n in 1..=2 {
        let Some(Control::Observe(DESTINATIONS, to)) = asked.recv().await else { panic!("no look") };
        assert_eq!(began.elapsed(), EVERY * n);
        let observed = crate::observed::Observed {
            now: NOW,
            engine: figures(Tallies::default(), Vec::new()),
            lanes: Default::default(),
            assigned: 1,
            is_reached: true,
            still_ms: 0,
            lost_brokers: 0,
            unreachable: 0,
            sessions: 0,
            events: 0,
            unready: Vec::new(),
        };
        to.send(observed).unwrap();
    }
    drop(asked);
    assert!(task.await.unwrap().is_ok());
}

#[test]
fn a_bulk_job_has_a_line_when_it_begins_and_one_when_it_ends() {
    let mut reporter = HealthReporter::default();
    let figure = |under_way, ended: Option<u64>| BulkFigure {
        bulk: Bulk::new(BulkAction::Cancel, Filter::default()),
        under_way,
        ended: ended.map(Time::from_ms),
        is_stopped: false,
    };
    let mut look = |at, bulks: &[(u128, BulkFigure)]| {
        let bulks = bulks.iter().map(|(id, figure)| (BulkId(*id), figure.clone())).collect();
        let reports =
            reporter.look(Time::from_ms(at), &Figures { bulks, ..figures(Tallies::default(), vec![]) });
        let ids = reports.into_iter().map(|report| match report {
            LogReport::Bulk { id, figure } => (id.0, figure.under_way),
            other => panic!("{other:?}"),
        });
        ids.collect::<Vec<_>>()
    };
    assert_eq!(look(20_000, &[(1, figure(0, Some(19_999)))]), [], "it was over before this broker");
    assert_eq!(look(30_000, &[(1, figure(0, Some(19_999))), (2, figure(8, None))]), [(2, 8)]);
    assert_eq!(look(40_000, &[(2, figure(3, Some(39_000)))]), []);
    assert_eq!(look(50_000, &[(2, figure(0, Some(45_000)))]), [(2, 0)]);
    assert_eq!(look(60_000, &[(2, figure(0, Some(45_000))), (3, figure(0, Some(55_000)))]), [(3, 0)]);
    assert_eq!(look(70_000, &[(2, figure(0, Some(45_000))), (3, figure(0, Some(55_000)))]), []);
}
