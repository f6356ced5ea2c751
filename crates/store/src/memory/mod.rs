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
//! Not in here: what operations mean (see [`crate::table`]), durability.

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
use mtimer_types::{Destination, Epoch, PartitionId, Target, Term, Time};
use tokio::sync::{oneshot, watch};

use self::coordination::MemoryCoordination;
pub use self::faults::Faults;
use self::partition::{CUT, LaneState, MemoryPartition, Reachability, ReplyFn, Turn};
use self::shared::MemoryState;
#[cfg(test)]
pub(crate) use self::table::MemoryTable;
use crate::answer::Answer;
use crate::census::Census;
use crate::coordination::Coordination;
use crate::cursor::LoadCursor;
use crate::error::{AcquireError, LaneError, LaneFuture, StoreFuture};
use crate::lane::{
    Acquire, Acquired, DeadFilter, DeadLetter, Health, InFlight, Lane, Load, Loaded, OwnerRecord, Page,
    Store, StoreClock, StoreInfo, Taken, Unconfirmed,
};
use crate::ops::Batch;
use crate::place::Place;
use crate::record::Record;

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

impl MemoryLane {
    fn call<T: Send + 'static>(
        &self,
        carry_out: impl FnOnce(&mut Turn<'_>) -> T + Send + 'static,
    ) -> LaneFuture<T> {
        let answer = self.enqueue(carry_out, None);
        async move { answer.await.unwrap_or(Err(LaneError::Closed)) }.boxed()
    }

    /// Takes the call's place in the lane. `after`: how the lane ends with it.
    fn enqueue<T: Send + 'static>(
        &self,
        carry_out: impl FnOnce(&mut Turn<'_>) -> T + Send + 'static,
        after: Option<LaneError>,
    ) -> oneshot::Receiver<Result<T, LaneError>> {
        let (answer, receiver) = oneshot::channel();
        let work = move |turn: Result<Turn<'_>, LaneError>| -> ReplyFn {
            let result = turn.map(|mut turn| {
                let result = carry_out(&mut turn);
                *turn.after = after;
                result
            });
            Box::new(move |instead| {
                // The caller has dropped the future and does not want the answer.
                let _ = answer.send(instead.map_or(result, Err));
            })
        };
        if let Some(mut partition) = self.shared.partition(self.partition) {
            if matches!(partition.link, Reachability::Cut | Reachability::Down(_)) {
                self.shared.disturbed.fetch_add(1, Ordering::SeqCst);
            }
            if let Some(lane) = partition.lanes.get_mut(&self.number) {
                lane.waiting.push_back(Box::new(work));
            }
            partition.pump(self.number);
        }
        receiver
    }
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

    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        self.call(move |turn| turn.apply(&batch))
    }

    fn load(&self, load: Load) -> LaneFuture<Loaded> {
        self.call(move |turn| {
            if load.claim.is_some() {
                turn.wrote(load.claim);
            }
            turn.stored.table.load(turn.cursor, &load, turn.epoch, turn.prior_claim)
        })
    }

    fn unload(&self, beyond: Time) -> LaneFuture<()> {
        self.call(move |turn| turn.cursor.unload(beyond))
    }

    fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>> {
        self.call(move |turn| turn.stored.table.find(&target).map(|row| (row.record.clone(), row.at.place())))
    }

    fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>> {
        self.call(|turn| turn.stored.table.parked_destinations())
    }

    fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>> {
        self.call(move |turn| turn.stored.table.parked(&dest, cursor, limit))
    }

    fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>> {
        self.call(move |turn| turn.stored.table.dead(&filter, cursor, limit))
    }

    fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>> {
        self.call(move |turn| turn.stored.table.taken(cursor, limit))
    }

    fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>> {
        self.call(move |turn| turn.stored.table.unconfirmed(cursor, limit))
    }

    fn census(&self) -> LaneFuture<Census> {
        self.call(|turn| turn.stored.table.census())
    }

    fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()> {
        let answer = self.enqueue(
            |turn| {
                turn.wrote(None);
                turn.stored.in_flight = in_flight;
                turn.stored.owner.released = true;
                turn.stored.owner.claimed_until = turn.stored.prior_claim;
            },
            Some(LaneError::Closed),
        );
        async move { answer.await.unwrap_or(Err(LaneError::Closed)) }.boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

#[cfg(test)]
mod tests;
