//! The state that all views of an in-memory store share.

use std::sync::atomic::{AtomicU64, Ordering};

use mtimer_types::{PartitionId, Term};
use parking_lot::{Mutex, MutexGuard};

use super::lease::StoredLease;
use super::partition::{MemoryPartition, Reachability};
use crate::error::StoreError;

pub(super) struct MemoryState {
    pub(super) lease: Mutex<StoredLease>,
    pub(super) partitions: Vec<Mutex<MemoryPartition>>,
    pub(super) term: AtomicU64,
    /// The store's clock in ms; 0: it has none.
    pub(super) clock: AtomicU64,
    pub(super) lanes: AtomicU64,
    /// Calls that met a partition that was cut or down.
    pub(super) disturbed: AtomicU64,
}

impl MemoryState {
    pub(super) fn new(partitions: u16) -> Self {
        let partitions = (0..partitions).map(|p| Mutex::new(MemoryPartition::new(PartitionId(p)))).collect();
        let zero = || AtomicU64::new(0);
        let (term, clock, lanes, disturbed) = (zero(), zero(), zero(), zero());
        Self { lease: Mutex::default(), partitions, term, clock, lanes, disturbed }
    }

    /// Raises the term, above `seen` as well.
    pub(super) fn raise_term(&self, seen: Term) -> Term {
        self.term.fetch_max(seen.0, Ordering::SeqCst);
        Term(self.term.fetch_add(1, Ordering::SeqCst) + 1)
    }

    pub(super) fn partition(&self, id: PartitionId) -> Option<MutexGuard<'_, MemoryPartition>> {
        self.partitions.get(usize::from(id.0)).map(Mutex::lock)
    }

    pub(super) fn reachable(&self, id: PartitionId) -> Result<MutexGuard<'_, MemoryPartition>, StoreError> {
        let partition = self.partition(id).ok_or_else(|| {
            let count = self.partitions.len();
            StoreError::Unusable(format!("there is no partition {id}: the store has {count}, counted from 0"))
        })?;
        match &partition.link {
            Reachability::Up | Reachability::Held | Reachability::Cut => Ok(partition),
            Reachability::Down(why) => Err(self.unavailable(why)),
        }
    }

    /// The error of a call that met a disturbed partition.
    pub(super) fn unavailable(&self, why: &str) -> StoreError {
        self.disturbed.fetch_add(1, Ordering::SeqCst);
        StoreError::Unavailable(why.to_owned())
    }

    pub(super) fn lease(&self) -> MutexGuard<'_, StoredLease> {
        self.lease.lock()
    }
}
