//! Callbacks from several brokers: credit, epochs, and outcomes that follow their partition.

#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Cluster, delivery_in, dest, id_in, until};
use mtimer_client::{Client, Epoch, Outcome, RegisterError, Registration};
use mtimer_protocol::{ClientMessage, ServerMessage, SettleRefusal};
use mtimer_types::HandlerOutcome;
use tokio::sync::Semaphore;

/// Registers a handler that waits for the gate; even timers are ok, odd ones are to be tried again.
fn gated(client: &Client, concurrency: u32) -> (Registration, Arc<Semaphore>, Arc<AtomicUsize>) {
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, count) = (Arc::clone(&gate), Arc::clone(&begun));
    let registration = client.register(dest()).concurrency(concurrency).on(move |callback| {
        let gate = Arc::clone(&gate);
        begun.fetch_add(1, Ordering::SeqCst);
        async move {
            gate.acquire().await.unwrap().forget();
            if callback.id.random() % 2 == 0 { Outcome::ok() } else { Outcome::retry("odd") }
        }
    });
    (registration.unwrap(), open, count)
}

#[tokio::test(start_paused = true)]
async fn credit_is_divided_among_the_brokers_and_anew_when_they_change() {
    let (mut cluster, client) = Cluster::start(3).await;
    let _registration = client.register(dest()).concurrency(100).on(|_| async {}).unwrap();
    let _small = client.register(dest()).concurrency(1).on(|_| async {}).unwrap();
    assert_eq!(cluster.registrations().await.1, [34; 3]);
    assert_eq!(cluster.registrations().await.1, [1; 3]);
    let topology = cluster.topology_of(2, &[0, 1], |p| p % 2);
    cluster.tell(0, topology).await;
    // The third is left, as nothing is open with it; the share of one handler stays as it was.
    for peer in &mut cluster.peers[..2] {
        assert_eq!(peer.registration(&dest()).await.1, 50);
    }
    cluster.peers[2].until_closed().await;
    for peer in &mut cluster.peers[..2] {
        peer.silent(Duration::from_secs(1)).await;
    }
    // It comes back, and is told all of it.
    let topology = cluster.topology(3, |p| p % 3);
    let (mut third, ()) = tokio::join!(cluster.brokers[2].join(&topology), async {
        cluster.peers[1].send(ServerMessage::Topology(topology.clone())).await;
    });
    assert_eq!(third.registration(&dest()).await.1, 34);
    assert_eq!(third.registration(&dest()).await.1, 1);
    assert_eq!(cluster.peers[0].registration(&dest()).await.1, 34);
}

#[tokio::test(start_paused = true)]
async fn handlers_of_all_brokers_together_keep_the_bound() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 4);
    let (number, credits) = cluster.registrations().await;
    assert_eq!(credits, [2, 2]);
    for (n, peer) in cluster.peers.iter_mut().enumerate() {
        let first = 10 * n as u64;
        peer.deliver(number, (0..4).map(|i| delivery_in(n as u16, first + 2 * i)).collect()).await;
    }
    until("all are in", || client.stats().received == 8).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((begun.load(Ordering::SeqCst), client.stats().dropped), (4, 0));
    gate.add_permits(8);
    for peer in &mut cluster.peers {
        peer.settle(4).await;
    }
    assert_eq!(begun.load(Ordering::SeqCst), 8);
}

#[tokio::test(start_paused = true)]
async fn an_older_epoch_is_refused_over_any_connection() {
    let (mut cluster, client) = Cluster::start(2).await;
    let _registration = client.on(dest(), |_| async {}).unwrap();
    let (number, _) = cluster.registrations().await;
    let mut newer = delivery_in(3, 1);
    newer.epoch = Epoch(11);
    cluster.peers[1].deliver(number, vec![newer]).await;
    cluster.peers[1].settle(1).await;
    cluster.peers[0].deliver(number, vec![delivery_in(3, 2), delivery_in(4, 2)]).await;
    assert_eq!(cluster.peers[0].settle(1).await[0].id, id_in(4, 2));
    assert_eq!(client.stats().stale, 1);
}

#[tokio::test(start_paused = true)]
async fn outcomes_follow_their_partition_to_its_next_owner() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 10);
    let (number, _) = cluster.registrations().await;
    cluster.peers[0].deliver(number, vec![delivery_in(0, 1), delivery_in(0, 2), delivery_in(2, 4)]).await;
    until("they run", || begun.load(Ordering::SeqCst) == 3).await;
    // Only partition 0 goes to the other broker; both live.
    let topology = cluster.topology(2, |p| if p == 0 { 1 } else { p % 2 });
    cluster.tell(1, topology).await;
    until("it is there", || client.topology().is_some_and(|t| t.version == 2)).await;
    gate.add_permits(3);
    let mut moved = cluster.peers[1].settle(2).await;
    moved.sort_by_key(|s| s.id);
    assert_eq!(moved.iter().map(|s| s.id).collect::<Vec<_>>(), [id_in(0, 1), id_in(0, 2)]);
    assert!(matches!(moved[0].outcome, HandlerOutcome::Retry { .. }), "not only ok");
    assert_eq!(cluster.peers[0].settle(1).await[0].id, id_in(2, 4));
}

