//! A host of a simulated cluster: chance, and a clock.

/// The only source of randomness of a run (SplitMix64).
pub(crate) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
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
