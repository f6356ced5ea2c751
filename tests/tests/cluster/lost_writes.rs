//! Redis loses writes that it has answered: a master dies whose replica lags, or a lone server
//! restarts without the end of its append-only file. The brokers live and apply the lost writes
//! again, so that nothing is lost.
//!
//! A replica that lags is connected: one that is cut off confirms nothing on any server, and hides
//! what `WAIT` means to this one.

use std::fs::File;
use std::time::Duration;

use mtimer_store::counters::LOG_REPLAYED_RECORDS as REPLAYED;
use mtimer_tests::scrape::{sample, scrape};
use mtimer_tests::{Excuse, Lag, Load, RedisKind, Setup, long, seed, wait_for};

use crate::scene::{Scene, TIMEOUT, now, with_http};

/// Rounds: fewer in fast runs.
fn rounds(fast: usize) -> usize {
    if long() { 20 } else { fast }
}

/// Bytes of a master's replication stream that its replica lacks when it is promoted, at least.
fn lost_bytes() -> u64 {
    if long() { 4 << 20 } else { 256 << 10 }
}

fn load(name: &str) -> Load {
    let usual = Load::usual(seed(name));
    Load { payload_bytes: if long() { 2_048 } else { 1_024 }, ..usual }
}

/// The sum of a counter over the brokers.
async fn sum(scene: &Scene, name: &str) -> u64 {
    let mut sum = 0;
    for member in scene.cluster.up() {
        sum += scene.cluster.counter(member, name).await;
    }
    sum
}

/// The metrics show so many writes that were applied again, too.
fn assert_shown(scene: &Scene, replayed: u64) {
    let shown = |member: usize| {
        sample(&scrape(&scene.cluster.members[member].broker), "mtimer_store_replayed_records_total")
    };
    let shown: f64 = scene.cluster.up().map(shown).sum();
    assert!(shown >= replayed as f64, "{shown} of {replayed}");
}

async fn failovers(name: &'static str, lag: Lag, fast: usize) {
    let setup = with_http(Setup { redis: RedisKind::ReplicatedByProxy, ..Setup::default() });
    let mut scene = Scene::begin_with(name, setup, load(name)).await;
    for round in 0..rounds(fast) {
        let from = now();
        let master = round % 3;
        let before = sum(&scene, REPLAYED).await;
        scene.cluster.redis.make_lag(master, lag);
        let lags = async || scene.cluster.redis.lag_of(master) >= lost_bytes();
        wait_for("enough writes to be lost", 4 * TIMEOUT, lags).await;
        scene.cluster.redis.fail_over(master).await;
        scene.cluster.settled().await;
        scene.flows().await;
        let replayed = sum(&scene, REPLAYED).await - before;
        println!("{name}: round {round}: {replayed} writes applied again, settled after {} ms", now() - from);
        assert!(replayed > 0, "round {round}: no lost write was applied again");
        assert_shown(&scene, before + replayed);
        tokio::task::block_in_place(|| scene.cluster.redis.bring_back(master));
        scene.cluster.settled().await;
        scene.flows().await;
        scene.note(from, format!("Redis master {master} died, its replica lagged"), Excuse::Duplicates);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_dies_whose_replica_receives_nothing_and_nothing_is_lost() {
    failovers("the stream to a replica is held", Lag::Held, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_dies_whose_replica_is_slow_and_nothing_is_lost() {
    failovers("the stream to a replica is slow", Lag::Slow, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_dies_whose_replica_is_stopped_and_nothing_is_lost() {
    failovers("a replica is stopped", Lag::Stopped, 1).await;
}

/// Level `redis-replicated` promises what no owner's log can: the owners go with the master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_whose_replica_is_slow_dies_with_all_brokers_and_nothing_answered_is_lost() {
    const PAYLOAD_BYTES: u64 = 1_024;
    let name = "all brokers and a master die, replicated";
    let flags = ["--durability", "redis-replicated", "--replicas", "1"].map(str::to_owned).to_vec();
    let setup = Setup { redis: RedisKind::ReplicatedByProxy, flags, ..Setup::default() };
    let load = Load { payload_bytes: PAYLOAD_BYTES as usize, ..Load::light(seed(name)) };
    let mut scene = Scene::begin_with(name, setup, load).await;
    for round in 0..if long() { 6 } else { 1 } {
        let from = now();
        let master = round % 3;
        scene.cluster.redis.make_lag(master, Lag::Slow);
        let mut lacked = 0;
        let lags = async || {
            lacked = scene.cluster.redis.lag_of(master);
            lacked > 2 * PAYLOAD_BYTES
        };
        wait_for("timers that the replica lacks", TIMEOUT, lags).await;
        let members: Vec<usize> = scene.cluster.up().collect();
        for &member in &members {
            scene.cluster.kill(member);
        }
        scene.cluster.redis.fail_over(master).await;
        // Until it is back nothing is confirmed.
        tokio::task::block_in_place(|| scene.cluster.redis.bring_back(master));
        for &member in &members {
            scene.cluster.restart(member).await;
        }
        scene.cluster.balanced().await;
        scene.flows().await;
        println!("{name}: round {round}: the replica lacked {lacked} bytes, flows after {} ms", now() - from);
        scene.note(from, format!("all brokers and Redis master {master} died"), Excuse::Duplicates);
    }
    scene.end().await;
}

fn file(scene: &Scene) -> File {
    File::options().write(true).open(scene.cluster.redis.one().append_only_file()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_server_restarts_without_the_end_of_its_file_and_nothing_is_lost() {
    let name = "an append-only file loses its end";
    let setup = with_http(Setup { redis: RedisKind::AppendOnly, ..Setup::default() });
    let mut scene = Scene::begin_with(name, setup, load(name)).await;
    for round in 0..rounds(2) {
        let from = now();
        let before = sum(&scene, REPLAYED).await;
        tokio::task::block_in_place(|| scene.cluster.redis.one().rewrite_append_only_file());
        let kept = file(&scene).metadata().unwrap().len();
        // The end that is lost.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let redis = scene.cluster.redis.one_mut();
        redis.kill();
        file(&scene).set_len(kept).unwrap();
        let redis = scene.cluster.redis.one_mut();
        tokio::task::block_in_place(|| redis.restart());
        scene.cluster.settled().await;
        scene.flows().await;
        let replayed = sum(&scene, REPLAYED).await - before;
        println!("{name}: round {round}: {replayed} writes applied again, settled after {} ms", now() - from);
        assert!(replayed > 0, "round {round}: the file had everything");
        assert_shown(&scene, before + replayed);
        scene.note(from, "Redis restarted without the end of its file", Excuse::Duplicates);
    }
    scene.end().await;
}
