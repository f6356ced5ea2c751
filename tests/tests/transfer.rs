//! Timers move to another cluster, of another store and another number of partitions, and back:
//! each arrives as it was, under its new id, and nothing is delivered before the release.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{
    Bulk, BulkAction, Callback, Client, DeadFilter, Destination, DestinationFilter, Filter, ImportId, Key,
    Mode, Outcome, Registration, Schedule, Time, TimerId, TimerState,
};
use mtimer_tests::{Broker, Launch, Server, long, mtimer, wait_for, without_settings};
use serde_json::Value;

/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Longer than the test takes: what waits for a retry, or is being delivered, stays so.
const LONG: &str = "2h";
/// Timers of each state but pending.
const FEW: u64 = 60;
const APPS: [&str; 7] = ["far", "again", "dead", "park", "lost", "taken", "flying"];

/// Timers that are far from due.
fn far() -> u64 {
    if long() { 1_000_000 } else { 4_000 }
}

fn dest(app: &str) -> Destination {
    Destination::new("transfer", app).unwrap()
}

/// A timer as it is to arrive: all that is shown of it but its id.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    dest: Destination,
    key: Option<Key>,
    due: Time,
    mode: Mode,
    deadline: Option<Time>,
    headers: Vec<(String, String)>,
    payload: Vec<u8>,
    failed: u32,
    budget_from: u32,
    last_error: Option<String>,
    /// Where it is, and the times that belong to that.
    at: String,
}

type All = BTreeMap<TimerId, Seen>;

/// All timers of a cluster. What is being delivered will be pending, or unconfirmed if it is
/// delivered once at most; what nobody takes may be parked or on its way there.
async fn all(client: &Client) -> All {
    let mut seen = All::new();
    let mut waiting = client.list(Filter::default()).with_payloads().page(u32::MAX);
    while let Some(row) = waiting.next().await.unwrap() {
        let view = row.view;
        let at = match view.state {
            TimerState::Retrying { fire, tier } => format!("retrying at {fire:?} in tier {tier}"),
            TimerState::Pending { .. } | TimerState::Parked | TimerState::InFlight { .. } => {
                format!("live, fires at {:?}", row.fire.max(view.timer.due))
            }
            other => panic!("{other:?} in the list of those that wait"),
        };
        // Nobody knows the outcome of what is being delivered: that attempt has failed, but does
        // not count for the retries.
        let begun = view.rest.tried - view.failed;
        let unknown = "exported while this attempt was under way: its outcome is not known".to_owned();
        let last_error = if begun > 0 { Some(unknown) } else { view.last_error };
        let (failed, budget_from) = (view.failed + begun, view.rest.budget_from + begun);
        let one = of(&view.timer, failed, budget_from, last_error, at);
        seen.insert(view.timer.id, one);
    }
    for dest in client.destinations(DestinationFilter::default()).await.unwrap().rows {
        for view in client.parked(&dest.dest).all().await.unwrap() {
            let at = format!("live, fires at {:?}", view.timer.due);
            let one = of(&view.timer, view.failed, view.rest.budget_from, view.last_error, at);
            seen.insert(view.timer.id, one);
        }
    }
    for view in client.taken().all().await.unwrap() {
        let one = of(&view.timer, view.failed, view.rest.budget_from, view.last_error, "unconfirmed".into());
        seen.insert(view.timer.id, one);
    }
    for row in client.unconfirmed().all().await.unwrap() {
        let one = of(&row.timer, row.failed, row.rest.budget_from, row.last_error, "unconfirmed".into());
        seen.insert(row.timer.id, one);
    }
    for row in client.dead(DeadFilter::default()).all().await.unwrap() {
        let at = format!("dead for {:?} at {:?}", row.reason, row.died);
        let one = of(&row.timer, row.attempts, row.rest.budget_from, row.last_error, at);
        seen.insert(row.timer.id, one);
    }
    seen
}

