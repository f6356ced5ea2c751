//! The elements of random sequences: kinds of operations, and in this suite's own also times that
//! meet, and timers.
//!
//! Every suite of random operations takes them from here: a new operation is added to [`Kind`].

use std::sync::Arc;

use mtimer_types::{
    Attempt, AttemptEnd, Bulk, BulkAction, BulkId, DeadReason, DeliveryLimits, Destination,
    DestinationSettings, Epoch, Extensions, FailedAttempt, Filter, Headers, ImportGoal, ImportId, Key,
    KeyPolicy, LateCause, Mode, Pause, SettingsVersion, Staging, Target, Time, Timer, TimerId,
};

use super::kit::Kit;
use super::seeded::SeededRandom;
use super::values::{DAY, HOUR, MINUTE, SECOND};
use crate::bulk::{BulkJob, BulkPlace};
use crate::ops::{
    BeginBulk, BulkAct, BulkAdvance, Cancel, Configure, ExtendDeadline, Import, Park, Purge, Replay,
    Reschedule, Schedule, Settle, StopBulk, Take, Trim, Unpark,
};
use crate::{Op, Place, Progress, Record, RequestId, Retained, Verdict};

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
    /// The beginning of a bulk job about timers like the timer.
    BeginBulk,
    /// The end of one, before it has met all.
    StopBulk,
    /// Its action on the timer.
    BulkAct,
    /// Its progress.
    BulkAdvance,
    /// The timer comes from another cluster.
    Import,
    /// The beginning of a bulk job about staged timers.
    BeginRelease,
    /// Settings of the timer's destination.
    Configure,
    /// An attempt that its handler has postponed.
    Later,
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
        Self::BeginBulk,
        Self::StopBulk,
        Self::BulkAct,
        Self::BulkAdvance,
        Self::Import,
        Self::BeginRelease,
        Self::Configure,
        Self::Later,
    ];

    /// Returns any kind; mostly one that makes sense for a timer at that place, so that sequences
    /// get somewhere.
    pub fn any(r: &mut SeededRandom, place: Option<Place>) -> Self {
        use Kind::*;
        let kinds = match place {
            _ if r.one_in(3) => Self::ALL,
            // Seldom: until its release nothing more happens to a staged timer.
            None if r.one_in(20) => &[Import],
            None => &[Schedule, Schedule, Schedule, Schedule, Cancel, Again, BeginBulk],
            Some(Place::Pending { fire, .. }) if fire.is_staged() => &[
                BulkAct,
                BulkAct,
                BulkAct,
                BeginRelease,
                Schedule,
                Cancel,
                Reschedule,
                ExtendDeadline,
                Import,
            ],
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
                BulkAct,
                BulkAct,
                Later,
            ],
            Some(Place::Parked) => &[Unpark, Unpark, Take, Reschedule, Cancel, Dead, BulkAct],
            Some(Place::Taken { unconfirmed: false, .. }) => {
                &[Unconfirmed, Unconfirmed, Dead, LateAck, Park, Take]
            }
            Some(Place::Taken { .. } | Place::Dead) => {
                &[Replay, Replay, Schedule, Trim, LateAck, Purge, BulkAct]
            }
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

/// The attempt that a verdict ends, which most have. It follows from the id, so that earlier seeds
/// mean what they meant.
fn attempt(id: TimerId, now: Time, number: u32) -> Option<Box<FailedAttempt>> {
    let n = id.random();
    let sent = (!n.is_multiple_of(3)).then_some(now - n % 5_000);
    let late_by = LateCause::ALL.get(n as usize % 9).copied();
    let failed = FailedAttempt {
        attempt: Attempt {
            number,
            epoch: Epoch(n % 1_000),
            client: n,
            sent,
            late_ms: (n % 400) as u32,
            late_by,
        },
        ended: now,
        end: AttemptEnd::ALL[n as usize % AttemptEnd::ALL.len()],
        error: "später, bitte".repeat(n as usize % 4).into(),
    };
    (!n.is_multiple_of(4)).then(|| failed.into())
}

/// For half of all timers a policy that computes the due time, and the attempt of the holder that
/// its owner has sent. It follows from the id, as [`attempt`] does.
fn computing(id: TimerId) -> Option<(KeyPolicy, Option<u32>)> {
    let n = id.random();
    let policy = match n % 8 {
        0 => KeyPolicy::Latest,
        1 => KeyPolicy::Earliest,
        2 => KeyPolicy::Debounce { quiet_ms: TICK as u32, max_ms: 3 * TICK as u32 },
        3 => KeyPolicy::Debounce { quiet_ms: 5_000, max_ms: 5_010 },
        _ => return None,
    };
    Some((policy, [None, None, None, Some(1), Some(2), Some(u32::MAX)][(n / 8) as usize % 6]))
}

/// Returns an operation of a kind.
pub fn arbitrary_op(kind: Kind, around: Around, r: &mut SeededRandom) -> Op {
    let Around { timer, known, now, fire, request } = around;
    let id = timer.id;
    let settle = |verdict| Op::settle(id, verdict);
    let told =
        |verdict, number| Settle { id, verdict, timer: None, attempt: attempt(id, now, number) }.into();
    match kind {
        Kind::Schedule => {
            let policy = r.pick(&[KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep]);
            let (policy, sent_attempt) = computing(id).unwrap_or((policy, None));
            Schedule { timer: timer.into(), policy, may_have_begun: r.one_in(8), sent_attempt }.into()
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
        Kind::AckLoaded => Settle { id, verdict: Verdict::Ack, timer: known, attempt: None }.into(),
        Kind::LateAck => settle(Verdict::LateAck { attempt: r.below(4) as u32 }),
        Kind::Retry => {
            let (tier, failed) = (r.pick(&[1, 1, 2, 5, 32]), 1 + r.below(4) as u32);
            let error = r.pick(&["", "later", "im Moment nicht, später \u{1f570}"]).into();
            told(Verdict::Retry { fire, tier, failed, error }, failed)
        }
        Kind::Later => {
            let failed = 1 + r.below(4) as u32;
            told(Verdict::Later { fire, failed }, failed)
        }
        Kind::Dead => {
            let reason = r.pick(&[DeadReason::Exhausted, DeadReason::Failed, DeadReason::AtMostOnce]);
            let failed = r.below(5) as u32;
            told(Verdict::Dead { reason, failed, error: r.pick(&["", "never"]).into() }, failed)
        }
        Kind::Expired => settle(Verdict::Expired { next: r.pick(&[now, fire, Time::MAX]) }),
        Kind::Unconfirmed => told(Verdict::Unconfirmed, 1),
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
        Kind::BeginBulk => {
            let bulk = arbitrary_bulk(r, &timer, fire).into();
            BeginBulk { id: BulkId(r.below(BULK_IDS).into()), bulk }.into()
        }
        Kind::StopBulk => StopBulk { id: BulkId(r.below(BULK_IDS).into()), group: None, app: None }.into(),
        Kind::BulkAct => {
            let (number, is_begun) = (bulk_number(r), r.one_in(8));
            let sent_attempt = r.one_in(4).then(|| r.pick(&[1, 1, 2, 4]));
            BulkAct { number, id, sent_attempt, is_begun, adds: false }.into()
        }
        Kind::BulkAdvance => {
            let to = match r.below(5) {
                0 => BulkPlace::Pending((fire, id)),
                1 => BulkPlace::Parked,
                2 => BulkPlace::Unconfirmed,
                3 => BulkPlace::Dead,
                _ => BulkPlace::End,
            };
            BulkAdvance { number: bulk_number(r), to, met: r.below(3) }.into()
        }
        Kind::BeginRelease => {
            let import = import_id(r);
            let withdraws = r.one_in(4);
            let action =
                if withdraws { BulkAction::Withdraw { import } } else { BulkAction::Release { import } };
            let bulk = Bulk::new(action, Filter::default()).into();
            BeginBulk { id: BulkId(r.below(BULK_IDS).into()), bulk }.into()
        }
        Kind::Import => arbitrary_import(r, timer, (now, fire)).into(),
        Kind::Configure => {
            let version = r.below(12);
            let after = r.one_in(2);
            let version =
                if after { SettingsVersion::After(version) } else { SettingsVersion::Given(1 + version) };
            let (until, over_ms) = (r.one_in(2).then_some(fire), r.below(2) * 5_000);
            let pause = Pause { since: now, until, over_ms, by: "ann".into(), reason: "später".into() };
            let strict_priority = id.random() % 2 == 1;
            let concurrency = (id.random() % 3 == 1).then_some(7);
            let limits = DeliveryLimits { concurrency, rate: None };
            let pause = r.one_in(2).then_some(pause);
            let settings = DestinationSettings { pause, strict_priority, limits };
            Configure { dest: timer.dest, settings: settings.into(), version }.into()
        }
    }
}

/// One of few imports, so that jobs meet their timers.
fn import_id(r: &mut SeededRandom) -> ImportId {
    ImportId(r.below(2).into())
}

/// A timer of another cluster, with whatever it has behind it.
fn arbitrary_import(r: &mut SeededRandom, timer: Timer, (now, fire): (Time, Time)) -> Import {
    let goal = match r.below(10) {
        0 => ImportGoal::Dead { reason: DeadReason::Exhausted, died: now - r.pick(&[0, SECOND, 400 * DAY]) },
        1 => ImportGoal::Unconfirmed { epoch: Epoch(7), since: now - r.pick(&[0, SECOND, 400 * DAY]) },
        _ => ImportGoal::Live { tier: r.pick(&[0, 0, 1, 32]) },
    };
    let failed = r.pick(&[0, 0, 1, 3]);
    let progress = Progress {
        failed,
        budget_from: failed.min(r.pick(&[0, 1])),
        stopped: r.one_in(8),
        fresh: None,
        last_error: (failed > 0).then(|| "no".into()),
    };
    let accepted = r.one_in(4).then(|| timer.due + SECOND);
    let other = Extensions::new((0..r.below(2)).map(|_| (4, "kept"))).unwrap();
    let extensions = other.staged(Staging { import: import_id(r), goal }).unwrap();
    let fire = if r.one_in(3) { fire } else { timer.due };
    let record = Record { timer: timer.into(), progress, accepted, extensions };
    Import { record: record.into(), fire }
}

/// More than a partition keeps, so that the oldest ones go.
const BULK_IDS: u64 = 24;

/// The number of a job: mostly one of the first ones, which there are.
fn bulk_number(r: &mut SeededRandom) -> u32 {
    let most = 1 + r.below(8);
    1 + r.below(most) as u32
}

/// A job about timers that have something in common with this one.
fn arbitrary_bulk(r: &mut SeededRandom, timer: &Timer, fire: Time) -> Bulk {
    let filter = match r.below(6) {
        0 => Filter::of(&timer.dest),
        1 => Filter { key_prefix: Some(r.pick(&["", "a", "k"]).into()), ..Filter::default() },
        2 => Filter { header: Some(("tenant".into(), "acme".into())), ..Filter::default() },
        _ => Filter::default(),
    };
    let action = match r.below(7) {
        0 | 1 => BulkAction::Cancel,
        2 | 3 => BulkAction::Shift { ms: r.pick(&[-(HOUR as i64), -1_000, 20, 5_000, HOUR as i64]) },
        4 => BulkAction::MoveTo { due: fire },
        5 => BulkAction::Replay,
        _ => BulkAction::Purge,
    };
    let bulk = Bulk::new(action, filter);
    match r.below(8) {
        0 => Bulk { from: fire, ..bulk },
        1 => Bulk { until: fire, ..bulk },
        2 => Bulk { retrying: Some(r.one_in(2)), ..bulk },
        3 => Bulk { dry_run: true, ..bulk },
        _ => bulk,
    }
}

/// Most of the time, makes an operation of a bulk job about one that has not ended: only those
/// change something.
pub fn of_job_under_way(op: Op, jobs: &[BulkJob], r: &mut SeededRandom) -> Op {
    let under_way: Vec<&BulkJob> = jobs.iter().filter(|job| job.ended.is_none()).collect();
    if under_way.is_empty() || r.one_in(5) {
        return op;
    }
    let job = under_way[r.index(under_way.len())];
    match op {
        Op::BulkAct(act) => BulkAct { number: job.number, adds: job.bulk.action.adds(), ..act }.into(),
        Op::BulkAdvance(advance) => BulkAdvance { number: job.number, ..advance }.into(),
        Op::StopBulk(_) => {
            let Filter { group, app, .. } = job.bulk.filter.clone();
            StopBulk { id: job.id, group, app }.into()
        }
        op => op,
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
