//! What a token with one verb can do over TCP and over HTTP, at a real broker.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::path::Path;
use std::sync::Arc;

use mtimer_access::{TokenEntry, Verb};
use mtimer_broker::{AccessOptions, Broker, BrokerOptions, PeerToken};
use mtimer_protocol::sample::{Parts, all_counts, all_forecast, all_pending, bulk_id, bulks, settings};
use mtimer_protocol::{
    ClientMessage, ErrorCode, Hello, OpReply, Query, QueryAnswer, RequestOp, Role, ServerMessage,
    SettleRefusal, Settlement,
};
use mtimer_store::MemoryStore;
use mtimer_types::{
    Epoch, HandlerOutcome, Key, KeyPolicy, PartitionId, SettingsVersion, Target, Time, Timer,
};
use support::http::{address, get, get_with, on_loopback};
use support::tokens::{entry, replace_file, token, tokens_of, with_token, write_tokens};
use support::{Client, broker_on, count, dest, frame, heartbeat, hello, options, timer, until_async};

/// The number of the token that has this verb on `*`, and no other.
fn number(verb: Verb) -> u8 {
    verb as u8 + 1
}

/// The number of the token that has expired, and could read on `*`.
const EXPIRED: u8 = 100;

/// A broker with one token for each verb, and one that has expired.
async fn one_token_each(path: &Path) -> Broker {
    one_token_each_on(&MemoryStore::new(2), path).await
}

async fn one_token_each_on(store: &MemoryStore, path: &Path) -> Broker {
    let valid = Verb::ALL.into_iter().map(|verb| entry(number(verb), &format!("{verb}:*")));
    let expired = TokenEntry { expires_ms: Some(1), ..entry(EXPIRED, "read:*") };
    write_tokens(path, valid.chain([expired]));
    let peer_token = PeerToken::Value(token(number(Verb::Broker)).reveal());
    let access = AccessOptions { peer_token, ..tokens_of(path) };
    broker_on(store, BrokerOptions { access, http: on_loopback(), ..options() }).await
}

async fn with_verb(broker: &Broker, verb: Verb) -> Client {
    with_token(broker, number(verb)).await
}

/// Whether the operation is allowed.
async fn allows_op(client: &mut Client, op: RequestOp) -> bool {
    let reply = client.request(vec![op]).await.remove(0);
    !matches!(reply, OpReply::Failed { code: ErrorCode::Unauthorized, .. })
}

async fn allows_query(client: &mut Client, query: Query) -> bool {
    let answer = client.query(query).await;
    !matches!(answer, QueryAnswer::Failed { code: ErrorCode::Unauthorized, .. })
}

/// A refusal comes before the answer to a ping that was sent later.
async fn allows_register(client: &mut Client) -> bool {
    client.register(9, "unused", 1).await;
    client.send(&ClientMessage::Ping(9)).await;
    loop {
        match client.next().await.unwrap() {
            ServerMessage::RegisterRefused { registration: 9, .. } => return false,
            ServerMessage::Pong(9, _) => return true,
            _ => {}
        }
    }
}

/// The outcome of no delivery is late for whoever may settle, and not theirs for others.
async fn allows_settle(client: &mut Client) -> bool {
    let id = timer("unused", 60_000, b"").id;
    let outcome = HandlerOutcome::Fail { error: String::new() };
    client.send(&ClientMessage::Settle(vec![Settlement { id, epoch: Epoch(1), attempt: 1, outcome }])).await;
    match client.settled().await {
        (0, refused) if refused == [(id, SettleRefusal::NotYours)] => false,
        (0, refused) if refused == [(id, SettleRefusal::Late)] => true,
        other => panic!("{other:?}"),
    }
}

/// Nobody has this delivery, and an extension is not answered: the count of what was denied tells.
async fn allows_extend(broker: &Broker, client: &mut Client) -> bool {
    let before = count(broker, "access_denied_total").await;
    let id = timer("unused", 60_000, b"").id;
    client.send(&ClientMessage::Extend { id, epoch: Epoch(1), attempt: 1, by_ms: 1_000 }).await;
    client.send(&ClientMessage::Ping(10)).await;
    while !matches!(client.next().await.unwrap(), ServerMessage::Pong(10, _)) {}
    match count(broker, "access_denied_total").await - before {
        0 => true,
        1 => false,
        more => panic!("one message was denied {more} times"),
    }
}

