//! What Redis goes through: a master that dies and is replaced, one that is replaced and serves on,
//! slots that move, a master that hangs; and a lease that nobody can get.

use std::collections::BTreeSet;

use mtimer_tests::{Entry, Excuse, Fire, Load, RedisKind, Setup, fires, seed, wait_for};

use crate::scene::{Scene, TIMEOUT, either, now, on_masters, on_one, rounds};

/// What comes due so shortly before the end of a time may fire behind it, ms: a loaded machine is
/// slow.
const MARGIN_MS: u64 = 3_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_dies_and_its_replica_takes_its_place() {
    failover("a Redis master dies", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_dies_under_replicated_writes() {
    let flags = ["--durability", "redis-replicated", "--replicas", "1"].map(str::to_owned).to_vec();
    failover("a Redis master dies, replicated", flags).await;
}

async fn failover(name: &'static str, flags: Vec<String>) {
    let replicated = !flags.is_empty();
    let setup = Setup { redis: RedisKind::Replicated, flags, ..Setup::default() };
    let mut scene = Scene::begin(name, setup).await;
    for round in 0..rounds() as usize {
        let master = round % 3;
        let from = now();
        scene.cluster.redis.fail_over(master).await;
        let promoted = now();
        // The new master has no replica until the old one is that: replicated writes are not
        // confirmed meanwhile.
        if !replicated {
            scene.cluster.settled().await;
            scene.flows().await;
        }
        // What the replica does not have the brokers apply again.
        scene.note(from, format!("Redis master {master} died"), Excuse::Duplicates);
        let back = now();
        tokio::task::block_in_place(|| scene.cluster.redis.bring_back(master));
        let joined = now();
        scene.cluster.settled().await;
        println!(
            "{name}: round {round}: promoted after {} ms, a replica again after {} ms, settled after {} ms",
            promoted - from,
            joined - from,
            now() - from
        );
        scene.flows().await;
        scene.note(back, format!("the master {master} that had died is a replica now"), Excuse::Duplicates);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_lose_sight_of_a_master_that_brokers_reach() {
    let name = "a master is replaced and serves on";
    let mut scene = Scene::begin(name, Setup { redis: RedisKind::Watched, ..Setup::default() }).await;
    for round in 0..rounds() {
        let from = now();
        scene.cluster.redis.replace_unseen().await;
        let moved = now();
        scene.cluster.settled().await;
        scene.flows().await;
        scene.cluster.redis.see_again().await;
        scene.cluster.settled().await;
        scene.flows().await;
        println!("{name}: round {round}: at the new master after {} ms", moved - from);
        scene.note(from, "Sentinels have replaced a master that serves on", Excuse::Duplicates);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_to_another_master() {
    let mut scene = Scene::begin("slots move", on_masters()).await;
    let partitions = if rounds() > 1 { 12 } else { 4 };
    let from = now();
    for partition in 0..partitions {
        let key = format!("owner:{{{partition}}}:t");
        let (masters, _) = scene.cluster.redis.many();
        let source = masters.node_of(&key);
        let to = (source + 1) % 3;
        masters.begin_migration(&key, source, to);
        // Half way, new keys are at the one and old ones at the other.
        scene.flows().await;
        let (masters, _) = scene.cluster.redis.many();
        tokio::task::block_in_place(|| masters.migrate_keys(&key, source, to));
        masters.finish_migration(&key, to);
        scene.flows().await;
    }
    scene.cluster.settled().await;
    scene.note(from, format!("the slots of {partitions} partitions moved"), Excuse::Duplicates);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_hangs_and_goes_on() {
    let mut scene = Scene::begin("a Redis master hangs", on_masters()).await;
    for round in 0..rounds().min(3) as usize {
        let from = now();
        let (masters, _) = scene.cluster.redis.many();
        masters.nodes[round % 3].freeze();
        tokio::time::sleep(either(4, 10)).await;
        let (masters, _) = scene.cluster.redis.many();
        masters.nodes[round % 3].thaw();
        scene.cluster.settled().await;
        scene.flows().await;
        scene.note(from, format!("Redis master {} hung", round % 3), Excuse::Duplicates);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_holds_the_lease() {
    let name = "a stranger holds the lease";
    let load = Load::usual(seed(name));
    let scene = Scene::begin_with(name, on_one(), load).await;
    let redis = scene.cluster.redis.one();
    let from = now();
    redis.call::<()>(&["SET", "leader:{t}", "somebody else"]);
    let led = async || {
        for i in scene.cluster.up() {
            if scene.cluster.view_of(i).await.is_some_and(|view| view.leads) {
                return true;
            }
        }
        false
    };
    wait_for("the end of the leader's lease", TIMEOUT, async || !led().await).await;
    let alone = now();
    tokio::time::sleep(either(8, 60)).await;
    scene.flows().await;
    assert!(!led().await, "somebody leads although a stranger has the lease");
    let freed = now();
    redis.call::<()>(&["DEL", "leader:{t}"]);
    scene.cluster.leader().await;
    scene.cluster.settled().await;
    println!("{name}: no leader for {} ms, one again after {} ms", freed - alone, now() - freed);
    scene.note(from, "a stranger held the lease", Excuse::Nothing);
    let outcome = scene.end().await;
    // All partitions went on firing in which there was something to fire: clients file timers in
    // runs, so it need not be all.
    let fires = fires(&outcome.history);
    let of = |pass: &dyn Fn(&Fire) -> bool| -> BTreeSet<u16> {
        fires.iter().filter(|f| pass(f)).map(|f| f.partition).collect()
    };
    let wanted = of(&|f| (alone..freed.saturating_sub(MARGIN_MS)).contains(&f.ready));
    let fired = of(&|f| (alone..freed).contains(&f.at));
    println!(
        "{name}: of {} partitions with something to fire, {} fired meanwhile",
        wanted.len(),
        fired.len()
    );
    assert!(
        wanted.len() > usize::from(Setup::default().partitions) / 2,
        "only {wanted:?} had something to fire"
    );
    let silent: Vec<u16> = wanted.difference(&fired).copied().collect();
    let is_silent = |entry: &&Entry| entry.note.partition().is_some_and(|p| silent.contains(&p));
    let owners: Vec<_> = outcome.history.journal.iter().filter(is_silent).collect();
    assert!(
        silent.is_empty(),
        "{silent:?} fired nothing from {alone} to {freed}; their partitions: {owners:#?}"
    );
}
