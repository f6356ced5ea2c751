//! Cuts above a Redis Cluster: its nodes announce their addresses and brokers dial them, so no
//! proxy stands between. Each scene has a network of its own in which packets between two parties
//! vanish, both ways or one way.

use mtimer_tests::{Excuse, Place, Setup, apart, wait_for};

use crate::scene::{Scene, TIMEOUT, either, now, on_masters};

fn with_net() -> Setup {
    Setup { net: true, ..on_masters() }
}

/// What vanishes between one party and another.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Both,
    /// Only what the one says to the other.
    There,
    /// Only what the other says to the one.
    Back,
}

#[test]
fn a_broker_is_cut_off_from_a_redis_cluster() {
    apart(a_broker_is_cut_off_from_a_redis_cluster, broker_and_redis());
}

#[test]
fn a_broker_is_cut_off_from_the_leader_above_a_redis_cluster() {
    apart(a_broker_is_cut_off_from_the_leader_above_a_redis_cluster, broker_and_leader());
}

async fn broker_and_redis() {
    let scene = Scene::begin("net: broker and Redis Cluster", with_net()).await;
    for (what, cut, leads) in [
        ("both ways", Cut::Both, false),
        ("requests vanish", Cut::There, false),
        ("answers vanish", Cut::Back, false),
        ("the leader, both ways", Cut::Both, true),
    ] {
        let cluster = &scene.cluster;
        let leader = cluster.leader().await;
        let victim = if leads { leader } else { cluster.follower().await };
        let observer = cluster.up().find(|i| *i != victim).unwrap();
        let name = cluster.members[victim].name.clone();
        let from = now();
        scene.cut_net(scene.place(victim), &cluster.net.as_ref().unwrap().redis, cut);
        // It is there and is given nothing.
        let emptied = async || {
            let topology = cluster.view_of(observer).await.unwrap().topology;
            topology.leader != name && topology.partitions_of(&name).next().is_none()
        };
        wait_for("the partitions' move away from a broker without its store", TIMEOUT, emptied).await;
        let moved = now();
        scene.flows().await;
        tokio::time::sleep(either(0, 18)).await;
        let healed = now();
        cluster.net.as_ref().unwrap().heal();
        cluster.settled().await;
        println!(
            "{}, {what}: it had nothing left after {} ms, and its share again {} ms after healing",
            scene.name,
            moved - from,
            now() - healed
        );
        cluster.balanced().await;
        scene.note(from, format!("{name} and Redis cut, {what}"), Excuse::Duplicates);
    }
    scene.flows().await;
    scene.end().await;
}

async fn broker_and_leader() {
    let scene = Scene::begin("net: broker and leader", with_net()).await;
    for (what, cut) in
        [("both ways", Cut::Both), ("heartbeats vanish", Cut::There), ("answers vanish", Cut::Back)]
    {
        let cluster = &scene.cluster;
        let (leader, victim) = (cluster.leader().await, cluster.follower().await);
        let from = now();
        scene.cut_net(scene.place(victim), scene.place(leader), cut);
        scene.without(leader, victim).await;
        let quiet = cluster.journal.len();
        let moved = now();
        scene.flows().await;
        tokio::time::sleep(either(1, 18)).await;
        scene.is_quiet(quiet, what);
        let healed = now();
        cluster.net.as_ref().unwrap().heal();
        cluster.settled().await;
        println!(
            "{}, {what}: given up after {} ms, back {} ms after healing",
            scene.name,
            moved - from,
            now() - healed
        );
        cluster.balanced().await;
        scene.note(from, format!("broker {victim} and the leader cut, {what}"), Excuse::Duplicates);
    }
    scene.flows().await;
    scene.end().await;
}

impl Scene {
    fn place(&self, member: usize) -> &Place {
        self.cluster.members[member].place.as_ref().unwrap()
    }

    /// Cuts one party off from another.
    fn cut_net(&self, one: &Place, other: &Place, cut: Cut) {
        let net = self.cluster.net.as_ref().unwrap();
        if !matches!(cut, Cut::Back) {
            net.cut(one, other);
        }
        if !matches!(cut, Cut::There) {
            net.cut(other, one);
        }
    }
}
