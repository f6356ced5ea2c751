//! An owner of the partition under test, with short names for every operation, and complete
//! observation.

use std::collections::BTreeMap;
use std::sync::Arc;

use mtimer_types::{
    Bulk, BulkId, Destination, DueSpan, Epoch, Filter, Key, KeyPolicy, PartitionId, StoredSettings, Target,
    Time, Timer, TimerId,
};

use super::values::{NEW, dead_verdict, dest, schedule_op, unique};
use crate::bulk::{BulkJob, BulkPlace};
use crate::ops::{
    BeginBulk, BeginBulkAnswer, BulkAct, BulkActAnswer, BulkAdvance, Cancel, Configure, ConfigureAnswer,
    MoveAnswer, Park, Purge, PurgeAnswer, Replay, ReplayAnswer, Reschedule, Schedule, SettleAnswer, StopBulk,
    StopBulkAnswer, Unpark,
};
use crate::{
    Acquired, Answer, Batch, CancelAnswer, Census, Counts, CountsRange, DeadFilter, DeadLetter,
    ForecastRange, InFlight, Lane, LaneError, LaneFuture, Load, Loaded, LoadedTimer, Op, OwnerRecord, Page,
    Pending, PendingRange, Place, Record, RequestId, RescheduleAnswer, ScheduleAnswer, Store, Taken,
    Unconfirmed, Verdict,
};

/// Applies an operation and returns its own answer.
macro_rules! answer_of {
    ($owner:expr, $name:ident, $op:expr) => {
        match $owner.one($op).await {
            Answer::$name(answer) => answer,
            other => panic!("{} was answered with {other:?}", stringify!($name)),
        }
    };
}

/// Everything that can be seen of a partition, in a fixed order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) owner: OwnerRecord,
    pub(super) pending: Vec<LoadedTimer>,
    pub(super) parked: Vec<Record>,
    pub(super) taken: Vec<Taken>,
    pub(super) unconfirmed: Vec<Unconfirmed>,
    pub(super) dead: Vec<DeadLetter>,
    pub(super) census: Census,
    pub(super) bulks: Vec<BulkJob>,
    pub(super) settings: Vec<StoredSettings>,
}

/// An owner of the partition, with a short name for everything it can do.
pub(super) struct Owner {
    store: Arc<dyn Store>,
    pub(super) lane: Arc<dyn Lane>,
    pub(super) partition: PartitionId,
    pub(super) epoch: Epoch,
    pub(super) prior_claim: Time,
    pub(super) in_flight: Vec<InFlight>,
    /// The time its batches carry.
    pub(super) now: Time,
    far: Time,
}

impl Owner {
    pub(super) fn new(
        acquired: Acquired,
        store: Arc<dyn Store>,
        partition: PartitionId,
        now: Time,
        far: Time,
    ) -> Self {
        assert_eq!(acquired.lane.epoch(), acquired.epoch, "the lane has the epoch that was acquired");
        Self {
            store,
            lane: acquired.lane,
            partition,
            epoch: acquired.epoch,
            prior_claim: acquired.prior_claim,
            in_flight: acquired.in_flight,
            now,
            far,
        }
    }

    pub(super) fn batch(&self, ops: Vec<Op>) -> Batch {
        Batch { now: self.now, claim: None, ops }
    }

    /// Puts a batch in the lane and returns its answer-to-be.
    pub(super) fn send(&self, ops: Vec<Op>) -> LaneFuture<Vec<Answer>> {
        self.lane.apply(self.batch(ops))
    }

    pub(super) async fn try_apply(&self, ops: Vec<Op>) -> Result<Vec<Answer>, LaneError> {
        self.send(ops).await
    }

    pub(super) async fn apply(&self, ops: Vec<Op>) -> Vec<Answer> {
        let count = ops.len();
        let answers = self.try_apply(ops).await.expect("the lane is alive");
        assert_eq!(answers.len(), count, "one answer for each operation");
        answers
    }

