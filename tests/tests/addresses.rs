//! An address belongs to one broker: a second one that would advertise it refuses to start while
//! the first one answers there. A broker that is not reached at its address does not become ready.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::time::Duration;

use mtimer_protocol::{Query, QueryAnswer};
use mtimer_tests::{Broker, Launch, Server, ServerOptions, Wire, wait_for};

/// The exit code of a broker whose advertised address is another live broker's.
const ADDRESS_TAKEN: i32 = 15;
/// The exit code of a broker that has not become ready in time.
const NOT_NOW: i32 = 13;
/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(30);

fn launch(redis: &Server) -> Launch {
    Launch::redis(&redis.url()).flags(["--cluster", "t", "--partitions", "8"])
}

/// The term of the cluster as this broker knows it: it rises with every election.
async fn term(broker: &Broker) -> u64 {
    let mut wire = Wire::open(&broker.address()).await;
    match wire.ask(Query::Cluster).await {
        Some(QueryAnswer::Cluster(view)) => view.topology.term.0,
        other => panic!("no view of the cluster: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_broker_with_the_same_address_refuses_to_start() {
    let redis = Server::start_with(ServerOptions::default());
    let first = launch(&redis).start();
    let address = first.address();
    let before = term(&first).await;
    let second = launch(&redis).advertise(&address);
    let (code, log) = tokio::task::spawn_blocking(move || second.refused()).await.unwrap();
    assert_eq!(code, Some(ADDRESS_TAKEN), "{log}");
    assert!(log.contains(&address) && log.contains("--advertise"), "{log}");
    // The first one leads on, under the term that it had.
    assert_eq!(term(&first).await, before);
    assert!(first.client().await.status().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_a_dead_broker_can_be_used_at_once() {
    let redis = Server::start_with(ServerOptions::default());
    let mut first = launch(&redis).start();
    let address = first.address();
    // Its own address, right after a crash: the last topology names it and its lease has not run
    // out.
    first.kill();
    let first = tokio::task::spawn_blocking(move || {
        first.restart();
        first
    })
    .await
    .unwrap();
    assert_eq!(first.address(), address);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_nobody_reaches_at_its_address_does_not_become_ready() {
    let redis = Server::start_with(ServerOptions::default());
    let mut first = launch(&redis).start();
    let address = first.address();
    first.kill();
    // At another port, under the address of the dead one.
    let other = launch(&redis).advertise(&address).flags(["--startup-timeout", "3s"]);
    let (code, log) = tokio::task::spawn_blocking(move || other.refused()).await.unwrap();
    assert_eq!(code, Some(NOT_NOW), "{log}");
    let named = format!("nobody reaches this broker at its advertised address: {address}");
    assert!(log.contains(&named), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_brokers_that_found_the_address_free_the_one_that_listens_there_goes_on() {
    let redis = Server::start_with(ServerOptions::default());
    let mut first = launch(&redis).start();
    let address = first.address();
    first.kill();
    let free = tokio::net::TcpListener::bind(&address).await.unwrap();
    let other = launch(&redis).advertise(&address);
    let second = tokio::task::spawn_blocking(move || other.refused());
    // Whoever takes connections there is no broker. With the second one it has found the address
    // free, and has started.
    for _ in 0..2 {
        drop(free.accept().await.unwrap());
    }
    drop(free);
    let first = tokio::task::spawn_blocking(move || {
        first.restart();
        first
    });
    let first = first.await.unwrap();
    let (code, log) = second.await.unwrap();
    assert_eq!(code, Some(ADDRESS_TAKEN), "{log}");
    assert!(log.contains(&address) && log.contains("--advertise"), "{log}");
    let mut wire = Wire::open(&first.address()).await;
    let leads = async || match wire.ask(Query::Cluster).await {
        Some(QueryAnswer::Cluster(view)) => view.leads && view.topology.owners.iter().all(Option::is_some),
        other => panic!("no view of the cluster: {other:?}"),
    };
    wait_for("the first one to lead", TIMEOUT, leads).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_another_cluster_at_the_address_is_named() {
    let (one, other) =
        (Server::start_with(ServerOptions::default()), Server::start_with(ServerOptions::default()));
    let first = launch(&one).start();
    let second = Launch::redis(&other.url())
        .flags(["--cluster", "u", "--partitions", "8"])
        .advertise(&first.address())
        .flags(["--startup-timeout", "3s"]);
    let (code, log) = tokio::task::spawn_blocking(move || second.refused()).await.unwrap();
    assert_eq!(code, Some(NOT_NOW), "{log}");
    assert!(log.contains("is another broker's") && log.contains("of cluster \\\"t\\\""), "{log}");
}
