//! Measures the CPU time that the owner of a partition spends on an operation.
//!
//! ```text
//! redis-server --port 7997 --save '' &
//! cargo run --release -p mtimer-store-redis --example turns -- redis://127.0.0.1:7997 [KIND [BATCH]]
//! ```
//!
//! One thread takes turns of BATCH (128) operations on eight partitions side by side, timers of 64
//! bytes. Printed: CPU time of this process for each operation, µs, the connection included; the
//! server's is not.

#![allow(clippy::unwrap_used, reason = "a failure ends the measurement")]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use mtimer_store::conformance::mix;
use mtimer_store::ops::{Cancel, Schedule, Settle, SettleAnswer};
use mtimer_store::{Acquire, Answer, Batch, Lane, Op, RequestId, Store, Verdict};
use mtimer_store_redis::{RedisOptions, RedisStore};
use mtimer_types::{
    Destination, Key, KeyPolicy, Mode, Nonce, PartitionId, Target, Term, Time, Timer, TimerId,
};

const PARTITIONS: u16 = 8;
const TIMERS: usize = 7_680;

struct Bench {
    lanes: Vec<Arc<dyn Lane>>,
    now: Time,
    next: u64,
    batch: usize,
}

impl Bench {
    fn random(&mut self) -> u64 {
        self.next += 1;
        mix(self.next)
    }

    /// Timers of every partition, due within an hour from two minutes on.
    fn timers(&mut self, keyed: bool, mode: Mode) -> Vec<Vec<Arc<Timer>>> {
        let dest = Destination::new("orders", "billing").unwrap();
        let mut timer = |partition| {
            let random = self.random();
            let due = self.now + 120_000 + random % 3_600_000;
            let id = TimerId::new(due, self.now, PartitionId(partition), random);
            let cohort = (self.next / 128 % 64) as u8;
            let key = keyed.then(|| Key::new(&format!("order-{random}")).unwrap());
            Arc::new(Timer {
                key,
                mode,
                payload: vec![7; 64].into(),
                ..Timer::new(id.with_cohort(cohort), dest.clone(), due)
            })
        };
        (0..PARTITIONS).map(|p| (0..TIMERS).map(|_| timer(p)).collect()).collect()
    }

    async fn measure(&mut self, name: &str, timers: &[Vec<Arc<Timer>>], op: impl Fn(&Arc<Timer>) -> Op) {
        let ops: Vec<Vec<Vec<Op>>> = timers
            .iter()
            .map(|t| t.chunks(self.batch).map(|some| some.iter().map(&op).collect()).collect())
            .collect();
        let count = timers.iter().map(Vec::len).sum::<usize>();
        let before = cpu_us();
        let now = self.now;
        let took = self.lanes.iter().zip(ops).map(|(lane, batches)| async move {
            let mut bad = 0;
            for ops in batches {
                let answers = lane.apply(Batch { now, claim: None, ops }).await.unwrap();
                bad += answers
                    .iter()
                    .filter(|a| matches!(a, Answer::Refused(_) | Answer::Settle(SettleAnswer::Gone)))
                    .count();
            }
            bad
        });
        let bad: usize = join_all(took).await.into_iter().sum();
        println!(
            "{name:24} {:6.2} µs{}",
            (cpu_us() - before) / count as f64,
            if bad > 0 { " BAD" } else { "" }
        );
    }
}

fn cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3
}

fn schedule(timer: &Arc<Timer>) -> Op {
    Op::Schedule(Schedule::new(timer.clone(), KeyPolicy::Create))
}

fn ack(timer: &Arc<Timer>) -> Op {
    Op::Settle(Settle { id: timer.id, verdict: Verdict::Ack, timer: Some(timer.clone()), attempt: None })
}

fn request(timer: &Timer) -> RequestId {
    RequestId(u64::from_le_bytes(timer.id.to_bytes()[8..].try_into().unwrap()))
}

fn cancel(target: Target, timer: &Timer) -> Op {
    Op::Cancel(Cancel { target, sent_attempt: None, request: request(timer) })
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:7997".into());
    let only = std::env::args().nth(2).unwrap_or_default();
    let batch = std::env::args().nth(3).map_or(128, |n| n.parse().unwrap());
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let options =
        RedisOptions { partitions: Some(PARTITIONS), ..RedisOptions::new([url], format!("turns{ms}")) };
    let store = RedisStore::connect(options).await.unwrap();
    let mut lanes = Vec::new();
    for p in 0..PARTITIONS {
        let acquire = Acquire {
            partition: PartitionId(p),
            expected: store.owner(PartitionId(p)).await.unwrap().epoch,
            floor: mtimer_types::Epoch(0),
            nonce: Nonce(u64::from(p)),
            term: Term(1),
            version: 1,
        };
        lanes.push(store.acquire(acquire).await.unwrap().lane);
    }
    let mut bench = Bench { lanes, now: Time::from_ms(ms + 100_000), next: ms, batch };
    let by_key = |t: &Arc<Timer>| cancel(Target::Key(t.dest.clone(), t.key.clone().unwrap()), t);
    if ["", "all"].contains(&&*only) || only == "plain" {
        let timers = bench.timers(false, Mode::AtLeastOnce);
        bench.measure("schedule", &timers, schedule).await;
        bench.measure("ack", &timers, ack).await;
    }
    if ["", "all"].contains(&&*only) || only == "keyed" {
        let timers = bench.timers(true, Mode::AtLeastOnce);
        bench.measure("keyed schedule", &timers, schedule).await;
        bench.measure("keyed ack", &timers, ack).await;
    }
    if ["", "all"].contains(&&*only) || only == "cancel" {
        let timers = bench.timers(false, Mode::AtLeastOnce);
        bench.measure("schedule", &timers, schedule).await;
        bench.measure("cancel by id", &timers, |t| cancel(Target::Id(t.id), t)).await;
        let timers = bench.timers(true, Mode::AtLeastOnce);
        bench.measure("keyed schedule", &timers, schedule).await;
        bench.measure("cancel by key", &timers, by_key).await;
    }
    if ["", "all"].contains(&&*only) || only == "once" {
        let timers = bench.timers(false, Mode::AtMostOnce);
        bench.measure("schedule", &timers, schedule).await;
        bench.measure("take", &timers, |t| Op::take(t.id, 0)).await;
        bench.measure("ack of taken", &timers, ack).await;
    }
}
