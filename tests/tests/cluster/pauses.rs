//! SIGSTOP for longer than the lease and the members' timeout, then SIGCONT: who comes back is a
//! stranger to what it owned.

use std::time::Duration;

use mtimer_tests::scrape::{sample, scrape};
use mtimer_tests::{Excuse, Note};

use crate::scene::{Scene, either, now, on_masters, rounds, with_http};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_is_paused() {
    run("an owner is paused", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_paused() {
    run("the leader is paused", true).await;
}

/// A broker that has come back.
#[derive(Clone, Copy, Debug)]
struct Back {
    /// Ownerships that the store ended by a refusal.
    ended: u64,
    /// Of these, so many say in the log that they were fenced.
    fenced: usize,
    /// The number of the broker.
    member: usize,
    stepped_down: Option<u64>,
}

async fn run(name: &'static str, leader: bool) {
    let mut scene = Scene::begin(name, with_http(on_masters())).await;
    let mut refused = 0;
    for round in 1..=rounds().min(3) {
        let back = pause(&mut scene, round, leader, either(3, 15)).await;
        assert!(back.ended > 0 && back.fenced > 0, "nothing of a broker that was paused was refused");
        assert!(!leader || back.stepped_down != Some(0), "a leader that was paused still leads");
        let text = scrape(&scene.cluster.members[back.member].broker);
        let shown = sample(&text, "mtimer_partition_ownerships_ended_total{reason=\"fenced\"}");
        assert!(shown >= back.fenced as f64, "{shown} of {back:?}");
        refused += back.ended;
    }
    println!("{name}: {refused} ownerships ended by the store's refusal");
    scene.end().await;
}

/// An owner is paused until the others have taken over, and for some time more.
pub(crate) async fn pause_an_owner(scene: &mut Scene, round: u32, more: Duration) {
    pause(scene, round, false, more).await;
}

async fn pause(scene: &mut Scene, round: u32, leader: bool, more: Duration) -> Back {
    let cluster = &mut scene.cluster;
    let victim = if leader { cluster.leader().await } else { cluster.follower().await };
    let name = cluster.members[victim].name.clone();
    let before = cluster.counter(victim, "lanes_ended_total").await;
    let from = cluster.pause(victim);
    // The others have taken over when this is so, however long it takes.
    cluster.settled().await;
    tokio::time::sleep(more).await;
    let logged = cluster.journal.len();
    let back = now();
    cluster.resume(victim);
    cluster.balanced().await;
    let ended = cluster.counter(victim, "lanes_ended_total").await - before;
    let lost = cluster.journal.since(logged);
    let fenced = lost.iter().filter(|e| e.broker == name && matches!(e.note, Note::Lost { .. })).count();
    let mut stale = Vec::new();
    for i in cluster.up().collect::<Vec<_>>() {
        stale.push(cluster.maybe_counter(i, "stale_frames_total").await);
    }
    let stepped_down = cluster.maybe_counter(victim, "stepped_down_total").await;
    println!(
        "{}: round {round}: paused for {} ms; lanes ended {ended}, fenced in the log {fenced}, stale frames \
         {stale:?}, stepped down {stepped_down:?}",
        scene.name,
        back - from,
    );
    scene.note(from, format!("round {round}: {name} paused until {back}"), Excuse::Delays);
    scene.flows().await;
    Back { ended, fenced, member: victim, stepped_down }
}
