//! State that a lane and the committer share.

use mtimer_store::{Health, LaneError, LoadCursor};
use mtimer_types::{Epoch, Nonce, PartitionId, Time};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// The committer's view of a lane.
pub(crate) struct LaneShared {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) nonce: Nonce,
    pub(crate) prior_claim: Time,
    pub(crate) health: watch::Sender<Health>,
    cursor: Mutex<LoadCursor>,
    ended: Mutex<Option<LaneError>>,
}

impl LaneShared {
    pub(crate) fn new(partition: PartitionId, epoch: Epoch, nonce: Nonce, prior_claim: Time) -> Self {
        let health = watch::Sender::new(Health::Up);
        let (cursor, ended) = (Mutex::default(), Mutex::default());
        Self { partition, epoch, nonce, prior_claim, health, cursor, ended }
    }

    /// How far the owner has loaded. Only the committer looks.
    pub(crate) fn cursor(&self) -> MutexGuard<'_, LoadCursor> {
        self.cursor.lock()
    }

    /// Why the lane has ended, if it has.
    pub(crate) fn ended(&self) -> MutexGuard<'_, Option<LaneError>> {
        self.ended.lock()
    }

    /// Ends the lane, unless it has ended already.
    pub(crate) fn end(&self, end: LaneError) {
        let mut ended = self.ended();
        if ended.is_none() {
            self.health.send_replace(Health::Ended(end.clone()));
            *ended = Some(end);
        }
    }
}
