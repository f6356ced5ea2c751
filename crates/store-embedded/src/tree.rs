//! The storage engine, with an overlay of rows that are decided and not written yet.
//!
//! Purpose: reads that see earlier puts, and writes that reach the journal together, as one.
//!
//! Invariant: the overlay holds whole operations whenever [`Tree::write`] is called, so the journal
//! holds whole operations too. Batches are numbered without gaps (see [`crate::group`]).
//!
//! Not in here: the meaning of keys and values.

use std::collections::HashMap;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, SeqNo, Slice};
use mtimer_types::PartitionId;

use crate::check;
use crate::compactor::{self, BASE_BYTES, Compactor, CompactorState, NEWEST_TABLES};
use crate::damage::Damage;
use crate::fault::Fault;
use crate::group::{self, Group, Watermark};
use crate::layout::Space;

/// Bytes in memory of a space of records, of any other, before they go to disk. Up to three tables
/// of each space are under way, and in memory they take about twice their bytes.
const RECORDS_BYTES: u64 = 8 * 1024 * 1024;
const ENTRIES_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes of journals before the oldest is made superfluous: the most that an unclean start reads.
const JOURNAL_BYTES: u64 = 64 * 1024 * 1024;
/// Memory tables of a space that wait for the disk when a write may begin. Two more can come to
/// wait while it is under way. At four the engine itself waits, without noticing when its
/// background threads have died of a full disk.
const MAX_SEALED: usize = 1;
/// Tables of the newest level that wait to be merged when a write may begin. At 30 the engine
/// itself waits.
const MAX_NEWEST: usize = 16;
/// A write begins only while the next merge needs at most one part in so many of the space that it
/// may take: the newest level grows before the merge comes to it.
const NEXT_MERGE_SHARE: u64 = 2;
/// A write that waits for merges goes on, or says that there is no space for them, when no table
/// has come or gone for so long.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// Most bytes of journals on disk: the one that is written, which is sealed at 64 MB, one that is
/// sealed and whose rows are being written to tables, and the writes meanwhile.
const JOURNALS_BYTES: u64 = 160 * 1024 * 1024;
/// Bytes that memory tables take as tables: those of all spaces, and half as much again that waits.
const MEMORY_BYTES: u64 = (2 * RECORDS_BYTES + 4 * ENTRIES_BYTES) * 3 / 2;

fn has_many_tables(space: &Keyspace) -> bool {
    space.tree.l0_run_count() > MAX_NEWEST
}

fn next_merge(space: &Keyspace) -> u64 {
    largest_merge(space.tree.current_version().iter_levels().map(|level| level.size()))
}

/// Bytes that the largest of the next merges reads, by the sizes of the levels: all of the newest
/// and the overlapping tables of the one below it, which is most, since the newest rows of all
/// partitions are in each table; or two lower levels, of the upper of which it may be all: a table
/// below that reaches from one partition into the next covers everything that the former has above.
/// If all lower levels are full, the newest goes to one of its own above them.
fn largest_merge(mut levels: impl Iterator<Item = u64>) -> u64 {
    let newest = levels.next().unwrap_or(0);
    let lower: Vec<u64> = levels.filter(|bytes| *bytes > 0).collect();
    let capacities = std::iter::successors(Some(BASE_BYTES), |bytes| bytes.checked_mul(10));
    let are_full = lower.iter().zip(capacities).all(|(bytes, capacity)| *bytes > capacity);
    let next = lower.first().filter(|_| !are_full).copied().unwrap_or(0);
    let lowest = lower.windows(2).map(|levels| levels[0] + BASE_BYTES).max().unwrap_or(0);
    newest + next.max(lowest)
}

