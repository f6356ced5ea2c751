//! Errors of calls on a store.

use std::fmt;

use futures_util::future::BoxFuture;
use mtimer_types::{Epoch, PartitionId, Term};

/// The answer to a call on a [`Store`](crate::Store).
pub type StoreFuture<T, E = StoreError> = BoxFuture<'static, Result<T, E>>;
/// The answer to a call on a [`Lane`](crate::Lane). The call itself fixes the place in the lane;
/// dropping the future abandons the answer, not the call.
pub type LaneFuture<T> = BoxFuture<'static, Result<T, LaneError>>;

/// Why a partition was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Somebody else did since the record was read.
    #[error(
        "partition {partition} is at epoch {stored}, expected was {expected}: read its owner record again"
    )]
    Epoch {
        /// Which partition.
        partition: PartitionId,
        /// The stored epoch.
        stored: Epoch,
        /// The epoch that the caller expected.
        expected: Epoch,
    },
    /// The assignment is not newer than the one under which the partition is owned.
    #[error("the assignment (term {}, version {}) is not newer than the stored one (term {}, version {})",
        .given.0.0, .given.1, .stored.0.0, .stored.1)]
    Assignment {
        /// The caller's.
        given: (Term, u64),
        /// The stored one.
        stored: (Term, u64),
    },
    /// The store did not answer or answered nonsense.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store that cannot be used, now or at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer; try again. Whether a write happened is unknown.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// Answers, but not so that mtimer can use it. Says what to do.
    #[error("{0}")]
    Unusable(String),
}

/// Why a lane has ended. The owner drops all that it has of the partition in memory, at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// Another owner has acquired the partition. Nothing of this call was applied, unless its
    /// answer was lost on the way before that ([`Health::Down`](crate::Health::Down) while it
    /// waited): then nobody can tell any more.
    #[error("partition {partition} belongs to epoch {stored} now, ours was {ours}")]
    Fenced {
        /// Which.
        partition: PartitionId,
        /// The new epoch.
        stored: Epoch,
        /// Our epoch.
        ours: Epoch,
    },
    /// The store lost writes it had acknowledged (a failover); acquire again and rebuild.
    #[error("the store of partition {0} went back in time: acquire it again")]
    RolledBack(PartitionId),
    /// The store is damaged or full and cannot go on.
    #[error("the store cannot go on: {0}")]
    Broken(String),
    /// The lane was released.
    #[error("the partition was released")]
    Closed,
}

impl LaneError {
    /// Creates the error for an answer of another kind than its call: a defect of the store.
    pub fn of_another_kind(call: impl fmt::Display) -> Self {
        Self::Broken(format!("an answer of another kind than the call: {call}"))
    }
}
