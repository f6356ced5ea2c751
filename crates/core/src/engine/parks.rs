//! The parked timers of one destination, by partition, and those of them on their way back.
//!
//! Invariants: one page of a partition is on its way at a time; `returning` is the sum of the
//! timers of those pages that are not here yet. Counts are estimates: the store knows.

use std::collections::BTreeMap;

use mtimer_store::Record;
use mtimer_types::{PartitionId, Time};

/// Timers that come back from the park at once.
const RETURN_PAGE: u32 = 500;

/// The parked timers of a destination in one partition.
#[derive(Clone, Copy, Debug, Default)]
struct Park {
    /// About how many.
    count: u64,
    /// A page of them is on its way back.
    fetching: bool,
    /// Of that page, how many are not here yet.
    returning: u32,
    /// The earliest deadline that a parked timer has, as far as is known; the beginning of time, if
    /// it is to be found out.
    deadline: Option<Time>,
    /// From when on the first of them is late, as far as is known.
    oldest: Option<Time>,
}

impl Park {
    fn note_deadline(&mut self, deadline: Option<Time>) {
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
    }

    fn note_due(&mut self, due: Time) {
        self.oldest = Some(self.oldest.map_or(due, |oldest| oldest.min(due)));
    }
}

/// The parks of one destination.
#[derive(Debug)]
pub(super) struct Parks {
    by_partition: BTreeMap<PartitionId, Park>,
    /// Timers on their way back.
    returning: u32,
    /// Whose park is to be fetched from next: this partition's or the first after it.
    fetch_from: PartitionId,
}

impl Default for Parks {
    fn default() -> Self {
        Self { by_partition: BTreeMap::new(), returning: 0, fetch_from: PartitionId(0) }
    }
}

impl Parks {
    /// Whether nothing is parked, as far as is known.
    pub(super) fn is_empty(&self) -> bool {
        self.by_partition.is_empty()
    }

    /// Whether a partition may have something parked.
    pub(super) fn has(&self, at: PartitionId) -> bool {
        self.by_partition.contains_key(&at)
    }

    /// About how many timers are parked, with those on their way back.
    pub(super) fn count(&self) -> u64 {
        self.by_partition.values().map(|park| park.count).sum()
    }

    /// How many timers are on their way back.
    pub(super) fn returning(&self) -> u32 {
        self.returning
    }

