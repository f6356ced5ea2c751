//! Finding a broker by the cluster's Redis: one server, a Redis Cluster, and a lead that changes.

#![allow(clippy::unwrap_used)]

mod fake;

use std::time::Duration;

use fake::{Broker, Cluster, until};
use mtimer_client::{Client, ConnectError};
use mtimer_store_redis::test_support::{Server, TestCluster};

fn lead(server: &Server, broker: &Broker) {
    server.call::<()>(&["SET", "leader:{main}", &format!("{} 17 4", broker.address)]);
}

async fn cluster() -> Cluster {
    Cluster { brokers: vec![Broker::start().await, Broker::start().await], peers: vec![] }
}

#[tokio::test]
async fn the_leader_is_looked_up_again_whenever_there_is_no_connection() {
    let server = Server::start();
    let cluster = cluster().await;
    lead(&server, &cluster.brokers[0]);
    let only = |n: usize| cluster.topology_of(n as u64 + 1, &[n], |_| 0);
    let (first, second) = (only(0), only(1));
    let builder = Client::builder().redis(server.url(), "main");
    let (client, peer) = tokio::join!(builder.connect(), cluster.brokers[0].join(&first));
    let client = client.unwrap();
    assert_eq!(client.info().broker, cluster.brokers[0].address);
    lead(&server, &cluster.brokers[1]);
    drop(peer);
    let _peer = cluster.brokers[1].join(&second).await;
    until("it has found the new leader", || client.info().broker == cluster.brokers[1].address).await;
}

#[tokio::test]
async fn any_node_of_a_redis_cluster_will_do() {
    let redis = TestCluster::start();
    let at = redis.node_of("leader:{main}");
    let broker = Broker::start().await;
    lead(&redis.nodes[at], &broker);
    for node in &redis.nodes {
        let builder = Client::builder().redis(node.url(), "main");
        let (client, _peer) = tokio::join!(builder.connect(), broker.accept());
        assert_eq!(client.unwrap().info().broker, broker.address);
    }
    // In the middle of a migration the key is asked for at both.
    let other = (at + 1) % 3;
    redis.begin_migration("leader:{main}", at, other);
    redis.migrate_keys("leader:{main}", at, other);
    let builder = Client::builder().redis(redis.nodes[at].url(), "main");
    let (client, _peer) = tokio::join!(builder.connect(), broker.accept());
    client.unwrap();
}

#[tokio::test]
async fn without_a_leader_or_a_redis_the_reason_is_told() {
    let server = Server::start();
    let connect = |url: String| {
        let timeout = Duration::from_millis(100);
        async move { Client::builder().redis(url, "main").connect_timeout(timeout).connect().await.unwrap_err() }
    };
    let error = connect(server.url()).await;
    assert!(matches!(&error, ConnectError::Redis { .. }) && error.is_retryable(), "{error}");
    assert!(error.to_string().contains("no broker leads the cluster \"main\""), "{error}");
    server.call::<()>(&["MSET", "meta:{shop}", "1", "meta:{main}", "1", "meta:no", "1", "other", "1"]);
    let error = connect(server.url()).await.to_string();
    assert!(error.contains("leads the cluster \"main\" just now; this Redis holds \"shop\""), "{error}");
    server.call::<()>(&["SET", "leader:{main}", "nonsense"]);
    assert!(matches!(connect(server.url()).await, ConnectError::Redis { .. }));
    let url = server.url();
    drop(server);
    let error = connect(url).await;
    assert!(matches!(&error, ConnectError::Redis { .. }) && error.is_retryable(), "{error}");
    assert!(matches!(connect("what is this".into()).await, ConnectError::RedisUrl));
}

#[tokio::test]
async fn addresses_that_are_given_too_are_tried_first() {
    let server = Server::start();
    let cluster = cluster().await;
    lead(&server, &cluster.brokers[1]);
    let builder = cluster.brokers[0].client().redis(server.url(), "main");
    let (client, _peer) = tokio::join!(builder.connect(), cluster.brokers[0].accept());
    assert_eq!(client.unwrap().info().broker, cluster.brokers[0].address);
}
