//! The cluster clock of this process: readings of the store's clocks, carried on by the monotonic clock.
//!
//! Purpose: [`Clock`] hands out the present by both clocks and turns times of the cluster clock into instants to wait
//! for; [`keep`] feeds it with a round of readings every second, and reports steps and doubt.
//! Invariant: the cluster clock never steps back. Every clock is read by itself: one that hangs costs its own reading only.
//! All is read and carried on in microseconds, and rounded down to a millisecond where it is handed out.
//! Not in here: how readings are weighed ([`ClusterClock`]).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use mtimer_core::clock::{ALARM_MS, Decider, Doubt, Observation, Reading, StoreReading};
use mtimer_core::{ClusterClock, Now};
use mtimer_store::{Store, StoreClock};
use mtimer_types::Time;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, sleep};
use tokio_util::sync::CancellationToken;

use crate::counters::{Counters, ShellCounter};

/// How often the clocks are read.
const ROUND: Duration = Duration::from_secs(1);
/// How long a clock of the store may take to be read: a slower answer says little about the time.
const READING_TIMEOUT: Duration = Duration::from_millis(500);
/// How long after a first round without an answer the next one begins.
const RETRY: Duration = Duration::from_millis(100);
/// By how much the estimate has to have moved before all instants are derived anew, µs: the last milliseconds before each
/// are waited for by the clock itself.
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
        // A host that thinks it is before 1970 has time 0.
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
    /// Estimate minus monotonic clock, µs, when pending instants were last derived.
    derived: i64,
}

impl Clock {
    /// Starts from a first round of readings. Reads until a clock of the store has answered, if the store has any: the
    /// host's clock may be wrong by any amount.
    pub(crate) async fn start(host: Arc<dyn HostClock>, store: &dyn Store) -> Self {
        let base = Instant::now();
        loop {
            let readings = read(base, store.clocks()).await;
            if readings.is_empty() || readings.iter().any(|r| r.reading.is_some()) {
                return Self::from_readings(host, base, &readings);
            }
            sleep(RETRY).await;
        }
    }

    fn from_readings(host: Arc<dyn HostClock>, base: Instant, store: &[StoreReading]) -> Self {
        let clock = ClusterClock::new(micros_since(base, Instant::now()), host_reading(base, &*host), store);
        let derived = clock.offset_us();
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

    /// Reads all clocks once.
    async fn round(&self, store: &dyn Store) -> (Vec<StoreReading>, Observation) {
        let readings = read(self.base, store.clocks()).await;
        let seen = self.observe(&readings);
        (readings, seen)
    }

    /// Takes a round of readings of the store's clocks.
    fn observe(&self, store: &[StoreReading]) -> Observation {
        let host = host_reading(self.base, &*self.host);
        let mono_us = self.mono_us(Instant::now());
        let mut cluster = self.cluster();
        let seen = cluster.clock.observe(mono_us, host, store);
        let offset = cluster.clock.offset_us();
        if offset.abs_diff(cluster.derived) >= WORTH_IT_US {
            cluster.derived = offset;
            self.moved.notify_one();
        }
        seen
    }

    fn mono_us(&self, instant: Instant) -> u64 {
        micros_since(self.base, instant)
    }

    fn cluster(&self) -> MutexGuard<'_, Estimate> {
        // The estimator is plain numbers; nothing in it can be left half done by a panic elsewhere.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn micros_since(base: Instant, instant: Instant) -> u64 {
    u64::try_from(instant.saturating_duration_since(base).as_micros()).unwrap_or(u64::MAX)
}

/// The host's clock. This thread may be held up while it reads: of a few tries the quickest counts.
fn host_reading(base: Instant, host: &dyn HostClock) -> Reading {
    let one = |_| {
        let (sent, shown_us, received) = (Instant::now(), host.now_us(), Instant::now());
        Reading { shown_us, sent_us: micros_since(base, sent), received_us: micros_since(base, received) }
    };
    (0..16).map(one).min_by_key(|r| r.received_us - r.sent_us).unwrap_or_else(|| one(0))
}

/// Reads clocks of the store at the same time, each with a time limit of its own.
async fn read(base: Instant, clocks: Vec<StoreClock>) -> Vec<StoreReading> {
    let one = |StoreClock { name, reading }| async move {
        let sent_us = micros_since(base, Instant::now());
        // No answer is no reading: the store's health is watched and logged elsewhere.
        let shown = tokio::time::timeout(READING_TIMEOUT, reading).await.ok().and_then(Result::ok);
        let received_us = micros_since(base, Instant::now());
        let reading = shown.map(|shown_us| Reading { shown_us, sent_us, received_us });
        StoreReading { clock: name, reading }
    };
    join_all(clocks.into_iter().map(one)).await
}

/// Reads the clocks every second until cancelled.
pub(crate) async fn keep(
    clock: Arc<Clock>,
    store: Arc<dyn Store>,
    counters: Arc<Counters>,
    stop: CancellationToken,
) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reporter = Reporter { counters, doubt: None, host_is_off: false };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let (readings, seen) = clock.round(&*store).await;
        reporter.report(&readings, &seen);
    }
}

