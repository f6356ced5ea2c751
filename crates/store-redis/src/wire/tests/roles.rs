//! Servers that are replaced while connections to them live on, and servers that disagree about who
//! is master.

use super::*;
use crate::wire::watch;

/// A master, its replica, and one address that leads to whichever is said.
async fn behind_one_address() -> (Server, Server, Proxy) {
    let master = Server::start();
    let replica = master.add_replica();
    let address = Proxy::start(&master.address()).await;
    (master, replica, address)
}

/// The replica takes over, and new connections go there.
fn replace(master: &Server, replica: &Server, address: &Proxy) {
    master.wait_for_replica(replica);
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    address.lead_to(&replica.address());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_server_loses_its_connections_and_its_name_is_resolved_again() {
    let (master, replica, address) = behind_one_address().await;
    let servers = discover(vec![address.url()]).await;
    let all = [Purpose::Partitions, Purpose::Urgent, Purpose::Trimming, Purpose::Quorum]
        .map(|purpose| servers.over(Use { purpose, ..LONG_TIMEOUT }));
    for servers in &all {
        ask(servers, 99, &incr("n")).await.unwrap();
    }
    replace(&master, &replica, &address);
    let (host, port) = replica.address().split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
    master.call::<()>(&["REPLICAOF", &host, &port]);
    for (servers, n) in all.iter().zip(5..) {
        assert_eq!(ask(servers, 99, &incr("n")).await.unwrap(), Value::Int(n));
    }
    until("the connections to the demoted server are closed", || clients(&master) == 0).await;
}

/// Nobody says so: the former master still takes itself for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_leads_to_another_master_is_followed() {
    let (master, replica, address) = behind_one_address().await;
    let servers = discover(vec![address.url()]).await;
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(1));
    replace(&master, &replica, &address);
    watch::check(&servers).await;
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(2));
    assert_eq!(replica.call::<u8>(&["GET", "n"]), 2);
    until("the connections to the former master are closed", || clients(&master) == 0).await;
}

/// A name that leads to replicas, too, does not take the master away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_leads_to_a_replica_changes_nothing_while_the_master_is_one() {
    let (master, replica, address) = behind_one_address().await;
    let servers = discover(vec![address.url()]).await;
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(1));
    address.lead_to(&replica.address());
    watch::check(&servers).await;
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(2));
    assert_eq!(master.call::<u8>(&["GET", "n"]), 2);
}

/// Sentinels promote a replica seconds before they say so, and it leaves its master at once.
#[tokio::test]
async fn a_replica_that_has_left_counts_for_another_while() {
    let master = Server::start();
    let replica = master.add_replica();
    let servers = discover(vec![master.url()]).await;
    assert_eq!(servers.replicas(99), Some(1));
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    until("it has left", || master.call::<String>(&["INFO", "replication"]).contains("connected_slaves:0"))
        .await;
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.replicas(99), Some(1));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    tokio::time::resume();
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.replicas(99), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_with_a_higher_epoch_wins() {
    let (former, mut master) = (Server::start(), Server::start());
    let stale = Sentinels::start_one("shop", &former, &[]);
    let mut fresh = Sentinels::start_one("shop", &master, &["sentinel config-epoch shop 5"]);
    let (seeds, access) =
        RedisOptions::new([stale.urls(), fresh.urls()].concat(), "t").check().expect("usable options");
    let servers = Servers::discover(seeds, pool(access), LONG_TIMEOUT).await.unwrap();
    for _ in 0..10 {
        assert_eq!(servers.masters(), [master.address()]);
        watch::check(&servers).await;
    }
    assert!(!servers.is_unsure());
    // A lower one does not take the master away that was known by a higher one.
    fresh.kill(0);
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [master.address()]);
    assert!(servers.is_unsure(), "half of the Sentinels do not answer");
    // Unless it is gone: the Sentinels may have been set up anew.
    master.kill();
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [former.address()]);
}

/// A master that is cut off from its cluster has a stale map.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_with_a_higher_epoch_wins() {
    let cluster = TestCluster::start();
    let replica = cluster.add_replica(0);
    cluster.isolate(0);
    replica.call::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    let promoted = replica.port().to_string();
    until("the others follow", || {
        cluster.nodes[1..].iter().all(|node| {
            let nodes: String = node.call(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.contains(&format!(":{promoted}@")) && line.contains(" 0-"))
        })
    })
    .await;
    let servers = discover(cluster.urls()).await;
    for _ in 0..20 {
        assert_eq!(servers.master_address(0), Some(replica.address()));
        assert_eq!(servers.master_address(16_383), Some(cluster.nodes[2].address()));
        servers.rediscover(None).await.unwrap();
    }
}
