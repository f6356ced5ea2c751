//! Finding the master: several standalone servers, a cluster, failovers, migrations.

use super::*;
use crate::wire::{settings, watch};

#[tokio::test]
async fn of_several_standalone_servers_the_master_is_used() {
    let (mut master, mut replica) = (Server::start(), Server::start());
    let port = master.port().to_string();
    replica.call::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    until("replication", || master.call::<String>(&["INFO", "replication"]).contains("state=online")).await;
    let servers = discover(vec![replica.url(), master.url()]).await;
    assert!(!servers.is_cluster());
    assert_eq!(servers.master(99).await.unwrap().address(), master.address());
    assert_eq!((servers.masters(), servers.replicas(99)), (vec![master.address()], Some(1)));
    // While there is no other, it stays the master, even if it does not serve.
    let lost = servers.rediscover(Some(&master.address())).await.unwrap_err();
    assert!(lost.0.contains("not a master"), "{lost}");
    assert_eq!(servers.masters(), [master.address()]);
    // A second master changes nothing while the first is one.
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [master.address()]);
    // Unless the first one does not serve, as it reads its data.
    servers.rediscover(Some(&master.address())).await.unwrap();
    assert_eq!(servers.masters(), [replica.address()]);
    servers.rediscover(Some(&replica.address())).await.unwrap();
    master.kill();
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [replica.address()]);
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(1));
    replica.kill();
    let lost = servers.rediscover(None).await.unwrap_err();
    assert!(lost.0.contains(&master.address()) && lost.0.contains(&replica.address()), "{lost}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_master_no_more_is_forgotten_for_all_uses() {
    let master = Server::start();
    let replica = master.add_replica();
    let servers = discover(vec![master.url(), replica.url()]).await;
    let others = servers.over(Use { purpose: Purpose::Urgent, ..LONG_TIMEOUT });
    for servers in [&servers, &others] {
        ask(servers, 99, &incr("n")).await.unwrap();
    }
    assert_eq!(clients(&master), 2);
    master.wait_for_replica(&replica);
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    let (host, port) = replica.address().split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
    master.call::<()>(&["REPLICAOF", &host, &port]);
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [replica.address()]);
    until("both connections are closed", || clients(&master) == 0).await;
    assert_eq!(ask(&others, 99, &incr("n")).await.unwrap(), Value::Int(3));
}

#[tokio::test]
async fn a_replica_alone_is_refused_with_advice() {
    let (master, replica) = (Server::start(), Server::start());
    replica.call::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let (seeds, access) = RedisOptions::new([replica.url()], "t").check().unwrap();
    let lost = Servers::discover(seeds, pool(access), LONG_TIMEOUT).await.unwrap_err();
    assert!(lost.0.contains("give the master's address"), "{lost}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_found_and_a_failover_followed() {
    let mut cluster = TestCluster::start();
    let replica = cluster.add_replica(0);
    let key = (0..).map(|n| format!("{{{n}}}")).find(|key| cluster.node_of(key) == 0).unwrap();
    cluster.nodes[0].call::<()>(&["INCR", &key]);
    let servers = discover(vec![cluster.nodes[1].url()]).await;
    assert!(servers.is_cluster());
    let mut expected: Vec<_> = cluster.nodes.iter().map(Server::address).collect();
    expected.sort_unstable();
    assert_eq!(servers.masters(), expected);
    let slot = cluster.hash_slot(&key);
    assert_eq!((servers.replicas(slot), servers.replicas(16_383)), (Some(1), Some(0)));
    assert_eq!(ask(&servers, slot, &incr(&key)).await.unwrap(), Value::Int(2));
    replica.call::<()>(&["CLUSTER", "FAILOVER"]);
    until("failover", || replica.call::<String>(&["INFO", "replication"]).contains("role:master")).await;
    until("the old master follows", || {
        cluster.nodes[0].call::<String>(&["INFO", "replication"]).contains("role:slave")
    })
    .await;
    // The old master says MOVED, and is believed for this hash slot; the map tells of the others.
    assert_eq!(servers.master_address(slot), Some(cluster.nodes[0].address()));
    assert_eq!(ask(&servers, slot, &incr(&key)).await.unwrap(), Value::Int(3));
    assert_eq!(servers.master_address(slot), Some(replica.address()));
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.master_address(slot), Some(replica.address()));
}

/// It may be promoted with the old data that it still has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_waits_for_a_whole_copy_counts() {
    let cluster = TestCluster::start();
    cluster.nodes[0].cut_replicas_off();
    let replica = cluster.add_empty_replica(0);
    let slots = format!("{:?}", cluster.nodes[1].call::<Value>(&["CLUSTER", "SLOTS"]));
    assert!(!slots.contains(&format!("int({})", replica.port())), "it lists those with data only");
    let servers = discover(vec![cluster.nodes[1].url()]).await;
    assert_eq!(servers.replicas(0), Some(1));
}

