//! A store and the reference side by side: every answer is compared at once, everything visible
//! when asked.
//!
//! Invariant on loads: the pair keeps the wheel that an owner would keep, and checks after each
//! load that nothing pending at or below the horizon is missing from it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use mtimer_types::{Filter, Target, Time, TimerId};

use super::forecast::check_spans;
use super::harness::Fault;
use super::kit::Kit;
use super::model::Model;
use super::owner::{Owner, State};
use super::values::{DAY, MINUTE, dest};
use crate::ops::Schedule;
use crate::{
    Answer, Batch, DeadLetter, ForecastRange, InFlight, Load, Loaded, LoadedTimer, Op, OwnerRecord, Pending,
    PendingRange, Place, Record, Taken, Unconfirmed,
};

/// The result of a check; the error names the difference in words.
pub(super) type Check<T = ()> = Result<T, String>;

pub(super) fn same<T: PartialEq + Debug>(what: &str, store: &T, reference: &T) -> Check {
    if store == reference {
        return Ok(());
    }
    Err(format!("{what}:\n      the store says {store:?}\n  the reference says {reference:?}"))
}

/// Compares lists row by row, so that a difference can be read.
fn same_rows<T: PartialEq + Debug>(what: &str, store: &[T], reference: &[T]) -> Check {
    for (s, r) in store.iter().zip(reference) {
        same(what, s, r)?;
    }
    let extra: Vec<_> = store.iter().skip(reference.len()).collect();
    let missing: Vec<_> = reference.iter().skip(store.len()).collect();
    if extra.is_empty() && missing.is_empty() {
        return Ok(());
    }
    Err(format!("{what}: rows too many {extra:?}, rows missing {missing:?}"))
}

/// A call that was made and not yet awaited, with the answers that it must give.
pub(super) struct Called {
    what: String,
    answers: crate::LaneFuture<Vec<Answer>>,
    expected: Vec<Answer>,
}

/// A store and the reference.
pub(super) struct Pair {
    pub(super) kit: Kit,
    pub(super) owner: Owner,
    pub(super) model: Model,
    /// The timers in the owner's memory, and when each fires.
    wheel: BTreeMap<TimerId, Time>,
    horizon: Time,
}

impl Pair {
    pub(super) async fn new(mut kit: Kit) -> Self {
        let owner = kit.owner().await;
        let mut model = Model::default();
        model.acquired(owner.epoch);
        Self { kit, owner, model, wheel: BTreeMap::new(), horizon: Time::ZERO }
    }

    /// Calls the store and asks the reference; the answer is compared by [`Pair::settle`].
    pub(super) fn call(&mut self, claim: Option<Time>, ops: Vec<Op>) -> Called {
        let now = self.kit.now;
        let what = format!("the answers to {ops:?}");
        self.model.claim(claim);
        let expected: Vec<_> = ops.iter().map(|op| self.model.apply(now, op)).collect();
        let answers = self.owner.lane.apply(Batch { now, claim, ops });
        self.follow();
        Called { what, answers, expected }
    }

    pub(super) async fn settle(&mut self, called: Called) -> Check {
        let answers = called.answers.await.map_err(|e| format!("{}: the lane ended: {e}", called.what))?;
        same_rows(&called.what, &answers, &called.expected)
    }

    pub(super) async fn apply(&mut self, ops: Vec<Op>) -> Check {
        let called = self.call(None, ops);
        self.settle(called).await
    }

    /// Updates the owner's memory after an operation: adds timers that are pending at or below the
    /// horizon, drops those that are not pending any more.
    fn follow(&mut self) {
        let (wheel, horizon) = (&mut self.wheel, self.horizon);
        let fires: BTreeMap<TimerId, Time> =
            self.model.pending().iter().map(|t| (t.record.timer.id, t.fire)).collect();
        wheel.retain(|id, fire| fires.get(id) == Some(fire));
        wheel.extend(fires.into_iter().filter(|(_, fire)| *fire <= horizon));
    }

    /// A load together with calls around it: `calls` are made right behind it, before any answer.
    pub(super) async fn load(&mut self, load: Load, calls: Vec<Vec<Op>>) -> Check<Loaded> {
        self.load_in_trouble(load, calls, None).await
    }

