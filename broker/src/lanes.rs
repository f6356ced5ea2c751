//! The lanes of the partitions that this broker owns: calls go out at once, answers come back in
//! their order.
//!
//! Purpose: for every partition that is owned its lane, the calls that are not answered, and its
//! health; acquisition anew when an ownership has ended. All of it is polled by the engine's task,
//! so that an answer takes no detour.
//! Invariant: the answers of one ownership are given out strictly in the order of its calls. How
//! many are under way is the engine's bound.
//! Not in here: what is called and why.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use mtimer_core::figures::Durations;
use mtimer_core::{Call, CallAnswer, Input};
use mtimer_store::{Acquired, Health, Lane, LaneError, LaneFuture};
use mtimer_types::{Epoch, PartitionId};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::acquire::Acquirer;
use crate::cluster::{Assigned, Assignment};
use crate::error::BrokerError;

/// A partition that was owned for so long is acquired anew at once.
const STABLE: Duration = Duration::from_secs(60);
/// Otherwise at once the first time, then after a pause that doubles from the shorter to the
/// longer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// What has happened on the lanes.
pub(crate) enum LaneEvent {
    /// A call was answered; [`Lanes::next_answer`] gives out what is in order.
    Answered,
    /// A partition's store came or went.
    Health(PartitionId, Health),
    /// A partition was acquired anew.
    Acquired(PartitionId, Acquired),
    /// This broker can go on no more.
    Ended(BrokerError),
}

/// The ownership of one partition.
struct Ownership {
    lane: Arc<dyn Lane>,
    epoch: Epoch,
    began: tokio::time::Instant,
    /// Number of the first call in `calls`.
    first: u64,
    /// Unanswered calls, and answers that wait for an earlier one.
    calls: VecDeque<Option<CallAnswer>>,
}

/// Kinds of calls, by name.
const CALLS: [&str; 7] = ["apply", "load", "unload", "get", "list", "census", "release"];
/// How ownerships end, by name.
pub(crate) const ENDS: [&str; 4] = ["fenced", "rolled_back", "broken", "released"];

/// What the lanes have done and are doing, in numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneFigures {
    /// How long answers took, by kind of call.
    pub(crate) calls: Vec<(&'static str, Durations)>,
    /// Batches that were sent.
    pub(crate) batches: u64,
    /// Operations in them.
    pub(crate) operations: u64,
    /// Ownerships that have ended, in the order of [`ENDS`].
    pub(crate) ended: [u64; ENDS.len()],
    /// Calls that are not answered.
    pub(crate) under_way: u64,
}

/// What the lanes count.
#[derive(Debug, Default)]
struct Tally {
    took: [Durations; CALLS.len()],
    batches: u64,
    operations: u64,
    ended: [u64; ENDS.len()],
}

/// A call that is answered: what kind it was, and how long it took.
type Took = (usize, Duration);
type Answered = (PartitionId, Epoch, u64, CallAnswer);
type HealthChanged = (PartitionId, Epoch, Option<watch::Receiver<Health>>);
type Reacquired = (PartitionId, Result<Option<Acquired>, BrokerError>);

/// A partition that this broker is to own, or was while an acquisition was under way that may have
/// been carried out.
struct Wanted {
    /// Under which assignment; `None`: not any more.
    assignment: watch::Sender<Option<Assignment>>,
    /// There is a task that acquires it.
    acquiring: bool,
}

/// How partitions are acquired.
#[derive(Clone)]
pub(crate) enum AcquireMode {
    /// There is no cluster: this broker owns everything, and acquires anew what it has lost.
    Alone(Arc<Acquirer>),
    /// What the leader assigns.
    Assigned(Arc<Assigned>),
}

/// All lanes of this broker.
pub(crate) struct Lanes {
    owned: HashMap<PartitionId, Ownership>,
    calls: FuturesUnordered<BoxFuture<'static, (Answered, Took)>>,
    health: FuturesUnordered<BoxFuture<'static, HealthChanged>>,
    mode: AcquireMode,
    acquiring: JoinSet<Reacquired>,
    /// In a cluster: the partitions that this broker is to own, and those that it is acquiring all
    /// the same.
    wanted: HashMap<PartitionId, Wanted>,
    /// How long to pause before the next acquisition, of partitions that are lost again soon.
    restless: HashMap<PartitionId, Duration>,
    /// Partitions with an answer that is in order.
    answered: VecDeque<PartitionId>,
    /// Partitions whose store is away.
    down: BTreeSet<PartitionId>,
    tally: Tally,
}

