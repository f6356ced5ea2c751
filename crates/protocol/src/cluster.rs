//! The cluster in messages: the owners of partitions, messages between brokers, views for
//! operators.
//!
//! Purpose: the values of membership and assignment on the wire.
//! Invariant: a [`Topology`] is ordered by (term, version); its holder never goes back to an
//! older one.
//! Not in here: how a leader is found, and how it assigns partitions.

use mtimer_types::limits::{MAX_BROKERS, MAX_CONFIGURED_DESTINATIONS, MAX_PARTITIONS};
use mtimer_types::{DeliveryLimits, Destination, Epoch, PartitionId, Term};
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;

/// Most partitions of a list.
const PARTITIONS: usize = MAX_PARTITIONS as usize;
/// Most destinations that a view shows.
pub const MAX_CLIENT_VIEWS: usize = 1_000;

/// Which broker is to own which partition, as the leader has decided it.
///
/// It is advice: a broker named here may not have acquired the partition yet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Topology {
    /// The leader's.
    pub term: Term,
    /// Rises with every change within the term.
    pub version: u64,
    /// The leader's address.
    pub leader: String,
    /// The brokers, in order of address.
    #[serde(deserialize_with = "at_most::<MAX_BROKERS, _, _>")]
    pub brokers: Vec<BrokerEntry>,
    /// By partition number: an index into `brokers`; `None` while nobody can have it.
    #[serde(deserialize_with = "at_most::<PARTITIONS, _, _>")]
    pub owners: Vec<Option<u16>>,
}

/// A broker of a topology.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BrokerEntry {
    /// Where clients and brokers reach it: `host:port`.
    pub address: String,
    /// It is being emptied: it stops, or an operator wants it so.
    pub draining: bool,
}

impl Topology {
    /// Its place in the order of topologies.
    pub fn stamp(&self) -> (Term, u64) {
        (self.term, self.version)
    }

    /// The address of the broker that a partition is assigned to.
    pub fn owner(&self, partition: PartitionId) -> Option<&str> {
        let index = (*self.owners.get(usize::from(partition.0))?)?;
        self.brokers.get(usize::from(index)).map(|b| b.address.as_str())
    }

    /// The partitions that are assigned to a broker.
    pub fn partitions_of<'a>(&'a self, address: &'a str) -> impl Iterator<Item = PartitionId> + 'a {
        let all = (0..).map(PartitionId).take(self.owners.len());
        all.filter(move |p| self.owner(*p) == Some(address))
    }
}

/// From one broker to the leader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerRequest {
    /// Still here, with this state; answered by [`PeerAnswer::Heard`].
    Heartbeat(Heartbeat),
    /// Lend shares of destinations' limits; answered by [`PeerAnswer::Shares`].
    Shares {
        /// The incarnation of the broker that asks, as in its heartbeats.
        incarnation: u64,
        /// Of each destination one at most.
        #[serde(deserialize_with = "at_most::<MAX_CONFIGURED_DESTINATIONS, _, _>")]
        asks: Vec<ShareRequest>,
    },
}

/// A broker's request for a share of the limits of one destination. It says what became of the last
/// share, and gives up of it what the answer does not lend again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareRequest {
    /// The destination.
    pub dest: Destination,
    /// Version of its settings.
    pub version: u64,
    /// Its limits.
    pub limits: DeliveryLimits,
    /// When the request was made, ms by the monotonic clock of the broker that asks. The answer
    /// repeats it, and the share counts from then on.
    pub made: u64,
    /// The share that it has, if that has not ended; else nothing.
    pub held: ShareParts,
    /// Deliveries that run, or may still run, at a handler.
    pub running: u32,
    /// Timers that wait for a delivery.
    pub waiting: u32,
    /// Deliveries that it has started since its last request.
    pub started: u32,
    /// The longest callback timeout among its timers of this destination, ms.
    pub longest_ms: u32,
    /// Unused tokens that it gives back, in parts of `per_ms` to a token.
    pub returned: u64,
}

/// A part of a destination's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShareParts {
    /// Deliveries that may run at the same time.
    pub slots: u32,
    /// Of the rate: starts in its time.
    pub starts: u32,
    /// Of the rate: its burst.
    pub burst: u32,
}

/// The share of a destination's limits that a broker has from now on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The destination.
    pub dest: Destination,
    /// The request's.
    pub made: u64,
    /// The share.
    pub parts: ShareParts,
    /// Tokens that come with it, in parts of `per_ms` to a token. Those that are there stay, as far
    /// as the burst allows.
    pub tokens: u64,
    /// For how long, ms from when the request was made.
    pub lasts_ms: u32,
}

/// The message of a broker to the leader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Name of the cluster that it is configured for.
    pub cluster: String,
    /// Partitions of the store that it has opened.
    pub partitions: u16,
    /// Where it is reached: its name in the topology.
    pub address: String,
    /// Random, made when the process starts: tells a restart from a reconnect.
    pub incarnation: u64,
    /// Name and version of its software.
    pub software: String,
    /// Its share of the partitions in relation to others': 1 to 1,000; 100 is usual.
    pub weight: u16,
    /// Counts its heartbeats to this leader.
    pub seq: u64,
    /// The number of the last heartbeat that it has an answer to; 0: none.
    pub heard: u64,
    /// The highest term that it has seen.
    pub term: Term,
    /// The newest topology that it has; version 0: none.
    pub topology: (Term, u64),
    /// It stops and gives its partitions up.
    pub stopping: bool,
    /// The partitions that it owns, by its own knowledge.
    #[serde(deserialize_with = "at_most::<PARTITIONS, _, _>")]
    pub owned: Vec<(PartitionId, Epoch)>,
    /// Partitions that it cannot serve just now: it does not reach their place in the store, or
    /// nobody reaches it at its address.
    #[serde(deserialize_with = "at_most::<PARTITIONS, _, _>")]
    pub unreachable: Vec<PartitionId>,
    /// Its load.
    pub load: BrokerLoad,
    /// The highest epoch that it has seen, of any partition.
    pub epoch: Epoch,
}

