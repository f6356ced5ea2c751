//! Values at a bound, and just beyond it.

use super::*;

const TRUTH: u64 = START * S;

fn seen() -> Observation {
    Observation {
        decider: Decider::Store,
        moved_us: 0,
        ahead_us: 0,
        outliers: 0,
        spread_us: 0,
        host_us: 0,
        silent_us: 0,
    }
}

#[test]
fn a_step_and_a_doubt_begin_beyond_the_alarm() {
    let is_step = |moved_us| Observation { moved_us, ..seen() }.is_step();
    assert_eq!([250_000, 250_001, -250_000, -250_001].map(is_step), [false, true, false, true]);
    let ahead = |ahead_us| Observation { ahead_us, ..seen() }.doubt();
    assert_eq!([250_999, 251_000].map(ahead), [None, Some(Doubt::Ahead(251))]);
    let spread = |spread_us| Observation { spread_us, ..seen() }.doubt();
    assert_eq!([250_999, 251_000].map(spread), [None, Some(Doubt::Disagreement(251))]);
    let silent = |silent_us| Observation { silent_us, ..seen() }.doubt();
    assert_eq!([60_000_999, 60_001_000].map(silent), [None, Some(Doubt::Silence(60_001))]);
}

#[test]
fn an_outlier_is_farther_from_the_estimate_than_the_alarm() {
    for (off, outliers) in [(200_000, 0), (250_000, 0), (250_001, 1)] {
        let readings = named([TRUTH, TRUTH, TRUTH + off].map(|us| Some(at(0, us))));
        let mut clock = ClusterClock::new(0, at(0, 0), &readings);
        let seen = clock.observe(0, at(0, 0), &readings);
        assert_eq!((seen.outliers, seen.spread_us), (outliers, off));
    }
}

#[test]
fn the_estimate_moves_forward_beyond_the_dead_band_and_back_at_once() {
    for (by, moved) in [(DEAD_BAND_US, 0), (DEAD_BAND_US + 1, DEAD_BAND_US + 1), (-1, -1)] {
        let mut clock = ClusterClock::new(0, at(0, TRUTH), &[]);
        let seen = clock.observe(0, at(0, TRUTH.saturating_add_signed(by)), &[]);
        assert_eq!(seen.moved_us, moved);
        assert_eq!(clock.offset_us(), signed(TRUTH) + moved);
    }
}

#[test]
fn half_of_the_clocks_of_the_store_decide_and_fewer_do_not() {
    for (listed, decider) in [(2, Decider::Store), (3, Decider::Monotonic)] {
        let readings = named((0..listed).map(|n| (n == 0).then(|| at(0, TRUTH))));
        let mut clock = ClusterClock::new(0, at(0, 0), &readings);
        assert_eq!(clock.observe(0, at(0, 0), &readings).decider, decider, "one of {listed}");
    }
}

#[test]
fn a_reading_that_contradicts_the_earlier_ones_takes_their_place() {
    // Bounds that are close enough together for the clocks not to drift between two readings.
    let reading = |low, high| ClockSample { shown_us: high, sent_us: 0, received_us: high - low };
    for (low, high, after) in [
        (900, 999, (900, 999)),
        (900, 1_000, (1_000, 1_000)),
        (1_050, 1_150, (1_050, 1_100)),
        (1_100, 1_150, (1_100, 1_100)),
        (1_101, 1_150, (1_101, 1_150)),
    ] {
        let mut bounds = Bounds::of(reading(1_000, 1_100));
        bounds.narrow(reading(low, high));
        assert_eq!((bounds.low, bounds.high), after, "{low} to {high}");
    }
}
