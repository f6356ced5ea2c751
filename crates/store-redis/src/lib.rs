//! mtimer's store on Redis 7.0 or later, standalone or Redis Cluster.
//!
//! Purpose: the store contract ([`mtimer_store`]) with slots, scripts and lanes: a timing wheel whose outer ring lives in
//! Redis. A partition's pending timers are filed into slots by fire time; a slot is one hash. The owner keeps a picture
//! of the slot indexes in memory, so it can declare every key that a script touches; it holds no timers.
//!
//! Invariants: every script names its owner and its number and is applied once and in order; what a batch was answered
//! happened; nothing here is proportional to the number of pending timers but the indexes of slots.
//!
//! | module | what |
//! |---|---|
//! | `options`, `store` | what is given, checks at the start, acquisition |
//! | `coordination` | the lease, and which masters answer |
//! | `handle`, `lane`, `window`, `resolve`, `mend`, `recovery` | the ordered stream of one owner |
//! | `plan`, `answer`, `script` | operations to script calls, and back |
//! | `mirror`, `wide`, `ledger`, `prints`, `hints`, `dests`, `load`, `reads`, `unreadable` | where timers are |
//! | `endings` | which may have ended lately |
//! | `eviction` | which servers may evict keys |
//! | `keys` | the keyspace |
//! | `conn`, `resp`, `topology`, `fault`, `backoff` | servers |
//!
//! Deliberately not in here: the wheel, sessions, retry policy, elections.

#![warn(missing_docs)]

mod answer;
mod backoff;
mod conn;
mod coordination;
mod cut;
mod dests;
mod endings;
mod eviction;
mod fault;
mod handle;
mod hints;
mod keys;
mod lane;
mod ledger;
mod load;
mod mend;
mod mirror;
mod options;
mod plan;
mod prints;
mod reads;
mod recovery;
mod resolve;
mod resp;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod script;
mod siblings;
mod store;
#[cfg(feature = "test-support")]
pub mod test_support;
#[cfg(test)]
mod tests;
mod topology;
mod unreadable;
mod wide;
mod window;

pub use options::{DEFAULT_PARTITIONS, Durability, Options};
pub use store::RedisStore;
