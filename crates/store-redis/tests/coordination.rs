//! The lease on Redis, and obstacles that only Redis has. The rules for every store are in the
//! conformance suite.

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mtimer_store::{Campaigned, Candidate, Coordination, Lease, LeaseHolder, Store, StoreError, StoreFuture};
use mtimer_store_redis::test_support::{Server, TestCluster};
use mtimer_store_redis::{DEFAULT_PARTITIONS, RedisOptions};
use mtimer_types::{PartitionId, Term};
use support::owner::connect;

const LONG: u64 = 600_000;
const ADDRESS: &str = "10.0.0.1:7400";

fn candidate(address: &str) -> Candidate {
    Candidate { address: address.into(), incarnation: 7, ttl_ms: LONG, seen: Term(0) }
}

fn lease(term: Term) -> Lease {
    Lease { address: ADDRESS.into(), incarnation: 7, term }
}

async fn coordination(options: RedisOptions) -> Arc<dyn Coordination> {
    connect(options).await.coordination().expect("several brokers can share Redis")
}

/// Asks until there is an answer.
async fn sure<T>(ask: impl Fn() -> StoreFuture<T>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn win(store: &Arc<dyn Coordination>) -> Lease {
    match sure(|| store.campaign(candidate(ADDRESS))).await {
        Campaigned::Won { term, .. } => lease(term),
        held => panic!("{held:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_keys_share_the_clusters_hash_slot() {
    let server = Server::start();
    let store = coordination(RedisOptions::new([server.url()], "t")).await;
    let lease = win(&store).await;
    assert!(sure(|| store.publish(lease.clone(), Bytes::from_static(b"x"))).await);
    assert_eq!(server.call::<String>(&["GET", "leader:{t}"]), format!("{ADDRESS} 7 {}", lease.term.0));
    assert_eq!(server.call::<u64>(&["GET", "term:{t}"]), lease.term.0);
    assert_eq!(server.call::<String>(&["GET", "topology:{t}"]), "x");
    assert!(server.call::<i64>(&["PTTL", "leader:{t}"]) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_value_is_shown_and_left_alone() {
    let server = Server::start();
    let store = coordination(RedisOptions::new([server.url()], "t")).await;
    let long = "\u{e4}".repeat(300);
    for (value, shown) in [
        ("hello", "hello"),
        ("", ""),
        ("10.0.0.9:1 7 x", "10.0.0.9:1 7 x"),
        ("10.0.0.1:7400", "10.0.0.1:7400"),
        (&*long, &long[..254]),
    ] {
        server.call::<()>(&["SET", "leader:{t}", value]);
        let holder = LeaseHolder { address: shown.into(), term: Term(0), remaining_ms: None };
        let held = Campaigned::Held(holder);
        assert_eq!(sure(|| store.campaign(candidate("10.0.0.2:7400"))).await, held);
        for wrong in [Term(0), Term(1)] {
            assert!(!sure(|| store.renew(lease(wrong), LONG)).await);
            assert!(!sure(|| store.publish(lease(wrong), Bytes::new())).await);
            assert!(!sure(|| store.resign(lease(wrong))).await);
        }
        assert_eq!(server.call::<String>(&["GET", "leader:{t}"]), value);
        assert_eq!(server.keys(), ["leader:{t}", "meta:{t}"], "no term was raised for that");
    }
    server.call::<()>(&["DEL", "leader:{t}"]);
    server.call::<()>(&["HSET", "leader:{t}", "a", "b"]);
    server.call::<()>(&["PEXPIRE", "leader:{t}", "600000"]);
    match sure(|| store.campaign(candidate(ADDRESS))).await {
        Campaigned::Held(LeaseHolder { address, term: Term(0), remaining_ms: Some(1..=600_000) }) => {
            assert_eq!(address, "a hash");
        }
        other => panic!("{other:?}"),
    }
    assert!(!sure(|| store.renew(lease(Term(1)), LONG)).await);
    assert!(!sure(|| store.publish(lease(Term(1)), Bytes::new())).await);
    assert!(!sure(|| store.resign(lease(Term(1)))).await);
    assert_eq!(server.keys(), ["leader:{t}", "meta:{t}"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_with_spaces_is_refused() {
    let server = Server::start();
    let store = coordination(RedisOptions::new([server.url()], "t")).await;
    for bad in ["", "a b", "a\n1 2"] {
        let why = store.campaign(candidate(bad)).await.unwrap_err();
        assert!(matches!(&why, StoreError::Unusable(w) if w.contains("host:port")), "{why}");
    }
    assert_eq!(server.keys(), ["meta:{t}"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_were_lost_are_loaded_again() {
    let server = Server::start();
    let store = coordination(RedisOptions::new([server.url()], "t")).await;
    let lease = win(&store).await;
    server.call::<()>(&["SCRIPT", "FLUSH"]);
    assert!(sure(|| store.renew(lease.clone(), LONG)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_stopped_is_found_again() {
    let mut server = Server::start();
    let store = coordination(RedisOptions::new([server.url()], "t")).await;
    let old = win(&store).await;
    server.kill();
    let away = |answer: Result<bool, StoreError>| matches!(answer, Err(StoreError::Unavailable(_)));
    assert!(away(store.renew(old.clone(), LONG).await));
    assert!(away(store.resign(old.clone()).await));
    assert!(away(store.publish(old.clone(), Bytes::new()).await));
    assert!(matches!(store.campaign(candidate(ADDRESS)).await, Err(StoreError::Unavailable(_))));
    assert_eq!(store.unreachable().await.unwrap().len(), usize::from(DEFAULT_PARTITIONS));
    server.restart();
    assert!(!sure(|| store.renew(old.clone(), LONG)).await, "this server keeps nothing");
    assert!(win(&store).await.term > old.term, "and yet terms rise");
    while store.unreachable().await != Ok(vec![]) {}
}

/// The time limit for answers to lanes is an hour here: a test that waited for it would not end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_holds_nobody_up() {
    let server = Server::start();
    let slow_lanes =
        RedisOptions { answer_within: Duration::from_secs(3_600), ..RedisOptions::new([server.url()], "t") };
    let store = coordination(slow_lanes).await;
    let lease = win(&store).await;
    server.freeze();
    let calls = async {
        let renewed = store.renew(lease.clone(), LONG).await;
        assert!(matches!(&renewed, Err(StoreError::Unavailable(w)) if w.contains("answer")), "{renewed:?}");
        // Also when the connection has to be made again.
        while !matches!(store.campaign(candidate(ADDRESS)).await, Err(StoreError::Unavailable(_))) {}
        assert_eq!(store.unreachable().await.unwrap().len(), usize::from(DEFAULT_PARTITIONS));
    };
    let came_back = tokio::time::timeout(Duration::from_secs(120), calls).await;
    server.thaw();
    came_back.expect("no call waits for a server that hangs");
    assert!(sure(|| store.renew(lease.clone(), LONG)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_partitions_of_a_dead_node_cannot_be_reached() {
    let mut cluster = TestCluster::start();
    // One address is enough: the rest is found.
    let options =
        RedisOptions { partitions: Some(100), ..RedisOptions::new(cluster.urls()[..1].to_vec(), "t") };
    let store = coordination(options).await;
    while store.unreachable().await != Ok(vec![]) {}
    let dead = 1;
    let expected: Vec<_> =
        (0..100).filter(|p| cluster.node_of(&format!("owner:{{{p}}}:t")) == dead).map(PartitionId).collect();
    assert!(!expected.is_empty() && expected.len() < 100);
    cluster.nodes[dead].kill();
    let mut told = store.unreachable().await.unwrap();
    // A busy machine may be slow to answer for the living, too.
    while told != expected {
        assert!(expected.iter().all(|p| told.contains(p)), "{told:?}");
        told = store.unreachable().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_follows_its_hash_slot() {
    const KEY: &str = "leader:{t}";
    let cluster = TestCluster::start();
    let store = coordination(RedisOptions::new(cluster.urls()[..1].to_vec(), "t")).await;
    let lease = win(&store).await;
    let from = cluster.node_of(KEY);
    let to = (from + 1) % 3;
    cluster.begin_migration(KEY, from, to);
    cluster.migrate_keys(KEY, from, to);
    // Half way: ASK.
    assert!(sure(|| store.renew(lease.clone(), LONG)).await);
    cluster.finish_migration(KEY, to);
    // MOVED.
    assert!(sure(|| store.renew(lease.clone(), LONG)).await);
    assert_eq!(win(&store).await, lease);
}

/// A replica takes over: the lease may be lost or kept, terms rise, and the calls find the new
/// master by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_survives_the_failover_of_its_master() {
    const KEY: &str = "leader:{t}";
    let cluster = TestCluster::start();
    let master = cluster.node_of(KEY);
    let replica = cluster.add_replica(master);
    let store = coordination(RedisOptions::new(cluster.urls()[..1].to_vec(), "t")).await;
    let old = win(&store).await;
    let failing = &cluster.nodes[master];
    while failing.call::<i64>(&["WAIT", "1", "1000"]) < 1 {}
    cluster.nodes[master].freeze();
    // Asked all the while; nobody is told of the new master but by asking.
    let new = tokio::time::timeout(Duration::from_secs(120), win(&store)).await.expect("a new master");
    assert!(new.term >= old.term, "{new:?} after {old:?}");
    assert_eq!(replica.call::<String>(&["GET", KEY]), format!("{ADDRESS} 7 {}", new.term.0));
    while store.unreachable().await != Ok(vec![]) {}
    cluster.nodes[master].thaw();
}
