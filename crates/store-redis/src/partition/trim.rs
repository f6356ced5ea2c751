//! Trimming a partition's log: records that no failover can lose any more are dropped.
//!
//! | the partition's master has | a record is safe when |
//! |---|---|
//! | replicas | all that the topology names have it; one that is disconnected counts until the topology drops it |
//! | an append-only file, no replicas | the server has answered something 5 s after it was applied |
//! | neither | it is stored: nothing is kept for a restart |
//!
//! Whatever the rule: only what the master has stored right now is safe, so what a failover has
//! lost stays in the log until it is applied again. The owner is told of such a loss at once.
//!
//! Not in here: applying records again ([`super::writer`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::log::Log;
use super::reply;
use super::writer::Identity;
use crate::wire::{Confirmed, Lost, Network, Replicas};

/// How often a log with records is trimmed.
const ROUND: Duration = Duration::from_millis(100);
/// When the append-only file is on disk: Redis syncs it every second, and holds back answers if
/// that takes over two.
const SYNCED_AFTER: Duration = Duration::from_secs(5);
/// How long a partition that is given up waits for replicas.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// What all trimmers of a store share.
#[derive(Clone)]
pub(crate) struct Trimming {
    pub(crate) replicas: Arc<dyn Replicas>,
    pub(crate) network: Arc<dyn Network>,
    /// All logs are trimmed at the same moments after this, so partitions of one server share a
    /// `WAIT`.
    pub(crate) began: Instant,
}

/// Trims the log of one partition.
pub(crate) struct Trimmer {
    shared: Trimming,
    identity: Identity,
    log: Arc<Log>,
}

impl Trimmer {
    pub(crate) const fn new(shared: Trimming, identity: Identity, log: Arc<Log>) -> Self {
        Self { shared, identity, log }
    }

    /// Trims the log for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Infallible {
        loop {
            self.log.grown().await;
            let rounds = self.shared.began.elapsed().as_millis() / ROUND.as_millis();
            sleep_until(self.shared.began + ROUND * (rounds as u32 + 1)).await;
            self.round().await;
        }
    }

    /// Waits until the replicas have everything, a second at most. Without replicas there is
    /// nothing to wait for.
    pub(crate) async fn secure(&self) {
        let secured = async {
            while self.replicas() != Some(0) && !self.log.is_empty() {
                self.round().await;
                if !self.log.is_empty() {
                    sleep(ROUND).await;
                }
            }
        };
        if timeout(RELEASE_WITHIN, secured).await.is_err() {
            tracing::warn!(
                partition = self.identity.partition.0,
                "the partition is given up before all replicas have what was answered: a failover now may lose it"
            );
        }
    }

    fn replicas(&self) -> Option<u32> {
        self.shared.replicas.replicas(self.identity.hash_slot)
    }

    async fn round(&self) {
        let (asked, last) = (Instant::now(), self.log.last());
        // After a redirection nobody has looked yet which replicas the new master has: nothing
        // counts as safe.
        let Some(replicas) = self.replicas() else { return self.refresh_topology().await };
        match self.confirmed(replicas).await {
            Ok((stored, confirmed)) => {
                if last.is_some_and(|last| stored < last) {
                    self.log.set_behind();
                }
                if confirmed.connected > replicas {
                    self.refresh_topology().await;
                }
                // A replica has come since anybody looked: it counts from the next round on.
                let is_current = self.replicas() == Some(replicas);
                if let Some(until) = asked.checked_sub(self.min_age(replicas))
                    && is_current
                    && confirmed.replicas >= replicas
                {
                    self.log.trim(stored, until);
                }
            }
            Err(Lost(why)) => {
                tracing::debug!(partition = self.identity.partition.0, why, "the log is not trimmed");
                self.refresh_topology().await;
            }
        }
    }

    async fn refresh_topology(&self) {
        if let Err(Lost(why)) = self.shared.network.rediscover(None).await {
            tracing::debug!(
                partition = self.identity.partition.0,
                why,
                "no server tells which masters there are"
            );
        }
    }

    fn min_age(&self, replicas: u32) -> Duration {
        let is_synced_later = replicas == 0 && self.shared.replicas.append_only(self.identity.hash_slot);
        if is_synced_later { SYNCED_AFTER } else { Duration::ZERO }
    }

    /// The stored number, and what the replicas have of everything up to it.
    async fn confirmed(&self, replicas: u32) -> Result<(u64, Confirmed), Lost> {
        let (at, read) = (self.identity.hash_slot, self.identity.read());
        let confirmed = self.shared.replicas.confirm(at, replicas, read).await?;
        if let Some(error) = reply::error(&confirmed.read) {
            return Err(Lost(error));
        }
        let stored = reply::list(confirmed.read.clone());
        let seq = self.identity.stored_seq(&stored).map_err(|e| Lost(e.to_string()))?;
        Ok((seq, confirmed))
    }
}
