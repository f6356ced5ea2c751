//! The estimator against clocks that are wrong in every way that was thought of, and at random.

mod edges;

use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000;
/// The time at which tests begin, s.
const START: u64 = 1_000_000;
/// The round trip of the store's answers unless a test says otherwise, µs.
const TRIP: u64 = 200;

/// A reading that took no time.
fn at(mono_us: u64, shown_us: u64) -> ClockSample {
    ClockSample { shown_us, sent_us: mono_us, received_us: mono_us }
}

/// Readings of the store's clocks; the store looked half a round trip before now.
fn store(mono_us: u64, shown_us: &[u64]) -> Vec<StoreReading> {
    store_after(mono_us, TRIP, shown_us)
}

fn store_after(mono_us: u64, trip: u64, shown_us: &[u64]) -> Vec<StoreReading> {
    let reading = |us: u64| ClockSample {
        shown_us: us.saturating_sub(trip / 2),
        sent_us: mono_us.saturating_sub(trip),
        received_us: mono_us,
    };
    named(shown_us.iter().map(|us| Some(reading(*us))))
}

fn named(readings: impl IntoIterator<Item = Option<ClockSample>>) -> Vec<StoreReading> {
    readings
        .into_iter()
        .enumerate()
        .map(|(i, reading)| StoreReading { clock: format!("10.0.0.{i}:6379"), reading })
        .collect()
}

/// Asserts that the clock is behind this time by at most a round trip, and not ahead of it.
fn assert_shows(clock: &mut ClusterClock, mono_us: u64, truth_us: u64) {
    let now = clock.now(mono_us);
    assert!(now <= Time::from_ms(truth_us / 1_000), "ahead: {now}, and the time is {truth_us} us");
    let late = truth_us - now.as_ms() * 1_000;
    assert!(late <= 1_000 + TRIP, "{late} us behind");
}

#[test]
fn the_store_decides_against_its_host_from_the_first_reading_on() {
    for off in [-5, -3_600, 5, 3_600_i64] {
        let truth = |s: u64| (START + s) * S;
        let host = |s: u64| at(s * S, truth(s).saturating_add_signed(off * S as i64));
        let mut clock = ClusterClock::new(0, host(0), &store(0, &[truth(0)]));
        for s in 1..=60 {
            assert_shows(&mut clock, s * S - S / 2, truth(s) - S / 2);
            let seen = clock.observe(s * S, host(s), &store(s * S, &[truth(s)]));
            assert_eq!((seen.decider, seen.doubt(), seen.is_step()), (Decider::Store, None, false));
            assert!(seen.host_us.abs_diff(off * S as i64) <= TRIP, "{seen:?}");
        }
    }
}

#[test]
fn a_host_that_jumps_while_the_store_is_not_heard_changes_nothing() {
    let truth = |s: u64| (START + s) * S;
    let mut clock = ClusterClock::new(0, at(0, truth(0)), &store(0, &[truth(0)]));
    for s in 1..=120 {
        let seen = clock.observe(s * S, at(s * S, truth(s + 600)), &named([None]));
        assert_eq!((seen.moved_us, seen.doubt().is_some()), (0, s > 60));
        assert_eq!(seen.decider == Decider::Monotonic, s > 10, "one lost answer changes nothing");
        assert_shows(&mut clock, s * S, truth(s));
    }
    for s in 121..=180 {
        let seen = clock.observe(s * S, at(s * S, truth(s + 600)), &store(s * S, &[truth(s)]));
        assert_eq!((seen.decider, seen.doubt(), seen.ahead_us), (Decider::Store, None, 0));
        assert_shows(&mut clock, s * S, truth(s));
    }
}

#[test]
fn a_host_that_cannot_tell_its_suspension_is_right_after_one_round() {
    for away in [4, 3_600, 86_400] {
        let truth = |s: u64| (START + s + if s > 10 { away } else { 0 }) * S;
        for led_by_host in [false, true] {
            let readings = |s: u64| {
                if led_by_host { Vec::new() } else { store(s * S, &[truth(s)]) }
            };
            let mut clock = ClusterClock::new(0, at(0, truth(0)), &readings(0));
            for s in 1..=20 {
                let seen = clock.observe(s * S, at(s * S, truth(s)), &readings(s));
                assert_eq!(seen.is_step(), s == 11);
                assert_shows(&mut clock, s * S, truth(s));
            }
        }
    }
}

#[test]
fn a_board_without_a_real_time_clock_is_right_once_its_host_is() {
    let mut clock = ClusterClock::new(0, at(0, 30 * S), &[]);
    assert_shows(&mut clock, S, 31 * S);
    let years = 20_074 * 86_400 * S;
    let seen = clock.observe(2 * S, at(2 * S, years), &[]);
    assert_eq!((seen.decider, seen.is_step(), seen.doubt()), (Decider::Host, true, None));
    assert_shows(&mut clock, 2 * S, years);
}

