//! Redis Cluster: the node to which a hash slot migrates fails over, and its replica lags: keys are
//! gone, for their former node deletes each as soon as the new one has it.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use mtimer_store::counters::LOST_SLOTS;
use mtimer_store::ops::SettleAnswer;
use mtimer_store::{Answer, LaneError, ScheduleAnswer, Store};
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::{Proxy, Server, TestCluster};
use mtimer_types::{Time, Timer};
use support::lines::Lines;
use support::losing::OWNER;
use support::owner::{Owner, PARTITION, ack, connect, now, schedule, timer};
use support::{WITHIN, until};
use tokio::time::timeout;

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

/// A hash slot that migrates to a master whose replica lags: what comes to the master does not come
/// to the replica.
struct Migration {
    cluster: TestCluster,
    from: usize,
    to: usize,
    replica: Server,
    proxy: Proxy,
}

impl Migration {
    async fn start() -> Self {
        let mut cluster = TestCluster::start();
        let from = cluster.node_of(OWNER);
        let to = (from + 1) % 3;
        let proxy = Proxy::start(&cluster.nodes[to].address()).await;
        let replica = tokio::task::block_in_place(|| {
            cluster.announce(to, proxy.port());
            cluster.add_replica(to)
        });
        cluster.wait_until_listed(&replica);
        Self { cluster, from, to, replica, proxy }
    }

    /// Begins, and moves the keys of which this is so.
    fn begin(&self, goes: impl Fn(&str) -> bool) -> Vec<String> {
        let Self { cluster, from, to, .. } = self;
        // Valkey refuses this to a master whose replica lags.
        cluster.begin_migration(OWNER, *from, *to);
        self.proxy.hold_replicas();
        let keys = cluster.nodes[*from].keys().into_iter().filter(|key| key.contains("{2}"));
        let going: Vec<String> = keys.filter(|key| goes(key)).collect();
        let port = cluster.nodes[*to].port().to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(going.iter().map(String::as_str));
        cluster.nodes[*from].call::<()>(&migrate);
        going
    }

    /// The master to which the hash slot goes is dead, and its replica takes its place: what was
    /// moved is gone from every node.
    async fn fail_over(&mut self, moved: &[String]) {
        let former = self.cluster.node_id(self.to);
        self.cluster.nodes[self.to].kill();
        self.proxy.down();
        let left = self.replica.keys();
        assert!(moved.iter().all(|key| !left.contains(key)), "the replica has {left:?}");
        self.replica.call::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        let promoted: String = self.replica.call(&["CLUSTER", "MYID"]);
        let others = [self.from, 3 - self.from - self.to].map(|n| &self.cluster.nodes[n]);
        let follows = |node: &Server| {
            let slots = slots_of(node, &promoted);
            slots.is_some_and(|slots| !slots.is_empty())
                && slots_of(node, &former).is_none_or(|s| s.is_empty())
        };
        until("the others know who took over", || others.iter().all(|node| follows(node))).await;
        std::mem::swap(&mut self.cluster.nodes[self.to], &mut self.replica);
    }

    /// Goes on where the failover has interrupted it.
    fn finish(&self) {
        let Self { cluster, from, to, .. } = self;
        cluster.begin_migration(OWNER, *from, *to);
        cluster.migrate_keys(OWNER, *from, *to);
        cluster.finish_migration(OWNER, *to);
    }

    fn slot(&self) -> String {
        self.cluster.hash_slot(OWNER).to_string()
    }
}

/// The hash slots of a node, as another one knows them; nothing if that does not know it.
fn slots_of(node: &Server, id: &str) -> Option<Vec<String>> {
    let nodes: String = node.call(&["CLUSTER", "NODES"]);
    let line = nodes.lines().find(|line| line.starts_with(id))?;
    Some(line.split(' ').skip(8).filter(|slots| !slots.starts_with('[')).map(str::to_owned).collect())
}

/// What is done with a slot that is lost before anybody loads it.
enum Before {
    Nothing,
    /// One of its timers is acknowledged.
    Acknowledged,
    /// Another owner acquires the partition.
    TakenOver,
}

