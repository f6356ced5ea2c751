//! The partitions that this broker is to own, and the acquisitions under way.
//!
//! Invariant: one acquisition of a partition at a time. One that may have been carried out is seen
//! to its end, so that the partition can be released gracefully if it is not wanted any more.

use std::collections::HashMap;
use std::sync::Arc;

use mtimer_store::Acquired;
use mtimer_types::{Epoch, PartitionId};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::acquire::{Acquirer, Assignment};
use crate::error::BrokerError;

type EndedAcquisition = (PartitionId, Result<Option<Acquired>, BrokerError>);

/// A partition that this broker is to own, or was while an acquisition was under way that may have
/// been carried out.
struct Wanted {
    /// Under which assignment; `None`: not any more.
    assignment: watch::Sender<Option<Assignment>>,
    /// There is a task that acquires it.
    acquiring: bool,
    /// The epoch of the latest ownership; 0: there was none.
    last: Epoch,
}

/// All of them.
pub(super) struct Acquisitions {
    acquirer: Arc<Acquirer>,
    wanted: HashMap<PartitionId, Wanted>,
    tasks: JoinSet<EndedAcquisition>,
}

impl Acquisitions {
    pub(super) fn new(acquirer: Arc<Acquirer>) -> Self {
        Self { acquirer, wanted: HashMap::new(), tasks: JoinSet::new() }
    }

    /// Acquires a partition under an assignment, unless it is owned. An acquisition under way goes
    /// on under it.
    pub(super) fn assign(&mut self, partition: PartitionId, assignment: Assignment, is_owned: bool) {
        let new = || Wanted { assignment: watch::Sender::new(None), acquiring: false, last: Epoch(0) };
        let wanted = self.wanted.entry(partition).or_insert_with(new);
        wanted.assignment.send_replace(Some(assignment));
        if !is_owned {
            self.begin(partition);
        }
    }

    fn begin(&mut self, partition: PartitionId) {
        let Some(wanted) = self.wanted.get_mut(&partition) else { return };
        if wanted.acquiring || wanted.assignment.borrow().is_none() {
            return;
        }
        wanted.acquiring = true;
        let (acquirer, assignment, last) =
            (self.acquirer.clone(), wanted.assignment.subscribe(), wanted.last);
        self.tasks.spawn(async move { (partition, acquirer.acquire(partition, assignment, last).await) });
    }

    /// Withdraws a partition's assignment. An acquisition that may have been carried out is
    /// awaited.
    pub(super) fn withdraw(&mut self, partition: PartitionId) {
        if let Some(wanted) = self.wanted.get_mut(&partition) {
            wanted.assignment.send_replace(None);
            if !wanted.acquiring {
                self.wanted.remove(&partition);
            }
        }
    }

    /// Whether a partition is assigned to this broker.
    pub(super) fn is_wanted(&self, partition: PartitionId) -> bool {
        self.wanted.get(&partition).is_some_and(|w| w.assignment.borrow().is_some())
    }

    /// Notes the epoch of an ownership that has ended.
    pub(super) fn note_end(&mut self, partition: PartitionId, epoch: Epoch) {
        if let Some(wanted) = self.wanted.get_mut(&partition) {
            wanted.last = epoch;
        }
    }

    /// Waits for a partition to be acquired, or for an error that ends the broker; `None` if
    /// nothing is under way.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Result<(PartitionId, Acquired), BrokerError>> {
        loop {
            let ended = self.tasks.join_next().await?;
            if let Some(acquired) = self.take(ended).transpose() {
                return Some(acquired);
            }
        }
    }

    /// Takes the result of an acquisition; `None`: it is not wanted any more.
    fn take(
        &mut self,
        ended: Result<EndedAcquisition, JoinError>,
    ) -> Result<Option<(PartitionId, Acquired)>, BrokerError> {
        let (partition, result) = ended.map_err(|error| {
            let what = error.to_string();
            BrokerError::Panicked { task: "acquisition", what }
        })?;
        if let Some(wanted) = self.wanted.get_mut(&partition) {
            wanted.acquiring = false;
        }
        if let Some(acquired) = result? {
            return Ok(Some((partition, acquired)));
        }
        // Void: unless it was assigned again after the task had looked.
        match self.is_wanted(partition) {
            true => self.begin(partition),
            false => _ = self.wanted.remove(&partition),
        }
        Ok(None)
    }

    /// How many are under way.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nothing is wanted.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }
}