#[tokio::test(start_paused = true)]
async fn after_closing_and_loss_everything_delivered_is_run_and_settled_with_the_next_owner() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 2);
    let (number, _) = cluster.registrations().await;
    let mut leaving = cluster.take(0);
    // Two begin, two wait.
    leaving.deliver(number, (1..=4).map(|n| delivery_in(0, n)).collect()).await;
    until("two run", || begun.load(Ordering::SeqCst) == 2).await;
    leaving.send(ServerMessage::Closing).await;
    leaving.silent(Duration::from_millis(200)).await;
    drop(leaving);
    // Both places are taken, and nobody else counts that.
    assert_eq!(cluster.peers[0].registration(&dest()).await.1, 0);
    cluster.peers[0].silent(Duration::from_millis(200)).await;
    let topology = cluster.topology_of(2, &[1], |_| 0);
    cluster.tell(0, topology).await;
    gate.add_permits(4);
    let mut settled = cluster.peers[0].settle(4).await;
    settled.sort_by_key(|s| s.id);
    let ids: Vec<_> = settled.iter().map(|s| (s.id, s.epoch, s.attempt)).collect();
    assert_eq!(ids, (1..=4).map(|n| (id_in(0, n), Epoch(10), 1)).collect::<Vec<_>>());
    cluster.peers[0].until_offered(2).await;
    assert_eq!((begun.load(Ordering::SeqCst), client.stats().dropped), (4, 0));
    assert_eq!(client.stats().settle_refused, 0);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_restarts_in_good_order_gets_every_outcome_itself() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 10);
    let (number, _) = cluster.registrations().await;
    let mut restarting = cluster.take(0);
    restarting.deliver(number, vec![delivery_in(0, 1)]).await;
    until("it runs", || begun.load(Ordering::SeqCst) == 1).await;
    restarting.send(ServerMessage::Closing).await;
    restarting.silent(Duration::from_millis(100)).await;
    drop(restarting);
    // It is back before anybody has missed it.
    let topology = cluster.topology(1, |p| p % 2);
    let mut back = cluster.brokers[0].join(&topology).await;
    back.registration(&dest()).await;
    gate.add_permits(1);
    let settled = back.settle(1).await;
    assert!(matches!(settled[0].outcome, HandlerOutcome::Retry { .. }), "{settled:?}");
    assert_eq!(client.stats().settle_refused, 0);
}