    /// As [`Pair::load`], with a fault upon the load or one of the calls behind it.
    pub(super) async fn load_in_trouble(
        &mut self,
        load: Load,
        calls: Vec<Vec<Op>>,
        fault: Option<Fault>,
    ) -> Check<Loaded> {
        if let Some(fault) = fault {
            self.kit.fault(fault).await;
        }
        let (pending, mut wheel) = (self.model.pending(), self.wheel.clone());
        let loading = self.owner.lane.load(load);
        self.model.claim(load.claim);
        let called: Vec<_> = calls.into_iter().map(|ops| self.call(None, ops)).collect();
        if fault.is_some() {
            self.kit.fault(Fault::ComeUp).await;
        }
        let loaded = loading.await.map_err(|e| format!("{load:?}: the lane ended: {e}"))?;
        for call in called {
            self.settle(call).await?;
        }
        self.check_load(&load, &loaded, &pending)?;
        wheel.extend(loaded.timers.iter().map(|t| (t.record.timer.id, t.fire)));
        let missing =
            |t: &&LoadedTimer| t.fire <= loaded.horizon && wheel.get(&t.record.timer.id) != Some(&t.fire);
        if let Some(LoadedTimer { record, fire, .. }) = pending.iter().find(missing) {
            let (id, horizon) = (record.timer.id, loaded.horizon);
            return Err(format!("{load:?}: the horizon is {horizon}, but {id} at {fire} was never loaded"));
        }
        // The owner knows by itself which timers the calls behind the load have filed or moved.
        self.wheel = wheel;
        self.horizon = loaded.horizon;
        self.follow();
        Ok(loaded)
    }

    fn check_load(&self, load: &Load, loaded: &Loaded, at_load: &[LoadedTimer]) -> Check {
        if loaded.horizon < self.horizon {
            return Err(format!(
                "{load:?}: the horizon went back from {} to {}",
                self.horizon, loaded.horizon
            ));
        }
        let at_load: BTreeMap<_, _> = at_load.iter().map(|t| (t.record.timer.id, t)).collect();
        for timer in &loaded.timers {
            let id = timer.record.timer.id;
            match at_load.get(&id) {
                Some(expected) => same(&format!("{id} as loaded"), timer, expected)?,
                None => return Err(format!("{load:?}: {id} was loaded, but is not pending: {timer:?}")),
            }
        }
        Ok(())
    }

    pub(super) async fn unload(&mut self, beyond: Time) -> Check {
        self.owner.lane.unload(beyond).await.map_err(|e| format!("unload: the lane ended: {e}"))?;
        self.horizon = self.horizon.min(beyond);
        self.wheel.retain(|_, fire| *fire <= beyond);
        Ok(())
    }

    /// Another owner takes the partition, with or without a release before it.
    pub(super) async fn takeover(&mut self, release: Option<Vec<InFlight>>) -> Check {
        if let Some(rows) = release {
            self.owner
                .lane
                .release(rows.clone())
                .await
                .map_err(|e| format!("release: the lane ended: {e}"))?;
            self.model.in_flight = rows;
            self.model.claimed_until = self.model.prior_claim;
        }
        let next = self.kit.owner().await;
        self.took_over(next)
    }

    fn took_over(&mut self, next: Owner) -> Check {
        if next.epoch <= self.owner.epoch {
            return Err(format!("the epoch went from {} to {}", self.owner.epoch, next.epoch));
        }
        self.model.acquired(next.epoch);
        same("the prior claim", &next.prior_claim, &self.model.prior_claim)?;
        let sorted = |rows: &[InFlight]| {
            let mut rows = rows.to_vec();
            rows.sort_by_key(|r| (r.id, r.attempt));
            rows
        };
        same("what was in flight", &sorted(&next.in_flight), &sorted(&self.model.in_flight))?;
        self.owner = next;
        self.wheel.clear();
        self.horizon = Time::ZERO;
        Ok(())
    }

    /// The store is closed and opened (or, where that is not supported, opened once more), then
    /// acquired.
    pub(super) async fn restart(self) -> Check<Self> {
        let Self { mut kit, owner, mut model, .. } = self;
        let epoch = owner.epoch;
        drop(owner);
        kit.reopen().await;
        let owner = kit.owner().await;
        if owner.epoch <= epoch {
            return Err(format!("the epoch went from {epoch} to {} over a restart", owner.epoch));
        }
        model.acquired(owner.epoch);
        same("the prior claim after a restart", &owner.prior_claim, &model.prior_claim)?;
        Ok(Self { kit, owner, model, wheel: BTreeMap::new(), horizon: Time::ZERO })
    }

    /// Compares one timer.
    pub(super) async fn check_get(&self, target: &Target) -> Check {
        let seen =
            self.owner.lane.get(target.clone()).await.map_err(|e| format!("get: the lane ended: {e}"))?;
        let known = self.model.find(target).map(|id| {
            let e = &self.model.timers[&id];
            (e.record(), e.place)
        });
        same(&format!("get {target:?}"), &seen.map(plain_get), &known.map(plain_get))
    }

    /// Compares the pending timers as they are listed: all, those of one destination, and those
    /// that wait for a retry.
    async fn check_lists(&self) -> Check {
        let pending = self.model.filed();
        let some = pending.first().map_or_else(dest, |t| t.record.timer.dest.clone());
        let all = PendingRange::of(Filter::default(), 7);
        for range in [
            all.clone(),
            PendingRange::of(Filter::of(&some), 7),
            PendingRange { retrying: Some(true), ..all },
        ] {
            let listed = self.owner.listed(range.clone()).await;
            let row = |t: &LoadedTimer| Pending { record: t.record.clone(), fire: t.fire, tier: t.tier };
            let mut expected: Vec<_> =
                pending.iter().filter(|t| range.has(&t.record, t.fire)).map(row).collect();
            expected.sort_by_key(Pending::position);
            same_rows(&format!("the list of {range:?}"), &listed, &expected)?;
        }
        Ok(())
    }

