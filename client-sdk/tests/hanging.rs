//! Handlers that hang: their places, and callbacks that wait for one.

#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake::{Broker, Peer, TextLog, delivery, dest, until};
use mtimer_client::{Callback, Client, Mode, Outcome, Registration};
use mtimer_protocol::{ClientMessage, Delivery};
use mtimer_types::HandlerOutcome;
use tokio::sync::Semaphore;

/// A client of two places with a handler that waits for permits, and the timers that it has begun
/// with.
async fn hanging(broker: &Broker) -> (Client, Peer, Registration, Arc<Mutex<Vec<u64>>>, Arc<Semaphore>) {
    let (client, mut peer) = broker.connect().await;
    let (begun, gate) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
    let (seen, closed) = (Arc::clone(&begun), Arc::clone(&gate));
    let registration = client
        .register(dest())
        .concurrency(2)
        .on(move |callback: Callback| {
            seen.lock().unwrap().push(callback.id.random());
            let gate = Arc::clone(&closed);
            async move { gate.acquire().await.unwrap().forget() }
        })
        .unwrap();
    peer.registration(&dest()).await;
    peer.deliver(1, vec![brief(1), brief(2)]).await;
    until("both hang", || begun.lock().unwrap().len() == 2).await;
    (client, peer, registration, begun, gate)
}

/// A delivery that has a second.
fn brief(n: u64) -> Delivery {
    Delivery { timeout_ms: 1_000, ..delivery(n) }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_not_free_gives_no_credit() {
    let broker = Broker::start().await;
    let (client, mut peer, registration, begun, gate) = hanging(&broker).await;
    // The broker has given both up. It sends others before it hears that no place is free.
    peer.until_offered(0).await;
    peer.deliver(1, vec![brief(3), Delivery { mode: Mode::AtMostOnce, ..brief(4) }]).await;
    let sent = tokio::time::Instant::now();
    let given_back = peer.settle(2).await;
    assert!(
        given_back.iter().all(|s| s.outcome == HandlerOutcome::NotBegun && s.attempt == 1),
        "{given_back:?}"
    );
    assert!(sent.elapsed() < Duration::from_millis(500), "in time: after {:?}", sent.elapsed());
    assert_eq!(*begun.lock().unwrap(), [1, 2]);
    // One ends at last: its place is offered again.
    gate.add_permits(1);
    assert_eq!(peer.settle(1).await[0].outcome, HandlerOutcome::Ok);
    peer.until_offered(1).await;
    peer.deliver(1, vec![brief(5)]).await;
    gate.add_permits(2);
    peer.settle(2).await;
    peer.until_offered(2).await;
    assert_eq!((begun.lock().unwrap().len(), client.stats().not_begun), (3, 2));
    registration.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_busy_handler_is_given_back_before_its_time_is_over() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client
        .register(dest())
        .concurrency(1)
        .on(async |callback: Callback| {
            callback.extend(Duration::from_secs(60));
            tokio::time::sleep(Duration::from_secs(10)).await;
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![brief(1)]).await;
    assert!(matches!(peer.recv().await, ClientMessage::Extend { .. }));
    peer.deliver(number, vec![brief(2)]).await;
    let sent = tokio::time::Instant::now();
    let given_back = peer.settle(1).await.remove(0);
    assert_eq!((given_back.id, given_back.outcome), (brief(2).id, HandlerOutcome::NotBegun));
    assert!((400..900).contains(&sent.elapsed().as_millis()), "after {:?}", sent.elapsed());
    // The handler has the time that it has asked for: nothing is said of it.
    assert_eq!(peer.settle(1).await[0].outcome, HandlerOutcome::Ok);
    assert_eq!(peer.credit, None, "the credit was the same all the time");
}

#[tokio::test(start_paused = true)]
async fn what_was_given_back_is_not_said_twice() {
    let broker = Broker::start().await;
    let (_client, mut peer, registration, _, gate) = hanging(&broker).await;
    peer.until_offered(0).await;
    peer.deliver(1, vec![brief(3)]).await;
    // Not confirmed when the connection goes.
    assert_eq!(peer.settlements().await[0].outcome, HandlerOutcome::NotBegun);
    drop(peer);
    let mut peer = broker.accept().await;
    assert_eq!(peer.registration(&dest()).await.1, 0, "the places are still taken");
    gate.add_permits(2);
    let outcomes = peer.settle(2).await;
    assert!(outcomes.iter().all(|s| s.outcome == HandlerOutcome::Ok), "{outcomes:?}");
    registration.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_learns_that_its_time_is_over() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client
        .register(dest())
        .on(async |callback: Callback| {
            if callback.id.random() == 2 {
                callback.extend(Duration::from_secs(5));
            }
            callback.timed_out().await;
            Outcome::retry("too slow")
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    let sent = tokio::time::Instant::now();
    peer.deliver(number, vec![brief(1), brief(2)]).await;
    assert!(matches!(peer.recv().await, ClientMessage::Extend { by_ms: 5_000, .. }));
    for (n, ms) in [(1, 1_000), (2, 5_000)] {
        assert_eq!(peer.settle(1).await[0].id, brief(n).id);
        assert!((ms..ms + 100).contains(&sent.elapsed().as_millis()), "{n}: after {:?}", sent.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_holds_no_other_callback_back() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let _registration = client
        .register(dest())
        .concurrency(10)
        .on(move |_| {
            // It never yields.
            blocked.lock().unwrap().recv().unwrap();
            async {}
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![Delivery { timeout_ms: 200, ..delivery(1) }, brief(2), delivery(3)]).await;
    let given_back: Vec<_> = peer.settle(2).await.into_iter().map(|s| (s.id.random(), s.outcome)).collect();
    assert_eq!(given_back, [(2, HandlerOutcome::NotBegun), (3, HandlerOutcome::NotBegun)]);
    assert_eq!(peer.credit, Some(0));
    release.send(()).unwrap();
    assert_eq!(peer.settle(1).await[0].outcome, HandlerOutcome::Ok);
    peer.until_offered(10).await;
}

#[tokio::test(start_paused = true)]
async fn it_is_said_once_which_handler_hangs() {
    let (log, _guard) = TextLog::start();
    let broker = Broker::start().await;
    let (_client, mut peer, registration, _, gate) = hanging(&broker).await;
    peer.until_offered(0).await;
    peer.silent(Duration::from_secs(3)).await;
    let text = log.text();
    let said: Vec<&str> = text.lines().filter(|line| line.contains("callback timeout")).collect();
    for n in [1, 2] {
        let of = said.iter().filter(|line| line.contains(&brief(n).id.to_string()));
        let of: Vec<_> = of.collect();
        let [line] = &of[..] else { panic!("number {n}: {text}") };
        assert!(line.contains("WARN") && line.contains("orders") && line.contains("billing"), "{line}");
    }
    gate.add_permits(2);
    peer.settle(2).await;
    registration.stop().await;
}
