//! Callbacks: credit, outcomes, panics, concurrency, repeats, registrations over a new connection,
//! and closing.

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Broker, Peer, START, delivery, dest, until};
use mtimer_client::{
    Client, CloseError, Epoch, Headers, Mode, Outcome, RegisterError, Registration, Schedule, TimerId,
};
use mtimer_protocol::{ClientMessage, Delivery, ErrorCode, ServerMessage, SettleRefusal};
use mtimer_types::{Destination, HandlerOutcome};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

#[tokio::test(start_paused = true)]
async fn a_callback_carries_everything_and_its_outcome_goes_back() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (tell, mut told) = tokio::sync::mpsc::channel(9);
    let registration = client
        .register(dest())
        .concurrency(50)
        .on(move |callback| {
            let tell = tell.clone();
            async move {
                let n = callback.id.random();
                tell.send(callback).await.unwrap();
                match n {
                    1 => Outcome::ok(),
                    2 => Outcome::retry("again"),
                    3 => Outcome::retry_after(Duration::from_secs(7), "later"),
                    4 => Outcome::fail("x".repeat(600)),
                    5 => Err::<(), _>("an error").into(),
                    _ => panic!("number {n}"),
                }
            }
        })
        .unwrap();
    let (number, credit) = peer.registration(&dest()).await;
    assert_eq!(credit, 50);
    let due = START - 20;
    let headers = Headers::new([("tenant", "acme")]).unwrap();
    let deliveries = (1..=6).map(|n| Delivery { due, headers: headers.clone(), ..delivery(n) });
    peer.deliver(number, deliveries.collect()).await;
    let mut settled = peer.settle(6).await;
    settled.sort_by_key(|s| s.id);
    let outcomes: Vec<_> = settled.into_iter().map(|s| s.outcome).collect();
    let retry = |after_ms, error: &str| HandlerOutcome::Retry { after_ms, error: error.into() };
    assert_eq!(
        outcomes,
        [
            HandlerOutcome::Ok,
            retry(None, "again"),
            retry(Some(7_000), "later"),
            HandlerOutcome::Fail { error: "x".repeat(512) },
            retry(None, "an error"),
            retry(None, "the handler panicked: number 6"),
        ]
    );
    let callback = told.recv().await.unwrap();
    assert_eq!((callback.due, callback.epoch, callback.attempt), (due, Epoch(10), 1));
    assert_eq!((&callback.payload[..], &callback.dest), (&b"hi"[..], &dest()));
    assert_eq!((callback.headers().get("tenant"), callback.headers()), (Some("acme"), &headers));
    let most = peer.now().ms_since(due);
    assert!((20..=most).contains(&callback.lateness_ms()), "{} of {most}", callback.lateness_ms());
    assert_eq!((client.stats().received, client.stats().panics), (6, 1));
    drop(registration);
}

