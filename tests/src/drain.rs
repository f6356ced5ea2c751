//! Waiting until everything has ended, and looking at what is left then.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use mtimer_client::{Cancelled, Client, DeadFilter, Destination, Key, KeyPolicy, Schedule, Status};
use mtimer_store_redis::test_support::Server;

use crate::history::History;
use crate::left::Final;

/// Keys that are tried at the end of a run: enough that every way to end is among them.
const KEYS_TRIED: usize = 300;
/// Keys that are tried at once.
const TRIED_AT_ONCE: usize = 50;
/// How far ahead the timers are due that try keys: they are cancelled long before.
const FAR: Duration = Duration::from_secs(3_600);

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

/// Tries keys whose timers have all ended, and notes those that are not free: `get` still finds a
/// timer, or a new timer cannot have the key.
pub async fn free_keys(client: &Client, history: &History, end: &mut Final) {
    let of = |plan: &crate::Plan| Some((plan.dest.clone(), plan.key.clone()?));
    let used: BTreeSet<(Destination, Key)> = history.plans.values().filter_map(of).collect();
    let step = used.len().div_ceil(KEYS_TRIED).max(1);
    let tried = used.into_iter().step_by(step);
    let states: Vec<Option<String>> = stream::iter(tried)
        .map(|(dest, key)| async move {
            let why = is_taken(client, &dest, &key).await;
            why.map(|why| format!("key {key:?} of {dest:?}: {why}"))
        })
        .buffer_unordered(TRIED_AT_ONCE)
        .collect()
        .await;
    end.taken_keys.extend(states.into_iter().flatten());
}

/// Why a key is not free, if it is not.
async fn is_taken(client: &Client, dest: &Destination, key: &Key) -> Option<String> {
    match client.get((dest, key)).await.unwrap() {
        None => {}
        Some(view) => return Some(format!("it still names {:?}", view.timer.id)),
    }
    let schedule = Schedule::after(dest.clone(), FAR).key(key.clone()).policy(KeyPolicy::Create);
    let scheduled = match client.schedule(schedule).await {
        Ok(scheduled) => scheduled,
        Err(error) => return Some(error.to_string()),
    };
    match client.cancel(scheduled.id).await.unwrap() {
        Cancelled::Cancelled(_) => None,
        other => Some(format!("the cancel of a timer that has it says {other:?}")),
    }
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

/// Facts stay: who owns, what the cluster is, numbers of destinations. Remembered outcomes go by
/// themselves.
pub(crate) fn is_leak(redis: &Server, key: &str) -> bool {
    let kind = key.split(':').next().unwrap_or_default();
    match kind {
        "owner" | "meta" | "dest" | "leader" | "term" | "topology" => false,
        // -1: it would stay for ever. -2: it is gone by now.
        "ended" => redis.call::<i64>(&["PTTL", key]) == -1,
        _ => true,
    }
}