    pub(super) async fn one(&self, op: Op) -> Answer {
        self.apply(vec![op]).await.remove(0)
    }

    pub(super) async fn schedule_as(&self, timer: &Timer, policy: KeyPolicy) -> ScheduleAnswer {
        answer_of!(self, Schedule, Op::Schedule(Schedule::new(Arc::new(timer.clone()), policy)))
    }

    pub(super) async fn schedule(&self, timer: &Timer) -> ScheduleAnswer {
        self.schedule_as(timer, KeyPolicy::Create).await
    }

    /// Schedules a timer that must be new.
    pub(super) async fn add(&self, timer: &Timer) {
        assert_eq!(self.schedule(timer).await, NEW, "a new timer is stored");
    }

    /// Schedules timers that must be new, in batches of 1,000.
    pub(super) async fn add_all(&self, timers: &[Timer]) {
        for chunk in timers.chunks(1_000) {
            let answers = self.apply(chunk.iter().map(schedule_op).collect()).await;
            assert!(answers.iter().all(|a| *a == Answer::Schedule(NEW)), "new timers are stored");
        }
    }

    pub(super) async fn cancel_as(
        &self,
        target: Target,
        sent_attempt: Option<u32>,
        request: RequestId,
    ) -> CancelAnswer {
        answer_of!(self, Cancel, Op::Cancel(Cancel { target, sent_attempt, request }))
    }

    pub(super) async fn cancel(&self, id: TimerId) -> CancelAnswer {
        self.cancel_as(Target::Id(id), None, RequestId(unique())).await
    }

    /// Cancels it while its first delivery is under way.
    pub(super) async fn cancel_in_flight(&self, id: TimerId) -> CancelAnswer {
        self.cancel_as(Target::Id(id), Some(1), RequestId(unique())).await
    }

    pub(super) async fn cancel_key(&self, key: &Key) -> CancelAnswer {
        self.cancel_as(Target::Key(dest(), key.clone()), None, RequestId(unique())).await
    }

    pub(super) async fn reschedule_as(
        &self,
        target: Target,
        due: Time,
        is_begun: bool,
        request: RequestId,
    ) -> RescheduleAnswer {
        answer_of!(self, Reschedule, Op::Reschedule(Reschedule { target, due, is_begun, request }))
    }

    pub(super) async fn reschedule(&self, id: TimerId, due: Time) -> RescheduleAnswer {
        self.reschedule_as(Target::Id(id), due, false, RequestId(unique())).await
    }

    pub(super) async fn take(&self, id: TimerId) -> MoveAnswer {
        answer_of!(self, Take, Op::take(id, 0))
    }

    pub(super) async fn park(&self, id: TimerId) -> MoveAnswer {
        answer_of!(self, Park, Op::Park(Park { id, failed: 0 }))
    }

    pub(super) async fn unpark(&self, id: TimerId, fire: Time) -> MoveAnswer {
        answer_of!(self, Unpark, Op::Unpark(Unpark { id, fire }))
    }

    pub(super) async fn replay(&self, id: TimerId, fire: Time) -> ReplayAnswer {
        answer_of!(self, Replay, Op::Replay(Replay { id, fire }))
    }

    pub(super) async fn purge(&self, id: TimerId) -> PurgeAnswer {
        answer_of!(self, Purge, Op::Purge(Purge { id }))
    }

    pub(super) async fn configure(&self, op: Configure) -> ConfigureAnswer {
        answer_of!(self, Configure, Op::Configure(op))
    }

    pub(super) async fn begin_bulk(&self, id: BulkId, bulk: Bulk) -> BeginBulkAnswer {
        answer_of!(self, BeginBulk, Op::BeginBulk(BeginBulk { id, bulk: bulk.into() }))
    }

    /// Stops a job of this group and app.
    pub(super) async fn stop_bulk(&self, id: BulkId, of: &Filter) -> StopBulkAnswer {
        let Filter { group, app, .. } = of.clone();
        answer_of!(self, StopBulk, Op::StopBulk(StopBulk { id, group, app }))
    }