#[test]
fn hosts_that_differ_by_minutes_agree_by_the_same_store() {
    let truth = |s: u64| (START + s) * S;
    let host = |s: u64, off: i64| at(s * S, truth(s).saturating_add_signed(off * S as i64));
    let readings = |s: u64, trip| store_after(s * S, trip, &[truth(s), truth(s) + 700, truth(s) + 900]);
    let mut one = ClusterClock::new(0, host(0, -300), &readings(0, 100));
    let mut other = ClusterClock::new(0, host(0, 600), &readings(0, 3_000));
    for s in 1..=100 {
        one.observe(s * S, host(s, -300 - s as i64), &readings(s, 100));
        other.observe(s * S, host(s, 600), &readings(s, 3_000));
        let apart = one.offset_us().abs_diff(other.offset_us());
        assert!(apart <= 3_000, "{apart} us apart");
    }
}

#[test]
fn a_store_that_steps_back_stops_the_clock_and_never_turns_it() {
    for by in [1, 60, 3_600] {
        let truth = |s: u64| (START + s - if s >= 10 { by } else { 0 }) * S;
        let mut clock = ClusterClock::new(0, at(0, truth(0)), &store(0, &[truth(0)]));
        let mut highest = 0;
        for s in 1..=by + 100 {
            let seen = clock.observe(s * S, at(s * S, truth(s)), &store(s * S, &[truth(s)]));
            let now = clock.now(s * S).as_ms() * 1_000;
            assert!(now >= highest);
            assert_eq!(seen.is_step(), s == 10);
            let ahead = highest.saturating_sub(truth(s));
            assert!(seen.ahead_us.abs_diff(ahead) <= TRIP, "{seen:?}, {ahead}");
            assert_eq!(matches!(seen.doubt(), Some(Doubt::Ahead(_))), ahead > 250_000, "{seen:?}");
            // Nothing becomes due that the store's clock has not reached, and a time that is due
            // already is due at once.
            assert!(now == highest || now <= truth(s));
            assert_eq!(clock.mono_until(s * S, Time::from_ms(now / 1_000)), 0);
            let next = Time::from_ms((highest / S + 100) * 1_000);
            assert!(clock.mono_until(s * S, next) + TRIP >= (next.as_ms() * 1_000).saturating_sub(truth(s)));
            highest = now;
        }
        assert_shows(&mut clock, (by + 100) * S, truth(by + 100));
    }
}

#[test]
fn one_stray_master_of_three_is_outvoted_and_counted() {
    let truth = |s: u64| (START + s) * S;
    for stray in [0, 5_000 * S, START * S - 400_000, START * S + 400_000] {
        let mut clock = ClusterClock::new(0, at(0, 0), &store(0, &[truth(0), stray, truth(0)]));
        for s in 1..=20 {
            let readings = store(s * S, &[truth(s), stray + s * S, truth(s)]);
            let seen = clock.observe(s * S, at(s * S, 0), &readings);
            assert_eq!((seen.outliers, seen.moved_us, seen.is_step()), (1, 0, false));
            assert!(matches!(seen.doubt(), Some(Doubt::Disagreement(ms)) if ms >= 399), "{seen:?}");
            assert_shows(&mut clock, s * S, truth(s));
        }
    }
}

#[test]
fn of_two_that_disagree_the_lower_one_decides() {
    let truth = |s: u64| (START + s) * S;
    let both = |s: u64| store(s * S, &[truth(s + 40), truth(s)]);
    let mut clock = ClusterClock::new(0, at(0, 0), &both(0));
    for s in 1..=20 {
        let seen = clock.observe(s * S, at(s * S, 0), &both(s));
        assert!(matches!(seen.doubt(), Some(Doubt::Disagreement(39_000..=40_000))), "{seen:?}");
        assert_shows(&mut clock, s * S, truth(s));
    }
}

#[test]
fn the_masters_that_answer_decide_if_they_are_half_of_all() {
    let truth = |s: u64| (START + s) * S;
    let mut clock = ClusterClock::new(0, at(0, 0), &store(0, &[truth(0); 3]));
    for s in 1..=200 {
        let mut readings = store(s * S, &[truth(s); 3]);
        readings[0].reading = None;
        if s > 100 {
            // The only one that is still heard is one that is wrong.
            readings[1].reading = None;
            readings[2] = store(s * S, &[0, 0, truth(s + 3_600)]).remove(2);
        }
        let seen = clock.observe(s * S, at(s * S, 0), &readings);
        let expected = if s > 110 { Decider::Monotonic } else { Decider::Store };
        assert_eq!(seen.decider, expected, "{s}");
        assert_eq!(matches!(seen.doubt(), Some(Doubt::Silence(_))), s > 170, "{s}: {seen:?}");
        assert_shows(&mut clock, s * S, truth(s));
    }
    // A failover has put other servers in the place of those two.
    let mut readings = store(201 * S, &[truth(201); 5]);
    readings.drain(..2);
    let seen = clock.observe(201 * S, at(201 * S, 0), &readings);
    assert_eq!((seen.decider, seen.doubt()), (Decider::Store, None));
}

