//! How long to wait before a request or a connection is tried again. Retries of timers are the
//! broker's.

use std::time::Duration;

use mtimer_types::Backoff;

/// Pauses before a request that a broker could not do yet is repeated.
pub(crate) const RETRY: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(1));
/// Pauses before all addresses are tried again.
pub(crate) const RECONNECT: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
