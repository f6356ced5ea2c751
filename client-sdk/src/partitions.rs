//! A question to every partition of the cluster.

use futures_util::stream::{self, Stream, StreamExt};

use crate::Client;

/// Partitions that are asked at the same time at most.
pub(crate) const ASKED_AT_ONCE: usize = 32;

impl Client {
    /// Asks every partition, by its number. The answers come in the order of partitions.
    pub(crate) fn ask_partitions<F: Future>(&self, ask: impl Fn(u16) -> F) -> impl Stream<Item = F::Output> {
        stream::iter((0..self.info().partitions).map(ask)).buffered(ASKED_AT_ONCE)
    }
}
