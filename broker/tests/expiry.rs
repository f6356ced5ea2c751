//! Before a certificate or a token expires the broker says so.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![cfg(unix)]

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mtimer_access::TokenEntry;
use mtimer_broker::{AccessOptions, BrokerOptions, BrokerTlsOptions, PeerToken, RedisCertificates};
use mtimer_tls::test_support::Authority;
use support::http::{address, get_with, on_loopback, scrape};
use support::tokens::{entry, token, tokens_of, write_tokens};
use support::{broker, count, options, until_async};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn tokens_that_expire_are_in_the_metrics_and_the_brokers_own_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let expiring = |n: u8, days: u32| {
        let expires_ms = u64::try_from((now + DAY * days).as_millis()).ok();
        TokenEntry { expires_ms, ..entry(n, "broker,read:*") }
    };
    write_tokens(&path, [expiring(1, 30), expiring(2, 3), entry(3, "read:*")]);
    let peer_token = PeerToken::Value(token(1).reveal());
    let access = AccessOptions { peer_token, ..tokens_of(&path) };
    let broker = broker(BrokerOptions { access, http: on_loopback(), ..options() }).await;
    let bearer = format!("Authorization: Bearer {}\r\n", token(3).reveal());
    let expiry = async |what: &str| {
        let (status, _, text) = get_with(address(&broker), "/metrics", &bearer).await;
        assert_eq!(status, 200, "{text}");
        let sample = format!("mtimer_token_expires_timestamp_seconds{{what=\"{what}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok())
    };
    assert_eq!(expiry("peer_token").await, Some((now + DAY * 30).as_secs()));
    assert_eq!(expiry("tokens").await, Some((now + DAY * 3).as_secs()));
    assert_eq!(count(&broker, "credentials_expiring").await, 0, "tokens of others are not counted");
    write_tokens(&path, [expiring(1, 13), entry(2, "read:*"), entry(3, "read:*")]);
    broker.reload();
    until_async("it is counted", async || count(&broker, "credentials_expiring").await == 1).await;
    assert_eq!(expiry("peer_token").await, Some((now + DAY * 13).as_secs()));
    assert_eq!(expiry("tokens").await, None, "no other token expires");
    assert_eq!(count(&broker, "credentials_stale").await, 0);
}

#[tokio::test]
async fn certificates_of_authorities_and_for_redis_are_in_the_metrics_by_setting() {
    let authority = Authority::new();
    let old = authority.issue_expired("old").certificate;
    let ca = authority.certificate();
    let redis = RedisCertificates { certificate: Some(old.clone()), ca: Some(ca.clone()) };
    let access = AccessOptions { redis, ..AccessOptions::default() };
    let broker = broker(BrokerOptions { access, http: on_loopback(), ..options() }).await;
    let shown = async || {
        let text = scrape(&broker).await;
        let name = "mtimer_certificate_expires_timestamp_seconds{file=";
        let samples = text.lines().filter_map(|line| Some(line.strip_prefix(name)?.to_owned()));
        samples.collect::<Vec<_>>()
    };
    // 2002-01-01, and 4096-01-01.
    let new = "\"redis-tls-ca\"} 67090118400";
    assert_eq!(shown().await, ["\"redis-tls-cert\"} 1009843200", new]);
    until_async("it is counted", async || count(&broker, "credentials_expiring").await == 1).await;
    // It is replaced: read again without being asked to.
    std::fs::copy(ca, &old).unwrap();
    until_async("it is read again", async || shown().await == ["\"redis-tls-cert\"} 67090118400", new]).await;
    until_async("it is not counted", async || count(&broker, "credentials_expiring").await == 0).await;
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_in_the_status() {
    let authority = Authority::new();
    let issued = authority.issue_expired("old");
    let (client_ca, ca) = (None, None);
    let tls = BrokerTlsOptions { certificate: issued.certificate, key: issued.key, client_ca, ca };
    let access = AccessOptions { tls: Some(tls), ..AccessOptions::default() };
    let broker = broker(BrokerOptions { access, ..options() }).await;
    until_async("it is counted", async || count(&broker, "credentials_expiring").await == 1).await;
}