#[tokio::test(start_paused = true)]
async fn a_refused_registration_ends_nothing_else() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let refused = client.register(dest()).on(async |_| {}).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let other = Destination::new("other", "app").unwrap();
    let _registration = client
        .register(&other)
        .on(move |callback| {
            tell.send(callback.id).unwrap();
            async {}
        })
        .unwrap();
    let (registration, _) = peer.registration(&other).await;
    let (code, message) = (ErrorCode::Unauthorized, "not yours".to_owned());
    let refusal = ServerMessage::RegisterRefused { registration: number, code, message: message.clone() };
    peer.send(refusal.clone()).await;
    let expected = RegisterError::Refused { code, message };
    assert_eq!(refused.refused().await, expected);
    assert_eq!(refused.refused().await, expected, "it is remembered");
    peer.deliver(registration, vec![delivery(1)]).await;
    assert_eq!(told.recv().await, Some(delivery(1).id));
    peer.settle(1).await;
    // It is offered again over the next connection, and can be ended; a refusal after that is of no
    // interest.
    drop(peer);
    let mut peer = broker.accept().await;
    assert_eq!(peer.registration(&dest()).await.0, number);
    assert_eq!(peer.registration(&other).await.0, registration);
    let stopping = tokio::spawn(refused.stop());
    assert_eq!(peer.recv().await, ClientMessage::Unregister { registration: number });
    peer.send(refusal).await;
    peer.deliver(registration, vec![delivery(2)]).await;
    peer.settle(1).await;
    assert_eq!(told.recv().await, Some(delivery(2).id));
    stopping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_at_once_than_asked_for() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let _registration = client
        .register(dest())
        .concurrency(5)
        .on(move |_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                running.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .unwrap();
    let (number, credit) = peer.registration(&dest()).await;
    assert_eq!(credit, 5);
    peer.deliver(number, (0..5).map(delivery).collect()).await;
    for n in 0..50 {
        peer.settle(1).await;
        peer.deliver(number, vec![delivery(100 + n)]).await;
    }
    assert_eq!(seen.load(Ordering::SeqCst), 5);
    // A broker that sends more than the credit allows fills no memory: the oldest give way.
    peer.deliver(number, (1_000..3_000).map(delivery).collect()).await;
    until("the rest was given back", || client.stats().not_begun >= 1_900).await;
    assert_eq!(seen.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn outcomes_of_what_came_together_travel_together() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client.register(dest()).on(|_| async {}).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, (0..1_000).map(delivery).collect()).await;
    let (mut frames, mut seen) = (0, 0);
    while seen < 1_000 {
        seen += peer.settlements().await.len();
        frames += 1;
    }
    assert!(frames <= 20, "{frames} frames");
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_ask_for_more_time() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client
        .on(dest(), |callback| async move {
            callback.extend(Duration::from_secs(90));
            tokio::time::sleep(Duration::from_secs(1)).await;
            Outcome::ok()
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    let id = delivery(1).id;
    let expected = ClientMessage::Extend { id, epoch: Epoch(10), attempt: 1, by_ms: 90_000 };
    assert_eq!(peer.recv().await, expected);
    assert_eq!(peer.settle(1).await[0].outcome, HandlerOutcome::Ok);
}

#[tokio::test(start_paused = true)]
async fn an_older_epoch_is_refused_and_a_repeat_can_be_too() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let _registration = client
        .register(dest())
        .dedupe(100)
        .on(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {}
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    let mut old = delivery(2);
    old.epoch = Epoch(9);
    let mut repeat = delivery(1);
    repeat.attempt = 2;
    peer.deliver(number, vec![delivery(1), old, repeat]).await;
    let settled = peer.settle(2).await;
    let told: Vec<_> = settled.iter().map(|s| (s.id.random(), s.attempt, &s.outcome)).collect();
    assert_eq!(told, [(1, 1, &HandlerOutcome::Ok), (1, 2, &HandlerOutcome::Ok)]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((client.stats().stale, client.stats().deduplicated), (1, 1));
    // The epochs outlive the connection.
    drop(peer);
    let mut peer = broker.accept().await;
    let (number, _) = peer.registration(&dest()).await;
    let mut old = delivery(3);
    old.epoch = Epoch(9);
    peer.deliver(number, vec![old, delivery(4)]).await;
    assert_eq!(peer.settle(1).await[0].id, delivery(4).id);
    assert_eq!(client.stats().stale, 2);
}

#[tokio::test(start_paused = true)]
async fn a_registration_and_its_late_ok_survive_a_lost_connection() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let gate = Arc::new(Semaphore::new(0));
    let (started, passed) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&gate));
    let begun = Arc::clone(&started);
    let _registration = client
        .register(dest())
        .concurrency(2)
        .on(move |callback| {
            let gate = Arc::clone(&gate);
            started.fetch_add(1, Ordering::SeqCst);
            async move {
                gate.acquire().await.unwrap().forget();
                if callback.id.random() == 1 { Outcome::ok() } else { Outcome::retry("no") }
            }
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    // Two begin, one waits, and one that can only ever be delivered once waits too.
    let mut once = delivery(4);
    once.mode = Mode::AtMostOnce;
    peer.deliver(number, vec![delivery(1), delivery(2)]).await;
    until("both run", || begun.load(Ordering::SeqCst) == 2).await;
    peer.deliver(number, vec![delivery(3)]).await;
    peer.deliver(number, vec![once]).await;
    until("all are in", || client.stats().received == 4).await;
    drop(peer);
    let mut peer = broker.accept().await;
    // Both places are taken by handlers that this connection's broker does not count.
    assert_eq!(peer.registration(&dest()).await, (number, 0));
    passed.add_permits(2);
    // The late ok goes to the new connection, the late retry is pointless, number 3 was left to its
    // next delivery.
    assert_eq!(peer.settle(1).await[0].id, delivery(1).id);
    until("number 4 runs", || begun.load(Ordering::SeqCst) == 3).await;
    // Which takes one of them.
    peer.until_offered(1).await;
    peer.deliver(number, vec![delivery(1)]).await;
    passed.add_permits(2);
    assert_eq!(peer.settle(1).await[0].id, delivery(1).id);
    peer.until_offered(2).await;
    let stats = client.stats();
    assert_eq!((stats.dropped, stats.settle_refused, begun.load(Ordering::SeqCst)), (1, 2, 4), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn an_ok_that_was_not_confirmed_is_sent_again() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client.on(dest(), |_| async {}).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    let sent = peer.settlements().await;
    drop(peer);
    let mut peer = broker.accept().await;
    peer.registration(&dest()).await;
    assert_eq!(peer.settlements().await, sent);
    let refused = vec![(delivery(1).id, SettleRefusal::Late)];
    peer.send(ServerMessage::Settled { accepted: 0, refused }).await;
    until("it is counted", || client.stats().settle_refused == 1).await;
    client.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stopped_registration_finishes_what_it_has() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let registration =
        client.register(dest()).concurrency(1).on(|_| tokio::time::sleep(Duration::from_secs(3))).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    until("it has arrived", || client.stats().received == 1).await;
    let stop = tokio::spawn(registration.stop());
    assert_eq!(peer.recv().await, ClientMessage::Unregister { registration: number });
    // A callback that was on its way is still handled.
    peer.deliver(number, vec![delivery(2)]).await;
    assert_eq!(peer.settle(2).await.len(), 2);
    stop.await.unwrap();
    // Later ones are given back.
    peer.deliver(number, vec![delivery(3)]).await;
    let given_back = peer.settle(1).await.remove(0);
    assert_eq!((given_back.id, given_back.outcome), (delivery(3).id, HandlerOutcome::NotBegun));
}

#[tokio::test(start_paused = true)]
async fn closing_finishes_what_runs_and_waits_for_its_outcome() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let inner = client.clone();
    let _registration = client
        .register(dest())
        .concurrency(1)
        .on(move |callback| {
            let client = inner.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(2)).await;
                // A handler may still schedule while the client closes.
                let schedule = Schedule::after(callback.dest.clone(), Duration::from_secs(1));
                client.schedule(schedule).await.map(drop)
            }
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    until("it has arrived", || client.stats().received == 1).await;
    let close = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    assert_eq!(peer.recv().await, ClientMessage::Goodbye);
    // It crossed the goodbye.
    peer.deliver(number, vec![delivery(2)]).await;
    for n in 1..=2 {
        let request = peer.request().await;
        peer.scheduled(&request).await;
        let settled = peer.settlements().await;
        assert_eq!(settled[0].id, delivery(n).id);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!close.is_finished(), "not before it is confirmed");
        peer.send(ServerMessage::Settled { accepted: 1, refused: vec![] }).await;
    }
    close.await.unwrap().unwrap();
    assert!(peer.until_closed().await.is_empty());
    assert!(matches!(client.on(dest(), |_| async {}), Err(RegisterError::Closed)));
    client.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_finishes_what_a_dropped_registration_has_begun() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let registration = client.on(dest(), |_| tokio::time::sleep(Duration::from_secs(3))).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    until("it has arrived", || client.stats().received == 1).await;
    drop(registration);
    assert_eq!(peer.recv().await, ClientMessage::Unregister { registration: number });
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.schedule(Schedule::after(dest(), Duration::from_secs(1))).await }
    });
    let request = peer.request().await;
    peer.scheduled(&request).await;
    // Answers come in order: the broker has said by now that nothing more comes.
    asked.await.unwrap().unwrap();
    let reader = tokio::spawn(async move {
        assert_eq!(peer.recv().await, ClientMessage::Goodbye);
        let settled = peer.settle(1).await;
        peer.until_closed().await;
        settled
    });
    client.close().await.unwrap();
    let settled = reader.await.unwrap();
    assert_eq!((settled[0].id, &settled[0].outcome), (delivery(1).id, &HandlerOutcome::Ok));
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_ever_for_a_confirmation() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client.on(dest(), |_| async {}).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    peer.settlements().await;
    let reader = tokio::spawn(async move { peer.until_closed().await });
    assert_eq!(client.close().await, Err(CloseError::Unsettled { settlements: 1, ms: 10_000 }));
    reader.await.unwrap();
}

