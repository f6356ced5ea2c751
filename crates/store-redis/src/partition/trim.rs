//! Trimming a partition's log: records that no failover can lose any more are dropped.
//!
//! | the partition's master has | a record is safe when |
//! |---|---|
//! | replicas | all that the topology names have it, and all that are connected; one that is disconnected counts until the topology drops it |
//! | an append-only file, no replicas | the server says that it was synced |
//! | neither | it is stored: nothing is kept for a restart |
//!
//! A replica that is connected and still gets its data counts, though nobody else may know of it
//! yet: it can be promoted with the data alone, before it gets later writes.
//!
//! Under every rule, only records that the master has stored right now are safe, so records that a
//! failover has lost stay in the log until they are applied again. The owner is told of such a loss
//! at once.
//!
//! The log reaches back to the acquisition. The owner waits until the replicas that count have that
//! before its first answer: if a replica without the acquisition is promoted, all later writes are
//! lost.
//!
//! Not in here: applying records again ([`super::writer`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mtimer_store::LaneError;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::identity::WriterIdentity;
use super::log::Log;
use crate::wire::{Confirmed, Lost, Network, Replicas, Reply, Wanted};

/// How often a log with records is trimmed.
const ROUND: Duration = Duration::from_millis(100);
/// How long an owner answers nothing because replicas may not have its acquisition. A replica
/// that keeps up has it after a round trip. A failed one that Redis still lists delays each
/// takeover by this much, which is less than it takes to notice a dead broker.
const ACQUISITION_WITHIN: Duration = Duration::from_millis(500);

/// State shared by all trimmers of a store.
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
    identity: WriterIdentity,
    log: Arc<Log>,
    /// Replicas that were connected when the master was last asked.
    connected: AtomicU32,
}

/// The state of a partition's master.
struct MasterState {
    /// The sequence number.
    seq: u64,
    /// All replicas that count have it.
    is_replicated: bool,
    /// Writes applied before this moment are in the append-only file, as far as that counts.
    /// `None`: it is not known now.
    synced: Option<Instant>,
}

impl Trimmer {
    pub(crate) const fn new(shared: Trimming, identity: WriterIdentity, log: Arc<Log>) -> Self {
        Self { shared, identity, log, connected: AtomicU32::new(0) }
    }

    /// Trims the log for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Infallible {
        loop {
            self.log.grown().await;
            let rounds = self.shared.began.elapsed().as_millis() / ROUND.as_millis();
            sleep_until(self.shared.began + ROUND * (rounds as u32 + 1)).await;
            if let Err(error) = self.round().await {
                tracing::debug!(partition = self.identity.partition.0, %error, "the log is not trimmed");
                // The owner asks the master, which says whether the partition is still ours.
                self.log.set_behind();
                self.refresh_topology().await;
            }
        }
    }

    /// Waits until the replicas have the acquisition. If they do not have it within half a second,
    /// the log counts as at risk until they do. Without replicas there is nothing to wait for.
    ///
    /// # Errors
    ///
    /// The partition is not ours any more: the store has lost the acquisition, or there is another
    /// owner.
    pub(crate) async fn secure_acquisition(&self) -> Result<(), LaneError> {
        let secured = async {
            while !self.stored(false).await?.is_some_and(|stored| stored.is_replicated) {
                sleep(ROUND).await;
            }
            Ok(())
        };
        timeout(ACQUISITION_WITHIN, secured).await.unwrap_or_else(|_| {
            self.log.set_acquisition_at_risk(self.identity.partition);
            Ok(())
        })
    }

    /// Waits until the replicas have all writes. Without replicas there is nothing to wait for.
    ///
    /// # Errors
    ///
    /// There is another owner already.
    pub(crate) async fn secure_release(&self) -> Result<(), LaneError> {
        while self.has_replicas() && !self.log.is_empty() {
            match self.round().await {
                Ok(()) if self.log.is_empty() => {}
                Ok(()) => sleep(ROUND).await,
                Err(fenced @ LaneError::Fenced { .. }) => return Err(fenced),
                Err(error) => {
                    tracing::debug!(partition = self.identity.partition.0, %error, "nothing is safe");
                    self.log.set_behind();
                    self.refresh_topology().await;
                    sleep(ROUND).await;
                }
            }
        }
        Ok(())
    }

    /// Whether there are replicas, as far as is known.
    fn has_replicas(&self) -> bool {
        self.replicas() != Some(0) || self.connected.load(Ordering::Relaxed) > 0
    }

    /// How many replicas the topology names.
    fn replicas(&self) -> Option<u32> {
        self.shared.network.replicas(self.identity.hash_slot)
    }

    /// Drops the records that are safe by now.
    ///
    /// # Errors
    ///
    /// The partition is not ours any more.
    pub(crate) async fn round(&self) -> Result<(), LaneError> {
        let (asked, last) = (Instant::now(), self.log.last());
        let Some(MasterState { seq, is_replicated, synced }) = self.stored(true).await? else {
            return Ok(());
        };
        if last.is_some_and(|last| seq < last) {
            self.log.set_lost();
        }
        if let Some(synced) = synced.filter(|_| is_replicated) {
            self.log.trim(seq, synced.min(asked));
        }
        Ok(())
    }

    /// Returns the number that the master has stored, and whether its replicas have it, or, if
    /// `waits_for_file`, its append-only file if it has no replicas. `None`: it is not known now.
    ///
    /// # Errors
    ///
    /// The partition is not ours any more.
    async fn stored(&self, waits_for_file: bool) -> Result<Option<MasterState>, LaneError> {
        // After a redirection nobody has looked yet which replicas the new master has: nothing
        // counts as safe.
        let Some(named) = self.replicas() else {
            self.refresh_topology().await;
            return Ok(None);
        };
        let waited_for = named.max(self.connected.load(Ordering::Relaxed));
        let file_counts = waited_for == 0 && self.shared.network.append_only(self.identity.hash_slot);
        let wanted = if file_counts && waits_for_file { Wanted::Sync } else { Wanted::Replicas(waited_for) };
        let (asked, answered) = (Instant::now(), self.confirmed(wanted).await);
        let confirmed = match answered {
            Ok(confirmed) => confirmed,
            Err(Lost(why)) => {
                tracing::debug!(partition = self.identity.partition.0, why, "replicas confirm nothing");
                // Those of the next master may be fewer.
                self.connected.store(0, Ordering::Relaxed);
                self.refresh_topology().await;
                return Ok(None);
            }
        };
        let seq = self.identity.stored_seq(confirmed.read.items())?;
        self.connected.store(confirmed.connected, Ordering::Relaxed);
        if confirmed.connected > named {
            self.refresh_topology().await;
        }
        let replicas = if broken!(UnnamedReplicasIgnored) { named } else { named.max(confirmed.connected) };
        // If the topology has changed meanwhile, the new one counts from the next round on.
        let is_current = self.replicas() == Some(named);
        let is_replicated = is_current && confirmed.replicas >= replicas;
        let synced = if file_counts { confirmed.synced } else { Some(asked) };
        Ok(Some(MasterState { seq, is_replicated, synced }))
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

    /// Reads the owner record of the master, and the confirmation of everything up to it.
    async fn confirmed(&self, wanted: Wanted) -> Result<Confirmed, Lost> {
        let (at, query) = (self.identity.hash_slot, self.identity.query());
        let confirmed = self.shared.replicas.confirm(at, wanted, query).await?;
        confirmed.read.refusal().map_or(Ok(confirmed), |error| Err(Lost(error)))
    }
}
