//! Free space on the disk of the data directory: when to warn, and when to refuse operations that
//! add.
//!
//! Invariant: the disk is asked [`LOOKS_PER_S`] times a second, and once more for every
//! [`LOOK_BYTES`] that are written.
//!
//! Not in here: the answer to a refused operation, the handling of writes that fail all the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mtimer_types::limits;

/// How often the disk is asked at most.
const LOOKS_PER_S: u32 = 5;
/// How long a reading counts while there is work: the reserve covers the writes meanwhile.
const LOOK: Duration = Duration::from_millis(1_000 / LOOKS_PER_S as u64);
/// Bytes that are written between two looks at most.
const LOOK_BYTES: u64 = 8 * 1024 * 1024;
/// How often the disk is asked while there is nothing to do, so that the metric and the log follow.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(1);
/// A level is left when there is an eighth more than it takes to enter it: less is noise.
const SLACK: u64 = 8;

/// The levels of free space at which the store warns and refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceLimits {
    /// Below it the store warns, bytes. 0: never.
    pub watermark: u64,
    /// Below it the store refuses operations that add, bytes. 0: never. Otherwise it also refuses
    /// them below the space that it needs for stored timers, which may be more.
    pub reserve: u64,
}

impl Default for SpaceLimits {
    fn default() -> Self {
        Self { watermark: limits::DISK_WATERMARK_BYTES, reserve: limits::DISK_RESERVE_BYTES }
    }
}

/// How much there is, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Level {
    #[default]
    Enough,
    /// Below the watermark.
    Low,
    /// Below the reserve.
    Full,
}

impl Level {
    /// The level that follows from `free` bytes after this one.
    fn next(self, limits: SpaceLimits, free: u64) -> Self {
        let below = |level: Self, limit: u64| {
            let slack = if self >= level { limit / SLACK } else { 0 };
            free < limit.saturating_add(slack)
        };
        match limits {
            SpaceLimits { reserve, .. } if below(Self::Full, reserve) => Self::Full,
            SpaceLimits { watermark, .. } if below(Self::Low, watermark) => Self::Low,
            _ => Self::Enough,
        }
    }
}

/// Looks at the disk now and then. Belongs to the committer.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    path: Arc<Path>,
    limits: SpaceLimits,
    level: Level,
    looked: Option<Instant>,
    /// Bytes written since.
    written: u64,
    /// Bytes that the store needs to go on with the stored timers.
    needed: u64,
    seen: Arc<Seen>,
}

/// The last reading, for the counters.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    free: AtomicU64,
    level: AtomicU64,
}

impl Seen {
    /// Free bytes when the disk was last asked.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// 0: there is enough. 1: it is below the watermark. 2: it is below the reserve.
    pub(crate) fn level(&self) -> u64 {
        self.level.load(Ordering::Relaxed)
    }
}

impl DiskSpace {
    pub(crate) fn new(path: PathBuf, limits: SpaceLimits) -> Self {
        let (level, looked, written, needed, seen) = Default::default();
        let mut this = Self { path: path.into(), limits, level, looked, written, needed, seen };
        this.look(0);
        this
    }

    pub(crate) fn seen(&self) -> Arc<Seen> {
        self.seen.clone()
    }

    /// The path and the free bytes, if there are too few to add anything.
    pub(crate) fn full(&self) -> Option<(&Arc<Path>, u64)> {
        (self.level == Level::Full).then(|| (&self.path, self.seen.free()))
    }

    /// Sets other limits and looks at once.
    pub(crate) fn limit(&mut self, limits: SpaceLimits) {
        self.limits = limits;
        self.look(self.needed);
    }

