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
mod event;
mod link;
mod taken;
mod task;

use mtimer_types::limits;

pub(crate) use self::acquire::{Assigned, Assignment};
pub(crate) use self::board::Board;
pub(crate) use self::event::{Order, PeerEvent, PeerWhat};
pub(crate) use self::taken::{Answers, Identity, claim, who_answers};
pub(crate) use self::task::{ClusterTask, Parts};

/// Orders that may wait for the engine's task: every partition twice.
pub(crate) const ORDERS: usize = 2 * limits::MAX_PARTITIONS as usize;
/// Messages of peers that may wait for the cluster's task.
pub(crate) const PEER_EVENTS: usize = 1_024;
