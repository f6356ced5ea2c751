//! Requests to a cluster: each to its partition's owner, wherever that goes.

mod fake;

use std::time::Duration;

use fake::{Cluster, dest, id_in, until};
use mtimer_client::{Cancelled, Client, ErrorCode, RequestError, Schedule, Status};
use mtimer_protocol::ops;
use mtimer_protocol::ops::CancelReply;
use mtimer_protocol::{
    BrokerView, ClientMessage, ClusterView, OpReply, Query, QueryAnswer, RequestOp, ServerMessage,
};
use tokio::task::JoinHandle;

type Answer = JoinHandle<Result<Cancelled, RequestError>>;

fn cancel(client: &Client, partition: u16, n: u64) -> Answer {
    let client = client.clone();
    tokio::spawn(async move { client.cancel(id_in(partition, n)).await })
}

fn done(n: u64) -> OpReply {
    OpReply::Cancel(CancelReply::Cancelled(id_in(0, n)))
}

#[tokio::test(start_paused = true)]
async fn every_operation_goes_to_the_owner_of_its_partition() {
    let (mut cluster, client) = Cluster::start(3).await;
    assert_eq!(client.stats().connections, 3);
    assert_eq!(client.topology().unwrap().brokers.len(), 3);
    let same = cluster.peers.iter().all(|p| p.hello.client == cluster.peers[0].hello.client);
    assert!(same, "one name over all connections");
    for partition in 0..8u16 {
        let call = cancel(&client, partition, 1);
        let peer = &mut cluster.peers[usize::from(partition) % 3];
        let request = peer.request().await;
        peer.reply(&request, done(1)).await;
        call.await.unwrap().unwrap();
    }
    // Questions too, and keys.
    let key = mtimer_client::Key::new("k").unwrap();
    let at = mtimer_client::PartitionId::of_key(&dest(), &key, 8).0 % 3;
    let (answer, ()) = tokio::join!(client.get(dest().key("k").unwrap()), async {
        let peer = &mut cluster.peers[usize::from(at)];
        let ClientMessage::Query { corr, .. } = peer.recv().await else { panic!() };
        peer.send(ServerMessage::Answer { corr, answer: QueryAnswer::Timer(None) }).await;
    });
    assert_eq!(answer, Ok(None));
    assert_eq!(client.stats().retried, 0);
}