    /// Has a job act on a timer of which no attempt has begun.
    pub(super) async fn bulk_act(&self, number: u32, id: TimerId) -> BulkActAnswer {
        let act = BulkAct { number, id, sent_attempt: None, is_begun: false, adds: false };
        answer_of!(self, BulkAct, Op::BulkAct(act))
    }

    pub(super) async fn bulk_advance(&self, number: u32, to: BulkPlace, met: u64) -> MoveAnswer {
        answer_of!(self, BulkAdvance, Op::BulkAdvance(BulkAdvance { number, to, met }))
    }

    pub(super) async fn settle(&self, id: TimerId, verdict: Verdict) -> SettleAnswer {
        answer_of!(self, Settle, Op::settle(id, verdict))
    }

    pub(super) async fn ack(&self, id: TimerId) -> SettleAnswer {
        self.settle(id, Verdict::Ack).await
    }

    pub(super) async fn retry(&self, id: TimerId, fire: Time, tier: u8, failed: u32) -> SettleAnswer {
        self.settle(id, Verdict::Retry { fire, tier, failed, error: "not yet".into() }).await
    }

    pub(super) async fn dead_letter(&self, id: TimerId) -> SettleAnswer {
        self.settle(id, dead_verdict(1)).await
    }

    /// Schedules a timer and makes it a dead letter.
    pub(super) async fn add_dead(&self, timer: &Timer) {
        self.add(timer).await;
        assert_eq!(self.dead_letter(timer.id).await, SettleAnswer::Done);
    }

    /// Schedules an at-most-once timer and takes it.
    pub(super) async fn add_taken(&self, timer: &Timer) {
        self.add(timer).await;
        assert_eq!(self.take(timer.id).await, MoveAnswer::Done);
    }

    /// Schedules an at-most-once timer, takes it and gives up on it.
    pub(super) async fn add_unconfirmed(&self, timer: &Timer) {
        self.add_taken(timer).await;
        assert_eq!(self.settle(timer.id, Verdict::Unconfirmed).await, SettleAnswer::Done);
    }

    /// Schedules a timer and parks it.
    pub(super) async fn add_parked(&self, timer: &Timer) {
        self.add(timer).await;
        assert_eq!(self.park(timer.id).await, MoveAnswer::Done);
    }

    /// Raises `claimed-until` with an empty batch.
    pub(super) async fn claim(&self, until: Time) {
        let batch = Batch { now: self.now, claim: Some(until), ops: Vec::new() };
        assert_eq!(self.lane.apply(batch).await.expect("the lane is alive"), []);
    }

    pub(super) async fn see(&self, id: TimerId) -> Option<(Record, Place)> {
        self.lane.get(Target::Id(id)).await.expect("the lane is alive")
    }

    pub(super) async fn see_key(&self, key: &Key) -> Option<TimerId> {
        let found = self.lane.get(Target::Key(dest(), key.clone())).await.expect("the lane is alive");
        found.map(|(record, _)| record.timer.id)
    }

    pub(super) async fn place(&self, id: TimerId) -> Option<Place> {
        self.see(id).await.map(|(_, place)| place)
    }

    pub(super) async fn record(&self, id: TimerId) -> Record {
        self.see(id).await.expect("the timer is there").0
    }

    pub(super) fn send_load(&self, until: Time) -> LaneFuture<Loaded> {
        self.lane.load(Load { until, max_timers: 10_000, max_bytes: 16 << 20, claim: None })
    }

    /// Loads up to `until` in steps; everything that was returned.
    pub(super) async fn load(&self, until: Time) -> Vec<LoadedTimer> {
        self.load_in_steps(until, 10_000, 16 << 20).await.into_iter().flat_map(|step| step.timers).collect()
    }

