//! Ids of timers that were acknowledged a short while ago, so that a repeated schedule does not
//! bring one back.

use mtimer_types::{TimerId, limits::REPEAT_HORIZON_MS};

use super::hash::{Seeded, Set};
use crate::api::Now;

const GENERATIONS: usize = 4;
const SPAN_MS: u64 = REPEAT_HORIZON_MS / (GENERATIONS as u64 - 1);
/// Ids of a generation, at most, while time stands still: 150 MiB in all. It is far more than are
/// acknowledged in [`SPAN_MS`].
const MOST: usize = 1 << 21;

/// Remembers for at least the repeat horizon by both clocks, at most a third longer. The age of a
/// request counts by the cluster clock, which may stand still. Of an id it keeps 64 bits, most of
/// them random.
#[derive(Debug)]
pub(super) struct RecentIds {
    generations: [Set<u64>; GENERATIONS],
    current: usize,
    /// When the current generation began.
    begun: Now,
}

impl RecentIds {
    pub(super) fn new(seed: Seeded, now: Now) -> Self {
        let generations = std::array::from_fn(|_| Set::with_hasher(seed));
        Self { generations, current: 0, begun: now }
    }

    pub(super) fn insert(&mut self, now: Now, id: TimerId) {
        self.turn(now);
        if self.generations[self.current].len() >= MOST {
            self.begin(now);
        }
        self.generations[self.current].insert(short(id));
    }

    pub(super) fn contains(&mut self, now: Now, id: TimerId) -> bool {
        self.turn(now);
        self.generations.iter().any(|g| g.contains(&short(id)))
    }

    fn turn(&mut self, now: Now) {
        let mono_ms = now.mono_ms.saturating_sub(self.begun.mono_ms);
        let spans = mono_ms.min(now.time.ms_since(self.begun.time)) / SPAN_MS;
        (0..spans).take(GENERATIONS).for_each(|_| self.begin(now));
    }

    /// Begins a generation in the place of the oldest one.
    fn begin(&mut self, now: Now) {
        self.current = (self.current + 1) % GENERATIONS;
        self.begun = now;
        let set = &mut self.generations[self.current];
        // Cleared sets give their memory back when a busy time is over.
        if set.capacity() > 8 * set.len() { *set = Set::with_hasher(*set.hasher()) } else { set.clear() }
    }
}

fn short(id: TimerId) -> u64 {
    let n = id.as_u128();
    n as u64 ^ (n >> 64) as u64
}

#[cfg(test)]
mod tests {
    use mtimer_types::Time;

    use super::*;

    fn at(time: u64, mono_ms: u64) -> Now {
        Now { time: Time::from_ms(time), mono_ms }
    }

    #[test]
    fn remembers_for_the_horizon_and_then_forgets() {
        let mut r = RecentIds::new(Seeded(1), at(0, 0));
        let id = TimerId::from_u128(7);
        let both = |ms| at(ms, ms);
        r.insert(both(5_000), id);
        for ms in (5_000..=5_000 + REPEAT_HORIZON_MS).step_by(100) {
            assert!(r.contains(both(ms), id));
        }
        assert!(!r.contains(both(5_000 + REPEAT_HORIZON_MS + 2 * SPAN_MS), id));
        r.insert(both(1_000_000), id);
        assert!(!r.contains(both(9_000_000), id));
    }

    #[test]
    fn many_ids_of_one_moment_are_remembered() {
        let mut r = RecentIds::new(Seeded(1), at(0, 0));
        let ids = || (0..1_000).map(TimerId::from_u128);
        ids().for_each(|id| r.insert(at(5_000, 5_000), id));
        assert!(ids().all(|id| r.contains(at(6_000, 6_000), id)));
    }

    #[test]
    fn ids_that_differ_in_one_half_are_told_apart() {
        let mut r = RecentIds::new(Seeded(1), at(0, 0));
        let id = |high: u128, low: u128| TimerId::from_u128(high << 64 | low);
        r.insert(at(0, 0), id(5, 3));
        assert!(r.contains(at(0, 0), id(5, 3)));
        for (high, low) in [(4, 3), (1, 3), (0, 3), (5, 2), (5, 1), (5, 0)] {
            assert!(!r.contains(at(0, 0), id(high, low)), "{high}, {low}");
        }
    }

    #[test]
    fn one_clock_that_goes_on_while_the_other_stands_still_makes_it_forget_nothing() {
        let id = TimerId::from_u128(7);
        for later in [|ms| at(1_000, ms), |ms| at(ms, 1_000)] {
            let mut r = RecentIds::new(Seeded(1), at(1_000, 1_000));
            r.insert(at(1_000, 1_000), id);
            for ms in (1_000..10 * REPEAT_HORIZON_MS).step_by(100) {
                assert!(r.contains(later(ms), id), "{ms}");
            }
        }
    }
}