/// The owner record and all other keys come to the promoted replica afterwards: the sequence number
/// shows nothing.
async fn loses_one_slot(before: Before) {
    let lines = Lines::collect();
    let mut migration = Migration::start().await;
    let mut owner = Owner::of(connect(RedisOptions::new(migration.cluster.urls(), "t")).await).await;
    // The first two are in one slot.
    let [at, later] = [600_000, 7_200_000].map(|ms| Time::from_ms((now() + ms).as_ms() / 60_000 * 60_000));
    let timers = [timer(at, 5), timer(at + 1, 5), timer(later, 5)];
    owner.apply(timers.iter().map(schedule).collect()).await;
    let from = migration.cluster.nodes[migration.from].address();
    let length = |key: &str| migration.cluster.nodes[migration.from].call::<u64>(&["HLEN", key]);
    let slots: Vec<_> = migration.cluster.keys().into_iter().filter(|key| key.starts_with("slot:")).collect();
    let lost = slots.iter().find(|key| length(key) == 2).unwrap_or_else(|| panic!("{slots:?} at {from}"));
    let moved = migration.begin(|key| key == lost);
    assert_eq!(moved, std::slice::from_ref(lost));
    migration.fail_over(&moved).await;
    migration.finish();
    match before {
        Before::Nothing => {}
        Before::Acknowledged => {
            assert_eq!(owner.one(ack(timers[0].id)).await, Answer::Settle(SettleAnswer::Gone))
        }
        Before::TakenOver => owner = Owner::of(owner.store).await,
    }
    let loaded = timeout(WITHIN, owner.load(now() + 24 * 3_600_000)).await.unwrap();
    let left: Vec<_> = loaded.iter().map(|timer| timer.record.timer.id).collect();
    assert_eq!(left, [timers[2].id]);
    assert_eq!(lines.with("a slot with timers is empty: the store lost keys"), 1);
    assert!(owner.store.counters().contains(&(LOST_SLOTS, 1)), "{:?}", owner.store.counters());
    assert_eq!(owner.one(ack(timers[2].id)).await, Answer::Settle(SettleAnswer::Done));
    assert_eq!(owner.one(schedule(&timers[0])).await, NEW);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_the_new_node_of_its_hash_slot_loses_by_a_failover_is_told_of() {
    loses_one_slot(Before::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_a_migration_has_lost_is_told_of_after_one_of_its_timers_was_not_found() {
    loses_one_slot(Before::Acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_a_migration_has_lost_is_told_of_by_the_next_owner() {
    loses_one_slot(Before::TakenOver).await;
}

/// Everything was moved, and the migration was over. The replica that takes over has nothing of it,
/// and the log of the owner has nothing, either: it was safe where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_migrated_record_is_lost_by_a_failover_ends_and_says_so() {
    let lines = Lines::collect();
    let mut migration = Migration::start().await;
    let store = connect(RedisOptions::new(migration.cluster.urls(), "t")).await;
    let owner = Owner::of(store.clone()).await;
    let timers: Vec<Timer> = (0..20).map(|n| timer(now() + 600_000 + n * 700, 5)).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    until("the writes are safe", || store.log_status().bytes == 0).await;
    let moved = migration.begin(|_| true);
    assert!(moved.contains(&OWNER.to_owned()), "{moved:?}");
    let (slot, id) = (migration.slot(), migration.cluster.node_id(migration.to));
    let to = &migration.cluster.nodes[migration.to];
    if let Err(error) = to.try_call::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]) {
        assert!(error.to_string().contains("NOREPLICAS"), "{error}");
        println!(
            "this server (Valkey) ends no migration to a master whose replica lags: it cannot lose this"
        );
        return;
    }
    migration.cluster.finish_migration(OWNER, migration.to);
    until("the replica knows what its master has", || {
        slots_of(&migration.replica, &id).is_some_and(|slots| slots.contains(&slot))
    })
    .await;
    migration.fail_over(&moved).await;
    let ended = timeout(WITHIN, owner.try_apply(vec![schedule(&timer(now(), 1))])).await;
    assert_eq!(ended, Ok(Err(LaneError::RolledBack(PARTITION))));
    assert_eq!(lines.with("the store lost writes that the log does not have any more"), 1);
    assert_eq!(store.log_status().replayed, 0);
}
