//! A disk that is really full: a file system in memory of a given size, mounted for one process.
//!
//! Timers are added until the store refuses them for want of space. What it holds is then settled,
//! all of it, in the order of its due times; the space that it took comes back while the store
//! runs, all but that of its journals, and timers are taken again.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_store::conformance::SeededRandom;
use mtimer_store::ops::{MoveAnswer, Park, Schedule, SettleAnswer};
use mtimer_store::{Acquire, Answer, Batch, Lane, LaneError, Op, Refusal, Store, StoreError, Verdict};
use mtimer_store_embedded::{EmbeddedOptions, EmbeddedStore, SpaceLimits};
use mtimer_types::{Destination, KeyPolicy, Nonce, PartitionId, Target, Time, Timer, TimerId};

const MIB: u64 = 1024 * 1024;
const DISK: &str = "MTIMER_TEST_DISK";
const PAYLOAD: &str = "MTIMER_TEST_PAYLOAD";
/// What the store keeps of a disk that is too small for the default, as little as can be set.
const SMALL_RESERVE: u64 = mtimer_types::limits::MIN_DISK_RESERVE_BYTES;
const PARTITIONS: u16 = 4;
/// What journals may take at any time: docs/operations.md says so.
const JOURNALS: u64 = 160 * MIB;
/// What tables may keep that have rows which are still used, or are too small to be merged.
const TABLES: u64 = 4 * MIB;
/// What everything else may keep of a disk on which no timer is left: manifests, and what the file
/// system itself takes for files and folders.
const REST: u64 = 2 * MIB;
/// No step of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a test of this file in a process that has a file system of so many MiB for itself. Returns
/// what it printed; nothing if file systems cannot be mounted here.
fn on_disk(test: &str, mib: u64, payload: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mount = |then: &str| {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        let disk = folder.path().display();
        let text = format!("mount -t tmpfs -o size={mib}m none {disk} && {then}");
        command.args(["--mount", "sh", "-c", &text]);
        command
    };
    let tried = mount("true").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        let why = format!("{test} cannot run here: no file system can be mounted ({tried:?})");
        assert!(!std::env::var("MTIMER_NO_SKIP").is_ok_and(|value| value == "1"), "{why}");
        eprintln!("SKIPPED {why}");
        return String::new();
    }
    let ended = mount(r#"exec "$0" "$@""#)
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(DISK, folder.path())
        .env(PAYLOAD, payload.to_string())
        .output()
        .unwrap();
    let [out, err] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(ended.status.success(), "{test} with {mib} MiB and {payload} bytes: {out}\n{err}");
    out.lines().filter_map(|line| line.strip_prefix("seen: ")).collect::<Vec<_>>().join("; ")
}

/// The disk of a test that [`on_disk`] runs, and the bytes of a payload.
fn given() -> Option<(PathBuf, usize)> {
    let payload = std::env::var(PAYLOAD).ok()?;
    Some((PathBuf::from(std::env::var_os(DISK)?), payload.parse().unwrap()))
}

fn long() -> bool {
    std::env::var_os("MTIMER_LONG").is_some()
}

fn free(disk: &Path) -> u64 {
    let found = rustix::fs::statvfs(disk).unwrap();
    found.f_bavail * found.f_frsize
}

fn open(disk: &Path) -> EmbeddedStore {
    let found = rustix::fs::statvfs(disk).unwrap();
    let is_small = found.f_blocks * found.f_frsize < 512 * MIB;
    let reserve = if is_small { SMALL_RESERVE } else { SpaceLimits::default().reserve };
    let space = SpaceLimits { watermark: reserve, reserve };
    EmbeddedStore::open(EmbeddedOptions { space, ..EmbeddedOptions::new(disk.join("data"), PARTITIONS) })
        .unwrap_or_else(|error| panic!("{error}"))
}

async fn acquire(store: &EmbeddedStore, partition: u16) -> Result<Arc<dyn Lane>, StoreError> {
    let partition = PartitionId(partition);
    let owner = store.owner(partition).await?;
    let request = Acquire {
        partition,
        expected: owner.epoch,
        floor: owner.epoch,
        nonce: Nonce(owner.epoch.0 + 1),
        term: owner.term,
        version: owner.version + 1,
    };
    Ok(store.acquire(request).await.unwrap_or_else(|error| panic!("{error}")).lane)
}

