//! Limits of tokens and of groups, at a real broker: what is refused, how, and that it is counted.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::path::Path;
use std::time::Duration;

use mtimer_access::TokenEntry;
use mtimer_broker::BrokerOptions;
use mtimer_protocol::ops::ScheduleReply;
use mtimer_protocol::{ClientMessage, ErrorCode, Hello, OpReply, Role, ServerMessage};
use mtimer_store::MemoryStore;
use mtimer_types::{HandlerOutcome, Timer};
use support::http::{on_loopback, scrape};
use support::tokens::{entry, guarded, token, with_token, write_tokens};
use support::{
    Client, TIMEOUT, broker, broker_on, count, hello, options, schedule, timer, until_async, wait_count,
};
use tokio::time::timeout;

/// Writes a file of tokens that may do everything within these limits, the first with the number 1.
fn write(path: &Path, limits: &[&str]) {
    let entry = |(n, limits): (u8, &&str)| {
        let limits = limits.parse().unwrap_or_default();
        TokenEntry { limits, ..entry(n, "schedule,cancel,register,read,broker:*") }
    };
    write_tokens(path, (1..).zip(limits).map(entry));
}

fn later(app: &str, n: usize) -> Vec<Timer> {
    (0..n).map(|_| timer(app, 3_600_000, b"12345")).collect()
}

/// Schedules these; returns how many are stored, and the refusals.
async fn scheduled(client: &mut Client, timers: &[Timer]) -> (usize, Vec<(ErrorCode, String)>) {
    let replies = client.request(timers.iter().map(schedule).collect()).await;
    let stored = replies
        .iter()
        .filter(|reply| matches!(reply, OpReply::Schedule(ScheduleReply::Scheduled { .. })))
        .count();
    let refusals = replies.into_iter().filter_map(|reply| match reply {
        OpReply::Failed { code, message } => Some((code, message)),
        _ => None,
    });
    (stored, refusals.collect())
}

#[tokio::test]
async fn what_is_over_a_tokens_rate_is_refused_and_the_rest_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    // One a second: none is added while the test runs, or it does no harm.
    write(&path, &["schedules=1,burst=5", ""]);
    let broker = guarded(&path).await;
    let mut client = with_token(&broker, 1).await;
    let (stored, refusals) = scheduled(&mut client, &later("app", 20)).await;
    assert!((5..10).contains(&stored), "{stored}");
    assert_eq!(stored + refusals.len(), 20);
    for (code, why) in &refusals {
        assert_eq!(*code, ErrorCode::LimitReached);
        let whose = format!("the limit schedules of token {} is reached, 1 a second", token(1).id());
        assert!(why.starts_with(&whose), "{why}");
    }
    // All connections of a token share its limits; other tokens do not.
    let mut second = with_token(&broker, 1).await;
    assert!(scheduled(&mut second, &later("app", 20)).await.0 < 10);
    assert_eq!(scheduled(&mut with_token(&broker, 2).await, &later("app", 20)).await.0, 20);
    let refused = count(&broker, "limit_token_schedules_total").await;
    assert!(refused >= refusals.len() as u64, "{refused}");
    assert_eq!(count(&broker, "access_denied_total").await, 0);
    // Read again, it applies to the session that is open.
    write(&path, &["schedules=100000", ""]);
    broker.reload();
    let all_stored = async || scheduled(&mut client, &later("app", 50)).await.0 == 50;
    until_async("the new limit applies", all_stored).await;
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    write(&path, &["payload=4"]);
    let broker = guarded(&path).await;
    let mut client = with_token(&broker, 1).await;
    let timers = [timer("app", 60_000, b"1234"), timer("app", 60_000, b"12345")];
    let (stored, refusals) = scheduled(&mut client, &timers).await;
    assert_eq!((stored, refusals[0].0), (1, ErrorCode::Invalid));
    let expected =
        format!("payload and headers have 5 bytes, the limit payload of token {} is 4", token(1).id());
    assert!(refusals[0].1.starts_with(&expected), "{refusals:?}");
}

#[tokio::test]
async fn connections_over_the_limit_are_refused_until_one_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    write(&path, &["connections=2"]);
    let broker = guarded(&path).await;
    let first = with_token(&broker, 1).await;
    let _second = with_token(&broker, 1).await;
    let say = |role| ClientMessage::Hello(Hello { role, token: token(1).reveal(), ..hello() });
    for role in [Role::Client, Role::Observer] {
        let mut third = Client::connect(&broker).await;
        third.send(&say(role)).await;
        let (code, why) = third.refused().await;
        assert_eq!(code, ErrorCode::LimitReached);
        let expected = format!("the limit connections of token {} is reached, 2 of 2", token(1).id());
        assert!(why.starts_with(&expected), "{why}");
    }
    let mut peer = Client::connect(&broker).await;
    peer.send(&say(Role::Broker)).await;
    let answer = peer.next().await;
    assert!(matches!(answer, Some(ServerMessage::Welcome(_))), "brokers are not counted: {answer:?}");
    drop((first, peer));
    assert_eq!(count(&broker, "limit_token_connections_total").await, 2);
    let free = async {
        loop {
            let mut client = Client::connect(&broker).await;
            client.send(&say(Role::Client)).await;
            if matches!(client.next().await, Some(ServerMessage::Welcome(_))) {
                break;
            }
        }
    };
    timeout(TIMEOUT, free).await.expect("the places are free again");
}