    /// Compares everything that can be seen. Leaves everything loaded.
    pub(super) async fn check_all(&mut self) -> Check {
        let store = self.owner.state().await;
        self.wheel = store.pending.iter().map(|t| (t.record.timer.id, t.fire)).collect();
        self.horizon = self.kit.far;
        let m = &self.model;
        let owner = OwnerRecord {
            epoch: m.epoch,
            claimed_until: m.claimed_until,
            // These are the kit's own, not the model's.
            nonce: store.owner.nonce,
            term: store.owner.term,
            version: store.owner.version,
            released: store.owner.released,
        };
        same("the owner record", &store.owner, &owner)?;
        same_rows("pending", &store.pending, &m.pending())?;
        self.check_lists().await?;
        same("the counts of destinations", &self.owner.counts(2).await, &self.model.counts())?;
        let fires: Vec<_> = m.filed().iter().map(|timer| timer.fire).collect();
        for step_ms in [MINUTE, DAY] {
            check_spans(&self.owner.forecast(ForecastRange::of(step_ms)).await, &fires, step_ms)?;
        }
        let parked =
            |rows: Vec<Record>| rows.into_iter().map(|r| plain(r, Place::Parked)).collect::<Vec<_>>();
        same_rows("parked", &parked(store.parked), &parked(m.parked()))?;
        let taken = |rows: Vec<Taken>| rows.into_iter().map(plain_taken).collect::<Vec<_>>();
        same_rows("taken", &taken(store.taken), &taken(m.taken()))?;
        let unconfirmed =
            |rows: Vec<Unconfirmed>| rows.into_iter().map(plain_unconfirmed).collect::<Vec<_>>();
        same_rows("unconfirmed", &unconfirmed(store.unconfirmed), &unconfirmed(m.unconfirmed()))?;
        let dead = |rows: Vec<DeadLetter>| rows.into_iter().map(plain_dead).collect::<Vec<_>>();
        same_rows("dead", &dead(store.dead), &dead(m.dead()))?;
        same("the census", &store.census, &m.census())?;
        same_rows("bulk jobs", &store.bulks, &m.jobs)?;
        same_rows("settings", &store.settings, &m.settings())?;
        for (id, e) in &m.timers {
            self.check_get(&Target::Id(*id)).await?;
            if let Some(key) = &e.timer.key {
                self.check_get(&Target::Key(e.timer.dest.clone(), key.clone())).await?;
            }
        }
        Ok(())
    }
}

/// Of a timer that is not pending nobody can tell when it was filed, of one that is taken or dead
/// nobody asks whether it was stopped.
fn plain(mut record: Record, place: Place) -> Record {
    if !matches!(place, Place::Pending { .. }) {
        record.progress.fresh = None;
    }
    if matches!(place, Place::Taken { .. } | Place::Dead) {
        record.progress.stopped = false;
    }
    record
}

fn plain_get((record, place): (Record, Place)) -> (Record, Place) {
    (plain(record, place), place)
}

fn plain_taken(row: Taken) -> Taken {
    let place = Place::Taken { epoch: row.epoch, unconfirmed: false };
    Taken { record: plain(row.record, place), ..row }
}

fn plain_unconfirmed(row: Unconfirmed) -> Unconfirmed {
    let place = Place::Taken { epoch: row.epoch, unconfirmed: true };
    Unconfirmed { record: plain(row.record, place), ..row }
}

fn plain_dead(row: DeadLetter) -> DeadLetter {
    DeadLetter { record: plain(row.record, Place::Dead), ..row }
}

/// For the fencing tests.
pub(super) fn same_state(store: &State, reference: &State) -> Check {
    same("the owner record", &store.owner, &reference.owner)?;
    same_rows("pending", &store.pending, &reference.pending)?;
    same_rows("parked", &store.parked, &reference.parked)?;
    same_rows("taken", &store.taken, &reference.taken)?;
    same_rows("unconfirmed", &store.unconfirmed, &reference.unconfirmed)?;
    same_rows("dead", &store.dead, &reference.dead)?;
    same("the census", &store.census, &reference.census)?;
    same_rows("bulk jobs", &store.bulks, &reference.bulks)?;
    same_rows("settings", &store.settings, &reference.settings)
}

/// An operation that schedules.
pub(super) fn schedule_with(timer: &mtimer_types::Timer, policy: mtimer_types::KeyPolicy) -> Op {
    Op::Schedule(Schedule::new(Arc::new(timer.clone()), policy))
}
