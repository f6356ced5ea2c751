//! The place of the lease in memory.

use bytes::Bytes;
use tokio::time::Instant;

use crate::coordination::Lease;

/// The stored state of a lease.
#[derive(Debug, Default)]
pub(super) struct StoredLease {
    pub(super) held: Option<(Lease, Instant)>,
    pub(super) published: Option<Bytes>,
    /// The lease's place cannot be reached; why.
    pub(super) down: Option<String>,
}

impl StoredLease {
    pub(super) fn holds(&self, lease: &Lease) -> bool {
        self.held.as_ref().is_some_and(|(held, _)| held == lease)
    }
}
