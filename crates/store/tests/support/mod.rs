//! A place for timers in memory, as the conformance suite wants it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mtimer_store::conformance::{Fault, Site, Unsupported};
use mtimer_store::memory::Faults;
use mtimer_store::{MemoryStore, Store};
use mtimer_types::PartitionId;

/// One in-memory state; every handle is another view of it.
pub(crate) struct MemorySite {
    pub(crate) store: MemoryStore,
    partitions: u16,
}

impl MemorySite {
    pub(crate) fn new(partitions: u16) -> Self {
        Self { store: MemoryStore::new(partitions).coordinated(), partitions }
    }

    fn everywhere(&self, disturb: impl Fn(&Faults, PartitionId)) {
        (0..self.partitions).for_each(|p| disturb(&self.store.faults(), PartitionId(p)));
    }
}

impl Site for MemorySite {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        let store = self.store.clone();
        Box::pin(async move { Arc::new(store) as Arc<dyn Store> })
    }

    /// The brokers restart; the state is the one that the store would have kept.
    fn restart(&mut self) -> BoxFuture<'_, Result<(), Unsupported>> {
        Box::pin(async { Ok(()) })
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        let faults = self.store.faults();
        match fault {
            Fault::LoseNextAnswer(partition) => faults.cut(partition),
            Fault::LoseNextCall(partition) => faults.down(partition, "the call was lost"),
            Fault::GoDown => {
                self.everywhere(|faults, p| faults.down(p, "switched off"));
                faults.lease_down(Some("switched off"));
            }
            Fault::ComeUp => {
                self.everywhere(|faults, p| faults.heal(p));
                faults.lease_down(None);
            }
            Fault::OutOfMemory(full) => self.everywhere(|faults, p| faults.full(p, full)),
            // It goes by the time of the batches, which the test moves.
            Fault::ForgetEnded => {}
        }
        Box::pin(async { Ok(()) })
    }
}
