//! The count of the store, for metrics: made once for all readings within some seconds.
//!
//! Purpose: a count asks the store about each partition, and costs far more than all the rest of a
//! reading. Invariant: all readings within [`KEPT_FOR`] after a count share it, and none shows one
//! that was asked for before. A count that takes longer than [`COUNT_WITHIN`] is shared by nobody.
//! Not in here: how the store is counted (the engine, on [`crate::shell::Control::Stored`]).

use mtimer_store::Census;
use tokio::sync::Mutex;
use tokio::time::{Duration, Instant, timeout};

/// How old a count may be that a reading shows.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// How long the store may take to be counted. A slower count is left out of the reading.
const COUNT_WITHIN: Duration = Duration::from_secs(2);

/// The last count, and when it was asked for.
#[derive(Debug, Default)]
pub(crate) struct LastCount(Mutex<Option<(Instant, Census)>>);

impl LastCount {
    /// Returns the last count if it is young enough, and otherwise a new one. `None`: the store did
    /// not answer in time. Who comes during a count waits for it.
    pub(super) async fn get<F>(&self, count: impl FnOnce() -> F) -> Option<Census>
    where
        F: Future<Output = Option<Census>>,
    {
        let shared = async {
            let mut last = self.0.lock().await;
            let now = Instant::now();
            if let Some((_, census)) = last.filter(|(at, _)| now.duration_since(*at) < KEPT_FOR) {
                return Some(census);
            }
            *last = count().await.map(|census| (now, census));
            last.map(|(_, census)| census)
        };
        timeout(COUNT_WITHIN, shared).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    fn census(pending: u64) -> Census {
        Census { pending, ..Census::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn readings_within_ten_seconds_share_a_count() {
        let (last, counts) = (LastCount::default(), Cell::new(0));
        let get = || {
            last.get(|| {
                counts.set(counts.get() + 1);
                ready(Some(census(counts.get())))
            })
        };
        assert_eq!(tokio::join!(get(), get()), (Some(census(1)), Some(census(1))));
        tokio::time::advance(KEPT_FOR - Duration::from_millis(1)).await;
        assert_eq!(get().await, Some(census(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((get().await, get().await), (Some(census(2)), Some(census(2))));
        assert_eq!(counts.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_takes_too_long_is_left_out_and_made_again() {
        let last = LastCount::default();
        assert_eq!(last.get(pending).await, None);
        assert_eq!(last.get(|| ready(None)).await, None);
        assert_eq!(last.get(|| ready(Some(census(8)))).await, Some(census(8)));
    }
}
