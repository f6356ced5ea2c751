//! The cluster clock of this process: readings of the host and of the store, carried on by the monotonic clock.
//!
//! Purpose: [`Clock`] hands out the present by both clocks and turns times of the cluster clock into instants to wait
//! for; [`keep`] feeds it with a round of readings every second.
//! Invariant: the cluster clock never steps back. All is read and carried on in microseconds, and rounded down to a millisecond
//! where it is handed out.
//! Not in here: how readings are weighed ([`ClusterClock`]).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mtimer_core::{ClusterClock, Now};
use mtimer_store::Store;
use mtimer_types::Time;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::counters::{Counters, ShellCounter};

/// How often the clocks are read.
const ROUND: Duration = Duration::from_secs(1);
/// How long the store may take to tell its time; an answer that took longer is not worth much as a clock.
const READING_TIMEOUT: Duration = Duration::from_millis(500);
/// By how much the estimate has to have moved before all instants are derived anew, µs: the last milliseconds before each are waited for by
/// the clock itself.
const WORTH_IT_US: u64 = 500;
/// How far ahead an instant is at most, µs.
const MOST_AHEAD_US: u64 = mtimer_types::limits::MAX_AHEAD_MS * 1_000;

/// The host's clock. There to be replaced in tests.
pub trait HostClock: Send + Sync + fmt::Debug + 'static {
    /// Microseconds since the Unix epoch.
    fn now_us(&self) -> u64;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl HostClock for SystemClock {
    fn now_us(&self) -> u64 {
        // A host that thinks it is before 1970 has time 0: it is outvoted by the store, or stands alone and is wrong.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The present. Shared by the engine's task and the sessions.
#[derive(Debug)]
pub(crate) struct Clock {
    host: Arc<dyn HostClock>,
    /// Where monotonic time begins.
    base: Instant,
    cluster: Mutex<Estimate>,
    /// The estimate has moved against the monotonic clock; whoever waits for a time derives its instant anew.
    moved: Notify,
}

#[derive(Debug)]
struct Estimate {
    clock: ClusterClock,
    /// How far the end of time was from the beginning of the monotonic clock when whoever waits was last told to derive instants anew, µs.
    derived: u64,
}

impl Clock {
    /// Starts from a first round of readings. A store that does not tell its time in time is left out.
    pub(crate) async fn start(host: Arc<dyn HostClock>, store: &dyn Store) -> Self {
        Self::from_readings(host, read(store).await)
    }

    /// Starts from readings of the store's clocks that were taken just now.
    pub(crate) fn from_readings(host: Arc<dyn HostClock>, mut readings: Vec<u64>) -> Self {
        let (us, base) = host_now(&*host);
        readings.push(us);
        let clock = ClusterClock::new(0, &readings);
        let derived = clock.mono_until(0, Time::MAX);
        Self { host, base, cluster: Mutex::new(Estimate { clock, derived }), moved: Notify::new() }
    }

    /// The present by both clocks.
    pub(crate) fn now(&self) -> Now {
        let mono_us = self.mono_us(Instant::now());
        Now { time: self.cluster().clock.now(mono_us), mono_ms: mono_us / 1_000 }
    }

    /// When the cluster clock will read `time`, as far as can be said now; in the past if it does already.
    pub(crate) fn instant_of(&self, time: Time) -> Instant {
        let mono_us = self.mono_us(Instant::now());
        let ahead = self.cluster().clock.mono_until(mono_us, time);
        self.base + Duration::from_micros(mono_us.saturating_add(ahead.min(MOST_AHEAD_US)))
    }

    /// The instant of a monotonic time. Ten years ahead at most, which an instant can hold.
    pub(crate) fn instant_of_mono(&self, mono_ms: u64) -> Instant {
        let most = self.mono_us(Instant::now()).saturating_add(MOST_AHEAD_US);
        self.base + Duration::from_micros(mono_ms.saturating_mul(1_000).min(most))
    }

    /// Completes when the estimate has moved by [`WORTH_IT_US`] since the last time this completed. For one waiter.
    pub(crate) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Takes a round of readings; says how many clocks are far off.
    fn observe(&self, store: &[u64]) -> usize {
        let mut readings = store.to_vec();
        let (us, instant) = host_now(&*self.host);
        readings.push(us);
        let mono_us = self.mono_us(instant);
        let mut cluster = self.cluster();
        let seen = cluster.clock.observe(mono_us, &readings);
        let distance = cluster.clock.mono_until(0, Time::MAX);
        if distance.abs_diff(cluster.derived) >= WORTH_IT_US {
            cluster.derived = distance;
            self.moved.notify_one();
        }
        seen.outliers
    }

    fn mono_us(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.base);
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }

    fn cluster(&self) -> MutexGuard<'_, Estimate> {
        // The estimator is plain numbers; nothing in it can be left half done by a panic elsewhere.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host's clock, and the instant it was read at. Its reading comes first: if this thread is held up in between, the cluster clock
/// is late, not early. Of a few tries the closest counts.
fn host_now(host: &dyn HostClock) -> (u64, Instant) {
    let pair = |_| {
        let (before, us, after) = (Instant::now(), host.now_us(), Instant::now());
        (after.saturating_duration_since(before), us, after)
    };
    let (_, us, instant) = (0..16).map(pair).min_by_key(|p| p.0).unwrap_or_else(|| pair(0));
    (us, instant)
}

/// Readings of the store's clocks, as they were when the store looked: none of them is ahead of its clock now. Half a round
/// trip could be added, but a guess that is too high would make timers early.
async fn read(store: &dyn Store) -> Vec<u64> {
    // No answer is no reading: the store's health is watched and logged elsewhere.
    let answer = tokio::time::timeout(READING_TIMEOUT, store.clocks()).await;
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// Reads the clocks every second until cancelled. Logs when a clock goes far off and when all are back.
pub(crate) async fn keep(
    clock: Arc<Clock>,
    store: Arc<dyn Store>,
    counters: Arc<Counters>,
    stop: CancellationToken,
) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut alarmed = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let outliers = clock.observe(&read(&*store).await);
        if outliers > 0 {
            counters.add(ShellCounter::ClockOutliers, outliers as u64);
        }
        if (outliers > 0) != alarmed {
            alarmed = outliers > 0;
            if alarmed {
                let limit_ms = mtimer_core::clock::ALARM_MS;
                tracing::warn!(
                    outliers,
                    limit_ms,
                    "clocks are far from the cluster clock; check the hosts' time service"
                );
            } else {
                tracing::info!("all clocks agree with the cluster clock again");
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::FutureExt;

    use super::*;

    /// A host clock that is set by hand.
    #[derive(Debug, Default)]
    pub(crate) struct Manual(pub(crate) AtomicU64);

    impl HostClock for Manual {
        fn now_us(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    /// A clock that starts at this time.
    pub(crate) fn clock_at(us: u64) -> Clock {
        Clock::from_readings(Arc::new(Manual(AtomicU64::new(us))), Vec::new())
    }

    impl Clock {
        /// Observes that all clocks of the store say this.
        pub(crate) fn observe_all(&self, ms: u64) {
            self.observe(&[ms * 1_000; 3]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn milliseconds_begin_where_the_hosts_do() {
        let clock = clock_at(1_000_000_700);
        assert_eq!(clock.now().time, Time::from_ms(1_000_000));
        tokio::time::advance(Duration::from_micros(299)).await;
        assert_eq!(clock.now().time, Time::from_ms(1_000_000));
        tokio::time::advance(Duration::from_micros(1)).await;
        assert_eq!(clock.now().time, Time::from_ms(1_000_001));
        let due = clock.instant_of(Time::from_ms(1_000_011));
        assert_eq!(due - Instant::now(), Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_moved_estimate_wakes_who_waits() {
        let clock = clock_at(1_000_000_000);
        tokio::time::advance(Duration::from_secs(1)).await;
        let agreed = [1_001_000_000; 2];
        assert_eq!(clock.observe(&agreed), 1, "the host's clock has stood still");
        tokio::time::advance(Duration::from_secs(1)).await;
        clock.observe_all(1_008_000);
        clock.moved().await;
        assert!(clock.now().time > Time::from_ms(1_002_000));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_woken_for_less_than_it_is_worth() {
        let clock = clock_at(1_000_000_000);
        for s in 1..=6 {
            tokio::time::advance(Duration::from_secs(1)).await;
            clock.observe(&[(1_000 + s) * 1_000_000 + s * 100; 3]);
            let told = clock.moved().now_or_never().is_some();
            assert_eq!(told, s == 5, "{s}");
        }
        assert_eq!(clock.instant_of(Time::from_ms(1_006_001)) - Instant::now(), Duration::from_micros(400));
    }

    #[tokio::test(start_paused = true)]
    async fn times_far_ahead_have_an_instant() {
        let clock = clock_at(0);
        assert!(clock.instant_of(Time::MAX) > Instant::now() + Duration::from_secs(86_400));
        assert!(clock.instant_of_mono(u64::MAX) > Instant::now());
    }
}
