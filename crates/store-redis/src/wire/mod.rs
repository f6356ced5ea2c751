//! The way to the servers: connections, topology, errors, scripts.
//!
//! | module | contents |
//! |---|---|
//! | `node` | the interface of a server to the rest of the store |
//! | `connection`, `access`, `reply` | one connection; how to enter a server; reading its replies |
//! | `pool`, `servers`, `topology` | one connection a server; which server has which hash slot |
//! | `several` | the same question to several servers |
//! | `sentinel` | which server is the master, according to the Sentinels |
//! | `fault`, `ask`, `backoff` | the remedy for an error; one command to the server that has a hash slot |
//! | `confirm`, `replicas`, `disk` | which writes replicas, and append-only files, have |
//! | `settings`, `watch` | the settings and roles of servers, read again and again |
//! | `script` | the scripts |
//!
//! Not in here: timers, partitions, the meaning of a lost answer to a partition.

mod access;
mod ask;
mod backoff;
mod confirm;
mod connection;
mod disk;
mod fault;
mod node;
mod pool;
mod replicas;
mod reply;
mod script;
mod sentinel;
mod servers;
mod settings;
mod several;
#[cfg(test)]
mod tests;
mod topology;
mod watch;

pub(crate) use self::access::{ServerAccess, split};
pub(crate) use self::ask::{Failed, ask, asking, check_server, check_wait, explain, once};
pub(crate) use self::backoff::RetryPauses;
pub(crate) use self::confirm::{Confirmations, Confirmed, OwnerQuery, Replicas, Wanted};
pub(crate) use self::connection::{Purpose, Use, alone};
pub(crate) use self::fault::{Remedy, remedy, shown};
pub(crate) use self::node::{Lost, Network, RedisNode};
pub(crate) use self::pool::ConnectionPool;
pub(crate) use self::reply::{Reply, numbers};
pub(crate) use self::script::{Script, load_all};
pub(crate) use self::servers::{Seeds, Servers};
pub(crate) use self::watch::watch;
