//! mtimer's store on Redis and Redis Cluster: the owner decides, the store applies.
//!
//! A partition has one writer, and the store refuses every other. So its owner reads what a batch of operations needs,
//! decides in Rust ([`mtimer_store::decide`]), and has one generic script write the result. That is a *turn*.
//!
//! | module | what it is | what it must not know |
//! |---|---|---|
//! | `options` | what a store is given, and how its servers are entered | servers |
//! | `wire` | connections, topology, errors, scripts | timers |
//! | `coordination`, `facts` | the lease; what is fixed of a cluster; terms and clocks | partitions |
//! | `keyspace` | the names of keys, the slot of a timer, the bytes of values, what the owner knows of its keys | connections, turns |
//! | `partition` | turns, loads, recovery, the log, listings | sockets |
//!
//! This crate grows beside `mtimer-store-redis` and replaces it.

#![warn(missing_docs)]

mod coordination;
mod facts;
mod keyspace;
mod options;
mod partition;
#[cfg(test)]
mod simulation;
mod store;
#[cfg(feature = "test-support")]
pub mod test_support;
mod wire;

pub use options::{DEFAULT_PARTITIONS, Durability, Options, TlsFiles};
pub use partition::log::LogStatus;
pub use store::RedisStore;
