//! The cluster clock: one time for all due times, from several readings none of which is trusted alone.
//!
//! The estimate is the median of the store's clocks, the host's clock, and the previous estimate carried on by the
//! monotonic clock. One clock that jumps alone is outvoted. Lasting disagreement is followed slowly (slewed), and the
//! time that is handed out never steps back.

use mtimer_types::Time;

/// Fastest correction of a lasting difference: this many ms per second of monotonic time.
const SLEW_MS_PER_S: i64 = 50;
/// A difference from the estimate that is worth an alarm, ms.
pub const ALARM_MS: i64 = 250;
/// How long the estimate prevails when it stands against as many readings on the other side, ms.
const TIE_MS: u64 = 10_000;
/// A difference below which there is nothing to correct, ms.
const DEAD_BAND_MS: i64 = 1;

/// The estimator. Starts at the median of its first readings.
#[derive(Clone, Debug)]
pub struct ClusterClock {
    /// Estimate minus monotonic clock, ms.
    offset: i64,
    /// When `offset` was last corrected, monotonic ms.
    corrected: u64,
    /// The latest time handed out.
    latest: Time,
    /// Since when readings and estimate have been even in number and apart, monotonic ms.
    tied_since: Option<u64>,
}

/// What a round of readings has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// By how many ms the median of the readings differs from the estimate.
    pub difference_ms: i64,
    /// Readings that are more than [`ALARM_MS`] away from the estimate.
    pub outliers: usize,
}

impl ClusterClock {
    /// Starts from a first round of readings (at least one), taken at monotonic time `mono_ms`.
    pub fn new(mono_ms: u64, readings: &[Time]) -> Self {
        let mut sorted: Vec<i64> = readings.iter().map(|t| t.as_ms() as i64).collect();
        sorted.sort_unstable();
        // Of the two in the middle the lower one: rather late than early.
        let start = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default();
        Self { offset: start - mono_ms as i64, corrected: mono_ms, latest: Time::ZERO, tied_since: None }
    }

    /// The cluster clock at monotonic time `mono_ms`; never less than before.
    pub fn now(&mut self, mono_ms: u64) -> Time {
        let time = self.estimate(mono_ms);
        self.latest = self.latest.max(time);
        self.latest
    }

    /// Takes a round of readings at monotonic time `mono_ms`: of each store clock, and of the host's clock.
    pub fn observe(&mut self, mono_ms: u64, readings: &[Time]) -> Observation {
        let own = self.estimate(mono_ms).as_ms() as i64;
        let mut sorted: Vec<i64> = readings.iter().map(|t| t.as_ms() as i64).collect();
        let outliers = sorted.iter().filter(|t| (**t - own).abs() > ALARM_MS).count();
        sorted.push(own);
        sorted.sort_unstable();
        // With an even number the estimate may be one of the two in the middle. Doubt favours it, until the other has
        // stood apart for so long that it cannot be a passing jump.
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let (near, far) = if (low - own).abs() <= (high - own).abs() { (low, high) } else { (high, low) };
        if (far - own).abs() <= DEAD_BAND_MS || (near - own).abs() > DEAD_BAND_MS {
            self.tied_since = None;
        } else {
            self.tied_since.get_or_insert(mono_ms);
        }
        let lasting = self.tied_since.is_some_and(|since| mono_ms.saturating_sub(since) >= TIE_MS);
        let difference_ms = if lasting { far - own } else { near - own };
        let elapsed = mono_ms.saturating_sub(self.corrected) as i64;
        self.corrected = mono_ms;
        if difference_ms.abs() > DEAD_BAND_MS {
            let most = (SLEW_MS_PER_S * elapsed / 1_000).max(1);
            self.offset += difference_ms.clamp(-most, most);
        }
        Observation { difference_ms, outliers }
    }

    /// How many monotonic ms until the cluster clock reads `time`; 0 if it does already.
    pub fn mono_until(&self, mono_ms: u64, time: Time) -> u64 {
        time.ms_since(self.estimate(mono_ms))
    }

    fn estimate(&self, mono_ms: u64) -> Time {
        Time::from_ms((mono_ms as i64).saturating_add(self.offset).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    #[test]
    fn one_clock_that_jumps_is_outvoted_and_counted() {
        let mut c = ClusterClock::new(0, &[t(1_000_000), t(1_000_000)]);
        let seen = c.observe(1_000, &[t(1_001_000), t(9_000_000)]);
        assert_eq!(seen, Observation { difference_ms: 0, outliers: 1 });
        assert_eq!(c.now(1_000), t(1_001_000));
    }

    #[test]
    fn a_lone_clock_that_jumps_is_followed_slowly_once_it_lasts() {
        let mut alone = ClusterClock::new(0, &[t(1_000_000)]);
        assert_eq!(alone.observe(1_000, &[t(5)]).outliers, 1);
        assert_eq!(alone.now(1_000), t(1_001_000));
        for s in 2..=200u64 {
            alone.observe(s * 1_000, &[t(1_002_000 + s * 1_000)]);
        }
        assert_eq!(alone.now(200_000), t(1_202_000));
    }

    #[test]
    fn lasting_disagreement_is_followed_slowly_and_never_backwards() {
        let mut c = ClusterClock::new(0, &[t(1_000_000)]);
        let mut last = c.now(0);
        for s in 1..=200u64 {
            let truth = 1_000_000 + s * 1_000 - 5_000;
            c.observe(s * 1_000, &[t(truth), t(truth), t(truth)]);
            let now = c.now(s * 1_000);
            assert!(now >= last, "stepped back from {last} to {now}");
            last = now;
        }
        assert_eq!(last, t(1_000_000 + 200_000 - 5_000));
    }

    #[test]
    fn a_host_clock_that_jumps_back_leaves_the_rate_alone() {
        let mut c = ClusterClock::new(0, &[t(500_000), t(500_001), t(500_002)]);
        for s in 1..=10u64 {
            c.observe(s * 1_000, &[t(500_001 + s * 1_000), t(500_001 + s * 1_000), t(3)]);
        }
        assert_eq!(c.now(10_000), t(510_001));
    }
}
