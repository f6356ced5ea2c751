//! The elements of random sequences: kinds of operations, and in this suite's own also times that
//! meet, and timers.
//!
//! Every suite of random operations takes them from here: a new operation is added to [`Kind`].

use std::sync::Arc;

use mtimer_types::{DeadReason, Destination, Headers, Key, KeyPolicy, Mode, Target, Time, Timer, TimerId};

use super::kit::Kit;
use super::seeded::SeededRandom;
use super::values::{DAY, HOUR, MINUTE, SECOND};
use crate::ops::{
    Cancel, ExtendDeadline, Park, Purge, Replay, Reschedule, Schedule, Settle, Take, Trim, Unpark,
};
use crate::{Op, Place, RequestId, Retained, Verdict};

/// The clock moves in steps of so many ms.
pub(super) const TICK: u64 = 20;

/// The kind of an operation in a random sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A schedule of the timer, by any policy.
    Schedule,
    /// A schedule of the same id with other content.
    ScheduleOther,
    /// A cancel, by id or key.
    Cancel,
    /// A reschedule, by id or key.
    Reschedule,
    /// Another deadline, by id or key.
    ExtendDeadline,
    /// A request of before once more: the suite keeps those that can be repeated
    /// ([`is_repeated`]). A take, for want of one.
    Again,
    /// A take, with or without the timer.
    Take,
    /// An acknowledgement.
    Ack,
    /// An acknowledgement of a timer in memory.
    AckLoaded,
    /// An acknowledgement of any attempt.
    LateAck,
    /// A failed attempt.
    Retry,
    /// The end of all attempts.
    Dead,
    /// A missed deadline.
    Expired,
    /// The loss of who would have settled it.
    Unconfirmed,
    /// A park.
    Park,
    /// The way back.
    Unpark,
    /// A replay.
    Replay,
    /// A purge.
    Purge,
    /// A trim of either kind.
    Trim,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Self] = &[
        Self::Schedule,
        Self::ScheduleOther,
        Self::Cancel,
        Self::Reschedule,
        Self::ExtendDeadline,
        Self::Again,
        Self::Take,
        Self::Ack,
        Self::AckLoaded,
        Self::LateAck,
        Self::Retry,
        Self::Dead,
        Self::Expired,
        Self::Unconfirmed,
        Self::Park,
        Self::Unpark,
        Self::Replay,
        Self::Purge,
        Self::Trim,
    ];

    /// Returns any kind; mostly one that makes sense for a timer at that place, so that sequences
    /// get somewhere.
    pub fn any(r: &mut SeededRandom, place: Option<Place>) -> Self {
        use Kind::*;
        let kinds = match place {
            _ if r.one_in(3) => Self::ALL,
            None => &[Schedule, Schedule, Schedule, Cancel, Again],
            Some(Place::Pending { .. }) => &[
                Take,
                Take,
                Retry,
                Retry,
                Park,
                Reschedule,
                Reschedule,
                ExtendDeadline,
                Cancel,
                Dead,
                LateAck,
                Ack,
                AckLoaded,
                AckLoaded,
            ],
            Some(Place::Parked) => &[Unpark, Unpark, Take, Reschedule, Cancel, Dead],
            Some(Place::Taken { unconfirmed: false, .. }) => {
                &[Unconfirmed, Unconfirmed, Dead, LateAck, Park, Take]
            }
            Some(Place::Taken { .. } | Place::Dead) => &[Replay, Replay, Schedule, Trim, LateAck, Purge],
        };
        r.pick(kinds)
    }
}

/// What a suite knows of a timer, and brings along for an operation on it.
#[derive(Clone, Debug)]
pub struct Around {
    /// The timer.
    pub timer: Timer,
    /// The timer as its owner has it in memory, if its record has nothing more to keep.
    pub known: Option<Arc<Timer>>,
    /// The time of the batch.
    pub now: Time,
    /// Another time to fire.
    pub fire: Time,
    /// The number of the request, if it is one.
    pub request: RequestId,
}

/// Whether a repeat of the operation gets the answer of the first time by its number.
pub fn is_repeated(op: &Op) -> bool {
    matches!(op.subject(), crate::ops::Subject::Named { .. })
}

/// Names a timer by its id or, if it has one, by its key.
pub fn target(r: &mut SeededRandom, timer: &Timer) -> Target {
    match &timer.key {
        Some(key) if r.one_in(2) => Target::Key(timer.dest.clone(), key.clone()),
        _ => Target::Id(timer.id),
    }
}

pub(super) fn arbitrary_time(r: &mut SeededRandom, now: Time) -> Time {
    // On the grid of the clock, so that times meet; sometimes beside it.
    let jitter = r.pick(&[0, 0, TICK, 2 * TICK, 1, 13]);
    match r.below(4) {
        0 => now - r.pick(&[0, 1, SECOND, HOUR, 400 * DAY]) - jitter,
        1 => now + jitter,
        2 => now + r.pick(&[SECOND, 5 * SECOND, 119 * SECOND]) + jitter,
        _ => now + r.pick(&[2 * MINUTE, HOUR, 2 * HOUR, 20 * HOUR, 3 * DAY, 40 * DAY, 300 * DAY]) + jitter,
    }
}

