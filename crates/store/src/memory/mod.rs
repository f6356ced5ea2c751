//! The in-memory store: the model of the contract, with faults that a test can inject.
//!
//! Purpose: the simplest store that keeps the whole contract, for tests and simulations. Every
//! [`MemoryStore`] that is cloned from one is another broker's view of the same state; dropping all
//! but one and going on with that is a restart of the brokers.
//!
//! Invariant: a call is carried out when it is made, unless a fault holds it up; answers leave a
//! lane in the order of its calls. There is no clock and no randomness: equal calls give equal
//! answers.
//!
//! Not in here: the meaning of operations (see [`crate::table`]), durability.

mod coordination;
mod faults;
mod lease;
mod partition;
mod shared;
mod table;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use futures_util::future::ready;
use mtimer_types::{Epoch, PartitionId, Term};
use tokio::sync::{oneshot, watch};

use self::coordination::MemoryCoordination;
pub use self::faults::Faults;
use self::partition::{CUT, LaneState, MemoryPartition, Reachability};
use self::shared::MemoryState;
#[cfg(test)]
pub(crate) use self::table::MemoryTable;
use crate::call::{Call, CallAnswer};
use crate::coordination::Coordination;
use crate::cursor::LoadCursor;
use crate::error::{AcquireError, LaneError, LaneFuture, StoreFuture};
use crate::lane::{Acquire, Acquired, Health, Lane, OwnerRecord, Store, StoreClock, StoreInfo};

/// A view of a state in memory.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<MemoryState>,
    coordinated: bool,
}

impl MemoryStore {
    /// An empty state of so many partitions.
    pub fn new(partitions: u16) -> Self {
        Self { shared: Arc::new(MemoryState::new(partitions)), coordinated: false }
    }

    /// The same for several brokers: with a lease to compete for.
    #[must_use]
    pub fn coordinated(self) -> Self {
        Self { coordinated: true, ..self }
    }

    /// The handle that disturbs this state, for all its views.
    pub fn faults(&self) -> Faults {
        Faults::new(self.shared.clone())
    }
}

impl MemoryStore {
    fn acquire_now(&self, acquire: &Acquire) -> Result<Acquired, AcquireError> {
        let mut partition = self.shared.reachable(acquire.partition)?;
        let stored = &mut partition.stored;
        let owner = stored.owner;
        let repeated = owner.epoch != Epoch::default() && owner.nonce == acquire.nonce;
        if !repeated {
            if owner.epoch != acquire.expected {
                return Err(AcquireError::Epoch {
                    partition: acquire.partition,
                    stored: owner.epoch,
                    expected: acquire.expected,
                });
            }
            let given = (acquire.term, acquire.version);
            if given <= (owner.term, owner.version) {
                return Err(AcquireError::Assignment { given, stored: (owner.term, owner.version) });
            }
            let clock = self.shared.clock.load(Ordering::SeqCst);
            stored.owner = OwnerRecord {
                epoch: Epoch((owner.epoch.max(acquire.floor).0 + 1).max(clock)),
                nonce: acquire.nonce,
                term: acquire.term,
                version: acquire.version,
                claimed_until: owner.claimed_until,
                released: false,
            };
            stored.prior_claim = owner.claimed_until;
            stored.seq += 1;
        }
        if partition.link == Reachability::Cut || std::mem::take(&mut partition.loses_acquisition) {
            return Err(self.shared.unavailable(CUT).into());
        }
        Ok(self.lane(&mut partition))
    }

    fn lane(&self, partition: &mut MemoryPartition) -> Acquired {
        let number = self.shared.lanes.fetch_add(1, Ordering::SeqCst);
        let stored = &partition.stored;
        let (health, watch) = watch::channel(Health::Up);
        let (epoch, prior_claim) = (stored.owner.epoch, stored.prior_claim);
        let in_flight = stored.in_flight.clone();
        let state = LaneState {
            epoch,
            nonce: stored.owner.nonce,
            prior_claim,
            seq: stored.seq,
            cursor: LoadCursor::default(),
            ended: None,
            health,
            waiting: Default::default(),
            unanswered: Default::default(),
        };
        partition.lanes.insert(number, state);
        let lane =
            MemoryLane { shared: self.shared.clone(), partition: partition.id, number, epoch, health: watch };
        Acquired { lane: Arc::new(lane), epoch, prior_claim, in_flight }
    }
}

impl Store for MemoryStore {
    fn info(&self) -> StoreInfo {
        let partitions = self.shared.partitions.len() as u16;
        StoreInfo { kind: "memory", durability: "memory", partitions }
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        let owner = self.shared.reachable(partition).and_then(|partition| match partition.link {
            Reachability::Cut => Err(self.shared.unavailable(CUT)),
            Reachability::Up | Reachability::Held | Reachability::Down(_) => Ok(partition.stored.owner),
        });
        ready(owner).boxed()
    }

    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        ready(self.acquire_now(&acquire)).boxed()
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        let reached = self.shared.reachable(PartitionId(0)).map(drop);
        ready(reached.map(|()| self.shared.raise_term(Term::default()))).boxed()
    }

    fn clocks(&self) -> Vec<StoreClock> {
        let shown = self.shared.clock.load(Ordering::SeqCst).saturating_mul(1_000);
        let clock = || StoreClock { name: "memory".to_owned(), reading: ready(Ok(shown)).boxed() };
        (shown > 0).then(clock).into_iter().collect()
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        self.coordinated.then(|| Arc::new(MemoryCoordination(self.shared.clone())) as Arc<dyn Coordination>)
    }
}

/// One owner's way to its partition.
struct MemoryLane {
    shared: Arc<MemoryState>,
    partition: PartitionId,
    number: u64,
    epoch: Epoch,
    health: watch::Receiver<Health>,
}

impl Drop for MemoryLane {
    fn drop(&mut self) {
        if let Some(mut partition) = self.shared.partition(self.partition) {
            partition.lanes.remove(&self.number);
        }
    }
}

impl Lane for MemoryLane {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        let (caller, answer) = oneshot::channel();
        if let Some(mut partition) = self.shared.partition(self.partition) {
            if matches!(partition.link, Reachability::Cut | Reachability::Down(_)) {
                self.shared.disturbed.fetch_add(1, Ordering::SeqCst);
            }
            if let Some(lane) = partition.lanes.get_mut(&self.number) {
                lane.waiting.push_back((call, caller));
            }
            partition.pump(self.number);
        }
        async move { answer.await.unwrap_or(Err(LaneError::Closed)) }.boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

#[cfg(test)]
mod tests;
