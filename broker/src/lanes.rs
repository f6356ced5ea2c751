//! The lanes of the partitions that this broker owns: calls go out at once, answers come back in
//! their order.
//!
//! Purpose: for every partition that is owned its lane, the calls that are not answered, and its
//! health; the acquisitions under way. All of it is polled by the engine's task, so that an answer
//! takes no detour.
//! Invariant: the answers of one ownership are given out strictly in the order of its calls, and
//! before its end: a call that the store has answered is never taken for unanswered. How many are
//! under way is the engine's bound.
//! Not in here: which calls are made, and why.

mod acquisitions;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use mtimer_core::Input;
use mtimer_store::{Acquired, Call, CallAnswer, FirstLine, Health, Lane, LaneError};
use mtimer_types::{Epoch, PartitionId};
use tokio::sync::watch;
use tokio::time::Instant;

use self::acquisitions::Acquisitions;
use self::tally::LaneTally;
pub(crate) use self::tally::{ENDS, LaneFigures};
use crate::acquire::{Acquirer, Assignment};
use crate::error::BrokerError;

/// Events of the lanes.
pub(crate) enum LaneEvent {
    /// A call was answered; [`Lanes::next_answer`] gives the answers out in order.
    Answered,
    /// A partition's store came or went.
    Health(PartitionId, Health),
    /// A partition was acquired again.
    Acquired(PartitionId, Acquired),
    /// This broker can go on no more.
    Ended(BrokerError),
}

/// The ownership of one partition.
struct Ownership {
    lane: Arc<dyn Lane>,
    epoch: Epoch,
    /// Number of the first call in `calls`.
    first: u64,
    /// Unanswered calls, and answers that wait for an earlier one.
    calls: VecDeque<Option<Result<CallAnswer, LaneError>>>,
    /// Why the lane has ended. It is told behind the answers to `calls`.
    ended: Option<LaneError>,
}

/// A call that is answered: its kind and its duration.
type Took = (usize, Duration);
type LaneAnswer = (PartitionId, Epoch, u64, Result<CallAnswer, LaneError>);
type HealthChanged = (PartitionId, Epoch, Option<watch::Receiver<Health>>);

/// All lanes of this broker.
pub(crate) struct Lanes {
    owned: HashMap<PartitionId, Ownership>,
    calls: FuturesUnordered<BoxFuture<'static, (LaneAnswer, Took)>>,
    health: FuturesUnordered<BoxFuture<'static, HealthChanged>>,
    acquisitions: Acquisitions,
    /// Partitions with an answer that is in order.
    answered: VecDeque<PartitionId>,
    /// Partitions whose store is away.
    down: BTreeSet<PartitionId>,
    /// Since when there are any.
    down_since: Option<Instant>,
    /// Of the partitions whose store goes away: one line for those that go together.
    down_line: FirstLine,
    end_line: FirstLine,
    tally: LaneTally,
}

impl Lanes {
    pub(crate) fn new(acquirer: Arc<Acquirer>) -> Self {
        Self {
            owned: HashMap::new(),
            calls: FuturesUnordered::new(),
            health: FuturesUnordered::new(),
            acquisitions: Acquisitions::new(acquirer),
            answered: VecDeque::new(),
            down: BTreeSet::new(),
            down_since: None,
            down_line: FirstLine::default(),
            end_line: FirstLine::default(),
            tally: LaneTally::default(),
        }
    }

    /// Begins an ownership. Returns the inputs for the engine: the acquisition, and the health if
    /// it is not well.
    pub(crate) fn begin(&mut self, partition: PartitionId, acquired: Acquired) -> Vec<Input> {
        let Acquired { lane, epoch, prior_claim, in_flight } = acquired;
        let mut receiver = lane.health();
        let health = receiver.borrow_and_update().clone();
        self.watch(partition, epoch, receiver);
        self.owned
            .insert(partition, Ownership { lane, epoch, first: 0, calls: VecDeque::new(), ended: None });
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
        let (began, kind) = (Instant::now(), self.tally.count(&call));
        // That it is made, not polled, fixes its place in the lane.
        let (epoch, answer) = (ownership.epoch, ownership.lane.call(call));
        self.calls.push(Box::pin(async move {
            let answer = answer.await;
            ((partition, epoch, number, answer), (kind, began.elapsed()))
        }));
    }

