use super::*;

/// With a first sample, of connection 1.
fn clock(time: u64, sent: Moment, received: Moment) -> Clock {
    let mut clock = Clock::default();
    clock.observe(1, Time::from_ms(time), sent, received);
    clock
}

#[test]
fn a_suspension_is_in_the_next_time_that_is_asked_for() {
    let at = |ms| Moment::ORIGIN + Duration::from_millis(ms);
    let mut clock = clock(1_000, at(0), at(0));
    clock.suspended(Duration::from_secs(60), at(0));
    assert_eq!(clock.at(at(0)), Time::from_ms(61_000));
    clock.suspended(Duration::from_millis(500), at(0));
    assert_eq!(clock.at(at(0)), Time::from_ms(61_500));
    // The next heartbeat agrees, and changes nothing.
    clock.observe(1, Time::from_ms(61_501), at(0), at(2));
    assert_eq!(clock.at(at(2)), Time::from_ms(61_502));
}

#[test]
fn a_sample_that_spans_a_suspension_makes_nothing_early() {
    // The answer was given before the suspension, after it, or in the middle, by a clock that
    // went on.
    let at = |ms| Moment::ORIGIN + Duration::from_millis(ms);
    for answered in [1_002, 31_000, 61_002] {
        let mut clock = clock(1_000, at(0), at(0));
        clock.suspended(Duration::from_secs(60), at(4));
        clock.observe(1, Time::from_ms(answered), at(0), at(4));
        assert_eq!(clock.at(at(4)), Time::from_ms(61_004));
    }
}

#[test]
fn the_estimate_stays_within_every_sample() {
    let start = Moment::ORIGIN;
    let at = |ms: u64| start + Duration::from_millis(ms);
    // A slow handshake: somewhere in 1,000..=1,100.
    let mut clock = clock(1_000, at(0), at(100));
    assert_eq!(clock.at(at(100)), Time::from_ms(1_100));
    // A fast answer tightens it.
    clock.observe(1, Time::from_ms(1_050), at(148), at(150));
    assert_eq!(clock.at(at(150)), Time::from_ms(1_052));
    // A slow one that agrees changes nothing.
    clock.observe(1, Time::from_ms(1_150), at(200), at(300));
    assert_eq!(clock.at(at(300)), Time::from_ms(1_202));
    // The cluster's clock went ahead of the estimate.
    clock.observe(1, Time::from_ms(5_000), at(399), at(400));
    assert_eq!(clock.at(at(400)), Time::from_ms(5_001));
    // And back.
    clock.observe(1, Time::from_ms(2_000), at(499), at(500));
    assert_eq!(clock.at(at(500)), Time::from_ms(2_001));
    // Another broker is ahead of this one, and then gone.
    clock.observe(2, Time::from_ms(2_060), at(549), at(550));
    assert_eq!(clock.at(at(550)), Time::from_ms(2_061));
    clock.observe(1, Time::from_ms(2_100), at(599), at(600));
    assert_eq!(clock.at(at(600)), Time::from_ms(2_111));
    clock.forget(2);
    assert_eq!(clock.at(at(600)), Time::from_ms(2_101));
    clock.forget(1);
    assert_eq!(clock.at(at(600)), Time::from_ms(2_101));
    // A broker says unasked that its clock has gone ahead, and says nothing new.
    clock.corrected(3, Time::from_ms(9_000), at(700));
    assert_eq!(clock.at(at(700)), Time::from_ms(9_000));
    clock.corrected(3, Time::from_ms(8_000), at(800));
    assert_eq!(clock.at(at(800)), Time::from_ms(9_100));
}

#[test]
fn the_clock_never_shows_less_than_a_delivery_proves() {
    let start = Moment::ORIGIN;
    let at = |us: u64| start + Duration::from_micros(us);
    let mut clock = clock(1_000, at(0), at(0));
    // The broker's clock runs a little faster; 100 ms later it is at 1,101.0 ms.
    let arrived = at(100_000);
    assert_eq!(clock.at(arrived), Time::from_ms(1_100));
    assert!(!clock.proved(1, Time::from_ms(1_101), arrived));
    assert_eq!(clock.at(arrived), Time::from_ms(1_101));
    assert_eq!(clock.at(at(101_000)), Time::from_ms(1_102), "it goes on from there");
    assert_eq!(clock.at_broker(1, arrived), Time::from_ms(1_101));
    // An earlier due time proves nothing new.
    assert!(!clock.proved(1, Time::from_ms(500), arrived));
    assert_eq!(clock.at(arrived), Time::from_ms(1_101));
    // A pong that says less corrects it: a broker that was started after a step back.
    clock.observe(1, Time::from_ms(1_050), at(110_000), at(111_000));
    assert_eq!(clock.at(at(111_000)), Time::from_ms(1_051));
}

#[test]
fn a_proof_far_ahead_is_no_time_to_go_by_but_a_reason_to_ask() {
    let start = Moment::ORIGIN;
    let mut clock = clock(1_000, start, start);
    let hour_ahead = Time::from_ms(1_000 + 3_600_000);
    assert!(clock.proved(1, hour_ahead, start), "the broker is to be asked");
    assert_eq!(clock.at(start), Time::from_ms(1_000), "in five seconds stays in five seconds");
    // Of a connection that is gone nothing is taken in.
    clock.observe(2, Time::from_ms(1_000), start, start);
    clock.forget(2);
    assert!(!clock.proved(2, Time::from_ms(1_100), start));
    assert_eq!(clock.at(start), Time::from_ms(1_000));
}

#[test]
fn a_request_bears_the_time_of_the_broker_that_it_goes_to() {
    let start = Moment::ORIGIN;
    let mut clock = clock(1_000_000, start, start);
    // This broker started after the deciding clock had stepped back.
    clock.observe(2, Time::from_ms(1_000), start, start);
    let later = start + Duration::from_millis(10);
    assert_eq!(clock.at(later), Time::from_ms(1_000_010));
    assert_eq!(clock.at_broker(2, later), Time::from_ms(1_010));
    assert_eq!(clock.at_broker(3, later), clock.at(later), "of this one nothing is known");
}
