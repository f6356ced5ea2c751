//! Merges tables, and gives space back, in a thread of the store's own.
//!
//! Purpose: a merge begins only if there is space for it, and one that fails harms nothing. The
//! engine's own workers end the whole database when a merge fails, so they are told to merge
//! nothing ([`never`]): they only write memory tables to disk.
//!
//! Invariant: a merge stops before it has taken more space than memory tables and journals leave,
//! or half of the free space; the files that it has written are then removed.
//!
//! Not in here: how much space that is ([`crate::tree`]), which operations are refused.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fjall::compaction::Leveled;
use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use fjall::{AbstractTree, Database, Keyspace, LsmError, SeqNo, Slice};
use mtimer_types::PartitionId;

use crate::below_floor::{TableKeys, droppable, keys_below};
use crate::fault::Fault;
use crate::layout::Space;
use crate::space::free_bytes;

/// Bytes of a merged table. A merge of two neighbouring levels reads about eleven of them, so this
/// bounds the space that a merge takes.
pub(crate) const TABLE_BYTES: u64 = 4 * 1024 * 1024;
/// Tables of the newest level that begin a merge.
pub(crate) const NEWEST_TABLES: u8 = 4;
/// Bytes of the first merged level.
pub(crate) const BASE_BYTES: u64 = TABLE_BYTES * NEWEST_TABLES as u64;
/// How often is looked whether there is something to do.
const TICK: Duration = Duration::from_millis(250);
/// A memory table goes to disk when it is this old: until then its rows keep a journal, and the
/// rows that they delete stay in the tables.
const FLUSH_AFTER: Duration = Duration::from_secs(60);
/// The same while space is short.
const FLUSH_SOON: Duration = Duration::from_secs(3);
/// A merge that had too little space is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The same while the committer waits for it.
const RETRY_SOON: Duration = Duration::from_millis(500);
/// Bytes that a merge reads between two looks at the free space.
const LOOK_BYTES: usize = 1024 * 1024;
/// Smaller spaces are not worth being rewritten for their deleted rows.
const WORTH_BYTES: u64 = 1024 * 1024;
/// Most bytes that a rewriting of a whole space keeps: a few seconds' work, during which no other
/// merge of the space runs.
const REWRITE_BYTES: u64 = 512 * 1024 * 1024;

/// Tables that are dropped between two looks: each takes a write of the engine's list of tables,
/// and no memory table becomes a table meanwhile.
const DROPS_AT_ONCE: usize = 64;

/// A merge may take this part of the free space, however little there is.
const MERGE_SHARE: u64 = 2;

/// The engine's merging that never merges: it is stored with each space, and obeyed by its workers.
pub(crate) fn never() -> Leveled {
    Leveled::default().with_l0_threshold(u8::MAX).with_table_target_size(1 << 40)
}

fn leveled() -> Leveled {
    Leveled::default().with_l0_threshold(NEWEST_TABLES).with_table_target_size(TABLE_BYTES)
}

/// State that the compactor, its merges and the committer share.
#[derive(Debug)]
pub(crate) struct CompactorState {
    path: PathBuf,
    /// Free bytes that are for journals and memory tables.
    floor: AtomicU64,
    /// Free bytes that the merge under way leaves alone.
    merge_floor: AtomicU64,
    stop: AtomicBool,
    is_space_short: AtomicBool,
    /// The last merge was given up for want of space.
    is_blocked: AtomicBool,
    /// A whole space is being rewritten, and the committer waits for a merge.
    is_rewriting: AtomicBool,
    is_awaited: AtomicBool,
    fault: OnceLock<Fault>,
    /// For each partition: before this time, ms, nothing is pending, nor will be again unless the
    /// floor is lowered first; this is synced.
    floors: Mutex<BTreeMap<PartitionId, u64>>,
    /// Merges see no space.
    #[cfg(test)]
    has_no_space: AtomicBool,
}