async fn lanes(store: &EmbeddedStore) -> Vec<Arc<dyn Lane>> {
    let mut lanes = Vec::new();
    for partition in 0..PARTITIONS {
        lanes.push(acquire(store, partition).await.unwrap());
    }
    lanes
}

fn timer(n: u64, bytes: usize) -> Timer {
    let due = Time::from_ms(2_000_000_000_000 + n);
    let mut random = SeededRandom::new(n);
    let mut payload = Vec::with_capacity(bytes + 8);
    while payload.len() < bytes {
        payload.extend(random.next_u64().to_le_bytes());
    }
    payload.truncate(bytes);
    let id = TimerId::new(due, Time::ZERO, PartitionId((n % u64::from(PARTITIONS)) as u16), n);
    Timer { payload: payload.into(), ..Timer::new(id, Destination::new("orders", "billing").unwrap(), due) }
}

fn batch(ops: Vec<Op>) -> Batch {
    Batch { now: Time::from_ms(1_900_000_000_000), claim: None, ops }
}

/// Adds timers until they are refused. Returns the numbers of those that were taken.
async fn fill(lanes: &[Arc<dyn Lane>], from: u64, bytes: usize) -> Vec<u64> {
    let a_batch = (MIB as usize / bytes.max(1)).clamp(1, 512) as u64;
    let (mut taken, mut next) = (Vec::new(), from);
    loop {
        let mut calls = Vec::new();
        for (p, lane) in (0_u64..).zip(lanes) {
            let numbers: Vec<u64> = (0..a_batch).map(|n| next + n * lanes.len() as u64 + p).collect();
            let op = |n: &u64| Op::Schedule(Schedule::new(Arc::new(timer(*n, bytes)), KeyPolicy::Create));
            calls.push((lane.apply(batch(numbers.iter().map(op).collect())), numbers));
        }
        next += a_batch * lanes.len() as u64;
        let mut is_full = false;
        for (call, numbers) in calls {
            for (answer, n) in call.await.unwrap().into_iter().zip(numbers) {
                match answer {
                    Answer::Schedule(_) => taken.push(n),
                    Answer::Refused(Refusal::DiskFull { .. }) => is_full = true,
                    other => panic!("{other:?}"),
                }
            }
        }
        if is_full {
            taken.sort_unstable();
            return taken;
        }
    }
}

/// Settles timers in the order of their times, as deliveries would. Each has to be there, whole.
async fn settle(lanes: &[Arc<dyn Lane>], numbers: &[u64], bytes: usize) {
    for numbers in numbers.chunks(1_000) {
        let mut calls = Vec::new();
        for (p, lane) in (0_u64..).zip(lanes) {
            let ours: Vec<u64> = numbers.iter().copied().filter(|n| n % u64::from(PARTITIONS) == p).collect();
            if let Some(first) = ours.first() {
                let expected = timer(*first, bytes);
                let (record, _) = lane.get(Target::Id(expected.id)).await.unwrap().unwrap();
                assert_eq!(record.timer.payload, expected.payload);
            }
            let ops = ours.iter().map(|n| Op::settle(timer(*n, 0).id, Verdict::Ack)).collect();
            calls.push((lane.apply(batch(ops)), ours.len()));
        }
        for (call, count) in calls {
            assert_eq!(call.await.unwrap(), vec![Answer::Settle(SettleAnswer::Done); count]);
        }
    }
}

/// Parks timers in the order of their times, as an owner does while nobody takes them: each record
/// is written to another place.
async fn park(lanes: &[Arc<dyn Lane>], numbers: &[u64]) {
    for numbers in numbers.chunks(1_000) {
        let mut calls = Vec::new();
        for (p, lane) in (0_u64..).zip(lanes) {
            let ours = numbers.iter().filter(|n| **n % u64::from(PARTITIONS) == p);
            let ops: Vec<_> = ours.map(|n| Op::Park(Park { id: timer(*n, 0).id, failed: 0 })).collect();
            calls.push((ops.len(), lane.apply(batch(ops))));
        }
        for (count, call) in calls {
            assert_eq!(call.await.unwrap(), vec![Answer::Park(MoveAnswer::Done); count]);
        }
    }
}

