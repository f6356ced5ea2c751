//! Which connections a client keeps to a cluster.

mod fake;

use std::time::Duration;

use fake::{Broker, Cluster, dest, id_in, until, welcome};
use mtimer_client::{Client, Schedule};
use mtimer_protocol::ops::CancelReply;
use mtimer_protocol::{OpReply, ServerMessage, Welcome};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn another_name_of_a_broker_makes_no_second_connection() {
    let mut cluster = Cluster { brokers: vec![Broker::start().await], peers: vec![] };
    let address = cluster.brokers[0].address.clone();
    let alias = address.replace("127.0.0.1", "localhost");
    let builder = Client::builder().brokers([alias.clone(), address.clone()]);
    let (mut connected, client) = cluster.connect(builder).await;
    assert_eq!(client.info().broker, alias, "what was dialled");
    assert_eq!(connected.brokers[0].knocks(Duration::from_secs(8)).await, 0);
    assert_eq!(client.stats().connections, 1);
    // Lost, it is dialled by its own name and by the others, and still there is one connection.
    drop(connected.take(0));
    cluster = connected;
    let topology = cluster.topology(1, |_| 0);
    let (first, second) = tokio::join!(cluster.brokers[0].join(&topology), async {
        let join = cluster.brokers[0].join(&topology);
        tokio::time::timeout(Duration::from_secs(1), join).await.ok()
    });
    until("it is back", || client.stats().connections == 2).await;
    drop(second);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn with_the_first_connection_the_others_are_tried_and_not_waited_for() {
    let (here, gone) = (Broker::start().await, Broker::start().await);
    let mut cluster = Cluster { brokers: vec![here, gone], peers: vec![] };
    let topology = cluster.topology(1, |p| p % 2);
    let builder = cluster.brokers[0].client();
    // The second does not answer its port at all.
    cluster.brokers.truncate(1);
    let (client, mut peer) = tokio::join!(builder.connect(), cluster.brokers[0].join(&topology));
    let client = client.unwrap();
    let call = tokio::spawn(async move { client.cancel(id_in(0, 1)).await });
    let request = peer.request().await;
    peer.reply(&request, OpReply::Cancel(CancelReply::NotFound)).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_says_nothing_holds_connect_up_for_a_second_at_most() {
    let cluster = Cluster { brokers: vec![Broker::start().await, Broker::start().await], peers: vec![] };
    let topology = cluster.topology(1, |p| p % 2);
    let began = Instant::now();
    let builder = cluster.brokers[0].client().connect_timeout(Duration::from_secs(2));
    let (client, _peer, _silent) = tokio::join!(
        builder.connect(),
        cluster.brokers[0].join(&topology),
        cluster.brokers[1].accept_silently()
    );
    client.unwrap();
    assert_eq!(began.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn with_nobody_left_all_addresses_are_tried_without_haste() {
    let (mut cluster, client) = Cluster::start(2).await;
    drop(std::mem::take(&mut cluster.peers));
    until("it is noticed", || !*client.connected().borrow()).await;
    // Both take connections and close them, for a minute.
    let (a, b) = tokio::join!(
        cluster.brokers[0].knocks(Duration::from_secs(60)),
        cluster.brokers[1].knocks(Duration::from_secs(60))
    );
    assert!((40..300).contains(&a) && (30..150).contains(&b), "{a} and {b} tries");
    // The seed is there again, with another cluster around it: everything goes there.
    let alone = cluster.topology_of(9, &[0], |_| 0);
    let mut peer = cluster.brokers[0].join(&alone).await;
    let call = tokio::spawn(async move { client.cancel(id_in(1, 1)).await });
    let request = peer.request().await;
    peer.reply(&request, OpReply::Cancel(CancelReply::NotFound)).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_joins_is_connected_to() {
    let (mut cluster, client) = Cluster::start(1).await;
    cluster.brokers.push(Broker::start().await);
    let topology = cluster.topology(2, |_| 1);
    cluster.tell(0, topology.clone()).await;
    let mut joined = cluster.brokers[1].join(&topology).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.schedule(Schedule::after(dest(), Duration::from_secs(1))).await }
    });
    let request = joined.request().await;
    joined.scheduled(&request).await;
    call.await.unwrap().unwrap();
    assert_eq!(client.stats().connections, 2);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_can_become_one_broker_alone() {
    let (mut cluster, client) = Cluster::start(1).await;
    drop(cluster.take(0));
    let mut peer = cluster.brokers[0].accept().await;
    until("it is back", || client.topology().is_none()).await;
    let call = tokio::spawn(async move { client.cancel(id_in(5, 1)).await });
    let request = peer.request().await;
    peer.reply(&request, OpReply::Cancel(CancelReply::NotFound)).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stranger_at_a_brokers_address_is_not_taken_into_the_cluster() {
    let (mut cluster, client) = Cluster::start(2).await;
    drop(cluster.take(1));
    // Somebody without a cluster around it has taken the address.
    let mut stranger = cluster.brokers[1].greet().await;
    stranger.send(ServerMessage::Welcome(Welcome { broker: None, ..welcome(stranger.now()) })).await;
    assert!(stranger.until_closed().await.is_empty());
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.cancel(id_in(0, 1)).await }
    });
    let request = cluster.peers[0].request().await;
    cluster.peers[0].reply(&request, OpReply::Cancel(CancelReply::NotFound)).await;
    call.await.unwrap().unwrap();
    assert!(client.topology().is_some());
}
