//! The owner's knowledge of its partition.
//!
//! Invariant: whenever no call is being executed, this is true of the store's data under the
//! owner's sequence number.

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_store::LaneError;
use mtimer_types::{Epoch, PartitionId, Time, TimerId};
use redis::Pipeline;

use super::destinations::DestinationNumbers;
use super::trim::Trimmer;
use super::unreadable::Unreadable;
use super::writer::PartitionWriter;
use crate::keyspace::catalog::Catalog;
use crate::keyspace::fingerprints::{EndedFilter, LargeFilter, MovedFilter};
use crate::keyspace::keys::Keyspace;
use crate::keyspace::secret::Secret;

/// The owner of a partition.
pub(crate) struct Owner {
    pub(super) writer: PartitionWriter,
    pub(crate) trimmer: Arc<Trimmer>,
    pub(super) space: Keyspace,
    pub(super) secret: Secret,
    pub(super) catalog: Catalog,
    pub(super) moved: MovedFilter,
    pub(super) ended: EndedFilter,
    pub(super) keys: LargeFilter,
    /// Keys that may be from an owner before: if it died while its write was cut off, one may name
    /// a timer that is gone, or that has another key by now.
    pub(super) found_keys: LargeFilter,
    /// At-most-once timers that this owner has taken. Each is in `moved`, and nowhere else, so it
    /// is acknowledged without reading it: 15 % more a second in `bench fire --at-most-once 100`.
    pub(super) taken: HashSet<TimerId>,
    /// This owner has put [`crate::keyspace::value::LARGE`] beside the application keys.
    pub(super) keys_are_hash_table: bool,
    pub(super) dests: DestinationNumbers,
    pub(super) unreadable: Unreadable,
    /// The highest claim of the owners before.
    pub(super) prior_claim: Time,
    /// The highest claim that is stored.
    pub(super) claimed: Time,
    /// The highest position that was given in a listing (of dead letters, taken, unconfirmed,
    /// parked timers).
    pub(super) position: u64,
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
        self.prior_claim
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
