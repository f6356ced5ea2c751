//! How many timers of each destination are in no slot: parked, taken, unconfirmed, dead.
//!
//! Parked ones are counted when the partition is acquired. The others are counted by reading their
//! listings, bit by bit, while timers come and go: until that has ended, those that were counted are
//! remembered, so that none is counted twice, and none is taken off that was not counted.

use std::collections::{HashMap, HashSet};

use mtimer_store::Counts;
use mtimer_store::table::At;
use mtimer_types::TimerId;

use crate::keyspace::keys::ListingKey;

/// A place of a timer that is in no slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aside {
    Parked,
    Taken,
    Unconfirmed,
    Dead,
}

/// A timer of a destination, by its number, goes from one place to another. `None`: a slot, or
/// nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shift {
    pub(crate) id: TimerId,
    pub(crate) dest: u32,
    pub(crate) before: Option<Aside>,
    pub(crate) after: Option<Aside>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: HashMap<u32, Counts>,
    /// `None`: everything is counted.
    counting: Option<Counting>,
}

/// A count that has not come to its end.
#[derive(Debug)]
struct Counting {
    /// The listing that is being read, and where it goes on.
    at: (ListingKey, u64),
    /// The timers that are counted.
    seen: HashSet<TimerId>,
    /// How many are not.
    left: u64,
}

impl Aside {
    /// The place; `None`: a slot.
    pub(crate) const fn of(at: At) -> Option<Self> {
        match at {
            At::Pending { .. } => None,
            At::Parked => Some(Self::Parked),
            At::Taken { .. } => Some(Self::Taken),
            At::Unconfirmed { .. } => Some(Self::Unconfirmed),
            At::Dead { .. } => Some(Self::Dead),
        }
    }

    /// The listing of those that are there; of parked ones, the list of their destinations.
    pub(crate) const fn listing(self) -> ListingKey {
        match self {
            Self::Parked => ListingKey::Park,
            Self::Taken => ListingKey::Taken,
            Self::Unconfirmed => ListingKey::Unconfirmed,
            Self::Dead => ListingKey::Dead,
        }
    }

    const fn count(self, counts: &mut Counts) -> &mut u64 {
        match self {
            Self::Parked => &mut counts.parked,
            Self::Taken => &mut counts.taken,
            Self::Unconfirmed => &mut counts.unconfirmed,
            Self::Dead => &mut counts.dead,
        }
    }
}

impl Tally {
    /// What an acquisition has found: parked timers by destination, and how many timers are listed
    /// as taken, unconfirmed or dead.
    pub(crate) fn found(&mut self, parked: impl IntoIterator<Item = (u32, u64)>, listed: u64) {
        for (dest, count) in parked {
            self.counts.entry(dest).or_default().parked = count;
        }
        let begin = || Counting { at: (ListingKey::Taken, 0), seen: HashSet::new(), left: listed };
        self.counting = (listed > 0).then(begin);
    }

    /// Takes note of a timer that has moved.
    pub(crate) fn shift(&mut self, Shift { id, dest, before, after }: Shift) {
        if let Some(before) = before
            && self.is_counted(id, before)
        {
            let counts = self.counts.entry(dest).or_default();
            let count = before.count(counts);
            *count = count.saturating_sub(1);
            if *counts == Counts::default() {
                self.counts.remove(&dest);
            }
        }
        if let Some(after) = after {
            self.add(id, dest, after);
        }
    }

    /// Whether a timer that leaves its place is in the counts. It is not there any more.
    fn is_counted(&mut self, id: TimerId, before: Aside) -> bool {
        match &mut self.counting {
            Some(counting) if before != Aside::Parked => {
                let is_counted = counting.seen.remove(&id) || broken!(UncountedTakenOff);
                counting.left -= u64::from(!is_counted && counting.left > 0);
                is_counted
            }
            _ => true,
        }
    }

    fn add(&mut self, id: TimerId, dest: u32, place: Aside) {
        if let Some(counting) = self.counting.as_mut().filter(|_| place != Aside::Parked) {
            counting.seen.insert(id);
        }
        *place.count(self.counts.entry(dest).or_default()) += 1;
    }

    /// The listing to read next, and from where on; `None`: everything is counted.
    pub(crate) fn to_read(&self) -> Option<(ListingKey, u64)> {
        self.counting.as_ref().map(|counting| counting.at)
    }

    /// A timer was found in the listing that is being read.
    pub(crate) fn saw(&mut self, id: TimerId, dest: u32, place: Aside) {
        let Some(counting) = &mut self.counting else { return };
        if !counting.seen.contains(&id) || broken!(CountedTwice) {
            counting.left = counting.left.saturating_sub(1);
            self.add(id, dest, place);
        }
    }

    /// The listing goes on there; `None`: with the next one.
    pub(crate) fn read_up_to(&mut self, next: Option<u64>) {
        let Some(counting) = &mut self.counting else { return };
        let next_listing = || match counting.at.0 {
            ListingKey::Taken => Some(ListingKey::Unconfirmed),
            ListingKey::Unconfirmed => Some(ListingKey::Dead),
            ListingKey::Dead | ListingKey::Park | ListingKey::ParkOf(_) => None,
        };
        let at = next.map(|next| (counting.at.0, next)).or_else(|| next_listing().map(|of| (of, 0)));
        match at {
            Some(at) => counting.at = at,
            None => self.counting = None,
        }
    }

    /// Timers that are not counted yet; 1 at least until the count has ended.
    pub(crate) fn uncounted(&self) -> u64 {
        self.counting.as_ref().map_or(0, |counting| counting.left.max(1))
    }

    /// The counts of a destination, by its number.
    pub(crate) fn of(&self, dest: u32) -> Counts {
        self.counts.get(&dest).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEST: u32 = 3;

    fn id(n: u128) -> TimerId {
        TimerId::from_u128(n)
    }

    fn shift(n: u128, before: Option<Aside>, after: Option<Aside>) -> Shift {
        Shift { id: id(n), dest: DEST, before, after }
    }

    #[test]
    fn what_comes_and_goes_while_it_counts_is_counted_once() {
        let mut tally = Tally::default();
        tally.found([(DEST, 7)], 4);
        // Of the timers 1 to 4, dead letters, 1 was counted, 2 leaves uncounted, 1 leaves counted;
        // 5 comes and is found by the count, too.
        while tally.to_read().is_some_and(|(listing, _)| listing != ListingKey::Dead) {
            tally.read_up_to(None);
        }
        tally.saw(id(1), DEST, Aside::Dead);
        tally.read_up_to(Some(9));
        assert_eq!(tally.to_read(), Some((ListingKey::Dead, 9)));
        tally.shift(shift(2, Some(Aside::Dead), None));
        tally.shift(shift(1, Some(Aside::Dead), None));
        tally.shift(shift(5, None, Some(Aside::Dead)));
        tally.shift(shift(6, Some(Aside::Parked), Some(Aside::Taken)));
        assert_eq!(tally.uncounted(), 2);
        for n in [3, 4, 5] {
            tally.saw(id(n), DEST, Aside::Dead);
        }
        assert_eq!(tally.uncounted(), 1, "the listing may have more");
        tally.read_up_to(None);
        assert_eq!(tally.uncounted(), 0);
        tally.shift(shift(4, Some(Aside::Dead), None));
        let counts = Counts { parked: 6, taken: 1, dead: 2, ..Counts::default() };
        assert_eq!(tally.of(DEST), counts);
    }
}
