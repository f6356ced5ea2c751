//! Lines of the log about what mostly happens to many partitions at the same time: the first
//! partition has a line, and the others have one only with the level debug.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mtimer_types::{Epoch, PartitionId};
use tokio::time::Instant;

/// What happens to another partition within this time belongs to the same event.
const ONE_EVENT: Duration = Duration::from_secs(10);

/// The events of one store.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    replays: Event,
    losses: Event,
    early_releases: Event,
}

/// When the last line of this kind was logged.
#[derive(Debug, Default)]
struct Event(Mutex<Option<Instant>>);

impl Event {
    fn begins(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = last.is_none_or(|last| now.duration_since(last) >= ONE_EVENT);
        if begins {
            *last = Some(now);
        }
        begins
    }
}

impl Incidents {
    /// The store has lost writes, and has them again soon.
    pub(super) fn replay(&self, partition: PartitionId, records: usize) {
        let partition = partition.0;
        if self.replays.begins(Instant::now()) {
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
        if self.early_releases.begins(Instant::now()) {
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
        let (partition, is_first) = (partition.0, self.losses.begins(Instant::now()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_begins_once_within_ten_seconds() {
        let (event, began) = (Event::default(), Instant::now());
        let begins = [0, 0, 9, 10, 11, 20].map(|s| event.begins(began + Duration::from_secs(s)));
        assert_eq!(begins, [true, false, false, true, false, true]);
    }
}
