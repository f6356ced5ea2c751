//! How many timers are due when.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// So many timers are delivered next in this span of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DueSpan {
    /// Its first moment.
    pub begin: Time,
    /// The first moment behind it.
    pub end: Time,
    /// How many timers.
    pub timers: u64,
}