fn of(
    timer: &mtimer_client::Timer,
    failed: u32,
    budget_from: u32,
    last_error: Option<String>,
    at: String,
) -> Seen {
    let headers = timer.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    Seen {
        dest: timer.dest.clone(),
        key: timer.key.clone(),
        due: timer.due,
        mode: timer.mode,
        deadline: timer.deadline,
        headers: headers.collect(),
        payload: timer.payload.to_vec(),
        failed,
        budget_from,
        last_error,
        at,
    }
}

/// Runs `mtimer` and returns the object that it prints.
fn run(broker: &Broker, args: &[&str]) -> Value {
    let mut command = Command::new(mtimer());
    let output = without_settings(&mut command)
        .args(args)
        .args(["--json", "--broker", &broker.address()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
}

/// Schedules in large calls.
async fn schedule(client: &Client, schedules: impl Iterator<Item = Schedule>) {
    let mut schedules = schedules.peekable();
    while schedules.peek().is_some() {
        let some: Vec<_> = schedules.by_ref().take(2_000).collect();
        client.schedule_all(some).await.into_iter().for_each(|result| _ = result.unwrap());
    }
}

/// Makes timers of every state. Returns what keeps some of them in flight.
async fn fill(broker: &Broker) -> (Client, Vec<Registration>) {
    let client = broker.client().await;
    let now = client.now();
    let later = (0..far()).map(|n| {
        let due = now + 3_600_000 + n * 1_000;
        let schedule = Schedule::at(dest("far"), due).payload(vec![n as u8, 0xff, (n >> 8) as u8]);
        let schedule = match n % 3 {
            0 => schedule.key(Key::new(&format!("key-{n}")).unwrap()),
            1 => schedule.header("tenant", format!("t{n}")).deadline(due + 5_000),
            _ => schedule.mode(Mode::AtMostOnce),
        };
        schedule.payload(format!("payload {n}"))
    });
    schedule(&client, later).await;
    let soon = |app: &'static str, mode| {
        let one = move |n| {
            let schedule = Schedule::at(dest(app), now).mode(mode).payload(format!("{app} {n}"));
            schedule.key(Key::new(&format!("{app}-{n}")).unwrap())
        };
        (0..FEW).map(one)
    };
    let once = Mode::AtMostOnce;
    // Who takes these goes away in the middle.
    let losing = broker.client().await;
    let lost = losing.register(dest("lost")).concurrency(1_000);
    let lost = lost.on(|_| std::future::pending::<Outcome>()).unwrap();
    schedule(&client, soon("lost", once)).await;
    wait_for("all of lost are delivered", TIMEOUT, async || losing.stats().received == FEW).await;
    drop((lost, losing));
    let register = |app| client.register(dest(app)).concurrency(1_000);
    let kept = vec![
        register("again").on(|_| async { Outcome::retry("later") }).unwrap(),
        register("dead").on(|_| async { Outcome::fail("never") }).unwrap(),
        register("taken").on(|_| std::future::pending::<Outcome>()).unwrap(),
        register("flying").on(|_| std::future::pending::<Outcome>()).unwrap(),
    ];
    schedule(&client, soon("again", Mode::AtLeastOnce)).await;
    schedule(&client, soon("dead", Mode::AtLeastOnce)).await;
    schedule(&client, soon("park", Mode::AtLeastOnce)).await;
    schedule(&client, soon("taken", once)).await;
    schedule(&client, soon("flying", Mode::AtLeastOnce)).await;
    let settled = async || {
        let rows = client.destinations(DestinationFilter::default()).await.unwrap().rows;
        let of = |app: &str| rows.iter().find(|row| row.dest == dest(app)).cloned();
        let is = |app: &str, count: fn(&mtimer_client::DestinationCounts) -> u64| {
            of(app).is_some_and(|row| count(&row) == FEW)
        };
        is("again", |row| row.retrying)
            && is("dead", |row| row.dead)
            && is("park", |row| row.parked)
            && is("lost", |row| row.unconfirmed)
            && is("taken", |row| row.in_flight)
            && is("flying", |row| row.in_flight)
    };
    wait_for("every timer is where it is to be", TIMEOUT, settled).await;
    (client, kept)
}

/// How a release goes.
#[derive(Clone, Copy)]
enum Release {
    /// By the command.
    Plain,
    /// Its broker dies in the middle of it, when what is past due has been parked.
    BrokerDies,
}

/// Imports an export, looks that nothing is delivered, releases it, and returns the new ids.
async fn import(
    to: &mut Broker,
    (file, flags): (&Path, &[&str]),
    expected: usize,
    how: Release,
) -> HashMap<TimerId, TimerId> {
    let map = file.with_extension("map");
    let (file, map) = (file.to_str().unwrap(), map.to_str().unwrap());
    let client = to.client().await;
    let delivered = Arc::new(AtomicU64::new(0));
    let handlers: Vec<_> = APPS
        .map(|app| {
            let delivered = Arc::clone(&delivered);
            let count = move |_| {
                delivered.fetch_add(1, Ordering::Relaxed);
                std::future::ready(Outcome::ok())
            };
            client.register(dest(app)).on(count).unwrap()
        })
        .into();
    let imported = run(to, &[&["import", file, "--map", map], flags].concat());
    let id = imported["import"].as_str().unwrap().to_owned();
    assert_eq!((&imported["staged"], &imported["refused"]), (&expected.into(), &0.into()), "{imported}");
    let again = run(to, &[&["import", file, "--id", &id], flags].concat());
    assert_eq!((&again["staged"], &again["already"]), (&0.into(), &expected.into()), "{again}");
    let counts = run(to, &["count"]);
    assert_eq!((&counts["staged"], &counts["pending"]), (&expected.into(), &0.into()), "{counts}");
    deliver_others(&client).await;
    assert_eq!(delivered.load(Ordering::Relaxed), 0, "delivered before the release");
    for handler in handlers {
        handler.stop().await;
    }
    match how {
        Release::Plain => {
            let job = run(to, &["bulk", "release", &id, "--yes"]);
            assert_eq!((&job["done"], &job["not_done"]), (&expected.into(), &0.into()), "{job}");
        }
        Release::BrokerDies => release_through_death(to, id.parse().unwrap(), expected as u64).await,
    }
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let id = |name: &str| line[name].as_str().unwrap().parse::<TimerId>().unwrap();
        (id("old"), id("new"))
    };
    std::fs::read_to_string(map).unwrap().lines().map(line).collect()
}

