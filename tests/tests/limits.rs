//! Limits of destinations at the handlers: of one broker, and of a cluster whose brokers die and
//! stand still.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mtimer_client::{Client, DeliveryRate, Destination, Outcome, Registration, Schedule};
use mtimer_tests::{Cluster, Launch, RedisKind, Setup, long, wait_for};

/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(180);
/// How long a handler is at work.
const WORK: Duration = Duration::from_millis(20);
/// Longer than a handler takes on a loaded machine; a dead broker's slots come back after it.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(5);
const CONCURRENCY: u32 = 7;
/// Starts a second, and at once.
const RATE: (u32, u32) = (100, 20);

fn timers() -> u64 {
    if long() { 5_000 } else { 600 }
}

/// What handlers have seen.
#[derive(Default)]
struct Seen {
    running: AtomicU64,
    most: AtomicU64,
    done: AtomicU64,
}

struct Scene {
    client: Client,
    dest: Destination,
    seen: Arc<Seen>,
    handler: Registration,
    began: Instant,
}

impl Scene {
    /// Limits are set, and more is due than they allow.
    async fn begin(client: Client, rate: Option<(u32, u32)>) -> Self {
        let dest = Destination::new("limits", "slow").unwrap();
        let version = client
            .update_settings(&dest, |settings| {
                settings.limits.concurrency = Some(CONCURRENCY);
                settings.limits.rate =
                    rate.map(|(starts, burst)| DeliveryRate { starts, per_ms: 1_000, burst });
            })
            .await;
        version.unwrap();
        let seen = Arc::<Seen>::default();
        let counted = seen.clone();
        let handler = client
            .register(dest.clone())
            .concurrency(1_000)
            .on(move |_| {
                let seen = counted.clone();
                async move {
                    let running = 1 + seen.running.fetch_add(1, Ordering::SeqCst);
                    seen.most.fetch_max(running, Ordering::SeqCst);
                    tokio::time::sleep(WORK).await;
                    seen.running.fetch_sub(1, Ordering::SeqCst);
                    seen.done.fetch_add(1, Ordering::SeqCst);
                    Outcome::ok()
                }
            })
            .unwrap();
        let began = Instant::now();
        let due = client.now() + 100;
        let all: Vec<_> = (0..timers())
            .map(|_| Schedule::at(dest.clone(), due).callback_timeout(CALLBACK_TIMEOUT))
            .collect();
        for part in all.chunks(1_000) {
            client
                .schedule_all(part.to_vec())
                .await
                .into_iter()
                .for_each(|one| assert!(one.is_ok(), "{one:?}"));
        }
        Self { client, dest, seen, handler, began }
    }

    /// Waits until handlers have done so many more.
    async fn goes_on(&self, more: u64) {
        let before = self.seen.done.load(Ordering::SeqCst);
        let all = timers();
        let gone_on = async || self.seen.done.load(Ordering::SeqCst) >= (before + more).min(all);
        wait_for("further deliveries", TIMEOUT, gone_on).await;
    }

    /// Waits until nothing is left, and says how long that took.
    async fn end(self) -> Duration {
        let left = async || {
            let counts = self.client.destinations(self.dest.clone()).await;
            counts.is_ok_and(|counts| {
                counts.uncounted == 0
                    && counts.rows.iter().all(|row| {
                        row.dead == 0
                            && row.pending + row.retrying + row.parked + row.taken + row.in_flight == 0
                    })
            })
        };
        wait_for("the end of all timers", TIMEOUT, left).await;
        let took = self.began.elapsed();
        let (most, done) = (self.seen.most.load(Ordering::SeqCst), self.seen.done.load(Ordering::SeqCst));
        println!("{done} deliveries in {took:?}, {most} at the same time at most");
        assert!(most <= u64::from(CONCURRENCY), "{most} at the same time");
        assert!(done >= timers() && most > 1, "{done} of {}, {most}", timers());
        self.handler.stop().await;
        self.client.close().await.unwrap();
        took
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_broker_keeps_to_both_limits_also_when_it_is_killed() {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Launch::embedded(data.path()).flags(["--partitions", "8"]).start();
    let scene = Scene::begin(broker.client().await, Some(RATE)).await;
    scene.goes_on(50).await;
    tokio::task::block_in_place(|| broker.restart());
    scene.goes_on(50).await;
    let (rate, burst) = RATE;
    let took = scene.end().await;
    let least = (timers() - u64::from(burst)) as f64 / f64::from(rate);
    assert!(took.as_secs_f64() >= least, "{took:?} is faster than the rate allows: {least} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_of_a_cluster_share_the_limits_through_kills_and_stops() {
    let setup = Setup { redis: RedisKind::Masters, ..Setup::default() };
    let mut cluster = Cluster::start(setup).await;
    let scene = Scene::begin(cluster.client(1).await, None).await;
    scene.goes_on(50).await;
    let victim = cluster.follower().await;
    cluster.kill(victim);
    scene.goes_on(50).await;
    cluster.restart(victim).await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    scene.goes_on(50).await;
    cluster.restart(leader).await;
    scene.end().await;
}
