//! Cuts between two parties, both ways and one way: the reachable side makes progress, and nothing
//! flaps.

use mtimer_tests::{Excuse, Note, Setup, Way, Ways, wait_for};

use crate::scene::{Scene, TIMEOUT, either, now, on_one};

fn with_proxies() -> Setup {
    Setup { fronts: true, backs: true, ..on_one() }
}

/// Topologies that are decided within a quiet time, at most, when nothing flaps: one for the
/// change, and one when the other side is heard of again.
const CHANGES: usize = 3;
/// The follower may win a lost lease: so often at most it is lost again.
const ROUNDS_OF_LUCK: u32 = 10;

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
        wait_for("the partitions' move away from a broker without its store", TIMEOUT, emptied).await;
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
        scene.cut_front(leader, victim, ways);
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
    scene.cut_front(leader, victim, Ways::back(Way::Lost));
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

/// The store loses the lease and its holder wins it again, under a higher term. What it said under
/// the old one is still on its way to a broker that has learned of the new one from the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leader_said_before_its_new_term_comes_late() {
    // Of two, only the other can win instead. It keeps the link while answers are held.
    let flags = ["--peer-timeout", "30s"].map(str::to_owned).to_vec();
    let setup = Setup { brokers: 2, flags, ..with_proxies() };
    let scene = Scene::begin("late frames", setup).await;
    let mut refused = 0;
    for round in 1..=ROUNDS_OF_LUCK {
        let (leader, victim) = (scene.cluster.leader().await, scene.cluster.follower().await);
        let before = scene.cluster.counter(victim, "stale_frames_total").await;
        let from = now();
        let same = scene.lease_lost_and_won_again(leader, victim).await;
        let links = scene.cluster.counter(victim, "leader_links_lost_total").await;
        scene.cluster.members[leader].front.as_ref().unwrap().heal();
        scene.cluster.balanced().await;
        refused = scene.cluster.counter(victim, "stale_frames_total").await - before;
        let links = scene.cluster.counter(victim, "leader_links_lost_total").await - links;
        println!(
            "{}: round {round}: the same leader again: {same}; stale frames {refused}, links lost by them {links}",
            scene.name
        );
        scene.note(from, format!("answers to broker {victim} late, the lease lost"), Excuse::Duplicates);
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "no frame of an older term was refused");
    scene.flows().await;
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
        let before = front.disturbed();
        front.set_for("client-1", ways);
        front.set_for("client-3", ways);
        tokio::time::sleep(either(4, 20)).await;
        scene.flows().await;
        assert!(front.disturbed() > before, "{what}: nothing was cut");
        front.heal();
        scene.cluster.settled().await;
        scene.flows().await;
        scene.note(from, format!("two clients and a broker cut, {what}"), Excuse::Delays);
    }
    scene.end().await;
}

impl Scene {
    /// Cuts what `member` says to `leader` and hears from it.
    fn cut_front(&self, leader: usize, member: usize, ways: Ways) {
        let label = self.cluster.members[member].broker.address();
        self.cluster.members[leader].front.as_ref().unwrap().set_for(&label, ways);
    }

    /// Waits until nobody but one is in the topology, and the others own everything.
    pub(crate) async fn without(&self, leader: usize, member: usize) {
        let others: Vec<usize> = self.cluster.up().filter(|i| *i != member).collect();
        assert!(others.contains(&leader));
        self.cluster.agree(&others).await;
    }

    /// Since this entry of the journal no more topologies came than a change takes.
    pub(crate) fn is_quiet(&self, since: usize, what: &str) {
        let of = |name: &String| {
            let entries = self.cluster.journal.since(since);
            let ours = entries.iter().filter(|e| e.broker == *name);
            ours.filter(|e| matches!(e.note, Note::Topology { .. })).count()
        };
        let counts: Vec<usize> = self.cluster.names().iter().map(of).collect();
        println!("{}, {what}: topologies learned while cut, by broker: {counts:?}", self.name);
        assert!(counts.iter().all(|n| *n <= CHANGES), "{}: it flaps: {counts:?}", self.name);
    }

    /// Holds back what the leader answers on a new connection of `follower`, takes the lease away,
    /// and returns when there is another term and the follower knows it. Whether the leader is the
    /// same.
    async fn lease_lost_and_won_again(&self, leader: usize, follower: usize) -> bool {
        let cluster = &self.cluster;
        let campaigned = async || cluster.counter(follower, "campaigns_total").await;
        let count = campaigned().await;
        let front = cluster.members[leader].front.as_ref().unwrap();
        self.cut_front(leader, follower, Ways::back(Way::GreetingOnly));
        front.reset();
        // Linked and not answered, it looks at the lease whenever that could have run out.
        let name = &cluster.members[follower].name;
        let waiting = async || {
            let view = cluster.view_of(leader).await.unwrap();
            let linked = view.members.iter().any(|m| m.address == *name && m.heartbeat_age_ms < 1_000);
            linked && campaigned().await >= count + 2
        };
        wait_for("a follower that looks at the lease", TIMEOUT, waiting).await;
        let before = cluster.view_of(leader).await.unwrap().topology.term;
        cluster.redis.one().call::<()>(&["DEL", "leader:{t}"]);
        let leads = async |broker| {
            cluster.view_of(broker).await.is_some_and(|view| view.leads && view.topology.term > before)
        };
        wait_for("another term", TIMEOUT, async || leads(leader).await || leads(follower).await).await;
        if !leads(leader).await {
            return false;
        }
        // The answer to one campaign is there when the next is sent.
        let count = campaigned().await;
        wait_for("a follower that knows the term", TIMEOUT, async || campaigned().await >= count + 2).await;
        true
    }
}
