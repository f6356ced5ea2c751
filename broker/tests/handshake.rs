//! Who is let in, and what the others are told.

mod support;

use std::time::Duration;

use mtimer_broker::{Broker, BrokerOptions};
use mtimer_protocol::ops::Purge;
use mtimer_protocol::{
    ClientMessage, ErrorCode, Hello, Query, Request, RequestOp, Role, ServerMessage, Settlement,
};
use mtimer_store::MemoryStore;
use mtimer_types::{Epoch, HandlerOutcome, Time};
use support::{Client, broker, broker_on, count, frame, heartbeat, hello, options, wait_count, works};
use tokio::io::AsyncWriteExt;

/// Sends a hello and returns the refusal.
async fn refusal(options: BrokerOptions, hello: Hello, counter: &str) -> (ErrorCode, String) {
    let broker = broker(options).await;
    let mut client = Client::connect(&broker).await;
    client.send(&ClientMessage::Hello(hello)).await;
    let refused = client.refused().await;
    assert_eq!(count(&broker, counter).await, 1, "{counter}");
    works(&broker, "others").await;
    refused
}

#[tokio::test]
async fn a_welcome_says_what_this_broker_is() {
    let broker = broker(options()).await;
    let mut client = Client::connect(&broker).await;
    let welcome = client.shake_hands(hello()).await;
    assert_eq!((welcome.version, welcome.cluster.as_str(), welcome.partitions), (1, "test", 2));
    assert_eq!((welcome.store.as_str(), welcome.heartbeat_ms), ("memory", 5_000));
    assert!(welcome.now <= support::now() && welcome.software.starts_with("mtimer/"));
    let other = Client::connect(&broker).await.shake_hands(hello()).await;
    assert_ne!(welcome.session, other.session);
    works(&broker, "a").await;
}

#[tokio::test]
async fn a_wrong_magic_is_refused() {
    let (code, text) =
        refusal(options(), Hello { magic: 0x47455420, ..hello() }, "handshakes_malformed_total").await;
    assert_eq!(
        (code, text.as_str()),
        (ErrorCode::Protocol, "the hello begins with 0x47455420, an mtimer client says 0x4d544d52")
    );
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_refused() {
    let future = Hello { min_version: 2, max_version: 9, ..hello() };
    let (code, text) = refusal(options(), future, "version_refused_total").await;
    assert_eq!(code, ErrorCode::Version);
    assert_eq!(text, "this broker speaks protocol version 1, the client speaks 2 to 9: update the older one");
}

#[tokio::test]
async fn a_range_of_versions_is_enough() {
    let broker = broker(options()).await;
    let wide = Hello { min_version: 0, max_version: 9, ..hello() };
    assert_eq!(Client::connect(&broker).await.shake_hands(wide).await.version, 1);
}

#[tokio::test]
async fn a_long_software_name_is_refused() {
    let (code, text) =
        refusal(options(), Hello { software: "x".repeat(129), ..hello() }, "handshakes_malformed_total")
            .await;
    assert_eq!(
        (code, text.as_str()),
        (ErrorCode::Invalid, "the software's name has 129 bytes, the limit is 128: shorten it")
    );
}

#[tokio::test]
async fn whatever_is_no_hello_is_refused() {
    let broker = broker(options()).await;
    // Something else that speaks the protocol too early, a body of no message, another protocol
    // altogether.
    let cases: [(&[u8], &str, &str); 4] = [
        (
            &frame(&ClientMessage::Ping(1)),
            "handshakes_malformed_total",
            "the first message of a connection is a hello",
        ),
        (&[0, 0, 0, 3, 250, 1, 1], "frames_malformed_total", "malformed message"),
        (&[0, 0, 0, 0], "frames_malformed_total", "malformed message"),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "frames_oversized_total",
            "a frame is announced with more than 4096 bytes",
        ),
    ];
    for (bytes, counter, text) in cases {
        let before = count(&broker, counter).await;
        let mut client = Client::connect(&broker).await;
        client.send_bytes(bytes).await;
        let (code, said) = client.refused().await;
        assert_eq!(code, ErrorCode::Protocol, "{said}");
        assert!(said.contains(text), "{said}");
        assert_eq!(count(&broker, counter).await, before + 1, "{counter}");
    }
    works(&broker, "others").await;
}

#[tokio::test]
async fn who_says_nothing_has_a_deadline() {
    let ms = Duration::from_millis;
    let options = BrokerOptions { heartbeat: ms(20), heartbeat_timeout: ms(40), ..options() };
    let broker = broker(BrokerOptions { handshake_timeout: ms(50), ..options }).await;
    let mut silent = Client::connect(&broker).await;
    let mut half = Client::connect(&broker).await;
    half.send_bytes(&frame(&ClientMessage::Hello(hello()))[..7]).await;
    assert_eq!(silent.refused().await, (ErrorCode::Protocol, "no hello within 50 ms".to_owned()));
    assert_eq!(half.refused().await.0, ErrorCode::Protocol);
    assert_eq!(count(&broker, "handshakes_timed_out_total").await, 2);
}

#[tokio::test]
async fn the_oldest_unfinished_handshake_makes_room_for_a_newcomer() {
    let broker = broker(BrokerOptions { max_handshakes: 2, ..options() }).await;
    let mut oldest = Client::connect(&broker).await;
    let mut second = Client::connect(&broker).await;
    wait_count(&broker, "connections_accepted_total", 2).await;
    let mut newcomer = admitted(&broker).await;
    assert!(oldest.next().await.is_none(), "closed");
    second.shake_hands(hello()).await;
    // Sessions have places of their own: however many connections follow, they stay.
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(Client::connect(&broker).await);
    }
    newcomer.schedule(&support::timer("a", 60_000, b"")).await;
    admitted(&broker).await;
    assert!(count(&broker, "connections_refused_total").await >= 49);
}

