//! The owner of a partition: what it knows of the data ([`Knowledge`]), and its way to the store.

use std::sync::Arc;

use mtimer_store::LaneError;
use mtimer_types::{Epoch, PartitionId, Time};
use redis::Pipeline;
use tokio::sync::Semaphore;

use super::knowledge::Knowledge;
use super::trim::Trimmer;
use super::unreadable::Unreadable;
use super::writer::PartitionWriter;

/// The owner of a partition.
pub(crate) struct Owner {
    pub(super) writer: PartitionWriter,
    pub(crate) trimmer: Arc<Trimmer>,
    pub(super) known: Knowledge,
    pub(super) unreadable: Unreadable,
    /// See [`super::acquire::Shared::counting`].
    pub(super) counting: Arc<Semaphore>,
    pub(super) is_released: bool,
}

impl Owner {
    pub(crate) fn epoch(&self) -> Epoch {
        self.writer.identity().epoch
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.writer.identity().partition
    }

    /// The highest claim of the owners before.
    pub(crate) const fn prior_claim(&self) -> Time {
        self.known.prior_claim
    }

    /// Asks the store whether it has everything, and applies lost writes again.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn check(&mut self) -> Result<(), LaneError> {
        self.writer.read_as_owner(&Pipeline::new()).await.map(drop)
    }

    /// Whether the store is known to be away.
    pub(crate) fn is_down(&self) -> bool {
        self.writer.is_down()
    }
}
