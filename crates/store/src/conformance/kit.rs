//! What the tests are written with: a site, owners with short names for every operation, complete observation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use mtimer_types::{
    DeadReason, Destination, Epoch, Key, KeyPolicy, Mode, Nonce, PartitionId, Target, Term, Time, Timer,
    TimerId,
};

use super::harness::{Fault, Harness, Site, Unsupported};
use crate::{
    Acquire, AcquireError, Acquired, Answer, Batch, CancelAnswer, Census, DeadFilter, DeadLetter, InFlight,
    Lane, LaneError, LaneFuture, Load, Loaded, LoadedTimer, Op, OwnerRecord, Page, Place, Record, RequestId,
    RescheduleAnswer, ScheduleAnswer, Store, Unconfirmed, Verdict,
};

pub(super) const SECOND: u64 = 1_000;
pub(super) const MINUTE: u64 = 60 * SECOND;
pub(super) const HOUR: u64 = 60 * MINUTE;
pub(super) const DAY: u64 = 24 * HOUR;
pub(super) const YEAR: u64 = 365 * DAY;

/// Partitions of a site, unless a test asks for another number.
const PARTITIONS: u16 = 4;
/// The partition that tests work on: not the first one.
const PARTITION: PartitionId = PartitionId(2);

/// A number that no other call in this process returns; its bits look random.
pub(super) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    mix(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), a bijection.
pub(super) fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(super) fn dest() -> Destination {
    Destination::new("orders", "billing").unwrap()
}

pub(super) fn other_dest() -> Destination {
    Destination::new("orders", "shipping").unwrap()
}

/// One test's site, and the clock it goes by.
pub(super) struct Kit {
    site: Box<dyn Site>,
    store: Option<Arc<dyn Store>>,
    partitions: u16,
    /// The partition under test.
    pub(super) partition: PartitionId,
    /// The cluster clock; stands still unless the test moves it.
    pub(super) now: Time,
    /// Later than every timer may be due.
    pub(super) far: Time,
    version: u64,
}

