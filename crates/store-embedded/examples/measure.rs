//! Measures the embedded store through its contract, from one owner's seat.
//!
//! ```text
//! cargo run --release -p mtimer-store-embedded --example measure -- [TIMERS] [BATCH] [sync|fast] [LANES]
//! ```
//!
//! Schedules so many timers with 100 bytes of payload each, LANES batches under way at a time,
//! loads them, acknowledges half and parks the rest, closes, and opens the directory again.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use mtimer_store::ops::{Park, Schedule, Unpark};
use mtimer_store::{Acquire, Batch, Lane, Load, Op, Store, Verdict};
use mtimer_store_embedded::{EmbeddedDurability, EmbeddedOptions, EmbeddedStore};
use mtimer_types::{Destination, KeyPolicy, Nonce, PartitionId, Time, Timer, TimerId};

const NOW: Time = Time::from_ms(1_900_000_000_000);

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |arg| arg.parse());
    let (timers, batch) = (number(0, 1_000_000)?, number(1, 200)?.max(1));
    let durability = match args.get(2).map(String::as_str) {
        Some("fast") => EmbeddedDurability::fast(),
        _ => EmbeddedDurability::Sync,
    };
    let lanes = u16::try_from(number(3, 8)?.max(1))?;
    let folder = tempfile::tempdir()?;
    let options = EmbeddedOptions { durability, ..EmbeddedOptions::new(folder.path(), lanes) };
    println!("{timers} timers of 100 bytes, batches of {batch}, {}, {lanes} lanes", durability.name());

    let store = EmbeddedStore::open(options.clone())?;
    let owners = acquire(&store, lanes).await?;
    let each = timers / u64::from(lanes);
    let run = |ops: fn(PartitionId, u64) -> Op| {
        let owners = &owners;
        async move {
            let lanes = owners.iter().zip(0..).map(|(lane, p)| drive(lane, PartitionId(p), each, batch, ops));
            join_all(lanes).await
        }
    };
    let at = Clock::start();
    run(|p, n| Op::Schedule(Schedule::new(Arc::new(timer(p, n)), KeyPolicy::Create))).await;
    report("schedule", each * u64::from(lanes), at);
    let at = Clock::start();
    let loaded: u64 = join_all(owners.iter().map(load_all)).await.into_iter().sum();
    report("load", loaded, at);
    let at = Clock::start();
    run(|p, n| match n % 2 {
        0 => Op::settle(timer(p, n).id, Verdict::Ack),
        _ => Op::Park(Park { id: timer(p, n).id, failed: 0 }),
    })
    .await;
    report("acknowledge or park", each * u64::from(lanes), at);
    let at = Clock::start();
    store.close().await;
    println!("close                {:>9.1} ms", at.ms());
    drop((owners, store));
    let at = Clock::start();
    let store = EmbeddedStore::open(options)?;
    println!("open                 {:>9.1} ms", at.ms());
    let owners = acquire(&store, lanes).await?;
    let at = Clock::start();
    let mut parked = 0;
    for lane in &owners {
        parked += lane.census().await?.parked;
    }
    println!("census               {:>9.1} ms, {parked} parked", at.ms());
    let at = Clock::start();
    let loaded: u64 = join_all(owners.iter().map(load_all)).await.into_iter().sum();
    println!("first load           {:>9.1} ms, {loaded} timers", at.ms());
    let at = Clock::start();
    let unparked: u64 = join_all(owners.iter().map(unpark_all)).await.into_iter().sum();
    report("list and unpark", unparked, at);
    println!("resident             {:>9} KiB", resident_kib().unwrap_or_default());
    store.close().await;
    Ok(())
}

fn timer(p: PartitionId, n: u64) -> Timer {
    // Due times in no order, as they come: spread over an hour by the golden ratio.
    let due = NOW + n.wrapping_mul(2_654_435_769) % 3_600_000;
    Timer {
        payload: vec![n as u8; 100].into(),
        ..Timer::new(
            TimerId::new(due, NOW, p, n),
            Destination::new("orders", "billing").unwrap_or_else(|error| unreachable!("{error}")),
            due,
        )
    }
}

async fn acquire(store: &EmbeddedStore, lanes: u16) -> Result<Vec<Arc<dyn Lane>>, Failure> {
    let mut owners = Vec::new();
    for partition in (0..lanes).map(PartitionId) {
        let owner = store.owner(partition).await?;
        let (expected, version) = (owner.epoch, owner.version + 1);
        let nonce = Nonce(version);
        let acquire = Acquire { partition, expected, floor: expected, nonce, term: owner.term, version };
        owners.push(store.acquire(acquire).await?.lane);
    }
    Ok(owners)
}

/// Applies one operation for each timer, batch after batch.
async fn drive(
    lane: &Arc<dyn Lane>,
    p: PartitionId,
    timers: u64,
    batch: u64,
    op: fn(PartitionId, u64) -> Op,
) {
    for start in (0..timers).step_by(batch as usize) {
        let ops = (start..timers.min(start + batch)).map(|n| op(p, n)).collect();
        if let Err(error) = lane.apply(Batch { now: NOW, claim: None, ops }).await {
            eprintln!("{error}");
            return;
        }
    }
}

async fn load_all(lane: &Arc<dyn Lane>) -> u64 {
    let load = Load { until: NOW + 3_600_000, max_timers: 4_096, max_bytes: usize::MAX, claim: None };
    let mut count = 0;
    loop {
        match lane.load(load).await {
            Ok(loaded) => {
                count += loaded.timers.len() as u64;
                if loaded.horizon >= load.until {
                    return count;
                }
            }
            Err(error) => {
                eprintln!("{error}");
                return count;
            }
        }
    }
}

/// As an owner does whose destination has come back: the longest parked first, until there are
/// none.
async fn unpark_all(lane: &Arc<dyn Lane>) -> u64 {
    let mut count = 0;
    loop {
        let page = lane.parked(timer(PartitionId(0), 0).dest, 0, 1_000).await;
        let rows = page.map(|page| page.rows).unwrap_or_default();
        let ops: Vec<Op> =
            rows.iter().map(|row| Op::Unpark(Unpark { id: row.timer.id, fire: NOW })).collect();
        count += ops.len() as u64;
        if ops.is_empty() {
            return count;
        }
        if let Err(error) = lane.apply(Batch { now: NOW, claim: None, ops }).await {
            eprintln!("{error}");
            return count;
        }
    }
}

/// Time by the wall, and of all processors: the second says more on a machine that does other work
/// too.
struct Clock {
    wall: Instant,
    cpu_s: f64,
}

impl Clock {
    fn start() -> Self {
        Self { wall: Instant::now(), cpu_s: cpu_seconds().unwrap_or_default() }
    }

    fn ms(&self) -> f64 {
        self.wall.elapsed().as_secs_f64() * 1e3
    }
}

fn report(what: &str, count: u64, since: Clock) {
    let seconds = since.ms() / 1e3;
    let cpu_us = (cpu_seconds().unwrap_or_default() - since.cpu_s) * 1e6 / count.max(1) as f64;
    let rate = count as f64 / seconds;
    println!("{what:<20} {rate:>9.0} /s ({count} in {seconds:.2} s), {cpu_us:.1} us of processor time each");
}

/// User and system time of this process on Linux, where a tick is 10 ms.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut ticks = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (ticks.next()?.parse().ok()?, ticks.next()?.parse().ok()?);
    Some((user + system) as f64 / 100.0)
}

fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().trim_end_matches(" kB").parse().ok()
}