impl CompactorState {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            floor: AtomicU64::new(0),
            merge_floor: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            is_space_short: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            is_rewriting: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            fault: OnceLock::new(),
            floors: Mutex::default(),
            #[cfg(test)]
            has_no_space: AtomicBool::new(false),
        })
    }

    /// Says how many free bytes are for others, and whether space is short.
    pub(crate) fn limit(&self, floor: u64, is_space_short: bool) {
        self.floor.store(floor, Ordering::Relaxed);
        self.is_space_short.store(is_space_short, Ordering::Relaxed);
    }

    /// Says before which time, ms, nothing is pending in a partition.
    pub(crate) fn set_floor(&self, partition: PartitionId, floor: u64) {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).insert(partition, floor);
    }

    fn floors(&self) -> BTreeMap<PartitionId, u64> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says whether the committer waits for a merge.
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.store(is_awaited, Ordering::Relaxed);
    }

    /// Whether the last merge was given up for want of space.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// The fault that has ended the compactor, if one has.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.get().cloned()
    }

    /// Makes a filter that ends a merge for which there is too little space.
    pub(crate) fn filters(self: &Arc<Self>) -> Arc<dyn Factory> {
        Arc::new(SpaceFilters(Arc::clone(self)))
    }

    /// Ends the compactor, and the merge under way.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Free bytes, if they can be seen.
    fn free(&self) -> Option<u64> {
        #[cfg(test)]
        if self.has_no_space.load(Ordering::Relaxed) {
            return Some(0);
        }
        free_bytes(&self.path)
    }

    /// Bytes that a merge may take; `None`: it cannot be seen. It may take a part of the free space
    /// that is meant for others: it gives it back, and without merges space never comes back.
    pub(crate) fn available(&self) -> Option<u64> {
        let free = self.free()?;
        Some(free.saturating_sub(self.floor.load(Ordering::Relaxed)).max(free / MERGE_SHARE))
    }

    fn check(&self) -> std::io::Result<()> {
        let is_rewriting = self.is_rewriting.load(Ordering::Relaxed);
        if self.is_stopped() || is_rewriting && self.is_awaited.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let floor = self.merge_floor.load(Ordering::Relaxed);
        if self.free().is_some_and(|free| free <= floor) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

struct SpaceFilters(Arc<CompactorState>);

impl Factory for SpaceFilters {
    fn name(&self) -> &str {
        "space"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(SpaceFilter { state: Arc::clone(&self.0), unlooked: LOOK_BYTES })
    }
}

/// Keeps every row, and looks at the free space now and then.
struct SpaceFilter {
    state: Arc<CompactorState>,
    unlooked: usize,
}

impl CompactionFilter for SpaceFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        self.unlooked += item.key().len() + item.value()?.len();
        if self.unlooked >= LOOK_BYTES {
            self.unlooked = 0;
            self.state.check()?;
        }
        Ok(Verdict::Keep)
    }
}

/// The thread. Dropping it stops it, and waits for that.
pub(crate) struct Compactor {
    state: Arc<CompactorState>,
    thread: Option<JoinHandle<()>>,
}

impl Compactor {
    pub(crate) fn start(
        state: Arc<CompactorState>,
        db: Database,
        spaces: Vec<Keyspace>,
    ) -> std::io::Result<Self> {
        let shared = Arc::clone(&state);
        let work = move || {
            let mut spaces: Vec<_> = spaces.into_iter().map(Upkeep::new).collect();
            // The engine panics on some kinds of damage.
            let ended = catch_unwind(AssertUnwindSafe(|| run(&shared, &db, &mut spaces)));
            if let Err(fault) = ended.unwrap_or(Err(Fault::Panicked)) {
                // Nobody else sets it.
                let _ = shared.fault.set(fault);
            }
        };
        let thread = std::thread::Builder::new().name("mtimer-compact".to_owned()).spawn(work)?;
        Ok(Self { state, thread: Some(thread) })
    }

