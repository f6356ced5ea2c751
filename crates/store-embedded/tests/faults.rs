//! What happens to a data directory: the process is killed, the disk fails, files are damaged.
//! Nothing that was answered is lost, nothing panics, every error says what to do.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use mtimer_store::ops::Schedule;
use mtimer_store::{
    Acquire, Acquired, Answer, Batch, Health, Lane, LaneError, Op, ScheduleAnswer, Store, StoreError,
};
use mtimer_store_embedded::{EmbeddedDurability, EmbeddedOptions, EmbeddedStore, OpenError, SpaceLimits};
use mtimer_types::{Destination, KeyPolicy, Nonce, PartitionId, Target, Time, Timer, TimerId};

const P: PartitionId = PartitionId(1);
const DIRECTORY: &str = "MTIMER_TEST_DIRECTORY";
const LEVEL: &str = "MTIMER_TEST_LEVEL";
/// How full the disk of the machine is does not matter.
const ANY_SPACE: SpaceLimits = SpaceLimits { watermark: 0, reserve: 0 };
/// Timers of a directory that was used a little.
const USED: u64 = 10;

fn timer(n: u64) -> Timer {
    let due = Time::from_ms(2_000_000_000_000);
    Timer {
        payload: vec![n as u8; 1_000].into(),
        ..Timer::new(TimerId::new(due, Time::ZERO, P, n), Destination::new("orders", "billing").unwrap(), due)
    }
}

fn schedule(n: u64) -> Batch {
    let ops = vec![Op::Schedule(Schedule::new(Arc::new(timer(n)), KeyPolicy::Create))];
    Batch { now: Time::from_ms(1_900_000_000_000), claim: None, ops }
}

fn options(path: &Path, level: &str) -> EmbeddedOptions {
    let durability = if level == "fast" { EmbeddedDurability::fast() } else { EmbeddedDurability::Sync };
    EmbeddedOptions { durability, space: ANY_SPACE, ..EmbeddedOptions::new(path, 4) }
}

async fn acquire(store: &EmbeddedStore, nonce: u64) -> Acquired {
    let owner = store.owner(P).await.unwrap();
    let request = Acquire {
        partition: P,
        expected: owner.epoch,
        floor: owner.epoch,
        nonce: Nonce(nonce),
        term: owner.term,
        version: owner.version + 1,
    };
    store.acquire(request).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Not a test of its own: the process that the tests below disturb. Schedules timers until it
/// cannot, and says of each that it was answered.
#[tokio::test]
async fn child() {
    let Ok(path) = std::env::var(DIRECTORY) else { return };
    let level = std::env::var(LEVEL).unwrap();
    let store = match EmbeddedStore::open(options(Path::new(&path), &level)) {
        Ok(store) => store,
        Err(error) => return println!("\nended {error}"),
    };
    let lane = acquire(&store, 1).await.lane;
    for n in 0.. {
        match lane.apply(schedule(n)).await {
            Ok(answers) => {
                let new = ScheduleAnswer::Scheduled { new: true, replaced: None };
                assert_eq!(answers, [Answer::Schedule(new)]);
                println!("\nanswered {n}");
            }
            Err(error) => {
                assert_eq!(lane.apply(schedule(n)).await, Err(error.clone()), "it has ended for good");
                assert_eq!(*lane.health().borrow(), Health::Ended(error.clone()));
                assert!(matches!(store.owner(P).await, Err(StoreError::Unusable(_))));
                println!("\nended {error}");
                return;
            }
        }
    }
}

/// The child process, killed when the test is over.
struct Disturbed {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    answered: u64,
}

impl Disturbed {
    fn start(path: &Path, level: &str) -> Self {
        Self::run(path, level, r#"trap '' XFSZ; exec "$0" child --exact --nocapture"#)
    }

    /// No file may grow beyond so many bytes.
    fn full_at(path: &Path, level: &str, bytes: u64) -> Self {
        let limit = format!("exec prlimit --fsize={bytes}:{bytes}");
        Self::run(path, level, &format!(r#"trap '' XFSZ; {limit} "$0" child --exact --nocapture"#))
    }

    /// A write over the limit on file sizes is to fail, not to kill: the shell ignores the signal.
    fn run(path: &Path, level: &str, command: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .arg(std::env::current_exe().unwrap())
            .env(DIRECTORY, path)
            .env(LEVEL, level)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, answered: 0 }
    }

    /// Reads until so many timers were answered; what the child ended with, if it did.
    fn until(&mut self, answered: u64) -> Option<String> {
        while self.answered < answered {
            let line = self.lines.next().expect("the child goes on").unwrap();
            if let Some(error) = line.strip_prefix("ended ") {
                return Some(error.to_owned());
            }
            self.answered += u64::from(line.starts_with("answered "));
        }
        None
    }
}

impl Drop for Disturbed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything that was answered is there.
async fn check(path: &Path, answered: u64) {
    let store = EmbeddedStore::open(options(path, "sync")).unwrap();
    let lane = acquire(&store, 2).await.lane;
    for n in 0..answered {
        let found = lane.get(Target::Id(timer(n).id)).await.unwrap();
        assert_eq!(
            found.map(|(record, _)| record.timer.payload.clone()),
            Some(timer(n).payload),
            "timer {n}"
        );
    }
    let pending = lane.census().await.unwrap().pending;
    assert!(pending == answered || pending == answered + 1, "{pending} pending, {answered} answered");
    store.close().await;
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_was_answered() {
    for level in ["sync", "fast"] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Disturbed::start(dir.path(), level);
        assert_eq!(child.until(200), None);
        child.child.kill().unwrap();
        // What the child had said before it died was answered, too.
        while let Some(Ok(line)) = child.lines.next() {
            child.answered += u64::from(line.starts_with("answered "));
        }
        child.child.wait().unwrap();
        check(dir.path(), child.answered).await;
    }
}

#[tokio::test]
async fn a_disk_that_fails_ends_the_lane_and_loses_nothing_that_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Disturbed::start(dir.path(), "sync");
    assert_eq!(child.until(200), None);
    // From now on no file may grow beyond 64 KiB, and the journal is longer than that already.
    let limited = Command::new("prlimit")
        .args(["--fsize=65536:65536", "--pid", &child.child.id().to_string()])
        .status()
        .expect("prlimit (util-linux) is installed");
    assert!(limited.success());
    let error = child.until(u64::MAX).unwrap();
    assert!(error.contains("the store cannot go on"), "{error}");
    assert!(error.contains("free space on its disk or replace it"), "{error}");
    child.child.wait().unwrap();
    check(dir.path(), child.answered).await;
}

#[tokio::test]
async fn a_disk_that_is_full_at_any_byte_of_a_write_loses_nothing_that_was_answered() {
    let rounds = if std::env::var_os("MTIMER_LONG").is_some() { 300 } else { 8 };
    let mut answered = 0;
    for round in 0..rounds {
        let dir = tempfile::tempdir().unwrap();
        // Opened once before, the journal has no space allocated ahead: it grows with each write.
        EmbeddedStore::open(options(dir.path(), "sync")).unwrap().close().await;
        drop(EmbeddedStore::open(options(dir.path(), "sync")).unwrap());
        // The full disk comes at another byte of a write each time: 191 goes through a batch's
        // parts.
        let level = if round % 4 == 3 { "fast" } else { "sync" };
        let mut child = Disturbed::full_at(dir.path(), level, 1_500 + round * 191);
        let error = child.until(u64::MAX).unwrap();
        assert!(error.contains("free space on its disk") || error.contains("write"), "{error}");
        child.child.wait().unwrap();
        check(dir.path(), child.answered).await;
        answered += child.answered;
    }
    println!("disk full: {rounds} places, {answered} timers answered before");
}

#[tokio::test]
async fn a_directory_of_an_older_format_is_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    used(dir.path()).await;
    let marker = dir.path().join("mtimer-store");
    let present = std::fs::read(&marker).unwrap();
    for format in [1, 2] {
        let older = format!("mtimer embedded store\nformat {format}\npartitions 4\n");
        std::fs::write(&marker, &older).unwrap();
        let text = refusal(dir.path()).to_string();
        assert!(text.contains(&format!("has format {format}, this version reads only format 13")), "{text}");
        assert!(text.contains("start with an empty directory"), "{text}");
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), older);
    }
    std::fs::write(&marker, present).unwrap();
    check(dir.path(), USED).await;
}

