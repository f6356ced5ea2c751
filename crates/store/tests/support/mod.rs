//! The in-memory store as the conformance suite wants it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mtimer_store::conformance::{Fault, Harness, Site, Unsupported};
use mtimer_store::memory::Faults;
use mtimer_store::{MemoryStore, Store};
use mtimer_types::PartitionId;

/// Makes in-memory stores.
pub(crate) struct Memory;

/// One in-memory state; every handle is another view of it.
pub(crate) struct MemorySite {
    pub(crate) store: MemoryStore,
    partitions: u16,
}

impl MemorySite {
    pub(crate) fn new(partitions: u16) -> Self {
        Self { store: MemoryStore::new(partitions), partitions }
    }

    fn everywhere(&self, disturb: impl Fn(&Faults, PartitionId)) {
        (0..self.partitions).for_each(|p| disturb(&self.store.faults(), PartitionId(p)));
    }
}

impl Harness for Memory {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        let site = MemorySite::new(partitions);
        Box::pin(async move { Box::new(site) as Box<dyn Site> })
    }
}

impl Site for MemorySite {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        let store = self.store.clone();
        Box::pin(async move { Arc::new(store) as Arc<dyn Store> })
    }

    /// The brokers restart; the state is what the store would have kept.
    fn restart(&mut self) -> BoxFuture<'_, Result<(), Unsupported>> {
        Box::pin(async { Ok(()) })
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        let done = match fault {
            Fault::LoseNextAnswer(partition) => {
                self.store.faults().cut(partition);
                Ok(())
            }
            Fault::LoseNextCall(partition) => {
                self.store.faults().down(partition, "the call was lost");
                Ok(())
            }
            Fault::GoDown => {
                self.everywhere(|faults, p| faults.down(p, "switched off"));
                Ok(())
            }
            Fault::ComeUp => {
                self.everywhere(|faults, p| faults.heal(p));
                Ok(())
            }
            Fault::OutOfMemory(full) => {
                self.everywhere(|faults, p| faults.full(p, full));
                Ok(())
            }
            Fault::ForgetEnded => Err(Unsupported),
        };
        Box::pin(async move { done })
    }
}
