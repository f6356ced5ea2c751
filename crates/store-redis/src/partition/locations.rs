//! Where the timers are that a turn is about.

use std::collections::{HashMap, HashSet};

use mtimer_types::TimerId;

use crate::keyspace::value::Location;

/// Where timers are. A timer without a row whose entry in `moved` is damaged, or names a slot that
/// does not have it, is at [`Location::Moved`]: the next write replaces or removes the entry.
#[derive(Default)]
pub(crate) struct Locations {
    known: HashMap<TimerId, Location>,
    /// Timers of which only the place was needed, and was known. `None`: all timers are read.
    unread: Option<HashSet<TimerId>>,
}

impl Locations {
    /// Timers that are removed by their key need not be read, see [`Owner::row_of_key`].
    pub(crate) fn without_reading() -> Self {
        Self { unread: Some(HashSet::new()), ..Self::default() }
    }

    /// Where a timer is.
    pub(crate) fn get(&self, id: TimerId) -> Option<Location> {
        self.known.get(&id).copied()
    }

    /// A timer was read from there.
    pub(crate) fn insert(&mut self, id: TimerId, at: Location) {
        self.known.insert(id, at);
    }

    /// Whether it is enough to know where a timer is.
    pub(crate) fn may_be_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// Notes where a timer is, by the owner's knowledge; its contents were not read.
    pub(crate) fn insert_unread(&mut self, id: TimerId, at: Location) {
        self.insert(id, at);
        self.unread.iter_mut().for_each(|unread| _ = unread.insert(id));
    }

    /// Whether the timer's contents are unknown.
    pub(crate) fn is_unread(&self, id: TimerId) -> bool {
        self.unread.as_ref().is_some_and(|unread| unread.contains(&id))
    }
}
