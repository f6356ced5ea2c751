//! The storage engine, with an overlay of what is decided and not written yet.
//!
//! Purpose: reads that see what was put before, and writes that reach the journal together, as one.
//!
//! Invariant: the overlay holds whole operations whenever [`Tree::write`] is called, so the journal holds whole
//! operations too.
//!
//! Not in here: what keys and values mean.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Slice};

use crate::fault::Fault;
use crate::layout::Space;

/// Bytes in memory of a space of records, of any other, before they go to disk. Up to three tables of each space are
/// under way, and in memory they take about twice their bytes.
const RECORDS_BYTES: u64 = 8 * 1024 * 1024;
const ENTRIES_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes of journals before the oldest is made superfluous: what an unclean start reads at most.
const JOURNAL_BYTES: u64 = 64 * 1024 * 1024;
/// Memory tables of a space that wait for the disk when a write may begin. Two more can come to wait while it is under
/// way. At four the engine itself waits, without noticing when its background threads have died of a full disk.
const MAX_SEALED: usize = 1;

pub(crate) struct Tree {
    // Spaces stand before the database, which waits for nobody else to use it when it is dropped.
    spaces: [Keyspace; Space::ALL.len()],
    db: Database,
    /// In the order of keys: neighbours are quick to insert after each other.
    overlay: [BTreeMap<Slice, Option<Slice>>; Space::ALL.len()],
    overlaid: usize,
    /// Written and not synced. So may be what is found at opening: whoever wrote it may have been killed before it was.
    dirty: bool,
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
                Space::Pending | Space::Shelf => RECORDS_BYTES,
                Space::Moved | Space::Keys | Space::Ended | Space::Facts => ENTRIES_BYTES,
            };
            db.keyspace(space.name(), || KeyspaceCreateOptions::default().max_memtable_size(bytes))
        };
        let [a, b, c, d, e, f] = Space::ALL;
        let spaces = [space(a)?, space(b)?, space(c)?, space(d)?, space(e)?, space(f)?];
        Ok(Self { spaces, db, overlay: Default::default(), overlaid: 0, dirty: true })
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
        for (space, overlay) in self.spaces.iter().zip(&mut self.overlay) {
            for (key, value) in std::mem::take(overlay) {
                match value {
                    Some(value) => batch.insert(space, key, value),
                    None => batch.remove(space, key),
                }
            }
        }
        self.overlaid = 0;
        self.dirty = true;
        Ok(batch.commit()?)
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<(), Fault> {
        if self.dirty {
            self.db.persist(PersistMode::SyncData)?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Forgets what is not written: after a fault.
    pub(crate) fn abandon(&mut self) {
        self.overlay.iter_mut().for_each(BTreeMap::clear);
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

    fn wait_for_background(&self) -> Result<(), Fault> {
        while self.spaces.iter().any(|space| space.sealed_memtable_count() > MAX_SEALED) {
            // Says so if the background threads have failed.
            self.db.persist(PersistMode::Buffer)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