/// Counts what rounds show, and logs what changes.
struct Reporter {
    counters: Arc<Counters>,
    /// The doubt that was logged last.
    doubt: Option<Doubt>,
    host_is_off: bool,
}

impl Reporter {
    fn report(&mut self, readings: &[StoreReading], seen: &Observation) {
        let missed = readings.iter().filter(|r| r.reading.is_none()).count();
        self.counters.add(ShellCounter::ClockReadingsMissed, missed as u64);
        self.counters.add(ShellCounter::ClockOutliers, seen.outliers as u64);
        if seen.is_step() {
            self.counters.count(ShellCounter::ClockSteps);
            let by_ms = seen.moved_us / 1_000;
            tracing::warn!(by_ms, clock = decider(seen.decider), "the cluster clock was corrected by a step");
        }
        let doubt = seen.doubt();
        if doubt.is_some() {
            self.counters.count(ShellCounter::ClockDoubtful);
        }
        let kind = |doubt: &Option<Doubt>| doubt.as_ref().map(std::mem::discriminant);
        if kind(&doubt) != kind(&self.doubt) {
            log_doubt(doubt);
        }
        self.doubt = doubt;
        self.report_host(seen);
    }

    /// The host's clock decides nothing beside a store's, but whoever reads its logs should know.
    fn report_host(&mut self, seen: &Observation) {
        let off_ms = seen.host_us / 1_000;
        let is_off = off_ms.unsigned_abs() > ALARM_MS;
        if is_off && !self.host_is_off {
            tracing::warn!(
                off_ms,
                "this host's clock is off; timers follow the store's clocks, log lines do not"
            );
        } else if !is_off && self.host_is_off {
            tracing::info!("this host's clock agrees with the cluster clock again");
        }
        self.host_is_off = is_off;
    }
}

fn log_doubt(doubt: Option<Doubt>) {
    match doubt {
        None => tracing::info!("the time is known well enough again"),
        Some(Doubt::Ahead(ms)) => tracing::warn!(
            ms,
            "the deciding clock has stepped back: time stands still until it has caught up; restart the brokers to go on \
             from it at once"
        ),
        Some(Doubt::Disagreement(ms)) => tracing::warn!(
            ms,
            "the store's clocks disagree: their lower median decides; check the time service of their hosts"
        ),
        Some(Doubt::Silence(ms)) => tracing::warn!(
            ms,
            "too few of the store's clocks are heard: the time is carried on by this host's monotonic clock"
        ),
    }
}

