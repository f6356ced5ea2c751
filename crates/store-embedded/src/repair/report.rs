//! The report of a repair.

use std::path::PathBuf;

use crate::damage::Damage;

/// The findings and effects of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// The places that are damaged.
    pub damages: Vec<Damage>,
    /// Bytes of a write that was not finished and not answered. Opening the directory cuts them
    /// off.
    pub unfinished_bytes: u64,
    /// Timers that are kept.
    pub timers_kept: u64,
    /// Rows that cannot be read or contradict others.
    pub rows_dropped: u64,
    /// Of the timers kept: at most once, not written since the loss, and filed as claimed and
    /// unconfirmed, since they may have been delivered.
    pub unconfirmed: u64,
    /// Of the timers' destinations: so many whose names are lost. They are filed under the group
    /// `lost`, the app being a number.
    pub destinations_lost: u64,
    /// Where the damaged database is kept. `None`: nothing was changed.
    pub kept_in: Option<PathBuf>,
}

impl RepairReport {
    /// Whether there is nothing to repair.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.rows_dropped == 0
    }
}
