//! Random numbers of tests and simulations. A seed gives the same numbers in every version, so that
//! a recorded seed means the same run.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// Random numbers from a seed.
#[derive(Clone, Debug)]
pub struct SeededRandom(SplitMix64);

impl SeededRandom {
    /// Begins the numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 to `n` - 1; 0 if there is nothing to choose from.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n.max(1)
    }

    /// An index of something of this length; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in so many of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in one of `n` cases; never if `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One of several.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// A number whose order of magnitude is random: from `low` to `high`.
    pub fn log_between(&mut self, low: u64, high: u64) -> u64 {
        let mut most = low.max(1);
        while most < high && self.chance(80) {
            most = most.saturating_mul(4);
        }
        self.between(low, most.min(high))
    }
}

/// Bits that look random, different for each `n`: the `n`-th number of seed 0.
pub fn mix(n: u64) -> u64 {
    /// SplitMix64 adds this to its state for each number.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    SeededRandom::new(n.wrapping_sub(1).wrapping_mul(STEP)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut random = SeededRandom::new(0);
        for (n, number) in (1..).zip([0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]) {
            assert_eq!(random.next_u64(), number);
            assert_eq!(mix(n), number);
        }
        assert_eq!(mix(0), 0);
    }

    #[test]
    fn one_in_none_is_never() {
        let mut random = SeededRandom::new(0);
        assert!(!random.one_in(0) && random.one_in(1));
        assert_eq!(random.below(0), 0);
    }
}