pub(crate) struct Tree {
    // The compactor and the spaces stand before the database, which waits for nobody else to use it
    // when it is dropped.
    compactor: Compactor,
    spaces: [Keyspace; Space::ALL.len()],
    db: Database,
    overlay: [HashMap<Slice, Option<Slice>>; Space::ALL.len()],
    overlaid: usize,
    /// Written and not synced. Rows found at opening may be unsynced, too: their writer may have
    /// been killed before the sync.
    dirty: bool,
    /// The number of the last batch that was written.
    group: u64,
    /// The number of the last batch that is on disk.
    synced: u64,
    watermark: Option<Watermark>,
    /// The floors of pending timers that the compactor knows, by partition, ms.
    floors: Vec<u64>,
    /// A write has waited in vain for a merge that lacks space: no other one does, until one is
    /// made or there are too many tables.
    has_given_up: bool,
    path: PathBuf,
    /// The next sync fails.
    #[cfg(test)]
    pub(crate) fail_sync: bool,
}

impl Tree {
    pub(crate) fn open(path: &Path, cache_bytes: u64) -> fjall::Result<Self> {
        Self::open_with(CompactorState::new(path), path, cache_bytes)
    }

    /// Opens a database of which something may be damaged, to read its readable rows. Nothing is
    /// merged.
    pub(crate) fn open_damaged(path: &Path, cache_bytes: u64) -> fjall::Result<Self> {
        let state = CompactorState::new(path);
        state.stop();
        Self::open_with(state, path, cache_bytes)
    }

