//! A host of a simulated cluster: its clock.

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
