//! A store that is away: one log line when it goes and one when it is back, and pauses between
//! tries.

use std::time::Duration;

use mtimer_store::StoreError;
use mtimer_types::Backoff;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::counters::{ShellCounter, ShellCounters};

/// Pauses after failures; the longest is how late a store that is back may be noticed.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Whether the store is away, as far as acquisitions have seen: one log line when it goes and one
/// when it is back.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Option<(StoreError, Instant)>>);

impl Outage {
    pub(crate) fn begin(&self, error: StoreError, counters: &ShellCounters) {
        let mut why = self.0.lock();
        let since = why.as_ref().map(|(_, since)| *since);
        if since.is_none() {
            counters.count(ShellCounter::StoreOutages);
            tracing::warn!(%error, "waiting for the store");
        }
        *why = Some((error, since.unwrap_or_else(Instant::now)));
    }

    pub(crate) fn end(&self) {
        if let Some((_, since)) = self.0.lock().take() {
            tracing::info!(after_ms = since.elapsed().as_millis() as u64, "the store is back");
        }
    }

    /// Why the store is away, if it is.
    pub(crate) fn why(&self) -> Option<StoreError> {
        self.0.lock().as_ref().map(|(why, _)| why.clone())
    }
}

/// Pauses between tries to reach a store that is away.
#[derive(Default)]
pub(crate) struct OutagePauses(u32);

impl OutagePauses {
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(PAUSES.pause(self.0)).await;
        self.0 = self.0.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_counted_once_and_says_its_latest_reason() {
        let (outage, counters) = (Outage::default(), ShellCounters::default());
        for why in ["no route", "refused"] {
            outage.begin(StoreError::Unavailable(why.to_owned()), &counters);
        }
        assert_eq!(counters.read().get(ShellCounter::StoreOutages), 1);
        assert_eq!(outage.why(), Some(StoreError::Unavailable("refused".to_owned())));
        outage.end();
        assert_eq!(outage.why(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let mut outage = OutagePauses::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let began = Instant::now();
            outage.wait().await;
            pauses.push(began.elapsed().as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
    }
}
