//! Deliveries that a partition's previous owner left under way and that have no outcome yet.
//!
//! They count as sent, also when their time is over; a later delivery (a retry, a replay) is this
//! owner's own. The previous owner names them when it releases the partition.
//! Invariant: at most one for each timer; it stays until the store has its outcome or has counted
//! it as a failed attempt, or until all timers that were sent before have been read without its
//! own.
//! Not in here: when that has been read (`handover`).

use mtimer_store::{InFlight, Record};
use mtimer_types::TimerId;

use super::hash::{Map, Seeded};
use super::table::TimerTable;

/// The inherited deliveries of one partition.
#[derive(Debug)]
pub(super) struct Inherited(Map<TimerId, InFlight>);

impl Inherited {
    pub(super) fn new(seed: Seeded) -> Self {
        Self(Map::with_hasher(seed))
    }

    /// Takes over the deliveries that the previous owner has named.
    pub(super) fn take_over(&mut self, deliveries: impl IntoIterator<Item = InFlight>) {
        self.0.extend(deliveries.into_iter().map(|f| (f.id, f)));
    }

    /// Returns the delivery of a timer.
    pub(super) fn get(&self, id: TimerId) -> Option<&InFlight> {
        self.0.get(&id)
    }

    /// Returns the delivery of a timer, unless the store has counted it since as a failed attempt.
    pub(super) fn current(&self, record: &Record) -> Option<&InFlight> {
        self.get(record.timer.id).filter(|f| f.attempt > record.progress.failed)
    }

    /// Says whether this attempt was left under way to this client.
    pub(super) fn is_with(&self, id: TimerId, attempt: u32, client: u128) -> bool {
        self.get(id).is_some_and(|f| f.attempt == attempt && f.session == client)
    }

    /// Drops the delivery of a timer: the store has its outcome, or has counted it.
    pub(super) fn remove(&mut self, id: TimerId) {
        self.0.remove(&id);
    }

    /// Says whether the timer of one is not in memory.
    pub(super) fn has_unread(&self, table: &TimerTable) -> bool {
        self.0.keys().any(|id| !table.contains(*id))
    }

    /// Drops those whose timers are not in memory.
    pub(super) fn drop_unread(&mut self, table: &TimerTable) {
        self.0.retain(|id, _| table.contains(*id));
    }

    /// Returns all of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.0.values()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mtimer_types::{Destination, PartitionId, Time, Timer};

    use super::*;

    fn record(id: TimerId, failed: u32) -> Record {
        let timer = Timer::new(id, Destination::new("group", "app").unwrap(), Time::from_ms(1_000));
        let mut record = Record::new(Arc::new(timer));
        record.progress.failed = failed;
        record
    }

    #[test]
    fn a_delivery_counts_until_the_store_has_counted_its_attempt() {
        let id = TimerId::new(Time::from_ms(1_000), Time::ZERO, PartitionId(0), 1);
        let mut inherited = Inherited::new(Seeded(1));
        inherited.take_over([InFlight { id, attempt: 2, session: 7, until: Time::from_ms(5_000) }]);
        assert!(inherited.current(&record(id, 1)).is_some());
        assert!(inherited.current(&record(id, 2)).is_none());
        assert!(inherited.is_with(id, 2, 7));
        assert!(!inherited.is_with(id, 1, 7) && !inherited.is_with(id, 2, 8));
        inherited.remove(id);
        assert!(inherited.get(id).is_none());
    }

    #[test]
    fn those_whose_timers_were_not_found_are_dropped() {
        let id = TimerId::from_u128(1);
        let (mut inherited, table) = (Inherited::new(Seeded(1)), TimerTable::new(Seeded(1)));
        assert!(!inherited.has_unread(&table));
        inherited.take_over([InFlight { id, attempt: 1, session: 1, until: Time::ZERO }]);
        assert!(inherited.has_unread(&table));
        inherited.drop_unread(&table);
        assert_eq!(inherited.len(), 0);
    }
}
