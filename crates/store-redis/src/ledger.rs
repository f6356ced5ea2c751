//! Which of a wide slot's siblings an id may be in.
//!
//! A wide slot's siblings are filled one after another, so nothing in an id tells in which of them it is: of those that it has seen from
//! their first timer on, or was told the ids of, an owner keeps four bytes of every id that it has filed there: 26 bits of the id's print, and
//! the sibling. An id whose print is not among them is in none of those siblings, for certain. What has left a sibling stays among its
//! prints: they go when the sibling does.
//!
//! The prints are sorted but for the latest, as a log-structured merge tree has it (O'Neil and others 1996), and evenly distributed: a look
//! is an interpolation search (Peterson 1957).

use mtimer_types::TimerId;

/// Siblings of a wide slot.
pub(crate) const SIBLINGS: u32 = u64::BITS;
/// Bits of an entry that name the sibling.
const SIBLING_BITS: u32 = SIBLINGS.ilog2();
/// Prints that are kept of a sibling: of one whose timers come and go until it has had more they are not known any more.
pub(crate) const MOST_PRINTS: u16 = 512;
/// Entries that are not sorted.
const FRESH: usize = 128;

/// See the module. Of an empty slot to begin with.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    sorted: Vec<u32>,
    fresh: Vec<u32>,
    /// Of each sibling, how many entries it has.
    noted: [u16; SIBLINGS as usize],
    /// Siblings that may have any id, a bit each.
    unknown: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { sorted: Vec::new(), fresh: Vec::new(), noted: [0; SIBLINGS as usize], unknown: 0 }
    }
}

impl Ledger {
    /// Any id may be in this sibling.
    pub(crate) fn lose(&mut self, sibling: u32) {
        self.forget(sibling);
        self.unknown |= 1 << sibling;
    }

    /// The id may be in this sibling from now on. False: so may any id, since just now.
    pub(crate) fn note(&mut self, sibling: u32, id: TimerId) -> bool {
        if (self.unknown | self.likely(id)) >> sibling & 1 == 1 {
            return true;
        }
        let noted = &mut self.noted[sibling as usize];
        if *noted == MOST_PRINTS {
            self.lose(sibling);
            return false;
        }
        *noted += 1;
        self.fresh.push(print(id) << SIBLING_BITS | sibling);
        if self.fresh.len() >= FRESH {
            self.fresh.sort_unstable();
            self.sorted.reserve_exact(self.fresh.len());
            self.sorted.append(&mut self.fresh);
            // Two sorted runs: it merges them.
            self.sorted.sort();
        }
        true
    }

    /// These ids are in this sibling, and no others.
    pub(crate) fn tell(&mut self, sibling: u32, ids: impl Iterator<Item = TimerId>) {
        self.forget(sibling);
        ids.for_each(|id| _ = self.note(sibling, id));
    }

    /// Nothing is in this sibling any more.
    pub(crate) fn forget(&mut self, sibling: u32) {
        self.unknown &= !(1 << sibling);
        if std::mem::take(&mut self.noted[sibling as usize]) > 0 {
            let others = |entry: &u32| entry & (SIBLINGS - 1) != sibling;
            self.sorted.retain(others);
            self.fresh.retain(others);
        }
    }

    /// Siblings that have the id almost certainly, a bit each; all others that are not among the unknown ones do not have it.
    pub(crate) fn likely(&self, id: TimerId) -> u64 {
        let first = print(id) << SIBLING_BITS;
        let same = |entry: &&u32| **entry & !(SIBLINGS - 1) == first;
        let found = self.sorted[self.first_not_below(first)..]
            .iter()
            .take_while(same)
            .chain(self.fresh.iter().filter(same));
        found.fold(0, |siblings, entry| siblings | 1 << (entry & (SIBLINGS - 1)))
    }

    /// Where the sorted entries that are not below this one begin. They are evenly distributed: an interpolation search, which in most cases
    /// looks at one neighbourhood in memory.
    fn first_not_below(&self, entry: u32) -> usize {
        let (sorted, below) = (&self.sorted, |at: usize| self.sorted[at] < entry);
        let guess = ((u64::from(entry) * sorted.len() as u64) >> u32::BITS) as usize;
        let (mut from, mut to, mut step) = (guess, guess, 16);
        while from > 0 && !below(from - 1) {
            (to, from, step) = (from, from.saturating_sub(step), step * 2);
        }
        while to < sorted.len() && below(to) {
            (from, to, step) = (to, (to + step).min(sorted.len()), step * 2);
        }
        from + sorted[from..to].partition_point(|other| *other < entry)
    }

