//! A host of a simulated cluster: chance, and a clock.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// The only source of randomness of a run.
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(super) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
}

/// A host's monotonic clock: its own beginning, a rate up to 1 % off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) offset: u64,
    pub(super) per_mille: u64,
}

impl Clock {
    pub(super) fn local(self, real: u64) -> u64 {
        self.offset + real * self.per_mille / 1_000
    }

    pub(super) fn real(self, local: u64) -> u64 {
        (local.saturating_sub(self.offset) * 1_000).div_ceil(self.per_mille)
    }
}
