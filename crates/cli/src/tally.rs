//! Which timers have fired, how often, and how late: the exact check of demos and measurements.
//!
//! Invariant: every timer carries its number in its payload, so that a lost one and one that came
//! twice never make up for each other. Lateness is from the due time to the moment the handler is
//! entered, at the first delivery.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use mtimer_client::{Callback, Client, Mode, Time};
use parking_lot::Mutex;
use serde::Serialize;

/// The clock by which callbacks are late or early.
#[derive(Clone, Debug)]
pub(crate) enum Reference {
    /// This host's, to the microsecond: broker and client are in one process, and the cluster's
    /// clock is the host's.
    Host { base: Instant, base_us: u64 },
    /// As before, but the store's clocks have a say in the cluster's: a callback is early only if
    /// it is by both.
    Both { base: Instant, base_us: u64, client: Client },
    /// The cluster's as the client sees it, in ms.
    Cluster(Client),
}

/// How far the cluster's clock may be from the host's to be taken for the same.
const SAME_CLOCK_MS: u64 = 5;
/// How long it may be further away: on a busy machine a broker's first readings of it are slow, and
/// those that correct them come once a second.
const SETTLES_WITHIN: Duration = Duration::from_millis(2_500);
/// How often it looks for that.
const LOOK: Duration = Duration::from_millis(10);

impl Reference {
    /// Broker and client are in this process, and the store has no clock of its own.
    pub(crate) fn host() -> Self {
        let (base, base_us) = host_now();
        Self::Host { base, base_us }
    }

    /// Broker and client are on this host.
    pub(crate) async fn with_store_clocks(client: &Client) -> Self {
        match same_clock(|| client.now().as_ms(), host_now).await {
            Some((base, base_us)) => Self::Both { base, base_us, client: client.clone() },
            None => Self::Cluster(client.clone()),
        }
    }

    /// Microseconds since the epoch.
    pub(crate) fn now_us(&self) -> u64 {
        match self {
            Self::Host { base, base_us } | Self::Both { base, base_us, .. } => {
                base_us + micros(base.elapsed())
            }
            Self::Cluster(client) => client.now().as_ms() * 1_000,
        }
    }

    fn is_early(&self, now_us: u64, due: Time) -> bool {
        let early = now_us < due.as_ms() * 1_000;
        match self {
            Self::Both { client, .. } => early && client.now() < due,
            _ => early,
        }
    }
}

/// An instant and the host's clock then, which `host` reads, once a clock that shows `ms` agrees
/// with it.
async fn same_clock(ms: impl Fn() -> u64, host: impl Fn() -> (Instant, u64)) -> Option<(Instant, u64)> {
    let began = tokio::time::Instant::now();
    loop {
        let (base, base_us) = host();
        if ms().abs_diff(base_us / 1_000) <= SAME_CLOCK_MS {
            return Some((base, base_us));
        }
        if began.elapsed() > SETTLES_WITHIN {
            return None;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// An instant and the host's clock then. A thread may be put aside between two readings: the
/// closest pair of several counts.
fn host_now() -> (Instant, u64) {
    let reading = || {
        let before = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let took = before.elapsed();
        (took, before + took / 2, micros(since))
    };
    let (_, instant, us) = (0..100).map(|_| reading()).min_by_key(|r| r.0).unwrap_or_else(reading);
    (instant, us)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 2)
}

/// Counts the callbacks of timers 0 to n-1.
#[derive(Debug)]
pub(crate) struct CallbackTally {
    reference: Reference,
    timers: Vec<Deliveries>,
    fired: AtomicU64,
    retried: AtomicU64,
    keyed: AtomicU64,
    at_most_once: AtomicU64,
    early: AtomicU64,
    duplicates: AtomicU64,
    last_us: AtomicU64,
    lateness_us: Mutex<Histogram<u64>>,
}

/// Deliveries of one timer.
#[derive(Debug)]
struct Deliveries {
    expected: u8,
    /// At most as many as are expected.
    seen: AtomicU8,
}

impl Deliveries {
    /// Counts one more; how many came before it, or `None` if all had.
    fn add(&self) -> Option<u8> {
        let one_more = |seen| (seen < self.expected).then_some(seen + 1);
        self.seen.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()
    }
}

/// Most lateness that is told apart, µs: an hour.
const MAX_LATENESS_US: u64 = 3_600_000_000;

impl CallbackTally {
    /// Expects so many deliveries of each timer.
    pub(crate) fn new(timers: u64, reference: Reference, deliveries: impl Fn(u64) -> u8) -> Self {
        let expecting = |n| Deliveries { expected: deliveries(n), seen: AtomicU8::new(0) };
        Self {
            reference,
            timers: (0..timers).map(expecting).collect(),
            fired: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            keyed: AtomicU64::new(0),
            at_most_once: AtomicU64::new(0),
            early: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            lateness_us: Mutex::new(histogram()),
        }
    }

    /// Takes note of a callback; whether no further delivery of its timer is expected. To be called
    /// first of all in the handler.
    pub(crate) fn entered(&self, callback: &Callback) -> bool {
        let now_us = self.reference.now_us();
        let number = callback.payload.first_chunk().map(|b| u64::from_le_bytes(*b));
        let timer = number.and_then(|n| self.timers.get(usize::try_from(n).ok()?));
        // Nobody else has this destination: a number that is not ours has come once too often.
        let Some((timer, before)) = timer.and_then(|timer| Some((timer, timer.add()?))) else {
            self.duplicates.fetch_add(1, Ordering::AcqRel);
            return true;
        };
        if before == 0 {
            self.entered_first(callback, now_us);
        }
        let is_last = before + 1 == timer.expected;
        let count = if is_last { &self.fired } else { &self.retried };
        count.fetch_add(1, Ordering::AcqRel);
        is_last
    }

    /// The first delivery of a timer. Later ones have its due time, too.
    fn entered_first(&self, callback: &Callback, now_us: u64) {
        if self.reference.is_early(now_us, callback.due) {
            self.early.fetch_add(1, Ordering::AcqRel);
        }
        let late = now_us.saturating_sub(callback.due.as_ms() * 1_000);
        self.lateness_us.lock().saturating_record(late);
        self.last_us.fetch_max(now_us, Ordering::AcqRel);
        self.keyed.fetch_add(u64::from(callback.key.is_some()), Ordering::AcqRel);
        self.at_most_once.fetch_add(u64::from(callback.mode == Mode::AtMostOnce), Ordering::AcqRel);
    }

    /// Timers of which every expected delivery has come, each counted once.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Acquire)
    }

    /// Deliveries that another one was expected after.
    pub(crate) fn retried(&self) -> u64 {
        self.retried.load(Ordering::Acquire)
    }

    /// Timers with a key that have fired.
    pub(crate) fn keyed(&self) -> u64 {
        self.keyed.load(Ordering::Acquire)
    }

    /// At-most-once timers that have fired.
    pub(crate) fn at_most_once(&self) -> u64 {
        self.at_most_once.load(Ordering::Acquire)
    }

    pub(crate) fn early(&self) -> u64 {
        self.early.load(Ordering::Acquire)
    }

    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Acquire)
    }

    /// When the last first delivery came, µs since the epoch by the reference clock.
    pub(crate) fn last_us(&self) -> u64 {
        self.last_us.load(Ordering::Acquire)
    }

    pub(crate) fn lateness(&self) -> Histogram<u64> {
        self.lateness_us.lock().clone()
    }
}

