//! This broker among others: the shell around [`mtimer_core::cluster::Node`].
//!
//! Purpose: one task that hands the node what happens (lease answers, heartbeats, the link to the
//! leader, what is owned) and carries out what it decides. The engine's task gets [`Order`]s from
//! here and says on the [`Board`] what it owns.
//! Invariant: neither task ever waits for the other's decisions: orders are queued and bounded by
//! the number of partitions, the board is a state and not a queue. Nothing decided here can break a
//! promise of the contract: the truth about a partition is its owner record in the store.
//! Not in here: who leads and who owns what (the node), how a partition is given up (the engine).

mod acquire;
mod board;
mod link;
mod taken;
mod task;

use std::sync::Arc;
use std::time::Duration;

use mtimer_core::SessionId;
use mtimer_protocol::{PeerRequest, Query, Topology};
use mtimer_types::{PartitionId, Term, limits};

pub(crate) use self::acquire::{Assigned, Assignment};
pub(crate) use self::board::Board;
pub(crate) use self::taken::{Answers, Identity, claim, who_answers};
pub(crate) use self::task::{ClusterTask, Parts};
use crate::outbox::Outbox;

/// Orders that may wait for the engine's task: every partition twice.
pub(crate) const ORDERS: usize = 2 * limits::MAX_PARTITIONS as usize;
/// Messages of peers that may wait for the cluster's task.
pub(crate) const PEER_EVENTS: usize = 1_024;

/// What can be set of a broker's part in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterOptions {
    /// Where clients and other brokers reach this one, `host:port`; `None`: where it listens.
    pub advertise: Option<String>,
    /// Its share of the partitions in relation to others': 1 to 1,000.
    pub weight: u16,
    /// How long the leader's lease lasts if it is not renewed: 500 ms to 60 s. When the leader
    /// dies, nobody is given anything for about so long.
    pub lease_ttl: Duration,
    /// How often a broker tells the leader that it is there: 50 ms to a third of `peer_timeout`.
    pub peer_heartbeat: Duration,
    /// Silence after which the leader takes a broker for dead and gives its partitions to others.
    pub peer_timeout: Duration,
    /// How long a new owner waits for the old one, which is alive, to give a partition up in good
    /// order.
    pub handover_timeout: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            advertise: None,
            weight: 100,
            lease_ttl: Duration::from_millis(2_500),
            peer_heartbeat: Duration::from_millis(500),
            peer_timeout: Duration::from_millis(1_500),
            handover_timeout: Duration::from_secs(2),
        }
    }
}

/// What the engine's task is to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// A newer topology than before: clients are told.
    Adopt(Arc<Topology>),
    /// Acquire a partition under this assignment.
    Own { partition: PartitionId, term: Term, version: u64 },
    /// Give a partition up in good order, or stop acquiring it.
    Disown(PartitionId),
    /// After [`Board::stop`]: everything is given up that somebody else can take.
    Left,
    /// The cluster will not have this broker; why.
    Refused(String),
    /// Another broker answers at the address that this one advertises.
    AddressTaken { address: String, cluster: String },
}

/// Something of a session for the cluster's task.
#[derive(Debug)]
pub(crate) struct PeerEvent {
    pub(crate) session: SessionId,
    pub(crate) what: PeerWhat,
}

/// What it is.
#[derive(Debug)]
pub(crate) enum PeerWhat {
    /// A message of another broker.
    Request { request: PeerRequest, outbox: Arc<Outbox> },
    /// A question about the cluster, of anybody.
    Query { corr: u64, query: Query, outbox: Arc<Outbox> },
    /// A session that was another broker's has ended.
    Gone,
}
