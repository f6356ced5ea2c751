//! Connections: handshakes that are refused or never end, garbage, silence, and coming back.

mod fake;

use std::time::Duration;

use fake::{Broker, START, TextLog, delivery, dest, until, welcome};
use mtimer_client::{
    Callback, Client, ConnectError, ErrorCode, Outcome, RegisterError, RequestError, Schedule, ScheduleError,
    TimerId, limits,
};
use mtimer_protocol::ops::{CancelReply, PurgeReply, ScheduleReply};
use mtimer_protocol::{ClientMessage, Delivery, MAGIC, OpReply, Role, ServerMessage, UNASKED_PONG, VERSION};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn the_hello_says_who_the_client_is_and_the_welcome_is_kept() {
    let broker = Broker::start().await;
    let client = broker.client().token("secret").software("é".repeat(100));
    let (client, peer) = tokio::join!(client.connect(), broker.accept());
    let client = client.unwrap();
    assert_eq!((peer.hello.magic, peer.hello.min_version, peer.hello.max_version), (MAGIC, VERSION, VERSION));
    assert_eq!((peer.hello.token.as_str(), peer.hello.software), ("secret", "é".repeat(64)));
    let info = client.info();
    assert_eq!((info.cluster.as_str(), info.partitions, info.session), ("test", 8, 7));
    assert!(*client.connected().borrow());
    assert!(client.now() >= START);
}

