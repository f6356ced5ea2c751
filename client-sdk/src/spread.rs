//! Which partition and which slot a new timer goes to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mtimer_types::{Cohorts, Destination, Key, PartitionId, Time, TimerId};

use crate::sync::Locked;

/// Schedules in a row that go to the same partition: a batch of the broker, which files them in the
/// order of their due times, so that neighbours share writes.
const PARTITION_RUN: u64 = 512;

/// Where new timers of one client go.
#[derive(Debug)]
pub(crate) struct Spreader {
    partitions: u16,
    next: AtomicU64,
    /// The partitions whose owners are connected.
    reachable: Mutex<Arc<[PartitionId]>>,
    cohorts: Cohorts,
}

impl Spreader {
    /// Spreads over a cluster's partitions, beginning at the run `first`, and with cohorts that
    /// `cohorts` chooses.
    pub(crate) fn new(partitions: u16, first: u16, cohorts: u64) -> Self {
        let next = AtomicU64::new(u64::from(first) * PARTITION_RUN);
        let cohorts = Cohorts::new(cohorts);
        Self { partitions, next, reachable: Mutex::new(Arc::default()), cohorts }
    }

    /// The owners of these partitions are connected.
    pub(crate) fn set_reachable(&self, partitions: Vec<PartitionId>) {
        *self.reachable.locked() = partitions.into();
    }

    /// Where so many new timers go.
    pub(crate) fn spread(&self, timers: usize) -> Spread<'_> {
        Spread {
            next: self.next.fetch_add(timers as u64, Ordering::Relaxed),
            reachable: Arc::clone(&self.reachable.locked()),
            partitions: self.partitions,
            cohorts: &self.cohorts,
        }
    }
}

/// Spreads new timers over the partitions, and their slots.
pub(crate) struct Spread<'a> {
    next: u64,
    reachable: Arc<[PartitionId]>,
    partitions: u16,
    cohorts: &'a Cohorts,
}

impl Spread<'_> {
    /// The id of the next one, born at `now`.
    pub(crate) fn id(
        &mut self,
        dest: &Destination,
        key: Option<&Key>,
        due: Time,
        now: Time,
        random: u64,
    ) -> TimerId {
        let partition = self.partition(dest, key);
        self.cohorts.assign(TimerId::new(due, now, partition, random))
    }

    /// Where it goes: by its key, or where the ones before it went, among those whose owner is
    /// connected.
    pub(crate) fn partition(&mut self, dest: &Destination, key: Option<&Key>) -> PartitionId {
        if let Some(key) = key {
            return PartitionId::of_key(dest, key, self.partitions);
        }
        let run = self.next / PARTITION_RUN;
        self.next += 1;
        match self.reachable.len() as u64 {
            0 => PartitionId((run % u64::from(self.partitions)) as u16),
            n => self.reachable[(run % n) as usize],
        }
    }
}
