//! The cluster clock of this process: readings of the store's clocks, carried on by the monotonic
//! clock.
//!
//! Purpose: [`Clock`] hands out the present by both clocks and turns times of the cluster clock
//! into instants to wait for; [`keep`] feeds it with a round of readings every second, and reports
//! steps, suspensions and doubt.
//! Invariant: the cluster clock never steps back. Every clock is read by itself: one that hangs
//! costs its own reading only.
//!
//! Monotonic time is the runtime's, plus suspensions of this host, which the runtime's instants
//! leave out. Whoever asks for the present looks for them, so that no decision after a suspension
//! is made by the time before it. What waits for an instant wakes up late by the suspension, until
//! [`Clock::moved`] has it derive the instant anew.
//!
//! All is read and carried on in microseconds, and rounded down to a millisecond where it is handed
//! out.
//! Not in here: how readings are weighed ([`ClusterClock`]).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use mtimer_core::clock::{ALARM_MS, Decider, Doubt, Observation, Reading, StoreReading};
use mtimer_core::{ClusterClock, Now};
use mtimer_store::{Store, StoreClock};
use mtimer_suspension::{Suspensions, boottime_ahead_us};
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
/// By how much cluster time has to have moved against the runtime's before all instants are derived
/// anew, µs: the last milliseconds before each are waited for by the clock itself.
const WORTH_IT_US: u64 = 500;
/// How far ahead an instant is at most, µs.
const MOST_AHEAD_US: u64 = mtimer_types::limits::MAX_AHEAD_MS * 1_000;

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

/// The present. Shared by the engine's task and the sessions.
#[derive(Debug)]
pub(crate) struct Clock {
    uptime: Uptime,
    cluster: Mutex<Estimate>,
    /// Cluster time has moved against the runtime's; whoever waits for a time derives its instant
    /// anew.
    moved: Notify,
}

#[derive(Debug)]
struct Estimate {
    clock: ClusterClock,
    /// Cluster time minus the runtime's, µs, when pending instants were last derived.
    derived: i64,
}

/// Monotonic time that counts suspensions.
#[derive(Debug)]
struct Uptime {
    host: Arc<dyn HostClock>,
    /// Where it begins.
    base: Instant,
    suspensions: Mutex<Suspensions>,
}

/// A moment by the runtime's clock and by [`Uptime`].
#[derive(Clone, Copy)]
struct Moment {
    instant: Instant,
    mono_us: u64,
    /// How much of `mono_us` this host was suspended for.
    suspended_us: u64,
}

impl Clock {
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
    fn notify_if_moved(&self, cluster: &mut Estimate, now: Moment) {
        let ahead = now.ahead(&cluster.clock);
        if ahead.abs_diff(cluster.derived) >= WORTH_IT_US {
            cluster.derived = ahead;
            self.moved.notify_one();
        }
    }

    fn cluster(&self) -> MutexGuard<'_, Estimate> {
        // The estimator is plain numbers; nothing in it can be left half done by a panic elsewhere.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Uptime {
    fn new(host: Arc<dyn HostClock>) -> Self {
        let suspensions = Mutex::new(Suspensions::new(host.boottime_ahead_us()));
        Self { host, base: Instant::now(), suspensions }
    }

    fn now(&self) -> Moment {
        let mut suspensions = self.suspensions.lock().unwrap_or_else(PoisonError::into_inner);
        let suspended_us = suspensions.observe(self.host.boottime_ahead_us());
        let instant = Instant::now();
        let elapsed = instant.saturating_duration_since(self.base).as_micros();
        let mono_us = u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(suspended_us);
        Moment { instant, mono_us, suspended_us }
    }

    fn now_us(&self) -> u64 {
        self.now().mono_us
    }

    /// The host's clock. This thread may be held up while it reads: of a few tries the quickest
    /// counts.
    fn host_reading(&self) -> Reading {
        let one = |_| {
            let (sent_us, shown_us, received_us) = (self.now_us(), self.host.now_us(), self.now_us());
            Reading { shown_us, sent_us, received_us }
        };
        (0..16).map(one).min_by_key(|r| r.received_us - r.sent_us).unwrap_or_else(|| one(0))
    }

    /// Reads clocks of the store at the same time, each with a time limit of its own.
    async fn read(&self, clocks: Vec<StoreClock>) -> Vec<StoreReading> {
        let one = |StoreClock { name, reading }| async move {
            let sent_us = self.now_us();
            // No answer is no reading: the store's health is watched and logged elsewhere.
            let shown = tokio::time::timeout(READING_TIMEOUT, reading).await.ok().and_then(Result::ok);
            let received_us = self.now_us();
            let reading = shown.map(|shown_us| Reading { shown_us, sent_us, received_us });
            StoreReading { clock: name, reading }
        };
        join_all(clocks.into_iter().map(one)).await
    }
}

impl Moment {
    /// Cluster time minus the runtime's, µs.
    fn ahead(&self, clock: &ClusterClock) -> i64 {
        clock.offset_us().saturating_add_unsigned(self.suspended_us)
    }
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
    let mut reporter = Reporter { counters, doubt: None, host_is_off: false, suspended_us: 0 };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let (readings, seen) = clock.round(&*store).await;
        reporter.report(&readings, &seen);
        reporter.report_suspension(clock.uptime.now().suspended_us);
    }
}

/// Counts what rounds show, and logs what changes.
struct Reporter {
    counters: Arc<Counters>,
    /// The doubt that was logged last.
    doubt: Option<Doubt>,
    host_is_off: bool,
    /// How long this host has been suspended in all, as it was logged last, µs.
    suspended_us: u64,
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