#[tokio::test(start_paused = true)]
async fn an_observer_says_so_and_does_nothing_else() {
    let broker = Broker::start().await;
    let (client, peer) = tokio::join!(broker.client().observer().connect(), broker.accept());
    let client = client.unwrap();
    assert_eq!(peer.hello.role, Role::Observer);
    let refused = client.cancel(TimerId::from_u128(1)).await.unwrap_err();
    assert_eq!(refused, RequestError::Observer);
    let all = client.schedule_all(vec![Schedule::after(dest(), Duration::from_secs(9))]).await;
    assert!(
        matches!(&all[..], [Err(ScheduleError::Request { error: RequestError::Observer, .. })]),
        "{all:?}"
    );
    let refused = client.on(dest(), |_| async { Outcome::ok() }).unwrap_err();
    assert_eq!(refused, RegisterError::Observer);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_in_the_brokers_words() {
    let broker = Broker::start().await;
    let refuse = async {
        let mut peer = broker.greet().await;
        peer.send(ServerMessage::Refused { code: ErrorCode::Unauthorized, message: "no such token".into() })
            .await;
    };
    let (refused, ()) = tokio::join!(broker.client().connect(), refuse);
    let error = refused.unwrap_err();
    assert!(matches!(&error, ConnectError::Refused { code: ErrorCode::Unauthorized, .. }), "{error}");
    assert!(error.to_string().contains("no such token") && !error.is_retryable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_told_at_once() {
    let error = Client::builder().connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::NoBroker));
    for address in ["localhost", ":7400", "host:port", "host:70000", "", ",", "a:1,", "a:1,,b:2", "a:1, b"] {
        let error = Client::builder().brokers(["c:3", address]).connect().await.unwrap_err();
        assert!(matches!(&error, ConnectError::Address(told) if told == address), "{error}");
        let named = format!("{address:?} is not a broker address");
        assert!(error.to_string().starts_with(&named) && !error.is_retryable(), "{error}");
    }
    let error = Client::builder().brokers(["h:1"]).token("x".repeat(5_000)).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::TokenTooLong { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_told_after_the_timeout() {
    let broker = Broker::start().await;
    let settings = broker.client().connect_timeout(Duration::from_secs(3));
    drop(broker);
    let began = Instant::now();
    let error = settings.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.is_retryable() && began.elapsed() <= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_says_nothing_is_given_up() {
    let broker = Broker::start().await;
    let (error, _held) = tokio::join!(
        async { broker.client().connect_timeout(Duration::ZERO).connect().await.unwrap_err() },
        broker.accept_silently()
    );
    assert!(matches!(error, ConnectError::Timeout { ms: limits::HANDSHAKE_DEADLINE_MS, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_says_nothing_takes_no_longer_than_the_timeout() {
    for (timeout, took) in [(1_500, 1_500), (10, 1_000)] {
        let broker = Broker::start().await;
        let began = Instant::now();
        let connecting = broker.client().connect_timeout(Duration::from_millis(timeout)).connect();
        let (error, _held) = tokio::join!(connecting, broker.accept_silently());
        assert!(matches!(error.unwrap_err(), ConnectError::Timeout { ms, .. } if ms == took));
        let waited = began.elapsed().as_millis() as u64;
        assert!((took..took + 100).contains(&waited), "{waited} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_address_is_tried() {
    let (gone, there) = (Broker::start().await, Broker::start().await);
    let addresses = [gone.address.clone(), there.address.clone()];
    drop(gone);
    let client = Client::builder().brokers(addresses).connect_timeout(Duration::ZERO);
    let (client, _peer) = tokio::join!(client.connect(), there.accept());
    assert_eq!(client.unwrap().info().broker, there.address);
}

#[tokio::test(start_paused = true)]
async fn one_text_may_name_several_brokers() {
    for separator in [",", ", ", " , "] {
        let (gone, there) = (Broker::start().await, Broker::start().await);
        let addresses = format!(" {}{separator}{} ", gone.address, there.address);
        drop(gone);
        let client = Client::builder().brokers([addresses]).connect_timeout(Duration::ZERO);
        let (client, _peer) = tokio::join!(async { client.connect().await.unwrap() }, there.accept());
        assert_eq!(client.info().broker, there.address);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_broker_is_told_so() {
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0, 0, 0, 2, 99, 99], &[0, 0, 0, 1, 6]] {
        let broker = Broker::start().await;
        let (result, _peer) = tokio::join!(broker.client().connect(), async {
            let mut peer = broker.greet().await;
            peer.raw(answer).await;
            peer
        });
        let error = result.unwrap_err();
        assert!(matches!(error, ConnectError::Protocol { .. }) && !error.is_retryable(), "{error}");
    }
    for (version, partitions) in [(2, 8), (VERSION, 0), (VERSION, 1_025)] {
        let broker = Broker::start().await;
        let (result, ()) = tokio::join!(broker.client().connect(), async {
            let mut peer = broker.greet().await;
            let welcome = mtimer_protocol::Welcome { version, partitions, ..welcome(START) };
            peer.send(ServerMessage::Welcome(welcome)).await;
        });
        assert!(matches!(result, Err(ConnectError::Protocol { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_of_another_cluster_is_not_used() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    drop(peer);
    let mut peer = broker.greet().await;
    let mut other = welcome(START);
    other.partitions = 16;
    peer.send(ServerMessage::Welcome(other)).await;
    assert!(peer.until_closed().await.is_empty());
    let _peer = broker.accept().await;
    until("it is back", || client.stats().connections == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_cluster_clock_is_taken_in_before_the_next_heartbeat() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    peer.alive = false;
    let stepped = peer.now() + 3_600_000;
    peer.send(ServerMessage::Pong(UNASKED_PONG, stepped)).await;
    let heard = async {
        while client.now() < stepped {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(4), heard).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn garbage_ends_the_connection_and_nothing_else() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client.on(dest(), |_| async {}).unwrap();
    let mut foreign = delivery(1);
    foreign.id = mtimer_client::TimerId::from_u128(u128::MAX);
    let breaches = [
        ServerMessage::Welcome(welcome(START)),
        ServerMessage::Reply { corr: 99, replies: vec![OpReply::Purge(PurgeReply::Done)] },
        ServerMessage::Reply { corr: 0, replies: vec![] },
        ServerMessage::Answer { corr: 5, answer: mtimer_protocol::QueryAnswer::Timer(None) },
        ServerMessage::Settled { accepted: 1, refused: vec![] },
        ServerMessage::Settled { accepted: u32::MAX, refused: vec![] },
        ServerMessage::Pong(12_345, START),
        ServerMessage::Deliver { registration: 77, deliveries: vec![delivery(1)] },
        ServerMessage::Deliver { registration: 1, deliveries: vec![foreign] },
        ServerMessage::Refused { code: ErrorCode::Protocol, message: "I do not like it".into() },
    ];
    for breach in breaches {
        peer.registration(&dest()).await;
        peer.send(breach).await;
        peer.until_closed().await;
        peer = broker.accept().await;
    }
    // Bytes that are no message: a length beyond every limit, an unknown message, a vector longer
    // than memory, a rest.
    let bodies: [&[u8]; 4] = [&[200], &[], &[2, 1, 253, 255, 255, 255, 255, 255, 255, 255, 127], &[6, 1, 1]];
    for body in bodies {
        peer.registration(&dest()).await;
        peer.frame(body).await;
        peer.until_closed().await;
        peer = broker.accept().await;
    }
    peer.registration(&dest()).await;
    peer.raw(&[0xff; 64]).await;
    peer.until_closed().await;
    let mut peer = broker.accept().await;
    peer.registration(&dest()).await;
    assert_eq!(client.stats().connections, 16);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_fit_ends_the_connection_and_the_request_is_repeated() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let id = mtimer_client::TimerId::from_u128(3);
    let call = tokio::spawn(async move { client.cancel(id).await });
    for wrong in [
        vec![OpReply::Schedule(ScheduleReply::Conflict)],
        vec![],
        vec![OpReply::Cancel(CancelReply::NotFound); 2],
    ] {
        let request = peer.request().await;
        peer.send(ServerMessage::Reply { corr: request.corr, replies: wrong }).await;
        peer.until_closed().await;
        peer = broker.accept().await;
    }
    let request = peer.request().await;
    peer.send(ServerMessage::Reply {
        corr: request.corr,
        replies: vec![OpReply::Cancel(CancelReply::NotFound)],
    })
    .await;
    assert_eq!(call.await.unwrap(), Ok(mtimer_client::Cancelled::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_half_open_connection_is_noticed() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let began = Instant::now();
    // The broker lives, and then it does not: no more pongs, no close.
    tokio::time::timeout(Duration::from_secs(60), peer.next()).await.unwrap_err();
    assert!(*client.connected().borrow(), "heartbeats keep it alive");
    peer.alive = false;
    let (dead_since, closed) = (Instant::now(), peer.until_closed().await);
    assert!(closed.is_empty());
    let silent = dead_since.elapsed().as_millis() as u64;
    assert!((limits::HEARTBEAT_MS * 2..=limits::HEARTBEAT_TIMEOUT_MS).contains(&silent), "{silent} ms");
    assert!(began.elapsed() >= Duration::from_secs(70));
    let _peer = broker.accept().await;
    until("it is back", || client.stats().connections == 2).await;
}

#[tokio::test(start_paused = true)]
async fn coming_back_takes_longer_and_longer_but_not_for_ever() {
    let broker = Broker::start().await;
    let (_client, peer) = broker.connect().await;
    drop(peer);
    let mut gaps = Vec::new();
    let mut last = Instant::now();
    for _ in 0..14 {
        drop(broker.accept_silently().await);
        gaps.push(last.elapsed());
        last = Instant::now();
    }
    assert!(gaps[0] <= Duration::from_millis(40), "{gaps:?}");
    assert!(gaps.iter().all(|g| *g <= Duration::from_millis(2_001)), "{gaps:?}");
    assert!(gaps[13] >= Duration::from_secs(1) && gaps[13] > gaps[3], "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered() {
    use futures_util::StreamExt;
    use mtimer_protocol::{ClientMessage, decode};
    let broker = Broker::start().await;
    let (_client, mut peer) = broker.connect().await;
    peer.send(ServerMessage::Ping(41)).await;
    loop {
        let body = peer.frames.next().await.unwrap().unwrap();
        match decode(&body).unwrap() {
            ClientMessage::Ping(_) => {}
            other => break assert_eq!(other, ClientMessage::Pong(41)),
        }
    }
}

// In real time: megabytes take their time through the system's buffers, which a paused clock would
// take for silence.
#[tokio::test]
async fn a_broker_that_takes_nothing_is_given_up() {
    let broker = Broker::start().await;
    let greet = async {
        let mut peer = broker.greet().await;
        let welcome = mtimer_protocol::Welcome { heartbeat_ms: 100, ..welcome(START) };
        peer.send(ServerMessage::Welcome(welcome)).await;
        peer
    };
    let (client, mut peer) = tokio::join!(broker.client().connect(), greet);
    let client = client.unwrap();
    // It talks, but it does not read.
    let talk = tokio::spawn(async move {
        for n in 0.. {
            peer.send(ServerMessage::Ping(n)).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let payload = bytes::Bytes::from(vec![7; limits::MAX_PAYLOAD_BYTES]);
    let schedule = Schedule::after(dest(), Duration::from_secs(60)).payload(payload);
    let calls = tokio::spawn({
        let client = client.clone();
        async move { client.schedule_all(vec![schedule; 400]).await }
    });
    let mut peer = broker.accept().await;
    // All operations that it had not taken come again.
    let mut seen = 0;
    while seen < 400 {
        let request = peer.request().await;
        seen += request.ops.len();
        peer.scheduled(&request).await;
    }
    assert!(calls.await.unwrap().iter().all(Result::is_ok));
    assert!(client.stats().repeated > 0);
    assert_eq!(client.stats().connections, 2);
    talk.abort();
}

#[tokio::test(start_paused = true)]
async fn a_callback_is_never_received_before_its_due_time() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (seen, mut callbacks) = tokio::sync::mpsc::unbounded_channel();
    let handler =
        move |callback: Callback| std::future::ready(seen.send(callback).map_err(|e| e.to_string()));
    let registration = client.on(dest(), handler).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    // The broker's clock is a little ahead of this client's estimate of it, as it may be between
    // two heartbeats; then by an hour, which no broker's clock is.
    for ahead_ms in [2, 3_600_000] {
        let due = client.now() + ahead_ms;
        peer.deliver(number, vec![Delivery { due, ..delivery(ahead_ms) }]).await;
        let callback = callbacks.recv().await.unwrap();
        assert!(callback.received >= due, "received {} ms early", due.ms_since(callback.received));
        assert_eq!(callback.lateness_ms(), callback.received.ms_since(due));
        // What a handler reads that asks the client. A due time that is far ahead moves no clock.
        let now = client.now();
        assert_eq!(now >= due, ahead_ms == 2, "the client's clock shows {now}, due {due}");
        peer.settle(1).await;
    }
    let now = client.now();
    assert!((START..START + 60_000).contains(&now), "a wrong due time is no time to go by: {now}");
    drop(registration);
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_last_connection_and_its_return_are_said_once() {
    let (log, _guard) = TextLog::start();
    let broker = Broker::start().await;
    for in_order in [true, false] {
        let before = log.text().len();
        let (client, mut peer) = broker.connect().await;
        if in_order {
            peer.send(ServerMessage::Closing).await;
        }
        drop(peer);
        // It is refused a few times.
        for _ in 0..5 {
            drop(broker.greet().await);
        }
        let _peer = broker.accept().await;
        until("it is back", || client.stats().connections == 2).await;
        let text = log.text().split_off(before);
        let [lost, back] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(lost.contains("the last connection is lost, and is tried again"), "{lost}");
        assert!(back.contains("connected again") && back.contains("away_ms="), "{back}");
        for line in [lost, back] {
            assert!(line.contains(&format!("broker=\"{}\"", broker.address)), "{line}");
        }
        client.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_while_the_client_closes_is_not_called_lost() {
    let (log, _guard) = TextLog::start();
    let broker = Broker::start().await;
    for in_order in [true, false] {
        let (client, mut peer) = broker.connect().await;
        let ends = async {
            loop {
                match peer.recv().await {
                    ClientMessage::Goodbye => break,
                    ClientMessage::Query { .. } => {}
                    other => panic!("not the end: {other:?}"),
                }
            }
            if in_order {
                peer.send(ServerMessage::Closing).await;
            }
            drop(peer);
        };
        let (closed, ()) = tokio::join!(client.close(), ends);
        closed.unwrap();
        assert_eq!(log.text(), "", "in order: {in_order}");
    }
}