#[test]
fn a_slow_answer_is_worth_little() {
    // The store took 7 ms to answer at the start, then 0.1 ms.
    let truth = |s: u64| (START + s) * S;
    let mut clock = ClusterClock::new(0, at(0, 0), &store_after(0, 14_000, &[truth(0)]));
    assert_eq!(clock.mono_until(0, Time::from_ms(START * 1_000)), 7_000);
    let seen = clock.observe(S, at(S, 0), &store_after(S, 200, &[truth(1)]));
    assert_eq!((seen.moved_us, seen.is_step()), (6_900, false));
    // Less than the dead band is left alone.
    assert_eq!(clock.observe(2 * S, at(2 * S, 0), &store_after(2 * S, 120, &[truth(2)])).moved_us, 0);
    // Slow answers that agree with the known bounds take only the drift of two crystals from it.
    for s in 3..=12 {
        let seen = clock.observe(s * S, at(s * S, 0), &store_after(s * S, 400_000, &[truth(s)]));
        assert_eq!(seen.moved_us.unsigned_abs() / (DRIFT_US + 1), 0, "{seen:?}");
    }
    assert!(clock.mono_until(12 * S, Time::from_ms((START + 12) * 1_000)) <= 100 + 10 * DRIFT_US);
    // One that contradicts it tells of a step.
    let seen = clock.observe(13 * S, at(13 * S, 0), &store_after(13 * S, 400_000, &[truth(15)]));
    assert_eq!(seen.moved_us / 100_000, 18);
}

#[test]
fn a_store_that_is_heard_for_the_first_time_takes_over_from_the_host() {
    let mut clock = ClusterClock::new(0, at(0, START * S), &named([None]));
    assert_shows(&mut clock, 0, START * S);
    let seen = clock.observe(S, at(S, (START + 1) * S), &store(S, &[(START + 61) * S]));
    assert_eq!((seen.decider, seen.is_step()), (Decider::Store, true));
    assert_shows(&mut clock, S, (START + 61) * S);
}

#[test]
fn readings_from_the_end_of_time_do_no_harm() {
    let far = u64::MAX / 2;
    let mut clock = ClusterClock::new(0, at(0, u64::MAX), &[]);
    for mono in [1, far, u64::MAX] {
        clock.observe(mono, at(mono, u64::MAX), &store(mono, &[u64::MAX, 0, u64::MAX]));
        clock.observe(mono, at(mono, 0), &store(mono, &[0, 0, u64::MAX]));
    }
    assert!(clock.now(far) >= Time::MAX);
}

/// A change between two rounds.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    /// The host's clock is set, µs.
    Host(i64),
    /// A store clock is set to this distance from the true time, µs.
    Store(usize, i64),
    /// A store clock is not heard, or is heard again.
    Reach(usize, bool),
    /// The round trip of answers, µs.
    Trip(u64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let far = 20 * 365 * 86_400 * S as i64;
    let off = prop_oneof![-1_000_i64..1_000, -5_000_000_i64..5_000_000, -far..far];
    let change = prop_oneof![
        4 => Just(Change::Nothing),
        1 => off.clone().prop_map(Change::Host),
        1 => (0..3_usize, off).prop_map(|(i, off)| Change::Store(i, off)),
        1 => (0..3_usize, any::<bool>()).prop_map(|(i, reach)| Change::Reach(i, reach)),
        1 => prop_oneof![0..1_000_u64, 0..500_000_u64].prop_map(Change::Trip),
    ];
    proptest::collection::vec(change, 1..120)
}

/// Runs the estimator through changes, one round a second; `masters` clocks, 0: the host alone.
fn run(
    masters: usize,
    changes: &[Change],
    drift: i64,
    mut check: impl FnMut(&World, &mut ClusterClock, Observation),
) {
    let mut world =
        World { host: 0, store: vec![0; masters], heard: vec![true; masters], ..World::default() };
    world.trip = TRIP;
    let mut clock = ClusterClock::new(S, world.host_reading(S), &world.readings(S));
    for (s, change) in (2..).zip(changes) {
        match *change {
            Change::Nothing => {}
            Change::Host(off) => world.host = off,
            Change::Store(i, off) => _ = world.store.get_mut(i).map(|at| *at = off),
            Change::Reach(i, heard) => _ = world.heard.get_mut(i).map(|at| *at = heard),
            Change::Trip(trip) => world.trip = trip,
        }
        // All clocks of the store run at the true rate, and the monotonic clock of this host gains
        // or loses.
        world.mono = s * S;
        world.drifted = drift * (s as i64 - 1);
        let seen = clock.observe(s * S, world.host_reading(s * S), &world.readings(s * S));
        check(&world, &mut clock, seen);
    }
}

