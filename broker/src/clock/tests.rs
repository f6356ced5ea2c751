//! The clock on host clocks that are set by hand.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use futures_util::FutureExt;

use mtimer_core::clock::ClockSample;
use mtimer_store::StoreClock;

use super::uptime::READING_TIMEOUT;
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
pub(crate) fn clock_at(us: u64) -> BrokerClock {
    BrokerClock::from_readings(Uptime::new(Manual::at(us)), &[])
}

impl BrokerClock {
    /// Observes that the clocks of the store say this.
    fn observe_store(&self, shown: &[u64]) -> Observation {
        let mono_us = self.uptime.now_us();
        let reading = |us: &u64| Some(ClockSample { shown_us: *us, sent_us: mono_us, received_us: mono_us });
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

/// The store's clock after it has stepped back to 990 s: a timer that is due by handed-out time is
/// due at once.
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
    let at_once = |shown_us| Some(ClockSample { shown_us, sent_us: 0, received_us: 0 });
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
        clocks.push(BrokerClock::from_readings(uptime, &readings));
    }
    for s in 0..30 {
        for clock in &clocks {
            clock.observe(&clock.uptime.read(store()).await);
            assert_eq!(clock.now().time, Time::from_ms(start / 1_000 + s * 1_000));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

/// Before the next round of readings, and waiting tasks are woken.
#[tokio::test(start_paused = true)]
async fn a_suspension_is_in_the_next_time_that_is_handed_out() {
    let host = Manual::at(1_000_000_000);
    let clock = BrokerClock::from_readings(Uptime::new(host.clone()), &[]);
    let due = Time::from_ms(1_000_000 + 3_600_000);
    assert_eq!(clock.instant_of(due) - Instant::now(), Duration::from_secs(3_600));
    host.suspend(3_599_000_000);
    assert_eq!(clock.now(), Now { time: due - 1_000, mono_ms: 3_599_000 });
    clock.moved().now_or_never().expect("instants are derived again");
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
    let known = ClockSample { shown_us: 1_000_000_000, sent_us: 0, received_us: 0 };
    let clock = BrokerClock::from_readings(Uptime::new(host.clone()), &[store(known)]);
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