/// Connects again and again until there is a place.
async fn admitted(broker: &Broker) -> Client {
    loop {
        let mut client = Client::connect(broker).await;
        let said = client.frames.get_mut().write_all(&frame(&ClientMessage::Hello(hello()))).await;
        if said.is_ok()
            && let Some(ServerMessage::Welcome(_)) = client.next().await
        {
            return client;
        }
    }
}

#[tokio::test]
async fn sessions_are_capped() {
    let broker = broker(BrokerOptions { max_sessions: 1, ..options() }).await;
    let first = Client::welcomed(&broker).await;
    let mut second = Client::connect(&broker).await;
    second.send(&ClientMessage::Hello(hello())).await;
    let (code, text) = second.refused().await;
    assert_eq!(
        (code, text.as_str()),
        (ErrorCode::Overloaded, "all 1 sessions of this broker for clients are taken: try again later")
    );
    // Who looks on, and other brokers, have places of their own.
    for role in [Role::Observer, Role::Broker] {
        let mut other = Client::connect(&broker).await;
        other.shake_hands(Hello { role, ..hello() }).await;
        support::wait_sessions(&broker, 2).await;
        drop(other);
        support::wait_sessions(&broker, 1).await;
    }
    drop(first);
    // The place is free again once the broker has noticed.
    support::wait_sessions(&broker, 0).await;
    works(&broker, "others").await;
}

/// What becomes of a message of a session.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    /// The session goes on.
    Taken,
    /// The session ends with this refusal.
    Refused(&'static str),
}

/// What becomes of this message from a client, an observer and a broker, and the message of the
/// next row. No `_` here: a new message does not compile until it has a row and the row before it
/// leads to it.
fn row(message: &ClientMessage) -> ([Fate; 3], Option<ClientMessage>) {
    use Fate::{Refused, Taken};
    let from_observer = Refused("a client's message from an observer is not allowed here");
    let from_broker = Refused("a client's message from a broker is not allowed here");
    let of_all = [Taken, Taken, Taken];
    let of_clients = [Taken, from_observer, from_broker];
    let (id, epoch, attempt) = (support::timer("a", 60_000, b"").id, Epoch(1), 1);
    match message {
        ClientMessage::Hello(_) => {
            let second = Refused("a second hello is not allowed here");
            let next = ClientMessage::Register { registration: 1, dest: support::dest("a"), credit: 1 };
            ([second; 3], Some(next))
        }
        ClientMessage::Register { .. } => (of_clients, Some(ClientMessage::Unregister { registration: 1 })),
        ClientMessage::Unregister { .. } => {
            let ops = vec![RequestOp::Purge(Purge { id })];
            let next = ClientMessage::Request(Request { corr: 1, first_sent: Time::ZERO, ops });
            (of_clients, Some(next))
        }
        ClientMessage::Request(_) => {
            let outcome = HandlerOutcome::Ok;
            let next = ClientMessage::Settle(vec![Settlement { id, epoch, attempt, outcome }]);
            (of_clients, Some(next))
        }
        ClientMessage::Settle(_) => {
            (of_clients, Some(ClientMessage::Extend { id, epoch, attempt, by_ms: 1_000 }))
        }
        ClientMessage::Extend { .. } => {
            (of_clients, Some(ClientMessage::Query { corr: 1, query: Query::Status }))
        }
        ClientMessage::Query { .. } => (of_all, Some(ClientMessage::Ping(1))),
        ClientMessage::Ping(_) => (of_all, Some(ClientMessage::Pong(1))),
        ClientMessage::Pong(_) => (of_all, Some(ClientMessage::Goodbye)),
        ClientMessage::Goodbye => (of_all, Some(heartbeat())),
        ClientMessage::Peer(_) => {
            let from_client = Refused("a message for another broker is not allowed here");
            ([from_client, from_observer, Taken], None)
        }
    }
}

/// Sends a message, and a ping behind it.
async fn fate(broker: &Broker, role: Role, message: &ClientMessage) -> Result<(), (ErrorCode, String)> {
    let mut client = Client::connect(broker).await;
    client.shake_hands(Hello { role, ..hello() }).await;
    client.send_bytes(&[frame(message), frame(&ClientMessage::Ping(77))].concat()).await;
    loop {
        match client.next().await.expect("an answer or a refusal") {
            ServerMessage::Pong(77, _) => return Ok(()),
            ServerMessage::Refused { code, message } => return Err((code, message)),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_role_allows_what_belongs_to_it() {
    // One of a cluster: without others there is nobody to send it a heartbeat.
    let broker = broker_on(&MemoryStore::new(2).coordinated(), options()).await;
    let mut next = Some(ClientMessage::Hello(hello()));
    let mut rows = 0;
    while let Some(message) = next {
        let (fates, following) = row(&message);
        for (role, expected) in [Role::Client, Role::Observer, Role::Broker].into_iter().zip(fates) {
            let what = format!("{message:?} from {role:?}");
            match (expected, fate(&broker, role, &message).await) {
                (Fate::Taken, Ok(())) => {}
                (Fate::Refused(says), Err((ErrorCode::Protocol, text))) => assert_eq!(text, says, "{what}"),
                (_, other) => panic!("{what}: {other:?}, expected {expected:?}"),
            }
        }
        rows += 1;
        next = following;
    }
    assert_eq!(rows, 11, "every kind of message has its turn");
}
