//! One destination with very many overdue timers that nobody takes, beside a busy one: the busy one
//! is served as ever, memory stays within its budget, a restart does not load them, and in the end
//! each is delivered once.
//!
//! `MTIMER_LONG=1` runs a million of them.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mtimer_client::{Callback, Client, Destination, Outcome, Schedule, Time};
use mtimer_tests::{
    Broker, Launch, Server, ServerOptions, Spread, drain, host_ms, long, rss_kib, serial_of, wait_for,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// The broker's budget for timers in memory.
const BUDGET: u64 = 8 * 1024 * 1024;
/// What may come on top of it: one batch of each partition, a sixteenth of the budget together.
const ONE_BATCH: u64 = BUDGET / 16;
/// Memory of the process beyond what it had empty: the budget, the store's own caches, and what is
/// on its way to and from the store.
const RSS_MORE_KIB: u64 = 192 * 1024;
/// Timers in memory right after a start, at most, of so many more: a load or two of each partition.
const LOADED: u64 = 20_000;
/// Timers that one call schedules.
const CHUNK: u64 = 5_000;
/// Timers of the busy destination in one round, and over how long they are spread.
const BUSY: u64 = 2_000;
const BUSY_MS: u64 = 4_000;
/// How far ahead they are due, ms: the wait for the answer to a schedule is no lateness.
const AHEAD_MS: u64 = 2_500;
/// How long things may take that have no bound in the contract.
const TIMEOUT: Duration = Duration::from_secs(500);
/// A destination of which one timer in a hundred is later than this is starved, ms.
const STARVED_MS: u64 = 5_000;
/// The same while both processors are busy with another's flood.
const STARVED_IN_FLOOD_MS: u64 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_without_clients_disturbs_nobody_on_the_embedded_store() {
    let folder = TempDir::with_prefix("mtimer-stuck-").unwrap();
    run("embedded", Launch::embedded(folder.path()).flags(["--durability", "embedded-fast"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_without_clients_disturbs_nobody_on_redis() {
    let redis = Server::start_with(ServerOptions::default());
    run("redis", Launch::redis(&redis.url())).await;
}

async fn run(store: &str, launch: Launch) {
    let stuck = if long() { 1_000_000 } else { 50_000 };
    let budget = BUDGET.to_string();
    let mut broker = launch.flags(["--partitions", "4", "--memory", &budget]).start();
    let client = broker.client().await;
    let empty = rss_kib(broker.pid());
    let without = busy(&client, "before").await;
    println!("{store}: the busy destination alone: {without}");

    let watch = Watch::start(&broker, &client);
    let began = Instant::now();
    let producer = broker.client().await;
    let with = busy_while(&client, "while they come", schedule_stuck(&producer, stuck)).await;
    producer.close().await.unwrap();
    println!("{store}: beside {stuck} timers that are scheduled overdue: {with}");
    assert!(with.at(0.99) < STARVED_IN_FLOOD_MS, "starved: {with}");
    wait_for("parking", TIMEOUT, async || client.status().await.is_ok_and(|s| s.parked == stuck)).await;
    println!("{store}: all of them are parked after {:?}", began.elapsed());
    watch.end(empty).await;
    let watch = Watch::start(&broker, &client);
    let with = busy(&client, "while they are parked").await;
    println!("{store}: beside {stuck} parked timers: {with}");
    assert!(with.at(0.99) < STARVED_MS, "starved: {with}");
    watch.end(empty).await;
    // Closing waits until the outcomes of the busy round are stored: a kill before that would bring
    // its last timers a second time, as it may.
    client.close().await.unwrap();

    let began = Instant::now();
    broker.kill();
    broker.restart();
    let client = broker.client().await;
    let status = client.status().await.unwrap();
    println!("{store}: started again within {:?}, {} timers loaded", began.elapsed(), status.loaded);
    assert!(status.loaded < LOADED.min(stuck / 2), "{status:?}");
    assert_eq!(status.parked, stuck, "{status:?}");
    let with = busy(&client, "after the restart").await;
    println!("{store}: after the restart: {with}");
    assert!(with.at(0.99) < STARVED_MS, "starved: {with}");

    let watch = Watch::start(&broker, &client);
    let began = Instant::now();
    let seen = take_all(&client, stuck).await;
    println!("{store}: all of them are delivered within {:?}", began.elapsed());
    watch.end(empty).await;
    let seen = seen.lock().unwrap();
    assert!(
        seen.wrong.is_empty(),
        "{} wrong deliveries: {:?}",
        seen.wrong.len(),
        &seen.wrong[..3.min(seen.wrong.len())]
    );
}

fn dest(app: &str) -> Destination {
    Destination::new("stuck", app).unwrap()
}

/// Schedules timers that are overdue and that nobody takes.
async fn schedule_stuck(client: &Client, stuck: u64) {
    for first in (0..stuck).step_by(CHUNK as usize) {
        let due = Time::from_ms(host_ms() - 60_000);
        let one = |serial| Schedule::at(dest("nobody"), due).payload(format!("{serial}:{:100}", ""));
        let answers = client.schedule_all((first..(first + CHUNK).min(stuck)).map(one).collect()).await;
        answers.into_iter().for_each(|answer| assert!(answer.unwrap().new));
    }
}

/// A round of the busy destination: every timer comes, once, and not early. Returns how late they
/// were.
async fn busy(client: &Client, what: &str) -> Spread {
    busy_while(client, what, async {}).await
}

/// Rounds of the busy destination until something else is done, one at least.
async fn busy_while(client: &Client, what: &str, other: impl Future<Output = ()>) -> Spread {
    let late = Arc::new(Mutex::new(Vec::new()));
    let done = CancellationToken::new();
    let registration = {
        let late = Arc::clone(&late);
        let take = move |callback: Callback| {
            let (now, due) = (host_ms(), callback.due.as_ms());
            late.lock().unwrap().push((callback.id, now as i64 - due as i64));
            async { Outcome::ok() }
        };
        client.on(dest("busy"), take).unwrap()
    };
    let rounds = async {
        let mut scheduled = 0;
        while !done.is_cancelled() || scheduled == 0 {
            let begin = host_ms();
            // A call every so often, as an application does; due soon, and evenly.
            for at in (0..BUSY_MS).step_by(100) {
                let each = BUSY / (BUSY_MS / 100);
                let one =
                    |i| Schedule::at(dest("busy"), Time::from_ms(begin + at + AHEAD_MS + i * 100 / each));
                let answers = client.schedule_all((0..each).map(one).collect()).await;
                answers.into_iter().for_each(|answer| assert!(answer.unwrap().new));
                scheduled += each as usize;
                let pause = (begin + at + 100).saturating_sub(host_ms());
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        scheduled
    };
    let ((), scheduled) = tokio::join!(
        async {
            other.await;
            done.cancel()
        },
        rounds
    );
    wait_for(what, TIMEOUT, async || late.lock().unwrap().len() >= scheduled).await;
    registration.stop().await;
    let late = late.lock().unwrap();
    assert_eq!(late.iter().map(|l| l.0).collect::<HashSet<_>>().len(), scheduled, "{what}: each timer comes");
    assert_eq!(late.len(), scheduled, "{what}: no timer comes twice");
    assert_eq!(late.iter().find(|l| l.1 < 0), None, "{what}: no timer is early");
    Spread::of(late.iter().map(|l| l.1 as u64))
}

/// What came of the stuck timers.
#[derive(Debug, Default)]
struct Seen {
    serials: HashSet<u64>,
    wrong: Vec<String>,
}

/// Registers at last, and waits until everything is delivered and settled.
async fn take_all(client: &Client, stuck: u64) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let registration = {
        let seen = Arc::clone(&seen);
        let take = move |callback: Callback| {
            let mut seen = seen.lock().unwrap();
            let new = serial_of(&callback.payload)
                .is_some_and(|serial| serial < stuck && seen.serials.insert(serial));
            // Waiting in the park uses up no attempt.
            if !new || callback.attempt != 1 {
                seen.wrong.push(format!("{callback:?}"));
            }
            async { Outcome::ok() }
        };
        client.on(dest("nobody"), take).unwrap()
    };
    wait_for("delivery of all", TIMEOUT, async || seen.lock().unwrap().serials.len() as u64 == stuck).await;
    drain(client, TIMEOUT).await;
    registration.stop().await;
    seen
}

/// Looks at the broker's memory all along.
struct Watch {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<(u64, u64)>,
}

impl Watch {
    fn start(broker: &Broker, client: &Client) -> Self {
        let (pid, client, stop) = (broker.pid(), client.clone(), CancellationToken::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let (mut loaded, mut rss) = (0, 0);
            while !stopped.is_cancelled() {
                loaded = client.status().await.unwrap().loaded_bytes.max(loaded);
                rss = rss_kib(pid).max(rss);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            (loaded, rss)
        });
        Self { stop, task }
    }

    /// `empty`: what the process had at its start, KiB.
    async fn end(self, empty: u64) {
        let limit = BUDGET + ONE_BATCH;
        self.stop.cancel();
        let (loaded, rss) = self.task.await.unwrap();
        println!(
            "timers in memory: {} KiB of {} KiB at most; the process: {rss} KiB, {empty} KiB at first",
            loaded / 1024,
            BUDGET / 1024
        );
        assert!(loaded <= limit, "{loaded} bytes of timers in memory, the limit is {limit}");
        assert!(rss < empty + RSS_MORE_KIB, "{rss} KiB of memory, {empty} KiB at first");
    }
}