    /// `total_us`: how long this host has been suspended since the start.
    fn report_suspension(&mut self, total_us: u64) {
        let for_ms = (total_us - self.suspended_us) / 1_000;
        if for_ms > ALARM_MS {
            self.suspended_us = total_us;
            tracing::warn!(for_ms, "this host was suspended; what became due meanwhile is sent now");
        }
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
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use futures_util::FutureExt;

    use super::*;

    /// Host clocks that are set by hand.
    #[derive(Debug, Default)]
    struct Manual {
        us: AtomicU64,
        suspended_us: AtomicI64,
    }

    impl Manual {
        fn at(us: u64) -> Arc<Self> {
            Arc::new(Self { us: AtomicU64::new(us), suspended_us: AtomicI64::new(0) })
        }

        /// Suspends the host; its clock stands still, too.
        fn suspend(&self, for_us: i64) {
            self.suspended_us.fetch_add(for_us, Ordering::SeqCst);
        }
    }

    impl HostClock for Manual {
        fn now_us(&self) -> u64 {
            self.us.load(Ordering::SeqCst)
        }

        fn boottime_ahead_us(&self) -> i64 {
            self.suspended_us.load(Ordering::SeqCst)
        }
    }

    /// A clock that starts at this time.
    pub(crate) fn clock_at(us: u64) -> Clock {
        Clock::from_readings(Uptime::new(Manual::at(us)), &[])
    }

    impl Clock {
        /// Observes that the clocks of the store say this.
        fn observe_store(&self, shown: &[u64]) -> Observation {
            let mono_us = self.uptime.now_us();
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

    /// The store's clock after it has stepped back to 990 s: what is due by handed-out time is due
    /// at once.
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
        let uptime = Uptime::new(Manual::at(0));
        let readings = uptime.read(Clocks(vec![None, Some(7), Some(8)]).list()).await;
        assert_eq!(Instant::now() - uptime.base, READING_TIMEOUT);
        let at_once = |shown_us| Some(Reading { shown_us, sent_us: 0, received_us: 0 });
        let readings: Vec<_> = readings.into_iter().map(|r| r.reading).collect();
        assert_eq!(readings, [None, at_once(7), at_once(8)]);
    }

    /// Two brokers whose hosts are minutes apart, on one store.
    #[tokio::test(start_paused = true)]
    async fn brokers_whose_hosts_differ_agree() {
        let start = 1_000_000_000_000;
        let truth = Uptime::new(Manual::at(0));
        let hosts = [start - 300_000_000, start, start + 420_000_000];
        let store = || Clocks(vec![Some(start + truth.now_us()); 3]).list();
        let mut clocks = Vec::new();
        for host in hosts {
            let uptime = Uptime::new(Manual::at(host));
            let readings = uptime.read(store()).await;
            clocks.push(Clock::from_readings(uptime, &readings));
        }
        for s in 0..30 {
            for clock in &clocks {
                clock.observe(&clock.uptime.read(store()).await);
                assert_eq!(clock.now().time, Time::from_ms(start / 1_000 + s * 1_000));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    /// Before the next round of readings, and whoever waits is woken.
    #[tokio::test(start_paused = true)]
    async fn a_suspension_is_in_the_next_time_that_is_handed_out() {
        let host = Manual::at(1_000_000_000);
        let clock = Clock::from_readings(Uptime::new(host.clone()), &[]);
        let due = Time::from_ms(1_000_000 + 3_600_000);
        assert_eq!(clock.instant_of(due) - Instant::now(), Duration::from_secs(3_600));
        host.suspend(3_599_000_000);
        assert_eq!(clock.now(), Now { time: due - 1_000, mono_ms: 3_599_000 });
        clock.moved().now_or_never().expect("instants are derived anew");
        assert_eq!(clock.instant_of(due) - Instant::now(), Duration::from_secs(1));
        assert_eq!(clock.instant_of_mono(3_600_000) - Instant::now(), Duration::from_secs(1));
        // The readings that follow agree: nothing is counted twice.
        let seen = clock.observe_store(&[4_599_000_000; 3]);
        assert_eq!((seen.moved_us, seen.ahead_us, seen.is_step()), (0, 0, false));
        assert_eq!(clock.now().time, due - 1_000);
        assert!(clock.moved().now_or_never().is_none());
    }

    /// The answer says nothing of when it was given within that time.
    #[tokio::test(start_paused = true)]
    async fn a_reading_that_spans_a_suspension_moves_nothing() {
        let host = Manual::at(0);
        let store = |us| StoreReading { clock: "a".into(), reading: Some(us) };
        let known = Reading { shown_us: 1_000_000_000, sent_us: 0, received_us: 0 };
        let clock = Clock::from_readings(Uptime::new(host.clone()), &[store(known)]);
        for shown_us in [1_000_000_000, 1_060_000_000] {
            let suspending = host.clone();
            let reading = async move {
                suspending.suspend(60_000_000);
                Ok(shown_us)
            };
            let asked = vec![StoreClock { name: "a".into(), reading: reading.boxed() }];
            let readings = clock.uptime.read(asked).await;
            let seen = clock.observe(&readings);
            assert!(seen.moved_us.abs() < 20_000, "{seen:?}");
        }
        assert!(clock.now().time >= Time::from_ms(1_119_900), "{:?}", clock.now());
    }

    #[test]
    fn what_rounds_show_is_counted() {
        let counters = Arc::new(Counters::default());
        let mut reporter =
            Reporter { counters: counters.clone(), doubt: None, host_is_off: false, suspended_us: 0 };
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
