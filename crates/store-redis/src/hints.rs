//! What the lane has lately seen of timers: where they are that have left their birth position or may be in one of several
//! siblings, how large those are that are in no slot, and whether acknowledgements are of the common kind.
//!
//! Only hints: a script that finds a timer elsewhere asks for that place, and sizes are for cutting work into scripts.
//! Bounded; the oldest go first. But that a timer has ended lately can be ruled out: see [`Endings`].

use std::collections::{HashMap, VecDeque};

use mtimer_types::TimerId;

use crate::endings::Endings;
use crate::keys::SlotKey;

/// Hints of a kind that are kept: about a megabyte for a busy partition.
const MOST: usize = 16_384;
/// Smaller records are not worth a hint.
const LARGE: usize = 1_024;
/// Runs of acknowledgements that go the long way after one that was not of the common kind (it had a key, was at most once, taken, moved or gone): to
/// find that out costs a refused script.
const UNCOMMON: u32 = 200;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    slots: Lately<SlotKey>,
    sizes: Lately<usize>,
    /// Runs of acknowledgements that are still to go the long way.
    uncommon: u32,
    pub(crate) endings: Endings,
}

impl Hints {
    /// A timer is, or is about to be, in this slot.
    pub(crate) fn note(&mut self, id: TimerId, slot: SlotKey) {
        self.slots.note(id, slot);
    }

    pub(crate) fn get(&self, id: TimerId) -> Option<SlotKey> {
        self.slots.get(id)
    }

    /// Whether the next run of acknowledgements is likely to be of the common kind.
    pub(crate) fn acks_are_common(&mut self) -> bool {
        let common = self.uncommon == 0;
        self.uncommon = self.uncommon.saturating_sub(1);
        common
    }

    /// A run of acknowledgements was not of the common kind.
    pub(crate) fn acks_were_uncommon(&mut self) {
        self.uncommon = UNCOMMON;
    }

    /// A timer that is in no slot has a record of so many bytes.
    pub(crate) fn note_size(&mut self, id: TimerId, bytes: usize) {
        if bytes >= LARGE {
            self.sizes.note(id, bytes);
        }
    }

    /// Bytes of a record that is in no slot, if it is a large one.
    pub(crate) fn size(&self, id: TimerId) -> Option<usize> {
        self.sizes.get(id)
    }
}

/// The latest values by id.
#[derive(Debug)]
struct Lately<V> {
    values: HashMap<TimerId, V>,
    order: VecDeque<TimerId>,
}

impl<V> Default for Lately<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V: Copy> Lately<V> {
    fn note(&mut self, id: TimerId, value: V) {
        if self.values.insert(id, value).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MOST {
            let Some(oldest) = self.order.pop_front() else { break };
            self.values.remove(&oldest);
        }
    }

    fn get(&self, id: TimerId) -> Option<V> {
        self.values.get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::SlotWidth;

    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let mut hints = Hints::default();
        let slot = SlotKey { track: 1, width: SlotWidth::Second, start: 0, sibling: 0 };
        (0..=MOST as u128).for_each(|n| hints.note(TimerId::from_u128(n), slot));
        assert_eq!(hints.get(TimerId::from_u128(0)), None);
        assert_eq!(hints.get(TimerId::from_u128(MOST as u128)), Some(slot));
        assert_eq!((hints.slots.values.len(), hints.slots.order.len()), (MOST, MOST));
    }

    #[test]
    fn small_records_do_not_drive_out_large_ones() {
        let mut hints = Hints::default();
        hints.note_size(TimerId::from_u128(1), LARGE);
        (2..100_000).for_each(|n| hints.note_size(TimerId::from_u128(n), LARGE - 1));
        assert_eq!(hints.size(TimerId::from_u128(1)), Some(LARGE));
        assert_eq!(hints.size(TimerId::from_u128(2)), None);
    }
}