/// Has other timers delivered that come due after what is staged, and so many that every partition
/// has some.
async fn deliver_others(client: &Client) {
    let delivered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&delivered);
    let count = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Outcome::ok())
    };
    let handler = client.register(dest("others")).on(count).unwrap();
    let others = 20 * u64::from(client.info().partitions);
    let due = client.now() + 500;
    schedule(client, (0..others).map(|_| Schedule::at(dest("others"), due))).await;
    wait_for("others are delivered", TIMEOUT, async || delivered.load(Ordering::Relaxed) >= others).await;
    handler.stop().await;
}

/// Releases an import, and kills the broker when half of it is done.
async fn release_through_death(to: &mut Broker, import: ImportId, expected: u64) {
    let client = to.client().await;
    let bulk =
        Bulk { rate: expected as u32 / 4, ..Bulk::new(BulkAction::Release { import }, Filter::default()) };
    let job = client.begin_bulk(bulk).await.unwrap();
    wait_for("what nobody takes is parked", TIMEOUT, async || parked(&client).await == 2 * FEW).await;
    let half = async || client.bulk(job).await.unwrap().is_some_and(|job| job.done > expected / 2);
    wait_for("half of the release", TIMEOUT, half).await;
    assert!(
        !client.bulk(job).await.unwrap().unwrap().has_ended(),
        "the death comes too late to show anything"
    );
    to.kill();
    to.restart();
    let client = to.client().await;
    let ended = async || matches!(client.bulk(job).await, Ok(Some(job)) if job.has_ended());
    wait_for("the end of the release", TIMEOUT, ended).await;
    let job = client.bulk(job).await.unwrap().unwrap();
    assert_eq!((job.done, job.not_done), (expected, 0));
}

