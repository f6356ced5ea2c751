//! This broker among others, or alone: who gives it partitions.
//!
//! Purpose: one task that gives the engine's task [`Order`]s and reads its partitions on the
//! [`Board`](board::Board). On a store that brokers share it is the shell around
//! [`mtimer_core::cluster::Node`], which hands the node events (lease answers, heartbeats, the link
//! to the leader, owned partitions) and carries out its decisions (`task`). On any other store the
//! broker is a cluster of one (`solo`).
//! Invariant: neither task ever waits for the other's decisions: orders are queued and bounded by
//! the number of partitions, the board is a state and not a queue. Nothing decided here can break a
//! promise of the contract: the truth about a partition is its owner record in the store.
//! Not in here: leadership and assignment (the node), how a partition is given up (the engine).

mod board;
mod change;
mod event;
mod link;
mod solo;
mod start;
mod taken;
mod task;

use mtimer_types::limits;

pub(crate) use self::event::{Order, PeerEvent, PeerWhat};
pub(crate) use self::start::{ClusterSetup, Joining, Membership, Resources, set_up_alone, set_up_member};
pub(crate) use self::taken::{AddressHolder, BrokerIdentity, who_answers};

/// Orders that may wait for the engine's task: every partition twice.
const ORDERS: usize = 2 * limits::MAX_PARTITIONS as usize;
/// Messages of peers that may wait for the cluster's task.
const PEER_EVENTS: usize = 1_024;
/// Name and version of this software, as other brokers see them.
pub(crate) const SOFTWARE: &str = concat!("mtimer/", env!("CARGO_PKG_VERSION"));
