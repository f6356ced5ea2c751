//! When a failed attempt is followed by another.

use mtimer_types::RetryTiers;

/// The decision after a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryDecision {
    /// Another attempt.
    Retry {
        /// 1 for the first retry.
        tier: u8,
        /// From now, ms.
        delay_ms: u64,
    },
    /// The budget is used up.
    Exhausted,
}

/// Decides after `used` failed attempts of the present budget (the one just failed included, so at
/// least 1).
///
/// `after_ms` is the handler's own wish and takes the place of the tier's delay, without jitter; it
/// is bounded by the longest delay a tier may have. `random` (any number) chooses the jitter: 0 to
/// `jitter_percent` percent of the delay are added, never subtracted, so a retry is never early.
pub fn next(
    tiers: &RetryTiers,
    used: u32,
    after_ms: Option<u32>,
    jitter_percent: u8,
    random: u64,
) -> RetryDecision {
    let index = used.saturating_sub(1) as usize;
    let Some(tier_ms) = tiers.0.get(index) else { return RetryDecision::Exhausted };
    let tier = index as u8 + 1;
    let delay_ms = match after_ms {
        Some(ms) => u64::from(ms.min(mtimer_types::limits::MAX_RETRY_DELAY_MS)),
        None => {
            let span = u64::from(*tier_ms) * u64::from(jitter_percent) / 100;
            u64::from(*tier_ms) + random % (span + 1)
        }
    };
    RetryDecision::Retry { tier, delay_ms }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tiers_in_order_then_exhausted() {
        let tiers = RetryTiers(vec![10, 20]);
        assert_eq!(next(&tiers, 1, None, 0, 7), RetryDecision::Retry { tier: 1, delay_ms: 10 });
        assert_eq!(next(&tiers, 2, None, 0, 7), RetryDecision::Retry { tier: 2, delay_ms: 20 });
        assert_eq!(next(&tiers, 3, None, 0, 7), RetryDecision::Exhausted);
        assert_eq!(next(&RetryTiers(vec![]), 1, Some(5), 0, 7), RetryDecision::Exhausted);
    }

    #[test]
    fn the_handlers_delay_replaces_that_of_the_tier() {
        let tiers = RetryTiers(vec![10, 20]);
        let after = |ms| next(&tiers, 2, Some(ms), 100, 7);
        assert_eq!(after(5), RetryDecision::Retry { tier: 2, delay_ms: 5 });
        let longest = mtimer_types::limits::MAX_RETRY_DELAY_MS;
        assert_eq!(after(longest + 1), RetryDecision::Retry { tier: 2, delay_ms: u64::from(longest) });
    }

    #[test]
    fn jitter_reaches_its_bound() {
        let jittered = |random| next(&RetryTiers(vec![100]), 1, None, 50, random);
        assert_eq!(jittered(50), RetryDecision::Retry { tier: 1, delay_ms: 150 });
        assert_eq!(jittered(51), RetryDecision::Retry { tier: 1, delay_ms: 100 });
    }

    proptest! {
        #[test]
        fn jitter_adds_at_most_its_share(ms in 1u32..1_000_000, pct in 0u8..=100, random: u64) {
            let RetryDecision::Retry { delay_ms, .. } = next(&RetryTiers(vec![ms]), 1, None, pct, random) else {
                return Err(TestCaseError::fail("exhausted"));
            };
            let ms = u64::from(ms);
            prop_assert!(delay_ms >= ms && delay_ms <= ms + ms * u64::from(pct) / 100);
        }
    }
}
