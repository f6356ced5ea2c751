//! How long to pause between attempts.

use std::time::Duration;

/// Pauses between attempts at something that fails for a while: they double from the first to the
/// longest.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Doubles from `first` up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the pause before another attempt when there were `pauses` before it.
    pub fn pause(self, pauses: u32) -> Duration {
        let factor = 1_u32.checked_shl(pauses).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Returns half to all of [`Self::pause`], so that many callers do not come back at the same
    /// moment. `random`, any number, decides.
    pub fn jittered(self, pauses: u32, random: u64) -> Duration {
        // 53 bits, as many as a float has, make a number from 0 to 1/2.
        let more = (random >> 11) as f64 / (1_u64 << 54) as f64;
        self.pause(pauses).mul_f64(0.5 + more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_half_of_each_may_be_random() {
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        let full = [20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000];
        for (pauses, ms) in (0..).zip(full).chain([(31, 2_000), (32, 2_000), (u32::MAX, 2_000)]) {
            let full = Duration::from_millis(ms);
            assert_eq!(backoff.pause(pauses), full, "{pauses}");
            assert_eq!(backoff.jittered(pauses, 0), full / 2, "{pauses}");
            assert_eq!(backoff.jittered(pauses, 1 << 63), full * 3 / 4, "{pauses}");
            let most = backoff.jittered(pauses, u64::MAX);
            assert!(most <= full && most > full - Duration::from_micros(1), "{pauses}: {most:?}");
        }
    }
}
