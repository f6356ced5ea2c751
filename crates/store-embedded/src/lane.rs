//! An owner's way to its partition: calls go to the committer in the order they are made.

use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_store::{
    Answer, Batch, Census, DeadFilter, DeadLetter, Health, InFlight, Lane, LaneFuture, Load, Loaded, Op,
    Page, Place, Record, Taken, Unconfirmed,
};
use mtimer_types::{Destination, Epoch, Target, Time};
use tokio::sync::{oneshot, watch};

use crate::committer::{AnswerFn, Committer, CommitterCall, CommitterQueue};
use crate::fault::Fault;
use crate::lane_shared::LaneShared;
use crate::table::PartitionTable;

pub(crate) struct EmbeddedLane {
    pub(crate) shared: Arc<LaneShared>,
    pub(crate) queue: CommitterQueue,
}

impl EmbeddedLane {
    /// Takes the call's place in the lane. `weight`: about how many operations it is worth.
    fn call<T: Send + 'static>(
        &self,
        weight: usize,
        carry_out: impl FnOnce(&mut PartitionTable<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> LaneFuture<T> {
        let (answer, receiver) = oneshot::channel();
        let lane = self.shared.clone();
        let work = Box::new(move |committer: &mut Committer| -> AnswerFn {
            let result = committer.turn(&lane, carry_out);
            Box::new(move |fault| {
                // The caller has dropped the future and does not want the answer.
                let _ = answer.send(fault.map_or(result, |fault| Err(fault.into())));
            })
        });
        self.queue.send(CommitterCall { weight, work });
        async move { receiver.await.unwrap_or_else(|_| Err((&Fault::Closed).into())) }.boxed()
    }
}

impl Lane for EmbeddedLane {
    fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        self.call(weight(&batch), move |view| view.apply(&batch))
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

/// About how many operations a batch is worth: so many, and one for each KiB of payload, so that a
/// group of calls is bounded in bytes, too.
fn weight(batch: &Batch) -> usize {
    let payload = |op: &Op| op.subject().brings().map_or(0, |timer| timer.payload.len() / 1024);
    batch.ops.len() + batch.ops.iter().map(payload).sum::<usize>()
}