/// A data directory with a few timers, closed.
async fn used(dir: &Path) {
    let store = EmbeddedStore::open(options(dir, "sync")).unwrap();
    let lane = acquire(&store, 1).await.lane;
    for n in 0..USED {
        lane.apply(schedule(n)).await.unwrap();
    }
    store.close().await;
}

fn refusal(path: &Path) -> OpenError {
    EmbeddedStore::open(options(path, "sync")).err().expect("the damaged directory is refused")
}

#[tokio::test]
async fn damage_is_an_error_and_not_a_panic() {
    let spoil: [fn(&Path) -> PathBuf; 3] = [
        |db| db.join("version"),
        |db| db.join("keyspaces/1/current"),
        // Nothing of this name belongs there.
        |db| db.join("keyspaces/stray/file"),
    ];
    for spoilt in spoil {
        let dir = tempfile::tempdir().unwrap();
        used(dir.path()).await;
        let file = spoilt(&dir.path().join("db"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "garbage, garbage, garbage").unwrap();
        let text = refusal(dir.path()).to_string();
        assert!(text.contains("is damaged") && text.contains("restore it from a backup"), "{text}");
    }
}

#[tokio::test]
async fn a_directory_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(options(dir.path(), "sync")).unwrap();
    assert!(matches!(refusal(dir.path()), OpenError::Locked { .. }));
    store.close().await;
    assert!(matches!(store.owner(P).await, Err(StoreError::Unusable(why)) if why == "the store was closed"));
    EmbeddedStore::open(options(dir.path(), "sync")).unwrap();
}

#[tokio::test]
async fn lanes_of_a_closed_store_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(options(dir.path(), "sync")).unwrap();
    let lane: Arc<dyn Lane> = acquire(&store, 1).await.lane;
    let made_before = lane.apply(schedule(1));
    store.close().await;
    assert_eq!(made_before.await.map(|answers| answers.len()), Ok(1), "what was asked before is answered");
    let ended = LaneError::Broken("the store was closed".into());
    assert_eq!(lane.apply(schedule(2)).await, Err(ended.clone()));
    assert_eq!(*lane.health().borrow(), Health::Ended(ended));
}
