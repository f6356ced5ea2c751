//! Planned changes, of which no client notices anything: rolling restarts, a broker that joins and
//! leaves.

use std::collections::BTreeSet;

use mtimer_protocol::Topology;
use mtimer_tests::{Excuse, History, fires, lateness, long};

use crate::scene::{Outcome, Scene, failed, now, on_masters};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_restarted_one_after_the_other() {
    let mut scene = Scene::begin("rolling restart", on_masters()).await;
    let began = now();
    for round in 0..if long() { 2 } else { 1 } {
        for member in 0..scene.cluster.members.len() {
            let from = now();
            scene.cluster.stop(member).await;
            let stopped = now();
            scene.cluster.restart(member).await;
            scene.cluster.settled().await;
            let ended = now();
            println!(
                "rolling restart: round {round}, broker {member}: stop {} ms, start {} ms",
                stopped - from,
                ended - stopped
            );
            scene.note(from, format!("broker {member} restarted"), Excuse::Nothing);
            scene.flows().await;
        }
    }
    let over = now();
    for member in scene.cluster.up().collect::<Vec<_>>() {
        let mut counts = Vec::new();
        for name in
            ["settle_late_total", "settle_not_yours_total", "late_acknowledged_total", "timed_out_total"]
        {
            counts.push((name, scene.cluster.counter(member, name).await));
        }
        println!("rolling restart: broker {member}: {counts:?}");
    }
    let outcome = scene.end().await;
    unnoticed(&outcome);
    let roll = lateness(&outcome.history, |f| (began..over).contains(&f.ready));
    println!("rolling restart: lateness during the roll: {roll}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_joins_and_leaves() {
    let mut scene = Scene::begin("join and leave", on_masters()).await;
    let calm = now();
    scene.flows().await;
    let before = topology(&scene).await;
    let joins = now();
    let fourth = scene.cluster.add().await;
    scene.cluster.settled().await;
    let joined = now();
    scene.note(joins, "a fourth broker joined", Excuse::Nothing);
    let with = topology(&scene).await;
    scene.flows().await;
    let leaves = now();
    scene.cluster.stop(fourth).await;
    scene.cluster.settled().await;
    let left = now();
    scene.note(leaves, "the fourth broker left", Excuse::Nothing);
    let after = topology(&scene).await;
    scene.flows().await;
    let outcome = scene.end().await;
    unnoticed(&outcome);

    let (in_moved, out_moved) = (moved(&before, &with), moved(&with, &after));
    // All brokers count the same: the fourth gets its share, and gives up just that.
    let share = before.owners.len() / 4;
    println!(
        "join and leave: {} partitions moved in, {} out, of {}",
        in_moved.len(),
        out_moved.len(),
        before.owners.len()
    );
    assert_eq!((in_moved.len(), out_moved.len()), (share, share), "more moved than had to");
    let history = &outcome.history;
    print_lateness("before", history, calm, joins, &BTreeSet::new());
    print_lateness("others while it joins", history, joins, joined, &in_moved);
    print_lateness("others while it leaves", history, leaves, left, &out_moved);
    print_moved("moved while it joins", history, joins, joined, &in_moved);
    print_moved("moved while it leaves", history, leaves, left, &out_moved);
}

async fn topology(scene: &Scene) -> Topology {
    scene.cluster.view_of(0).await.unwrap().topology
}

/// Partitions with another owner than before.
fn moved(before: &Topology, after: &Topology) -> BTreeSet<u16> {
    let partitions = (0..before.owners.len() as u16).map(mtimer_client::PartitionId);
    partitions.filter(|p| before.owner(*p) != after.owner(*p)).map(|p| p.0).collect()
}

fn print_lateness(what: &str, history: &History, from: u64, to: u64, but: &BTreeSet<u16>) {
    let spread = lateness(history, |f| (from..to).contains(&f.ready) && !but.contains(&f.partition));
    println!("join and leave: lateness, {what}: {spread}");
}

fn print_moved(what: &str, history: &History, from: u64, to: u64, only: &BTreeSet<u16>) {
    let spread = lateness(history, |f| (from..to).contains(&f.ready) && only.contains(&f.partition));
    println!("join and leave: lateness, {what}: {spread}");
}

/// No call failed, and the checker, which was given no excuse, has found no duplicate.
fn unnoticed(outcome: &Outcome) {
    let failed = failed(&outcome.history);
    for (serial, event) in failed.iter().take(5) {
        eprintln!("failed: timer {serial}: {event:?}");
    }
    assert!(failed.is_empty(), "{} client calls failed during planned changes", failed.len());
    assert!(outcome.verdict.losses.is_empty());
    assert!(!fires(&outcome.history).is_empty());
}
