//! The cluster clock: one time for all due times, from several readings none of which is trusted alone.
//!
//! The estimate is the median of the store's clocks, the host's clock, and the previous estimate carried on by the
//! monotonic clock. One clock that jumps alone is outvoted. Lasting disagreement is followed slowly (slewed), and the
//! time that is handed out never steps back. All of it in microseconds: clocks that are read in whole milliseconds differ by
//! one for nothing, and every timer would be late by that.

use mtimer_types::Time;

/// Fastest correction of a lasting difference: one part in so many of the monotonic time that has passed.
const SLEW: i64 = 20;
/// A difference from the estimate that is worth an alarm, ms.
pub const ALARM_MS: i64 = 250;
/// How long the estimate prevails when it stands against as many readings on the other side, µs.
const TIE_US: u64 = 10_000_000;
/// A difference below which there is nothing to correct, µs: about what it takes to read a clock over the network.
const DEAD_BAND_US: i64 = 50;

/// The estimator. Starts at the median of its first readings.
#[derive(Clone, Debug)]
pub struct ClusterClock {
    /// Estimate minus monotonic clock, µs.
    offset: i64,
    /// When `offset` was last corrected, monotonic µs.
    corrected: u64,
    /// The latest time handed out.
    latest: Time,
    /// Since when readings and estimate have been even in number and apart, monotonic µs.
    tied_since: Option<u64>,
}

/// What a round of readings has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// By how many µs the median of the readings differs from the estimate.
    pub difference_us: i64,
    /// Readings that are more than [`ALARM_MS`] away from the estimate.
    pub outliers: usize,
}

impl ClusterClock {
    /// Starts from a first round of readings (at least one; µs since the Unix epoch), taken at monotonic time `mono_us`.
    pub fn new(mono_us: u64, readings: &[u64]) -> Self {
        let mut sorted = signed(readings);
        sorted.sort_unstable();
        // Of the two in the middle the lower one: rather late than early.
        let start = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default();
        Self { offset: start - mono_us as i64, corrected: mono_us, latest: Time::ZERO, tied_since: None }
    }

    /// The cluster clock at monotonic time `mono_us`; never less than before.
    pub fn now(&mut self, mono_us: u64) -> Time {
        let time = Time::from_ms(self.estimate(mono_us) / 1_000);
        self.latest = self.latest.max(time);
        self.latest
    }

    /// Takes a round of readings (µs since the Unix epoch) at monotonic time `mono_us`: of each store clock, and of the host's.
    pub fn observe(&mut self, mono_us: u64, readings: &[u64]) -> Observation {
        let own = self.estimate(mono_us) as i64;
        let mut sorted = signed(readings);
        let outliers = sorted.iter().filter(|t| (**t - own).abs() > ALARM_MS * 1_000).count();
        sorted.push(own);
        sorted.sort_unstable();
        // With an even number the estimate may be one of the two in the middle. Doubt favours it, until the other has
        // stood apart for so long that it cannot be a passing jump.
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let (near, far) = if (low - own).abs() <= (high - own).abs() { (low, high) } else { (high, low) };
        if (far - own).abs() <= DEAD_BAND_US || (near - own).abs() > DEAD_BAND_US {
            self.tied_since = None;
        } else {
            self.tied_since.get_or_insert(mono_us);
        }
        let lasting = self.tied_since.is_some_and(|since| mono_us.saturating_sub(since) >= TIE_US);
        let difference_us = if lasting { far - own } else { near - own };
        let elapsed = mono_us.saturating_sub(self.corrected) as i64;
        self.corrected = mono_us;
        if difference_us.abs() > DEAD_BAND_US {
            let most = (elapsed / SLEW).max(1);
            self.offset += difference_us.clamp(-most, most);
        }
        Observation { difference_us, outliers }
    }

    /// How many monotonic µs until the cluster clock reads `time`; 0 if it does already.
    pub fn mono_until(&self, mono_us: u64, time: Time) -> u64 {
        (time.as_ms() * 1_000).saturating_sub(self.estimate(mono_us))
    }

    fn estimate(&self, mono_us: u64) -> u64 {
        (mono_us as i64).saturating_add(self.offset).max(0) as u64
    }
}

/// No reading is so high that nothing can be added to it: times end at 2^48 ms.
fn signed(readings: &[u64]) -> Vec<i64> {
    let highest = Time::MAX.as_ms() * 1_000;
    readings.iter().map(|us| (*us).min(highest) as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn t(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    #[test]
    fn one_clock_that_jumps_is_outvoted_and_counted() {
        let mut c = ClusterClock::new(0, &[1_000 * S, 1_000 * S]);
        let seen = c.observe(S, &[1_001 * S, 9_000 * S]);
        assert_eq!(seen, Observation { difference_us: 0, outliers: 1 });
        assert_eq!(c.now(S), t(1_001_000));
    }

    #[test]
    fn a_lone_clock_that_jumps_is_followed_slowly_once_it_lasts() {
        let mut alone = ClusterClock::new(0, &[1_000 * S]);
        assert_eq!(alone.observe(S, &[5_000]).outliers, 1);
        assert_eq!(alone.now(S), t(1_001_000));
        for s in 2..=200 {
            alone.observe(s * S, &[(1_002 + s) * S]);
        }
        assert_eq!(alone.now(200 * S), t(1_202_000));
    }

    #[test]
    fn lasting_disagreement_is_followed_slowly_and_never_backwards() {
        let mut c = ClusterClock::new(0, &[1_000 * S]);
        let mut last = c.now(0);
        for s in 1..=200 {
            let truth = (1_000 + s - 5) * S;
            c.observe(s * S, &[truth, truth, truth]);
            let now = c.now(s * S);
            assert!(now >= last, "stepped back from {last} to {now}");
            last = now;
        }
        assert_eq!(last, t(1_000_000 + 200_000 - 5_000));
    }

    #[test]
    fn a_host_clock_that_jumps_back_leaves_the_rate_alone() {
        let mut c = ClusterClock::new(0, &[500 * S, 500 * S + 1, 500 * S + 2]);
        for s in 1..=10 {
            let truth = (500 + s) * S + 1;
            c.observe(s * S, &[truth, truth, 3]);
        }
        assert_eq!(c.now(10 * S), t(510_000));
    }

    #[test]
    fn a_clock_that_began_late_is_right_after_a_round() {
        // The store took 7 ms to answer at the start, then 0.1 ms: what it says is as old as that.
        let mut c = ClusterClock::new(0, &[1_000 * S - 7_000, 1_000 * S]);
        assert_eq!(c.now(0), t(999_993));
        let seen = c.observe(S, &[1_001 * S - 100, 1_001 * S]);
        assert_eq!(seen, Observation { difference_us: 6_900, outliers: 0 });
        assert_eq!(c.mono_until(S, t(1_001_000)), 100);
        assert_eq!((c.now(S + 99), c.now(S + 100)), (t(1_000_999), t(1_001_000)));
        // Less than the dead band is left alone.
        assert_eq!(c.observe(2 * S, &[1_002 * S - 60, 1_002 * S]).difference_us, 40);
        assert_eq!(c.mono_until(2 * S, t(1_002_000)), 100);
    }

    #[test]
    fn readings_from_the_end_of_time_do_no_harm() {
        let mut c = ClusterClock::new(0, &[u64::MAX]);
        c.observe(u64::MAX / 2, &[u64::MAX, 0, u64::MAX]);
        assert!(c.now(u64::MAX / 2) >= Time::MAX);
    }
}
