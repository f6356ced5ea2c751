//! The files of a data directory, in memory: taken from a directory, changed, and opened again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mtimer_store::conformance::SeededRandom;
use mtimer_store::ops::Schedule;
use mtimer_store::{Acquire, Answer, Batch, Lane, Op, ScheduleAnswer, Store};
use mtimer_store_embedded::{EmbeddedDurability, EmbeddedOptions, EmbeddedStore};
use mtimer_types::{Destination, KeyPolicy, Nonce, PartitionId, Target, Time, Timer, TimerId};

/// The partition that every test uses.
pub(crate) const P: PartitionId = PartitionId(1);
/// Zeros behind a journal's last batch in an image. The engine allocates 64 MiB at once; what
/// matters is that there are some.
const ALLOCATED: u64 = 8_192;

/// A directory in memory if there is one: thousands of them are made.
pub(crate) fn scratch() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if shared.is_dir() { builder.tempdir_in(shared).unwrap() } else { builder.tempdir().unwrap() }
}

pub(crate) fn timer(n: u64, bytes: usize) -> Timer {
    let due = Time::from_ms(2_000_000_000_000 + n);
    let mut random = SeededRandom::new(n);
    let dest = Destination::new("orders", "billing").unwrap();
    let payload = (0..bytes).map(|_| random.next_u64() as u8).collect::<Vec<_>>().into();
    Timer { payload, ..Timer::new(TimerId::new(due, Time::ZERO, P, n), dest, due) }
}

/// A batch of new timers of so many bytes each.
pub(crate) fn batch(timers: impl IntoIterator<Item = u64>, bytes: usize) -> Batch {
    let op = |n| Op::Schedule(Schedule::new(Arc::new(timer(n, bytes)), KeyPolicy::Create));
    let ops = timers.into_iter().map(op).collect();
    Batch { now: Time::from_ms(1_900_000_000_000), claim: None, ops }
}

pub(crate) fn open(path: &Path, durability: EmbeddedDurability) -> Result<EmbeddedStore, String> {
    let options = EmbeddedOptions {
        durability,
        space: mtimer_store_embedded::SpaceLimits { watermark: 0, reserve: 0 },
        ..EmbeddedOptions::new(path, 4)
    };
    catch_unwind(AssertUnwindSafe(|| EmbeddedStore::open(options)))
        .unwrap_or_else(|_| panic!("opening panics"))
        .map_err(|error| error.to_string())
}

pub(crate) async fn acquire(store: &EmbeddedStore) -> Arc<dyn Lane> {
    let owner = store.owner(P).await.unwrap();
    let request = Acquire {
        partition: P,
        expected: owner.epoch,
        floor: owner.epoch,
        nonce: Nonce(owner.epoch.0 + 1),
        term: owner.term,
        version: owner.version + 1,
    };
    store.acquire(request).await.unwrap_or_else(|error| panic!("{error}")).lane
}

/// Applies a batch of new timers and waits for the answer.
pub(crate) async fn schedule(lane: &Arc<dyn Lane>, timers: std::ops::Range<u64>, bytes: usize) {
    let new = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
    let answers = lane.apply(batch(timers.clone(), bytes)).await.unwrap();
    assert_eq!(answers, vec![new; timers.count()]);
}

/// What became of an image.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It opened, and these timers are in it.
    Opened(BTreeSet<u64>),
    /// It was refused, with this message.
    Refused(String),
}

/// The files of a data directory. Zeros at the end of journals are left out.
#[derive(Clone)]
pub(crate) struct Image(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

impl Image {
    pub(crate) fn of(dir: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut folders = vec![dir.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir().unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                // A background thread may have removed it.
                let Ok(bytes) = read(&path) else { continue };
                files.insert(path.strip_prefix(dir).unwrap().to_owned(), bytes);
            }
        }
        Self(files)
    }

    pub(crate) fn write(&self, dir: &Path) {
        for (name, bytes) in &self.0 {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            if is_journal(&path) {
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(bytes.len() as u64 + ALLOCATED).unwrap();
            }
        }
    }

    /// The journal that is being written.
    pub(crate) fn journal(&self) -> &PathBuf {
        self.0.keys().filter(|path| is_journal(path)).max_by_key(|path| path.as_os_str().len()).unwrap()
    }

    /// The image with another content of one file.
    pub(crate) fn with(&self, file: &Path, bytes: Vec<u8>) -> Self {
        let mut image = self.clone();
        image.0.insert(file.to_owned(), bytes);
        image
    }

    /// Opens it, and looks which of the timers are there.
    pub(crate) async fn outcome(&self, timers: u64, bytes: usize) -> Outcome {
        let dir = scratch();
        self.write(dir.path());
        let outcome = look(dir.path(), timers, bytes).await;
        // What was discarded stays discarded.
        if let Outcome::Opened(first) = &outcome {
            let Outcome::Opened(second) = look(dir.path(), timers, bytes).await else {
                panic!("it opens once and not twice");
            };
            assert_eq!(*first, second);
        }
        outcome
    }
}

/// A file's bytes; a journal's without the zeros that are allocated behind them.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if !is_journal(path) {
        return std::fs::read(path);
    }
    let file = std::fs::File::open(path)?;
    let written = file.metadata()?.blocks() * 512;
    let mut bytes = Vec::new();
    file.take(written).read_to_end(&mut bytes)?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(used);
    Ok(bytes)
}

/// Opens a directory, and looks which of the timers are there.
pub(crate) async fn look(dir: &Path, timers: u64, bytes: usize) -> Outcome {
    let store = match open(dir, EmbeddedDurability::Sync) {
        Ok(store) => store,
        Err(message) => return Outcome::Refused(message),
    };
    let lane = acquire(&store).await;
    let mut found = BTreeSet::new();
    for n in 0..timers {
        let expected = timer(n, bytes);
        if let Some((record, _)) = lane.get(Target::Id(expected.id)).await.unwrap() {
            assert_eq!(record.timer.payload, expected.payload, "timer {n}");
            found.insert(n);
        }
    }
    // Whole operations: what is counted is what is there.
    assert_eq!(lane.census().await.unwrap().pending, found.len() as u64);
    store.close().await;
    Outcome::Opened(found)
}

pub(crate) fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jnl")
}
