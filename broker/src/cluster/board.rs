//! State that the engine's task shows to the cluster's: it is read, not queued. Of requests the
//! last one of each destination is kept.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_protocol::{BrokerLoad, ShareRequest};
use mtimer_types::{Destination, Epoch, PartitionId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// The partitions and the load of this broker. Shared by the two tasks.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<Posted>,
    changed: Notify,
}

/// Contents of a board.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Posted {
    pub(crate) owned: BTreeMap<PartitionId, Epoch>,
    /// Partitions whose ownership has ended since the board was last taken, though it may have
    /// begun since as well.
    pub(crate) ended: BTreeSet<PartitionId>,
    pub(crate) load: BrokerLoad,
    pub(crate) stop: bool,
    /// Requests for shares of destinations' limits, the last of each; each is taken once.
    pub(crate) asks: BTreeMap<Destination, ShareRequest>,
}

impl Board {
    /// An ownership has begun.
    pub(crate) fn owns(&self, partition: PartitionId, epoch: Epoch) {
        self.state().owned.insert(partition, epoch);
        self.changed.notify_one();
    }

    /// An ownership has ended, however.
    pub(crate) fn lost(&self, partition: PartitionId) {
        let mut state = self.state();
        if state.owned.remove(&partition).is_some() {
            state.ended.insert(partition);
            self.changed.notify_one();
        }
    }

    /// The engine asks for shares of destinations' limits.
    pub(crate) fn ask_shares(&self, asks: Vec<ShareRequest>) {
        self.state().asks.extend(asks.into_iter().map(|ask| (ask.dest.clone(), ask)));
        self.changed.notify_one();
    }

    /// Sets the load; wakes nobody.
    pub(crate) fn load(&self, load: BrokerLoad) {
        self.state().load = load;
    }

    /// This broker is to give everything up.
    pub(crate) fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_one();
    }

    /// Whether this broker is to give everything up.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state().stop
    }

    /// Returns the present contents; ended ownerships and requests only once.
    pub(crate) fn take(&self) -> Posted {
        let mut state = self.state();
        let (ended, asks) = (std::mem::take(&mut state.ended), std::mem::take(&mut state.asks));
        Posted { ended, asks, ..state.clone() }
    }

    /// The present load of this broker.
    pub(crate) fn look_at_load(&self) -> BrokerLoad {
        self.state().load
    }

    /// Waits for a change of the owned partitions, for requests, or for the stop.
    ///
    /// # Cancel safety
    ///
    /// A change is seen by the next call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, Posted> {
        // Every change is one assignment: there is nothing half done.
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ownership_that_ended_before_anybody_looked_is_told() {
        let (board, partition) = (Board::default(), PartitionId(3));
        board.owns(partition, Epoch(1));
        board.lost(partition);
        let posted = board.take();
        assert!(posted.owned.is_empty() && posted.ended.contains(&partition), "{posted:?}");
        assert!(board.take().ended.is_empty(), "it is told once");
        board.lost(partition);
        assert!(board.take().ended.is_empty(), "nothing has ended");
    }
}
