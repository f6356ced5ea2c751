//! The storage engine, with an overlay of what is decided and not written yet.
//!
//! Purpose: reads that see what was put before, and writes that reach the journal together, as one.
//!
//! Invariant: the overlay holds whole operations whenever [`Tree::write`] is called, so the journal
//! holds whole operations too. Batches are numbered without gaps (see [`crate::group`]).
//!
//! Not in here: what keys and values mean.

use std::collections::HashMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, SeqNo, Slice};

use crate::check;
use crate::damage::Damage;
use crate::fault::Fault;
use crate::group::{self, Group, Watermark};
use crate::layout::Space;

/// Bytes in memory of a space of records, of any other, before they go to disk. Up to three tables
/// of each space are under way, and in memory they take about twice their bytes.
const RECORDS_BYTES: u64 = 8 * 1024 * 1024;
const ENTRIES_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes of journals before the oldest is made superfluous: what an unclean start reads at most.
const JOURNAL_BYTES: u64 = 64 * 1024 * 1024;
/// Memory tables of a space that wait for the disk when a write may begin. Two more can come to
/// wait while it is under way. At four the engine itself waits, without noticing when its
/// background threads have died of a full disk.
const MAX_SEALED: usize = 1;

pub(crate) struct Tree {
    // Spaces stand before the database, which waits for nobody else to use it when it is dropped.
    spaces: [Keyspace; Space::ALL.len()],
    db: Database,
    overlay: [HashMap<Slice, Option<Slice>>; Space::ALL.len()],
    overlaid: usize,
    /// Written and not synced. So may be what is found at opening: its writer may have been
    /// killed before it was.
    dirty: bool,
    /// The number of the last batch that was written.
    group: u64,
    /// The number of the last batch that is on disk.
    synced: u64,
    watermark: Option<Watermark>,
    path: PathBuf,
    /// The next sync fails.
    #[cfg(test)]
    pub(crate) fail_sync: bool,
}

impl Tree {
    pub(crate) fn open(path: &Path, cache_bytes: u64) -> fjall::Result<Self> {
        let db = Database::builder(path)
            .cache_size(cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(2)
            .open()?;
        let space = |space: Space| {
            let bytes = match space {
                Space::Pending | Space::Queues => RECORDS_BYTES,
                Space::Moved | Space::Keys | Space::Ended | Space::Facts => ENTRIES_BYTES,
            };
            db.keyspace(space.name(), || KeyspaceCreateOptions::default().max_memtable_size(bytes))
        };
        let [a, b, c, d, e, f] = Space::ALL;
        let spaces = [space(a)?, space(b)?, space(c)?, space(d)?, space(e)?, space(f)?];
        let header = spaces[Space::Facts as usize].get(group::KEY)?;
        let group = header.and_then(|value| Group::decode(&value)).map_or(0, |group| group.last);
        Ok(Self {
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
            path: path.to_owned(),
            #[cfg(test)]
            fail_sync: false,
        })
    }

    /// Records in a file what is synced, from now on.
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

    /// Hands the overlay to the operating system, as one.
    pub(crate) fn write(&mut self) -> Result<(), Fault> {
        if self.overlaid == 0 {
            return Ok(());
        }
        self.wait_for_background()?;
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
        Ok(())
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<(), Fault> {
        if self.dirty {
            #[cfg(test)]
            if std::mem::take(&mut self.fail_sync) {
                return Err(fjall::Error::Io(std::io::ErrorKind::Other.into()).into());
            }
            self.db.persist(PersistMode::SyncData)?;
            self.dirty = false;
            self.synced = self.group;
            if let Some(watermark) = &self.watermark {
                watermark.set(self.synced)?;
            }
        }
        Ok(())
    }

    /// Syncs what else says what is synced: when the store closes.
    pub(crate) fn sync_watermark(&self) -> Result<(), Fault> {
        Ok(self.watermark.as_ref().map_or(Ok(()), Watermark::sync)?)
    }

    /// Forgets what is not written: after a fault.
    pub(crate) fn abandon(&mut self) {
        self.overlay.iter_mut().for_each(HashMap::clear);
        self.overlaid = 0;
        self.dirty = false;
    }

    /// Rows between two keys in order. Sees what was written, not the overlay.
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

    fn wait_for_background(&self) -> Result<(), Fault> {
        while self.spaces.iter().any(|space| space.sealed_memtable_count() > MAX_SEALED) {
            // Says so if the background threads have failed.
            self.db.persist(PersistMode::Buffer)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