    pub(crate) fn state(&self) -> &CompactorState {
        &self.state
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.state.stop();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

fn run(state: &CompactorState, db: &Database, spaces: &mut [Upkeep]) -> Result<(), Fault> {
    while !state.is_stopped() {
        let mut has_merged = false;
        for space in &mut *spaces {
            has_merged |= space.tend(state, db)?;
        }
        if let Some(pending) = spaces.get_mut(Space::Pending as usize) {
            pending.drop_below_floors(state)?;
        }
        if !has_merged {
            std::thread::park_timeout(TICK);
        }
    }
    Ok(())
}

fn lacks_space(error: &LsmError) -> bool {
    matches!(error, LsmError::Io(error) if error.kind() == std::io::ErrorKind::StorageFull)
}

/// State of one space between two looks.
struct Upkeep {
    space: Keyspace,
    /// The memory table that was seen last, and since when.
    memtable: u64,
    memtable_since: Instant,
    /// The tables that were looked at last and needed nothing, or had too little space for it; and
    /// when.
    settled: Option<(u64, Instant)>,
    /// When a merge had too little space last.
    paused: Option<Instant>,
    /// Deletions whose rows are gone: they were dropped with their tables.
    orphans: u64,
    /// The last merge was a rewriting that had too little space: an ordinary one is next.
    has_rewritten_in_vain: bool,
    /// The tables that were last searched for rows below the floors, and these floors.
    swept: Option<(u64, BTreeMap<PartitionId, u64>)>,
}

impl Upkeep {
    fn new(space: Keyspace) -> Self {
        let memtable = space.tree.active_memtable().id();
        let memtable_since = Instant::now();
        Self {
            space,
            memtable,
            memtable_since,
            settled: None,
            paused: None,
            orphans: 0,
            has_rewritten_in_vain: false,
            swept: None,
        }
    }

    /// Does the work that is due. Returns whether it may go on at once.
    fn tend(&mut self, state: &CompactorState, db: &Database) -> Result<bool, Fault> {
        let now = Instant::now();
        self.flush_if_due(state, now)?;
        self.drop_old_versions();
        let before = self.space.tree.current_version().id();
        let is_awaited = state.is_awaited.load(Ordering::Relaxed);
        let pause = if is_awaited { RETRY_SOON } else { RETRY_AFTER };
        let is_within = |since: Instant, time| now.saturating_duration_since(since) < time;
        let is_paused = self.paused.is_some_and(|since| is_within(since, pause));
        let is_settled = |(tables, since)| tables == before && is_within(since, RETRY_AFTER);
        if self.settled.is_some_and(is_settled) || is_paused || state.is_stopped() {
            return Ok(false);
        }
        match self.merge(state, db) {
            Ok(()) => {
                self.paused = None;
                state.is_blocked.store(false, Ordering::Relaxed);
                self.drop_old_versions();
                let has_merged = self.space.tree.current_version().id() != before;
                self.settled = (!has_merged).then_some((before, now));
                Ok(has_merged)
            }
            // The committer waits, or the store closes.
            Err(LsmError::Io(error)) if error.kind() == std::io::ErrorKind::Interrupted => Ok(true),
            Err(error) if lacks_space(&error) => {
                if !state.is_blocked.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        path = %state.path.display(),
                        "tables are not merged: the disk of the data directory has too little space for it"
                    );
                }
                self.paused = Some(now);
                Ok(false)
            }
            Err(error) => Err(fjall::Error::from(error).into()),
        }
    }

    /// Has the memory table written to disk if it is old.
    fn flush_if_due(&mut self, state: &CompactorState, now: Instant) -> Result<(), Fault> {
        let memtable = self.space.tree.active_memtable();
        if memtable.id() != self.memtable {
            (self.memtable, self.memtable_since) = (memtable.id(), now);
        }
        let is_short = state.is_space_short.load(Ordering::Relaxed);
        let after = if is_short { FLUSH_SOON } else { FLUSH_AFTER };
        let is_old = now.saturating_duration_since(self.memtable_since) >= after;
        // The engine ends the database if it has too little space for it.
        let fits = || free_bytes(&state.path).is_none_or(|free| free / 4 > memtable.size());
        if is_old && !memtable.is_empty() && self.space.sealed_memtable_count() == 0 && fits() {
            self.memtable_since = now;
            self.space.rotate_memtable()?;
        }
        Ok(())
    }

    /// Lets go of the files of tables that were merged. All readers read the newest version, or
    /// hold the tables that they read.
    fn drop_old_versions(&self) {
        if self.space.tree.version_free_list_len() > 0 {
            let dropped =
                self.space.tree.get_version_history_lock().maintenance(self.space.path(), SeqNo::MAX);
            if let Err(error) = dropped {
                tracing::debug!(%error, "cannot remove a file that is no longer needed");
            }
        }
    }

