//! A probe: one connection to one broker, and no question that costs anything.

mod fake;

use std::time::Duration;

use fake::{Broker, Cluster, Peer, welcome};
use mtimer_client::{ConnectError, ErrorCode, RequestError};
use mtimer_protocol::{ClientMessage, Query, QueryAnswer, ServerMessage, Welcome};

/// Answers the next question, which must be whether the broker is ready.
async fn tell(peer: &mut Peer, unready: &[String]) {
    match peer.recv().await {
        ClientMessage::Query { corr, query: Query::Ready } => {
            let answer = QueryAnswer::Ready(unready.to_vec());
            peer.send(ServerMessage::Answer { corr, answer }).await;
        }
        other => panic!("another question: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn it_asks_the_one_broker_whether_it_is_there_and_ready() {
    let cluster = Cluster { brokers: vec![Broker::start().await, Broker::start().await], peers: vec![] };
    let topology = cluster.topology(1, |p| p % 2);
    let (probe, mut peer) =
        tokio::join!(cluster.brokers[0].client().probe(), cluster.brokers[0].join(&topology));
    let mut probe = probe.unwrap();
    assert_eq!((&probe.info().broker, &*probe.info().cluster), (&cluster.brokers[0].address, "test"));
    // A topology is on its way before the pong; a ping of the broker's is answered.
    peer.send(ServerMessage::Ping(5)).await;
    tokio::join!(probe.ping(), peer.silent(Duration::from_secs(1))).0.unwrap();
    for why in [vec![], vec!["time stands still".to_owned(), "it is stopping".to_owned()]] {
        assert_eq!(tokio::join!(probe.unready(), tell(&mut peer, &why)).0, Ok(why));
    }
    drop(probe);
    assert_eq!(peer.until_closed().await, []);
    assert_eq!(cluster.brokers[1].knocks(Duration::from_secs(3)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_told() {
    let broker = Broker::start().await;
    let (probe, mut peer) = tokio::join!(broker.client().probe(), broker.accept());
    let mut probe = probe.unwrap();
    peer.alive = false;
    let silent = tokio::join!(probe.ping(), peer.silent(Duration::from_secs(20))).0;
    assert!(matches!(&silent, Err(RequestError::Unanswered { ms: 10_000, .. })), "{silent:?}");
    drop(peer);
    let closed = probe.ping().await.unwrap_err();
    assert!(closed.is_retryable() && closed.to_string().contains(&broker.address), "{closed}");

    let full = broker.client().connect_timeout(Duration::ZERO).probe();
    let (refused, _peer) = tokio::join!(full, async {
        let mut peer = broker.greet().await;
        let message = "all sessions are taken".to_owned();
        peer.send(ServerMessage::Refused { code: ErrorCode::Overloaded, message }).await;
        peer
    });
    assert!(matches!(refused, Err(ConnectError::Refused { code: ErrorCode::Overloaded, .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_wants_one_broker_asks_this_one_only() {
    let cluster = Cluster { brokers: vec![Broker::start().await, Broker::start().await], peers: vec![] };
    let topology = cluster.topology(1, |p| p % 2);
    let builder = cluster.brokers[1].client().one_broker(true);
    let (client, mut peer) = tokio::join!(builder.connect(), cluster.brokers[1].join(&topology));
    let client = client.unwrap();
    let answer = async {
        match peer.recv().await {
            ClientMessage::Query { corr, query: Query::Status } => {
                let status = mtimer_client::Status { sessions: 3, ..Default::default() };
                peer.send(ServerMessage::Answer { corr, answer: QueryAnswer::Status(status) }).await;
            }
            other => panic!("{other:?}"),
        }
    };
    let (status, ()) = tokio::join!(client.status(), answer);
    assert_eq!((status.unwrap().sessions, &client.info().broker), (3, &cluster.brokers[1].address));
    assert_eq!(cluster.brokers[0].knocks(Duration::from_secs(3)).await, 0);
    // One that is no part of the cluster yet is asked all the same.
    let newcomer = Broker::start().await;
    let builder = newcomer.client().one_broker(true);
    let (client, mut peer) = tokio::join!(builder.connect(), async {
        let mut peer = newcomer.greet().await;
        let now = peer.now();
        let name = Some(newcomer.address.clone());
        peer.send(ServerMessage::Welcome(Welcome { broker: name, ..welcome(now) })).await;
        peer.send(ServerMessage::Topology(topology)).await;
        peer
    });
    let client = client.unwrap();
    let asked = tokio::spawn(async move { client.status().await });
    assert!(matches!(peer.recv().await, ClientMessage::Query { query: Query::Status, .. }));
    asked.abort();
}
