//! Where timers are that have left their birth position or may be in one of several siblings, as far as the lane has seen
//! it lately.
//!
//! Only hints: a script that finds a timer elsewhere asks for that place. Bounded; the oldest go first.

use std::collections::{HashMap, VecDeque};

use mtimer_types::TimerId;

use crate::keys::SlotKey;

/// Hints kept: about a megabyte for a busy partition.
const MOST: usize = 16_384;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    slots: HashMap<TimerId, SlotKey>,
    order: VecDeque<TimerId>,
}

impl Hints {
    /// A timer is, or is about to be, in this slot.
    pub(crate) fn note(&mut self, id: TimerId, slot: SlotKey) {
        if self.slots.insert(id, slot).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MOST {
            let Some(oldest) = self.order.pop_front() else { break };
            self.slots.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, id: TimerId) -> Option<SlotKey> {
        self.slots.get(&id).copied()
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
        assert_eq!((hints.slots.len(), hints.order.len()), (MOST, MOST));
    }
}
