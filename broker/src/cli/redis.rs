//! The Redis store: opening it, and removing the keys of a temporary cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_broker::config::Replication;
use mtimer_store::StoreError;
use mtimer_store_redis::{Durability, Options, RedisStore};
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, IntoConnectionInfo, RedisError, Value, cmd, pipe};

use super::exit::{Exit, Failure};
use super::store::Opened;

/// Waits between two tries to reach a store that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Keys looked at and removed in one go.
const KEYS: u64 = 1_000;

/// Opens a store on Redis. While it is away it is tried again, for `patience` (`None`: for ever).
pub(crate) async fn open(
    urls: &[String],
    replication: Option<Replication>,
    partitions: Option<u16>,
    cluster: &str,
    patience: Option<Duration>,
) -> Result<Opened, Failure> {
    let durability = match replication {
        None => Durability::Redis,
        Some(Replication { replicas, within }) => Durability::Replicated { replicas, timeout: within },
    };
    let options = Options { partitions, durability, ..Options::new(urls.iter().cloned(), cluster) };
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let why = match RedisStore::connect(options.clone()).await {
            Ok(store) => return Ok(Opened::other(Arc::new(store))),
            Err(StoreError::Unavailable(why)) => why,
            Err(error) => return Err(error.into()),
        };
        if let Some(patience) = patience.filter(|p| began.elapsed() + pause > *p) {
            let text = format!(
                "the store could not be used within {} s: {why}; start it, or allow more with --startup-timeout",
                patience.as_secs()
            );
            return Err(Failure::new(Exit::NotNow, text));
        }
        if pause == FIRST_PAUSE {
            tracing::warn!(%why, "the store is away, trying again");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Removes every key of a cluster whose name is used for nothing else and is part of no other key: the random name of
/// a temporary one. Returns how many there were.
pub(crate) async fn remove(urls: &[String], cluster: &str) -> Result<u64, Failure> {
    remove_keys(urls, cluster).await.map_err(|e| Failure::new(Exit::NotNow, e.to_string()))
}

async fn remove_keys(urls: &[String], cluster: &str) -> Result<u64, RedisError> {
    let mut removed = 0;
    for mut connection in masters(urls).await? {
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("*{cluster}*")).arg("COUNT").arg(KEYS);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
            if !keys.is_empty() {
                // One command a key: those of a Redis Cluster lie in different hash slots.
                let mut all = pipe();
                for key in &keys {
                    all.cmd("UNLINK").arg(key).ignore();
                }
                let () = all.query_async(&mut connection).await?;
                removed += keys.len() as u64;
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    Ok(removed)
}

/// A connection to every master that has keys.
pub(super) async fn masters(urls: &[String]) -> Result<Vec<MultiplexedConnection>, RedisError> {
    let mut all = Vec::new();
    for url in urls {
        let info = url.as_str().into_connection_info()?;
        let mut connection = Client::open(info.clone())?.get_multiplexed_async_connection().await?;
        let slots: Result<Value, RedisError> = cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
        let Ok(slots) = slots else {
            // No Redis Cluster: of several servers the others are replicas, or stand in for one another.
            let role: Value = cmd("ROLE").query_async(&mut connection).await?;
            if matches!(&role, Value::Array(parts) if parts.first().and_then(text).as_deref() == Some("master"))
            {
                all.push(connection);
            }
            continue;
        };
        let ConnectionAddr::Tcp(asked, _) = info.addr() else { continue };
        for (host, port) in nodes(&slots, asked) {
            let info = info.clone().set_addr(ConnectionAddr::Tcp(host, port));
            all.push(Client::open(info)?.get_multiplexed_async_connection().await?);
        }
        return Ok(all);
    }
    Ok(all)
}

/// The masters in an answer to CLUSTER SLOTS, each once. A node that does not know its own name is where it was asked.
fn nodes(slots: &Value, asked: &str) -> Vec<(String, u16)> {
    let Value::Array(rows) = slots else { return Vec::new() };
    let node = |row: &Value| {
        let Value::Array(row) = row else { return None };
        let Value::Array(master) = row.get(2)? else { return None };
        let host = master.first().and_then(text).filter(|h| !h.is_empty() && h != "?");
        let Value::Int(port) = master.get(1)? else { return None };
        Some((host.unwrap_or_else(|| asked.to_owned()), u16::try_from(*port).ok()?))
    };
    let mut all: Vec<(String, u16)> = rows.iter().filter_map(node).collect();
    all.sort();
    all.dedup();
    all
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_master_is_named_once() {
        let text = |t: &str| Value::BulkString(t.as_bytes().to_vec());
        let node = |host: &str, port| Value::Array(vec![text(host), Value::Int(port), text("id")]);
        let row = |master| Value::Array(vec![Value::Int(0), Value::Int(1), master, node("replica", 1)]);
        let slots = Value::Array(vec![row(node("b", 7001)), row(node("", 7000)), row(node("b", 7001))]);
        assert_eq!(nodes(&slots, "a"), [("a".to_owned(), 7000), ("b".to_owned(), 7001)]);
        assert!(nodes(&Value::Nil, "a").is_empty());
    }
}
