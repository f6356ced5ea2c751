//! Inputs and effects of a [`Node`](super::Node).

use std::fmt;
use std::sync::Arc;

use mtimer_protocol::{BrokerLoad, PeerAnswer, PeerRequest, Share, ShareRequest, Topology};
use mtimer_store::{Campaigned, Candidate, Lease, LeaseHolder, StoreError};
use mtimer_types::{Epoch, PartitionId, Term};

/// Operator settings, and values fixed at process start.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Name of the cluster.
    pub cluster: String,
    /// Partitions of the store.
    pub partitions: u16,
    /// Where this broker is reached: `host:port`, its name in the cluster.
    pub address: String,
    /// Random, made when the process starts.
    pub incarnation: u64,
    /// Name and version of the software.
    pub software: String,
    /// Share of the partitions in relation to others': 1 to 1,000.
    pub weight: u16,
    /// How often a follower tells the leader that it is there, ms.
    pub heartbeat_ms: u64,
    /// A member that is silent for so long, ms, is dead; so is a leader to its followers.
    pub member_timeout_ms: u64,
    /// How long the lease lasts unless it is renewed, ms; at least 500.
    pub lease_ttl_ms: u64,
    /// How often it is renewed, ms; less than half of how long it lasts.
    pub renew_ms: u64,
    /// After this long unreachable by its owner, ms, a partition is reassigned.
    pub unreachable_ms: u64,
    /// Seed for jitter.
    pub seed: u64,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            partitions: 1,
            address: String::new(),
            incarnation: 0,
            software: String::new(),
            weight: 100,
            heartbeat_ms: 500,
            member_timeout_ms: 1_500,
            lease_ttl_ms: 2_500,
            renew_ms: 700,
            unreachable_ms: 2_000,
            seed: 0,
        }
    }
}

/// A session on which heartbeats arrive, numbered by the shell in rising order; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

/// An input from the shell to the node. `sent`: when the request left, by the same clock as `now`.
#[derive(Debug)]
pub enum NodeInput {
    /// To [`NodeEffect::Campaign`]; every campaign is answered, if only with an error.
    Campaigned {
        /// When the request left.
        sent: u64,
        /// The store's answer.
        answer: Result<Campaigned, StoreError>,
    },
    /// To [`NodeEffect::Look`]; every look is answered, if only with an error.
    Looked {
        /// When the request left.
        sent: u64,
        /// Who has the lease.
        answer: Result<Option<LeaseHolder>, StoreError>,
    },
    /// To [`NodeEffect::Renew`]; every renewal is answered.
    Renewed {
        /// When the request left.
        sent: u64,
        /// Whether the lease still is ours.
        answer: Result<bool, StoreError>,
    },
    /// To [`NodeEffect::Publish`]; every one is answered.
    Published {
        /// Term of the published topology.
        term: Term,
        /// Version of the published topology.
        version: u64,
        /// Whether the lease still is ours.
        answer: Result<bool, StoreError>,
    },
    /// The connection of the latest [`NodeEffect::Connect`] is there, its handshake done.
    LinkUp,
    /// The leader connection failed or closed. Not sent after [`NodeEffect::Disconnect`] or a later
    /// `Connect`.
    LinkDown(String),
    /// A frame on that connection.
    FromLeader(PeerAnswer),
    /// A frame of another broker.
    FromPeer(PeerId, PeerRequest),
    /// That session is closed.
    PeerGone(PeerId),
    /// Whether this broker is reached at its address, as far as it can tell by itself. It counts as
    /// reached until this says otherwise.
    Reached(bool),
    /// The partitions that are currently unreachable (full list).
    Unreachable(Vec<PartitionId>),
    /// This broker acquired a partition.
    Owned(PartitionId, Epoch),
    /// An ownership ended (fenced, ended, handed over), or an acquisition that was asked for is
    /// given up.
    Lost(PartitionId),
    /// This broker's load.
    Load(BrokerLoad),
    /// The engine asks for shares of destinations' limits; [`NodeEffect::Lent`] follows if the
    /// leader can be reached.
    AskShares(Vec<ShareRequest>),
    /// Give everything up gracefully; [`NodeEffect::Left`] follows.
    Stop,
    /// [`Node::next_tick`](super::Node::next_tick) has come.
    Tick,
}

/// An action that the node asks of the shell. The shell carries them out in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeEffect {
    /// Campaign for the lease.
    Campaign(Candidate),
    /// Look who has it, without taking it.
    Look,
    /// Renew it, for so many ms.
    Renew(Lease, u64),
    /// Give it up; needs no answer.
    Resign(Lease),
    /// This broker leads no more: under which term it did, and why.
    SteppedDown(Term, LeadershipEnd),
    /// Keep the topology for the next leader. One at a time.
    Publish(Lease, Topology),
    /// Connect to the leader; takes the place of any earlier connection.
    Connect(String),
    /// Close the connection to the leader, or stop trying.
    Disconnect,
    /// Send on that connection.
    ToLeader(PeerRequest),
    /// Send on a session of another broker.
    ToPeer(PeerId, PeerAnswer),
    /// Newer than any before: tell the engine and the clients. Its effects on this broker come
    /// after it.
    Adopt(Arc<Topology>),
    /// Acquire this partition. Comes again with a newer assignment while it is not owned, and after
    /// [`NodeInput::Lost`]; an acquisition under way goes on under the newer one.
    Own {
        /// Which.
        partition: PartitionId,
        /// The assignment's term.
        term: Term,
        /// The assignment's version.
        version: u64,
    },
    /// The leader has lent this broker shares of destinations' limits: tell the engine.
    Lent(Vec<Share>),
    /// Hand it over, or stop acquiring it; answered by [`NodeInput::Lost`] when it is done.
    Disown(PartitionId),
    /// This broker contradicts the cluster and must end: why. Nothing comes after it.
    Refused(String),
    /// After [`NodeInput::Stop`], once: nothing is owned any more, or nobody takes it: go on
    /// stopping. If there is a [`Node::lease`](super::Node::lease) still, resign it when everything
    /// is released.
    Left,
}

/// How a leadership ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadershipEnd {
    /// The deadline is over; nobody else need have the lease yet.
    Expired,
    /// The lease is not ours any more: another has it, or its key is gone.
    Taken,
    /// This broker has heard of a higher term than its own.
    Outdated,
    /// This broker stops.
    Resigned,
    /// Nobody reaches this broker.
    Unreached,
}

impl fmt::Display for LeadershipEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "it could not renew the lease in time",
            Self::Taken => "the lease is another broker's, or its key is gone",
            Self::Outdated => "there is a higher term",
            Self::Resigned => "it stops",
            Self::Unreached => "no other broker reaches it",
        })
    }
}

/// Why a broker was not emptied, or not taken back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DrainError {
    /// This broker does not lead; who does, if it knows.
    #[error("only the leader can empty a broker{}", .0.as_ref().map_or_else(
        || ", and there is none just now: try again".to_owned(),
        |leader| format!(": ask {leader}")
    ))]
    NotLeader(Option<String>),
    /// There is no such broker.
    #[error("there is no broker {broker:?}: choose one of {}", .known.join(", "))]
    Unknown {
        /// The one that was named.
        broker: String,
        /// Those that there are.
        known: Vec<String>,
    },
}