const fn decider(decider: Decider) -> &'static str {
    match decider {
        Decider::Store => "store",
        Decider::Host => "host",
        Decider::Monotonic => "monotonic",
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
        Clock::from_readings(Arc::new(Manual(AtomicU64::new(us))), Instant::now(), &[])
    }

    impl Clock {
        /// Observes that the clocks of the store say this.
        fn observe_store(&self, shown: &[u64]) -> Observation {
            let mono_us = self.mono_us(Instant::now());
            let reading = |us: &u64| Some(Reading { shown_us: *us, sent_us: mono_us, received_us: mono_us });
            let store: Vec<_> = shown
                .iter()
                .enumerate()
                .map(|(i, us)| StoreReading { clock: i.to_string(), reading: reading(us) })
                .collect();
            self.observe(&store)
        }

        /// Observes that all clocks of the store say this.
        pub(crate) fn observe_all(&self, ms: u64) {
            self.observe_store(&[ms * 1_000; 3]);
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
        let seen = clock.observe_store(&[1_001_000_000; 2]);
        assert_eq!(seen.host_us, -1_000_000, "the host's clock has stood still");
        assert!(clock.moved().now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        clock.observe_all(1_008_000);
        clock.moved().await;
        assert_eq!(clock.now().time, Time::from_ms(1_008_000));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_woken_for_less_than_it_is_worth() {
        let clock = clock_at(1_000_000_000);
        for s in 1..=6 {
            tokio::time::advance(Duration::from_secs(1)).await;
            clock.observe_store(&[(1_000 + s) * 1_000_000 + s * 100; 3]);
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

    /// The store's clock after it has stepped back to 990 s: what is due by handed-out time is due at once.
    #[tokio::test(start_paused = true)]
    async fn what_is_due_while_time_stands_still_is_due_at_once() {
        let clock = clock_at(1_000_000_000);
        let due = clock.now().time;
        clock.observe_all(990_000);
        clock.moved().await;
        assert_eq!(clock.now().time, due);
        assert_eq!(clock.instant_of(due), Instant::now());
        let next = clock.instant_of(due + 1) - Instant::now();
        assert_eq!(next, Duration::from_millis(10_001));
    }

    /// A store whose clocks answer as told; one that is not told anything hangs.
    struct Clocks(Vec<Option<u64>>);

    impl Clocks {
        fn list(&self) -> Vec<StoreClock> {
            let clock = |(i, shown): (usize, &Option<u64>)| {
                let shown = *shown;
                let reading = async move {
                    match shown {
                        Some(us) => Ok(us),
                        None => std::future::pending().await,
                    }
                };
                StoreClock { name: i.to_string(), reading: reading.boxed() }
            };
            self.0.iter().enumerate().map(clock).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_hangs_costs_its_own_reading_only() {
        let base = Instant::now();
        let readings = read(base, Clocks(vec![None, Some(7), Some(8)]).list()).await;
        assert_eq!(Instant::now() - base, READING_TIMEOUT);
        let at_once = |shown_us| Some(Reading { shown_us, sent_us: 0, received_us: 0 });
        let readings: Vec<_> = readings.into_iter().map(|r| r.reading).collect();
        assert_eq!(readings, [None, at_once(7), at_once(8)]);
    }

    /// Two brokers whose hosts are minutes apart, on one store.
    #[tokio::test(start_paused = true)]
    async fn brokers_whose_hosts_differ_agree() {
        let (base, start) = (Instant::now(), 1_000_000_000_000);
        let hosts = [start - 300_000_000, start, start + 420_000_000];
        let store = || Clocks(vec![Some(start + micros_since(base, Instant::now())); 3]).list();
        let mut clocks = Vec::new();
        for host in hosts {
            let readings = read(base, store()).await;
            clocks.push(Clock::from_readings(Arc::new(Manual(AtomicU64::new(host))), base, &readings));
        }
        for s in 0..30 {
            for clock in &clocks {
                clock.observe(&read(base, store()).await);
                assert_eq!(clock.now().time, Time::from_ms(start / 1_000 + s * 1_000));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[test]
    fn what_rounds_show_is_counted() {
        let counters = Arc::new(Counters::default());
        let mut reporter = Reporter { counters: counters.clone(), doubt: None, host_is_off: false };
        let silent = StoreReading { clock: "a".into(), reading: None };
        let quiet = Observation {
            decider: Decider::Store,
            moved_us: 0,
            ahead_us: 0,
            outliers: 0,
            spread_us: 0,
            host_us: 0,
            silent_us: 0,
        };
        reporter.report(std::slice::from_ref(&silent), &quiet);
        reporter.report(&[], &Observation { moved_us: -2_000_000, ahead_us: 2_000_000, ..quiet });
        reporter.report(&[], &Observation { ahead_us: 1_000_000, outliers: 2, host_us: 1 << 40, ..quiet });
        let mut counted = Vec::new();
        counters.merge_into(&mut counted);
        counted.retain(|(name, _)| name.starts_with("clock_"));
        let expected = [
            ("clock_doubtful_total", 2),
            ("clock_outliers_total", 2),
            ("clock_readings_missed_total", 1),
            ("clock_steps_total", 1),
        ];
        assert_eq!(counted, expected.map(|(name, n)| (name.to_owned(), n)));
    }
}