/// The load of a broker, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BrokerLoad {
    /// Sessions past the handshake.
    pub sessions: u64,
    /// Timers in memory.
    pub loaded: u64,
    /// Deliveries not settled.
    pub in_flight: u64,
}

/// From a leader (or one that is not) to a broker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerAnswer {
    /// To a heartbeat; and, with number 0, at once when the topology changes.
    Heard {
        /// The heartbeat's.
        seq: u64,
        /// The leader's term: an answer of an older one than was seen is void.
        term: Term,
        /// The newest topology, if the broker does not have it.
        topology: Option<Topology>,
        /// The highest epoch that the leader has seen, of any partition.
        epoch: Epoch,
    },
    /// This broker does not lead.
    NotLeader {
        /// Who does, as far as it knows.
        leader: Option<String>,
        /// The highest term that it has seen.
        term: Term,
    },
    /// The broker contradicts the cluster and cannot be a part of it.
    Refused {
        /// The contradiction and the fix.
        message: String,
    },
    /// To a request for shares.
    Shares(#[serde(deserialize_with = "at_most::<MAX_CONFIGURED_DESTINATIONS, _, _>")] Vec<Share>),
}

/// The cluster as one broker sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterView {
    /// The newest topology that it has.
    pub topology: Topology,
    /// The address of the broker that answers.
    pub answered_by: String,
    /// Whether that is the leader; only the leader knows the members.
    pub leads: bool,
    /// The members, in order of address.
    #[serde(deserialize_with = "at_most::<MAX_BROKERS, _, _>")]
    pub members: Vec<MemberView>,
}

/// A member as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemberView {
    /// Where it is reached.
    pub address: String,
    /// Name and version of its software.
    pub software: String,
    /// Its share in relation to others'.
    pub weight: u16,
    /// Since its last heartbeat, in ms.
    pub heartbeat_age_ms: u64,
    /// It says that it stops.
    pub stopping: bool,
    /// It comes and goes, and is given nothing for so long, in ms; 0: it is not held back.
    pub held_back_ms: u64,
    /// Partitions that it reports to own.
    pub owned: u32,
    /// Partitions that it cannot serve just now.
    pub unreachable: u32,
    /// Its load.
    pub load: BrokerLoad,
}

/// One broker in detail, as it reports itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BrokerView {
    /// Where it is reached; empty: it has no cluster around it.
    pub address: String,
    /// Its load.
    pub load: BrokerLoad,
    /// Payload and bookkeeping bytes of timers in memory (estimate).
    pub loaded_bytes: u64,
    /// The partitions that it owns, in order.
    #[serde(deserialize_with = "at_most::<PARTITIONS, _, _>")]
    pub partitions: Vec<PartitionView>,
    /// Destinations that sessions are registered for or that have timers in memory; the first
    /// [`MAX_CLIENT_VIEWS`] by name.
    #[serde(deserialize_with = "at_most::<MAX_CLIENT_VIEWS, _, _>")]
    pub clients: Vec<ClientView>,
}

/// One partition, as its owner reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PartitionView {
    /// Which.
    pub partition: PartitionId,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Whether the owner can reach its place in the store; if not, the counts below are 0.
    pub reachable: bool,
    /// In the store: first delivery to come.
    pub pending: u64,
    /// Due and not sent: waiting for a claim, for credit, or parked.
    pub overdue: u64,
    /// In the owner's memory (the copy).
    pub loaded: u64,
    /// Sent and not settled.
    pub in_flight: u64,
    /// In the store: retries to come.
    pub retrying: u64,
    /// In the store: parked.
    pub parked: u64,
    /// In the store: at-most-once timers taken.
    pub taken: u64,
    /// In the store: dead letters.
    pub dead: u64,
}

/// The clients of one destination at one broker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientView {
    /// Which destination.
    pub dest: Destination,
    /// Sessions registered for it.
    pub sessions: u32,
    /// Callbacks that they accept unsettled, all together.
    pub credit: u64,
    /// Callbacks that they have unsettled.
    pub in_flight: u64,
    /// Due timers in memory that wait for credit.
    pub waiting: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_names_the_owner_of_each_partition() {
        let broker = |address: &str| BrokerEntry { address: address.into(), draining: false };
        let topology = Topology {
            term: Term(3),
            version: 7,
            leader: "a:1".into(),
            brokers: vec![broker("a:1"), broker("b:1")],
            // Partition 2 belongs to nobody, 3 to a broker that is not in the list.
            owners: vec![Some(1), Some(0), None, Some(9), Some(1)],
        };
        let owners: Vec<Option<&str>> = (0..6).map(|p| topology.owner(PartitionId(p))).collect();
        assert_eq!(owners, [Some("b:1"), Some("a:1"), None, None, Some("b:1"), None]);
        let of = |address| topology.partitions_of(address).map(|p| p.0).collect::<Vec<_>>();
        assert_eq!((of("a:1"), of("b:1"), of("c:1")), (vec![1], vec![0, 4], vec![]));
        assert_eq!(topology.stamp(), (Term(3), 7));
    }
}