pub(super) fn arbitrary_timer(r: &mut SeededRandom, kit: &Kit, dests: &[Destination]) -> Timer {
    let dest = dests[r.below(dests.len() as u64) as usize].clone();
    let key: Option<Key> = r.one_in(2).then(|| kit.key_of(r.pick(&["a", "b", "ключ"]), &dest));
    let due = arbitrary_time(r, kit.now);
    let deadline = r.one_in(3).then(|| due + r.pick(&[0, 10, MINUTE, DAY]));
    let mode = if r.one_in(3) { Mode::AtMostOnce } else { Mode::AtLeastOnce };
    let payload = vec![b'x'; r.pick(&[0, 1, 100, 1_000])].into();
    let headers = match r.below(3) {
        0 => Headers::new([("tenant", "acme"), ("n", &r.next_u64().to_string())]).unwrap(),
        _ => Headers::NONE,
    };
    let id = TimerId::new(due, kit.now, kit.partition, r.next_u64());
    Timer { id, dest, key, due, mode, deadline, payload, headers, ..kit.timer(due) }
}

/// Returns an operation of a kind.
pub fn arbitrary_op(kind: Kind, around: Around, r: &mut SeededRandom) -> Op {
    let Around { timer, known, now, fire, request } = around;
    let id = timer.id;
    let settle = |verdict| Op::settle(id, verdict);
    match kind {
        Kind::Schedule => {
            let policy = r.pick(&[KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep]);
            Schedule { timer: timer.into(), policy, may_have_begun: r.one_in(8) }.into()
        }
        Kind::ScheduleOther => {
            let other = Timer { callback_timeout_ms: Some(1_234), ..timer };
            Schedule::new(other.into(), KeyPolicy::Create).into()
        }
        Kind::Cancel => {
            let target = target(r, &timer);
            // Mostly the current attempt, sometimes an earlier or a later one.
            let sent_attempt = r.one_in(4).then(|| r.pick(&[1, 1, 2, 4]));
            Cancel { target, sent_attempt, request }.into()
        }
        Kind::Reschedule => {
            let (target, is_begun) = (target(r, &timer), r.one_in(8));
            Reschedule { target, due: fire, is_begun, request }.into()
        }
        Kind::ExtendDeadline => ExtendDeadline { target: target(r, &timer), deadline: fire, request }.into(),
        Kind::Again | Kind::Take => {
            Take { id, failed: r.below(3) as u32, timer: known.filter(|_| r.one_in(2)) }.into()
        }
        Kind::Ack => settle(Verdict::Ack),
        Kind::AckLoaded => Settle { id, verdict: Verdict::Ack, timer: known }.into(),
        Kind::LateAck => settle(Verdict::LateAck { attempt: r.below(4) as u32 }),
        Kind::Retry => settle(Verdict::Retry {
            fire,
            tier: r.pick(&[1, 1, 2, 5, 32]),
            failed: 1 + r.below(4) as u32,
            error: r.pick(&["", "later", "im Moment nicht, später \u{1f570}"]).into(),
        }),
        Kind::Dead => settle(Verdict::Dead {
            reason: r.pick(&[DeadReason::Exhausted, DeadReason::Failed, DeadReason::AtMostOnce]),
            failed: r.below(5) as u32,
            error: r.pick(&["", "never"]).into(),
        }),
        Kind::Expired => settle(Verdict::Expired { next: r.pick(&[now, fire, Time::MAX]) }),
        Kind::Unconfirmed => settle(Verdict::Unconfirmed),
        Kind::Park => Park { id, failed: r.below(3) as u32 }.into(),
        Kind::Unpark => Unpark { id, fire }.into(),
        Kind::Replay => Replay { id, fire }.into(),
        Kind::Purge => Purge { id }.into(),
        Kind::Trim => Trim {
            of: r.pick(&[Retained::Dead, Retained::Unconfirmed]),
            before: now - TICK * r.below(40),
            keep: r.below(6),
            limit: r.pick(&[0, 1, 2, 100]),
        }
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::PartitionId;

    use super::super::properties::assert_all_occur;
    use super::super::values::plain_timer;
    use super::*;

    #[test]
    fn the_kinds_have_every_operation() {
        let (now, mut random) = (Time::from_ms(50_000), SeededRandom::new(1));
        let timer = plain_timer(now, now, PartitionId(0));
        let around = Around { timer, known: None, now, fire: now, request: RequestId(1) };
        let op = |kind: &Kind| arbitrary_op(*kind, around.clone(), &mut random);
        let ops: Vec<Op> = Kind::ALL.iter().map(op).collect();
        assert_all_occur(&ops);
    }
}
