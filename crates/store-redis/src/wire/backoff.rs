//! Pauses between attempts: doubling, with jitter, so that callers do not come back all at once.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(2);
/// The longest.
const LONGEST: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(crate) struct RetryPauses {
    pause: Duration,
    random: u64,
}

impl RetryPauses {
    /// `seed` makes callers differ.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { pause: FIRST, random: seed | 1 }
    }

    /// Something went well.
    pub(crate) const fn reset(&mut self) {
        self.pause = FIRST;
    }

    /// Pauses, and makes the next pause longer.
    pub(crate) async fn wait(&mut self) {
        let pause = self.next();
        tokio::time::sleep(pause).await;
    }

    /// Half to all of the present pause.
    fn next(&mut self) -> Duration {
        // Xorshift (Marsaglia, 2003): jitter needs no better randomness.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = self.pause / 2;
        let pause = half + half.mul_f64((self.random >> 11) as f64 / (1u64 << 53) as f64);
        self.pause = (self.pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_again() {
        let mut backoff = RetryPauses::new(7);
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2);
        assert!(pauses[11] <= LONGEST && pauses[11] >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