    /// Loads up to `until`; each step as it was returned. Panics if the steps lead nowhere.
    pub(super) async fn load_in_steps(
        &self,
        until: Time,
        max_timers: usize,
        max_bytes: usize,
    ) -> Vec<Loaded> {
        let mut steps: Vec<Loaded> = Vec::new();
        let mut idle = 0;
        loop {
            let load = Load { until, max_timers, max_bytes, claim: None };
            let step = self.lane.load(load).await.expect("the lane is alive");
            let before = steps.last().map_or(Time::ZERO, |s| s.horizon);
            assert!(step.horizon >= before, "the horizon went back from {before} to {}", step.horizon);
            idle = if step.timers.is_empty() && step.horizon == before { idle + 1 } else { 0 };
            assert!(idle < 1_000, "1,000 loads in a row brought neither timers nor a higher horizon");
            assert!(steps.len() < 200_000, "loading does not come to an end");
            let done = step.horizon >= until;
            steps.push(step);
            if done {
                return steps;
            }
        }
    }

    /// Every pending timer, by forgetting and loading all of them.
    pub(super) async fn pending(&self) -> BTreeMap<TimerId, LoadedTimer> {
        self.lane.unload(Time::ZERO).await.expect("the lane is alive");
        self.load(self.far).await.into_iter().map(|t| (t.record.timer.id, t)).collect()
    }

    /// The pending timers, as (id, fire), in the order of ids.
    pub(super) async fn fires(&self) -> Vec<(TimerId, Time)> {
        self.pending().await.into_iter().map(|(id, t)| (id, t.fire)).collect()
    }

    pub(super) async fn bulks(&self) -> Vec<BulkJob> {
        self.lane.controls().await.expect("the lane is alive").bulks.all().to_vec()
    }

    /// In the order of destinations.
    pub(super) async fn settings(&self) -> Vec<StoredSettings> {
        let controls = self.lane.controls().await.expect("the lane is alive");
        controls.settings.all().cloned().collect()
    }

    pub(super) async fn census(&self) -> Census {
        self.lane.census().await.expect("the lane is alive")
    }

    pub(super) async fn parked_counts(&self) -> BTreeMap<Destination, u64> {
        let rows = self.lane.parked_destinations().await.expect("the lane is alive");
        let count = rows.len();
        let map: BTreeMap<_, _> = rows.into_iter().collect();
        assert_eq!(map.len(), count, "each destination is listed once");
        map
    }

    pub(super) async fn all_parked(&self, dest: &Destination, limit: u32) -> Vec<Record> {
        pages(limit, |cursor| self.lane.parked(dest.clone(), cursor, limit)).await
    }

    pub(super) async fn dead_where(&self, filter: &DeadFilter, limit: u32) -> Vec<DeadLetter> {
        pages(limit, |cursor| self.lane.dead(filter.clone(), cursor, limit)).await
    }

    pub(super) async fn all_dead(&self) -> Vec<DeadLetter> {
        self.dead_where(&DeadFilter::default(), 100).await
    }

    pub(super) async fn all_taken(&self, limit: u32) -> Vec<Taken> {
        pages(limit, |cursor| self.lane.taken(cursor, limit)).await
    }

    pub(super) async fn all_unconfirmed(&self, limit: u32) -> Vec<Unconfirmed> {
        pages(limit, |cursor| self.lane.unconfirmed(cursor, limit)).await
    }

    /// The counts of all destinations, in pages of `limit`, once nothing is uncounted.
    pub(super) async fn counts(&self, limit: u32) -> BTreeMap<Destination, Counts> {
        loop {
            let (mut counts, mut range) = (BTreeMap::new(), CountsRange::of(limit));
            let mut is_exact = true;
            loop {
                let page = self.lane.counts(range.clone()).await.expect("the lane is alive");
                let (read, after) = (page.rows.len(), range.after);
                assert!(read <= limit as usize, "a page of {read} rows, asked were {limit}");
                assert!(page.rows.is_sorted_by_key(|(dest, _)| dest), "{:?} are not in order", page.rows);
                assert!(page.rows.first().is_none_or(|(dest, _)| Some(dest) > after.as_ref()));
                counts.extend(page.rows);
                is_exact &= page.uncounted == 0;
                let Some(next) = page.next else { break };
                range.after = Some(next);
            }
            if is_exact {
                return counts;
            }
            // A store counts beside its calls after an acquisition.
            tokio::task::yield_now().await;
        }
    }