impl Lanes {
    pub(crate) fn new(mode: AcquireMode) -> Self {
        Self {
            owned: HashMap::new(),
            calls: FuturesUnordered::new(),
            health: FuturesUnordered::new(),
            mode,
            acquiring: JoinSet::new(),
            wanted: HashMap::new(),
            restless: HashMap::new(),
            answered: VecDeque::new(),
            down: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// Begins an ownership. Gives what the engine is to be told: the acquisition, and the health if
    /// it is not well.
    pub(crate) fn begin(&mut self, partition: PartitionId, acquired: Acquired) -> Vec<Input> {
        let Acquired { lane, epoch, prior_claim, in_flight } = acquired;
        let mut receiver = lane.health();
        let health = receiver.borrow_and_update().clone();
        self.watch(partition, epoch, receiver);
        let began = tokio::time::Instant::now();
        self.owned.insert(partition, Ownership { lane, epoch, began, first: 0, calls: VecDeque::new() });
        let mut inputs = vec![Input::Acquired { partition, epoch, prior_claim, in_flight }];
        if health != Health::Up {
            self.note_health(partition, &health);
            inputs.push(Input::Health { partition, health });
        }
        inputs
    }

    /// Makes a call now. A call on a partition without a lane is not made: its ownership has ended.
    pub(crate) fn call(&mut self, partition: PartitionId, call: Call) {
        let Some(ownership) = self.owned.get_mut(&partition) else {
            return;
        };
        let number = ownership.first + ownership.calls.len() as u64;
        ownership.calls.push_back(None);
        self.tally.count(&call);
        let (began, kind) = (tokio::time::Instant::now(), kind(&call));
        let (epoch, answer) = (ownership.epoch, make(&*ownership.lane, call));
        self.calls.push(Box::pin(async move {
            let answer = answer.await;
            ((partition, epoch, number, answer), (kind, began.elapsed()))
        }));
    }

    /// The lanes in numbers.
    pub(crate) fn figures(&self) -> LaneFigures {
        let Tally { took, batches, operations, ended } = &self.tally;
        LaneFigures {
            calls: CALLS.into_iter().zip(took.iter().copied()).collect(),
            batches: *batches,
            operations: *operations,
            ended: *ended,
            under_way: self.calls.len() as u64,
        }
    }

    /// How many partitions have a lane, and of how many of them the store is away.
    pub(crate) fn reach(&self) -> (usize, usize) {
        (self.owned.len(), self.down.len())
    }

    /// Waits for the next event; for ever if nothing is under way.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn next(&mut self) -> LaneEvent {
        loop {
            tokio::select! {
                Some((answered, (kind, took))) = self.calls.next() => {
                    self.tally.took[kind].add_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                    self.note_answer(answered);
                    return LaneEvent::Answered;
                }
                Some((partition, epoch, receiver)) = self.health.next() => {
                    if let Some(event) = self.health_changed(partition, epoch, receiver) {
                        return event;
                    }
                }
                Some(ended) = self.acquiring.join_next() => {
                    if let Some(event) = self.acquired(ended) {
                        return event;
                    }
                }
                else => std::future::pending().await,
            }
        }
    }

    /// The next answer in order, as the engine's input.
    pub(crate) fn next_answer(&mut self) -> Option<Input> {
        loop {
            let partition = *self.answered.front()?;
            if let Some(ownership) = self.owned.get_mut(&partition)
                && let Some(answer) = ownership.calls.front_mut().and_then(Option::take)
            {
                ownership.calls.pop_front();
                ownership.first += 1;
                return Some(Input::Answered { partition, epoch: ownership.epoch, answer });
            }
            self.answered.pop_front();
        }
    }

    /// Acquires a partition under an assignment, unless it is owned. An acquisition under way goes
    /// on under it.
    pub(crate) fn own(&mut self, partition: PartitionId, assignment: Assignment) {
        if !matches!(self.mode, AcquireMode::Assigned(_)) {
            return;
        }
        let wanted = self
            .wanted
            .entry(partition)
            .or_insert_with(|| Wanted { assignment: watch::Sender::new(None), acquiring: false });
        wanted.assignment.send_replace(Some(assignment));
        self.begin_to_acquire(partition);
    }

    fn begin_to_acquire(&mut self, partition: PartitionId) {
        let AcquireMode::Assigned(assigned) = &self.mode else { return };
        let Some(wanted) = self.wanted.get_mut(&partition) else { return };
        let idle = !wanted.acquiring && !self.owned.contains_key(&partition);
        if !idle || wanted.assignment.borrow().is_none() {
            return;
        }
        wanted.acquiring = true;
        let (assigned, assignment) = (assigned.clone(), wanted.assignment.subscribe());
        self.acquiring.spawn(async move { (partition, assigned.acquire(partition, assignment).await) });
    }

    /// Withdraws a partition's assignment. Returns whether it is owned, and has to be released
    /// first. An acquisition that may have been carried out is awaited, so that it can be released
    /// in good order, too.
    pub(crate) fn withdraw(&mut self, partition: PartitionId) -> bool {
        if let Some(wanted) = self.wanted.get_mut(&partition) {
            wanted.assignment.send_replace(None);
            if !wanted.acquiring {
                self.wanted.remove(&partition);
            }
        }
        self.owned.contains_key(&partition)
    }

    /// Whether a partition that was acquired just now is wanted: in a cluster it may be another
    /// broker's by now.
    pub(crate) fn is_wanted(&self, partition: PartitionId) -> bool {
        let assigned = |w: &Wanted| w.assignment.borrow().is_some();
        matches!(self.mode, AcquireMode::Alone(_)) || self.wanted.get(&partition).is_some_and(assigned)
    }

    /// What has become of an acquisition; `None`: nothing, it is not wanted any more.
    fn acquired(&mut self, ended: Result<Reacquired, JoinError>) -> Option<LaneEvent> {
        let (partition, result) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let what = error.to_string();
                return Some(LaneEvent::Ended(BrokerError::Panicked { task: "acquisition", what }));
            }
        };
        if let Some(wanted) = self.wanted.get_mut(&partition) {
            wanted.acquiring = false;
        }
        match result {
            Ok(Some(acquired)) => Some(LaneEvent::Acquired(partition, acquired)),
            Ok(None) => {
                // Void: unless it was assigned anew after the task had looked.
                match self.is_wanted(partition) {
                    true => self.begin_to_acquire(partition),
                    false => _ = self.wanted.remove(&partition),
                }
                None
            }
            Err(error) => Some(LaneEvent::Ended(error)),
        }
    }

    /// Whether a partition is owned.
    pub(crate) fn owns(&self, partition: PartitionId) -> bool {
        self.owned.contains_key(&partition)
    }

    /// Ends an ownership. Without a cluster the partition is acquired anew, unless the broker is
    /// stopping; if somebody else holds it under a higher term, that ends the broker. In a cluster
    /// the leader's assignment decides what follows.
    pub(crate) fn end(&mut self, partition: PartitionId, error: &LaneError, stopping: bool) {
        let Some(ownership) = self.owned.remove(&partition) else {
            return;
        };
        self.down.remove(&partition);
        self.tally.ended[end_of(error)] += 1;
        // A lane that was closed without being asked to has lost its task: that, too, is no reason
        // to leave the partition without an owner.
        if stopping {
            return;
        }
        let epoch = ownership.epoch;
        let acquirer = match &self.mode {
            AcquireMode::Alone(acquirer) => acquirer.clone(),
            AcquireMode::Assigned(_) if *error == LaneError::Closed => return,
            AcquireMode::Assigned(_) => {
                tracing::warn!(%partition, %epoch, %error, "the ownership has ended");
                return;
            }
        };
        tracing::warn!(%partition, %epoch, %error, "the ownership has ended, acquiring anew");
        let pause = self.pause(partition, ownership.began.elapsed());
        self.acquiring.spawn(async move {
            tokio::time::sleep(pause).await;
            (partition, acquirer.acquire(partition, epoch).await.map(Some))
        });
    }

    fn pause(&mut self, partition: PartitionId, lasted: Duration) -> Duration {
        if lasted >= STABLE {
            self.restless.remove(&partition);
        }
        let pause = self.restless.get(&partition).copied().unwrap_or_default();
        self.restless.insert(partition, (pause * 2).clamp(PAUSES.0, PAUSES.1));
        pause
    }

    fn note_answer(&mut self, (partition, epoch, number, answer): Answered) {
        // An answer of an earlier ownership has nobody left to take it.
        let Some(ownership) = self.owned.get_mut(&partition).filter(|r| r.epoch == epoch) else {
            return;
        };
        let place = number.checked_sub(ownership.first).and_then(|i| ownership.calls.get_mut(i as usize));
        if let Some(place) = place {
            *place = Some(answer);
            if number == ownership.first {
                self.answered.push_back(partition);
            }
        }
    }

    fn watch(&mut self, partition: PartitionId, epoch: Epoch, mut receiver: watch::Receiver<Health>) {
        self.health.push(Box::pin(async move {
            // The sender goes away with the lane's task.
            let alive = receiver.changed().await.is_ok();
            (partition, epoch, alive.then_some(receiver))
        }));
    }

    fn health_changed(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
        receiver: Option<watch::Receiver<Health>>,
    ) -> Option<LaneEvent> {
        self.owned.get(&partition).filter(|r| r.epoch == epoch)?;
        let health = match receiver {
            Some(mut receiver) => {
                let health = receiver.borrow_and_update().clone();
                if !matches!(health, Health::Ended(_)) {
                    self.watch(partition, epoch, receiver);
                }
                health
            }
            // Its task is gone without a word: a panic.
            None => Health::Ended(LaneError::Closed),
        };
        self.note_health(partition, &health);
        Some(LaneEvent::Health(partition, health))
    }

    /// Logs when the first partition's store goes away and when the last one's is back.
    fn note_health(&mut self, partition: PartitionId, health: &Health) {
        match health {
            Health::Up => {
                if self.down.remove(&partition) && self.down.is_empty() {
                    tracing::info!("the store can be reached again");
                }
            }
            Health::Down(why) => {
                if self.down.is_empty() {
                    tracing::warn!(%partition, %why, "the store cannot be reached, new timers are refused meanwhile");
                }
                self.down.insert(partition);
            }
            Health::Ended(_) => {
                self.down.remove(&partition);
            }
        }
    }
}

