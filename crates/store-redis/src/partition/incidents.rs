//! Lines of the log about what mostly happens to many partitions at the same time: the first
//! partition has a line, and the others have one only with the level debug.

use mtimer_store::FirstLine;
use mtimer_types::{Epoch, PartitionId};

/// The events of one store.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    replays: FirstLine,
    losses: FirstLine,
    early_releases: FirstLine,
}

impl Incidents {
    /// The store has lost writes, and has them again soon.
    pub(super) fn replay(&self, partition: PartitionId, records: usize) {
        let partition = partition.0;
        if self.replays.is_due() {
            tracing::warn!(
                partition,
                records,
                "the store lost writes; they are applied again, also those of other partitions"
            );
        } else {
            tracing::debug!(partition, records, "the store lost writes; they are applied again");
        }
    }

    /// A partition is given up although replicas lack what was answered.
    pub(super) fn early_release(&self, partition: PartitionId) {
        let partition = partition.0;
        if self.early_releases.is_due() {
            tracing::warn!(
                partition,
                "the partition is given up before all replicas have what was answered: a failover now may lose it, also \
                 of other partitions"
            );
        } else {
            tracing::debug!(
                partition,
                "the partition is given up before all replicas have what was answered"
            );
        }
    }

    /// The store has lost writes that the log cannot restore. `stored` and `ours`: epochs and
    /// sequence numbers.
    pub(super) fn loss(&self, partition: PartitionId, stored: (Epoch, u64), ours: (Epoch, u64)) {
        let (partition, is_first) = (partition.0, self.losses.is_due());
        let (stored_epoch, stored_seq, our_epoch, our_seq) = (stored.0.0, stored.1, ours.0.0, ours.1);
        if is_first {
            tracing::error!(
                partition,
                stored_epoch,
                stored_seq,
                our_epoch,
                our_seq,
                "the store lost writes that the log does not have any more: schedules, cancels and settlements that \
                 were answered since may be undone, perhaps also those of other partitions"
            );
        } else {
            tracing::debug!(
                partition,
                stored_epoch,
                stored_seq,
                our_epoch,
                our_seq,
                "the store lost writes of this partition, too"
            );
        }
    }
}
