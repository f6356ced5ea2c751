//! Becoming the owner of a partition, however long the store is away.
//!
//! Purpose: read the owner record, acquire, repeat. A lost answer is repeated with the same nonce,
//! so that an acquisition that had succeeded counts.
//! Invariant: a higher term in the store means that another broker was started later; it wins, and
//! this one ends.
//! Not in here: what is done with the lane.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mtimer_store::{Acquire, AcquireError, Acquired, OwnerRecord, Store, StoreError};
use mtimer_types::{Epoch, Nonce, PartitionId, Term};
use tokio::time::Instant;

use crate::counters::{Counters, ShellCounter};
use crate::error::BrokerError;

/// First pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause: how late a store that is back may be noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whether the store is away, as far as acquisitions have seen: one log line when it goes and one
/// when it is back.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Option<StoreError>>);

impl Outage {
    pub(crate) fn begin(&self, error: StoreError, counters: &Counters) {
        let mut why = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if why.is_none() {
            counters.count(ShellCounter::StoreOutages);
            tracing::warn!(%error, "waiting for the store");
        }
        *why = Some(error);
    }

    pub(crate) fn end(&self) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            tracing::info!("the store is back");
        }
    }

    /// Why the store is away, if it is.
    pub(crate) fn why(&self) -> Option<StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What acquisitions have in common.
pub(crate) struct Acquirer {
    store: Arc<dyn Store>,
    term: Term,
    /// Rises with every attempt: the store takes only what is newer than what it has.
    version: AtomicU64,
    outage: Arc<Outage>,
    counters: Arc<Counters>,
}

/// A pause that doubles.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

/// An attempt whose answer may have been lost.
struct Attempt {
    expected: Epoch,
    nonce: Nonce,
    version: u64,
}

impl Acquirer {
    /// Raises the cluster's term, waiting while the store is away. Fails if the store cannot be
    /// used.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        outage: Arc<Outage>,
        counters: Arc<Counters>,
    ) -> Result<Self, StoreError> {
        let mut backoff = Backoff::new();
        let term = loop {
            match store.raise_term().await {
                Ok(term) => break term,
                Err(error @ StoreError::Unusable(_)) => return Err(error),
                Err(error @ StoreError::Unavailable(_)) => outage.begin(error, &counters),
            }
            backoff.pause().await;
        };
        outage.end();
        Ok(Self { store, term, version: AtomicU64::new(1), outage, counters })
    }

    /// Acquires a partition, waiting while the store is away. `ours` is the epoch of the ownership
    /// that has ended, for the error's text; 0 if there was none.
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, the partition may or may not have been acquired.
    pub(crate) async fn acquire(&self, partition: PartitionId, ours: Epoch) -> Result<Acquired, BrokerError> {
        let began = Instant::now();
        let mut backoff = Backoff::new();
        let mut attempt = None;
        loop {
            match self.step(partition, ours, &mut attempt).await {
                Ok(Some(acquired)) => {
                    self.outage.end();
                    self.counters.count(ShellCounter::PartitionsAcquired);
                    self.counters.acquired_after(began.elapsed());
                    tracing::debug!(%partition, epoch = %acquired.epoch, "acquired");
                    return Ok(acquired);
                }
                Ok(None) => {}
                Err(Stop::Away(error)) => self.outage.begin(error, &self.counters),
                Err(Stop::Ended(error)) => return Err(error),
            }
            backoff.pause().await;
        }
    }

    /// One try. `None`: somebody else was quicker in the same term, read again.
    async fn step(
        &self,
        partition: PartitionId,
        ours: Epoch,
        attempt: &mut Option<Attempt>,
    ) -> Result<Option<Acquired>, Stop> {
        let unusable = |source| Stop::Ended(BrokerError::Store { partition, source });
        let current = match attempt {
            Some(current) => current,
            None => {
                let record = self.store.owner(partition).await.map_err(|e| Stop::of(e, unusable))?;
                self.check_term(partition, ours, &record)?;
                let version = self.version.fetch_add(1, Ordering::Relaxed).max(record.version + 1);
                self.version.fetch_max(version + 1, Ordering::Relaxed);
                attempt.insert(Attempt { expected: record.epoch, nonce: Nonce(rand::random()), version })
            }
        };
        let request = Acquire {
            partition,
            expected: current.expected,
            nonce: current.nonce,
            term: self.term,
            version: current.version,
        };
        match self.store.acquire(request).await {
            Ok(acquired) => Ok(Some(acquired)),
            Err(AcquireError::Store(error)) => Err(Stop::of(error, unusable)),
            Err(AcquireError::Epoch { .. } | AcquireError::Assignment { .. }) => {
                // Whoever it was, the record tells; if it is of a later term this is the end.
                *attempt = None;
                let record = self.store.owner(partition).await.map_err(|e| Stop::of(e, unusable))?;
                self.check_term(partition, ours, &record)?;
                Ok(None)
            }
        }
    }

    fn check_term(&self, partition: PartitionId, ours: Epoch, record: &OwnerRecord) -> Result<(), Stop> {
        if record.term > self.term {
            return Err(Stop::Ended(BrokerError::Fenced {
                partition,
                stored: record.epoch,
                ours,
                stored_term: record.term,
                our_term: self.term,
            }));
        }
        Ok(())
    }
}

enum Stop {
    Away(StoreError),
    Ended(BrokerError),
}

impl Stop {
    fn of(error: StoreError, unusable: impl Fn(StoreError) -> Self) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::Away(error),
            StoreError::Unusable(_) => unusable(error),
        }
    }
}
