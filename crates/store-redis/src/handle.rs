//! The caller's side of a lane: a queue in the order of calls, and the task that works it off.
//!
//! Not in here: scripts. The queue holds what the owner has called and not yet got answered; the owner bounds that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use mtimer_store::{
    Answer, Batch, Census, DeadFilter, DeadLetter, Health, InFlight, Lane, LaneError, LaneFuture, Load,
    Loaded, Page, Place, Record, Taken, Unconfirmed,
};
use mtimer_types::{Destination, Epoch, PartitionId, Target, Time};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::lane::Engine;

type To<T> = oneshot::Sender<Result<T, LaneError>>;

/// A call that waits for its turn.
enum Call {
    Apply(Batch, To<Vec<Answer>>),
    Load(Load, To<Loaded>),
    Unload(Time, To<()>),
    Get(Target, To<Option<(Record, Place)>>),
    ParkedDestinations(To<Vec<(Destination, u64)>>),
    Parked(Destination, u64, u32, To<Page<Record>>),
    Dead(DeadFilter, u64, u32, To<Page<DeadLetter>>),
    Taken(u64, u32, To<Page<Taken>>),
    Unconfirmed(u64, u32, To<Page<Unconfirmed>>),
    Census(To<Census>),
    Release(Vec<InFlight>, To<()>),
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    ended: Option<LaneError>,
}

struct Inbox {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// The handle was dropped: no call follows.
    left: CancellationToken,
}

impl Inbox {
    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<Call> {
        self.queue().calls.pop_front()
    }

    /// No call is taken any more, and whoever waits is told why. The first reason stays.
    fn end(&self, why: &LaneError) {
        let waiting = {
            let mut queue = self.queue();
            queue.ended.get_or_insert_with(|| why.clone());
            std::mem::take(&mut queue.calls)
        };
        waiting.into_iter().for_each(|call| call.refuse(why));
    }
}

/// Ends a lane however its task ends, also by a panic or without ever having begun: nobody calls into the void.
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
        let ended = |health: &mut Health| {
            let well = !matches!(health, Health::Ended(_));
            if well {
                *health = Health::Ended(LaneError::Closed);
            }
            well
        };
        // Whoever watches it knows before a caller does.
        self.health.send_if_modified(ended);
        self.inbox.end(&LaneError::Closed);
    }
}

/// The owner's handle of a lane.
pub(crate) struct RedisLane {
    epoch: Epoch,
    inbox: Arc<Inbox>,
    health: watch::Receiver<Health>,
}

impl RedisLane {
    /// A handle, and the task that serves it.
    pub(crate) fn new(
        engine: Engine,
        health: watch::Receiver<Health>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let epoch = engine.facts.epoch;
        let left = engine.left.clone();
        let inbox = Arc::new(Inbox { queue: Mutex::default(), arrived: Notify::new(), left });
        let (partition, health_of) = (engine.partition, engine.health.clone());
        let ending = Ending { partition, inbox: inbox.clone(), health: health_of };
        let task = serve(engine, ending);
        (Self { epoch, inbox, health }, task)
    }

    fn call<T: Send + 'static>(&self, make: impl FnOnce(To<T>) -> Call) -> LaneFuture<T> {
        let (to, answer) = oneshot::channel();
        let mut queue = self.inbox.queue();
        if let Some(ended) = &queue.ended {
            return futures_util::future::ready(Err(ended.clone())).boxed();
        }
        queue.calls.push_back(make(to));
        drop(queue);
        self.inbox.arrived.notify_one();
        async move { answer.await.unwrap_or(Err(LaneError::Closed)) }.boxed()
    }
}

impl Drop for RedisLane {
    fn drop(&mut self) {
        self.inbox.left.cancel();
    }
}

