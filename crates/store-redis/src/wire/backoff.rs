//! Pauses between attempts: doubling, with jitter, so that callers do not come back all at once.

use std::time::Duration;

use mtimer_types::Backoff;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(500));

/// See the module.
#[derive(Debug)]
pub(crate) struct RetryPauses {
    /// Since something went well.
    pauses: u32,
    random: SmallRng,
}

impl RetryPauses {
    /// `seed` makes callers differ, and lets a simulation repeat a run.
    pub(crate) fn new(seed: u64) -> Self {
        Self { pauses: 0, random: SmallRng::seed_from_u64(seed) }
    }

    /// Something went well.
    pub(crate) const fn reset(&mut self) {
        self.pauses = 0;
    }

    /// Pauses, and makes the next pause longer.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }

    fn next(&mut self) -> Duration {
        let pause = BACKOFF.jittered(self.pauses, self.random.random());
        self.pauses = self.pauses.saturating_add(1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_again() {
        let (first, longest) = (Duration::from_millis(2), Duration::from_millis(500));
        let mut backoff = RetryPauses::new(7);
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= first && pauses[0] >= first / 2);
        assert!(pauses[11] <= longest && pauses[11] >= longest / 2);
        backoff.reset();
        assert!(backoff.next() <= first);
    }
}
