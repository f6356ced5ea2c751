//! Cuts between two parties, both ways and one way: the reachable side makes progress, and nothing flaps.

use mtimer_tests::{Excuse, Note, Setup, Way, Ways, wait_for};

use crate::scene::{PATIENCE, Scene, either, now, on_one};

fn with_proxies() -> Setup {
    Setup { fronts: true, backs: true, ..on_one() }
}

/// Topologies that are decided within a quiet time, at most, when nothing flaps: one for the change, and one when the
/// other side is heard of again.
const CHANGES: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_is_cut_off_from_redis() {
    let scene = Scene::begin("broker and Redis", with_proxies()).await;
    for (what, ways) in [
        ("both ways", Ways::both(Way::Lost)),
        ("requests vanish", Ways::there(Way::Lost)),
        ("answers vanish", Ways::back(Way::Lost)),
        ("held back", Ways::both(Way::Held)),
    ] {
        let victim = scene.cluster.follower().await;
        let name = scene.cluster.members[victim].name.clone();
        let from = now();
        scene.cluster.members[victim].back.as_ref().unwrap().set(ways);
        // It is there and is given nothing.
        let observer = scene.cluster.leader().await;
        let emptied = async || {
            let view = scene.cluster.view_of(observer).await.unwrap();
            view.topology.partitions_of(&name).next().is_none()
        };
        wait_for("the partitions' move away from a broker without its store", PATIENCE, emptied).await;
        let moved = now();
        scene.flows().await;
        tokio::time::sleep(either(1, 18)).await;
        let healed = now();
        scene.cluster.members[victim].back.as_ref().unwrap().heal();
        scene.cluster.settled().await;
        println!(
            "broker and Redis, {what}: it had nothing left after {} ms, and its share again {} ms after healing",
            moved - from,
            now() - healed
        );
        scene.cluster.balanced().await;
        scene.note(from, format!("{name} and Redis cut, {what}"), Excuse::Duplicates);
        scene.flows().await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_is_cut_off_from_the_leader() {
    let scene = Scene::begin("broker and leader", with_proxies()).await;
    for (what, ways) in [
        ("both ways", Ways::both(Way::Lost)),
        ("heartbeats vanish", Ways::there(Way::Lost)),
        ("answers vanish", Ways::back(Way::Lost)),
    ] {
        let (leader, victim) = (scene.cluster.leader().await, scene.cluster.follower().await);
        let from = now();
        scene.cut(leader, victim, ways);
        scene.without(leader, victim).await;
        let quiet = scene.cluster.journal.len();
        let moved = now();
        scene.flows().await;
        tokio::time::sleep(either(3, 18)).await;
        scene.is_quiet(quiet, what);
        let healed = now();
        scene.cluster.members[leader].front.as_ref().unwrap().heal();
        scene.cluster.settled().await;
        println!(
            "broker and leader, {what}: given up after {} ms, back {} ms after healing",
            moved - from,
            now() - healed
        );
        scene.cluster.balanced().await;
        scene.note(from, format!("broker {victim} and the leader cut, {what}"), Excuse::Duplicates);
        scene.flows().await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_never_hears_the_leader_again() {
    let mut scene = Scene::begin("a permanent one-way cut", with_proxies()).await;
    let (leader, victim) = (scene.cluster.leader().await, scene.cluster.follower().await);
    let from = now();
    scene.cut(leader, victim, Ways::back(Way::Lost));
    scene.without(leader, victim).await;
    let quiet = scene.cluster.journal.len();
    scene.flows().await;
    tokio::time::sleep(either(6, 60)).await;
    scene.flows().await;
    scene.is_quiet(quiet, "for good");
    scene.cluster.members[victim].up = false;
    scene.cluster.settled().await;
    scene.note(from, format!("broker {victim} hears no leader"), Excuse::Duplicates);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_cut_off_from_one_broker() {
    let scene = Scene::begin("client and broker", with_proxies()).await;
    for (what, ways) in [
        ("both ways", Ways::both(Way::Lost)),
        ("what the client says vanishes", Ways::there(Way::Lost)),
        ("what the broker says vanishes", Ways::back(Way::Lost)),
        ("held back", Ways::both(Way::Held)),
    ] {
        let from = now();
        let broker = &scene.cluster.members[0];
        let front = broker.front.as_ref().unwrap();
        // One with handlers and one that asks.
        front.set_for("client-1", ways);
        front.set_for("client-3", ways);
        tokio::time::sleep(either(4, 20)).await;
        scene.flows().await;
        front.heal();
        scene.cluster.settled().await;
        scene.flows().await;
        scene.note(from, format!("two clients and a broker cut, {what}"), Excuse::Duplicates);
    }
    scene.end().await;
}

impl Scene {
    /// Cuts what `member` says to `leader` and hears from it.
    fn cut(&self, leader: usize, member: usize, ways: Ways) {
        let label = self.cluster.members[member].broker.address();
        self.cluster.members[leader].front.as_ref().unwrap().set_for(&label, ways);
    }

    /// Waits until nobody but one is in the topology, and the others own everything.
    async fn without(&self, leader: usize, member: usize) {
        let others: Vec<usize> = self.cluster.up().filter(|i| *i != member).collect();
        assert!(others.contains(&leader));
        self.cluster.agree(&others).await;
    }

    /// Since this entry of the journal no more topologies came than a change takes.
    fn is_quiet(&self, since: usize, what: &str) {
        let of = |name: &String| {
            let entries = self.cluster.journal.since(since);
            let ours = entries.iter().filter(|e| e.broker == *name);
            ours.filter(|e| matches!(e.note, Note::Topology { .. })).count()
        };
        let counts: Vec<usize> = self.cluster.names().iter().map(of).collect();
        println!("{}, {what}: topologies learned while cut, by broker: {counts:?}", self.name);
        assert!(counts.iter().all(|n| *n <= CHANGES), "{}: it flaps: {counts:?}", self.name);
    }
}
