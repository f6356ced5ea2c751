//! What a timer's full cycle takes, counted, not timed: commands and script calls of Redis, bytes
//! between client and broker. A change that makes one more round trip, or says one thing twice,
//! shows here on every machine.
//!
//! The bounds are what was counted, and about 15 % more. What Redis is asked depends a little on
//! how the machine breathes, in one direction only: a batch that does not fill costs more. So the
//! least of some rounds counts. A number far below its bound is a success to be written down: lower
//! the bound then. Allocations are counted in `crates/core/tests/allocations.rs`.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mtimer_client::{Cancelled, Client, Destination, Mode, Outcome, Schedule, TimerId};
use mtimer_tests::{Broker, Launch, Server, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const TIMERS: u64 = 20_000;
/// Timers that one call schedules; calls follow each other.
const BATCH: u64 = 2_000;
/// How long after the first schedule they are due, all of them: by then everything has been
/// scheduled, and the broker's memory begins later than that, so that they are loaded from the
/// store.
const AHEAD: Duration = Duration::from_secs(8);
const PRELOAD: &str = "500ms";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Rounds in which Redis may show that it can do with so little.
const ROUNDS: u32 = 3;
/// Script calls, and commands (those within scripts too), for 1,000 timers.
const AT_LEAST_ONCE: Bound = Bound { scripts: 27, commands: 860 };
const AT_MOST_ONCE: Bound = Bound { scripts: 38, commands: 1_100 };
/// The same for those that are cancelled while they are far from due.
const CANCELLED: Bound = Bound { scripts: 24, commands: 390 };
/// The same beside so many others that are due over the same day.
const CANCELLED_AMONG_MANY: Bound = Bound { scripts: 24, commands: 400 };
const MANY: u64 = 120_000;
/// Bytes of Redis for each timer that is pending, payload and all, with Redis' own settings and
/// with those that are recommended.
const PENDING_BYTES: u64 = 190;
const PENDING_BYTES_TUNED: u64 = 120;
/// Commands in a second of a broker that has 64 partitions and nothing to do, and for how long it
/// is looked, s.
const IDLE_COMMANDS: u64 = 21;
const IDLE_SECONDS: u64 = 5;
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
    live(&client, 1, Duration::ZERO, Mode::AtLeastOnce).await;
    AT_LEAST_ONCE
        .holds("at least once", &redis, async || live(&client, TIMERS, AHEAD, Mode::AtLeastOnce).await)
        .await;
    AT_MOST_ONCE
        .holds("at most once", &redis, async || live(&client, TIMERS, AHEAD, Mode::AtMostOnce).await)
        .await;
    CANCELLED
        .holds("cancelled", &redis, async || cancel_all(&client, schedule_far(&client).await).await)
        .await;
    for _ in 0..MANY / TIMERS {
        schedule_far(&client).await;
    }
    CANCELLED_AMONG_MANY
        .holds("cancelled, beside 120,000", &redis, async || {
            cancel_all(&client, schedule_far(&client).await).await;
        })
        .await;
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_redis_for_what_is_pending() {
    for (settings, tuned, bound) in
        [("Redis' own", false, PENDING_BYTES), ("recommended", true, PENDING_BYTES_TUNED)]
    {
        let redis = Server::start();
        if tuned {
            redis.call::<()>(&["CONFIG", "SET", "hash-max-listpack-entries", "512"]);
            redis.call::<()>(&["CONFIG", "SET", "hash-max-listpack-value", "1024"]);
        }
        // Without connections: what those have in their buffers is nothing of a timer.
        let weigh = async |timers: u64| {
            let mut broker = Launch::redis(&redis.url()).flags(["--partitions", "4"]).start();
            let client = broker.client().await;
            for _ in 0..timers / TIMERS {
                schedule_far(&client).await;
            }
            client.close().await.unwrap();
            assert!(broker.terminate(TIMEOUT).success());
            let gone = async || redis.call::<String>(&["CLIENT", "LIST"]).lines().count() == 1;
            wait_for("nobody else is connected", TIMEOUT, gone).await;
            info(&redis, "memory", "used_memory:")
        };
        let empty = weigh(0).await;
        let full = weigh(TIMERS).await;
        check(&format!("bytes of Redis for a timer, {settings} settings"), (full - empty) / TIMERS, bound);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_broker_that_has_nothing_to_do() {
    let redis = Server::start();
    let broker = Launch::redis(&redis.url()).flags(["--partitions", "64"]).start();
    let client = broker.client().await;
    live(&client, 1, Duration::ZERO, Mode::AtLeastOnce).await;
    let (mut least, began) = (u64::MAX, std::time::Instant::now());
    // What a start brings with it is over after some rounds.
    for _ in 0..ROUNDS {
        let (before, at) = (Commands::of(&redis), began.elapsed());
        tokio::time::sleep(Duration::from_secs(IDLE_SECONDS)).await;
        let (after, seconds) = (Commands::of(&redis), (began.elapsed() - at).as_secs_f64());
        least = least.min(((after.all - before.all) as f64 / seconds) as u64);
        if least <= IDLE_COMMANDS {
            break;
        }
    }
    client.close().await.unwrap();
    check("commands in a second without work", least, IDLE_COMMANDS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_between_client_and_broker() {
    let data = tempfile::tempdir().unwrap();
    let broker = Launch::embedded(data.path()).flags(["--partitions", "4", "--preload", PRELOAD]).start();
    let wire = Counting::before(&broker).await;
    let client = Client::builder().brokers([wire.address.clone()]).connect().await.unwrap();
    live(&client, 1, Duration::ZERO, Mode::AtLeastOnce).await;
    let before = wire.bytes();
    live(&client, TIMERS, AHEAD, Mode::AtLeastOnce).await;
    let after = wire.bytes();
    client.close().await.unwrap();
    check("bytes to the broker for a timer", (after.0 - before.0) / TIMERS, BYTES_THERE);
    check("bytes from the broker for a timer", (after.1 - before.1) / TIMERS, BYTES_BACK);
}

/// Timers of 64 bytes are scheduled, all fire in the same millisecond, and are settled.
async fn live(client: &Client, timers: u64, ahead: Duration, mode: Mode) {
    let dest = Destination::new("counted", "app").unwrap();
    let handled = client.register(dest.clone()).concurrency(10_000);
    let handled = handled.on(|_| std::future::ready(Outcome::ok())).unwrap();
    let settled = client.stats().settled;
    let due = client.now() + u64::try_from(ahead.as_millis()).unwrap();
    for begin in (0..timers).step_by(BATCH as usize) {
        let one = |_| Schedule::at(dest.clone(), due).mode(mode).payload(vec![7; 64]);
        let batch = (begin..(begin + BATCH).min(timers)).map(one).collect();
        client.schedule_all(batch).await.into_iter().for_each(|result| _ = result.unwrap());
    }
    let done = async || client.stats().settled - settled == timers;
    wait_for("everything is settled", TIMEOUT, done).await;
    handled.stop().await;
}

/// Timers of 64 bytes, due over a day that begins in an hour.
async fn schedule_far(client: &Client) -> Vec<TimerId> {
    let (dest, first) = (Destination::new("counted", "far").unwrap(), client.now() + 3_600_000);
    let mut ids = Vec::new();
    for begin in (0..TIMERS).step_by(BATCH as usize) {
        let one = |n| Schedule::at(dest.clone(), first + n * 86_400_000 / TIMERS).payload(vec![7; 64]);
        let batch = (begin..begin + BATCH).map(one).collect();
        ids.extend(client.schedule_all(batch).await.into_iter().map(|result| result.unwrap().id));
    }
    ids
}

/// Cancels them, so many at a time.
async fn cancel_all(client: &Client, ids: Vec<TimerId>) {
    for batch in ids.chunks(BATCH as usize) {
        let cancel = |id: &TimerId| client.cancel(*id);
        for cancelled in futures_util::future::join_all(batch.iter().map(cancel)).await {
            assert!(matches!(cancelled, Ok(Cancelled::Cancelled(_))), "{cancelled:?}");
        }
    }
}

/// One number of `INFO`.
fn info(redis: &Server, section: &str, name: &str) -> u64 {
    let text: String = redis.call(&["INFO", section]);
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

/// What 1,000 timers may cost.
struct Bound {
    scripts: u64,
    commands: u64,
}

impl Bound {
    /// Whether the least of some rounds is within it.
    async fn holds(&self, what: &str, redis: &Server, round: impl AsyncFn()) {
        let (mut scripts, mut commands) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let before = Commands::of(redis);
            round().await;
            let after = Commands::of(redis);
            scripts = scripts.min((after.scripts - before.scripts) * 1_000 / TIMERS);
            commands = commands.min((after.all - before.all) * 1_000 / TIMERS);
            if scripts <= self.scripts && commands <= self.commands {
                break;
            }
        }
        check(&format!("script calls for 1,000 timers, {what}"), scripts, self.scripts);
        check(&format!("commands for 1,000 timers, {what}"), commands, self.commands);
    }
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
