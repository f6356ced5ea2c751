//! Timers that operations under way hold.
//!
//! Invariant: a timer is held until as many operations have released it as held it.

use mtimer_types::TimerId;

use super::hash::{Map, Seeded};

/// Counts, by timer, the operations that hold it.
#[derive(Debug)]
pub(super) struct Holds(Map<TimerId, u32>);

impl Holds {
    pub(super) fn new(seed: Seeded) -> Self {
        Self(Map::with_hasher(seed))
    }

    /// An operation begins to hold a timer.
    pub(super) fn hold(&mut self, id: TimerId) {
        *self.0.entry(id).or_default() += 1;
    }

    /// An operation that held a timer has been answered. Nothing happens if none held it.
    pub(super) fn release(&mut self, id: TimerId) {
        if let Some(n) = self.0.get_mut(&id) {
            *n -= 1;
            if *n == 0 {
                self.0.remove(&id);
            }
        }
    }

    /// Says whether an operation holds a timer.
    pub(super) fn holds(&self, id: TimerId) -> bool {
        self.0.contains_key(&id)
    }

    /// How many timers are held.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Says whether no timer is held.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_held_until_the_last_operation_releases_it() {
        let (mut holds, one, two) = (Holds::new(Seeded(1)), TimerId::from_u128(1), TimerId::from_u128(2));
        holds.hold(one);
        holds.hold(one);
        holds.release(two);
        holds.release(one);
        assert!(holds.holds(one) && !holds.holds(two));
        holds.release(one);
        assert!(!holds.holds(one) && holds.is_empty());
    }
}
