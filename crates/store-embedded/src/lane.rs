//! An owner's way to its partition: calls go to the committer in the order they are made.

use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_store::pending::PAGE_READS;
use mtimer_store::{Call, CallAnswer, Health, Lane, LaneFuture, Op};
use mtimer_types::Epoch;
use tokio::sync::{oneshot, watch};

use crate::committer::{AnswerFn, Committer, CommitterCall, CommitterQueue};
use crate::fault::Fault;
use crate::lane_shared::LaneShared;
use crate::table::PartitionTable;

pub(crate) struct EmbeddedLane {
    pub(crate) shared: Arc<LaneShared>,
    pub(crate) queue: CommitterQueue,
}

impl Lane for EmbeddedLane {
    fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        let (answer, receiver) = oneshot::channel();
        let lane = self.shared.clone();
        let weight = weight(&call);
        let work = Box::new(move |committer: &mut Committer| -> AnswerFn {
            let result = committer.turn(&lane, |table| carry_out(table, call));
            Box::new(move |fault| {
                // The caller has dropped the future and does not want the answer.
                let _ = answer.send(fault.map_or(result, |fault| Err(fault.into())));
            })
        });
        self.queue.send(CommitterCall { weight, work });
        async move { receiver.await.unwrap_or_else(|_| Err((&Fault::Closed).into())) }.boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }
}

fn carry_out(table: &mut PartitionTable<'_>, call: Call) -> Result<CallAnswer, Fault> {
    Ok(match call {
        Call::Apply(batch) => CallAnswer::Apply(table.apply(&batch)?),
        Call::Load(load) => CallAnswer::Load(table.load(&load)?),
        Call::Unload(beyond) => {
            table.lane.cursor().unload(beyond);
            CallAnswer::Unload
        }
        Call::Get(target) => CallAnswer::Get(table.find(&target)?),
        Call::ParkedDestinations => CallAnswer::ParkedDestinations(table.parked_destinations()?),
        Call::List(listing) => CallAnswer::List(table.list(&listing)?),
        Call::Pending(range) => CallAnswer::Pending(table.pending(&range)?),
        Call::Counts(range) => CallAnswer::Counts(table.counts(&range)),
        Call::Forecast(range) => CallAnswer::Forecast(table.forecast(&range)?),
        Call::Controls => CallAnswer::Controls(table.partition.controls.clone().into()),
        Call::Census => CallAnswer::Census(table.partition.counters.census),
        Call::Release(in_flight) => {
            table.release(in_flight);
            CallAnswer::Release
        }
    })
}

/// About how many operations a call is worth. A batch: one for each KiB of payload besides, so that
/// a group of calls is bounded in bytes, too.
fn weight(call: &Call) -> usize {
    let payload = |op: &Op| op.subject().brings().map_or(0, |timer| timer.payload.len() / 1024);
    match call {
        Call::Apply(batch) => batch.ops.len() + batch.ops.iter().map(payload).sum::<usize>(),
        Call::Load(load) => load.max_timers,
        Call::List(listing) => listing.limit as usize,
        Call::Pending(range) => range.limit as usize,
        Call::Counts(range) => range.limit as usize,
        Call::Forecast(_) => PAGE_READS,
        Call::Unload(_)
        | Call::Get(_)
        | Call::ParkedDestinations
        | Call::Controls
        | Call::Census
        | Call::Release(_) => 1,
    }
}