    /// Counts written bytes.
    pub(crate) const fn wrote(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Whether the last reading is outdated.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.written >= LOOK_BYTES
            || self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK)
    }

    /// Looks. `needed`: bytes that the store needs to go on with the stored timers.
    pub(crate) fn look(&mut self, needed: u64) {
        (self.looked, self.written, self.needed) = (Some(Instant::now()), 0, needed);
        // The last reading stays otherwise: a write that fails says more.
        if let Some(free) = free_bytes(&self.path) {
            self.saw(free);
        }
    }

    /// The path, the free bytes and those that are needed, if there are too few to write anything.
    pub(crate) fn lacks(&mut self) -> Option<(&Arc<Path>, u64, u64)> {
        self.look(self.needed);
        let (free, needed) = (self.seen.free(), self.needed.max(limits::MIN_DISK_RESERVE_BYTES));
        (free < needed).then_some((&self.path, free, needed))
    }

    /// The limits, the reserve raised to the space needed at present.
    fn effective(&self) -> SpaceLimits {
        let SpaceLimits { watermark, reserve } = self.limits;
        SpaceLimits { watermark, reserve: if reserve == 0 { 0 } else { reserve.max(self.needed) } }
    }

    fn saw(&mut self, free: u64) {
        self.seen.free.store(free, Ordering::Relaxed);
        let (before, level) = (self.level, self.level.next(self.effective(), free));
        self.level = level;
        self.seen.level.store(level as u64, Ordering::Relaxed);
        let SpaceLimits { watermark, reserve } = self.effective();
        let path = self.path.display();
        match level {
            _ if level == before => {}
            Level::Full => tracing::error!(
                %path, free, reserve,
                "the disk of the data directory is full but for the reserve: new timers are refused until there is \
                 more space"
            ),
            Level::Low if before == Level::Full => {
                tracing::warn!(%path, free, watermark, "new timers are taken again; free space stays low");
            }
            Level::Low => tracing::warn!(
                %path, free, watermark, reserve,
                "free space on the disk of the data directory is low: below the reserve new timers are refused"
            ),
            Level::Enough => {
                tracing::info!(%path, free, "there is enough free space for the data directory again");
            }
        }
    }
}

/// Free bytes on the disk of a path, if they can be seen.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    match rustix::fs::statvfs(path) {
        Ok(found) => Some(found.f_bavail.saturating_mul(found.f_frsize)),
        Err(error) => {
            tracing::debug!(%error, "cannot see how much space is free");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{Enough, Full, Low};
    use super::*;

    const LIMITS: SpaceLimits = SpaceLimits { watermark: 1_000, reserve: 100 };

    #[test]
    fn a_level_is_entered_below_its_limit_and_left_an_eighth_above() {
        let next = |level: Level, free| level.next(LIMITS, free);
        assert_eq!([1_000, 999, 100, 99, 0].map(|free| next(Enough, free)), [Enough, Low, Low, Full, Full]);
        assert_eq!([1_124, 1_125, 100, 99].map(|free| next(Low, free)), [Low, Enough, Low, Full]);
        assert_eq!([111, 112, 1_124, 1_125].map(|free| next(Full, free)), [Full, Low, Low, Enough]);
    }

    #[test]
    fn limits_of_0_are_none() {
        let none = SpaceLimits { watermark: 0, reserve: 0 };
        for level in [Enough, Low, Full] {
            assert_eq!(level.next(none, 0), Enough);
        }
        let all = SpaceLimits { watermark: u64::MAX, reserve: u64::MAX };
        assert_eq!(Full.next(all, u64::MAX - 1), Full);
    }

    #[test]
    fn what_was_seen_counts_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let mut space = DiskSpace::new(folder.path().to_owned(), LIMITS);
        assert!(space.full().is_none() && space.seen().free() > 0);
        space.saw(7);
        let looked = space.looked.unwrap();
        assert!(!space.is_due(looked + LOOK - Duration::from_millis(1)) && space.is_due(looked + LOOK));
        assert_eq!(space.full().map(|(path, free)| (&**path, free)), Some((folder.path(), 7)));
        space.look(0);
        assert!(space.full().is_none(), "it is seen that there is space again");
        space.wrote(LOOK_BYTES);
        assert!(space.is_due(space.looked.unwrap()), "much was written");
        space.limit(SpaceLimits { watermark: 0, reserve: u64::MAX });
        assert!(space.full().is_some(), "other limits count at once");
    }

    #[test]
    fn what_the_store_needs_is_part_of_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let mut space = DiskSpace::new(folder.path().to_owned(), LIMITS);
        space.look(u64::MAX / 2);
        assert!(space.full().is_some() && space.lacks().is_some());
        space.look(0);
        assert!(space.full().is_none() && space.lacks().is_none());
        space.limit(SpaceLimits { watermark: 0, reserve: 0 });
        space.look(u64::MAX / 2);
        assert!(space.full().is_none(), "no reserve, no limit");
    }
}