#[derive(Default)]
struct World {
    host: i64,
    store: Vec<i64>,
    heard: Vec<bool>,
    trip: u64,
    mono: u64,
    drifted: i64,
}

impl World {
    /// Far enough from 1970 for every jump.
    const BASE: u64 = 30 * 365 * 86_400 * S;

    fn truth(&self, mono_us: u64, off: i64) -> u64 {
        (Self::BASE + mono_us).saturating_add_signed(off + self.drifted)
    }

    fn host_reading(&self, mono_us: u64) -> ClockSample {
        at(mono_us, self.truth(mono_us, self.host))
    }

    fn readings(&self, mono_us: u64) -> Vec<StoreReading> {
        let one = |(off, heard): (&i64, &bool)| {
            heard.then(|| {
                let sent_us = mono_us - self.trip;
                let looked = mono_us - self.trip / 3;
                ClockSample { shown_us: self.truth(looked, *off), sent_us, received_us: mono_us }
            })
        };
        named(self.store.iter().zip(&self.heard).map(one))
    }

    /// The deciding clock's time, if all of the store's are heard.
    fn median(&self) -> Option<u64> {
        if !self.heard.iter().all(|heard| *heard) {
            return None;
        }
        let mut sorted = self.store.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().checked_sub(1)? / 2).map(|off| self.truth(self.mono, *off))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Time that was handed out never steps back, and a waiter is never told to wait for it again.
    #[test]
    fn handed_out_time_never_steps_back(masters in 0..4_usize, changes in changes(), drift in -150_i64..150) {
        let mut highest = Time::ZERO;
        run(masters, &changes, drift, |world, clock, _| {
            for later in [0, 1, 500_000] {
                let now = clock.now(world.mono + later);
                assert!(now >= highest);
                assert_eq!(clock.mono_until(world.mono + later, now), 0);
                highest = now;
            }
        });
    }

    /// Right after a round in which every clock of the store was heard, the estimate is the median
    /// of the store's clocks within the round trip: after any history, and however far it has to
    /// go.
    #[test]
    fn one_round_of_readings_is_enough(masters in 1..4_usize, changes in changes(), drift in -150_i64..150) {
        run(masters, &changes, drift, |world, clock, seen| {
            let Some(truth) = world.median() else { return };
            assert_eq!(seen.decider, Decider::Store);
            let estimate = clock.estimate(world.mono) as i64;
            let error = estimate - truth as i64;
            let bound = world.trip as i64;
            assert!((-bound - DEAD_BAND_US..=bound).contains(&error), "{error} us off with a round trip of {bound} us");
        });
    }

    /// A step is seen at once; without one, and with clocks that differ by less than two crystals
    /// do, it is never early.
    #[test]
    fn it_is_never_early_by_a_clock_that_does_not_step(trips in proptest::collection::vec(0..500_000_u64, 1..100), drift in -150_i64..150) {
        let changes: Vec<Change> = trips.into_iter().map(Change::Trip).collect();
        run(1, &changes, drift, |world, clock, seen| {
            let truth = world.median().unwrap();
            let ahead = clock.estimate(world.mono) as i64 - truth as i64;
            assert!(ahead <= 1, "{ahead} us early");
            assert!(!seen.is_step() || world.trip > 250_000);
        });
    }

    /// Once a clock of the store was heard the host's changes nothing.
    #[test]
    fn the_host_does_not_matter_where_a_store_is_heard(masters in 1..4_usize, changes in changes(), drift in -150_i64..150) {
        let without: Vec<Change> = changes
            .iter()
            .map(|change| if matches!(change, Change::Host(_)) { Change::Nothing } else { change.clone() })
            .collect();
        let offsets = |changes: &[Change]| {
            let mut offsets = Vec::new();
            run(masters, changes, drift, |_, clock, seen| offsets.push((clock.offset_us(), seen.decider)));
            offsets
        };
        let (with, without) = (offsets(&changes), offsets(&without));
        prop_assert!(with.iter().all(|(_, decider)| *decider != Decider::Host));
        prop_assert_eq!(with, without);
    }

    /// Without a store clock the host decides, and is followed at once.
    #[test]
    fn the_host_decides_alone_where_the_store_has_no_clock(changes in changes()) {
        run(0, &changes, 0, |world, clock, seen| {
            assert_eq!(seen.decider, Decider::Host);
            let error = clock.estimate(world.mono) as i64 - world.truth(world.mono, world.host) as i64;
            assert!((-DEAD_BAND_US..=0).contains(&error), "{error} us off");
        });
    }
}
