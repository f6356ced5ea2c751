//! The interface of a server to the rest of the store.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use redis::{Pipeline, Value};

/// A server that cannot be reached, or a connection that ended before the answer; says why.
/// Commands that were sent may have been carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lost(pub(crate) String);

/// A connection to one server. Once it has failed it stays failed: ask the [`Network`] for another.
pub(crate) trait RedisNode: Send + Sync {
    /// `host:port`, or the path of a Unix socket.
    fn address(&self) -> &str;

    /// Sends commands in one piece, and returns one answer for each, in order; a command that the
    /// server refuses has [`Value::ServerError`]. Pipelines reach the server in the order of the
    /// calls of this method. Dropping the future abandons the call: its commands may be sent, in
    /// one piece, or not at all. Nothing is ever sent twice.
    fn call(&self, commands: Pipeline) -> BoxFuture<'static, Result<Vec<Value>, Lost>>;

    /// Whether it has failed: then nothing that is called is sent.
    fn is_over(&self) -> bool;
}

/// Finds servers.
pub(crate) trait Network: Send + Sync {
    /// A live connection to the master of a hash slot, as far as is known.
    fn master(&self, hash_slot: u16) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>>;

    /// A live connection to the server at an address, for one command after an `ASK` redirection.
    fn at(&self, address: &str) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>>;

    /// Whether the server at an address is the master of a hash slot, as far as is known.
    fn leads_to(&self, hash_slot: u16, address: &str) -> bool;

    /// A server said `MOVED`.
    fn moved(&self, hash_slot: u16, address: &str);

    /// Looks for the masters again. `without`: asks other servers than the one that was found at
    /// this address, and in its place takes any that says that it is the master, also one to which
    /// the address leads by now. If nobody else answers, everything stays as it is known.
    fn rediscover<'a>(&'a self, without: Option<&'a str>) -> BoxFuture<'a, Result<(), Lost>>;

    /// How many replicas the master of a hash slot has: in a cluster those that have not failed by
    /// the vote of the masters, otherwise those that are connected, or were within the last 30 s.
    /// As it was when the servers were last looked at; `None`: it is not known.
    fn replicas(&self, hash_slot: u16) -> Option<u32>;

    /// Whether the master of a hash slot keeps an append-only file, or has not said yet that it
    /// keeps none.
    fn append_only(&self, hash_slot: u16) -> bool;

    /// Whether the master of this hash slot may evict keys when its memory is full.
    fn may_evict(&self, hash_slot: u16) -> bool;
}
