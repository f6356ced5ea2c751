//! Random turns of an owner, over few timers and keys, so that they meet.

use mtimer_types::{Destination, Epoch, Key, Mode, PartitionId, Time, Timer, TimerId};
use proptest::prelude::*;

use crate::conformance::SeededRandom;
use crate::conformance::arbitrary::{Around, Kind, arbitrary_op};
use crate::ops::Op;
use crate::remembered::RequestId;

/// Timers of a case.
pub(super) const TIMERS: u64 = 8;
const REQUESTS_OF_A_KIND: u64 = 6;
/// Requests of a case.
pub(super) const REQUESTS: u64 = REQUESTS_OF_A_KIND * Kind::ALL.len() as u64;

/// The actions of an owner on one view.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) pause_ms: u64,
    /// A new owner, with the time up to which its predecessor had claimed.
    pub(super) takeover: Option<Time>,
    pub(super) batches: Vec<Vec<Op>>,
    /// The store reads the first needs before it asks for a decision.
    pub(super) prepared: bool,
    /// Rows that the store knows without reading, a bit each.
    pub(super) known: u8,
}

pub(super) fn id(n: u64) -> TimerId {
    TimerId::new(Time::from_ms(60_000), Time::ZERO, PartitionId(0), n)
}

pub(super) fn dest(n: u64) -> Destination {
    Destination::new("g", if n == 7 { "b" } else { "a" }).unwrap()
}

pub(super) fn key(n: u64) -> Key {
    Key::new(if n == 0 { "k" } else { "l" }).unwrap()
}

/// The timer of a number, or one of the same id with other content.
pub(super) fn timer(n: u64, other: bool) -> Timer {
    let named = (n + u64::from(other)) % 3;
    Timer {
        key: (named < 2).then(|| key(named)),
        mode: if n.is_multiple_of(2) { Mode::AtMostOnce } else { Mode::AtLeastOnce },
        deadline: (n == 5).then(|| Time::from_ms(65_000)),
        payload: vec![n as u8, u8::from(other)].into(),
        ..Timer::new(id(n), dest(n), Time::from_ms(if n.is_multiple_of(4) { 2_000 } else { 60_000 }))
    }
}

fn any_time() -> impl Strategy<Value = Time> {
    prop_oneof![Just(2_000), Just(60_000), Just(70_000), 50_000u64..90_000].prop_map(Time::from_ms)
}

/// An operation on one of the timers. Requests of one kind meet by their numbers.
pub(super) fn any_op() -> impl Strategy<Value = Op> {
    let timer = (0..TIMERS, prop::bool::weighted(0.2)).prop_map(|(n, other)| timer(n, other));
    (timer, any_time(), prop::sample::select(Kind::ALL), any::<u64>()).prop_map(
        |(timer, fire, kind, seed)| {
            let mut r = SeededRandom::new(seed);
            let request = RequestId(kind as u64 * REQUESTS_OF_A_KIND + r.below(REQUESTS_OF_A_KIND));
            arbitrary_op(
                kind,
                Around { timer, known: None, now: Time::from_ms(90_000), fire, request },
                &mut r,
            )
        },
    )
}

/// Turns; `jumps`: with pauses after which outcomes are forgotten.
pub(super) fn any_turns(jumps: bool) -> impl Strategy<Value = Vec<Turn>> {
    let pause = prop_oneof![4 => Just(1u64), 1 => Just(if jumps { 40_000 } else { 100 })];
    let takeover = prop::option::weighted(0.2, any_time());
    let batches = prop::collection::vec(prop::collection::vec(any_op(), 0..8), 1..4);
    let turn = (pause, takeover, batches, any::<bool>(), any::<u8>()).prop_map(
        |(pause_ms, takeover, batches, prepared, known)| Turn {
            pause_ms,
            takeover,
            batches,
            prepared,
            known,
        },
    );
    prop::collection::vec(turn, 1..12)
}

/// A new owner's epoch.
pub(super) const fn next(epoch: Epoch) -> Epoch {
    Epoch(epoch.0 + 1)
}
