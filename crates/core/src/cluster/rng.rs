//! Small seeded randomness, for jitter only.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

#[derive(Clone, Debug)]
pub(super) struct Rng(SplitMix64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// 0 to `n` - 1; 0 if there is nothing to choose from.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }
}