#[tokio::test(start_paused = true)]
async fn new_timers_go_where_an_owner_is_connected() {
    let (mut cluster, client) = Cluster::start(2).await;
    drop(cluster.take(1));
    let gone = cluster.brokers.remove(1);
    // It dials again: it knows that the connection is gone.
    drop(gone.accept_silently().await);
    drop(gone);
    let schedules = vec![Schedule::after(dest(), Duration::from_secs(60)); 1_000];
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.schedule_all(schedules).await }
    });
    let mut seen = 0;
    while seen < 1_000 {
        let request = cluster.peers[0].request().await;
        let even = |op: &RequestOp| matches!(op, RequestOp::Schedule(ops::Schedule { timer, .. }) if timer.id.partition().0 % 2 == 0);
        assert!(request.ops.iter().all(even));
        seen += request.ops.len();
        cluster.peers[0].scheduled(&request).await;
    }
    assert!(call.await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn moved_is_followed_at_once_and_remembered() {
    let (mut cluster, client) = Cluster::start(2).await;
    let began = tokio::time::Instant::now();
    let owner = cluster.brokers[1].address.clone();
    let call = cancel(&client, 0, 1);
    let request = cluster.peers[0].request().await;
    cluster.peers[0].reply(&request, OpReply::Moved { owner }).await;
    let request = cluster.peers[1].request().await;
    cluster.peers[1].reply(&request, done(1)).await;
    assert_eq!(call.await.unwrap(), Ok(Cancelled::Cancelled(id_in(0, 1))));
    let call = cancel(&client, 0, 2);
    let request = cluster.peers[1].request().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    // Back and forth: with a delay then.
    let owner = cluster.brokers[0].address.clone();
    cluster.peers[1].reply(&request, OpReply::Moved { owner: owner.clone() }).await;
    let request = cluster.peers[0].request().await;
    let there = cluster.brokers[1].address.clone();
    cluster.peers[0].reply(&request, OpReply::Moved { owner: there }).await;
    let request = cluster.peers[1].request().await;
    assert!(began.elapsed() >= Duration::from_millis(12), "{:?}", began.elapsed());
    cluster.peers[1].reply(&request, done(2)).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn not_owner_is_tried_again_until_somebody_owns_it() {
    let (mut cluster, client) = Cluster::start(2).await;
    let call = cancel(&client, 0, 1);
    let not_owner = OpReply::Failed { code: ErrorCode::NotOwner, message: "not me".into() };
    for _ in 0..5 {
        let request = cluster.peers[0].request().await;
        cluster.peers[0].reply(&request, not_owner.clone()).await;
    }
    let topology = cluster.topology(2, |_| 1);
    cluster.tell(0, topology).await;
    let request = cluster.peers[1].request().await;
    cluster.peers[1].reply(&request, done(1)).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_owner_left_open_is_repeated_at_the_next_one_as_it_was() {
    let (mut cluster, client) = Cluster::start(2).await;
    let calls = [cancel(&client, 1, 1), cancel(&client, 3, 2)];
    let open = cluster.peers[1].requests(2).await;
    let first_sent = open[0].first_sent;
    drop(cluster.take(1));
    // Later calls wait with them; nothing is lost, nothing goes to somebody else.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let later = cancel(&client, 5, 3);
    cluster.peers[0].silent(Duration::from_millis(700)).await;
    let topology = cluster.topology_of(2, &[0], |_| 0);
    cluster.tell(0, topology).await;
    let again = cluster.peers[0].requests(3).await;
    let repeated = again.iter().filter(|r| r.first_sent == first_sent).flat_map(|r| &r.ops);
    let before: Vec<_> = open.iter().flat_map(|r| &r.ops).collect();
    assert_eq!(repeated.collect::<Vec<_>>(), before, "the same request numbers, and the same time");
    for request in &again {
        cluster.peers[0].reply(request, done(1)).await;
    }
    for call in calls.into_iter().chain([later]) {
        call.await.unwrap().unwrap();
    }
    assert_eq!(client.stats().repeated, 2);
}

#[tokio::test(start_paused = true)]
async fn an_older_topology_is_ignored_over_any_connection() {
    let (mut cluster, client) = Cluster::start(2).await;
    let newer = cluster.topology(5, |_| 1);
    cluster.tell(0, newer.clone()).await;
    until("it is there", || client.topology().is_some_and(|t| *t == newer)).await;
    let older = cluster.topology(4, |_| 0);
    cluster.tell(1, older).await;
    let call = cancel(&client, 0, 1);
    let request = cluster.peers[1].request().await;
    cluster.peers[1].reply(&request, done(1)).await;
    call.await.unwrap().unwrap();
    assert_eq!(*client.topology().unwrap(), newer);
}

#[tokio::test(start_paused = true)]
async fn closing_stops_new_requests_to_that_broker_only() {
    let (mut cluster, client) = Cluster::start(2).await;
    let mut held = cluster.take(0);
    // Something is open there, so that the connection stays.
    let open = cancel(&client, 2, 9);
    let request = held.request().await;
    held.send(ServerMessage::Closing).await;
    held.until_heard().await;
    let (waits, goes) = (cancel(&client, 0, 1), cancel(&client, 1, 2));
    let other = cluster.peers[0].request().await;
    cluster.peers[0].reply(&other, done(2)).await;
    goes.await.unwrap().unwrap();
    held.silent(Duration::from_millis(100)).await;
    let topology = cluster.topology(2, |_| 1);
    cluster.tell(0, topology).await;
    let other = cluster.peers[0].request().await;
    cluster.peers[0].reply(&other, done(1)).await;
    waits.await.unwrap().unwrap();
    held.reply(&request, done(9)).await;
    open.await.unwrap().unwrap();
    // It may still deliver timers that it had taken; once it is no part of the cluster any more, it
    // is left.
    held.silent(Duration::from_secs(1)).await;
    let topology = cluster.topology_of(3, &[1], |_| 0);
    cluster.tell(0, topology).await;
    assert!(held.until_closed().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn listings_ask_the_owner_of_the_partition_that_comes_next() {
    let (mut cluster, client) = Cluster::start(2).await;
    let serve = async {
        for partition in 0..8u16 {
            let peer = &mut cluster.peers[usize::from(partition) % 2];
            let ClientMessage::Query { corr, query: Query::Dead { cursor, .. } } = peer.recv().await else {
                panic!()
            };
            assert_eq!(cursor, (partition > 0).then_some((partition, 0)));
            let next = (partition < 7).then_some((partition + 1, 0));
            let answer = QueryAnswer::Dead { rows: vec![], next };
            peer.send(ServerMessage::Answer { corr, answer }).await;
        }
    };
    let (rows, ()) = tokio::join!(client.dead(Default::default()).all(), serve);
    assert_eq!(rows, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn questions_about_the_cluster_reach_those_who_know() {
    let (mut cluster, client) = Cluster::start(2).await;
    let leader = cluster.brokers[1].address.clone();
    for (n, mut peer) in std::mem::take(&mut cluster.peers).into_iter().enumerate() {
        let leader = leader.clone();
        tokio::spawn(async move {
            while let Some(message) = peer.next().await {
                let ClientMessage::Query { corr, query } = message else { continue };
                let counters = vec![("both".to_owned(), 1), (format!("of {n}"), 2)];
                let answer = match query {
                    Query::Status => {
                        QueryAnswer::Status(Status { pending: 3, counters, ..Status::default() })
                    }
                    Query::Broker => {
                        QueryAnswer::Broker(BrokerView { loaded_bytes: n as u64, ..BrokerView::default() })
                    }
                    Query::Cluster => {
                        QueryAnswer::Cluster(ClusterView { leads: n == 0, ..ClusterView::default() })
                    }
                    // The lead has changed.
                    Query::Drain { .. } if n == 0 => QueryAnswer::Moved { owner: leader.clone() },
                    _ => QueryAnswer::Done,
                };
                peer.send(ServerMessage::Answer { corr, answer }).await;
            }
        });
    }
    let status = client.status().await.unwrap();
    let counters = [("both".into(), 2), ("of 0".into(), 2), ("of 1".into(), 2)];
    assert_eq!((status.pending, &status.counters[..]), (6, &counters[..]));
    assert!(client.cluster().await.unwrap().leads);
    client.drain("b", true).await.unwrap();
    let views = client.broker_views().await;
    let views: Vec<_> = views.into_iter().map(|(name, view)| (name, view.unwrap().loaded_bytes)).collect();
    let names = cluster.brokers.iter().map(|b| b.address.clone());
    assert_eq!(views, names.zip([0, 1]).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn without_an_owner_a_call_waits_no_longer_than_it_may() {
    let (mut cluster, client) = Cluster::start(2).await;
    let mut topology = cluster.topology(2, |_| 0);
    topology.owners[1] = None;
    cluster.tell(0, topology).await;
    until("it is there", || client.topology().is_some_and(|t| t.version == 2)).await;
    let began = tokio::time::Instant::now();
    let call = cancel(&client, 1, 1);
    let (first, rest) = cluster.peers.split_at_mut(1);
    let answer = tokio::select! {
        answer = call => answer.unwrap(),
        message = first[0].recv() => panic!("{message:?}"),
        message = rest[0].recv() => panic!("{message:?}"),
    };
    assert!(matches!(answer, Err(RequestError::NotSent { .. })), "{answer:?}");
    assert!(began.elapsed() >= Duration::from_secs(10));
}
