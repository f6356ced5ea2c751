//! How long this host has been suspended.
//!
//! Linux stops `CLOCK_MONOTONIC`, and with it `std::time::Instant`, while the host is suspended;
//! `CLOCK_BOOTTIME` goes on. [`boottime_ahead_us`] reads how far it is ahead; [`Suspensions`] adds
//! up by how much that grows.
//!
//! Not in here: suspensions that the kernel does not notice, as of a virtual machine that its
//! hypervisor has paused.

#![warn(missing_docs)]

/// Less than this is inaccuracy of readings, µs: no suspension is so short.
const LEAST_US: i64 = 1_000;

/// How long the host has been suspended since the first reading.
#[derive(Clone, Debug)]
pub struct Suspensions {
    ahead_us: i64,
    total_us: u64,
}

impl Suspensions {
    /// Starts from a reading of [`boottime_ahead_us`].
    pub const fn new(ahead_us: i64) -> Self {
        Self { ahead_us, total_us: 0 }
    }

    /// Takes another reading and returns the length of all suspensions so far, µs; never less than
    /// before.
    pub const fn observe(&mut self, ahead_us: i64) -> u64 {
        let growth = ahead_us.saturating_sub(self.ahead_us);
        if growth >= LEAST_US {
            self.ahead_us = ahead_us;
            self.total_us = self.total_us.saturating_add(growth.unsigned_abs());
        }
        self.total_us
    }
}

/// Returns `CLOCK_BOOTTIME` minus `CLOCK_MONOTONIC`, µs. Only its growth is meaningful: in a time
/// namespace it may be negative. Always 0 on systems other than Linux.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn boottime_ahead_us() -> i64 {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    /// A reading that took longer was interrupted, and is repeated.
    const SLOW_US: i64 = 100;
    const TRIES: usize = 8;

    let micros = |at: Timespec| at.tv_sec.saturating_mul(1_000_000).saturating_add(at.tv_nsec / 1_000);
    let read = || {
        let before = micros(clock_gettime(ClockId::Monotonic));
        let boottime = micros(clock_gettime(ClockId::Boottime));
        let after = micros(clock_gettime(ClockId::Monotonic));
        (after - before, boottime - after)
    };
    let mut best = read();
    for _ in 1..TRIES {
        if best.0 <= SLOW_US {
            break;
        }
        best = best.min(read());
    }
    best.1
}

/// Returns `CLOCK_BOOTTIME` minus `CLOCK_MONOTONIC`, µs. Always 0 on systems other than Linux.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub const fn boottime_ahead_us() -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_added_up_and_nothing_is_taken_back() {
        // In a time namespace the difference may begin below 0.
        let mut suspensions = Suspensions::new(-5_000_000);
        let readings = [-5_000_000, -4_999_001, -5_000_090, -1_000_000, -1_000_060, -999_500, 2_000_000];
        let totals = readings.map(|ahead_us| suspensions.observe(ahead_us));
        assert_eq!(totals, [0, 0, 0, 4_000_000, 4_000_000, 4_000_000, 7_000_000]);
        assert_eq!(suspensions.observe(i64::MIN), 7_000_000);
        suspensions.observe(i64::MAX);
        assert!(suspensions.observe(i64::MAX) >= 7_000_000);
    }

    #[test]
    fn a_host_that_is_awake_is_not_taken_for_suspended() {
        let mut suspensions = Suspensions::new(boottime_ahead_us());
        for _ in 0..10_000 {
            assert_eq!(suspensions.observe(boottime_ahead_us()), 0);
        }
    }
}