/// In a session of its own, which ends if it is refused. Without the verb it can be a client's
/// only.
async fn allows_peer(broker: &Broker, verb: Verb) -> bool {
    let role = if verb == Verb::Broker { Role::Broker } else { Role::Client };
    let mut client = Client::connect(broker).await;
    client.shake_hands(Hello { role, token: token(number(verb)).reveal(), ..hello() }).await;
    client.send_bytes(&[frame(&heartbeat()), frame(&ClientMessage::Ping(11))].concat()).await;
    loop {
        match client.next().await.unwrap() {
            ServerMessage::Pong(11, _) => return true,
            ServerMessage::Refused { code: ErrorCode::Unauthorized, message } => {
                assert!(message.contains("may not broker on *"), "{message}");
                return false;
            }
            ServerMessage::Refused { code, message } => panic!("{code:?}: {message}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn each_verb_opens_its_own_requests_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    // One of a cluster: others take no heartbeats.
    let store = MemoryStore::new(2).coordinated();
    let broker = one_token_each_on(&store, &dir.path().join("tokens.toml")).await;
    for verb in Verb::ALL {
        let client = &mut with_verb(&broker, verb).await;
        let new = timer("app", 60_000, b"");
        let keyed = || Timer { key: Key::new("k").ok(), ..timer("app", 60_000, b"") };
        let by_key = || Target::Key(dest("app"), Key::new("k").unwrap());
        // The samples are of a partition that this cluster does not have: they come as far as the
        // permission, which is looked at before.
        let of_this_cluster = [
            (new.clone(), KeyPolicy::Create, Target::Id(new.id)),
            (keyed(), KeyPolicy::Keep, by_key()),
            (keyed(), KeyPolicy::Replace, by_key()),
        ];
        let all_of = |(timer, policy, target): (Timer, KeyPolicy, Target)| {
            let (timer, time) = ((Arc::new(timer), policy), Time::from_ms(1 << 41));
            let bulk = (PartitionId(0), bulk_id(), bulks().remove(0));
            let settings = (PartitionId(0), dest("app"), settings(), SettingsVersion::After(0));
            let mut parts = Parts { timer, target, retained: new.id, time, request: 1, bulk, settings };
            (0..RequestOp::NAMES.len()).map(move |nth| RequestOp::arbitrary(nth, &mut parts))
        };
        for op in of_this_cluster.into_iter().flat_map(all_of).chain(RequestOp::samples()) {
            // `crates/access/tests/matrix.rs` compares this verb with the documented one.
            let (needed, what) = (op.verb(), format!("{op:?} with {verb}"));
            assert_eq!(allows_op(client, op).await, verb == needed, "{what}");
        }
        let drain = Query::Drain { broker: "127.0.0.1:1".to_owned(), drain: true };
        for (query, needed) in [
            (Query::Get(by_key()), Verb::Read),
            (Query::Get(new.id.into()), Verb::Read),
            (Query::Story(new.id.into()), Verb::Read),
            (Query::Dead { group: None, app: None, cursor: None, limit: 1 }, Verb::Read),
            (Query::Unconfirmed { cursor: None, limit: 1 }, Verb::Read),
            (Query::Pending(all_pending(0).into()), Verb::Read),
            (Query::Counts(all_counts(0)), Verb::Read),
            (Query::Bulks { partition: 0 }, Verb::Read),
            (Query::Settings { partition: 0 }, Verb::Read),
            (Query::Forecast(all_forecast(0)), Verb::Read),
            (Query::Parked { dest: dest("app"), cursor: None, limit: 1 }, Verb::Read),
            (Query::Taken { cursor: None, limit: 1 }, Verb::Read),
            (Query::Status, Verb::Read),
            (Query::Cluster, Verb::Read),
            (Query::Broker, Verb::Read),
            (Query::Ready, Verb::Read),
            (drain, Verb::Operate),
        ] {
            let what = format!("{query:?} with {verb}");
            assert_eq!(allows_query(client, query).await, verb == needed, "{what}");
        }
        assert_eq!(allows_register(client).await, verb == Verb::Register, "register with {verb}");
        assert_eq!(allows_settle(client).await, verb == Verb::Register, "settle with {verb}");
        assert_eq!(allows_extend(&broker, client).await, verb == Verb::Register, "extend with {verb}");
    }
    // The last rows: whoever sent a heartbeat is given partitions.
    for verb in Verb::ALL {
        assert_eq!(allows_peer(&broker, verb).await, verb == Verb::Broker, "heartbeat with {verb}");
    }
    assert_eq!(count(&broker, "auth_refused_total").await, 0);
    assert!(count(&broker, "access_denied_total").await > 0);
}

#[tokio::test]
async fn only_the_verb_broker_lets_a_session_in_as_a_broker() {
    let dir = tempfile::tempdir().unwrap();
    let broker = one_token_each(&dir.path().join("tokens.toml")).await;
    for verb in Verb::ALL {
        for role in [Role::Client, Role::Observer, Role::Broker] {
            let mut client = Client::connect(&broker).await;
            let hello = Hello { role, token: token(number(verb)).reveal(), ..hello() };
            client.send(&ClientMessage::Hello(hello)).await;
            let is_in = matches!(client.next().await, Some(ServerMessage::Welcome(_)));
            assert_eq!(is_in, role != Role::Broker || verb == Verb::Broker, "{role:?} with {verb}");
        }
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_read_again_shows_in_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    let broker = one_token_each(&path).await;
    let reader = format!("Authorization: Bearer {}\r\n", token(number(Verb::Read)).reveal());
    let wait_stale = async |stale: u8| {
        broker.reload();
        let sample = format!("mtimer_credentials_stale{{what=\"tokens\"}} {stale}\n");
        let is_shown = async || get_with(address(&broker), "/metrics", &reader).await.2.contains(&sample);
        until_async(&sample, is_shown).await;
    };
    let good = std::fs::read_to_string(&path).unwrap();
    wait_stale(0).await;
    replace_file(&path, "nonsense");
    wait_stale(1).await;
    replace_file(&path, &good);
    wait_stale(0).await;
}

#[tokio::test]
async fn metrics_are_for_those_who_may_read_and_probes_for_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let broker = one_token_each(&dir.path().join("tokens.toml")).await;
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(address(&broker), path).await.0, 200);
    }
    let unknown = [String::new(), bearer("nonsense"), bearer(&token(99).reveal())];
    for header in unknown.into_iter().chain([bearer(&token(EXPIRED).reveal())]) {
        let (status, head, body) = get_with(address(&broker), "/metrics", &header).await;
        assert_eq!(status, 401, "{head}");
        assert!(head.to_lowercase().contains("www-authenticate: bearer"), "{head}");
        assert!(!body.contains("mtimer_sessions"), "{body}");
    }
    for verb in Verb::ALL {
        let header = bearer(&token(number(verb)).reveal());
        let (status, _, body) = get_with(address(&broker), "/metrics", &header).await;
        assert_eq!(status, if verb == Verb::Read { 200 } else { 403 }, "{verb}: {body}");
        assert_eq!(body.contains("mtimer_sessions"), verb == Verb::Read, "{verb}");
    }
    // Refused scrapes are counted with refused handshakes and messages.
    assert_eq!(count(&broker, "auth_refused_total").await, 4);
    let denied = Verb::ALL.len() as u64 - 1;
    assert_eq!(count(&broker, "access_denied_total").await, denied);
    let (_, _, text) =
        get_with(address(&broker), "/metrics", &bearer(&token(number(Verb::Read)).reveal())).await;
    for sample in [
        format!("mtimer_access_denied_total {denied}\n"),
        "mtimer_connections_refused_total{reason=\"auth\"} 4\n".to_owned(),
    ] {
        assert!(text.contains(&sample), "{sample} in\n{text}");
    }
}