/// Whether a timer is taken; then the next numbers follow it.
async fn takes(lanes: &[Arc<dyn Lane>], next: &mut u64, bytes: usize) -> bool {
    let timer = Arc::new(timer(*next, bytes));
    let lane = &lanes[0];
    let answers =
        lane.apply(batch(vec![Op::Schedule(Schedule::new(timer, KeyPolicy::Create))])).await.unwrap();
    let is_taken = matches!(answers[..], [Answer::Schedule(_)]);
    *next += if is_taken { u64::from(PARTITIONS) } else { 0 };
    is_taken
}

/// Bytes of all tables on the disk.
fn tables(disk: &Path) -> u64 {
    let spaces = disk.join("data/db/keyspaces").read_dir().unwrap().flatten();
    let tables = spaces.filter_map(|space| space.path().join("tables").read_dir().ok());
    tables.flatten().flatten().filter_map(|table| Some(table.metadata().ok()?.len())).sum()
}

/// Bytes that the journals take of the disk.
fn journals(disk: &Path) -> u64 {
    let files = disk.join("data/db").read_dir().unwrap().flatten().map(|file| file.path());
    let journals = files.filter(|path| path.extension().is_some_and(|kind| kind == "jnl"));
    journals.filter_map(|path| Some(path.metadata().ok()?.blocks() * 512)).sum()
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "in vain for {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn pending(lanes: &[Arc<dyn Lane>]) -> u64 {
    let mut pending = 0;
    for lane in lanes {
        pending += lane.census().await.unwrap().pending;
    }
    pending
}

/// Not a test of its own: what `a_full_disk_…` runs on its disk.
#[tokio::test]
async fn fills_and_drains() {
    let Some((disk, bytes)) = given() else { return };
    let store = open(&disk);
    let lanes = lanes(&store).await;
    // Free when there are no timers, and no journals.
    let empty = free(&disk) + journals(&disk);
    let mut next = 0;
    let mut held = Vec::new();
    for round in 0..if long() { 3 } else { 2 } {
        until("timers are taken", async || takes(&lanes, &mut next, bytes).await).await;
        let taken = fill(&lanes, next, bytes).await;
        let full = free(&disk);
        // Merges that are under way go on beside this.
        settle(&lanes, &[next - u64::from(PARTITIONS)], bytes).await;
        settle(&lanes, &taken, bytes).await;
        let drained = free(&disk);
        assert_eq!(pending(&lanes).await, 0);
        next += 100_000_000;
        until("tables go that hold nothing any more", async || tables(&disk) < TABLES).await;
        // What the file system says: a table that is removed, and still open, takes its space.
        let is_back = async || {
            let (kept, journals) = (empty.saturating_sub(free(&disk)), journals(&disk));
            journals <= JOURNALS && kept <= journals + TABLES + REST
        };
        until("the space of all timers is free again", is_back).await;
        println!(
            "seen: round {round}: {} taken, free {} MiB when full, {} drained, {} later, {} in journals, of {}",
            taken.len(),
            full / MIB,
            drained / MIB,
            free(&disk) / MIB,
            journals(&disk) / MIB,
            empty / MIB
        );
        held.push(taken.len());
    }
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(most / least < 8, "each round finds about as much space: {held:?}");
    store.close().await;
}

/// Not a test of its own: what `a_full_disk_parks_…` runs on its disk.
#[tokio::test]
async fn fills_and_parks() {
    let Some((disk, bytes)) = given() else { return };
    let store = open(&disk);
    let lanes = lanes(&store).await;
    let taken = fill(&lanes, 0, bytes).await;
    let full = free(&disk);
    park(&lanes, &taken).await;
    let parked = free(&disk);
    settle(&lanes, &taken, bytes).await;
    let mut next = 100_000_000;
    until("timers are taken again", async || takes(&lanes, &mut next, bytes).await).await;
    let count = taken.len();
    println!("seen: {count} taken, free {} MiB when full, {} when all are parked", full / MIB, parked / MIB);
    store.close().await;
}