/// Longer than anything waits for a broker.
const LONG: Duration = Duration::from_secs(120);

/// A client that has registered with a broker which answers nothing.
async fn registered_in_vain() -> (Broker, Client, Peer, Registration) {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    peer.answers = false;
    let registration = client.on(dest(), |_| async {}).expect("the client is open");
    peer.registration(&dest()).await;
    (broker, client, peer, registration)
}

#[tokio::test(start_paused = true)]
async fn a_registration_ends_though_the_broker_never_says_that_nothing_more_comes() {
    let (_broker, client, mut peer, idle) = registered_in_vain().await;
    let busy = client.on(dest(), |_| tokio::time::sleep(Duration::from_secs(30))).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    until("it has arrived", || client.stats().received == 1).await;
    let reader = tokio::spawn(async move { peer.until_closed().await });
    let began = Instant::now();
    timeout(LONG, idle.stop()).await.expect("it ends");
    let waited = began.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(11)).contains(&waited), "{waited:?}");
    // The broker is given up, handlers are not.
    timeout(LONG, busy.stop()).await.expect("it ends");
    let waited = began.elapsed();
    assert!((Duration::from_secs(29)..Duration::from_secs(31)).contains(&waited), "{waited:?}");
    drop(client);
    let said = reader.await.unwrap();
    assert!(said.iter().any(|m| matches!(m, ClientMessage::Settle(_))), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_ends_though_the_broker_never_says_that_nothing_more_comes() {
    let (_broker, client, mut peer, _registration) = registered_in_vain().await;
    let reader = tokio::spawn(async move { peer.until_closed().await });
    let began = Instant::now();
    timeout(LONG, client.close()).await.expect("it ends").unwrap();
    let waited = began.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(11)).contains(&waited), "{waited:?}");
    assert_eq!(reader.await.unwrap(), [ClientMessage::Goodbye]);
}

