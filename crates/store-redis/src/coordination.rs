//! The lease on Redis, and which masters answer.
//!
//! Campaign, look, renew, resign and publish are one script each, on three keys that share a hash
//! slot. Every call ends within [`CALL`], even if no server answers: a leader must know in time
//! that it cannot renew. So these calls have connections of their own, on which nothing waits
//! behind a partition's work. The lease is advice, and replicas are not waited for.
//!
//! Not in here: when to campaign, renew or resign.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use mtimer_store::{Campaigned, Candidate, Coordination, Lease, LeaseHolder, StoreError, StoreFuture};
use mtimer_types::{PartitionId, Term};
use redis::{Cmd, ToRedisArgs, Value, cmd};
use tokio::time::timeout;

use crate::keyspace::keys::{hash_slot, leader, term, topology};
use crate::wire::{Failed, Lost, Purpose, Reply, RetryPauses, Script, Servers, Use, once};

/// How long a call is tried.
const CALL: Duration = Duration::from_millis(700);
/// How long one attempt of it may take: the rest is for a look at the map and another attempt.
const ATTEMPT: Duration = Duration::from_millis(400);
/// How long the masters may take to answer a PING.
const PING: Duration = Duration::from_millis(400);
/// How long a look at the map may take.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes shown of a lease that mtimer has not written.
const SHOWN: usize = 255;

/// How connections for the lease and for clocks are used.
pub(crate) const URGENT: Use = Use { purpose: Purpose::Urgent, answer_within: CALL };

/// One broker's view of the lease. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct RedisCoordination(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    servers: Servers,
    /// The keys of the lease, which share a hash slot.
    leader: String,
    term: String,
    topology: String,
    hash_slot: u16,
    /// The hash slot of each partition.
    partitions: Vec<u16>,
}

impl RedisCoordination {
    /// `servers` have connections of their own, used as [`URGENT`]; `partitions` has the hash slot
    /// of each partition.
    pub(crate) fn new(servers: Servers, cluster: &str, partitions: Vec<u16>) -> Self {
        let [leader, term, topology] = [leader, term, topology].map(|key| key(cluster));
        let hash_slot = hash_slot(&leader);
        Self(Arc::new(Inner { servers, leader, term, topology, hash_slot, partitions }))
    }

    /// Runs a script that only the holder of the lease may run; whether it is the caller.
    fn as_holder(
        &self,
        script: Script,
        keys: &[&String],
        lease: &Lease,
        argument: impl ToRedisArgs,
    ) -> StoreFuture<bool> {
        let held = format!("{} {} {}", lease.address, lease.incarnation, lease.term.0);
        let command = script.command(keys).arg(held).arg(argument).to_owned();
        let this = self.0.clone();
        async move { Ok(this.ask(command).await?.number() == Some(1)) }.boxed()
    }
}

impl Coordination for RedisCoordination {
    fn campaign(&self, candidate: Candidate) -> StoreFuture<Campaigned> {
        let this = self.0.clone();
        async move { this.campaign(candidate).await }.boxed()
    }

    fn holder(&self) -> StoreFuture<Option<LeaseHolder>> {
        let this = self.0.clone();
        async move {
            let command = Script::Holder.command(&[&this.leader]);
            held(&this.ask(command).await?)
                .ok_or_else(|| StoreError::Unusable(format!("{} cannot be read", this.leader)))
        }
        .boxed()
    }

    fn renew(&self, lease: Lease, ttl_ms: u64) -> StoreFuture<bool> {
        self.as_holder(Script::Renew, &[&self.0.leader], &lease, ttl_ms.max(1))
    }

    fn resign(&self, lease: Lease) -> StoreFuture<bool> {
        self.as_holder(Script::Resign, &[&self.0.leader], &lease, None::<u64>)
    }

    fn publish(&self, lease: Lease, topology: Bytes) -> StoreFuture<bool> {
        self.as_holder(Script::Publish, &[&self.0.leader, &self.0.topology], &lease, &topology[..])
    }

    fn unreachable(&self) -> StoreFuture<Vec<PartitionId>> {
        let this = self.0.clone();
        async move { Ok(this.unreachable().await) }.boxed()
    }
}