#[tokio::test]
async fn a_group_without_tokens_is_bounded_by_what_waits_for_it() {
    let limits = "pending=30".parse().unwrap();
    let group_limits = [("group".to_owned(), limits)].into_iter().collect();
    let broker = broker(BrokerOptions { group_limits, http: on_loopback(), ..options() }).await;
    let mut client = Client::welcomed(&broker).await;
    // Nobody takes them: they are parked, or soon will be.
    let due: Vec<Timer> = (0..50).map(|_| timer("app", 1, b"")).collect();
    let (stored, refusals) = scheduled(&mut client, &due).await;
    assert_eq!((stored, refusals.len()), (30, 20));
    let expected = "the limit pending of group group is reached, 30 of 30 timers in memory or parked";
    assert!(refusals.iter().all(|(code, why)| *code == ErrorCode::LimitReached && why.starts_with(expected)));
    wait_count(&broker, "parked_total", 30).await;
    assert_eq!(scheduled(&mut client, &later("app", 1)).await.0, 0);
    assert_eq!(count(&broker, "limit_group_pending_total").await, 21);
    // Once they are settled there is space again.
    client.register(1, "app", 100).await;
    for (delivery, _) in client.deliveries(30).await {
        client.settle(&delivery, HandlerOutcome::Ok).await;
    }
    let is_stored = async || scheduled(&mut client, &later("app", 1)).await.0 == 1;
    until_async("there is space again", is_stored).await;
    let metrics = scrape(&broker).await;
    let line = metrics.lines().find(|line| line.contains("reason=\"group_pending\"")).unwrap();
    assert!(line.starts_with("mtimer_limit_refusals_total{"), "{line}");
    let refused = metrics.lines().find(|line| line.contains("reason=\"limit_reached\"")).unwrap();
    assert!(refused.starts_with("mtimer_refusals_total{"), "{refused}");
}

#[tokio::test]
async fn what_is_pending_counts_after_a_restart() {
    let store = MemoryStore::new(2);
    let limits = || [("group".to_owned(), "pending=20".parse().unwrap())].into_iter().collect();
    let first = broker_on(&store, BrokerOptions { group_limits: limits(), ..options() }).await;
    let mut client = Client::welcomed(&first).await;
    let due: Vec<Timer> = (0..20).map(|_| timer("app", 1, b"")).collect();
    assert_eq!(scheduled(&mut client, &due).await.0, 20);
    wait_count(&first, "parked_total", 20).await;
    first.stop().await.unwrap();
    let second = broker_on(&store, BrokerOptions { group_limits: limits(), ..options() }).await;
    let mut client = Client::welcomed(&second).await;
    let is_refused = async || scheduled(&mut client, &later("app", 1)).await.0 == 0;
    until_async("they are counted", is_refused).await;
}

#[test]
fn limits_of_groups_are_checked() {
    let error = |group: &str, limits: &str| {
        let group_limits = [(group.to_owned(), limits.parse().unwrap())].into_iter().collect();
        BrokerOptions { group_limits, ..options() }.validate().unwrap_err().to_string()
    };
    assert_eq!(
        error("shop", "connections=1"),
        "group-limit is connections for shop, allowed is schedules, burst, pending and payload: limit the \
         connections of a token: a connection belongs to no group"
    );
    assert!(error("*", "schedules=0").contains("the limit schedules is 0, allowed is 1 to 1000000"));
}

#[tokio::test]
async fn a_client_sees_a_retryable_error_that_names_the_limit() {
    let limits = "schedules=1,burst=1".parse().unwrap();
    let group_limits = [("*".to_owned(), limits)].into_iter().collect();
    let broker = broker(BrokerOptions { group_limits, ..options() }).await;
    let builder = mtimer_client::Client::builder().brokers([broker.local_addr().to_string()]);
    let client = builder.request_timeout(Duration::from_millis(300)).connect().await.unwrap();
    let to = mtimer_types::Destination::new("shop", "orders").unwrap();
    let timers: Vec<_> = (0..5).map(|_| client.schedule(mtimer_client::Schedule::after(&to, HOUR))).collect();
    let answers = futures_util::future::join_all(timers).await;
    let errors: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert!(!errors.is_empty());
    for error in errors {
        assert!(error.is_retryable() && error.has_no_side_effects(), "{error}");
        let named = "the limit schedules of group shop is reached, 1 a second and 1 at once";
        assert!(error.to_string().contains(named), "{error}");
    }
    // With a longer timeout the client tries until it is let through.
    let to = mtimer_types::Destination::new("waiting", "orders").unwrap();
    let builder = mtimer_client::Client::builder().brokers([broker.local_addr().to_string()]);
    let client = builder.request_timeout(Duration::from_secs(15)).connect().await.unwrap();
    for _ in 0..3 {
        client.schedule(mtimer_client::Schedule::after(&to, HOUR)).await.unwrap();
    }
    assert!(client.stats().retried > 0);
}

const HOUR: Duration = Duration::from_secs(3_600);
