//! The lease on Redis, and which masters answer.
//!
//! Purpose: campaign, renew, resign and publish as one script each, on three keys that share the cluster's hash slot.
//! Invariant: every call ends within [`CALL`], whatever the servers do: whoever leads must know in time that it cannot
//! renew. So these calls have connections of their own, on which nothing waits behind a partition's work or its
//! replicas. The lease is advice and is not waited for on replicas.
//! Not in here: when to campaign, renew or resign; routes (see `topology`).

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use mtimer_store::{Campaigned, Candidate, Coordination, Lease, StoreError, StoreFuture};
use mtimer_types::{PartitionId, Term};
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::conn::{Lost, Pool};
use crate::keys::{self, Keyspace, hash_slot};
use crate::lane::Shared;
use crate::options::unusable;
use crate::resp::{Args, Reply};
use crate::script::Script;
use crate::store::once;

/// How long a call is tried.
const CALL: Duration = Duration::from_millis(700);
/// How long one attempt of it may take: what is left is for a look at the map and another attempt.
const ATTEMPT: Duration = Duration::from_millis(400);
/// How long the masters may take to say that they are there.
const PING: Duration = Duration::from_millis(400);
/// How long a look at the map may take.
const LOOK: Duration = Duration::from_millis(100);
/// A server that is silent for longer is taken for lost.
pub(crate) const ANSWER_WITHIN: Duration = CALL;
/// Bytes shown of a lease that mtimer has not written.
const SHOWN: usize = 255;

/// One broker's view of the lease.
#[derive(Debug)]
pub(crate) struct RedisCoordination {
    shared: Arc<Shared>,
    /// Connections on which nothing waits behind a partition's work or its replicas; clocks are read on them too.
    pool: Arc<Pool>,
    cluster: Arc<str>,
    partitions: u16,
}

impl RedisCoordination {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        pool: Arc<Pool>,
        cluster: Arc<str>,
        partitions: u16,
    ) -> Self {
        Self { shared, pool, cluster, partitions }
    }

    /// Runs a script on the node that has the lease. Follows redirections; looks at the map when that node is lost.
    async fn ask(&self, args: Args) -> Result<Reply, StoreError> {
        let slot = hash_slot(&keys::leader(&self.cluster));
        let mut last = "no node has answered".to_owned();
        let mut backoff = Backoff::new(u64::from(slot) << 16 | 3);
        let trying = async {
            loop {
                let asked = self.shared.topology.master(slot);
                let attempt = once(&self.pool, &self.shared.topology, slot, &args);
                let (why, look) = match timeout(ATTEMPT, attempt).await {
                    Ok(Ok(Ok(reply))) => return Ok(reply),
                    Ok(Ok(Err(passing))) => (passing, false),
                    Ok(Err(StoreError::Unavailable(why))) => (why, true),
                    Ok(Err(error)) => return Err(error),
                    Err(_) => (format!("{} does not answer", asked.as_deref().unwrap_or("nobody")), true),
                };
                last = why;
                if look {
                    self.look(asked.into_iter().collect()).await;
                }
                backoff.wait().await;
            }
        };
        match timeout(CALL, trying).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::Unavailable(format!("the lease's place: {last}"))),
        }
    }

    /// Looks at the map, without those that have just failed. If nobody answers, the next attempt will tell.
    async fn look(&self, without: HashSet<String>) {
        let _ = timeout(LOOK, self.shared.topology.refresh_without(&without, &self.pool)).await;
    }

    fn script(&self, script: Script, keys: &[String]) -> Args {
        let mut args = Args::of(["EVALSHA", script.sha()]);
        args.number(keys.len() as u64);
        for key in keys {
            args.push(key);
        }
        args
    }

    async fn campaign(&self, candidate: Candidate) -> Result<Campaigned, StoreError> {
        let cluster = &*self.cluster;
        let Candidate { address, incarnation, ttl_ms, seen } = candidate;
        if address.is_empty() || address.contains(|c: char| c.is_whitespace()) {
            return Err(unusable(format!("{address:?} is not an address: give host:port, without spaces")));
        }
        let keys = [keys::leader(cluster), keys::term(cluster), keys::topology(cluster)];
        let mut args = self.script(Script::Campaign, &keys);
        args.push(&address).number(incarnation).number(ttl_ms.max(1)).number(seen.0);
        let answer = self.ask(args).await?;
        campaigned(&answer).ok_or_else(|| unusable(format!("{} is damaged: remove it", keys[1])))
    }

    /// Asks for something that only the holder gets.
    async fn as_holder(&self, script: Script, lease: Lease, more: Holder) -> Result<bool, StoreError> {
        let mut keys = vec![keys::leader(&self.cluster)];
        if matches!(more, Holder::Publishes(_)) {
            keys.push(keys::topology(&self.cluster));
        }
        let mut args = self.script(script, &keys);
        args.push(format!("{} {} {}", lease.address, lease.incarnation, lease.term.0));
        match more {
            Holder::Renews(ttl_ms) => args.number(ttl_ms.max(1)),
            Holder::Publishes(topology) => args.push(topology),
            Holder::Resigns => &mut args,
        };
        Ok(self.ask(args).await?.number() == Some(1))
    }

    async fn unreachable(&self) -> Result<Vec<PartitionId>, StoreError> {
        let topology = &self.shared.topology;
        let masters: Vec<_> = (0..self.partitions)
            .map(PartitionId)
            .map(|p| (p, topology.master(hash_slot(&Keyspace::new(&self.cluster, p).owner()))))
            .collect();
        let asked: HashSet<_> = masters.iter().filter_map(|(_, master)| master.clone()).collect();
        let pings = asked.iter().map(|address| async move {
            let answers = matches!(timeout(PING, ping(&self.pool, address)).await, Ok(Ok(())));
            (!answers).then(|| address.clone())
        });
        let silent: HashSet<_> = join_all(pings).await.into_iter().flatten().collect();
        if !silent.is_empty() || masters.iter().any(|(_, master)| master.is_none()) {
            // Another node may have taken over: the next call goes there.
            self.look(silent.clone()).await;
        }
        let lost = |master: &Option<String>| master.as_ref().is_none_or(|m| silent.contains(m));
        Ok(masters.into_iter().filter(|(_, master)| lost(master)).map(|(p, _)| p).collect())
    }
}