#[test]
fn a_full_disk_parks_all_that_it_holds() {
    let sizes: &[(u64, usize)] = if long() {
        &[(288, 100), (288, 1_000), (700, 100), (700, 1_000), (700, 16_000), (2_048, 1_000), (2_048, 16_000)]
    } else {
        &[(288, 4_096)]
    };
    for (mib, payload) in sizes {
        let seen = on_disk("fills_and_parks", *mib, *payload);
        println!("{mib} MiB, {payload} bytes: {seen}");
    }
}

#[test]
fn a_full_disk_refuses_what_adds_settles_the_rest_and_takes_timers_again() {
    // From 512 MiB on with the default reserve, below it with the least, which is much faster.
    let sizes: &[(u64, usize)] = if long() {
        &[
            (256, 100),
            (256, 4_096),
            (256, 65_000),
            (700, 100),
            (700, 4_096),
            (700, 65_000),
            (2_048, 4_096),
            (2_048, 65_000),
        ]
    } else {
        &[(288, 4_096)]
    };
    for (mib, payload) in sizes {
        let seen = on_disk("fills_and_drains", *mib, *payload);
        println!("{mib} MiB, {payload} bytes: {seen}");
    }
}

/// Not a test of its own: what `a_small_disk_…` runs on its disk.
#[tokio::test]
async fn takes_nothing() {
    let Some((disk, bytes)) = given() else { return };
    let store = open(&disk);
    assert_eq!(fill(&lanes(&store).await, 0, bytes).await, []);
    store.close().await;
}

#[test]
fn a_disk_that_is_smaller_than_what_the_store_needs_takes_nothing() {
    for payload in [100, 65_000] {
        on_disk("takes_nothing", 64, payload);
    }
}

/// Not a test of its own: what `a_disk_that_somebody_else_fills_…` runs on its disk.
#[tokio::test]
async fn is_filled_by_somebody_else() {
    let Some((disk, bytes)) = given() else { return };
    let store = open(&disk);
    let mut ours = lanes(&store).await;
    let first: Vec<u64> = (0..64).collect();
    let add = |n: &u64| Op::Schedule(Schedule::new(Arc::new(timer(*n, bytes)), KeyPolicy::Create));
    for n in &first {
        let answers = ours[(n % u64::from(PARTITIONS)) as usize].apply(batch(vec![add(n)])).await.unwrap();
        assert!(matches!(answers[..], [Answer::Schedule(_)]), "{answers:?}");
    }
    let filler = disk.join("filler");
    // It ends with an error: the disk is full.
    let _ = std::fs::write(&filler, vec![1; (300 * MIB) as usize]);
    // Claims are written whatever the space, until they cannot be.
    let mut now = 1_900_000_000_000;
    let ended = loop {
        now += 1_000;
        let claim = Batch { now: Time::from_ms(now), claim: Some(Time::from_ms(now)), ops: Vec::new() };
        if let Err(error) = ours[0].apply(claim).await {
            break error;
        }
    };
    let LaneError::Broken(why) = ended else { panic!("{ended:?}") };
    assert!(why.contains("too little space") && why.contains("bytes are free at"), "{why}");
    let refused = store.owner(PartitionId(0)).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unavailable(why) if why.contains("goes on by itself")),
        "{refused}"
    );
    std::fs::remove_file(&filler).unwrap();
    until("the store goes on", async || store.owner(PartitionId(0)).await.is_ok()).await;
    ours = lanes(&store).await;
    assert_eq!(pending(&ours).await, first.len() as u64);
    settle(&ours, &first, bytes).await;
    assert_eq!(pending(&ours).await, 0);
    store.close().await;
}

#[test]
fn a_disk_that_somebody_else_fills_stops_the_store_until_there_is_space_again() {
    on_disk("is_filled_by_somebody_else", 288, 10_000);
}
