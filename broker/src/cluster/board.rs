//! What the engine's task tells the cluster's: a state that is looked at, not a queue.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mtimer_protocol::BrokerLoad;
use mtimer_types::{Epoch, PartitionId};
use tokio::sync::Notify;

/// What this broker owns and has to do. Shared by the two tasks.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<Posted>,
    changed: Notify,
}

/// What is written on a board.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Posted {
    pub(crate) owned: BTreeMap<PartitionId, Epoch>,
    pub(crate) load: BrokerLoad,
    pub(crate) stop: bool,
}

impl Board {
    /// A reign has begun.
    pub(crate) fn owns(&self, partition: PartitionId, epoch: Epoch) {
        self.state().owned.insert(partition, epoch);
        self.changed.notify_one();
    }

    /// A reign has ended, however.
    pub(crate) fn lost(&self, partition: PartitionId) {
        if self.state().owned.remove(&partition).is_some() {
            self.changed.notify_one();
        }
    }

    /// What there is to do; wakes nobody.
    pub(crate) fn load(&self, load: BrokerLoad) {
        self.state().load = load;
    }

    /// This broker is to give everything up.
    pub(crate) fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_one();
    }

    /// How it is now.
    pub(crate) fn read(&self) -> Posted {
        self.state().clone()
    }

    /// Waits for a change of what is owned, or for the stop.
    ///
    /// # Cancel safety
    ///
    /// A change is seen by the next call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, Posted> {
        // Every change is one assignment: there is nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
