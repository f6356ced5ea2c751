//! Prints: which ids cannot be in a slot of a second.
//!
//! Most schedules are of timers that are nowhere yet, and Redis would have to search for them wherever they may be. So of the slots that
//! it has seen from their first timer on, or was told the ids of, an owner keeps two bytes of every id that it has filed there: an id whose
//! print is not among them is not there, for certain. What has left the slot stays among its prints: they go when the slot does.

use mtimer_types::TimerId;

/// Prints that are kept of a slot: of one whose timers come and go until it has had more they are not known any more.
const MOST: usize = 512;

/// The prints of all ids that may be in a slot; of none to begin with.
#[derive(Clone, Debug)]
pub(crate) struct Prints(Option<Vec<u16>>);

impl Default for Prints {
    fn default() -> Self {
        Self(Some(Vec::new()))
    }
}

impl Prints {
    /// Any id may be there.
    pub(crate) const fn unknown() -> Self {
        Self(None)
    }

    pub(crate) const fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// The id may be there from now on.
    pub(crate) fn note(&mut self, id: TimerId) {
        match &mut self.0 {
            Some(prints) if prints.len() < MOST => prints.push(print(id)),
            _ => self.0 = None,
        }
    }

    /// Whether the id may be there.
    pub(crate) fn may_have(&self, id: TimerId) -> bool {
        self.0.as_ref().is_none_or(|prints| prints.contains(&print(id)))
    }
}

impl FromIterator<TimerId> for Prints {
    fn from_iter<I: IntoIterator<Item = TimerId>>(ids: I) -> Self {
        Self(Some(ids.into_iter().map(print).collect()))
    }
}

/// What is kept of an id: not only of the bits that choose a sibling, which those of one slot have in common.
const fn print(id: TimerId) -> u16 {
    let (random, due) = (id.random(), id.birth_due().as_ms());
    (random ^ random >> 16 ^ random >> 32 ^ random >> 48 ^ due) as u16
}

#[cfg(test)]
mod tests {
    use mtimer_types::{PartitionId, SlotWidth, Time};

    use super::*;

    fn id(n: u64) -> TimerId {
        let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        TimerId::with_width(Time::from_ms(7_000), SlotWidth::Second, PartitionId(0), random)
    }

    #[test]
    fn what_was_noted_may_be_there_and_little_else() {
        let mut noted = Prints::default();
        (0..128).for_each(|n| noted.note(id(n)));
        let told: Prints = (0..128).map(id).collect();
        for prints in [noted, told] {
            let may_have = |n: u64| prints.may_have(id(n));
            assert!(prints.are_known() && (0..128).all(may_have));
            // One of 512 has the print of one of 128.
            assert!((128..10_128).filter(|n| may_have(*n)).count() < 60);
        }
    }

    #[test]
    fn a_slot_whose_timers_come_and_go_for_long_has_no_endless_list_of_them() {
        let mut prints = Prints::default();
        (0..MOST as u64).for_each(|n| prints.note(id(n)));
        assert!(prints.are_known() && !prints.may_have(id(MOST as u64)));
        prints.note(id(MOST as u64));
        assert!(!prints.are_known() && prints.may_have(id(1 << 40)));
        prints.note(id(0));
        assert!(!prints.are_known());
    }
}
