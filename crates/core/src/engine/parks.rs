//! The parked timers of one destination, by partition, and those of them on their way back.
//!
//! Which classes a park has is learned as timers are parked, and from the pages that are read of
//! it.
//!
//! Invariants: one page of a partition is on its way at a time; `returning` is the sum of the
//! timers of those pages that are not here yet. Counts are estimates: the store knows.

use std::collections::BTreeMap;

use mtimer_store::Record;
use mtimer_store::listing::{park_priority, park_start};
use mtimer_types::{PartitionId, Priority, Time};

use super::turns::{EachClass, Turns};

/// Timers that come back from the park at once.
const RETURN_PAGE: u32 = 500;

/// The parked timers of a destination in one partition.
#[derive(Clone, Copy, Debug, Default)]
struct Park {
    /// About how many.
    count: u64,
    /// There may be timers of these classes.
    classes: EachClass<bool>,
    /// There may be timers of other classes, too: its first page is still to be read.
    is_found: bool,
    /// A page of them is on its way back: from this class on.
    fetching: bool,
    fetched: Priority,
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

    /// Whether it may have timers of a class that is fetched.
    fn may_have(&self, class: Priority) -> bool {
        !self.fetching && self.count > 0 && (self.is_found || self.classes[class.rank()])
    }

    /// Learns from a page that was read from the class `fetched` on.
    fn note_page(&mut self, page: &ArrivedPage) {
        let next = page.next.map(|next| park_priority(next).unwrap_or_default());
        for class in Priority::ALL.into_iter().filter(|class| *class >= self.fetched) {
            let known = &mut self.classes[class.rank()];
            *known = page.coming > 0 && page.classes[class.rank()]
                || match next {
                    Some(next) => class == next || class > next && *known,
                    None => false,
                };
        }
        self.is_found &= self.fetched != Priority::Urgent;
    }

    fn note_due(&mut self, due: Time) {
        self.oldest = Some(self.oldest.map_or(due, |oldest| oldest.min(due)));
    }
}

/// A page of a park to be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FetchedPage {
    /// Of which partition.
    pub(super) at: PartitionId,
    /// Where it begins.
    pub(super) cursor: u64,
    /// The most timers of it.
    pub(super) limit: u32,
}

/// A page of a park that is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ArrivedPage {
    /// Timers of it that are on their way back to the pending ones.
    pub(super) coming: u32,
    /// When the first of it was due.
    pub(super) oldest: Option<Time>,
    /// The classes of its timers.
    pub(super) classes: EachClass<bool>,
    /// Where the next page begins.
    pub(super) next: Option<u64>,
}

/// The classes of these timers.
pub(super) fn classes_of(rows: &[Record]) -> EachClass<bool> {
    let mut classes = [false; Priority::COUNT];
    rows.iter().for_each(|row| classes[row.timer.priority().rank()] = true);
    classes
}

/// The parks of one destination.
#[derive(Debug)]
pub(super) struct Parks {
    by_partition: BTreeMap<PartitionId, Park>,
    /// Timers on their way back.
    returning: u32,
    /// Whose park is to be fetched from next: this partition's or the first after it.
    fetch_from: PartitionId,
    /// Which class of them is fetched next; a page is a turn.
    turns: Turns,
}

impl Default for Parks {
    fn default() -> Self {
        let (by_partition, turns) = (BTreeMap::new(), Turns::default());
        Self { by_partition, returning: 0, fetch_from: PartitionId(0), turns }
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
        park.classes[record.timer.priority().rank()] = true;
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
        park.is_found = true;
        park.note_deadline(Some(Time::ZERO));
    }

    /// Forgets the parked timers of a partition that is given up.
    pub(super) fn forget(&mut self, at: PartitionId) {
        self.by_partition.remove(&at);
    }

