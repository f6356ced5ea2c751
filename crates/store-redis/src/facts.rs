//! The fixed properties of a cluster, its term, and the clocks of the servers.

use futures_util::FutureExt;
use mtimer_store::{StoreClock, StoreError};
use mtimer_types::{Term, limits::MAX_PARTITIONS};
use redis::cmd;

use crate::keyspace::keys::{hash_slot, meta, term};
use crate::keyspace::secret::Secret;
use crate::options::DEFAULT_PARTITIONS;
use crate::wire::{Lost, Network, Reply, Script, Servers, ask};

/// The layout of keys and values that this version writes.
pub(crate) const FORMAT: u64 = 13;

/// The fixed properties of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) partitions: u16,
    pub(crate) secret: Secret,
    /// This call has created the cluster.
    pub(crate) is_new: bool,
}

/// Reads the fixed properties of a cluster, or creates it with `wanted` partitions, by default
/// [`DEFAULT_PARTITIONS`].
///
/// # Errors
///
/// [`StoreError::Unusable`] if the cluster has another number of partitions or another format, or
/// is not mtimer's.
pub(crate) async fn facts(
    network: &dyn Network,
    cluster: &str,
    wanted: Option<u16>,
) -> Result<Facts, StoreError> {
    let key = meta(cluster);
    let unusable = |text: String| Err(StoreError::Unusable(text));
    let mut command = Script::Facts.command(&[&key]);
    command.arg(wanted.unwrap_or(DEFAULT_PARTITIONS)).arg(FORMAT).arg(&rand::random::<[u8; Secret::BYTES]>());
    let answer = ask(network, hash_slot(&key), &command).await?;
    let number = |i: usize| answer.items().get(i).and_then(Reply::number);
    let (Some(stored), Some(format)) = (number(0), number(1)) else {
        return unusable(format!("{key} is not mtimer's: choose another cluster name"));
    };
    if format != FORMAT {
        return unusable(format!(
            "cluster {cluster} is stored in format {format}, this version reads only format {FORMAT} and converts no \
             other: use the version that wrote it, or start with another cluster name"
        ));
    }
    let Some(partitions) = u16::try_from(stored).ok().filter(|n| (1..=MAX_PARTITIONS).contains(n)) else {
        return unusable(format!("{key} says {stored} partitions: it is damaged"));
    };
    let secret = answer.items().get(2).and_then(Reply::bytes);
    let Some(secret) = secret.and_then(|bytes| <[u8; Secret::BYTES]>::try_from(bytes).ok()) else {
        return unusable(format!("{key} has no secret: it is damaged"));
    };
    match wanted {
        Some(wanted) if wanted != partitions => unusable(format!(
            "cluster {cluster} has {partitions} partitions, configured are {wanted}: configure {partitions}, or use \
             another cluster name (the number is fixed when a cluster is created)"
        )),
        _ => Ok(Facts { partitions, secret: Secret::new(secret), is_new: number(3) == Some(1) }),
    }
}

/// Raises the cluster's term; the new one.
///
/// # Errors
///
/// [`StoreError::Unusable`] if the stored value is not a term.
pub(crate) async fn raise_term(network: &dyn Network, cluster: &str) -> Result<Term, StoreError> {
    let key = term(cluster);
    let answer = ask(network, hash_slot(&key), &Script::RaiseTerm.command(&[&key])).await?;
    answer
        .number()
        .map(Term)
        .ok_or_else(|| StoreError::Unusable(format!("{key} is not a number: it is damaged")))
}

/// The clock of each master, to be read on connections on which nothing waits behind a partition's
/// work.
pub(crate) fn clocks(servers: &Servers) -> Vec<StoreClock> {
    let clock = |name: String| {
        let (servers, address) = (servers.clone(), name.clone());
        let reading =
            async move { clock(&servers, &address).await.map_err(|lost| StoreError::Unavailable(lost.0)) };
        StoreClock { name, reading: reading.boxed() }
    };
    servers.masters().into_iter().map(clock).collect()
}

/// Microseconds since the epoch.
async fn clock(servers: &Servers, address: &str) -> Result<u64, Lost> {
    let reply = servers.connection(address).await?.ask(cmd("TIME")).await?;
    let part = |i: usize| reply.items().get(i).and_then(Reply::number);
    match (part(0), part(1)) {
        (Some(seconds), Some(micros)) => Ok(seconds.saturating_mul(1_000_000).saturating_add(micros)),
        _ => Err(Lost(format!("{address} does not tell its time"))),
    }
}