    /// All pages of a forecast, once nothing is uncounted.
    pub(super) async fn forecast(&self, range: ForecastRange) -> Vec<DueSpan> {
        loop {
            let (mut spans, mut range) = (Vec::<DueSpan>::new(), range.clone());
            let mut is_exact = true;
            loop {
                let page = self.lane.forecast(range.clone()).await.expect("the lane is alive");
                assert!(page.spans.is_sorted_by_key(|span| span.begin), "{:?} are not in order", page.spans);
                assert!(page.spans.iter().all(|span| span.timers > 0 && span.begin < span.end));
                assert!(page.spans.iter().all(|span| span.begin <= range.until));
                spans.extend(page.spans);
                is_exact &= page.uncounted == 0;
                let Some(next) = page.next else { break };
                assert!(next > range.from, "a forecast goes on at {next:?}, where it began");
                range.from = next;
            }
            if is_exact {
                return spans;
            }
            // A store counts beside its calls after an acquisition.
            tokio::task::yield_now().await;
        }
    }

    /// All pages of a range.
    pub(super) async fn listed(&self, mut range: PendingRange) -> Vec<Pending> {
        let mut rows: Vec<Pending> = Vec::new();
        for _ in 0..100_000 {
            let page = self.lane.pending(range.clone()).await.expect("the lane is alive");
            let (read, limit) = (page.rows.len(), range.limit);
            assert!(read <= limit as usize, "a page of {read} rows, asked were {limit}");
            rows.extend(page.rows);
            let Some(next) = page.next else { return rows };
            assert!(next > range.from, "a listing goes on at {next:?}, where it began");
            range.from = next;
        }
        panic!("the listing does not come to an end");
    }

    /// Everything that can be seen. Leaves everything loaded.
    pub(super) async fn state(&self) -> State {
        let pending = self.pending().await.into_values().collect();
        let mut parked = Vec::new();
        for (dest, count) in self.parked_counts().await {
            let rows = self.all_parked(&dest, 100).await;
            assert_eq!(rows.len() as u64, count, "parked timers of {dest} as counted");
            parked.extend(rows);
        }
        parked.sort_by_key(|r| r.timer.id);
        let mut taken = self.all_taken(100).await;
        taken.sort_by_key(|t| t.record.timer.id);
        let mut unconfirmed = self.all_unconfirmed(100).await;
        unconfirmed.sort_by_key(|u| (u.since, u.record.timer.id));
        let mut dead = self.all_dead().await;
        dead.sort_by_key(|d| (d.died, d.record.timer.id));
        // Residue is promised only for an empty partition.
        let census = Census { residue: 0, ..self.census().await };
        let owner = self.store.owner(self.partition).await.unwrap();
        let (bulks, settings) = (self.bulks().await, self.settings().await);
        State { owner, pending, parked, taken, unconfirmed, dead, census, bulks, settings }
    }
}

/// Walks through all pages; checks that each row comes once is the caller's.
pub(super) async fn pages<T>(limit: u32, read: impl Fn(u64) -> LaneFuture<Page<T>>) -> Vec<T> {
    let (mut rows, mut cursor) = (Vec::new(), 0);
    for _ in 0..100_000 {
        let page = read(cursor).await.expect("the lane is alive");
        assert!(page.rows.len() <= limit as usize, "a page of {} rows, asked were {limit}", page.rows.len());
        rows.extend(page.rows);
        match page.next {
            Some(next) => cursor = next,
            None => return rows,
        }
    }
    panic!("the listing does not come to an end");
}
