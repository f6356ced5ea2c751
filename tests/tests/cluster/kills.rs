//! SIGKILL: of a follower, of the leader, of two of three.

use mtimer_tests::{Excuse, History, Spread, long, takeover};

use crate::scene::{Scene, on_masters, rounds};

/// Who dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Follower,
    Leader,
    Two,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_is_killed() {
    run("a follower is killed", Victim::Follower).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed() {
    run("the leader is killed", Victim::Leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_are_killed() {
    run("two of three are killed", Victim::Two).await;
}

async fn run(name: &'static str, victim: Victim) {
    let mut scene = Scene::begin(name, on_masters()).await;
    let mut deaths = Vec::new();
    for round in 1..=rounds() {
        let (leader, follower) = (scene.cluster.leader().await, scene.cluster.follower().await);
        let victims = match victim {
            Victim::Follower => vec![follower],
            Victim::Leader => vec![leader],
            Victim::Two => vec![leader, follower],
        };
        let at = victims.iter().map(|v| scene.cluster.kill(*v)).min().unwrap();
        scene.cluster.settled().await;
        scene.flows().await;
        for &v in &victims {
            scene.cluster.restart(v).await;
        }
        scene.cluster.balanced().await;
        let names: Vec<String> = victims.iter().map(|v| scene.cluster.members[*v].name.clone()).collect();
        scene.note(at, format!("round {round}, {victim:?} killed: {names:?}"), Excuse::Duplicates);
        deaths.push((names, at));
        scene.flows().await;
    }
    let outcome = scene.end().await;
    print_takeovers(name, &outcome.history, &deaths);
}

/// Prints how long it took others to fire what the dead had not.
fn print_takeovers(name: &str, history: &History, deaths: &[(Vec<String>, u64)]) {
    let all: Vec<_> = deaths.iter().map(|(names, at)| takeover(history, names, *at)).collect();
    for t in &all {
        println!("{name}: {t:?}");
    }
    let first = Spread::of(all.iter().filter_map(|t| t.first_ms));
    let last = Spread::of(all.iter().filter_map(|t| t.all_ms));
    println!("{name}: from the death to the first overdue fire elsewhere: {first}");
    println!("{name}: from the death until all overdue timers had fired: {last}");
    assert!(
        all.iter().all(|t| t.partitions > 0 && t.acquired_ms.is_some()),
        "nothing was taken over: {all:?}"
    );
    // Some of the partitions' timers came due in between; with a light load and one death, there
    // need be none.
    assert!(!long() || all.iter().any(|t| t.overdue > 0), "nothing was overdue: {all:?}");
}