    /// When the first of the parked timers was due, as far as is known.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.by_partition.values().filter_map(|park| park.oldest).min()
    }

    /// The same of one partition.
    pub(super) fn oldest_in(&self, at: PartitionId) -> Option<Time> {
        self.by_partition.get(&at)?.oldest
    }

    /// Notes that a timer was parked.
    pub(super) fn add(&mut self, at: PartitionId, record: &Record) {
        let park = self.by_partition.entry(at).or_default();
        park.count += 1;
        park.note_deadline(record.timer.deadline);
        park.note_due(record.late_from());
    }

    /// Notes a parked timer anew whose record has changed. It was counted when it was parked.
    pub(super) fn add_again(&mut self, at: PartitionId, record: &Record) {
        let Some(park) = self.by_partition.get_mut(&at) else { return self.add(at, record) };
        park.note_deadline(record.timer.deadline);
        park.note_due(record.late_from());
    }

    /// Notes the parked timers that a new owner finds. Their deadlines are to be found out.
    pub(super) fn add_found(&mut self, at: PartitionId, count: u64) {
        let park = self.by_partition.entry(at).or_default();
        park.count += count;
        park.note_deadline(Some(Time::ZERO));
    }

    /// Forgets the parked timers of a partition that is given up.
    pub(super) fn forget(&mut self, at: PartitionId) {
        self.by_partition.remove(&at);
    }

    /// Begins to fetch a page if `credit` is more than the `waiting` timers and those on their way
    /// back can use. Returns the partition, and the most timers of the page. The partitions take
    /// turns, so that one that is parked in all the time does not keep the others' waiting.
    pub(super) fn begin_fetch(&mut self, credit: u64, waiting: u64) -> Option<(PartitionId, u32)> {
        let fetches = self.by_partition.values().filter(|p| p.fetching).count() as u64;
        let coming = waiting + u64::from(self.returning) + fetches * u64::from(RETURN_PAGE);
        let wanted = credit.saturating_sub(coming);
        if wanted == 0 {
            return None;
        }
        let turns = self.by_partition.range(self.fetch_from..).chain(&self.by_partition);
        let at = turns.filter(|(_, p)| !p.fetching && p.count > 0).map(|(at, _)| *at).next()?;
        self.fetch_from = PartitionId(at.0.saturating_add(1));
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.fetching = true;
        }
        Some((at, wanted.min(u64::from(RETURN_PAGE)) as u32))
    }

    /// A page is here, and `coming` timers of it are on their way back to the pending ones.
    /// `oldest`: when the first of the page was due; the longest parked come first, so the rest is
    /// hardly older. `is_last`: nothing comes after the page.
    pub(super) fn page_arrived(&mut self, at: PartitionId, coming: u32, oldest: Option<Time>, is_last: bool) {
        self.returning += coming;
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.returning += coming;
            park.oldest = oldest;
            park.fetching = coming > 0;
            if coming == 0 && is_last {
                self.by_partition.remove(&at);
            }
        }
    }

    /// A timer has left the park, or memory on its way back; the next page may be fetched when the
    /// last one is here.
    pub(super) fn one_returned(&mut self, at: PartitionId) {
        self.returning = self.returning.saturating_sub(1);
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.count = park.count.saturating_sub(1);
            park.returning = park.returning.saturating_sub(1);
            park.fetching = park.returning > 0;
            if park.count == 0 && !park.fetching {
                self.by_partition.remove(&at);
            }
        }
    }

    /// Notes that a timer has left the park by another way.
    pub(super) fn one_left(&mut self, at: PartitionId) {
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.count = park.count.saturating_sub(1);
            if park.count == 0 && !park.fetching {
                self.by_partition.remove(&at);
            }
        }
    }

    /// Whether a timer that is parked in a partition may have missed its deadline.
    pub(super) fn is_overdue(&self, at: PartitionId, now: Time) -> bool {
        let missed = |p: &Park| !p.fetching && p.deadline.is_some_and(|deadline| deadline < now);
        self.by_partition.get(&at).is_some_and(missed)
    }

    /// A sweep of a partition's park begins: it finds out the next deadline.
    pub(super) fn begin_sweep(&mut self, at: PartitionId) {
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.deadline = None;
        }
    }

    /// Notes the result of one page of a sweep: the earliest deadline that has not passed, and when
    /// the first of its timers was due.
    pub(super) fn note_swept(&mut self, at: PartitionId, earliest: Option<Time>, oldest: Option<Time>) {
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.note_deadline(earliest);
            oldest.into_iter().for_each(|due| park.note_due(due));
        }
    }

    /// The next deadline in a partition's park, as far as is known.
    #[cfg(test)]
    pub(super) fn deadline(&self, at: PartitionId) -> Option<Time> {
        self.by_partition.get(&at)?.deadline
    }

    /// How many partitions may have something parked.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_partition.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(0);
    const Q: PartitionId = PartitionId(3);

    /// Two partitions that have parked so many.
    fn parks(counts: [u64; 2]) -> Parks {
        let mut parks = Parks::default();
        [P, Q].into_iter().zip(counts).for_each(|(at, count)| parks.add_found(at, count));
        parks
    }

    #[test]
    fn pages_are_fetched_for_credit_that_nothing_else_uses_one_of_a_partition_at_a_time() {
        let mut parks = parks([1_000, 1_000]);
        assert_eq!(parks.begin_fetch(10, 10), None);
        assert_eq!(parks.begin_fetch(12, 10), Some((P, 2)));
        assert_eq!(parks.begin_fetch(12, 10), None, "a page counts as full until it is here");
        assert_eq!(parks.begin_fetch(5_000, 10), Some((Q, RETURN_PAGE)));
        assert_eq!(parks.begin_fetch(5_000, 10), None, "both are on their way");
        parks.page_arrived(P, 2, None, false);
        assert_eq!((parks.returning(), parks.begin_fetch(5_000, 10)), (2, None));
        (0..2).for_each(|_| parks.one_returned(P));
        assert_eq!((parks.count(), parks.begin_fetch(5_000, 10)), (1_998, Some((P, RETURN_PAGE))));
    }

    #[test]
    fn a_park_is_forgotten_when_all_has_returned_or_nothing_was_found() {
        let mut parks = parks([1, 5]);
        parks.page_arrived(P, 1, None, true);
        assert!(parks.has(P));
        parks.one_returned(P);
        parks.page_arrived(Q, 0, None, true);
        assert!(parks.is_empty());
    }

    #[test]
    fn a_sweep_looks_for_deadlines_that_are_not_known_and_notes_the_next() {
        let mut parks = parks([5, 5]);
        let at = Time::from_ms;
        assert!(parks.is_overdue(Q, at(1_000)));
        parks.begin_sweep(Q);
        assert!(!parks.is_overdue(Q, at(1_000)) && parks.is_overdue(P, at(1_000)));
        parks.note_swept(Q, Some(at(2_000)), Some(at(100)));
        parks.note_swept(Q, None, Some(at(50)));
        assert_eq!((parks.is_overdue(Q, at(2_000)), parks.oldest()), (false, Some(at(50))));
        assert!(parks.is_overdue(Q, at(2_001)), "after the deadline, not at it");
    }
}
