//! mtimer's store on Redis and Redis Cluster.
//!
//! A partition has one writer, its owner, and Redis refuses every other. So the owner reads the
//! data that a batch of operations needs, decides in Rust ([`mtimer_store::ops`]), and has one
//! generic script write the result: a *turn*. Writes that Redis loses at a failover it applies
//! again from its *log*. `docs/redis-store.md` has pictures of both.
//!
//! A call goes through the modules from top to bottom:
//!
//! | module | task | must not know |
//! |---|---|---|
//! | `options` | checks the options: addresses, files, limits | servers |
//! | `store` | connects, checks the servers, acquires partitions ([`RedisStore`]) | timers |
//! | `partition` | executes the calls of one owner: turns, loads, listings; recovers; keeps the log | sockets |
//! | `keyspace` | names keys, places timers in slots, encodes values, tracks which slots and fields exist | connections, turns |
//! | `wire` | connects to servers, follows the topology, interprets errors | timers |
//! | `lua`, at the top | scripts: `apply` for all writes to partitions, one each for owners and the lease | timers |
//!
//! Beside them: `clients` (connections for other programs), `coordination` (the leader's lease) and
//! `facts` (the fixed properties of a cluster; terms and clocks), `password` (how passwords are
//! written), `other_clusters` (others on the same servers), `removal` (removes a cluster),
//! `tls_files` (certificates to enter servers with). For tests: `simulation` (an owner on a
//! simulated Redis), `test_support` (real servers, and a store without its fence).
//!
//! Not in here: the wheel, sessions, retry policy, elections.

#![deny(missing_docs, clippy::missing_errors_doc)]

/// Whether a rule of [`simulation::Broken`] is broken on purpose: only in tests.
#[cfg(test)]
macro_rules! broken {
    ($rule:ident) => {
        crate::simulation::broken(crate::simulation::Broken::$rule)
    };
}
#[cfg(not(test))]
macro_rules! broken {
    ($rule:ident) => {
        false
    };
}

mod clients;
mod coordination;
mod facts;
mod keyspace;
mod options;
mod other_clusters;
mod partition;
mod password;
mod removal;
#[cfg(test)]
mod simulation;
mod store;
#[cfg(feature = "test-support")]
pub mod test_support;
mod tls_files;
mod wire;

pub use clients::connect_to_masters;
/// The files of [`RedisOptions::tls`].
pub use mtimer_tls::ClientFiles;
pub use options::{DEFAULT_PARTITIONS, ReadUrls, RedisDurability, RedisOptions};
pub use partition::log::LogStatus;
pub use removal::{ClusterRemoval, RemovalError};
pub use store::RedisStore;
