//! What a timer's whole life takes, counted, not timed: commands and script calls of Redis, bytes between client and
//! broker. A change that makes one more round trip, or says one thing twice, shows here on every machine.
//!
//! The bounds are what was counted, and about 15 % more. What Redis is asked depends a little on how the machine breathes, in
//! one direction only: a batch that does not fill costs more. So the least of some rounds counts.
//! A number far below its bound is a success to be written down: lower the bound then.
//! Allocations are counted in `crates/core/tests/allocations.rs`.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mtimer_client::{Client, Destination, Outcome, Schedule};
use mtimer_tests::{Broker, Launch, Server, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const TIMERS: u64 = 20_000;
/// Timers that one call schedules; calls follow each other.
const BATCH: u64 = 2_000;
/// How long after the first schedule they are due, all of them: by then everything has been scheduled, and the broker's
/// memory begins later than that, so that they are loaded from the store.
const AHEAD: Duration = Duration::from_secs(8);
const PRELOAD: &str = "500ms";
const PATIENCE: Duration = Duration::from_secs(60);

/// Rounds in which Redis may show that it can do with so little.
const ROUNDS: u32 = 3;
/// Script calls for 1,000 timers.
const SCRIPTS: u64 = 37;
/// Commands for 1,000 timers, those within scripts too.
const COMMANDS: u64 = 2_030;
/// Bytes for each timer, from the client to the broker and back.
const BYTES_THERE: u64 = 158;
const BYTES_BACK: u64 = 125;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_and_scripts_of_redis() {
    let redis = Server::start();
    let flags = ["--partitions", "4", "--preload", PRELOAD];
    let broker = Launch::redis(&redis.url()).flags(flags).start();
    let client = broker.client().await;
    // Connections, scripts and partitions are there after one.
    live(&client, 1, Duration::ZERO).await;
    let (mut scripts, mut commands) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let before = Commands::of(&redis);
        live(&client, TIMERS, AHEAD).await;
        let after = Commands::of(&redis);
        scripts = scripts.min((after.scripts - before.scripts) * 1_000 / TIMERS);
        commands = commands.min((after.all - before.all) * 1_000 / TIMERS);
        if scripts <= SCRIPTS && commands <= COMMANDS {
            break;
        }
    }
    client.close().await.unwrap();
    check("script calls for 1,000 timers", scripts, SCRIPTS);
    check("commands for 1,000 timers", commands, COMMANDS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_between_client_and_broker() {
    let data = tempfile::tempdir().unwrap();
    let broker = Launch::embedded(data.path()).flags(["--partitions", "4", "--preload", PRELOAD]).start();
    let wire = Counting::before(&broker).await;
    let client = Client::builder().brokers([wire.address.clone()]).connect().await.unwrap();
    live(&client, 1, Duration::ZERO).await;
    let before = wire.bytes();
    live(&client, TIMERS, AHEAD).await;
    let after = wire.bytes();
    client.close().await.unwrap();
    check("bytes to the broker for a timer", (after.0 - before.0) / TIMERS, BYTES_THERE);
    check("bytes from the broker for a timer", (after.1 - before.1) / TIMERS, BYTES_BACK);
}

/// Timers of 64 bytes are scheduled, all fire in the same millisecond, and are settled.
async fn live(client: &Client, timers: u64, ahead: Duration) {
    let dest = Destination::new("counted", "app").unwrap();
    let handled = client.register(dest.clone()).concurrency(10_000);
    let handled = handled.on(|_| std::future::ready(Outcome::ok())).unwrap();
    let settled = client.stats().settled;
    let due = client.now() + u64::try_from(ahead.as_millis()).unwrap();
    for begin in (0..timers).step_by(BATCH as usize) {
        let one = |_| Schedule::at(dest.clone(), due).payload(vec![7; 64]);
        let batch = (begin..(begin + BATCH).min(timers)).map(one).collect();
        client.schedule_all(batch).await.into_iter().for_each(|result| _ = result.unwrap());
    }
    let done = async || client.stats().settled - settled == timers;
    wait_for("everything is settled", PATIENCE, done).await;
    handled.stop().await;
}

fn check(what: &str, counted: u64, bound: u64) {
    println!("{what}: {counted}, bound {bound}");
    assert!(counted <= bound, "{what}: {counted}, the bound is {bound}");
}

/// What Redis was asked to do.
struct Commands {
    all: u64,
    scripts: u64,
}

impl Commands {
    fn of(redis: &Server) -> Self {
        let stats: String = redis.call(&["INFO", "commandstats"]);
        let (mut all, mut scripts) = (0, 0);
        for line in stats.lines() {
            let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|l| l.split_once(":calls="))
            else {
                continue;
            };
            let calls: u64 = rest.split(',').next().unwrap().parse().unwrap();
            all += calls;
            if name.starts_with("eval") {
                scripts += calls;
            }
        }
        Self { all, scripts }
    }
}

/// A proxy that counts.
struct Counting {
    address: String,
    there: Arc<AtomicU64>,
    back: Arc<AtomicU64>,
}

impl Counting {
    async fn before(broker: &Broker) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (there, back) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (to, up, down) = (broker.address(), Arc::clone(&there), Arc::clone(&back));
        // Ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&to).await.unwrap();
                let ((from, into), (answers, requests)) = (client.into_split(), server.into_split());
                tokio::spawn(copy(from, requests, Arc::clone(&up)));
                tokio::spawn(copy(answers, into, Arc::clone(&down)));
            }
        });
        Self { address, there, back }
    }

    /// To the broker, and from it.
    fn bytes(&self) -> (u64, u64) {
        (self.there.load(Ordering::Acquire), self.back.load(Ordering::Acquire))
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, counted: Arc<AtomicU64>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        counted.fetch_add(n as u64, Ordering::AcqRel);
        if to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    // The other side may have gone already.
    let _ = to.shutdown().await;
}