    /// Siblings whose ids are not known, a bit each.
    pub(crate) const fn unknown(&self) -> u64 {
        self.unknown
    }
}

/// What is kept of an id: 26 bits, wherever in it two ids differ.
const fn print(id: TimerId) -> u32 {
    let mixed = (id.random() ^ id.birth_due().as_ms() << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - (u32::BITS - SIBLING_BITS))) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mtimer_types::{PartitionId, SlotWidth, Time};
    use proptest::prelude::*;

    use super::*;

    fn id(n: u64) -> TimerId {
        TimerId::with_width(Time::from_ms(7_000 + n % 3), SlotWidth::Hour, PartitionId(0), n / 3)
    }

    #[test]
    fn what_was_noted_is_found_where_it_is_and_hardly_elsewhere() {
        let mut ledger = Ledger::default();
        (0..64 * 128).for_each(|n| assert!(ledger.note((n / 128) as u32, id(n))));
        let elsewhere = |n: u64| ledger.likely(id(n)) & !(1 << (n / 128));
        assert!((0..64 * 128).all(|n| ledger.likely(id(n)) >> (n / 128) & 1 == 1));
        assert!((0..64 * 128).filter(|n| elsewhere(*n) != 0).count() < 10);
        assert!((1 << 20..(1 << 20) + 8_192).filter(|n| ledger.likely(id(*n)) != 0).count() < 10);
        assert_eq!(ledger.unknown(), 0);
    }

    #[test]
    fn a_sibling_whose_timers_come_and_go_for_long_has_no_endless_list_of_them() {
        let mut ledger = Ledger::default();
        assert!((0..u64::from(MOST_PRINTS)).all(|n| ledger.note(5, id(n))));
        assert!(!ledger.note(5, id(u64::from(MOST_PRINTS))));
        assert_eq!((ledger.unknown(), ledger.likely(id(0))), (1 << 5, 0));
        ledger.note(5, id(0));
        assert!(ledger.sorted.is_empty() && ledger.fresh.is_empty());
        ledger.forget(5);
        ledger.note(5, id(0));
        assert_eq!((ledger.unknown(), ledger.likely(id(0))), (0, 1 << 5));
    }

    #[test]
    fn a_search_ends_where_a_binary_search_does() {
        let mut ledger = Ledger::default();
        // Not evenly distributed at all, too.
        let skewed: Vec<u32> = (0..1_000).map(|n| n * n * n).collect();
        let ends = vec![0, 0, 1, u32::MAX - 1, u32::MAX];
        for sorted in [vec![], vec![7], vec![u32::MAX; 100], vec![0; 100], skewed, ends] {
            ledger.sorted = sorted;
            for entry in
                (0..u32::MAX - 1_000_003).step_by(1_000_003).chain([0, 1, 7, 8, u32::MAX - 1, u32::MAX])
            {
                let expected = ledger.sorted.partition_point(|other| *other < entry);
                assert_eq!(ledger.first_not_below(entry), expected, "{entry}");
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Note(u32, u64),
        Tell(u32, Vec<u64>),
        Lose(u32),
        Forget(u32),
    }

    fn act() -> impl Strategy<Value = Act> {
        let sibling = prop_oneof![0u32..3, Just(63)];
        prop_oneof![
            60 => (sibling.clone(), 0u64..2_000).prop_map(|(s, n)| Act::Note(s, n)),
            2 => (sibling.clone(), proptest::collection::vec(0u64..2_000, 0..200)).prop_map(|(s, n)| Act::Tell(s, n)),
            1 => sibling.clone().prop_map(Act::Lose),
            2 => sibling.prop_map(Act::Forget),
        ]
    }

    proptest! {
        #[test]
        fn no_id_is_passed_over(acts in proptest::collection::vec(act(), 1..1_000)) {
            let mut ledger = Ledger::default();
            let mut there: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for act in acts {
                match act {
                    Act::Note(sibling, n) => {
                        ledger.note(sibling, id(n));
                        there.entry(sibling).or_default().push(n);
                    }
                    Act::Tell(sibling, ids) => {
                        ledger.tell(sibling, ids.iter().map(|n| id(*n)));
                        there.insert(sibling, ids);
                    }
                    Act::Lose(sibling) => ledger.lose(sibling),
                    Act::Forget(sibling) => {
                        ledger.forget(sibling);
                        there.remove(&sibling);
                        prop_assert_eq!(ledger.unknown() >> sibling & 1, 0);
                    }
                }
            }
            for (sibling, ids) in there {
                for n in ids {
                    prop_assert_eq!((ledger.likely(id(n)) | ledger.unknown()) >> sibling & 1, 1);
                }
            }
        }
    }
}