#[tokio::test(start_paused = true)]
async fn after_an_abrupt_loss_what_has_not_begun_is_left_to_its_next_delivery() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 2);
    let (number, _) = cluster.registrations().await;
    let mut dying = cluster.take(0);
    dying.deliver(number, vec![delivery_in(0, 1), delivery_in(0, 2)]).await;
    until("two run", || begun.load(Ordering::SeqCst) == 2).await;
    dying.deliver(number, vec![delivery_in(0, 3)]).await;
    until("all are in", || client.stats().received == 3).await;
    drop(dying);
    // It dials again: it knows that the connection is gone.
    let _again = cluster.brokers[0].accept_silently().await;
    gate.add_permits(3);
    until("it is dropped", || client.stats().dropped == 1).await;
    let topology = cluster.topology_of(2, &[1], |_| 0);
    cluster.tell(0, topology).await;
    cluster.peers[0].registration(&dest()).await;
    assert_eq!(cluster.peers[0].settle(2).await.len(), 2);
    assert_eq!(begun.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_was_refused_as_moved_is_offered_again_and_not_for_ever() {
    let (mut cluster, client) = Cluster::start(2).await;
    let _registration = client.on(dest(), |_| async { Outcome::fail("no") }).unwrap();
    let (number, _) = cluster.registrations().await;
    let moved =
        |n| ServerMessage::Settled { accepted: 0, refused: vec![(id_in(0, n), SettleRefusal::Moved)] };
    cluster.peers[0].deliver(number, vec![delivery_in(0, 1)]).await;
    // The owner of old says so before the topology does, and then the next one is not ready yet.
    cluster.peers[0].settlements().await;
    cluster.peers[0].send(moved(1)).await;
    let topology = cluster.topology(2, |_| 1);
    cluster.tell(0, topology).await;
    let began = tokio::time::Instant::now();
    for _ in 0..4 {
        assert_eq!(cluster.peers[1].settlements().await[0].id, id_in(0, 1));
        cluster.peers[1].send(moved(1)).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(80), "with growing delays: {:?}", began.elapsed());
    assert_eq!(cluster.peers[1].settle(1).await[0].id, id_in(0, 1));
    until("it is stored", || client.stats().settled == 1).await;
    assert_eq!(client.stats().settle_refused, 0);
    // Another one is never taken.
    cluster.peers[1].deliver(number, vec![delivery_in(0, 2)]).await;
    let began = tokio::time::Instant::now();
    while client.stats().settle_refused == 0 {
        if let Ok(message) = tokio::time::timeout(Duration::from_secs(2), cluster.peers[1].next()).await {
            assert!(matches!(message, Some(ClientMessage::Settle(_))));
            cluster.peers[1].send(moved(2)).await;
        }
    }
    let waited = began.elapsed().as_secs();
    assert!((58..=65).contains(&waited), "30 s after the callback's time of 30 s: {waited} s");
    client.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn more_time_is_asked_of_the_owner() {
    let (mut cluster, client) = Cluster::start(2).await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = Arc::clone(&gate);
    let _registration = client
        .on(dest(), move |callback| {
            let gate = Arc::clone(&wait);
            async move {
                for by in [60, 90] {
                    gate.acquire().await.unwrap().forget();
                    callback.extend(Duration::from_secs(by));
                }
                gate.acquire().await.unwrap().forget();
            }
        })
        .unwrap();
    let (number, _) = cluster.registrations().await;
    cluster.peers[0].deliver(number, vec![delivery_in(0, 1)]).await;
    let extended = |by_ms| ClientMessage::Extend { id: id_in(0, 1), epoch: Epoch(10), attempt: 1, by_ms };
    gate.add_permits(1);
    assert_eq!(cluster.peers[0].recv().await, extended(60_000));
    let topology = cluster.topology(2, |_| 1);
    cluster.tell(0, topology).await;
    until("it is there", || client.topology().is_some_and(|t| t.version == 2)).await;
    gate.add_permits(1);
    assert_eq!(cluster.peers[1].recv().await, extended(90_000));
    gate.add_permits(1);
    assert_eq!(cluster.peers[1].settle(1).await[0].outcome, HandlerOutcome::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_left_the_cluster_is_kept_until_its_outcomes_are_in() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 10);
    let (number, _) = cluster.registrations().await;
    cluster.peers[1].deliver(number, vec![delivery_in(1, 2)]).await;
    until("it runs", || begun.load(Ordering::SeqCst) == 1).await;
    let topology = cluster.topology_of(2, &[0], |_| 0);
    cluster.tell(0, topology).await;
    cluster.peers[0].registration(&dest()).await;
    cluster.peers[1].registration(&dest()).await;
    cluster.peers[1].silent(Duration::from_secs(3)).await;
    gate.add_permits(1);
    assert_eq!(cluster.peers[0].settle(1).await[0].id, id_in(1, 2));
    assert!(cluster.peers[1].until_closed().await.is_empty());
    assert_eq!(cluster.brokers[1].knocks(Duration::from_secs(10)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_registration_waits_for_every_broker() {
    let (mut cluster, client) = Cluster::start(2).await;
    let registration = client.on(dest(), |_| async {}).unwrap();
    let (number, _) = cluster.registrations().await;
    let mut late = cluster.take(1);
    let stop = tokio::spawn(registration.stop());
    let unregister = ClientMessage::Unregister { registration: number };
    assert_eq!(cluster.peers[0].recv().await, unregister);
    cluster.peers[0].silent(Duration::from_millis(50)).await;
    assert!(!stop.is_finished(), "the other broker may still send something");
    late.deliver(number, vec![delivery_in(1, 1)]).await;
    assert_eq!(late.recv().await, unregister);
    assert_eq!(late.settle(1).await.len(), 1);
    stop.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_drains_every_connection() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (_registration, gate, begun) = gated(&client, 10);
    let (number, _) = cluster.registrations().await;
    for (n, peer) in cluster.peers.iter_mut().enumerate() {
        peer.deliver(number, vec![delivery_in(n as u16, 2)]).await;
    }
    until("both run", || begun.load(Ordering::SeqCst) == 2).await;
    let close = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    for peer in &mut cluster.peers {
        assert_eq!(peer.recv().await, ClientMessage::Goodbye);
    }
    gate.add_permits(2);
    let (first, rest) = cluster.peers.split_at_mut(1);
    tokio::join!(first[0].settle(1), rest[0].settle(1));
    close.await.unwrap().unwrap();
    for peer in &mut cluster.peers {
        assert!(peer.until_closed().await.is_empty());
    }
    assert!(matches!(client.on(dest(), |_| async {}), Err(RegisterError::Closed)));
}