    fn open_with(state: Arc<CompactorState>, path: &Path, cache_bytes: u64) -> fjall::Result<Self> {
        let filters = Arc::clone(&state);
        let db = Database::builder(path)
            .cache_size(cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(2)
            .with_compaction_filter_factories(Arc::new(move |_| Some(filters.filters())))
            .open()?;
        let space = |space: Space| {
            let bytes = match space {
                Space::Pending | Space::Queues => RECORDS_BYTES,
                Space::Moved | Space::Keys | Space::Ended | Space::Facts => ENTRIES_BYTES,
            };
            let options = || {
                let merging = Arc::new(compactor::never());
                KeyspaceCreateOptions::default().max_memtable_size(bytes).compaction_strategy(merging)
            };
            db.keyspace(space.name(), options)
        };
        let [a, b, c, d, e, f] = Space::ALL;
        let spaces = [space(a)?, space(b)?, space(c)?, space(d)?, space(e)?, space(f)?];
        let header = spaces[Space::Facts as usize].get(group::KEY)?;
        let group = header.and_then(|value| Group::decode(&value)).map_or(0, |group| group.last);
        let compactor = Compactor::start(state, db.clone(), spaces.to_vec())?;
        Ok(Self {
            compactor,
            spaces,
            db,
            overlay: Default::default(),
            overlaid: 0,
            dirty: true,
            group,
            // The engine has synced the journal that it goes on with; it syncs one before it begins
            // the next.
            synced: group,
            watermark: None,
            floors: Vec::new(),
            has_given_up: false,
            path: path.to_owned(),
            #[cfg(test)]
            fail_sync: false,
        })
    }

    /// Records in a file, from now on, which batches are synced.
    pub(crate) fn keep_watermark(&mut self, watermark: Watermark) -> std::io::Result<()> {
        watermark.set(self.synced)?;
        self.watermark = Some(watermark);
        Ok(())
    }

    /// The number of the last batch.
    pub(crate) const fn group(&self) -> u64 {
        self.group
    }

    /// Numbers the next batches from behind this one, if it is ahead.
    pub(crate) fn raise_group(&mut self, last: u64) {
        self.group = self.group.max(last);
    }

    /// Looks for damage in all tables.
    pub(crate) fn find_damage(&self) -> Option<Damage> {
        check::check_tables(&self.path, false, u64::MAX).ok()?.into_iter().next()
    }

    pub(crate) fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let value = match self.overlay[space as usize].get(key) {
            Some(value) => value.clone(),
            None => self.spaces[space as usize].get(key)?,
        };
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    pub(crate) fn put(&mut self, space: Space, key: Slice, value: impl Into<Slice>) {
        self.overlaid += 1;
        self.overlay[space as usize].insert(key, Some(value.into()));
    }

    pub(crate) fn remove(&mut self, space: Space, key: Slice) {
        self.overlaid += 1;
        self.overlay[space as usize].insert(key, None);
    }

    /// Whether anything is to be synced.
    pub(crate) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Hands the overlay to the operating system, as one. Returns about how many bytes that was.
    pub(crate) fn write(&mut self) -> Result<u64, Fault> {
        if self.overlaid == 0 {
            return Ok(0);
        }
        self.wait_for_background()?;
        let mut bytes = 0;
        let mut batch = self.db.batch().durability(Some(PersistMode::Buffer));
        let number = self.group + 1;
        let (synced, seqno_floor) = (self.synced, self.db.seqno());
        let header = Group { last: number, first: number, synced, seqno_floor };
        // The first item: that is where a check of the journal looks for it.
        batch.insert(&self.spaces[Space::Facts as usize], group::KEY, header.encode());
        for (space, overlay) in self.spaces.iter().zip(&mut self.overlay) {
            let mut rows: Vec<_> = overlay.drain().collect();
            // Neighbours are quick to insert after each other.
            rows.sort_unstable_by(|(a, _), (b, _)| a[..].cmp(&b[..]));
            for (key, value) in rows {
                bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
                match value {
                    Some(value) => batch.insert(space, key, value),
                    None => batch.remove(space, key),
                }
            }
        }
        self.overlaid = 0;
        self.dirty = true;
        batch.commit()?;
        self.group = number;
        Ok(bytes as u64)
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<(), Fault> {
        if self.dirty {
            #[cfg(test)]
            if std::mem::take(&mut self.fail_sync) {
                return Err(fjall::Error::Io(std::io::ErrorKind::Other.into()).into());
            }
            self.db.persist(PersistMode::SyncData).map_err(|error| match error {
                // Unsynced data may look synced once the directory is opened again.
                fjall::Error::Io(error) => Fault::from(error),
                error => error.into(),
            })?;
            self.dirty = false;
            self.synced = self.group;
            if let Some(watermark) = &self.watermark {
                watermark.set(self.synced)?;
            }
        }
        Ok(())
    }

    /// Syncs the watermark's file: when the store closes.
    pub(crate) fn sync_watermark(&self) -> Result<(), Fault> {
        Ok(self.watermark.as_ref().map_or(Ok(()), Watermark::sync)?)
    }

    /// Forgets unwritten rows, after a fault.
    pub(crate) fn abandon(&mut self) {
        self.overlay.iter_mut().for_each(HashMap::clear);
        self.overlaid = 0;
        self.dirty = false;
    }

    /// Rows between two keys in order. Sees written rows, not the overlay.
    pub(crate) fn scan(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> impl Iterator<Item = Result<(Slice, Bytes), Fault>> + use<> {
        self.spaces[space as usize].range::<&[u8], _>((from, to)).map(|row| {
            let (key, value) = row.into_inner()?;
            Ok((key, Bytes::copy_from_slice(&value)))
        })
    }

    /// The engine's sequence number of a row's last write, if the row can be read.
    pub(crate) fn written_at(&self, space: Space, key: &[u8]) -> Option<u64> {
        let entry = self.spaces[space as usize].tree.get_internal_entry(key, SeqNo::MAX).ok()??;
        Some(entry.key.seqno)
    }

    /// Bytes of free space that the stored timers still need: the part that merges leave alone, and
    /// all.
    ///
    /// The journals grow to their limit, memory tables become tables, and the largest merge writes
    /// as much as it reads before it removes the tables that it has read.
    pub(crate) fn needed_space(&self) -> (u64, u64) {
        let journals = check::journals(&self.path).unwrap_or_default();
        let blocks = journals.iter().filter_map(|path| Some(path.metadata().ok()?.blocks() * 512));
        let floor = JOURNALS_BYTES.saturating_sub(blocks.sum()) + MEMORY_BYTES;
        (floor, floor + self.spaces.iter().map(next_merge).max().unwrap_or(0))
    }

    /// A row is going to be written that fires at this time, ms.
    pub(crate) fn lower_floor(&mut self, partition: PartitionId, fire: u64) {
        let known = self.floors.get_mut(usize::from(partition.0));
        if let Some(floor) = known.filter(|floor| fire < **floor) {
            *floor = fire;
            self.compactor.state().set_floor(partition, fire);
        }
    }

    /// Before this time, ms, nothing is pending in a partition, and that is synced.
    pub(crate) fn set_floor(&mut self, partition: PartitionId, floor: u64) {
        let at = usize::from(partition.0);
        self.floors.resize(self.floors.len().max(at + 1), 0);
        if let Some(known) = self.floors.get_mut(at).filter(|known| **known != floor) {
            *known = floor;
            self.compactor.state().set_floor(partition, floor);
        }
    }

    /// Tells the compactor how much space is for others, and whether it is short.
    pub(crate) fn limit_merges(&self, floor: u64, is_space_short: bool) {
        self.compactor.state().limit(floor, is_space_short);
    }

    /// Whether a write has to wait for the background threads.
    fn is_behind(&self) -> bool {
        let available = || self.compactor.state().available().unwrap_or(u64::MAX);
        // A merge begins by itself from so many tables on, so that waiting for one ends.
        let is_large = |space: &Keyspace| {
            space.tree.l0_run_count() > usize::from(NEWEST_TABLES)
                && next_merge(space) > available() / NEXT_MERGE_SHARE
        };
        self.spaces.iter().any(|space| {
            let waits = space.sealed_memtable_count() > MAX_SEALED || has_many_tables(space);
            waits || !self.has_given_up && is_large(space)
        })
    }

    fn table_count(&self) -> usize {
        self.spaces.iter().map(|space| space.tree.table_count()).sum()
    }

    fn wait_for_background(&mut self) -> Result<(), Fault> {
        let merging = self.compactor.state();
        let (mut since, mut tables) = (Instant::now(), self.table_count());
        self.has_given_up &= merging.is_blocked();
        while self.is_behind() {
            // Says so if the background threads have failed.
            self.db.persist(PersistMode::Buffer)?;
            merging.set_awaited(true);
            std::thread::sleep(Duration::from_millis(5));
            if let Some(fault) = merging.fault() {
                return Err(fault);
            }
            // Space comes back with tables that are merged, or hold nothing any more.
            let count = self.table_count();
            if count != tables {
                (since, tables) = (Instant::now(), count);
            }
            if merging.is_blocked() && since.elapsed() > GIVE_UP_AFTER {
                merging.set_awaited(false);
                if self.spaces.iter().any(has_many_tables) {
                    return Err(Fault::NoSpace("tables cannot be merged".into()));
                }
                self.has_given_up = true;
                break;
            }
        }
        merging.set_awaited(false);
        merging.fault().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn largest(levels: [u64; 7]) -> u64 {
        largest_merge(levels.into_iter().map(|mib| mib * MIB)) / MIB
    }

    #[test]
    fn the_largest_merge_follows_from_the_levels() {
        assert_eq!(largest([0; 7]), 0);
        assert_eq!(largest([40, 0, 0, 0, 0, 0, 10]), 50, "with all of a level that is not full");
        assert_eq!(largest([40, 0, 0, 0, 0, 0, 900]), 40, "to a level of its own above one that is");
        assert_eq!(largest([40, 0, 0, 0, 0, 84, 100]), 140, "the first is full, not the next");
        assert_eq!(largest([0, 0, 0, 0, 12, 150, 900]), 166, "all of a lower level, and a table below");
    }
}
