//! An owner's way to its partition: calls go to the committer in the order they are made.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use mtimer_store::{
    Answer, Batch, Census, DeadFilter, DeadLetter, Health, InFlight, Lane, LaneError, LaneFuture, Load,
    LoadCursor, Loaded, Page, Place, Record, Taken, Unconfirmed,
};
use mtimer_types::{Destination, Epoch, Nonce, PartitionId, Target, Time};
use tokio::sync::{oneshot, watch};

use crate::committer::{Call, Deliver, Queue};
use crate::fault::Fault;
use crate::table::View;

/// What the committer knows of a lane.
pub(crate) struct LaneShared {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) nonce: Nonce,
    pub(crate) prior_claim: Time,
    pub(crate) health: watch::Sender<Health>,
    cursor: Mutex<LoadCursor>,
    ended: Mutex<Option<LaneError>>,
}

impl LaneShared {
    pub(crate) fn new(partition: PartitionId, epoch: Epoch, nonce: Nonce, prior_claim: Time) -> Self {
        let health = watch::Sender::new(Health::Up);
        let (cursor, ended) = (Mutex::default(), Mutex::default());
        Self { partition, epoch, nonce, prior_claim, health, cursor, ended }
    }

    /// How far the owner has loaded. Only the committer looks.
    pub(crate) fn cursor(&self) -> MutexGuard<'_, LoadCursor> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the lane has ended, if it has.
    pub(crate) fn ended(&self) -> MutexGuard<'_, Option<LaneError>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct EmbeddedLane {
    pub(crate) shared: Arc<LaneShared>,
    pub(crate) queue: Queue,
}

impl EmbeddedLane {
    /// Takes the call's place in the lane. `weight`: about how many operations it is worth.
    fn call<T: Send + 'static>(
        &self,
        weight: usize,
        carry_out: impl FnOnce(&mut View<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> LaneFuture<T> {
        let (answer, receiver) = oneshot::channel();
        let lane = self.shared.clone();
        let work = Box::new(move |committer: &mut crate::committer::Committer| -> Deliver {
            let result = committer.turn(&lane, carry_out);
            Box::new(move |fault| {
                // Whoever dropped the future does not want the answer.
                let _ = answer.send(fault.map_or(result, |fault| Err(fault.into())));
            })
        });
        self.queue.send(Call { weight, work });
        async move { receiver.await.unwrap_or_else(|_| Err((&Fault::Closed).into())) }.boxed()
    }
}

impl Lane for EmbeddedLane {
    fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        self.call(batch.ops.len(), move |view| view.apply(&batch))
    }

    fn load(&self, load: Load) -> LaneFuture<Loaded> {
        self.call(load.max_timers, move |view| view.load(&load))
    }

    fn unload(&self, beyond: Time) -> LaneFuture<()> {
        self.call(1, move |view| {
            view.lane.cursor().unload(beyond);
            Ok(())
        })
    }

    fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>> {
        self.call(1, move |view| view.find(&target))
    }

    fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>> {
        self.call(1, |view| view.parked_destinations())
    }

    fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>> {
        self.call(limit as usize, move |view| view.parked(&dest, cursor, limit))
    }

    fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>> {
        self.call(limit as usize, move |view| view.dead(&filter, cursor, limit))
    }

    fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>> {
        self.call(limit as usize, move |view| view.taken(cursor, limit))
    }

    fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>> {
        self.call(limit as usize, move |view| view.unconfirmed(cursor, limit))
    }

    fn census(&self) -> LaneFuture<Census> {
        self.call(1, |view| Ok(view.partition.counters.census))
    }

    fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()> {
        self.call(1, move |view| {
            view.release(in_flight);
            Ok(())
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }
}