    /// The lanes in numbers.
    pub(crate) fn figures(&self) -> LaneFigures {
        self.tally.figures(self.calls.len())
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
                    self.tally.answered(kind, took);
                    self.note_answer(answered);
                    return LaneEvent::Answered;
                }
                Some((partition, epoch, receiver)) = self.health.next() => {
                    if let Some(event) = self.health_changed(partition, epoch, receiver) {
                        return event;
                    }
                }
                Some(acquired) = self.acquisitions.next() => {
                    return match acquired {
                        Ok((partition, acquired)) => LaneEvent::Acquired(partition, acquired),
                        Err(error) => LaneEvent::Ended(error),
                    };
                }
                else => std::future::pending().await,
            }
        }
    }

    /// The next answer in order, or the end of a lane whose calls are all answered, as the engine's
    /// input.
    pub(crate) fn next_answer(&mut self) -> Option<Input> {
        loop {
            let partition = *self.answered.front()?;
            if let Some(ownership) = self.owned.get_mut(&partition) {
                if let Some(answer) = ownership.calls.front_mut().and_then(Option::take) {
                    ownership.calls.pop_front();
                    ownership.first += 1;
                    return Some(Input::Answered { partition, epoch: ownership.epoch, answer });
                }
                if let Some(error) = ownership.ended.take_if(|_| ownership.calls.is_empty()) {
                    let health = Health::Ended(error);
                    self.note_health(partition, &health);
                    return Some(Input::Health { partition, health });
                }
            }
            self.answered.pop_front();
        }
    }

    /// Acquires a partition under an assignment, unless it is owned. An acquisition under way goes
    /// on under it.
    pub(crate) fn own(&mut self, partition: PartitionId, assignment: Assignment) {
        self.acquisitions.assign(partition, assignment, self.owns(partition));
    }

    /// Withdraws a partition's assignment. Returns whether it is owned, and has to be released
    /// first.
    pub(crate) fn withdraw(&mut self, partition: PartitionId) -> bool {
        self.acquisitions.withdraw(partition);
        self.owns(partition)
    }

    /// Whether a partition that was acquired just now is wanted: it may be another broker's by now.
    pub(crate) fn is_wanted(&self, partition: PartitionId) -> bool {
        self.acquisitions.is_wanted(partition)
    }

    /// Whether a partition is owned.
    pub(crate) fn owns(&self, partition: PartitionId) -> bool {
        self.owned.contains_key(&partition)
    }

    /// Ends an ownership. The leader decides who owns the partition next.
    pub(crate) fn end(&mut self, partition: PartitionId, error: &LaneError, stopping: bool) {
        let Some(ownership) = self.owned.remove(&partition) else {
            return;
        };
        self.note_up(partition, has_answered(error));
        self.tally.ended(error);
        let epoch = ownership.epoch;
        self.acquisitions.note_end(partition, epoch);
        if !stopping && *error != LaneError::Closed {
            // All of them are summed up every ten seconds.
            if self.end_line.is_due(Instant::now().into_std()) {
                tracing::warn!(%partition, %epoch, %error, "the ownership has ended");
            } else {
                tracing::debug!(%partition, %epoch, %error, "the ownership has ended");
            }
        }
    }

    fn note_answer(&mut self, (partition, epoch, number, answer): LaneAnswer) {
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
            None => Health::Ended(LaneError::Broken("its task is gone without a word".to_owned())),
        };
        let unanswered = self.owned.get_mut(&partition).filter(|o| !o.calls.is_empty());
        if let (Health::Ended(error), Some(ownership)) = (&health, unanswered) {
            ownership.ended = Some(error.clone());
            return None;
        }
        self.note_health(partition, &health);
        Some(LaneEvent::Health(partition, health))
    }

    /// Logs when stores of partitions go away, one line for those that go together, and when the
    /// last one is back.
    fn note_health(&mut self, partition: PartitionId, health: &Health) {
        match health {
            Health::Up => self.note_up(partition, true),
            Health::Down(why) => {
                if self.note_down(partition) {
                    let unreachable = self.down.len();
                    tracing::warn!(
                        %partition, unreachable, %why,
                        "the store cannot be reached, new timers are refused meanwhile"
                    );
                }
            }
            Health::Ended(error) => self.note_up(partition, has_answered(error)),
        }
    }

    /// The store of a partition is away. Returns whether that is to be logged: it is the first of
    /// those that go away together.
    fn note_down(&mut self, partition: PartitionId) -> bool {
        if self.down.is_empty() {
            self.down_since = Some(Instant::now());
            self.down_line = FirstLine::default();
        }
        self.down.insert(partition) && self.down_line.is_due(Instant::now().into_std())
    }

    /// The store of a partition is not away any more, or the partition is not ours. `answered`: the
    /// store has said something.
    fn note_up(&mut self, partition: PartitionId, answered: bool) {
        if !self.down.remove(&partition) || !self.down.is_empty() {
            return;
        }
        if let Some(since) = self.down_since.take().filter(|_| answered) {
            tracing::info!(after_ms = since.elapsed().as_millis() as u64, "the store can be reached again");
        }
    }
}

/// Whether it is an answer of the store that has ended an ownership.
const fn has_answered(error: &LaneError) -> bool {
    matches!(error, LaneError::Fenced { .. } | LaneError::RolledBack(_))
}
