//! What an owner knows of the data of its partition.
//!
//! Invariant: whenever no call is being executed, this is true of the store's data under the
//! owner's sequence number. It changes by what is read, and by writes: a write is drafted from it,
//! and the draft's note is taken once the write was applied.
//! Not in here: reading and writing ([`super::owner`]).

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_store::Controls;
use mtimer_types::{Time, TimerId};

use super::destinations::DestinationNumbers;
use super::tally::Tally;
use crate::keyspace::catalog::Catalog;
use crate::keyspace::fingerprints::{EndedFilter, LargeFilter, MovedFilter};
use crate::keyspace::keys::{Keyspace, OutcomeBucket};
use crate::keyspace::secret::Secret;

/// See the module.
pub(crate) struct Knowledge {
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
    /// How many timers of each destination are in no slot.
    pub(super) tally: Tally,
    /// The bulk jobs and settings, all that are stored.
    pub(super) controls: Arc<Controls>,
    /// The highest claim of the owners before.
    pub(super) prior_claim: Time,
    /// The highest claim that is stored.
    pub(super) claimed: Time,
    /// The highest position that was given in a listing (of dead letters, taken, unconfirmed,
    /// parked timers).
    pub(super) position: u64,
}

impl Knowledge {
    /// What is known at the beginning of an ownership: nothing is read yet.
    pub(super) fn new(
        space: Keyspace,
        secret: Secret,
        begun: Time,
        prior_claim: Time,
        position: u64,
    ) -> Self {
        Self {
            space,
            secret,
            catalog: Catalog::new(secret),
            moved: MovedFilter::default(),
            ended: EndedFilter::new(OutcomeBucket::of(begun)),
            keys: LargeFilter::unknown(),
            found_keys: LargeFilter::unknown(),
            taken: HashSet::new(),
            keys_are_hash_table: false,
            dests: DestinationNumbers::default(),
            tally: Tally::default(),
            controls: Arc::default(),
            prior_claim,
            claimed: prior_claim,
            position,
        }
    }
}
