//! The needs of several brokers on one store besides partitions: a lease, and a place for the
//! topology.
//!
//! Purpose: leader election by a lease that runs out by itself, the term that rises with it, and
//! the last topology, so that a new leader moves as little as possible.
//! Invariant: a term is given out once and terms only rise; a broker without the lease publishes
//! nothing. All of it is advice: the truth about a partition is its owner record.
//! Not in here: when to campaign, renew or resign.

use bytes::Bytes;
use mtimer_types::{PartitionId, Term};

use crate::error::StoreFuture;

/// The services of a store that several processes share; see
/// [`Store::coordination`](crate::Store::coordination).
pub trait Coordination: Send + Sync + 'static {
    /// Takes the lease if nobody has it, or if it is held under the candidate's own address: an
    /// address has one process, so that is an earlier run of it. A lease that the candidate has
    /// already (its answer was lost) is renewed and keeps its term; otherwise the term is raised
    /// above every term before by the same rule as [`Store::raise_term`](crate::Store::raise_term),
    /// and above the term that the candidate has seen.
    fn campaign(&self, candidate: Candidate) -> StoreFuture<Campaigned>;

    /// Says who has the lease, and takes nothing; `None`: nobody has it.
    fn holder(&self) -> StoreFuture<Option<LeaseHolder>>;

    /// Makes the lease last `ttl_ms` from now, if it still is the caller's; `false`: it is not, and
    /// the caller leads no more.
    fn renew(&self, lease: Lease, ttl_ms: u64) -> StoreFuture<bool>;

    /// Gives the lease up, if it still is the caller's; `false`: it was not.
    fn resign(&self, lease: Lease) -> StoreFuture<bool>;

    /// Keeps the topology for the next leader, if the lease still is the caller's; `false`: it is
    /// not, nothing was kept.
    fn publish(&self, lease: Lease, topology: Bytes) -> StoreFuture<bool>;

    /// The partitions whose place in the store did not answer just now. Comes within about half a
    /// second.
    fn unreachable(&self) -> StoreFuture<Vec<PartitionId>>;
}

/// Who wants to lead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Where it is reached, `host:port`; without white space.
    pub address: String,
    /// Random, made when the process starts.
    pub incarnation: u64,
    /// How long the lease is to last, ms; at least 1.
    pub ttl_ms: u64,
    /// The highest term it knows of, less than [`MAX_TERM`](mtimer_types::limits::MAX_TERM): a new
    /// one is above, also in a store that has forgotten it.
    pub seen: Term,
}

/// The answer to a campaign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Campaigned {
    /// The candidate leads.
    Won {
        /// Under this term.
        term: Term,
        /// The topology that was published last, if any.
        published: Option<Bytes>,
    },
    /// Somebody else does.
    Held(LeaseHolder),
}

/// Who has the lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseHolder {
    /// Its address; the raw value of the key, if mtimer has not written it.
    pub address: String,
    /// Its term; 0 if mtimer has not written it.
    pub term: Term,
    /// How long the lease lasts if it is not renewed, ms; `None`: it never runs out by itself.
    pub remaining_ms: Option<u64>,
}

/// A lease that was won.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The holder's address.
    pub address: String,
    /// The holder's incarnation.
    pub incarnation: u64,
    /// The term that came with it.
    pub term: Term,
}