    /// Begins to fetch a page of the class that goes next, if `credit` is more than those can use
    /// that wait in memory, are of this class or a more urgent one (`waiting`), or are on their way
    /// back. The partitions take turns, so that one that is parked in all the time does not keep
    /// the others' waiting. What is found in a park is read from its beginning first.
    pub(super) fn begin_fetch(
        &mut self,
        credit: u64,
        waiting: impl Fn(Priority) -> u64,
        is_strict: bool,
    ) -> Option<FetchedPage> {
        let fetches = self.by_partition.values().filter(|p| p.fetching).count() as u64;
        let coming = u64::from(self.returning) + fetches * u64::from(RETURN_PAGE);
        let wanted = |class| credit.saturating_sub(coming + waiting(class));
        if wanted(Priority::Urgent) == 0 {
            return None;
        }
        let known = Priority::ALL.map(|class| {
            wanted(class) > 0
                && self.by_partition.values().any(|p| p.classes[class.rank()] && p.may_have(class))
        });
        // If no class is known, the beginning of a park that was found tells.
        let class = self.turns.next(known, is_strict).unwrap_or(Priority::Low);
        let limit = wanted(class).min(u64::from(RETURN_PAGE)) as u32;
        let turns = self.by_partition.range(self.fetch_from..).chain(&self.by_partition);
        let at = turns.filter(|(_, p)| limit > 0 && p.may_have(class)).map(|(at, _)| *at).next()?;
        self.turns.took(class, known);
        self.fetch_from = PartitionId(at.0.saturating_add(1));
        let park = self.by_partition.get_mut(&at)?;
        park.fetching = true;
        park.fetched = if park.is_found { Priority::Urgent } else { class };
        Some(FetchedPage { at, cursor: park_start(park.fetched), limit })
    }

