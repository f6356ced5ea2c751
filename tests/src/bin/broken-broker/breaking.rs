//! Ways to break a broker: a store between the engine and the real one.
//!
//! Invariant: what is broken is one thing, and the engine learns nothing of it.
//! Not in here: how scripts lose their fence (`mtimer_store_redis::test_support`).

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use mtimer_store::ops::Schedule;
use mtimer_store::{
    Acquire, AcquireError, Acquired, Answer, Batch, Call, CallAnswer, Coordination, Health, Lane, LaneFuture,
    Load, Op, OwnerRecord, ScheduleAnswer, Store, StoreClock, StoreFuture, StoreInfo,
};
use mtimer_types::{Epoch, PartitionId, Term, Time, TimerId};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long the store goes without what was answered.
const LATE: Duration = Duration::from_millis(500);
/// One in so many schedules is answered early.
const ONE_IN: u64 = 8;

/// What is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sabotage {
    /// The store applies what a partition's former owner asks for.
    Fence,
    /// Claims are not written: nobody learns what an owner that died may have sent.
    Claim,
    /// Some schedules are answered before the store has them.
    EarlyOk,
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fence" => Ok(Self::Fence),
            "claim" => Ok(Self::Claim),
            "early-ok" => Ok(Self::EarlyOk),
            other => Err(format!("{other:?} may be fence, claim or early-ok")),
        }
    }
}

impl Sabotage {
    /// Breaks what [`Self::wrap`] does not. Comes before the store is opened.
    pub(crate) fn begin(self) {
        tracing::warn!(what = ?self, "this broker is broken on purpose: it loses or repeats timers");
        if self == Self::Fence {
            mtimer_store_redis::test_support::cut_the_fence();
        }
    }

    /// The store as the broker is to see it.
    pub(crate) fn wrap(self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match self {
            Self::Fence => store,
            Self::Claim | Self::EarlyOk => Arc::new(Broken { store, how: self }),
        }
    }
}

/// A store whose lanes are broken.
struct Broken {
    store: Arc<dyn Store>,
    how: Sabotage,
}

impl Store for Broken {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }
    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.store.owner(partition)
    }
    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        let (how, acquiring) = (self.how, self.store.acquire(acquire));
        async move {
            let acquired = acquiring.await?;
            let lane = Arc::new(BrokenLane { lane: acquired.lane, how, late: Arc::default() });
            Ok(Acquired { lane, ..acquired })
        }
        .boxed()
    }
    fn raise_term(&self) -> StoreFuture<Term> {
        self.store.raise_term()
    }
    fn clocks(&self) -> Vec<StoreClock> {
        self.store.clocks()
    }
    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        self.store.coordination()
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.store.counters()
    }
}

/// A schedule that was answered and is not stored yet.
struct Late {
    id: TimerId,
    due: Time,
    now: Time,
    store_at: Instant,
    op: Op,
}

struct BrokenLane {
    lane: Arc<dyn Lane>,
    how: Sabotage,
    /// The oldest first.
    late: Arc<Mutex<Vec<Late>>>,
}

impl BrokenLane {
    /// Stores those of the late that the next call could miss: only an end in between tells the
    /// difference.
    fn catch_up(&self, which: impl Fn(&Late) -> bool) {
        drop(store(&*self.lane, &self.late, which));
    }

    fn apply_late(&self, mut batch: Batch) -> LaneFuture<Vec<Answer>> {
        // What is late has no key.
        let named: HashSet<TimerId> = batch.ops.iter().filter_map(Op::id).collect();
        self.catch_up(|late| named.contains(&late.id));
        let store_at = Instant::now() + LATE;
        let (mut ops, mut early) = (Vec::new(), Vec::new());
        for (at, op) in batch.ops.into_iter().enumerate() {
            match &op {
                Op::Schedule(Schedule { timer, .. })
                    if timer.key.is_none() && timer.id.random() % ONE_IN == 0 =>
                {
                    let (id, due, now) = (timer.id, timer.due, batch.now);
                    locked(&self.late).push(Late { id, due, now, store_at, op });
                    early.push(at);
                }
                _ => ops.push(op),
            }
        }
        if !early.is_empty() {
            let (lane, late) = (Arc::clone(&self.lane), Arc::clone(&self.late));
            tokio::spawn(async move {
                tokio::time::sleep_until(store_at).await;
                if let Err(error) = store(&*lane, &late, |late| late.store_at <= store_at).await {
                    tracing::warn!(%error, "what was answered is not stored");
                }
            });
        }
        batch.ops = ops;
        let answers = apply(&*self.lane, batch);
        let made_up = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
        async move {
            let mut answers = answers.await?;
            early.into_iter().for_each(|at| answers.insert(at, made_up.clone()));
            Ok(answers)
        }
        .boxed()
    }
}

impl Lane for BrokenLane {
    fn epoch(&self) -> Epoch {
        self.lane.epoch()
    }
    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        match call {
            Call::Apply(batch) => {
                let answers = match self.how {
                    Sabotage::EarlyOk => self.apply_late(batch),
                    Sabotage::Claim => apply(&*self.lane, Batch { claim: None, ..batch }),
                    Sabotage::Fence => self.lane.apply(batch),
                };
                async move { answers.await.map(CallAnswer::Apply) }.boxed()
            }
            Call::Load(load) => {
                self.catch_up(|late| late.due <= load.until);
                let claim = load.claim.filter(|_| self.how != Sabotage::Claim);
                self.lane.call(Call::Load(Load { claim, ..load }))
            }
            Call::Unload(_) | Call::Get(_) | Call::Release(_) => {
                self.catch_up(|_| true);
                self.lane.call(call)
            }
            Call::ParkedDestinations | Call::List(_) | Call::Pending(_) | Call::Counts(_) => {
                self.lane.call(call)
            }
            Call::Forecast(_) | Call::Controls | Call::Census => self.lane.call(call),
        }
    }
    fn health(&self) -> watch::Receiver<Health> {
        self.lane.health()
    }
}

fn locked(late: &Mutex<Vec<Late>>) -> MutexGuard<'_, Vec<Late>> {
    late.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores some of the late. The call takes its place in the lane at once.
fn store(lane: &dyn Lane, late: &Mutex<Vec<Late>>, which: impl Fn(&Late) -> bool) -> LaneFuture<Vec<Answer>> {
    let mut late = locked(late);
    let now = late.first().map_or(Time::from_ms(0), |late| late.now);
    let ops = late.extract_if(.., |late| which(late)).map(|late| late.op).collect();
    apply(lane, Batch { now, claim: None, ops })
}

/// Applies what is left of a batch, if anything is.
fn apply(lane: &dyn Lane, batch: Batch) -> LaneFuture<Vec<Answer>> {
    match batch.ops.is_empty() && batch.claim.is_none() {
        true => std::future::ready(Ok(Vec::new())).boxed(),
        false => lane.apply(batch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_ways_are_taken() {
        assert_eq!("fence".parse::<Sabotage>().unwrap(), Sabotage::Fence);
        assert_eq!("claim".parse::<Sabotage>().unwrap(), Sabotage::Claim);
        assert_eq!("early-ok".parse::<Sabotage>().unwrap(), Sabotage::EarlyOk);
        for wrong in ["", "Fence", "fence ", "all"] {
            let failure = wrong.parse::<Sabotage>().unwrap_err();
            assert!(failure.contains("early-ok"), "{failure}");
        }
    }
}