async fn parked(client: &Client) -> u64 {
    let rows = client.destinations(DestinationFilter::default()).await.unwrap().rows;
    rows.iter().map(|row| row.parked).sum()
}

/// Has what is far from due delivered now: each of it once.
async fn deliver(client: &Client) {
    let counts: Arc<Mutex<HashMap<TimerId, u32>>> = Arc::default();
    let noting = counts.clone();
    let note = move |callback: Callback| {
        *noting.lock().unwrap().entry(callback.id).or_default() += 1;
        std::future::ready(Outcome::ok())
    };
    let _handler = client.register(dest("far")).concurrency(1_000).on(note).unwrap();
    let due = client.now() + 1_000;
    client.begin_bulk(Bulk::new(BulkAction::MoveTo { due }, dest("far"))).await.unwrap();
    let all = async || counts.lock().unwrap().len() as u64 == far();
    wait_for("all are delivered", TIMEOUT, all).await;
    let gone = async || {
        let rows = client.destinations(DestinationFilter::default()).await.unwrap().rows;
        rows.iter().all(|row| row.dest != dest("far"))
    };
    wait_for("all have ended", TIMEOUT, gone).await;
    assert!(counts.lock().unwrap().values().all(|n| *n == 1), "delivered twice");
}

fn compare(before: &All, after: &All, ids: &HashMap<TimerId, TimerId>) {
    assert_eq!((before.len(), ids.len(), after.len()), (before.len(), before.len(), before.len()));
    for (old, seen) in before {
        let new = ids[old];
        assert_eq!(Some(seen), after.get(&new), "{old}, now {new}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_embedded_to_redis_with_more_partitions_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Server::start();
    let path = |name: &str| folder.path().join(name);
    let settings = |launch: Launch, partitions: &str| {
        launch.flags(["--partitions", partitions, "--retry", LONG, "--callback-timeout", LONG]).start()
    };
    let mut from = settings(Launch::embedded(&path("from")), "8");
    let mut through = settings(Launch::redis(&redis.url()), "128");
    let mut back = settings(Launch::embedded(&path("back")), "8");

    let (client, kept) = fill(&from).await;
    let before = all(&client).await;
    assert_eq!(before.len() as u64, far() + 6 * FEW);
    let first = path("first.ndjson");
    let exported = run(&from, &["export", "--out", first.to_str().unwrap()]);
    assert_eq!(exported["timers"], before.len(), "{exported}");
    assert_eq!(exported["consistent"], false, "some are in flight: {exported}");
    drop((kept, client));
    assert!(from.terminate(TIMEOUT).success());

    let inconsistent: &[&str] = &["--inconsistent"];
    let ids = import(&mut through, (&first, inconsistent), before.len(), Release::BrokerDies).await;
    let client = through.client().await;
    let there = all(&client).await;
    compare(&before, &there, &ids);

    assert_eq!(parked(&client).await, 2 * FEW);
    let second = path("second.ndjson");
    let exported = run(&through, &["export", "--out", second.to_str().unwrap(), "--require-consistent"]);
    assert_eq!(exported["consistent"], true, "{exported}");
    let checked = run(&through, &["export", "--check", second.to_str().unwrap()]);
    assert_eq!(checked["consistent"], true, "{checked}");
    let ids = import(&mut back, (&second, &[]), before.len(), Release::Plain).await;
    let client = back.client().await;
    compare(&there, &all(&client).await, &ids);
    deliver(&client).await;
}