/// A histogram of microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, MAX_LATENESS_US, 3) {
        Ok(histogram) => histogram,
        // The bounds are constants within the histogram's range.
        Err(error) => unreachable!("{error}"),
    }
}

/// Lateness in ms, as `demo` tells it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Lateness {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl From<&Histogram<u64>> for Lateness {
    fn from(us: &Histogram<u64>) -> Self {
        let at = |q| quantile(us, q);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// A quantile of a histogram of µs, in ms.
pub(crate) fn quantile(us: &Histogram<u64>, q: f64) -> f64 {
    us.value_at_quantile(q) as f64 / 1_000.0
}

/// The payload of timer `number`: its number, and as many bytes as are wanted (8 at least).
pub(crate) fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(bytes.max(payload.len()), b'.');
    payload
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_reference_clock_is_the_hosts() {
        let reference = Reference::host();
        let host = micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        // Not a measurement: a clock of another kind would be off by years.
        assert!(reference.now_us().abs_diff(host) < 60_000_000);
        assert!(reference.is_early(999, Time::from_ms(1)) && !reference.is_early(1_000, Time::from_ms(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_clock_has_time_to_come_to_the_hosts() {
        let (asked, began) = (Cell::new(0), tokio::time::Instant::now());
        let host = (Instant::now(), 1_000_000);
        let behind_at_first = || {
            asked.set(asked.get() + 1);
            1_000 - if asked.get() < 3 { SAME_CLOCK_MS + 1 } else { SAME_CLOCK_MS }
        };
        assert_eq!(same_clock(behind_at_first, || host).await, Some(host));
        assert_eq!((asked.get(), began.elapsed()), (3, LOOK * 2));
        let began = tokio::time::Instant::now();
        assert_eq!(same_clock(|| 1_000 + SAME_CLOCK_MS + 1, || host).await, None);
        assert_eq!(began.elapsed(), SETTLES_WITHIN + LOOK);
    }

    #[test]
    fn a_delivery_too_many_is_not_counted() {
        let timer = Deliveries { expected: 2, seen: AtomicU8::new(0) };
        assert_eq!((timer.add(), timer.add(), timer.add(), timer.add()), (Some(0), Some(1), None, None));
    }

    #[test]
    fn quantiles_are_in_ms() {
        let mut us = histogram();
        (1..=1_000).for_each(|n| us.saturating_record(n * 10));
        let lateness = Lateness::from(&us);
        assert!((lateness.p50 - 5.0).abs() < 0.01 && (lateness.max - 10.0).abs() < 0.01, "{lateness:?}");
    }

    #[test]
    fn payloads_begin_with_the_number() {
        assert_eq!(payload(258, 3), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(payload(1, 100).len(), 100);
    }
}
