//! Redis Cluster: a hash slot that migrates under a lane.

mod support;

use std::time::Duration;

use mtimer_store::counters::LOST_SLOTS;
use mtimer_store::ops::SettleAnswer;
use mtimer_store::{Answer, Health, LaneError, ScheduleAnswer, Store};
use mtimer_store_redis::test_support::TestCluster;
use mtimer_store_redis::{RedisOptions, RedisStore};
use mtimer_types::{Target, Time, Timer};
use support::lines::Lines;
use support::owner::{Owner, PARTITION, ack, acquire, connect, dest, keyed, now, schedule, timer};

const KEY: &str = "owner:{2}:t";
const WITHIN: Duration = Duration::from_secs(60);
const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

async fn owner(cluster: &TestCluster) -> Owner {
    Owner::of(connect(RedisOptions::new(cluster.urls()[..1].to_vec(), "t")).await).await
}

/// Timers that are due from `first` on, one every 700 ms, every fifth of them with a key.
fn timers(name: &str, first: Time, n: u64) -> Vec<Timer> {
    (0..n)
        .map(|n| {
            let due = first + n * 700;
            if n % 5 == 0 { keyed(due, &format!("{name}{n}")) } else { timer(due, 5) }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_recognised_by_asking() {
    let cluster = TestCluster::start();
    let store = RedisStore::connect(RedisOptions::new(cluster.urls()[2..].to_vec(), "t")).await.unwrap();
    assert_eq!(store.info().kind, "redis-cluster");
    assert_eq!(store.clocks().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_costs_its_own_clock_only() {
    let cluster = TestCluster::start();
    let store = RedisStore::connect(RedisOptions::new(cluster.urls(), "t")).await.unwrap();
    let hung = cluster.nodes[1].address();
    for frozen in [false, true] {
        if frozen {
            cluster.nodes[1].freeze();
        }
        // One after the other: none waits for the one that hangs, which is not looked at meanwhile.
        for clock in store.clocks().into_iter().filter(|clock| !frozen || clock.name != hung) {
            let shown = clock.reading.await.unwrap();
            assert!((shown / 1_000).abs_diff(now().as_ms()) < 60_000, "{} shows {shown}", clock.name);
        }
    }
    let silent = store.clocks().into_iter().find(|clock| clock.name == hung).unwrap();
    assert!(silent.reading.await.is_err(), "a server that is silent is taken for lost");
    cluster.nodes[1].thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_survives_the_migration_of_its_hash_slot() {
    let cluster = TestCluster::start();
    let owner = owner(&cluster).await;
    let before = timers("a", now(), 200);
    assert!(owner.apply(before.iter().map(schedule).collect()).await.iter().all(|a| *a == NEW));
    let from = cluster.node_of(KEY);
    let to = (from + 1) % 3;
    // Half way, with everything still at the old node: a timer of a second that has no slot yet has
    // to wait.
    cluster.begin_migration(KEY, from, to);
    let during = timers("b", now() + 600_000, 50);
    let sent: Vec<_> = during.chunks(10).map(|c| owner.send(c.iter().map(schedule).collect())).collect();
    let acks: Vec<_> = before[..20].iter().map(|t| owner.send(vec![ack(t.id)])).collect();
    let mut health = owner.lane.health();
    health.wait_for(|h| matches!(h, Health::Down(_))).await.unwrap();
    // Half way, with everything at the new node.
    cluster.migrate_keys(KEY, from, to);
    cluster.finish_migration(KEY, to);
    for answers in sent {
        assert!(answers.await.unwrap().iter().all(|a| *a == NEW));
    }
    for answers in acks {
        assert_eq!(answers.await.unwrap(), [Answer::Settle(SettleAnswer::Done)]);
    }
    health.wait_for(|h| *h == Health::Up).await.unwrap();
    // Nothing lost, nothing twice.
    let loaded = owner.load(now() + 3_600_000).await;
    assert_eq!(loaded.len(), 230);
    let key = before.iter().skip(20).find_map(|t| t.key.clone()).unwrap();
    assert!(owner.lane.get(Target::Key(dest(), key)).await.unwrap().is_some());
    let rest: Vec<_> = before[20..].iter().chain(&during).map(|t| ack(t.id)).collect();
    assert!(owner.apply(rest).await.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    let fixed = ["owner:", "meta:", "dest:", "term:", "ended:"];
    let left: Vec<_> =
        cluster.keys().into_iter().filter(|k| !fixed.iter().any(|f| k.starts_with(f))).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_half_of_the_keys_have_migrated_nothing_is_torn() {
    let cluster = TestCluster::start();
    let owner = owner(&cluster).await;
    let before = timers("a", now(), 300);
    owner.apply(before.iter().map(schedule).collect()).await;
    let from = cluster.node_of(KEY);
    let to = (from + 1) % 3;
    cluster.begin_migration(KEY, from, to);
    // Everything but the owner record and one slot goes.
    let keys: Vec<String> = cluster.nodes[from].keys().into_iter().filter(|k| k.contains("{2}")).collect();
    let going: Vec<_> = keys.iter().filter(|k| !k.starts_with("owner")).skip(1).map(String::as_str).collect();
    let port = cluster.nodes[to].port().to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(going);
    cluster.nodes[from].call::<()>(&migrate);
    let sent: Vec<_> = before.chunks(50).map(|c| owner.send(c.iter().map(|t| ack(t.id)).collect())).collect();
    let mut health = owner.lane.health();
    health.wait_for(|h| matches!(h, Health::Down(_))).await.unwrap();
    cluster.migrate_keys(KEY, from, to);
    cluster.finish_migration(KEY, to);
    for answers in sent {
        assert!(answers.await.unwrap().iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    }
    assert_eq!(owner.lane.census().await.unwrap(), mtimer_store::Census::default());
    // And an acquisition finds the new node.
    let next = acquire(&*owner.store).await;
    let refused = owner.try_apply(vec![schedule(&timer(now(), 1))]).await;
    assert!(matches!(refused, Err(LaneError::Fenced { partition: PARTITION, .. })));
    assert_eq!(next.lane.census().await.unwrap(), mtimer_store::Census::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_scripts_that_takes_a_hash_slot_over_is_given_them() {
    let cluster = TestCluster::start();
    let owner = owner(&cluster).await;
    let timers = timers("a", now(), 2);
    owner.apply(timers.iter().map(schedule).collect()).await;
    let from = cluster.node_of(KEY);
    let to = (from + 1) % 3;
    cluster.begin_migration(KEY, from, to);
    cluster.migrate_keys(KEY, from, to);
    cluster.nodes[to].call::<()>(&["SCRIPT", "FLUSH"]);
    // The old node answers ASK to everything, and goes on doing so.
    let answered = tokio::time::timeout(WITHIN, owner.apply(vec![ack(timers[1].id)])).await;
    assert_eq!(answered, Ok(vec![Answer::Settle(SettleAnswer::Done)]));
    cluster.finish_migration(KEY, to);
    assert_eq!(owner.one(ack(timers[0].id)).await, Answer::Settle(SettleAnswer::Done));
}

/// The last timer of a slot leaves, and with it the slot: the script must not come back to a key
/// that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_emptied_while_its_hash_slot_migrates_holds_nobody_up() {
    let cluster = TestCluster::start();
    let owner = owner(&cluster).await;
    let timers = [timer(now() + 600_000, 5), timer(now() + 7_200_000, 5)];
    owner.apply(timers.iter().map(schedule).collect()).await;
    let from = cluster.node_of(KEY);
    let to = (from + 1) % 3;
    let slots = || cluster.keys().into_iter().filter(|key| key.starts_with("slot:")).count();
    assert_eq!(slots(), 2);
    cluster.begin_migration(KEY, from, to);
    let answered = tokio::time::timeout(WITHIN, owner.apply(vec![ack(timers[0].id)])).await;
    assert_eq!(answered, Ok(vec![Answer::Settle(SettleAnswer::Done)]));
    assert_eq!(slots(), 1);
    let index: Vec<String> = cluster.nodes[from].call(&["ZRANGE", "zset:{2}:t", "0", "-1"]);
    assert_eq!(index.len(), 1, "the empty slot has left its index");
    cluster.migrate_keys(KEY, from, to);
    cluster.finish_migration(KEY, to);
    assert_eq!(owner.one(ack(timers[1].id)).await, Answer::Settle(SettleAnswer::Done));
}

/// The node that takes a hash slot over fails over, and its replica has not got a key that its
/// former node has deleted. The owner record shows nothing of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_lost_while_its_hash_slot_migrates_is_told_of() {
    let lines = Lines::collect();
    let cluster = TestCluster::start();
    let owner = owner(&cluster).await;
    let timers = [timer(now() + 600_000, 5), timer(now() + 7_200_000, 5)];
    owner.apply(timers.iter().map(schedule).collect()).await;
    let from = cluster.node_of(KEY);
    let to = (from + 1) % 3;
    cluster.begin_migration(KEY, from, to);
    cluster.migrate_keys(KEY, from, to);
    let lost = cluster.keys().into_iter().find(|key| key.starts_with("slot:")).unwrap();
    cluster.finish_migration(KEY, to);
    cluster.nodes[to].call::<()>(&["DEL", &lost]);
    assert_eq!(owner.load(now() + 24 * 3_600_000).await.len(), 1);
    assert_eq!(lines.with("a slot with timers is empty"), 1);
    assert!(owner.store.counters().contains(&(LOST_SLOTS, 1)));
    assert_eq!(owner.one(schedule(&timer(now() + 600_000, 5))).await, NEW);
}

/// The old master has forgotten the other nodes and answers `CLUSTERDOWN`, for good: it does not
/// hear that its replica was promoted, and names itself the master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_leaves_a_master_that_is_cut_off_from_its_cluster() {
    let cluster = TestCluster::start();
    let old = cluster.node_of(KEY);
    let replica = cluster.add_replica(old);
    cluster.wait_until_listed(&replica);
    let owner = Owner::of(connect(RedisOptions::new(cluster.urls(), "t")).await).await;
    let timers = timers("a", now(), 20);
    owner.apply(timers.iter().map(schedule).collect()).await;
    cluster.isolate(old);
    replica.call::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    let acks = timers.iter().map(|t| ack(t.id)).collect();
    let answers = tokio::time::timeout(WITHIN, owner.apply(acks)).await.expect("the replica is found");
    assert!(answers.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)), "{answers:?}");
    assert_eq!(*owner.lane.health().borrow(), Health::Up);
    assert!(cluster.is_down(old), "the old master has come back");
    // So does the next owner of the partition.
    let next = acquire(&*owner.store).await;
    assert_eq!(next.lane.census().await.unwrap(), mtimer_store::Census::default());
}
