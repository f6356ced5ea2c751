//! Timers from files and from clients, handlers that fail, cancels and reschedules, while the
//! broker is killed with SIGKILL again and again: the contract holds on everything that clients
//! saw.
//!
//! `MTIMER_LONG=1` runs 100,000 timers and ten kills. `MTIMER_SEED` repeats the choices of a run
//! (not its timing).

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod handlers;
mod killer;
mod load;
mod sabotage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_tests::{
    Connect, Edges, Figures, Final, Launch, Recorder, Server, ServerOptions, Violation, check, drain,
    free_keys, host_ms, long, print_violations, purge, seed, watch_clock,
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use killer::Met;
use load::{Load, Sent};

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
struct Size {
    timers: u64,
    kills: u32,
    span_ms: u64,
    drain: Duration,
}

const SHORT: Size = Size { timers: 10_000, kills: 3, span_ms: 12_000, drain: Duration::from_secs(120) };
const LONG: Size = Size { timers: 100_000, kills: 10, span_ms: 60_000, drain: Duration::from_secs(600) };

/// Retry delays of the broker, for timers without any of their own.
const RETRY: &str = "300ms,900ms";
/// How far the broker's clock may be from the host's, ms: both are the same clock.
const CLOCK_MS: u64 = 500;
/// Callback timeout of the broker, for timers without one of their own.
const TIMEOUT: &str = "10s";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_brokers_keep_the_contract_on_the_embedded_store() {
    let folder = TempDir::with_prefix("mtimer-crash-").unwrap();
    // What is broken by a kill is the same with and without fsync; only a power cut makes the
    // difference.
    let launch =
        Launch::embedded(folder.path()).flags(["--durability", "embedded-fast", "--partitions", "8"]);
    run("crash, embedded", launch, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_brokers_keep_the_contract_on_redis() {
    let redis = Server::start_with(ServerOptions::default());
    let launch = Launch::redis(&redis.url()).flags(["--partitions", "8"]);
    run("crash, redis", launch, Some(&redis)).await;
}

async fn run(name: &str, launch: Launch, redis: Option<&Server>) {
    let size = if long() { LONG } else { SHORT };
    let (violations, met) = play(name, launch, redis, size).await;
    assert!(violations.is_empty(), "{name}: {} violations, the first are above", violations.len());
    assert!(met.all_kinds(), "the kills met only {met:?}");
}

/// What the checker says, and what the kills met.
async fn play(name: &str, launch: Launch, redis: Option<&Server>, size: Size) -> (Vec<Violation>, Met) {
    let seed = seed(name);
    let began = Instant::now();
    let mut broker = launch.flags(["--retry", RETRY, "--callback-timeout", TIMEOUT]).start();
    let address = broker.address();
    let partitions = u16::try_from(broker.about()["partitions"].as_u64().unwrap()).unwrap();
    let recorder = Arc::new(Recorder::default());
    let clients = handlers::start(&broker, &recorder, seed).await;
    let control = broker.client().await;

    let builder = broker.client_builder();
    let connect: Connect = Arc::new(move |_| {
        let builder = builder.clone();
        Box::pin(async move { builder.connect().await.unwrap() })
    });
    let mut edges = Edges::start("edges", seed, Arc::clone(&recorder), connect).await;
    let stop = CancellationToken::new();
    let watch = tokio::spawn(watch_clock(address.clone(), Arc::clone(&recorder), stop.clone()));

    let mut tasks = JoinSet::new();
    let load = Load::new(seed, size, host_ms(), partitions);
    let sent = Arc::new(Sent::default());
    tasks.spawn(load::send_files(load.clone(), address, Arc::clone(&recorder), Arc::clone(&sent)));
    tasks.spawn(load::produce(load.clone(), broker.client().await, Arc::clone(&recorder)));
    tasks.spawn(load::change(load.clone(), broker.client().await, Arc::clone(&recorder), Arc::clone(&sent)));
    let met = killer::kill_again_and_again(&mut broker, &control, &recorder, size, seed).await;
    // A panic of one is a panic of all.
    tasks.join_all().await;
    edges.stop().await;
    stop.cancel();
    watch.await.unwrap();
    load::bring_near(&control, &recorder, &sent).await;
    let killing = began.elapsed();

    drain(&control, size.drain).await;
    recorder.handlers_return(size.drain).await;
    let mut history = recorder.history();
    history.limits.clock_ms = Some(CLOCK_MS);
    let mut end = Final::read(&control, &history).await;
    free_keys(&control, &history, &mut end).await;
    purge(&control, redis, &mut end).await;
    let figures = Figures::of(&history, &end);
    println!(
        "{name}: {killing:?} of load, drained after {:?}; the kills met {met:?}\n{figures}",
        began.elapsed()
    );

    let violations = check(&history, &end);
    print_violations(name, &violations);
    edges.close().await;
    for client in clients {
        client.close().await;
    }
    control.close().await.unwrap();
    let status = broker.terminate(Duration::from_secs(30));
    assert!(status.success(), "{status}");
    (violations, met)
}
