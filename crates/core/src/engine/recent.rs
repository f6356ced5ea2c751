//! Ids of timers that were acknowledged a short while ago, so that a repeated schedule does not bring one back.

use mtimer_types::{TimerId, limits::REPEAT_HORIZON_MS};

use super::hash::{Seeded, Set};

const GENERATIONS: usize = 4;
const SPAN_MS: u64 = REPEAT_HORIZON_MS / (GENERATIONS as u64 - 1);

/// Remembers for at least the repeat horizon, at most a third longer. Of an id it keeps 64 bits, most of them random.
#[derive(Debug)]
pub(super) struct RecentIds {
    generations: [Set<u64>; GENERATIONS],
    current: u64,
}

impl RecentIds {
    pub(super) fn new(seed: Seeded) -> Self {
        Self { generations: std::array::from_fn(|_| Set::with_hasher(seed)), current: 0 }
    }

    pub(super) fn insert(&mut self, mono_ms: u64, id: TimerId) {
        self.turn(mono_ms);
        self.generations[self.current as usize % GENERATIONS].insert(short(id));
    }

    pub(super) fn contains(&mut self, mono_ms: u64, id: TimerId) -> bool {
        self.turn(mono_ms);
        self.generations.iter().any(|g| g.contains(&short(id)))
    }

    fn turn(&mut self, mono_ms: u64) {
        let now = mono_ms / SPAN_MS;
        for generation in (self.current + 1..=now).rev().take(GENERATIONS) {
            let set = &mut self.generations[generation as usize % GENERATIONS];
            // Cleared sets give their memory back when a busy time is over.
            if set.capacity() > 8 * set.len() { *set = Set::with_hasher(*set.hasher()) } else { set.clear() }
        }
        self.current = self.current.max(now);
    }
}

fn short(id: TimerId) -> u64 {
    let n = id.as_u128();
    n as u64 ^ (n >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_for_the_horizon_and_then_forgets() {
        let mut r = RecentIds::new(Seeded(1));
        let id = TimerId::from_u128(7);
        r.insert(5_000, id);
        assert!(r.contains(5_000 + REPEAT_HORIZON_MS, id));
        assert!(!r.contains(5_000 + REPEAT_HORIZON_MS + 2 * SPAN_MS, id));
        r.insert(1_000_000, id);
        assert!(!r.contains(9_000_000, id));
    }
}
