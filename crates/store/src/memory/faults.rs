//! Faults that a test can inject into the in-memory store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mtimer_types::{Epoch, Nonce, PartitionId, Time};

use super::partition::{MemoryPartition, Reachability};
use super::shared::MemoryState;
use crate::error::LaneError;

/// Disturbs a [`super::MemoryStore`], for all its views at once. A partition that does not exist is
/// not disturbed.
#[derive(Clone)]
pub struct Faults {
    shared: Arc<MemoryState>,
}

impl Faults {
    pub(super) fn new(shared: Arc<MemoryState>) -> Self {
        Self { shared }
    }

    /// Lanes carry out their calls, but answers wait for [`Self::heal`].
    pub fn hold(&self, partition: PartitionId) {
        self.on(partition, |p| p.set_link(Reachability::Held));
    }

    /// Lanes carry out their calls, but the answers are lost with the connection. At [`Self::heal`]
    /// each lane finds out which calls were applied and answers; if it was fenced or rolled back in
    /// between, it ends without knowing.
    pub fn cut(&self, partition: PartitionId) {
        self.on(partition, |p| p.set_link(Reachability::Cut));
    }

    /// Nothing gets through; calls wait for [`Self::heal`].
    pub fn down(&self, partition: PartitionId, why: &str) {
        self.on(partition, |p| p.set_link(Reachability::Down(why.to_owned())));
    }

    /// The next acquisition of the partition is carried out, but its answer is lost.
    pub fn lose_acquisition(&self, partition: PartitionId) {
        self.on(partition, |p| p.loses_acquisition = true);
    }

    /// How many calls, of any view and any lane, met a partition that was cut or down so far, or
    /// lost their answer by [`Self::lose_acquisition`]: when it rises, somebody has noticed.
    pub fn met(&self) -> u64 {
        self.shared.disturbed.load(Ordering::SeqCst)
    }

    /// The lease's place cannot be reached (`Some(why)`), or can be again.
    pub fn lease_down(&self, why: Option<&str>) {
        self.shared.lease().down = why.map(str::to_owned);
    }

    /// Ends [`Self::hold`], [`Self::cut`] and [`Self::down`].
    pub fn heal(&self, partition: PartitionId) {
        self.on(partition, |p| p.set_link(Reachability::Up));
    }

    /// The store keeps no marks of bulk jobs from now on.
    pub fn forget_bulk_marks(&self, partition: PartitionId) {
        self.on(partition, |p| p.stored.table.forgets_bulk_marks = true);
    }

    /// Whether operations that add are refused for want of memory.
    pub fn full(&self, partition: PartitionId, full: bool) {
        self.on(partition, |p| p.full = full);
    }

    /// Somebody else acquires the partition: every lane to it is fenced from now on, and learns it
    /// with its next call. Returns the new epoch.
    pub fn fence(&self, partition: PartitionId) -> Epoch {
        let mut epoch = Epoch::default();
        self.on(partition, |p| {
            let stored = &mut p.stored;
            stored.owner.epoch.0 += 1;
            stored.owner.nonce = Nonce(!stored.owner.nonce.0);
            stored.prior_claim = stored.owner.claimed_until;
            stored.seq += 1;
            epoch = stored.owner.epoch;
        });
        epoch
    }

    /// Remembers the partition as it is, for [`Self::roll_back`].
    pub fn save(&self, partition: PartitionId) {
        self.on(partition, |p| p.saved = Some(Box::new(p.stored.clone())));
    }

    /// The partition forgets the writes since [`Self::save`] (as at a failover). Lanes learn it
    /// with their next call. Nothing happens if nothing was saved.
    pub fn roll_back(&self, partition: PartitionId) {
        self.on(partition, |p| {
            if let Some(saved) = p.saved.take() {
                p.stored = *saved;
            }
        });
    }

    /// Ends every lane to the partition as broken; waiting calls are not carried out.
    pub fn break_lanes(&self, partition: PartitionId, why: &str) {
        self.on(partition, |p| p.end_lanes(&LaneError::Broken(why.to_owned())));
    }

    /// Sets the store's clock: the least epoch that an acquisition can get. [`Time::ZERO`]: it has
    /// none.
    pub fn set_clock(&self, now: Time) {
        self.shared.clock.store(now.as_ms(), Ordering::SeqCst);
    }

    fn on(&self, partition: PartitionId, disturb: impl FnOnce(&mut MemoryPartition)) {
        if let Some(mut partition) = self.shared.partition(partition) {
            disturb(&mut partition);
        }
    }
}
