//! The state of the engine's task, for metrics.

use mtimer_core::figures::Figures;
use mtimer_types::Time;

use crate::lanes::LaneFigures;

/// The state of the engine's task.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) now: Time,
    pub(crate) engine: Figures,
    pub(crate) lanes: LaneFigures,
    /// Partitions that are to be owned.
    pub(crate) assigned: u64,
    /// Whether this broker is reached at its address, or has none.
    pub(crate) is_reached: bool,
    /// How long time stands still, ms; 0: it does not.
    pub(crate) still_ms: u64,
    /// Brokers that the cluster has lost within the last hour and that have not come back.
    pub(crate) lost_brokers: u64,
    /// Owned partitions whose store cannot be reached.
    pub(crate) unreachable: u64,
    pub(crate) sessions: u64,
    /// Events that wait for the engine's task.
    pub(crate) events: u64,
    /// Why it is not ready; empty if it is.
    pub(crate) unready: Vec<String>,
}
