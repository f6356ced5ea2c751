//! What the lane has lately seen of timers: where they are that have left their birth position or may be in one of several
//! siblings, and how large those are that are in no slot.
//!
//! Only hints: a script that finds a timer elsewhere asks for that place, and sizes are for cutting work into scripts.
//! Bounded; the oldest go first.

use std::collections::{HashMap, VecDeque};

use mtimer_types::TimerId;

use crate::keys::SlotKey;

/// Hints of a kind that are kept: about a megabyte for a busy partition.
const MOST: usize = 16_384;
/// Smaller records are not worth a hint.
const LARGE: usize = 1_024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    slots: Lately<SlotKey>,
    sizes: Lately<usize>,
}

impl Hints {
    /// A timer is, or is about to be, in this slot.
    pub(crate) fn note(&mut self, id: TimerId, slot: SlotKey) {
        self.slots.note(id, slot);
    }

    pub(crate) fn get(&self, id: TimerId) -> Option<SlotKey> {
        self.slots.get(id)
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
