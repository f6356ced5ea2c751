//! Bulk jobs through the deaths of their brokers: every timer is either cancelled or delivered, and
//! the job's counts say how many of each.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{
    Bulk, BulkAction, BulkId, BulkState, Callback, Client, DeadFilter, Destination, DestinationFilter,
    Outcome, Registration, Schedule, TimerId,
};
use mtimer_tests::{Cluster, Launch, RedisKind, Setup, long, wait_for};

/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Deaths while one job is at work.
fn deaths() -> u32 {
    if long() { 10 } else { 2 }
}

/// Wrong timers, and as many others.
fn timers() -> usize {
    if long() { 40_000 } else { 6_000 }
}

/// Of the job, in timers a second: it is at work until after the last death.
fn rate() -> u32 {
    if long() { 700 } else { 600 }
}

/// The first timers are due when the job begins, the last ones so long after that, ms. So some are
/// delivered before the job comes to them, and many are not.
fn over_ms() -> u64 {
    if long() { 90_000 } else { 20_000 }
}

/// Timers that are wrong, timers that are not, and what was delivered of them.
struct Scene {
    client: Client,
    wrong: Vec<TimerId>,
    right: Vec<TimerId>,
    delivered: Arc<Mutex<HashSet<TimerId>>>,
    handlers: Vec<Registration>,
}

fn destination(app: &str) -> Destination {
    Destination::new("bulk", app).unwrap()
}

impl Scene {
    async fn begin(client: Client) -> Self {
        let delivered: Arc<Mutex<HashSet<TimerId>>> = Arc::default();
        let handler = |app| {
            let delivered = delivered.clone();
            let note = move |callback: Callback| {
                delivered.lock().unwrap().insert(callback.id);
                std::future::ready(Outcome::ok())
            };
            client.register(destination(app)).concurrency(1_000).on(note).unwrap()
        };
        let handlers = ["wrong", "right"].map(handler).into();
        let begin = client.now() + 3_000;
        let schedule = async |app| {
            let due = |n| begin + over_ms() * n as u64 / timers() as u64;
            let all: Vec<_> = (0..timers()).map(|n| Schedule::at(destination(app), due(n))).collect();
            let mut ids = Vec::new();
            for part in all.chunks(1_000) {
                let scheduled = client.schedule_all(part.to_vec()).await;
                ids.extend(scheduled.into_iter().map(|scheduled| scheduled.unwrap().id));
            }
            ids
        };
        let (wrong, right) = (schedule("wrong").await, schedule("right").await);
        Self { client, wrong, right, delivered, handlers }
    }

    /// Begins the job, and waits until it is at work.
    async fn cancel_the_wrong_ones(&self) -> BulkId {
        let bulk = Bulk { rate: rate(), ..Bulk::new(BulkAction::Cancel, destination("wrong")) };
        let id = self.client.begin_bulk(bulk).await.unwrap();
        self.works_on(id).await;
        id
    }

    /// Waits until the job has done more, or has ended.
    async fn works_on(&self, id: BulkId) {
        let met = async || {
            let job = self.client.bulk(id).await.ok().flatten()?;
            (!job.has_ended()).then_some(job.done + job.not_done)
        };
        let before = met().await;
        let more = async || met().await.is_none_or(|now| before.is_none_or(|before| now > before + 50));
        wait_for("more of the job's work", TIMEOUT, more).await;
    }

    /// Waits for the end of the job and of all timers, and compares.
    async fn end(self, id: BulkId) {
        let Self { client, wrong, right, delivered, handlers } = self;
        let ended = async || matches!(client.bulk(id).await, Ok(Some(job)) if job.has_ended());
        wait_for("the job's end", TIMEOUT, ended).await;
        let none_left = async || {
            let all = client.destinations(DestinationFilter::default()).await;
            all.is_ok_and(|all| {
                let live = |row: &mtimer_client::DestinationCounts| {
                    row.pending + row.retrying + row.parked + row.taken + row.in_flight
                };
                all.uncounted == 0 && all.rows.iter().map(live).sum::<u64>() == 0
            })
        };
        wait_for("the end of all timers", TIMEOUT, none_left).await;
        let job = client.bulk(id).await.unwrap().unwrap();
        let delivered = delivered.lock().unwrap().clone();
        // A claim covered them when their broker died: nobody can say whether they were delivered.
        let doubtful = client.dead(DeadFilter::default()).all().await.unwrap();
        let doubtful = doubtful.iter().filter(|row| !delivered.contains(&row.timer.id)).count() as u64;
        let silent = wrong.iter().filter(|id| !delivered.contains(id)).count() as u64;
        println!(
            "of {} wrong timers {} were cancelled, {} too late, {} of those not delivered",
            wrong.len(),
            job.done,
            job.not_done,
            doubtful
        );
        assert!(right.iter().all(|id| delivered.contains(id)), "what does not match is delivered");
        assert_eq!((job.state, job.missing), (BulkState::Done, 0));
        assert_eq!(job.done + doubtful, silent, "cancelled or delivered, and never both");
        assert!((1..wrong.len() as u64).contains(&job.done), "both were at work");
        for handler in handlers {
            handler.stop().await;
        }
        client.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_on_the_embedded_store_survives_kills() {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Launch::embedded(data.path()).flags(["--partitions", "8"]).start();
    let scene = Scene::begin(broker.client().await).await;
    let id = scene.cancel_the_wrong_ones().await;
    for _ in 0..deaths() {
        tokio::task::block_in_place(|| broker.restart());
        scene.works_on(id).await;
    }
    scene.end(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_on_a_redis_cluster_survives_kills() {
    let setup = Setup { redis: RedisKind::Masters, ..Setup::default() };
    let mut cluster = Cluster::start(setup).await;
    let scene = Scene::begin(cluster.client(1).await).await;
    let id = scene.cancel_the_wrong_ones().await;
    for death in 0..deaths() {
        let victim = match death % 2 {
            0 => cluster.follower().await,
            _ => cluster.leader().await,
        };
        cluster.kill(victim);
        scene.works_on(id).await;
        cluster.restart(victim).await;
        cluster.settled().await;
    }
    scene.end(id).await;
}
