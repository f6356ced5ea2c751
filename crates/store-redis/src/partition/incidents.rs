//! Log lines about events that mostly happen to many partitions at the same time: the first
//! partition has a line, and the others have one only with the level debug.

use std::sync::atomic::{AtomicU64, Ordering};

use mtimer_store::FirstLine;
use mtimer_types::{Epoch, PartitionId};
use tokio::time::Instant;

/// The events of one store.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    replays: FirstLine,
    losses: FirstLine,
    early_releases: FirstLine,
    lost_keys: FirstLine,
    /// Slots with timers that were found empty.
    lost_slots: AtomicU64,
}

/// Logs an event at a level if `line` is due, otherwise at the level debug.
macro_rules! log_first {
    ($line:expr, $level:ident, $($event:tt)*) => {
        if $line.is_due(Instant::now().into_std()) { tracing::$level!($($event)*) } else { tracing::debug!($($event)*) }
    };
}

impl Incidents {
    /// The store has lost writes, and has them again soon.
    pub(super) fn replay(&self, partition: PartitionId, records: usize) {
        log_first!(
            self.replays,
            warn,
            partition = partition.0,
            records,
            "the store lost writes; they are applied again, also those of other partitions"
        );
    }

    /// A partition is given up although replicas lack answered writes.
    pub(super) fn early_release(&self, partition: PartitionId) {
        log_first!(
            self.early_releases,
            warn,
            partition = partition.0,
            "the partition is given up before all replicas have what was answered: a failover now may lose it, also of \
             other partitions"
        );
    }

    /// The store has lost a key, even if its sequence number shows no loss: as when a node fails
    /// over while it takes over a hash slot.
    pub(super) fn lost_key(&self, partition: PartitionId, key: &str) {
        self.lost_slots.fetch_add(1, Ordering::Relaxed);
        log_first!(
            self.lost_keys,
            error,
            partition = partition.0,
            key,
            "a slot with timers is empty: the store lost keys, perhaps by a failover while a hash slot migrated; timers \
             that were answered are gone, perhaps also of other partitions"
        );
    }

    /// How many slots with timers the store has lost, as far as that was noticed.
    pub(super) fn lost_slots(&self) -> u64 {
        self.lost_slots.load(Ordering::Relaxed)
    }

    /// The store has lost writes that the log cannot restore. `stored` and `ours`: epochs and
    /// sequence numbers.
    pub(super) fn loss(&self, partition: PartitionId, stored: (Epoch, u64), ours: (Epoch, u64)) {
        log_first!(
            self.losses,
            error,
            partition = partition.0,
            stored_epoch = stored.0.0,
            stored_seq = stored.1,
            our_epoch = ours.0.0,
            our_seq = ours.1,
            "the store lost writes that the log does not have any more: schedules, cancels and settlements that were \
             answered since may be undone, perhaps also those of other partitions"
        );
    }
}
