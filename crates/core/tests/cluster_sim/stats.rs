//! How much was simulated.

use std::fmt;

use super::{BEGINNING_MS, World};

/// How much was simulated.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    runs: u64,
    simulated_ms: u64,
    brokers: u64,
    topologies: u64,
    faults: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, world: &World) {
        self.runs += 1;
        self.simulated_ms += world.now - BEGINNING_MS;
        self.brokers += world.plan.brokers as u64;
        self.topologies += world.watch.decided;
        self.faults += world.faults;
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, brokers, topologies, faults, .. } = self;
        let hours = self.simulated_ms as f64 / 3_600_000.0;
        write!(
            f,
            "{runs} seeds, {hours:.1} h simulated, {brokers} brokers, {topologies} topologies, {faults} faults"
        )
    }
}
