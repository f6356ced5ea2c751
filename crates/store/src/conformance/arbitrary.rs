//! The elements of random sequences: times that meet, timers, kinds of operations.

use mtimer_types::{Destination, Headers, Key, Mode, Target, Time, Timer, TimerId};

use super::kit::Kit;
use super::seeded::SeededRandom;
use super::values::{DAY, HOUR, MINUTE, SECOND};

/// The clock moves in steps of so many ms.
pub(super) const TICK: u64 = 20;
/// The kind of an operation in a random sequence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Schedule,
    ScheduleOther,
    Cancel,
    Reschedule,
    /// A cancel or reschedule of before once more.
    Again,
    Take,
    Ack,
    LateAck,
    Retry,
    Dead,
    Expired,
    Unconfirmed,
    Park,
    Unpark,
    Replay,
    Purge,
    Trim,
}

impl Kind {
    pub(super) const ALL: &[Self] = &[
        Self::Schedule,
        Self::ScheduleOther,
        Self::Cancel,
        Self::Reschedule,
        Self::Again,
        Self::Take,
        Self::Ack,
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
    pub(super) const OF_PENDING: &[Self] = &[
        Self::Take,
        Self::Take,
        Self::Retry,
        Self::Retry,
        Self::Park,
        Self::Reschedule,
        Self::Reschedule,
        Self::Cancel,
        Self::Dead,
        Self::LateAck,
        Self::Ack,
    ];
}

pub(super) fn target(r: &mut SeededRandom, timer: &Timer) -> Target {
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
