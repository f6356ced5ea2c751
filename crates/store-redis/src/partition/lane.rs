//! The caller's side of a partition: a queue in the order of calls, and the task that executes
//! them.
//!
//! Not in here: the execution of calls. The queue holds the owner's calls that are not answered
//! yet; the owner bounds them.

use std::future::ready;

use futures_util::FutureExt;
use mtimer_store::{Call, CallAnswer, Health, Lane, LaneError, LaneFuture};
use mtimer_types::{Epoch, PartitionId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use super::handed::HandedOver;
use super::owner::Owner;

/// One partition of a store counts at a time, and then counting rests so many times as long as the
/// step took: it has 5 % of the store's time. The rest is nobody's wait: other calls go on.
const COUNTING_RESTS: u32 = 20;

/// A call that waits for its turn.
struct OwnerCall {
    call: Call,
    handed: HandedOver,
    /// The caller may have dropped its future.
    caller: oneshot::Sender<Result<CallAnswer, LaneError>>,
}

/// Ends a lane however its task ends, also by a panic or without ever having begun: nobody waits
/// for ever. Calls that wait fail as they are dropped with it.
struct Ending {
    partition: PartitionId,
    health: watch::Sender<Health>,
    calls: mpsc::UnboundedReceiver<OwnerCall>,
    /// Tells the callers that nothing takes from the queue any more. It goes last.
    _closed: DropGuard,
}

impl Drop for Ending {
    /// Watchers of the health learn of the end before callers do.
    fn drop(&mut self) {
        let mut why = LaneError::Closed;
        if std::thread::panicking() {
            tracing::error!(partition = self.partition.0, "the lane has panicked");
            why = LaneError::Broken("its lane has panicked".to_owned());
        }
        end(&self.health, &why);
    }
}

/// Tells the watchers of the health that the lane has ended. The first reason stays.
fn end(health: &watch::Sender<Health>, why: &LaneError) {
    health.send_if_modified(|health| {
        let lives = !matches!(health, Health::Ended(_));
        if lives {
            *health = Health::Ended(why.clone());
        }
        lives
    });
}

/// The owner's handle of a partition. After it is dropped the partition's task executes the calls
/// made before, and ends; the first failure ends it too, and fails the rest.
pub(crate) struct RedisLane {
    epoch: Epoch,
    calls: mpsc::UnboundedSender<OwnerCall>,
    health: watch::Receiver<Health>,
    /// Cancelled when nothing takes from the queue any more.
    closed: CancellationToken,
    /// Tells the owner that the handle was dropped.
    _abandoned: DropGuard,
}

impl RedisLane {
    /// A handle, and the task that serves it.
    pub(crate) fn new(
        owner: Owner,
        health: watch::Sender<Health>,
        abandoned: DropGuard,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (calls, waiting) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        let lane = Self {
            epoch: owner.epoch(),
            calls,
            health: health.subscribe(),
            closed: closed.clone(),
            _abandoned: abandoned,
        };
        let partition = owner.partition();
        let ending = Ending { partition, health, calls: waiting, _closed: closed.drop_guard() };
        (lane, serve(owner, ending))
    }
}

impl Lane for RedisLane {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        let (caller, answer) = oneshot::channel();
        // If the queue has ended this drops the call, and its caller is answered below.
        let _ = self.calls.send(OwnerCall { call, handed: HandedOver::now(), caller });
        let (health, closed) = (self.health.clone(), self.closed.clone());
        async move {
            let answered = tokio::select! {
                biased;
                answered = answer => answered.ok(),
                // A call that came while the queue was closed may have stayed in it.
                () = closed.cancelled() => None,
            };
            answered.unwrap_or_else(|| match &*health.borrow() {
                Health::Ended(why) => Err(why.clone()),
                _ => Err(LaneError::Closed),
            })
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

async fn serve(mut owner: Owner, mut ending: Ending) {
    let trimming = owner.trimmer.clone().run();
    let ended = tokio::select! {
        ended = work(&mut owner, &mut ending.calls) => ended,
        never = trimming => match never {},
    };
    let Err(why) = ended else { return };
    if why != LaneError::Closed {
        tracing::debug!(partition = ending.partition.0, error = %why, "the lane has ended");
    }
    end(&ending.health, &why);
    // The watchers of the health know by now: this may take a second.
    if matches!(why, LaneError::Fenced { .. }) {
        owner.writer.report_unseen().await;
    }
}

/// Works until the lane ends; returns well when the handle is gone and everything is done.
async fn work(owner: &mut Owner, calls: &mut mpsc::UnboundedReceiver<OwnerCall>) -> Result<(), LaneError> {
    if !broken!(UnsafeAcquisition) {
        // A failover must not lose the acquisition, with which the log begins. This waits here and
        // not in the acquisition: of those only some are carried out at once, and all partitions
        // share this wait.
        owner.trimmer.secure_acquisition().await?;
    }
    let (log, counting) = (owner.writer.log().clone(), owner.counting.clone());
    // The task that gives the turn to count back after a rest, whatever the lane does meanwhile. At
    // the lane's end it ends, too, and the turn is back at once.
    let mut resting = None;
    loop {
        tokio::select! {
            biased;
            call = calls.recv() => match call {
                Some(call) => execute(owner, call).await?,
                None => return Ok(()),
            },
            // Calls were refused, so nothing else finds out when the store is back.
            () = ready(()), if owner.is_down() => owner.check().await?,
            () = log.behind() => owner.check().await?,
            // Nobody else may ask: clients go elsewhere.
            () = owner.ask_replicas(), if owner.has_to_ask_replicas() => {}
            Ok(turn) = counting.clone().acquire_owned(), if owner.has_uncounted() => {
                let begun = Instant::now();
                owner.count_some().await?;
                let rest = begun.elapsed() * COUNTING_RESTS;
                drop(resting.replace(AbortOnDropHandle::new(tokio::spawn(async move {
                    sleep(rest).await;
                    drop(turn);
                }))));
            }
        }
    }
}

/// Carries out a call and answers its caller; fails if the lane ends with it.
async fn execute(owner: &mut Owner, OwnerCall { call, handed, caller }: OwnerCall) -> Result<(), LaneError> {
    let answer = carry_out(owner, call, handed).await;
    let failure = answer.as_ref().err().cloned();
    let ended = failure.or_else(|| owner.is_released.then_some(LaneError::Closed));
    if let Some(why) = &ended {
        owner.writer.set_ended(why);
    }
    let _ = caller.send(answer);
    ended.map_or(Ok(()), Err)
}

async fn carry_out(owner: &mut Owner, call: Call, handed: HandedOver) -> Result<CallAnswer, LaneError> {
    Ok(match call {
        Call::Apply(batch) => CallAnswer::Apply(owner.apply(batch, handed).await?),
        Call::Load(load) => CallAnswer::Load(owner.load(load).await?),
        Call::Unload(beyond) => {
            owner.unload(beyond).await?;
            CallAnswer::Unload
        }
        Call::Get(target) => CallAnswer::Get(owner.get(target).await?),
        Call::ParkedDestinations => CallAnswer::ParkedDestinations(owner.parked_destinations().await?),
        Call::List(listing) => CallAnswer::List(owner.page(listing).await?),
        Call::Pending(range) => CallAnswer::Pending(owner.pending(range).await?),
        Call::Counts(range) => CallAnswer::Counts(owner.counts(range).await?),
        Call::Forecast(range) => CallAnswer::Forecast(owner.forecast(range).await?),
        Call::Controls => CallAnswer::Controls(owner.controls().await?.into()),
        Call::Census => CallAnswer::Census(owner.census().await?),
        Call::Release(in_flight) => {
            owner.release(in_flight).await?;
            CallAnswer::Release
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lane_that_panics_is_broken_and_was_not_released() {
        let (health, watched) = watch::channel(Health::Up);
        let (_handle, calls) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        let ending =
            Ending { partition: PartitionId(0), health, calls, _closed: closed.clone().drop_guard() };
        let task = async move {
            let _ending = ending;
            panic!("as a defect would");
        };
        assert!(tokio::spawn(task).await.is_err_and(|error| error.is_panic()));
        assert!(closed.is_cancelled(), "nobody waits");
        let ended = watched.borrow();
        assert!(matches!(*ended, Health::Ended(LaneError::Broken(_))), "{ended:?}");
    }
}
