//! Monotonic time that counts suspensions of this host, and readings of its clock and of the
//! store's by it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use mtimer_core::ClusterClock;
use mtimer_core::clock::{ClockSample, StoreReading};
use mtimer_store::StoreClock;
use mtimer_suspension::{Suspensions, boottime_ahead_us};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a clock of the store may take to be read: a slower answer says little about the time.
pub(super) const READING_TIMEOUT: Duration = Duration::from_millis(500);

/// The host's clocks. There to be replaced in tests.
pub trait HostClock: Send + Sync + fmt::Debug + 'static {
    /// Microseconds since the Unix epoch.
    fn now_us(&self) -> u64;

    /// How far the clock that counts suspensions is ahead of the one that does not, µs. Only its
    /// growth is meaningful.
    fn boottime_ahead_us(&self) -> i64;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl HostClock for SystemClock {
    fn now_us(&self) -> u64 {
        // A host that thinks it is before 1970 has time 0.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn boottime_ahead_us(&self) -> i64 {
        boottime_ahead_us()
    }
}

/// Monotonic time that counts suspensions.
#[derive(Debug)]
pub(super) struct Uptime {
    host: Arc<dyn HostClock>,
    /// Where it begins.
    pub(super) base: Instant,
    suspensions: Mutex<Suspensions>,
}

/// A moment by the runtime's clock and by [`Uptime`].
#[derive(Clone, Copy)]
pub(super) struct UptimeReading {
    pub(super) instant: Instant,
    pub(super) mono_us: u64,
    /// How much of `mono_us` this host was suspended for.
    pub(super) suspended_us: u64,
}

impl Uptime {
    pub(super) fn new(host: Arc<dyn HostClock>) -> Self {
        let suspensions = Mutex::new(Suspensions::new(host.boottime_ahead_us()));
        Self { host, base: Instant::now(), suspensions }
    }

    pub(super) fn now(&self) -> UptimeReading {
        let mut suspensions = self.suspensions.lock();
        let suspended_us = suspensions.observe(self.host.boottime_ahead_us());
        let elapsed = self.base.elapsed().as_micros();
        let elapsed_us = u64::try_from(elapsed).unwrap_or(u64::MAX);
        // Cut to the microsecond as well: values derived from it are the same at each reading.
        let instant = self.base + Duration::from_micros(elapsed_us);
        UptimeReading { instant, mono_us: elapsed_us.saturating_add(suspended_us), suspended_us }
    }

    pub(super) fn now_us(&self) -> u64 {
        self.now().mono_us
    }

    /// The host's clock. This thread may be held up while it reads: of a few tries the quickest
    /// counts.
    pub(super) fn host_reading(&self) -> ClockSample {
        let one = |_| {
            let (sent_us, shown_us, received_us) = (self.now_us(), self.host.now_us(), self.now_us());
            ClockSample { shown_us, sent_us, received_us }
        };
        (0..16).map(one).min_by_key(|r| r.received_us - r.sent_us).unwrap_or_else(|| one(0))
    }

    /// Reads clocks of the store at the same time, each with a time limit of its own.
    pub(super) async fn read(&self, clocks: Vec<StoreClock>) -> Vec<StoreReading> {
        let one = |StoreClock { name, reading }| async move {
            let sent_us = self.now_us();
            // No answer is no reading: the store's health is watched and logged elsewhere.
            let shown = tokio::time::timeout(READING_TIMEOUT, reading).await.ok().and_then(Result::ok);
            let received_us = self.now_us();
            let reading = shown.map(|shown_us| ClockSample { shown_us, sent_us, received_us });
            StoreReading { clock: name, reading }
        };
        join_all(clocks.into_iter().map(one)).await
    }
}

impl UptimeReading {
    /// Cluster time minus the runtime's, µs.
    pub(super) fn ahead(&self, clock: &ClusterClock) -> i64 {
        clock.offset_us().saturating_add_unsigned(self.suspended_us)
    }
}
