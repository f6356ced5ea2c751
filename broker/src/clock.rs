//! The cluster clock of this process: readings of the store's clocks, carried on by the monotonic
//! clock.
//!
//! Purpose: [`BrokerClock`] hands out the present by both clocks and turns times of the cluster
//! clock into instants to wait for; [`keep`] feeds it with a round of readings every second, and
//! reports steps, suspensions and doubt.
//! Invariant: the cluster clock never steps back. Every clock is read by itself: one that hangs
//! costs its own reading only.
//!
//! Monotonic time is the runtime's, plus suspensions of this host, which the runtime's instants
//! leave out. [`BrokerClock::now`] looks for suspensions each time, so that no decision after one
//! uses the time before it. A task that waits for an instant would wake up late by the suspension:
//! [`BrokerClock::moved`] makes it compute the instant again.
//!
//! All is read and carried on in microseconds, and rounded down to a millisecond where it is handed
//! out.
//! Not in here: how readings are weighed ([`ClusterClock`]).

mod keep;
#[cfg(test)]
pub(crate) mod tests;
mod uptime;

use std::sync::Arc;
use std::time::Duration;

use mtimer_core::clock::{Observation, Standstill, StoreReading};
use mtimer_core::{ClusterClock, Now};
use mtimer_store::Store;
use mtimer_types::Time;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

pub(crate) use self::keep::keep;
pub use self::uptime::{HostClock, SystemClock};
use self::uptime::{Uptime, UptimeReading};

/// How long after a first round without an answer the next one begins.
const RETRY: Duration = Duration::from_millis(100);
/// By how much cluster time has to have moved against the runtime's before all instants are derived
/// again, µs: the last milliseconds before each are waited for by the clock itself.
const WORTH_IT_US: u64 = 500;
/// How far ahead an instant is at most, µs.
const MOST_AHEAD_US: u64 = mtimer_types::limits::MAX_AHEAD_MS * 1_000;

/// The present. Shared by the engine's task and the sessions.
#[derive(Debug)]
pub(crate) struct BrokerClock {
    uptime: Uptime,
    cluster: Mutex<Estimate>,
    /// Notified when cluster time has moved against the runtime's clock: instants that somebody
    /// waits for are then converted to instants again.
    moved: Notify,
}

#[derive(Debug)]
struct Estimate {
    clock: ClusterClock,
    /// Cluster time minus the runtime's, µs, when instants were last derived.
    derived: i64,
}

impl BrokerClock {
    /// Starts from a first round of readings. Reads until a clock of the store has answered, if the
    /// store has any: the host's clock may be wrong by any amount.
    pub(crate) async fn start(host: Arc<dyn HostClock>, store: &dyn Store) -> Self {
        let uptime = Uptime::new(host);
        loop {
            let readings = uptime.read(store.clocks()).await;
            if readings.is_empty() || readings.iter().any(|r| r.reading.is_some()) {
                return Self::from_readings(uptime, &readings);
            }
            sleep(RETRY).await;
        }
    }

    fn from_readings(uptime: Uptime, store: &[StoreReading]) -> Self {
        let now = uptime.now();
        let clock = ClusterClock::new(now.mono_us, uptime.host_reading(), store);
        let derived = now.ahead(&clock);
        Self { uptime, cluster: Mutex::new(Estimate { clock, derived }), moved: Notify::new() }
    }

    /// The present by both clocks.
    pub(crate) fn now(&self) -> Now {
        let now = self.uptime.now();
        let mut cluster = self.cluster();
        self.notify_if_moved(&mut cluster, now);
        Now { time: cluster.clock.now(now.mono_us), mono_ms: now.mono_us / 1_000 }
    }

    /// When the cluster clock will read `time`, as far as can be said now; in the past if it does
    /// already.
    pub(crate) fn instant_of(&self, time: Time) -> Instant {
        let now = self.uptime.now();
        let ahead = self.cluster().clock.mono_until(now.mono_us, time);
        now.instant + Duration::from_micros(ahead.min(MOST_AHEAD_US))
    }

    /// The instant of a monotonic time; the present if it has passed. Ten years ahead at most,
    /// which an instant can hold.
    pub(crate) fn instant_of_mono(&self, mono_ms: u64) -> Instant {
        let now = self.uptime.now();
        let ahead = mono_ms.saturating_mul(1_000).saturating_sub(now.mono_us);
        now.instant + Duration::from_micros(ahead.min(MOST_AHEAD_US))
    }

    /// Completes when cluster time has moved by [`WORTH_IT_US`] against the runtime's since the
    /// last time this completed. For one waiter.
    pub(crate) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// The estimate minus the monotonic clock, µs.
    pub(crate) fn offset_us(&self) -> i64 {
        self.cluster().clock.offset_us()
    }

    /// Whether time stands still because the deciding clock was set back.
    pub(crate) fn standstill(&self) -> Option<Standstill> {
        let now = self.uptime.now();
        self.cluster().clock.standstill(now.mono_us)
    }

    /// How long this host has been suspended since the start, µs.
    fn suspended_us(&self) -> u64 {
        self.uptime.now().suspended_us
    }

    /// Reads all clocks once.
    async fn round(&self, store: &dyn Store) -> (Vec<StoreReading>, Observation) {
        let readings = self.uptime.read(store.clocks()).await;
        let seen = self.observe(&readings);
        (readings, seen)
    }

    /// Takes a round of readings of the store's clocks.
    fn observe(&self, store: &[StoreReading]) -> Observation {
        let host = self.uptime.host_reading();
        let now = self.uptime.now();
        let mut cluster = self.cluster();
        let seen = cluster.clock.observe(now.mono_us, host, store);
        self.notify_if_moved(&mut cluster, now);
        seen
    }

    /// The estimate has moved, or this host was suspended.
    fn notify_if_moved(&self, cluster: &mut Estimate, now: UptimeReading) {
        let ahead = now.ahead(&cluster.clock);
        if ahead.abs_diff(cluster.derived) >= WORTH_IT_US {
            cluster.derived = ahead;
            self.moved.notify_one();
        }
    }

    fn cluster(&self) -> MutexGuard<'_, Estimate> {
        self.cluster.lock()
    }
}
