//! The caller's side of a partition: a queue in the order of calls, and the task that executes
//! them.
//!
//! Not in here: what the calls do. The queue holds what the owner has called and has no answer to
//! yet; the owner bounds that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_store::{
    Answer, Batch, Census, DeadFilter, DeadLetter, Health, InFlight, Lane, LaneError, LaneFuture, Load,
    Loaded, Page, Place, Record, Taken, Unconfirmed,
};
use mtimer_types::{Destination, Epoch, PartitionId, Target, Time};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::handed::HandedOver;
use super::owner::Owner;

/// A call that waits for its turn. It answers its caller, and fails if the lane ends.
type Call = Box<dyn for<'a> FnOnce(&'a mut Owner) -> BoxFuture<'a, Result<(), LaneError>> + Send>;

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    ended: Option<LaneError>,
}

#[derive(Default)]
struct Inbox {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// The handle was dropped: no call follows.
    abandoned: CancellationToken,
}

impl Inbox {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no call any more. Whoever waits is told why, as their calls are dropped. The first
    /// reason stays.
    fn end(&self, why: &LaneError) {
        let waiting = {
            let mut queue = self.queue();
            queue.ended.get_or_insert_with(|| why.clone());
            std::mem::take(&mut queue.calls)
        };
        drop(waiting);
    }

    fn why_ended(&self) -> LaneError {
        self.queue().ended.clone().unwrap_or(LaneError::Closed)
    }
}

/// Ends a lane however its task ends, also by a panic or without ever having begun: nobody waits
/// for ever.
struct Ending {
    partition: PartitionId,
    inbox: Arc<Inbox>,
    health: watch::Sender<Health>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(partition = self.partition.0, "the lane has panicked");
        }
        self.end(&LaneError::Closed);
    }
}

impl Ending {
    /// Whoever watches the health knows before a caller does.
    fn end(&self, why: &LaneError) {
        self.health.send_if_modified(|health| {
            let lives = !matches!(health, Health::Ended(_));
            if lives {
                *health = Health::Ended(why.clone());
            }
            lives
        });
        self.inbox.end(why);
    }
}

/// The owner's handle of a partition. After it is dropped the partition's task does what was
/// called, and ends; the first failure ends it too, and fails the rest.
pub(crate) struct RedisLane {
    epoch: Epoch,
    inbox: Arc<Inbox>,
    health: watch::Receiver<Health>,
}

impl RedisLane {
    /// A handle, and the task that serves it. `abandoned` is the owner's: it is cancelled with the
    /// handle.
    pub(crate) fn new(
        owner: Owner,
        health: watch::Sender<Health>,
        abandoned: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let inbox = Arc::new(Inbox { abandoned, ..Inbox::default() });
        let lane = Self { epoch: owner.epoch(), inbox: inbox.clone(), health: health.subscribe() };
        let ending = Ending { partition: owner.partition(), inbox, health };
        (lane, serve(owner, ending))
    }

    fn call<T, F>(&self, work: F) -> LaneFuture<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Owner) -> BoxFuture<'a, Result<T, LaneError>> + Send + 'static,
    {
        let (to, answer) = oneshot::channel();
        let call: Call = Box::new(move |owner| {
            async move {
                let answer = work(owner).await;
                let ended = answer.as_ref().err().cloned();
                if let Some(why) = &ended {
                    owner.set_ended(why);
                }
                // The caller may have dropped its future.
                let _ = to.send(answer);
                ended.map_or(Ok(()), Err)
            }
            .boxed()
        });
        let mut queue = self.inbox.queue();
        if let Some(ended) = &queue.ended {
            return futures_util::future::ready(Err(ended.clone())).boxed();
        }
        queue.calls.push_back(call);
        drop(queue);
        self.inbox.arrived.notify_one();
        let inbox = self.inbox.clone();
        async move { answer.await.unwrap_or_else(|_| Err(inbox.why_ended())) }.boxed()
    }
}

impl Drop for RedisLane {
    fn drop(&mut self) {
        self.inbox.abandoned.cancel();
    }
}

impl Lane for RedisLane {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        let handed = HandedOver::now();
        self.call(move |owner| owner.apply(batch, handed).boxed())
    }

    fn load(&self, load: Load) -> LaneFuture<Loaded> {
        self.call(move |owner| owner.load(load).boxed())
    }

    fn unload(&self, beyond: Time) -> LaneFuture<()> {
        self.call(move |owner| owner.unload(beyond).boxed())
    }

    fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>> {
        self.call(move |owner| owner.get(target).boxed())
    }

    fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>> {
        self.call(|owner| owner.parked_destinations().boxed())
    }

    fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>> {
        self.call(move |owner| owner.parked(dest, cursor, limit).boxed())
    }

    fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>> {
        self.call(move |owner| owner.dead(filter, cursor, limit).boxed())
    }

    fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>> {
        self.call(move |owner| owner.taken(cursor, limit).boxed())
    }

    fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>> {
        self.call(move |owner| owner.unconfirmed(cursor, limit).boxed())
    }

    fn census(&self) -> LaneFuture<Census> {
        self.call(|owner| owner.census().boxed())
    }

    fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()> {
        self.call(move |owner| owner.release(in_flight).boxed())
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

async fn serve(mut owner: Owner, ending: Ending) {
    let trimming = owner.trimmer().clone().run();
    let ended = tokio::select! {
        ended = work(&mut owner, &ending.inbox) => ended,
        never = trimming => match never {},
    };
    let Err(why) = ended else { return };
    if why != LaneError::Closed {
        tracing::debug!(partition = ending.partition.0, error = %why, "the lane has ended");
    }
    ending.end(&why);
}

/// Works until the lane ends; returns well when the handle is gone and everything is done.
async fn work(owner: &mut Owner, inbox: &Inbox) -> Result<(), LaneError> {
    // Here and not in the acquisition: of those only some are carried out at once, and all
    // partitions share this wait.
    owner.secure_acquisition().await?;
    let log = owner.log().clone();
    loop {
        let call = inbox.queue().calls.pop_front();
        if let Some(call) = call {
            call(owner).await?;
            if owner.is_released() {
                return Err(LaneError::Closed);
            }
            continue;
        }
        if owner.is_down() {
            // What was asked was refused, so nothing else finds out when the store is back.
            owner.check().await?;
            continue;
        }
        tokio::select! {
            () = inbox.arrived.notified() => {}
            () = log.behind() => owner.check().await?,
            () = inbox.abandoned.cancelled() => {
                if inbox.queue().calls.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}