    /// A page is here. Of one class the longest parked come first, so the rest of it is hardly
    /// older.
    pub(super) fn page_arrived(&mut self, at: PartitionId, page: &ArrivedPage) {
        self.returning += page.coming;
        if let Some(park) = self.by_partition.get_mut(&at) {
            park.returning += page.coming;
            park.note_page(page);
            let has_others = park.classes.iter().zip(page.classes).any(|(known, here)| *known && !here);
            let before = park.oldest.filter(|_| has_others);
            park.oldest = [before, page.oldest].into_iter().flatten().min();
            park.fetching = page.coming > 0;
            if page.coming == 0 && page.next.is_none() && park.classes.iter().all(|known| !known) {
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

    /// Notes the result of one page of a sweep: the earliest deadline that has not passed, when the
    /// first of its timers was due, and of which classes they are.
    pub(super) fn note_swept(
        &mut self,
        at: PartitionId,
        earliest: Option<Time>,
        oldest: Option<Time>,
        classes: EachClass<bool>,
    ) {
        if let Some(park) = self.by_partition.get_mut(&at) {
            (0..Priority::COUNT).for_each(|rank| park.classes[rank] |= classes[rank]);
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

    /// A fetch of timers that are all normal.
    fn fetch(parks: &mut Parks, credit: u64, waiting: u64) -> Option<(PartitionId, u32)> {
        let page =
            parks.begin_fetch(credit, |class| if class < Priority::Normal { 0 } else { waiting }, false);
        page.map(|page| (page.at, page.limit))
    }

    /// A page of so many normal timers.
    fn normal(coming: u32, has_more: bool) -> ArrivedPage {
        let next = has_more.then_some(park_start(Priority::Normal) + 1_000);
        ArrivedPage { coming, oldest: None, classes: [false, false, true, false], next }
    }

    #[test]
    fn pages_are_fetched_for_credit_that_nothing_else_uses_one_of_a_partition_at_a_time() {
        let mut parks = parks([1_000, 1_000]);
        assert_eq!(fetch(&mut parks, 10, 10), None);
        assert_eq!(fetch(&mut parks, 12, 10), Some((P, 2)));
        assert_eq!(fetch(&mut parks, 12, 10), None, "a page counts as full until it is here");
        assert_eq!(fetch(&mut parks, 5_000, 10), Some((Q, RETURN_PAGE)));
        assert_eq!(fetch(&mut parks, 5_000, 10), None, "both are on their way");
        parks.page_arrived(P, &normal(2, true));
        assert_eq!((fetch(&mut parks, 5_000, 10), parks.returning()), (None, 2));
        (0..2).for_each(|_| parks.one_returned(P));
        assert_eq!((fetch(&mut parks, 5_000, 10), parks.count()), (Some((P, RETURN_PAGE)), 1_998));
    }

    #[test]
    fn a_park_is_forgotten_when_all_has_returned_or_nothing_was_found() {
        let mut parks = parks([1, 5]);
        parks.page_arrived(P, &normal(1, false));
        assert!(parks.has(P));
        parks.one_returned(P);
        parks.page_arrived(Q, &ArrivedPage::default());
        assert!(parks.is_empty());
    }

    #[test]
    fn a_sweep_looks_for_deadlines_that_are_not_known_and_notes_the_next() {
        let mut parks = parks([5, 5]);
        let at = Time::from_ms;
        assert!(parks.is_overdue(Q, at(1_000)));
        parks.begin_sweep(Q);
        assert!(!parks.is_overdue(Q, at(1_000)) && parks.is_overdue(P, at(1_000)));
        parks.note_swept(Q, Some(at(2_000)), Some(at(100)), [false; 4]);
        parks.note_swept(Q, None, Some(at(50)), [false; 4]);
        assert_eq!((parks.is_overdue(Q, at(2_000)), parks.oldest()), (false, Some(at(50))));
        assert!(parks.is_overdue(Q, at(2_001)), "after the deadline, not at it");
    }

    /// The class that is fetched, of two partitions that have parked timers of all classes.
    fn classes(parks: &mut Parks, pages: usize, is_strict: bool) -> EachClass<usize> {
        let mut fetched = [0; Priority::COUNT];
        for _ in 0..pages {
            let page = parks.begin_fetch(1, |_| 0, is_strict).unwrap();
            let class = park_priority(page.cursor).unwrap();
            fetched[class.rank()] += 1;
            let mut classes = [false; Priority::COUNT];
            classes[class.rank()] = true;
            let next = Some(page.cursor + 1);
            parks.page_arrived(page.at, &ArrivedPage { coming: 1, oldest: None, classes, next });
            parks.one_returned(page.at);
        }
        fetched
    }

    fn of_all_classes() -> Parks {
        let mut parks = parks([1_000, 1_000]);
        for at in [P, Q] {
            let page = parks.begin_fetch(1, |_| 0, false).unwrap();
            assert_eq!((page.at, page.cursor), (at, 0), "what was found is read from its beginning");
            let next = Some(park_start(Priority::Urgent) + 7);
            let classes = [true, false, false, false];
            parks.page_arrived(at, &ArrivedPage { coming: 1, oldest: None, classes, next });
            parks.one_returned(at);
            parks.note_swept(at, None, None, [true; 4]);
        }
        parks.turns = Turns::default();
        parks
    }

    #[test]
    fn pages_are_fetched_by_class_as_their_weights_are_or_strictly() {
        let mut parks = of_all_classes();
        for _ in 0..5 {
            assert_eq!(classes(&mut parks, 15, false), [8, 4, 2, 1]);
        }
        assert_eq!(classes(&mut parks, 15, true), [15, 0, 0, 0]);
    }

    #[test]
    fn credit_that_more_urgent_timers_in_memory_use_fetches_no_others() {
        let mut parks = of_all_classes();
        // Normal ones wait in memory.
        let waiting = |class| if class < Priority::Normal { 0 } else { 10 };
        let page = parks.begin_fetch(5, waiting, false).unwrap();
        assert_eq!((park_priority(page.cursor), page.limit), (Some(Priority::Urgent), 5));
        parks.page_arrived(page.at, &ArrivedPage { coming: 5, oldest: None, classes: [true; 4], next: None });
        assert_eq!(parks.begin_fetch(5, waiting, false), None);
        assert_eq!(parks.begin_fetch(500, |_| 495, false), None);
    }

    #[test]
    fn a_page_tells_which_classes_there_are_and_the_last_one_of_a_class_that_there_are_no_more() {
        let mut parks = of_all_classes();
        parks.forget(Q);
        let strictly = |parks: &mut Parks| {
            let page = parks.begin_fetch(1, |_| 0, true).unwrap();
            park_priority(page.cursor).unwrap()
        };
        assert_eq!(strictly(&mut parks), Priority::Urgent);
        // The page has the last urgent one, and behind it comes a normal one.
        let next = Some(park_start(Priority::Normal) + 9);
        let page = ArrivedPage { coming: 1, oldest: None, classes: [true, false, false, false], next };
        parks.page_arrived(P, &page);
        parks.one_returned(P);
        assert_eq!(strictly(&mut parks), Priority::Urgent, "others may have come");
        parks.page_arrived(P, &ArrivedPage { next, ..ArrivedPage::default() });
        assert_eq!(strictly(&mut parks), Priority::Normal);
        parks.page_arrived(P, &ArrivedPage::default());
        assert!(parks.is_empty(), "nothing is left of this class and of less urgent ones");
    }
}