impl Kit {
    pub(super) async fn new(harness: &dyn Harness) -> Self {
        let mut site = harness.fresh(PARTITIONS).await;
        let store = site.open().await;
        assert_eq!(
            store.info().partitions,
            PARTITIONS,
            "the store has the number of partitions it was made with"
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let now = Time::from_ms(now);
        Self {
            site,
            store: Some(store),
            partitions: PARTITIONS,
            partition: PARTITION,
            now,
            far: now + 12 * YEAR,
            version: 0,
        }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    /// Another handle on the same data.
    pub(super) async fn second_handle(&mut self) -> Arc<dyn Store> {
        self.site.open().await
    }

    /// Closes and opens the store. The caller has dropped its owners. False: it cannot, or keeps nothing.
    pub(super) async fn restart(&mut self) -> bool {
        self.store = None;
        let done = self.site.restart().await;
        self.store = Some(self.site.open().await);
        if done.is_err() {
            eprintln!("    (this store does not survive a restart; the rest of this test is left out)");
        }
        done.is_ok()
    }

    /// Closes and opens the store if it keeps its data over that, otherwise only opens it once more. The caller has
    /// dropped its owners.
    pub(super) async fn reopen(&mut self) {
        self.store = None;
        // Unsupported: the data are still there.
        let _ = self.site.restart().await;
        self.store = Some(self.site.open().await);
    }

    /// Provokes a fault. False: this site cannot.
    pub(super) async fn fault(&mut self, fault: Fault) -> bool {
        let done: Result<(), Unsupported> = self.site.fault(fault).await;
        if done.is_err() {
            eprintln!("    ({fault:?} is not supported here; the rest of this test is left out)");
        }
        done.is_ok()
    }

    pub(super) async fn owner_record(&self) -> OwnerRecord {
        self.store().owner(self.partition).await.unwrap()
    }

    /// What a well-behaved broker asks for next.
    pub(super) async fn next_acquire(&mut self) -> Acquire {
        let stored = self.owner_record().await;
        self.version += 1;
        Acquire {
            partition: self.partition,
            expected: stored.epoch,
            nonce: Nonce(unique()),
            term: Term(1),
            version: self.version,
        }
    }

    pub(super) async fn acquire(&self, acquire: Acquire) -> Result<Owner, AcquireError> {
        let acquired = self.store().acquire(acquire).await?;
        Ok(Owner::new(acquired, self))
    }

    /// Acquires the partition, whoever has it.
    pub(super) async fn owner(&mut self) -> Owner {
        let acquire = self.next_acquire().await;
        self.acquire(acquire).await.unwrap()
    }

    /// Acquires another partition.
    pub(super) async fn owner_of(&mut self, partition: PartitionId) -> Owner {
        let mine = std::mem::replace(&mut self.partition, partition);
        let owner = self.owner().await;
        self.partition = mine;
        owner
    }

    /// A plain timer of the partition under test.
    pub(super) fn timer(&self, due: Time) -> Timer {
        plain_timer(due, self.now, self.partition)
    }

    /// An at-most-once timer.
    pub(super) fn amo(&self, due: Time) -> Timer {
        Timer { mode: Mode::AtMostOnce, ..self.timer(due) }
    }

    /// A timer with a key.
    pub(super) fn keyed(&self, due: Time, key: &Key) -> Timer {
        Timer { key: Some(key.clone()), ..self.timer(due) }
    }

    /// A key whose timers live in the partition under test (for `dest`).
    pub(super) fn key_of(&self, name: &str, dest: &Destination) -> Key {
        (0..)
            .map(|n| Key::new(&format!("{name}{n}")).unwrap())
            .find(|key| PartitionId::of_key(dest, key, self.partitions) == self.partition)
            .unwrap()
    }

    pub(super) fn key(&self, name: &str) -> Key {
        self.key_of(name, &dest())
    }
}

pub(super) fn plain_timer(due: Time, now: Time, partition: PartitionId) -> Timer {
    Timer {
        id: TimerId::new(due, now, partition, unique()),
        dest: dest(),
        key: None,
        due,
        mode: Mode::AtLeastOnce,
        deadline: None,
        callback_timeout_ms: None,
        retry: None,
        payload: Bytes::from_static(b"payload"),
    }
}

/// Everything that can be seen of a partition, in a fixed order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) owner: OwnerRecord,
    pub(super) pending: Vec<LoadedTimer>,
    pub(super) parked: Vec<Record>,
    pub(super) taken: Vec<Unconfirmed>,
    pub(super) dead: Vec<DeadLetter>,
    pub(super) census: Census,
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
    fn new(acquired: Acquired, kit: &Kit) -> Self {
        assert_eq!(acquired.lane.epoch(), acquired.epoch, "the lane has the epoch that was acquired");
        Self {
            store: kit.store(),
            lane: acquired.lane,
            partition: kit.partition,
            epoch: acquired.epoch,
            prior_claim: acquired.prior_claim,
            in_flight: acquired.in_flight,
            now: kit.now,
            far: kit.far,
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
        match self.one(Op::Schedule { timer: Arc::new(timer.clone()), policy }).await {
            Answer::Schedule(answer) => answer,
            other => panic!("a schedule was answered with {other:?}"),
        }
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
        in_flight: bool,
        request: RequestId,
    ) -> CancelAnswer {
        match self.one(Op::Cancel { target, in_flight, request }).await {
            Answer::Cancel(answer) => answer,
            other => panic!("a cancel was answered with {other:?}"),
        }
    }

    pub(super) async fn cancel(&self, id: TimerId) -> CancelAnswer {
        self.cancel_as(Target::Id(id), false, RequestId(unique())).await
    }

    pub(super) async fn cancel_in_flight(&self, id: TimerId) -> CancelAnswer {
        self.cancel_as(Target::Id(id), true, RequestId(unique())).await
    }

    pub(super) async fn cancel_key(&self, key: &Key) -> CancelAnswer {
        self.cancel_as(Target::Key(dest(), key.clone()), false, RequestId(unique())).await
    }

    pub(super) async fn reschedule_as(
        &self,
        target: Target,
        due: Time,
        in_flight: bool,
        request: RequestId,
    ) -> RescheduleAnswer {
        match self.one(Op::Reschedule { target, due, in_flight, request }).await {
            Answer::Reschedule(answer) => answer,
            other => panic!("a reschedule was answered with {other:?}"),
        }
    }

    pub(super) async fn reschedule(&self, id: TimerId, due: Time) -> RescheduleAnswer {
        self.reschedule_as(Target::Id(id), due, false, RequestId(unique())).await
    }

    pub(super) async fn take(&self, id: TimerId) -> Answer {
        self.one(Op::Take { id }).await
    }

    pub(super) async fn park(&self, id: TimerId) -> Answer {
        self.one(Op::Park { id, failed: 0 }).await
    }

    pub(super) async fn unpark(&self, id: TimerId, fire: Time) -> Answer {
        self.one(Op::Unpark { id, fire }).await
    }

    pub(super) async fn replay(&self, id: TimerId, fire: Time) -> Answer {
        self.one(Op::Replay { id, fire }).await
    }

    pub(super) async fn purge(&self, id: TimerId) -> Answer {
        self.one(Op::Purge { id }).await
    }

    pub(super) async fn settle(&self, id: TimerId, verdict: Verdict) -> Answer {
        self.one(Op::Settle { id, verdict }).await
    }

    pub(super) async fn ack(&self, id: TimerId) -> Answer {
        self.settle(id, Verdict::Ack).await
    }

    pub(super) async fn retry(&self, id: TimerId, fire: Time, tier: u8, failed: u32) -> Answer {
        self.settle(id, Verdict::Retry { fire, tier, failed, error: "not yet".into() }).await
    }

    pub(super) async fn bury(&self, id: TimerId) -> Answer {
        self.settle(id, dead_verdict(1)).await
    }

    /// Schedules a timer and makes it a dead letter.
    pub(super) async fn add_dead(&self, timer: &Timer) {
        self.add(timer).await;
        assert_eq!(self.bury(timer.id).await, Answer::Done);
    }

    /// Schedules an at-most-once timer and takes it.
    pub(super) async fn add_taken(&self, timer: &Timer) {
        self.add(timer).await;
        assert_eq!(self.take(timer.id).await, Answer::Done);
    }

    /// Schedules an at-most-once timer, takes it and gives up on it.
    pub(super) async fn add_unconfirmed(&self, timer: &Timer) {
        self.add_taken(timer).await;
        assert_eq!(self.settle(timer.id, Verdict::Unconfirmed).await, Answer::Done);
    }

    /// Schedules a timer and parks it.
    pub(super) async fn add_parked(&self, timer: &Timer) {
        self.add(timer).await;
        assert_eq!(self.park(timer.id).await, Answer::Done);
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

    pub(super) async fn all_taken(&self, limit: u32) -> Vec<Unconfirmed> {
        pages(limit, |cursor| self.lane.taken(cursor, limit)).await
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
        let mut dead = self.all_dead().await;
        dead.sort_by_key(|d| (d.died, d.record.timer.id));
        // Residue is promised only for an empty partition.
        let census = Census { residue: 0, ..self.census().await };
        let owner = self.store.owner(self.partition).await.unwrap();
        State { owner, pending, parked, taken, dead, census }
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

/// Stored just now, and nothing was replaced.
pub(super) const NEW: ScheduleAnswer = ScheduleAnswer::Scheduled { new: true, replaced: None };
/// Stored before.
pub(super) const OLD: ScheduleAnswer = ScheduleAnswer::Scheduled { new: false, replaced: None };

pub(super) fn pending_at(fire: Time) -> Option<Place> {
    Some(Place::Pending { fire, tier: 0 })
}

pub(super) fn schedule_op(timer: &Timer) -> Op {
    Op::Schedule { timer: Arc::new(timer.clone()), policy: KeyPolicy::Create }
}

pub(super) fn dead_verdict(failed: u32) -> Verdict {
    Verdict::Dead { reason: DeadReason::Failed, failed, error: "no such order".into() }
}

/// A test: takes the harness, panics if the store breaks the contract.
pub(super) type TestFn = for<'a> fn(&'a dyn Harness) -> BoxFuture<'a, ()>;

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
