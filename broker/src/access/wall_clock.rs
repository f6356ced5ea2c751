//! The time by which tokens expire.

use std::time::{SystemTime, UNIX_EPOCH};

use mtimer_types::Time;

/// The wall clock, by which tokens expire.
pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
