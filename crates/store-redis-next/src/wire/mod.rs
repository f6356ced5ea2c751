//! The way to the servers: connections, topology, errors, scripts.
//!
//! Not in here: timers, partitions, what to do after a lost answer.

mod node;

pub(crate) use self::node::{Lost, Network, Node};
