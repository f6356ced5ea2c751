//! An owner for the Redis-specific tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use mtimer_store::conformance::mix;
use mtimer_store::conformance::properties::TrialSource;
use mtimer_store::ops::Schedule;
use mtimer_store::{
    Acquire, AcquireError, Acquired, Answer, Batch, Lane, LaneError, LaneFuture, Load, LoadedTimer, Op,
    RequestId, Store, Verdict,
};
use mtimer_store_redis::{RedisOptions, RedisStore};
use mtimer_types::{Destination, Key, KeyPolicy, Nonce, PartitionId, Term, Time, Timer, TimerId};

pub const PARTITION: PartitionId = PartitionId(2);

pub fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    mix(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn now() -> Time {
    Time::from_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64)
}

pub fn dest() -> Destination {
    Destination::new("orders", "billing").unwrap()
}

pub fn timer(due: Time, payload: usize) -> Timer {
    Timer {
        payload: Bytes::from(vec![b'x'; payload]),
        ..Timer::new(TimerId::new(due, now(), PARTITION, unique()), dest(), due)
    }
}

pub fn keyed(due: Time, key: &str) -> Timer {
    Timer { key: Some(Key::new(key).unwrap()), ..timer(due, 10) }
}

pub fn schedule(timer: &Timer) -> Op {
    Op::Schedule(Schedule::new(Arc::new(timer.clone()), KeyPolicy::Create))
}

pub fn ack(id: TimerId) -> Op {
    Op::settle(id, Verdict::Ack)
}

/// What trials of operations take.
pub struct Stock;

impl TrialSource for Stock {
    fn now(&self) -> Time {
        now()
    }

    fn timer(&self, due: Time) -> Timer {
        timer(due, 5)
    }

    fn key(&self) -> Key {
        Key::new(&format!("trial-{}", unique())).unwrap()
    }

    fn request(&self) -> RequestId {
        RequestId(unique())
    }
}

pub struct Owner {
    pub store: Arc<RedisStore>,
    pub lane: Arc<dyn Lane>,
}

pub async fn connect(options: RedisOptions) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(options).await.expect("the store can be used"))
}

impl Owner {
    pub async fn new(url: &str) -> Self {
        Self::of(connect(RedisOptions::new([url], "t")).await).await
    }

    pub async fn of(store: Arc<RedisStore>) -> Self {
        let acquired = acquire(&*store).await;
        Self { store, lane: acquired.lane }
    }

    pub fn send(&self, ops: Vec<Op>) -> LaneFuture<Vec<Answer>> {
        self.lane.apply(Batch { now: now(), claim: None, ops })
    }

    pub async fn try_apply(&self, ops: Vec<Op>) -> Result<Vec<Answer>, LaneError> {
        self.send(ops).await
    }

    pub async fn apply(&self, ops: Vec<Op>) -> Vec<Answer> {
        self.try_apply(ops).await.expect("the lane is alive")
    }

    pub async fn one(&self, op: Op) -> Answer {
        self.apply(vec![op]).await.remove(0)
    }

    pub async fn claim(&self, until: Time) {
        self.lane
            .apply(Batch { now: now(), claim: Some(until), ops: vec![] })
            .await
            .expect("the lane is alive");
    }

    pub async fn load(&self, until: Time) -> Vec<LoadedTimer> {
        let mut all = Vec::new();
        loop {
            let load = Load { until, max_timers: 5_000, max_bytes: 16 << 20, claim: None };
            let loaded = self.lane.load(load).await.expect("the lane is alive");
            all.extend(loaded.timers);
            if loaded.horizon >= until {
                return all;
            }
        }
    }
}

pub async fn acquire(store: &dyn Store) -> Acquired {
    try_acquire(store).await.expect("the partition can be acquired")
}

pub async fn try_acquire(store: &dyn Store) -> Result<Acquired, AcquireError> {
    try_acquire_of(store, PARTITION).await
}

pub async fn try_acquire_of(store: &dyn Store, partition: PartitionId) -> Result<Acquired, AcquireError> {
    let stored = store.owner(partition).await.expect("the store can be reached");
    let (term, version) = (Term(stored.term.0.max(1)), stored.version + 1);
    let acquire = Acquire {
        partition,
        expected: stored.epoch,
        floor: stored.epoch,
        nonce: Nonce(unique()),
        term,
        version,
    };
    store.acquire(acquire).await
}
