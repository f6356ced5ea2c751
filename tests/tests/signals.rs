//! Being told to stop: the first TERM lets running handlers finish and settles them, the second
//! ends at once; a start afterwards delivers nothing again that was settled.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{Callback, Client, Destination, Outcome, Registration, Schedule};
use mtimer_tests::{Broker, Launch, Server, ServerOptions, Signal, drain, serial_of, wait_for};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// How long things may take that have no bound in the contract.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The exit code of a process that TERM has ended, and of this one at the second TERM.
const TERMINATED: i32 = 143;
/// Timers whose handlers run when the broker is told to stop.
const RUNNING: u64 = 50;
/// Timers that come due while it stops, and afterwards.
const LATER: u64 = 200;

/// Deliveries by serial number: (epoch, attempt).
type Seen = Arc<Mutex<BTreeMap<u64, Vec<(u64, u32)>>>>;

fn dest() -> Destination {
    Destination::new("signals", "a").unwrap()
}

/// Takes callbacks and answers them once told to go on.
fn listen(client: &Client, seen: &Seen, go_on: &CancellationToken) -> Registration {
    let (seen, go_on) = (Arc::clone(seen), go_on.clone());
    let handle = move |callback: Callback| {
        let serial = serial_of(&callback.payload).unwrap();
        seen.lock().unwrap().entry(serial).or_default().push((callback.epoch.0, callback.attempt));
        let go_on = go_on.clone();
        async move {
            go_on.cancelled().await;
            Outcome::ok()
        }
    };
    client.on(dest(), handle).unwrap()
}

async fn schedule(client: &Client, serials: std::ops::Range<u64>, over: Duration) {
    let count = (serials.end - serials.start) as u32;
    let one = |serial| {
        let after = over * (serial - serials.start) as u32 / count;
        Schedule::after(dest(), after).payload(format!("{serial}:"))
    };
    let answers = client.schedule_all(serials.clone().map(one).collect()).await;
    answers.into_iter().for_each(|answer| assert!(answer.unwrap().new));
}

/// Tells the broker to stop, and waits until it has begun to.
async fn begin_to_stop(broker: &mut Broker) {
    broker.process().signal(Signal::TERM);
    let said = async || broker.process().tail().contains("once more to end at once");
    wait_for("the word that it stops", TIMEOUT, said).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn term_lets_handlers_finish_on_the_embedded_store() {
    let folder = TempDir::with_prefix("mtimer-signals-").unwrap();
    term_lets_handlers_finish(Launch::embedded(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn term_lets_handlers_finish_on_redis() {
    let redis = Server::start_with(ServerOptions::default());
    term_lets_handlers_finish(Launch::redis(&redis.url())).await;
}

async fn term_lets_handlers_finish(launch: Launch) {
    let mut broker = launch.flags(["--partitions", "4", "--drain-timeout", "60s"]).start();
    let client = broker.client().await;
    let (seen, go_on) = (Seen::default(), CancellationToken::new());
    let registration = listen(&client, &seen, &go_on);
    schedule(&client, 0..RUNNING, Duration::ZERO).await;
    wait_for("running handlers", TIMEOUT, async || seen.lock().unwrap().len() as u64 == RUNNING).await;
    schedule(&client, RUNNING..RUNNING + LATER, Duration::from_secs(2)).await;

    begin_to_stop(&mut broker).await;
    // It waits for them: as long as they run, it does.
    assert_eq!(broker.process().ended(), None);
    // Asked meanwhile, done by the broker that comes next.
    let also = tokio::spawn({
        let client = client.clone();
        async move { client.schedule(Schedule::after(dest(), Duration::ZERO).payload("9999:")).await }
    });
    go_on.cancel();
    let status = broker.process().wait(TIMEOUT);
    assert!(status.success(), "{status}");
    broker.restart();
    assert!(also.await.unwrap().unwrap().new);

    let all = RUNNING + LATER + 1;
    wait_for("all deliveries", TIMEOUT, async || seen.lock().unwrap().len() as u64 == all).await;
    drain(&client, TIMEOUT).await;
    let seen = seen.lock().unwrap();
    let again: Vec<_> = seen.iter().filter(|(_, deliveries)| deliveries.len() > 1).collect();
    assert!(again.is_empty(), "a planned stop makes no duplicates: {again:?}");
    let epoch = |serial| seen[&serial][0].0;
    assert!((0..RUNNING).all(|s| epoch(s) < epoch(9_999)), "the new owner's epoch is higher: {seen:?}");
    drop(registration);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_term_ends_at_once_and_loses_nothing() {
    let folder = TempDir::with_prefix("mtimer-signals-").unwrap();
    let launch = Launch::embedded(folder.path()).flags(["--drain-timeout", "1h", "--retry", "100ms"]);
    let mut broker = launch.flags(["--partitions", "4"]).start();
    let client = broker.client().await;
    let (seen, go_on) = (Seen::default(), CancellationToken::new());
    let registration = listen(&client, &seen, &go_on);
    schedule(&client, 0..RUNNING, Duration::ZERO).await;
    wait_for("running handlers", TIMEOUT, async || seen.lock().unwrap().len() as u64 == RUNNING).await;

    begin_to_stop(&mut broker).await;
    assert_eq!(broker.process().ended(), None);
    let status = broker.terminate(Duration::from_secs(10));
    assert_eq!(status.code(), Some(TERMINATED), "{status}");
    broker.restart();
    // What was not settled comes again, as something new. (The first handlers still run: an outcome
    // that reached the broker before it has read their timers would end these without another
    // delivery.)
    let again = async || seen.lock().unwrap().values().all(|deliveries| deliveries.len() == 2);
    wait_for("all of them again", TIMEOUT, again).await;
    go_on.cancel();
    drain(&client, TIMEOUT).await;
    let seen = seen.lock().unwrap();
    let rising = |d: &Vec<(u64, u32)>| d.len() == 2 && d[0].0 < d[1].0 && d[0].1 < d[1].1;
    assert!(seen.values().all(rising), "{seen:?}");
    drop(registration);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn term_ends_an_idle_broker_and_one_whose_handlers_never_end() {
    let folder = TempDir::with_prefix("mtimer-signals-").unwrap();
    let launch = Launch::embedded(folder.path()).flags(["--drain-timeout", "300ms", "--partitions", "4"]);
    let mut broker = launch.start();
    assert!(broker.terminate(TIMEOUT).success());
    broker.restart();
    let client = broker.client().await;
    let (seen, never) = (Seen::default(), CancellationToken::new());
    let registration = listen(&client, &seen, &never);
    schedule(&client, 0..1, Duration::ZERO).await;
    wait_for("a running handler", TIMEOUT, async || seen.lock().unwrap().len() == 1).await;
    // It gives up waiting, leaves word of what is under way, and ends well.
    assert!(broker.terminate(TIMEOUT).success());
    broker.restart();
    // Its callback timeout is long: the next owner waits for the one that runs, and takes its
    // outcome.
    never.cancel();
    drain(&client, TIMEOUT).await;
    assert_eq!(seen.lock().unwrap()[&0].len(), 1, "it is not delivered again");
    drop(registration);
}
