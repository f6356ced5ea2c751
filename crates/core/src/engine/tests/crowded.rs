//! When timers that wait for credit are parked: by how long nothing was taken, and by how much
//! memory is used.

use mtimer_types::Priority;

use super::*;
use crate::engine::attended::AttendedTime;
use crate::engine::destination_members::DestIx;
use crate::engine::flow::Flow;
use crate::engine::pressure::Pressure;
use crate::engine::table::EntryState;

const PARK_AFTER_MS: u64 = 1_000;
/// Attended time at which these tests look, ms.
const ATTENDED: u64 = 10_000;

/// A broker with twenty timers that wait for a client without credit. Its destination took two
/// deliveries of late, and has had credit until now.
fn waiting() -> (Rig, DestIx) {
    let mut rig = Rig::new(EngineOptions { park_after_ms: PARK_AFTER_MS, ..EngineOptions::default() });
    rig.join(1, "a", 0);
    for _ in 0..20 {
        let timer = rig.timer("a", 1);
        rig.schedule(1, timer);
    }
    rig.run(20);
    let ix = rig.engine.roster.dest_ix(&dest("a"));
    rig.engine.attended = AttendedTime::showing(ATTENDED, rig.ms);
    let d = rig.engine.roster.dest_mut(ix);
    assert_eq!(d.ready.len(), 20);
    d.flow = blocked(2, ATTENDED);
    (rig, ix)
}

/// A destination that took so many of late, and nothing since, for want of credit.
fn blocked(pace: u64, since: u64) -> Flow {
    let mut flow = Flow::default();
    flow.note_credit(since, pace as usize, false);
    flow
}

/// How many still wait when they have done so for `age` ms.
fn left(change: impl FnOnce(&mut Engine, DestIx), age: u64) -> usize {
    let (mut rig, ix) = waiting();
    change(&mut rig.engine, ix);
    let last = rig.engine.roster.dest(ix).ready.back().unwrap();
    let EntryState::Ready { since } = rig.engine.partition(P).unwrap().table.get(last).unwrap().state else {
        panic!("it does not wait")
    };
    let now = Now { mono_ms: since + age, ..rig.now() };
    rig.engine.park_waiting(now);
    rig.engine.roster.dest(ix).ready.len()
}

fn idle(engine: &mut Engine, ix: DestIx) {
    engine.roster.dest_mut(ix).flow = blocked(2, ATTENDED - 150);
}

fn stuck(engine: &mut Engine, ix: DestIx) {
    engine.roster.dest_mut(ix).flow = blocked(2, ATTENDED - PARK_AFTER_MS);
}

#[test]
fn while_there_is_memory_only_what_is_stuck_is_parked() {
    assert_eq!(left(|_, _| (), 60_000), 20);
    assert_eq!(left(idle, 60_000), 20);
    assert_eq!([PARK_AFTER_MS - 1, PARK_AFTER_MS].map(|age| left(stuck, age)), [20, 0]);
    let settling = |engine: &mut Engine, ix| {
        stuck(engine, ix);
        engine.roster.dest_mut(ix).flow.begin_settling();
    };
    assert_eq!(left(settling, 60_000), 20, "the store holds its credit");
}

#[test]
fn while_memory_is_short_what_nobody_takes_is_parked_but_for_what_goes_soon() {
    let pressed = |engine: &mut Engine, _| engine.pressure = Pressure::Pressed;
    assert_eq!(left(pressed, 60_000), 20, "it makes progress");
    let pressed_and_idle = |engine: &mut Engine, ix| {
        engine.pressure = Pressure::Pressed;
        idle(engine, ix);
    };
    assert_eq!(left(pressed_and_idle, 0), 2);
    let full = |engine: &mut Engine, _| engine.pressure = Pressure::Full;
    assert_eq!([PARK_AFTER_MS - 1, PARK_AFTER_MS].map(|age| left(full, age)), [20, 16]);
}

#[test]
fn what_was_sent_lately_counts_less_and_less() {
    let (mut rig, ix) = waiting();
    rig.engine.roster.dest_mut(ix).flow = blocked(100, ATTENDED);
    let now = rig.now();
    rig.engine.park_waiting(now);
    assert_eq!(rig.engine.roster.dest(ix).flow.pace(), 80);
}

#[test]
fn a_destination_is_crowded_if_memory_is_short_and_more_waits_than_it_takes() {
    let parks_new = |pressure, pace, idle_ms, settling| {
        let (mut rig, ix) = waiting();
        rig.engine.pressure = pressure;
        let flow = &mut rig.engine.roster.dest_mut(ix).flow;
        *flow = blocked(pace, ATTENDED - idle_ms);
        (0..settling).for_each(|_| flow.begin_settling());
        rig.engine.parks_new(ix, Priority::Normal)
    };
    assert!(parks_new(Pressure::Pressed, 20, 150, 0));
    assert!(!parks_new(Pressure::Free, 20, 150, 0), "there is memory");
    assert!(!parks_new(Pressure::Pressed, 21, 150, 0), "it takes that much");
    assert!(!parks_new(Pressure::Pressed, 20, 149, 0), "it may be busy");
    assert!(!parks_new(Pressure::Pressed, 20, 150, 1), "the store holds its credit");
}

#[test]
fn a_destination_is_not_stuck_while_the_store_holds_half_of_the_credit_in_use() {
    for (settling, is_stuck) in [(0, true), (4, true), (5, false)] {
        let (mut rig, ix) = waiting();
        stuck(&mut rig.engine, ix);
        let flow = &mut rig.engine.roster.dest_mut(ix).flow;
        (0..settling).for_each(|_| flow.begin_settling());
        let member = rig.engine.roster.registered(SessionId(1), 1).unwrap();
        (0..10).for_each(|_| rig.engine.roster.charge(member));
        assert_eq!(rig.engine.parks_new(ix, Priority::Normal), is_stuck, "{settling} of 10");
    }
}

#[test]
fn memory_is_short_beyond_half_of_the_budget_and_full_at_all_of_it() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 4_000);
    rig.schedule(1, timer);
    rig.run(5);
    let used = rig.engine.memory().1;
    for (budget, pressure) in [
        (4 * used, Pressure::Free),
        (2 * used, Pressure::Free),
        (2 * used - 2, Pressure::Pressed),
        (used + 1, Pressure::Pressed),
        (used, Pressure::Full),
    ] {
        rig.engine.options.memory_bytes = budget;
        rig.turn();
        assert_eq!(rig.engine.pressure, pressure, "{used} bytes of {budget}");
    }
}
