//! What a token allows on a broker's port, and what becomes of a session whose token is revoked.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::path::Path;

use mtimer_access::{Token, TokenEntry};
use mtimer_broker::{AccessOptions, Broker, BrokerOptions, BrokerTlsOptions, start};
use mtimer_protocol::ops::{Cancel, CancelReply, Purge, ScheduleReply};
use mtimer_protocol::sample::{all_counts, all_pending};
use mtimer_protocol::{
    ClientMessage, CountsQuery, ErrorCode, Hello, OpReply, PendingQuery, Query, QueryAnswer, RequestOp, Role,
    ServerMessage,
};
use mtimer_store::MemoryStore;
use mtimer_types::{Filter, HandlerOutcome, Key, Target};
use support::tokens::{entry, guarded, replace_file, token, with_token, write_tokens};
use support::{Client, TIMEOUT, count, dest, hello, options, schedule, timer};
use tokio::time::timeout;

/// Writes a file of tokens, the first with the number 1.
fn write(path: &Path, grants: &[&str]) {
    let entry = |(n, grant): (u8, &&str)| match *grant {
        "expired" => TokenEntry { expires_ms: Some(1), grants: Vec::new(), ..entry(n, "read:*") },
        grant => entry(n, grant),
    };
    write_tokens(path, (1..).zip(grants).map(entry));
}

async fn refused(broker: &Broker, hello: Hello) -> String {
    let mut client = Client::connect(broker).await;
    client.send(&ClientMessage::Hello(hello)).await;
    let (code, text) = client.refused().await;
    assert_eq!(code, ErrorCode::Unauthorized);
    text
}

fn is_denied(reply: &OpReply, verb: &str, on: &str) -> bool {
    let expected = format!("may not {verb} on {on}:");
    matches!(reply, OpReply::Failed { code: ErrorCode::Unauthorized, message } if message.contains(&expected))
}

#[tokio::test]
async fn a_broker_of_a_cluster_with_a_certificate_has_to_trust_the_others() {
    let authority = mtimer_tls::test_support::Authority::new();
    let issued = authority.issue("broker");
    let tls = |ca| BrokerTlsOptions {
        certificate: issued.certificate.clone(),
        key: issued.key.clone(),
        client_ca: None,
        ca,
    };
    let started = async |ca, store: MemoryStore| {
        let access = AccessOptions { tls: Some(tls(ca)), ..AccessOptions::default() };
        start(BrokerOptions { access, ..options() }, std::sync::Arc::new(store)).await.map(drop)
    };
    let error = started(None, MemoryStore::new(2).coordinated()).await.unwrap_err().to_string();
    assert!(error.contains("tls-ca is not set") && error.contains("which they refuse"), "{error}");
    started(Some(authority.certificate()), MemoryStore::new(2).coordinated()).await.unwrap();
    started(None, MemoryStore::new(2)).await.unwrap();
}

#[tokio::test]
async fn only_a_live_token_with_the_right_role_opens_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    write(&path, &["schedule:*", "expired", "broker:*"]);
    let broker = guarded(&path).await;
    assert!(refused(&broker, hello()).await.contains("asks for a token"));
    let say = |token: String| Hello { token, ..hello() };
    assert!(refused(&broker, say("mtimer_wrong".to_owned())).await.contains("not known"));
    let wrong = Token::from_random([1; 8], [9; 32]).reveal();
    assert!(refused(&broker, say(wrong)).await.contains("not known"));
    assert!(refused(&broker, say(token(2).reveal())).await.contains("expired"));
    let stranger = Hello { role: Role::Broker, ..say(token(1).reveal()) };
    assert!(refused(&broker, stranger).await.contains("may not broker on *"));
    let peer = Hello { role: Role::Broker, ..say(token(3).reveal()) };
    Client::connect(&broker).await.shake_hands(peer).await;
    with_token(&broker, 1).await;
}

