//! Random turns of an owner, over few timers and keys, so that they meet.

use std::sync::Arc;

use mtimer_types::{
    DeadReason, Destination, Epoch, Key, KeyPolicy, Mode, PartitionId, Target, Time, Timer, TimerId,
};
use proptest::prelude::*;

use crate::ops::{Cancel, Park, Purge, Replay, Reschedule, Schedule, Trim, Unpark};
use crate::ops::{Op, Verdict};
use crate::place::Retained;
use crate::remembered::RequestId;

/// Timers of a case.
pub(super) const TIMERS: u64 = 8;
/// Requests of a case: even ones cancel, odd ones reschedule.
pub(super) const REQUESTS: u64 = 12;

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

fn any_target() -> impl Strategy<Value = Target> {
    prop_oneof![
        (0..TIMERS).prop_map(|n| Target::Id(id(n))),
        (0..TIMERS, 0..2u64).prop_map(|(n, k)| Target::Key(dest(n), key(k))),
    ]
}

fn any_schedule() -> impl Strategy<Value = Op> {
    let policy = prop_oneof![Just(KeyPolicy::Create), Just(KeyPolicy::Keep), Just(KeyPolicy::Replace)];
    (0..TIMERS, prop::bool::weighted(0.2), policy)
        .prop_map(|(n, other, policy)| Op::Schedule(Schedule::new(Arc::new(timer(n, other)), policy)))
}

fn any_request() -> impl Strategy<Value = Op> {
    let cancel =
        (any_target(), prop::option::of(1..3u32), 0..REQUESTS / 2).prop_map(|(target, sent_attempt, n)| {
            Op::Cancel(Cancel { target, sent_attempt, request: RequestId(2 * n) })
        });
    let reschedule = (any_target(), any_time(), prop::bool::weighted(0.1), 0..REQUESTS / 2).prop_map(
        |(target, due, is_begun, n)| {
            let request = RequestId(2 * n + 1);
            Op::Reschedule(Reschedule { target, due, is_begun, request })
        },
    );
    prop_oneof![2 => cancel, 1 => reschedule]
}

fn any_verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Ack),
        (0..4u32).prop_map(|attempt| Verdict::LateAck { attempt }),
        (any_time(), 1..3u8, 1..4u32).prop_map(|(fire, tier, failed)| Verdict::Retry {
            fire,
            tier,
            failed,
            error: "no".into()
        }),
        (0..4u32).prop_map(|failed| Verdict::Dead {
            reason: DeadReason::Failed,
            failed,
            error: "never".into()
        }),
        Just(Verdict::Expired),
        Just(Verdict::Unconfirmed),
    ]
}

fn any_move() -> impl Strategy<Value = Op> {
    let of = prop_oneof![Just(Retained::Dead), Just(Retained::Unconfirmed)];
    let trim = (of, any_time(), 0..4u64, 0..4u32)
        .prop_map(|(of, before, keep, limit)| Op::Trim(Trim { of, before, keep, limit }));
    let one = (0..TIMERS, any_time(), 0..3u32, 0..6).prop_map(|(n, fire, failed, kind)| {
        let id = id(n);
        match kind {
            0 => Op::Park(Park { id, failed }),
            1 => Op::Unpark(Unpark { id, fire }),
            2 => Op::Replay(Replay { id, fire }),
            3 => Op::Purge(Purge { id }),
            _ => Op::take(id, failed),
        }
    });
    prop_oneof![1 => trim, 6 => one]
}

pub(super) fn any_op() -> impl Strategy<Value = Op> {
    let settle = (0..TIMERS, any_verdict()).prop_map(|(n, verdict)| Op::settle(id(n), verdict));
    prop_oneof![4 => any_schedule(), 3 => any_request(), 4 => settle, 4 => any_move()]
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
