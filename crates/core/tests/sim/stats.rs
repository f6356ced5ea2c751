//! How much was simulated.

use std::collections::BTreeMap;
use std::fmt;

/// Totals of one run or of many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) runs: u64,
    /// Simulated time, ms.
    pub(crate) simulated_ms: u64,
    pub(crate) timers: u64,
    pub(crate) deliveries: u64,
    pub(crate) turns: u64,
    /// The largest difference between a broker's time and the clock that decides, beyond the
    /// excused error, µs.
    pub(crate) clock_error_us: u64,
    faults: BTreeMap<&'static str, u64>,
}

impl Stats {
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.simulated_ms += other.simulated_ms;
        self.timers += other.timers;
        self.deliveries += other.deliveries;
        self.turns += other.turns;
        self.clock_error_us = self.clock_error_us.max(other.clock_error_us);
        for (kind, n) in &other.faults {
            *self.faults.entry(kind).or_default() += n;
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated_ms as f64 / 3_600_000.0;
        write!(f, "{} seeds, {hours:.1} h simulated, {} timers", self.runs, self.timers)?;
        write!(f, ", {} turns of brokers, {} deliveries", self.turns, self.deliveries)?;
        if self.clock_error_us > 0 {
            write!(f, ", largest clock error {:.1} ms", self.clock_error_us as f64 / 1_000.0)?;
        }
        let total: u64 = self.faults.values().sum();
        write!(f, "; {total} faults")?;
        let mut sign = ':';
        for (kind, n) in &self.faults {
            write!(f, "{sign} {kind} {n}")?;
            sign = ',';
        }
        Ok(())
    }
}
