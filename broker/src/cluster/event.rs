//! Messages between the engine's task, sessions and the cluster's task.

use std::sync::Arc;

use mtimer_core::SessionId;
use mtimer_protocol::{PeerRequest, Query, Share, Topology};
use mtimer_types::{PartitionId, Term};

use crate::outbox::Outbox;

/// Orders to the engine's task.
#[derive(Debug)]
pub(crate) enum Order {
    /// A newer topology than before: clients are told.
    Adopt(Arc<Topology>),
    /// The partitions of this broker by the newest assignment. It has joined once it is a member
    /// and owns all of that.
    Share { partitions: Vec<PartitionId>, is_member: bool },
    /// Acquire a partition under this assignment.
    Own { partition: PartitionId, term: Term, version: u64 },
    /// Give a partition up gracefully, or stop acquiring it.
    Disown(PartitionId),
    /// The leader has lent shares of destinations' limits.
    Lent(Vec<Share>),
    /// After [`Board::stop`](super::board::Board::stop): everything is given up that somebody else
    /// can take.
    Left,
    /// The cluster will not have this broker; why.
    Refused(String),
    /// Another broker answers at the address that this one advertises.
    AddressTaken { address: String, cluster: String },
}

/// An event of a broker's session, for the cluster's task.
#[derive(Debug)]
pub(crate) struct PeerEvent {
    pub(crate) session: SessionId,
    pub(crate) what: PeerWhat,
}

/// The kinds of events.
#[derive(Debug)]
pub(crate) enum PeerWhat {
    /// A message of another broker.
    Request { request: PeerRequest, outbox: Arc<Outbox> },
    /// A question about the cluster, of anybody.
    Query { corr: u64, query: Query, outbox: Arc<Outbox> },
    /// A session that was another broker's has ended.
    Gone,
}