#[tokio::test]
async fn each_operation_is_allowed_or_refused_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    write(&path, &["schedule,cancel,read:group/mine", "schedule,cancel,register,read,operate:*"]);
    let broker = guarded(&path).await;
    let mut client = with_token(&broker, 1).await;
    let (mine, other) = (timer("mine", 60_000, b""), timer("other", 60_000, b""));
    let cancel = |target: Target| RequestOp::Cancel(Cancel { target, request: 1 });
    let key = || Key::new("k").unwrap();
    let replies = client
        .request(vec![
            schedule(&other),
            schedule(&mine),
            cancel(Target::Key(dest("mine"), key())),
            cancel(Target::Key(dest("other"), key())),
            cancel(mine.id.into()),
            RequestOp::Purge(Purge { id: mine.id }),
        ])
        .await;
    assert!(is_denied(&replies[0], "schedule", "group/other"), "{replies:?}");
    assert_eq!(replies[1], OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None }));
    assert_eq!(replies[2], OpReply::Cancel(CancelReply::NotFound));
    assert!(is_denied(&replies[3], "cancel", "group/other"), "{replies:?}");
    assert!(is_denied(&replies[4], "cancel", "*") && is_denied(&replies[5], "operate", "*"), "{replies:?}");

    with_token(&broker, 2).await.schedule(&other).await;
    let failed =
        |answer: &QueryAnswer| matches!(answer, QueryAnswer::Failed { code: ErrorCode::Unauthorized, .. });
    assert!(matches!(client.query(Query::Get(mine.id.into())).await, QueryAnswer::Timer(Some(_))));
    assert!(failed(&client.query(Query::Get(other.id.into())).await));
    assert!(failed(&client.query(Query::Status).await));
    let pending =
        |filter| Query::Pending(PendingQuery { filter, ..all_pending(mine.id.partition().0) }.into());
    let listed = client.query(pending(Filter::of(&dest("mine")))).await;
    let QueryAnswer::Pending { rows, next: None } = &listed else { panic!("{listed:?}") };
    assert_eq!(rows.iter().map(|row| row.view.timer.id).collect::<Vec<_>>(), [mine.id]);
    for filter in [Filter::default(), Filter::of(&dest("other"))] {
        assert!(failed(&client.query(pending(filter)).await));
    }
    let counts = |group: &str, app: Option<&str>| {
        let (group, app) = (Some(group.to_owned()), app.map(str::to_owned));
        Query::Counts(CountsQuery { group, app, ..all_counts(mine.id.partition().0) })
    };
    let group = dest("mine").group().to_owned();
    let counted = client.query(counts(&group, Some("mine"))).await;
    let QueryAnswer::Counts { rows, next: None, uncounted: 0 } = &counted else { panic!("{counted:?}") };
    assert_eq!(rows.iter().map(|row| (&row.dest, row.pending)).collect::<Vec<_>>(), [(&dest("mine"), 1)]);
    for app in [None, Some("other")] {
        assert!(failed(&client.query(counts(&group, app)).await));
    }
    assert!(failed(&client.query(Query::Drain { broker: "b".to_owned(), drain: true }).await));
    client.register(1, "mine", 1).await;
    let refused = client.next().await.unwrap();
    let ServerMessage::RegisterRefused { registration: 1, code: ErrorCode::Unauthorized, message } = &refused
    else {
        panic!("{refused:?}");
    };
    assert!(message.contains("may not register on group/mine"), "{message}");
    // The session goes on.
    client.schedule(&timer("mine", 60_000, b"")).await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_sessions_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    write(&path, &["schedule,register:*", "schedule,register:*"]);
    let broker = guarded(&path).await;
    let (mut stays, mut goes) = (with_token(&broker, 1).await, with_token(&broker, 2).await);
    // A file that is not valid changes nothing.
    replace_file(&path, "nonsense");
    broker.reload();
    goes.schedule(&timer("a", 60_000, b"")).await;
    write(&path, &["schedule,register,read:*"]);
    broker.reload();
    let (code, text) = goes.refused().await;
    assert!(code == ErrorCode::Unauthorized && text.contains("revoked"), "{text}");
    // The other one goes on, with what it was given on top.
    stays.register(1, "b", 1).await;
    stays.schedule(&timer("b", 10, b"")).await;
    let (delivery, _) = stays.deliveries(1).await.remove(0);
    stays.settle(&delivery, HandlerOutcome::Ok).await;
    assert_eq!(stays.settled().await.0, 1);
    let hello = Hello { token: token(2).reveal(), ..hello() };
    assert!(refused(&broker, hello).await.contains("not known"));
}

#[tokio::test]
async fn verbs_that_are_taken_away_are_gone_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    write(&path, &["schedule,register:*"]);
    let broker = guarded(&path).await;
    let mut client = with_token(&broker, 1).await;
    client.schedule(&timer("a", 60_000, b"")).await;
    write(&path, &["register:*"]);
    broker.reload();
    let denied = async {
        while !is_denied(
            &client.request(vec![schedule(&timer("a", 60_000, b""))]).await[0],
            "schedule",
            "group/a",
        ) {}
    };
    timeout(TIMEOUT, denied).await.expect("the verb is gone");
    assert_eq!(count(&broker, "sessions_revoked_total").await, 0, "nothing else has ended");
    write(&path, &["register:group/b"]);
    broker.reload();
    let (code, text) = client.refused().await;
    assert!(code == ErrorCode::Unauthorized && text.contains("allows less than before"), "{text}");
    assert_eq!(count(&broker, "sessions_revoked_total").await, 1);
    assert_eq!(count(&broker, "auth_refused_total").await, 0);
}

#[tokio::test]
async fn without_tokens_nobody_beyond_this_machine_is_served() {
    let listen = "0.0.0.0:0".parse().unwrap();
    let start_with = |insecure| {
        let access = AccessOptions { insecure, ..AccessOptions::default() };
        start(BrokerOptions { listen, access, ..options() }, std::sync::Arc::new(MemoryStore::new(2)))
    };
    let error = start_with(false).await.unwrap_err().to_string();
    assert!(error.starts_with("listen is 0.0.0.0:0") && error.contains("mtimer token create"), "{error}");
    start_with(true).await.unwrap();
}
