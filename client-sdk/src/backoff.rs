//! How long to wait before a request or a connection is tried again. Retries of timers are the
//! broker's.

use std::time::Duration;

/// `first`, doubled with every try up to `most`, less up to a half of it at random, so that many
/// clients do not come back at the same moment.
pub(crate) fn backoff(tries: u32, first: Duration, most: Duration) -> Duration {
    let full = first.saturating_mul(1 << tries.min(16)).min(most);
    full.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_most_and_keeps_at_least_half() {
        let (first, most) = (Duration::from_millis(20), Duration::from_secs(2));
        for tries in 0..40 {
            let full = (20u64 << tries.min(16)).min(2_000);
            let wait = backoff(tries, first, most).as_millis() as u64;
            assert!((full / 2..=full).contains(&wait), "try {tries}: {wait} ms");
        }
    }
}