/// A cluster tells TLS clients its TLS ports, if it is set to `tls-cluster`.
#[tokio::test]
async fn a_cluster_with_tls_is_found() {
    let authority = std::sync::Arc::new(Authority::new());
    let tls = Some(TlsPort { authority: authority.clone(), clients_too: false });
    let extra = ["--tls-cluster", "yes"].map(str::to_owned).to_vec();
    let server = Server::start_with(ServerOptions { cluster: true, tls, extra, ..ServerOptions::default() });
    server.call::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("the cluster is ok", || server.call::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        .await;
    let tls = ClientFiles { authorities: Some(authority.certificate()), ..ClientFiles::default() };
    let options = RedisOptions { tls, ..RedisOptions::new([server.tls_url()], "t") };
    let (seeds, access) = options.check().unwrap();
    let servers = Servers::discover(seeds.clone(), pool(access), LONG_TIMEOUT).await.unwrap();
    assert!(servers.is_cluster());
    assert_eq!(Seeds::Servers(servers.masters()), seeds);
    assert_eq!(ask(&servers, 99, &incr("{7}")).await.unwrap(), Value::Int(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirection_to_ask_is_followed_for_one_command() {
    let cluster = TestCluster::start();
    let servers = discover(cluster.urls()).await;
    let key = (0..).map(|n| format!("{{{n}}}")).find(|key| cluster.node_of(key) == 0).unwrap();
    let slot = cluster.hash_slot(&key);
    cluster.begin_migration(&key, 0, 1);
    // It is nowhere: the source says ASK, the target creates it. The target lacks scripts, too, and
    // is given them.
    cluster.nodes[1].call::<()>(&["SCRIPT", "FLUSH"]);
    let raise = Script::RaiseTerm.command(&[&key]);
    assert!(ask(&servers, slot, &raise).await.unwrap().number().is_some());
    assert!(cluster.nodes[0].keys().is_empty());
    assert_eq!(cluster.nodes[1].keys(), std::slice::from_ref(&key));
    assert_eq!(servers.master_address(slot), Some(cluster.nodes[0].address()));
    cluster.finish_migration(&key, 1);
    assert_eq!(ask(&servers, slot, &get(&key)).await.unwrap().refusal(), None);
    assert_eq!(servers.master_address(slot), Some(cluster.nodes[1].address()));
}

#[tokio::test]
async fn what_passes_is_waited_out_and_what_lasts_is_not() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let servers = discover(vec![proxy.url()]).await;
    let raise = Script::RaiseTerm.command(&["term:{t}"]);
    for passing in
        ["TRYAGAIN Multiple keys", "LOADING Redis is loading", "NOSCRIPT No matching", "OOM command"]
    {
        proxy.refuse("EVALSHA", passing);
        assert!(ask(&servers, 1, &raise).await.unwrap().number().is_some(), "{passing}");
    }
    proxy.lose_answer("EVALSHA");
    assert!(ask(&servers, 1, &raise).await.unwrap().number().is_some());
    proxy.refuse("EVALSHA", "NOPERM this user has no permissions");
    let refused = ask(&servers, 1, &raise).await.unwrap_err();
    assert!(matches!(&refused, mtimer_store::StoreError::Unusable(why) if why.contains("ACL")), "{refused}");
}

#[tokio::test]
async fn a_server_that_begins_to_evict_is_noticed() {
    let server = Server::start();
    let servers = discover(vec![server.url()]).await;
    assert!(!servers.may_evict(1) && !servers.append_only(1));
    server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.call::<()>(&["CONFIG", "SET", "appendonly", "yes"]);
    watch::check(&servers).await;
    assert!(servers.may_evict(1) && servers.append_only(1));
    server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    watch::check(&servers).await;
    assert!(!servers.may_evict(1));
}

/// The answers of a server take real time, the pause between two looks does not.
#[tokio::test]
async fn servers_in_use_are_looked_at_again_and_again() {
    let server = Server::start();
    let servers = discover(vec![server.url()]).await;
    let over = tokio_util::sync::CancellationToken::new();
    let watching = tokio::spawn(watch::watch(servers.clone(), over.clone(), |_| {}));
    for policy in ["allkeys-lru", "noeviction", "volatile-ttl"] {
        server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
        // The watch has to wait for its next look before time passes.
        tokio::task::yield_now().await;
        tokio::time::pause();
        tokio::time::advance(watch::CHECK_EVERY).await;
        tokio::time::resume();
        let noticed = async {
            while servers.may_evict(1) == (policy == settings::NO_EVICTION) {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        let noticed = tokio::time::timeout(watch::CHECK_EVERY / 2, noticed).await;
        assert!(noticed.is_ok(), "{policy} was not noticed within {:?}", watch::CHECK_EVERY);
    }
    over.cancel();
    watching.await.unwrap();
}