impl Tally {
    fn count(&mut self, call: &Call) {
        if let Call::Apply(batch) = call {
            self.batches += 1;
            self.operations += batch.ops.len() as u64;
        }
    }
}

/// The place of a call in [`CALLS`].
fn kind(call: &Call) -> usize {
    match call {
        Call::Apply(_) => 0,
        Call::Load(_) => 1,
        Call::Unload(_) => 2,
        Call::Get(_) => 3,
        Call::ParkedDestinations
        | Call::Parked(..)
        | Call::Dead(..)
        | Call::Taken(..)
        | Call::Unconfirmed(..) => 4,
        Call::Census => 5,
        Call::Release(_) => 6,
    }
}

/// The place of an ownership's end in [`ENDS`].
fn end_of(error: &LaneError) -> usize {
    match error {
        LaneError::Fenced { .. } => 0,
        LaneError::RolledBack(_) => 1,
        LaneError::Broken(_) => 2,
        LaneError::Closed => 3,
    }
}

/// Makes the call; that it is made, not polled, fixes its place in the lane.
fn make(lane: &dyn Lane, call: Call) -> BoxFuture<'static, CallAnswer> {
    match call {
        Call::Apply(batch) => into(lane.apply(batch), CallAnswer::Apply),
        Call::Load(load) => into(lane.load(load), CallAnswer::Load),
        Call::Unload(beyond) => into(lane.unload(beyond), |()| CallAnswer::Unload),
        Call::Get(target) => into(lane.get(target), CallAnswer::Get),
        Call::ParkedDestinations => into(lane.parked_destinations(), CallAnswer::ParkedDestinations),
        Call::Parked(dest, cursor, limit) => into(lane.parked(dest, cursor, limit), CallAnswer::Parked),
        Call::Dead(filter, cursor, limit) => into(lane.dead(filter, cursor, limit), CallAnswer::Dead),
        Call::Taken(cursor, limit) => into(lane.taken(cursor, limit), CallAnswer::Taken),
        Call::Unconfirmed(cursor, limit) => into(lane.unconfirmed(cursor, limit), CallAnswer::Unconfirmed),
        Call::Census => into(lane.census(), CallAnswer::Census),
        Call::Release(in_flight) => into(lane.release(in_flight), |()| CallAnswer::Release),
    }
}

fn into<T: Send + 'static>(
    answer: LaneFuture<T>,
    name: impl FnOnce(T) -> CallAnswer + Send + 'static,
) -> BoxFuture<'static, CallAnswer> {
    Box::pin(async move { answer.await.map_or_else(CallAnswer::Ended, name) })
}

#[cfg(test)]
mod tests;
