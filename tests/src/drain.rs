//! Waiting until everything has ended, and looking at what is left then.

use std::time::Duration;

use mtimer_client::{Client, DeadFilter, Status};
use mtimer_store_redis::test_support::Server;

use crate::history::Final;

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

/// Purges dead letters and unconfirmed timers, and notes what is left in the store all
/// the same: nothing, if nothing leaks. Of a Redis the keys are looked at.
pub async fn purge(client: &Client, redis: Option<&Server>, end: &mut Final) {
    let mut ids: Vec<_> =
        client.dead(DeadFilter::default()).all().await.unwrap().iter().map(|row| row.timer.id).collect();
    ids.extend(client.unconfirmed().all().await.unwrap().iter().map(|row| row.timer.id));
    for purged in client.purge_all(ids).await {
        assert!(purged.unwrap(), "a listed timer can be purged");
    }
    end.status = client.status().await.unwrap();
    if let Some(redis) = redis {
        let leaks = redis.keys().into_iter().filter(|key| is_leak(redis, key));
        end.leaks.extend(leaks.map(|key| format!("the key {key} is left in Redis")));
    }
}

/// Facts stay: who owns, what the cluster is, numbers of destinations. Remembered outcomes go by themselves.
pub(crate) fn is_leak(redis: &Server, key: &str) -> bool {
    let kind = key.split(':').next().unwrap_or_default();
    match kind {
        "owner" | "meta" | "dest" | "leader" | "term" | "topology" => false,
        // -1: it would stay for ever. -2: it is gone by now.
        "ended" => redis.call::<i64>(&["PTTL", key]) == -1,
        _ => true,
    }
}
