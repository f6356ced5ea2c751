//! Redis loses writes that it has answered: a master dies whose replica lags, or a lone server
//! restarts without the end of its append-only file. The brokers live and apply the lost writes
//! again, so that nothing is lost.

use std::fs::File;
use std::time::Duration;

use mtimer_tests::{Excuse, Load, RedisKind, Setup, long, seed, wait_for};

use crate::scene::{Scene, TIMEOUT, now};

/// Counter of a broker: bytes of writes that Redis may lose and the broker still has.
const LOG_BYTES: &str = "store_log_bytes";
/// Counter of a broker: lost writes that it has applied again.
const REPLAYED: &str = "store_log_replayed_records_total";

fn rounds() -> usize {
    if long() { 20 } else { 2 }
}

/// Bytes of writes that each round loses at least, of all brokers together.
fn lost_bytes() -> u64 {
    if long() { 10 << 20 } else { 1 << 20 }
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

/// Waits until the brokers' logs have grown by what a round is to lose.
async fn write_more(scene: &Scene) {
    let before = sum(scene, LOG_BYTES).await;
    let grown = async || sum(scene, LOG_BYTES).await >= before + lost_bytes();
    wait_for("enough writes to be lost", 4 * TIMEOUT, grown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_whose_replica_lags_dies_and_nothing_is_lost() {
    let name = "a lagging replica is promoted";
    let setup = Setup { redis: RedisKind::Replicated, ..Setup::default() };
    let mut scene = Scene::begin_with(name, setup, load(name)).await;
    for round in 0..rounds() {
        let from = now();
        let master = round % 3;
        let before = sum(&scene, REPLAYED).await;
        scene.cluster.redis.many().0.nodes[master].cut_replicas_off();
        write_more(&scene).await;
        scene.cluster.redis.fail_over(master).await;
        scene.cluster.settled().await;
        scene.flows().await;
        let replayed = sum(&scene, REPLAYED).await - before;
        println!("{name}: round {round}: {replayed} writes applied again, settled after {} ms", now() - from);
        assert!(replayed > 0, "round {round}: the replica had everything");
        tokio::task::block_in_place(|| scene.cluster.redis.bring_back(master));
        scene.cluster.settled().await;
        scene.flows().await;
        scene.note(from, format!("Redis master {master} died, its replica lagged"), Excuse::Duplicates);
    }
    scene.end().await;
}

fn file(scene: &Scene) -> File {
    File::options().write(true).open(scene.cluster.redis.one().append_only_file()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_server_restarts_without_the_end_of_its_file_and_nothing_is_lost() {
    let name = "an append-only file loses its end";
    let setup = Setup { redis: RedisKind::AppendOnly, ..Setup::default() };
    let mut scene = Scene::begin_with(name, setup, load(name)).await;
    for round in 0..rounds() {
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
        scene.note(from, "Redis restarted without the end of its file", Excuse::Duplicates);
    }
    scene.end().await;
}
