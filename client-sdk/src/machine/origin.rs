//! One connection, as everything that came over it remembers it.

use std::sync::atomic::{AtomicU8, Ordering};

/// The fate of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is there.
    Open,
    /// Its broker had said that it stops, and has handed over its in-flight list: the partition's
    /// next owner waits for the outcomes and makes no new delivery before the old one's time is
    /// over.
    Ended,
    /// It broke: the broker, or the one that takes its place, delivers unsettled timers again.
    Lost,
}

/// A connection past its handshake.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The connection's number.
    pub(crate) connection: u64,
    /// The broker's address in its cluster; `None`: it has no cluster around it.
    pub(crate) name: Option<String>,
    fate: AtomicU8,
}

impl Origin {
    pub(crate) const fn new(connection: u64, name: Option<String>) -> Self {
        Self { connection, name, fate: AtomicU8::new(0) }
    }

    pub(crate) fn fate(&self) -> Fate {
        match self.fate.load(Ordering::Relaxed) {
            0 => Fate::Open,
            1 => Fate::Ended,
            _ => Fate::Lost,
        }
    }

    /// The connection is gone. `in_order`: the broker had said before that it stops.
    pub(crate) fn ended(&self, in_order: bool) {
        let handed_over = in_order && self.name.is_some();
        self.fate.store(if handed_over { 1 } else { 2 }, Ordering::Relaxed);
    }
}