#[test]
fn a_registration_ends_though_its_dispatcher_never_began() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clients = runtime();
    let (client, _peer) = clients.block_on(async { Broker::start().await.connect().await });
    drop(clients);
    let registration = client.on(dest(), |_| async {}).unwrap();
    runtime().block_on(async {
        tokio::time::pause();
        timeout(LONG, registration.stop()).await.expect("it ends");
    });
}

#[tokio::test(start_paused = true)]
async fn dropping_every_handle_stops_everything() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let registration = client
        .on(dest(), move |_| {
            let held = Arc::clone(&held);
            async move {
                std::future::pending::<()>().await;
                drop(held);
            }
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    until("it runs", || Arc::strong_count(&alive) == 3).await;
    drop(client);
    drop(registration);
    peer.until_closed().await;
    until("the handler is gone", || Arc::strong_count(&alive) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_stops_gets_its_outcomes_and_is_left() {
    let (leaving, staying) = (Broker::start().await, Broker::start().await);
    let client = leaving.client().brokers([leaving.address.clone(), staying.address.clone()]);
    let (client, mut peer) = tokio::join!(client.connect(), leaving.accept());
    let client = client.unwrap();
    let _registration = client.on(dest(), |_| tokio::time::sleep(Duration::from_secs(1))).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    peer.send(ServerMessage::Closing).await;
    peer.until_heard().await;
    assert_eq!(client.stats().received, 1);
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.cancel(TimerId::from_u128(1)).await }
    });
    peer.settle(1).await;
    assert!(peer.until_closed().await.is_empty(), "no request went to the broker that stops");
    let mut peer = staying.accept().await;
    peer.registration(&dest()).await;
    peer.request().await;
    assert_eq!(client.info().broker, staying.address);
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn limits_of_registrations_are_told() {
    let broker = Broker::start().await;
    let (client, _peer) = broker.connect().await;
    for n in [0, 10_001] {
        let refused = client.register(dest()).concurrency(n).on(|_| async {}).err();
        assert_eq!(refused, Some(RegisterError::Concurrency { given: n, limit: 10_000 }));
    }
    let all: Vec<_> = (0..1_000).map(|_| client.on(dest(), |_| async {}).unwrap()).collect();
    assert_eq!(client.on(dest(), |_| async {}).err(), Some(RegisterError::TooMany { limit: 1_000 }));
    drop(all);
}
