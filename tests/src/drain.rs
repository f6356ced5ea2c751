//! Waiting until everything has ended, and looking at what is left then.

use std::time::Duration;

use mtimer_client::{Client, DeadFilter, Status, limits};
use mtimer_store_redis::test_support::Server;

/// Waits until no timer is live: what is left are dead letters and unconfirmed ones.
pub async fn drain(client: &Client, limit: Duration) -> Status {
    let mut last = Status::default();
    let mut look = async || {
        let Ok(status) = client.status().await else { return false };
        let live = status.pending + status.retrying + status.parked + status.in_flight + status.loaded;
        let done = live == 0 && status.taken == unconfirmed(client).await;
        last = status;
        done
    };
    let began = std::time::Instant::now();
    while !look().await {
        if began.elapsed() > limit {
            panic!("not drained within {limit:?}: {last:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    last
}

async fn unconfirmed(client: &Client) -> u64 {
    client.unconfirmed().all().await.map_or(u64::MAX, |rows| rows.len() as u64)
}

/// Purges dead letters and unconfirmed timers, waits until outcomes are forgotten, and tells what is left in the store all
/// the same: nothing, if no key leaks. With a Redis, its keys are looked at.
pub async fn drained_keys(client: &Client, redis: Option<&Server>) -> Vec<String> {
    let mut ids: Vec<_> =
        client.dead(DeadFilter::default()).all().await.unwrap().iter().map(|row| row.timer.id).collect();
    ids.extend(client.unconfirmed().all().await.unwrap().iter().map(|row| row.timer.id));
    for purged in client.purge_all(ids).await {
        assert!(purged.unwrap(), "a listed timer can be purged");
    }
    let mut leaks = Vec::new();
    let status = client.status().await.unwrap();
    let s = &status;
    let left = s.pending + s.retrying + s.parked + s.taken + s.dead + s.residue + s.keys;
    if left > 0 {
        leaks.push(format!("left after everything was purged: {s:?}"));
    }
    if let Some(redis) = redis {
        let lasting =
            |key: &String| !["owner:", "meta:", "leader:", "term:"].iter().any(|p| key.starts_with(p));
        let limit = Duration::from_millis(limits::REPEAT_HORIZON_MS) + Duration::from_secs(60);
        let mut keys = Vec::new();
        let began = std::time::Instant::now();
        while began.elapsed() < limit {
            keys = redis.keys().into_iter().filter(lasting).collect();
            if keys.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        leaks.extend(keys.iter().take(20).map(|key| format!("the key {key} is left in Redis")));
    }
    leaks
}