    /// Drops the tables of pending timers that hold nothing any more.
    fn drop_below_floors(&mut self, state: &CompactorState) -> Result<(), Fault> {
        // A floor is lowered before a row below it is written. While no memory table can become a
        // table, no such row is in any.
        let flush = self.space.tree.get_flush_lock();
        let look = (self.space.tree.current_version().id(), state.floors());
        if self.swept.as_ref() == Some(&look) || state.is_stopped() {
            return Ok(());
        }
        let version = self.space.tree.current_version();
        let levels = version.iter_levels().enumerate();
        let runs = levels.flat_map(|(level, runs)| runs.iter().map(move |run| (level, run)));
        let tables: Vec<_> = runs.flat_map(|(level, run)| run.iter().map(move |t| (level, t))).collect();
        let keys = tables.iter().map(|(level, table)| (*level, &table.metadata.key_range));
        let keys: Vec<_> =
            keys.map(|(level, range)| TableKeys { level, first: range.min(), last: range.max() }).collect();
        let has_rows = |number: usize, range: &TableKeys<'_>| {
            let within = Slice::from(range.first)..=Slice::from(range.last);
            // One that cannot be read may have some.
            tables.get(number).is_none_or(|(_, table)| table.range(within).next().is_some())
        };
        let (mut left, rows) = (DROPS_AT_ONCE, self.rows());
        for (partition, floor) in &look.1 {
            let (from, to) = keys_below(*partition, *floor);
            // Nothing else changes the tables meanwhile, and fewer older ones are no hindrance.
            for range in droppable(&keys, &from, &to, has_rows).take(left) {
                self.space.tree.drop_range(range.first..=range.last).map_err(fjall::Error::from)?;
                left -= 1;
            }
        }
        self.orphans += rows.saturating_sub(self.rows());
        self.swept = (left > 0).then_some(look);
        drop(flush);
        self.drop_old_versions();
        Ok(())
    }

    /// Merges once, if anything is to be merged.
    fn merge(&mut self, state: &CompactorState, db: &Database) -> Result<(), LsmError> {
        let first = self.space.tree.next_table_id();
        if let (Some(free), Some(available)) = (state.free(), state.available()) {
            state.merge_floor.store(free.saturating_sub(available), Ordering::Relaxed);
        }
        // All readers read the newest rows: older versions are not needed.
        let newest = db.visible_seqno();
        // The committer waits for a merge of the newest tables.
        let is_awaited = state.is_awaited.load(Ordering::Relaxed);
        let rewrites =
            !std::mem::take(&mut self.has_rewritten_in_vain) && !is_awaited && self.is_mostly_deleted(state);
        let tree = &self.space.tree;
        let result = if rewrites {
            state.is_rewriting.store(true, Ordering::Relaxed);
            let result = tree.major_compact(TABLE_BYTES, newest);
            state.is_rewriting.store(false, Ordering::Relaxed);
            self.has_rewritten_in_vain = result.as_ref().is_err_and(lacks_space);
            result
        } else {
            tree.compact(Arc::new(leveled()), newest)
        };
        if result.is_err() {
            self.remove_unfinished(first);
        }
        result
    }

    /// Whether half of the space's rows are deleted, or half of its entries are deletions of rows
    /// that are gone already, and the remaining rows fit beside them. Then rewriting the space
    /// costs no more than the deleted rows did.
    fn is_mostly_deleted(&mut self, state: &CompactorState) -> bool {
        let (deletions, bytes) = (self.space.tree.tombstone_count(), self.space.tree.disk_space());
        let rows = self.rows() + deletions;
        // Deletions leave when they are merged with the rows that they delete, orphans or not.
        self.orphans = self.orphans.min(deletions);
        let deleted = deletions - self.orphans;
        let is_worth = deleted * 3 >= rows || deletions * 2 >= rows;
        if bytes < WORTH_BYTES || deletions == 0 || !is_worth {
            return false;
        }
        let kept =
            u128::from(bytes) * u128::from(rows.saturating_sub(deletions + deleted)) / u128::from(rows);
        let kept = u64::try_from(kept).unwrap_or(u64::MAX);
        kept <= REWRITE_BYTES && state.available().is_some_and(|available| kept + BASE_BYTES <= available)
    }

    /// Rows in tables, deleted or not; deletions are none.
    fn rows(&self) -> u64 {
        let version = self.space.tree.current_version();
        version.iter_tables().map(|table| table.metadata.item_count - table.tombstone_count()).sum()
    }

    /// Removes the files of a failed merge. Only this thread merges, and no memory table is written
    /// meanwhile.
    fn remove_unfinished(&self, first: u64) {
        let _flush = self.space.tree.get_flush_lock();
        let listed: Vec<u64> =
            self.space.tree.current_version().iter_tables().map(|table| table.id()).collect();
        let Ok(entries) = self.space.path().join("tables").read_dir() else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let id = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
            if id.is_some_and(|id| id >= first && !listed.contains(&id))
                && let Err(error) = std::fs::remove_file(&path)
            {
                tracing::debug!(%error, path = %path.display(), "cannot remove an unfinished table");
            }
        }
    }
}

#[cfg(test)]
mod tests;