/// What a holder wants.
enum Holder {
    Renews(u64),
    Resigns,
    Publishes(Bytes),
}

async fn ping(pool: &Pool, address: &str) -> Result<(), Lost> {
    match pool.get(address).await?.ask(&Args::of(["PING"])).await? {
        Reply::Status(pong) if pong == "PONG" => Ok(()),
        other => Err(Lost(format!("{address}: {other:?}"))),
    }
}

/// Reads the answer of `campaign.lua`.
fn campaigned(answer: &Reply) -> Option<Campaigned> {
    let [kind, second, third] = answer.array()? else { return None };
    if kind.text()? == "WON" {
        return Some(Campaigned::Won { term: Term(second.number()?), published: third.bytes().cloned() });
    }
    let remaining_ms = third.number();
    let held = String::from_utf8_lossy(second.bytes()?);
    let (address, term) = holder(&held).unwrap_or_else(|| (cut(&held), 0));
    Some(Campaigned::Held { address: address.to_owned(), term: Term(term), remaining_ms })
}

/// `address incarnation term`, if it is that.
fn holder(held: &str) -> Option<(&str, u64)> {
    let mut words = held.split(' ');
    let (address, incarnation, term) = (words.next()?, words.next()?, words.next()?);
    incarnation.parse::<u64>().ok()?;
    let whole = words.next().is_none() && !address.is_empty() && address.len() <= SHOWN;
    whole.then_some((address, term.parse().ok()?))
}

fn cut(text: &str) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= SHOWN).last();
    &text[..end.unwrap_or(0)]
}

/// The view as its users hold it.
#[derive(Clone, Debug)]
pub(crate) struct Handle(pub(crate) Arc<RedisCoordination>);

impl Handle {
    fn call<T: Send, F>(&self, act: impl FnOnce(Arc<RedisCoordination>) -> F) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        act(self.0.clone()).boxed()
    }
}

impl Coordination for Handle {
    fn campaign(&self, candidate: Candidate) -> StoreFuture<Campaigned> {
        self.call(|this| async move { this.campaign(candidate).await })
    }

    fn renew(&self, lease: Lease, ttl_ms: u64) -> StoreFuture<bool> {
        self.call(|this| async move { this.as_holder(Script::Renew, lease, Holder::Renews(ttl_ms)).await })
    }

    fn resign(&self, lease: Lease) -> StoreFuture<bool> {
        self.call(|this| async move { this.as_holder(Script::Resign, lease, Holder::Resigns).await })
    }

    fn publish(&self, lease: Lease, topology: Bytes) -> StoreFuture<bool> {
        self.call(
            |this| async move { this.as_holder(Script::Publish, lease, Holder::Publishes(topology)).await },
        )
    }

    fn unreachable(&self) -> StoreFuture<Vec<PartitionId>> {
        self.call(|this| async move { this.unreachable().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_mtimer_writes_has_a_holder() {
        assert_eq!(holder("10.0.0.1:7400 7 1790000000000"), Some(("10.0.0.1:7400", 1_790_000_000_000)));
        for strange in
            ["", "hello", "a b c", "a 1", "a 1 2 3", " 1 2", "a 1 99999999999999999999", &"x".repeat(300)]
        {
            assert_eq!(holder(strange), None, "{strange}");
        }
        assert_eq!(cut(&"\u{e4}".repeat(300)).len(), 254);
    }
}