impl Inner {
    async fn campaign(&self, candidate: Candidate) -> Result<Campaigned, StoreError> {
        let Candidate { address, incarnation, ttl_ms, seen } = candidate;
        let unusable = |text: String| Err(StoreError::Unusable(text));
        if address.is_empty() || address.contains(|c: char| c.is_whitespace()) {
            return unusable(format!("{address:?} is not an address: give host:port, without spaces"));
        }
        let keys = [&self.leader, &self.term, &self.topology];
        let mut command = Script::Campaign.command(&keys);
        command.arg(&address).arg(incarnation).arg(ttl_ms.max(1)).arg(seen.0);
        match campaigned(&self.ask(command).await?) {
            Some(campaigned) => Ok(campaigned),
            None => unusable(format!("{} is damaged: remove it", self.term)),
        }
    }

    /// Runs a command on the server that has the lease. Follows redirections; looks at the map when
    /// that server is lost.
    async fn ask(&self, command: Cmd) -> Result<Value, StoreError> {
        let slot = self.hash_slot;
        let mut last = "no server has answered".to_owned();
        let mut backoff = RetryPauses::new(u64::from(slot) << 16 | 3);
        let trying = async {
            loop {
                let asked = self.servers.master_address(slot);
                let (why, look) = match timeout(ATTEMPT, once(&self.servers, slot, &command)).await {
                    Ok(Ok(reply)) => return Ok(reply),
                    Ok(Err(Failed::Passing(why))) => (why, false),
                    Ok(Err(Failed::NoMaster { why, .. })) => (why, true),
                    Ok(Err(Failed::Lasting(error))) => return Err(error),
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
            Err(_) => Err(StoreError::Unavailable(format!("the lease's server: {last}"))),
        }
    }

    /// Looks at the map, without those that have just failed. If nobody answers, the next attempt
    /// will tell.
    async fn look(&self, without: HashSet<String>) {
        let _ = timeout(LOOK, self.servers.look(&without)).await;
    }

    async fn unreachable(&self) -> Vec<PartitionId> {
        let masters: Vec<_> = self.partitions.iter().map(|slot| self.servers.master_address(*slot)).collect();
        let asked: HashSet<_> = masters.iter().flatten().cloned().collect();
        let pings = asked.into_iter().map(|address| async {
            let answers = matches!(timeout(PING, self.ping(&address)).await, Ok(Ok(())));
            (!answers).then_some(address)
        });
        let silent: HashSet<_> = join_all(pings).await.into_iter().flatten().collect();
        if !silent.is_empty() || masters.iter().any(Option::is_none) {
            // Another server may have taken over: the next call goes there.
            self.look(silent.clone()).await;
        }
        let lost = |master: &Option<String>| master.as_ref().is_none_or(|m| silent.contains(m));
        let numbered = (0..).map(PartitionId).zip(masters);
        numbered.filter(|(_, master)| lost(master)).map(|(p, _)| p).collect()
    }

    async fn ping(&self, address: &str) -> Result<(), Lost> {
        let reply = self.servers.connection(address).await?.ask(cmd("PING")).await?;
        match reply.text() {
            Some("PONG") => Ok(()),
            _ => Err(Lost(format!("{address}: {}", reply.refusal().unwrap_or_default()))),
        }
    }
}

/// Reads the answer of `campaign.lua`.
fn campaigned(answer: &Value) -> Option<Campaigned> {
    if let [kind, term, published] = answer.items()
        && kind.text()? == "WON"
    {
        let published = published.bytes().map(Bytes::copy_from_slice);
        return Some(Campaigned::Won { term: Term(term.number()?), published });
    }
    held(answer)?.map(Campaigned::Held)
}

/// Reads the answer of `holder.lua`; that of `campaign.lua` is the same if the lease is another's.
fn held(answer: &Value) -> Option<Option<LeaseHolder>> {
    let [_held, what, ms] = answer.items() else {
        return matches!(answer.items(), [free] if free.text() == Some("FREE")).then_some(None);
    };
    let text = String::from_utf8_lossy(what.bytes()?);
    let (address, term) = holder(&text).unwrap_or_else(|| (cut(&text), 0));
    let (address, remaining_ms) = (address.to_owned(), ms.number());
    Some(Some(LeaseHolder { address, term: Term(term), remaining_ms }))
}

/// Address and term of `address incarnation term`, if it is that.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_mtimer_writes_has_a_holder() {
        assert_eq!(holder("10.0.0.1:7400 7 1790000000000"), Some(("10.0.0.1:7400", 1_790_000_000_000)));
        for other in
            ["", "hello", "a b c", "a 1", "a 1 2 3", " 1 2", "a 1 99999999999999999999", &"x".repeat(300)]
        {
            assert_eq!(holder(other), None, "{other}");
        }
        assert_eq!(cut(&"\u{e4}".repeat(300)).len(), 254);
    }
}
