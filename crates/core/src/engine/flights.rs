//! How many deliveries are under way, by partition and destination.
//!
//! Invariant: the timers in memory that are `InFlight` are counted, each once. So a count lasts no
//! longer than the number of its destination.
//! Not in here: which they are (`table`, and for sessions `roster`).

use mtimer_types::PartitionId;

use super::destination_members::DestIx;
use super::hash::{Map, Seeded};

/// Counts of deliveries that were sent and have no outcome.
#[derive(Debug)]
pub(super) struct Flights {
    /// None of them is 0.
    counts: Map<(PartitionId, DestIx), u64>,
}

impl Flights {
    pub(super) fn new(seed: Seeded) -> Self {
        Self { counts: Map::with_hasher(seed) }
    }

    /// A timer gets in flight.
    pub(super) fn begin(&mut self, at: PartitionId, dest: DestIx) {
        *self.counts.entry((at, dest)).or_default() += 1;
    }

    /// A timer is in flight no more.
    pub(super) fn end(&mut self, at: PartitionId, dest: DestIx) {
        let Some(count) = self.counts.get_mut(&(at, dest)) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&(at, dest));
        }
    }

    /// How many timers of a destination are in flight in a partition.
    pub(super) fn of(&self, at: PartitionId, dest: DestIx) -> u64 {
        self.counts.get(&(at, dest)).copied().unwrap_or_default()
    }

    /// How many timers are in flight in a partition. Takes time in proportion to all counts.
    pub(super) fn of_partition(&self, at: PartitionId) -> u64 {
        self.counts.iter().filter(|((of, _), _)| *of == at).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_and_destination_is_counted_alone() {
        let (a, b) = (PartitionId(1), PartitionId(2));
        let mut flights = Flights::new(Seeded(1));
        [(a, 7), (a, 7), (a, 8), (b, 7)].into_iter().for_each(|(at, dest)| flights.begin(at, dest));
        let of = |flights: &Flights| [(a, 7), (a, 8), (b, 7), (b, 8)].map(|(at, dest)| flights.of(at, dest));
        assert_eq!((of(&flights), flights.of_partition(a)), ([2, 1, 1, 0], 3));
        [(a, 7), (b, 7), (b, 8)].into_iter().for_each(|(at, dest)| flights.end(at, dest));
        assert_eq!((of(&flights), flights.of_partition(b)), ([1, 1, 0, 0], 0));
        assert_eq!(flights.counts.len(), 2, "none is 0");
    }
}
