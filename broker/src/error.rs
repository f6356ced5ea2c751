//! Why a broker did not start, and why one that ran has ended.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mtimer_store::StoreError;
use mtimer_types::{Epoch, PartitionId, Term};

use crate::access::AccessError;
use crate::options::InvalidOptions;

/// The broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option is out of range.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    /// The tokens cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address to listen on cannot be used.
    #[error("cannot listen on {addr}: {source}; choose another address with --listen or stop what uses it")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The address for metrics and health probes cannot be used.
    #[error(
        "cannot serve metrics on {addr}: {source}; choose another address with --http, or none with --http off"
    )]
    Http {
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system gives no timer for alarms, usually because too many files are open.
    #[error("cannot create the timer for alarms: {0}; allow more open files")]
    AlarmTimer(io::Error),
    /// The store answers, but cannot be used.
    #[error(transparent)]
    Store(StoreError),
    /// The store did not answer in time.
    #[error("the store could not be used within {} s: {last}; start it, or allow more with --startup-timeout", .waited.as_secs())]
    StoreAway {
        /// How long was tried.
        waited: Duration,
        /// The last error.
        last: String,
    },
    /// The cluster could not be joined in time.
    #[error("the cluster could not be joined within {} s: {why}; allow more with --startup-timeout", .waited.as_secs())]
    NotJoined {
        /// How long was tried.
        waited: Duration,
        /// How far it came.
        why: String,
    },
    /// It ended while starting.
    #[error(transparent)]
    Ended(#[from] BrokerError),
}

/// A broker that ran has ended, not because it was told to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// Another broker was started on the same cluster. The last one started wins.
    #[error(
        "another broker has taken over partition {partition}: it holds epoch {stored} in term {}, ours were epoch {ours} in term {}; \
         only one broker may run on a cluster, and the one started last wins",
        .stored_term.0, .our_term.0
    )]
    Fenced {
        /// The partition at which it was noticed.
        partition: PartitionId,
        /// The epoch in the store.
        stored: Epoch,
        /// The epoch this broker had (0: none).
        ours: Epoch,
        /// The term in the store.
        stored_term: Term,
        /// This broker's term.
        our_term: Term,
    },
    /// The broker contradicts the cluster that it is to be a part of.
    #[error("the cluster refuses this broker: {0}")]
    Refused(String),
    /// Another broker of the cluster is reached at the address that this one advertises.
    #[error(
        "another broker of cluster {cluster:?} answers at {address}, the address that this one advertises; an \
         address belongs to one broker: stop the other one, or give this one its own with --advertise"
    )]
    AddressTaken {
        /// The address.
        address: String,
        /// The cluster.
        cluster: String,
    },
    /// The store answers, but cannot be used any more.
    #[error("partition {partition} cannot be acquired again: {source}")]
    Store {
        /// Which partition.
        partition: PartitionId,
        /// The store's error.
        source: StoreError,
    },
    /// A defect: a task has panicked.
    #[error("the broker's {task} task has failed, this is a defect: {what}")]
    Panicked {
        /// Which task.
        task: &'static str,
        /// The panic's message.
        what: String,
    },
}