impl Lane for RedisLane {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        self.call(|to| Call::Apply(batch, to))
    }

    fn load(&self, load: Load) -> LaneFuture<Loaded> {
        self.call(|to| Call::Load(load, to))
    }

    fn unload(&self, beyond: Time) -> LaneFuture<()> {
        self.call(|to| Call::Unload(beyond, to))
    }

    fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>> {
        self.call(|to| Call::Get(target, to))
    }

    fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>> {
        self.call(Call::ParkedDestinations)
    }

    fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>> {
        self.call(|to| Call::Parked(dest, cursor, limit, to))
    }

    fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>> {
        self.call(|to| Call::Dead(filter, cursor, limit, to))
    }

    fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>> {
        self.call(|to| Call::Taken(cursor, limit, to))
    }

    fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>> {
        self.call(|to| Call::Unconfirmed(cursor, limit, to))
    }

    fn census(&self) -> LaneFuture<Census> {
        self.call(Call::Census)
    }

    fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()> {
        self.call(|to| Call::Release(in_flight, to))
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

async fn serve(mut engine: Engine, ending: Ending) {
    let Err(why) = work(&mut engine, &ending.inbox).await else { return };
    engine.health.send_replace(Health::Ended(why.clone()));
    engine.end(&why);
    if why != LaneError::Closed {
        tracing::warn!(partition = engine.partition.0, error = %why, "the lane has ended");
    }
    ending.inbox.end(&why);
}

/// Works until the lane ends; returns well when the handle is gone and everything is done.
async fn work(engine: &mut Engine, inbox: &Inbox) -> Result<(), LaneError> {
    loop {
        while engine.has_room() {
            match inbox.pop() {
                Some(Call::Apply(batch, to)) => engine.admit(batch, to),
                Some(call) => {
                    engine.drain().await?;
                    alone(engine, call).await?;
                }
                None => break,
            }
        }
        engine.send().await?;
        if engine.window.is_empty() {
            tokio::select! {
                () = inbox.arrived.notified() => {}
                () = inbox.left.cancelled() => {
                    if inbox.queue().calls.is_empty() {
                        return Ok(());
                    }
                }
            }
            continue;
        }
        let room = engine.has_room();
        tokio::select! {
            answered = engine.front() => engine.handle(answered).await?,
            () = inbox.arrived.notified(), if room => {}
        }
    }
}

/// Does a call with nothing else under way.
async fn alone(engine: &mut Engine, call: Call) -> Result<(), LaneError> {
    match call {
        Call::Apply(batch, to) => {
            engine.admit(batch, to);
            Ok(())
        }
        Call::Load(load, to) => {
            let answer = engine.load(load).await;
            tell(engine, to, answer)
        }
        Call::Unload(beyond, to) => {
            let answer = engine.unload(beyond).await;
            tell(engine, to, answer)
        }
        Call::Get(target, to) => {
            let answer = engine.get(target).await;
            tell(engine, to, answer)
        }
        Call::ParkedDestinations(to) => {
            let answer = engine.parked_destinations().await;
            tell(engine, to, answer)
        }
        Call::Parked(dest, cursor, limit, to) => {
            let answer = engine.parked(&dest, cursor, limit).await;
            tell(engine, to, answer)
        }
        Call::Dead(filter, cursor, limit, to) => {
            let answer = engine.dead(&filter, cursor, limit).await;
            tell(engine, to, answer)
        }
        Call::Taken(cursor, limit, to) => {
            let answer = engine.taken(cursor, limit).await;
            tell(engine, to, answer)
        }
        Call::Unconfirmed(cursor, limit, to) => {
            let answer = engine.unconfirmed(cursor, limit).await;
            tell(engine, to, answer)
        }
        Call::Census(to) => {
            let answer = engine.census().await;
            tell(engine, to, answer)
        }
        Call::Release(in_flight, to) => {
            let answer = engine.release(&in_flight).await;
            if answer.is_ok() {
                engine.health.send_replace(Health::Ended(LaneError::Closed));
            }
            tell(engine, to, answer)?;
            Err(LaneError::Closed)
        }
    }
}

/// Answers; an error ends the lane, and whoever watches it knows before the caller does.
fn tell<T>(engine: &Engine, to: To<T>, answer: Result<T, LaneError>) -> Result<(), LaneError> {
    let end = answer.as_ref().err().cloned();
    if let Some(why) = &end {
        engine.health.send_replace(Health::Ended(why.clone()));
    }
    // The caller may have dropped its future.
    let _ = to.send(answer);
    end.map_or(Ok(()), Err)
}

impl Call {
    fn refuse(self, why: &LaneError) {
        fn no<T>(to: To<T>, why: &LaneError) {
            // The caller may have dropped its future.
            let _ = to.send(Err(why.clone()));
        }
        match self {
            Self::Apply(_, to) => no(to, why),
            Self::Load(_, to) => no(to, why),
            Self::Unload(_, to) | Self::Release(_, to) => no(to, why),
            Self::Get(_, to) => no(to, why),
            Self::ParkedDestinations(to) => no(to, why),
            Self::Parked(_, _, _, to) => no(to, why),
            Self::Dead(_, _, _, to) => no(to, why),
            Self::Taken(_, _, to) => no(to, why),
            Self::Unconfirmed(_, _, to) => no(to, why),
            Self::Census(to) => no(to, why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane whose task is somebody else's.
    fn lane() -> (RedisLane, Ending) {
        let (to, health) = watch::channel(Health::Up);
        let left = CancellationToken::new();
        let inbox = Arc::new(Inbox { queue: Mutex::default(), arrived: Notify::new(), left });
        let ending = Ending { partition: PartitionId(2), inbox: inbox.clone(), health: to };
        (RedisLane { epoch: Epoch(1), inbox, health }, ending)
    }

    #[tokio::test]
    async fn a_task_that_panics_leaves_nobody_waiting() {
        let (lane, ending) = lane();
        let before = lane.census();
        let task = tokio::spawn(async move {
            let _ending = ending;
            panic!("on purpose");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(*lane.health().borrow(), Health::Ended(LaneError::Closed));
        assert_eq!(before.now_or_never(), Some(Err(LaneError::Closed)));
        assert_eq!(lane.census().now_or_never(), Some(Err(LaneError::Closed)));
    }

    #[tokio::test]
    async fn the_first_reason_stays() {
        let (lane, ending) = lane();
        let why = LaneError::Broken("damaged".to_owned());
        ending.health.send_replace(Health::Ended(why.clone()));
        ending.inbox.end(&why);
        drop(ending);
        assert_eq!(*lane.health().borrow(), Health::Ended(why.clone()));
        assert_eq!(lane.census().now_or_never(), Some(Err(why)));
    }
}
