//! Every operation on a timer in every place, against the reference: the answer, the answer to a
//! repeat, and everything that can be seen afterwards.
//!
//! Each test goes through all [`SPOTS`] with a few forms of one operation, one with some of each. A
//! spot is reached the way an owner gets there, over two epochs, so that *earlier* and *this*
//! epoch, *covered* and *fresh* are all met.

mod bulk;

use mtimer_types::{DeadReason, ImportGoal, ImportId, KeyPolicy, Staging, Target, Time, Timer, TimerId};

pub(super) use self::bulk::{bulk_act, moves_while_a_bulk_job_is_at_work};
use super::arbitrary::{Around, Kind, arbitrary_op, arbitrary_time};
use super::kit::Kit;
use super::pair::{Pair, schedule_with};
use super::seeded::SeededRandom;
use super::values::{DAY, HOUR, MINUTE, SECOND, YEAR, dead_verdict, unique};
use crate::ops::{Cancel, Import, Park, Purge, Replay, Reschedule, Unpark};
use crate::{Op, Record, RequestId, Verdict};

/// The history of a timer before the operation under test; `now` is where the prior claim ends.
#[derive(Clone, Copy, Debug)]
enum Spot {
    Nowhere,
    CancelledUnseen,
    /// Pending, filed in the earlier epoch, due so many ms after now (negative: before, and so
    /// covered).
    Old(i64),
    /// Pending, filed in this epoch.
    New(i64),
    /// Filed in the earlier epoch, then rescheduled in this one to a covered time.
    Refiled,
    /// Waiting for its first or second retry, failed in the epoch before or in this one.
    OldRetry(u32),
    NewRetry(u32),
    /// Postponed by its handler, in the epoch before or in this one.
    OldPostponed,
    NewPostponed,
    /// A retry that is covered.
    CoveredRetry,
    /// In delivery, cancelled meanwhile.
    Stopped,
    /// In delivery in the earlier epoch, cancelled meanwhile.
    OldStopped,
    OldParked,
    NewParked,
    /// Parked after a failed attempt.
    RetriedParked,
    /// Parked and back.
    Unparked,
    OldTaken,
    NewTaken,
    OldUnconfirmed,
    NewUnconfirmed,
    OldDead,
    NewDead,
    Replayed,
    ReplayedUnconfirmed,
    Acknowledged,
    Cancelled,
    Replaced,
    Expired,
    Purged,
    /// Staged by an import of the earlier owner, after so many failed attempts.
    OldStaged(u32),
    /// Staged by one of this owner, to be a dead letter.
    StagedDead,
}

use Spot::*;

const SPOTS: [Spot; 45] = [
    Nowhere,
    CancelledUnseen,
    Old(-(YEAR as i64)),
    Old(0),
    Old(1),
    Old(90 * SECOND as i64),
    Old(HOUR as i64),
    Old(DAY as i64),
    Old(9 * YEAR as i64),
    New(-(DAY as i64)),
    New(0),
    New(5 * SECOND as i64),
    New(30 * MINUTE as i64),
    New(20 * HOUR as i64),
    New(40 * DAY as i64),
    Refiled,
    OldRetry(1),
    OldRetry(2),
    NewRetry(1),
    NewRetry(3),
    OldPostponed,
    NewPostponed,
    CoveredRetry,
    Stopped,
    OldStopped,
    OldParked,
    NewParked,
    RetriedParked,
    Unparked,
    OldTaken,
    NewTaken,
    OldUnconfirmed,
    NewUnconfirmed,
    OldDead,
    NewDead,
    Replayed,
    ReplayedUnconfirmed,
    Acknowledged,
    Cancelled,
    Replaced,
    Expired,
    Purged,
    OldStaged(0),
    OldStaged(2),
    StagedDead,
];

impl Spot {
    fn due(self, now: Time) -> Time {
        match self {
            Old(ahead) | New(ahead) if ahead < 0 => now - ahead.unsigned_abs(),
            Old(ahead) | New(ahead) => now + ahead.unsigned_abs(),
            CoveredRetry | Stopped | OldStopped => now,
            _ => now + 10 * SECOND,
        }
    }

    const fn at_most_once(self) -> bool {
        matches!(
            self,
            OldTaken | NewTaken | OldUnconfirmed | NewUnconfirmed | ReplayedUnconfirmed | Acknowledged
        )
    }

    /// The operations of the earlier owner.
    fn before(self, timer: &Timer) -> Vec<Op> {
        let (id, due) = (timer.id, timer.due);
        let schedule = || schedule_with(timer, KeyPolicy::Create);
        match self {
            Nowhere | New(_) | CancelledUnseen | StagedDead => vec![],
            OldStaged(failed) => vec![import(timer, ImportGoal::Live { tier: failed as u8 }, failed)],
            OldRetry(failed) => vec![schedule(), retry(id, due + 40 * SECOND, failed)],
            OldPostponed => vec![schedule(), later(id, due + 40 * SECOND, 1)],
            CoveredRetry => vec![schedule(), retry(id, due - 1, 1)],
            OldStopped => vec![schedule(), cancel(id, Some(1))],
            OldParked => vec![schedule(), Op::Park(Park { id, failed: 0 })],
            OldTaken => vec![schedule(), Op::take(id, 0)],
            OldUnconfirmed => vec![schedule(), Op::take(id, 0), settle(id, Verdict::Unconfirmed)],
            OldDead => vec![schedule(), settle(id, dead_verdict(2))],
            _ => vec![schedule()],
        }
    }

    /// The operations of this owner.
    fn after(self, timer: &Timer, now: Time) -> Vec<Op> {
        let (id, due) = (timer.id, timer.due);
        match self {
            CancelledUnseen => vec![cancel(id, None)],
            StagedDead => {
                let goal = ImportGoal::Dead { reason: DeadReason::Failed, died: now };
                vec![import(timer, goal, 1)]
            }
            New(_) => vec![schedule_with(timer, KeyPolicy::Create)],
            Refiled => vec![reschedule(id, now - SECOND, false)],
            NewRetry(failed) => vec![retry(id, due + HOUR, failed)],
            NewPostponed => vec![later(id, due + HOUR, 1)],
            Stopped => vec![cancel(id, Some(1))],
            NewParked => vec![Op::Park(Park { id, failed: 0 })],
            RetriedParked => vec![retry(id, due, 2), Op::Park(Park { id, failed: 2 })],
            Unparked => vec![Op::Park(Park { id, failed: 0 }), Op::Unpark(Unpark { id, fire: now })],
            NewTaken => vec![Op::take(id, 0)],
            NewUnconfirmed => vec![Op::take(id, 0), settle(id, Verdict::Unconfirmed)],
            NewDead => vec![settle(id, dead_verdict(1))],
            Replayed => vec![settle(id, dead_verdict(3)), Op::Replay(Replay { id, fire: now })],
            ReplayedUnconfirmed => {
                vec![Op::take(id, 0), settle(id, Verdict::Unconfirmed), Op::Replay(Replay { id, fire: now })]
            }
            Acknowledged => vec![Op::take(id, 0), settle(id, Verdict::Ack)],
            Cancelled => vec![cancel(id, None)],
            Replaced => {
                let next = Timer { id: TimerId::new(due, now, id.partition(), unique()), ..timer.clone() };
                vec![schedule_with(&next, KeyPolicy::Replace)]
            }
            Expired => vec![settle(id, Verdict::Expired { next: Time::MAX })],
            Purged => vec![settle(id, dead_verdict(1)), Op::Purge(Purge { id })],
            _ => vec![],
        }
    }
}

fn import(timer: &Timer, goal: ImportGoal, failed: u32) -> Op {
    let mut record = Record::new(timer.clone().into());
    record.progress.failed = failed;
    record.extensions = record.extensions.staged(Staging { import: ImportId(1), goal }).unwrap();
    Import { record: record.into(), fire: timer.due }.into()
}

fn settle(id: TimerId, verdict: Verdict) -> Op {
    Op::settle(id, verdict)
}

fn retry(id: TimerId, fire: Time, failed: u32) -> Op {
    settle(id, Verdict::Retry { fire, tier: failed as u8, failed, error: format!("failed {failed}").into() })
}

fn later(id: TimerId, fire: Time, failed: u32) -> Op {
    settle(id, Verdict::Later { fire, failed })
}

fn cancel(id: TimerId, sent_attempt: Option<u32>) -> Op {
    Op::Cancel(Cancel { target: Target::Id(id), sent_attempt, request: RequestId(unique()) })
}

fn reschedule(id: TimerId, due: Time, is_begun: bool) -> Op {
    Op::Reschedule(Reschedule { target: Target::Id(id), due, is_begun, request: RequestId(unique()) })
}

fn by_key(timer: &Timer) -> Target {
    Target::Key(timer.dest.clone(), timer.key.clone().unwrap())
}

/// Makes the operation under test, given the timer and now.
type Form<'a> = &'a (dyn Fn(&Timer, Time) -> Op + Sync);

/// Puts a timer in each spot, applies each form of the operation twice, and compares.
async fn on_every_spot(kit: Kit, forms: &[Form<'_>]) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let mut cases = Vec::new();
    for (n, form) in forms.iter().enumerate() {
        for spot in &SPOTS {
            let due = spot.due(now);
            let key = pair.kit.key(&format!("{spot:?}/{n}/"));
            let timer = if spot.at_most_once() { pair.kit.amo(due) } else { pair.kit.timer(due) };
            let timer = Timer { key: Some(key), deadline: Some(due + 11 * DAY), ..timer };
            cases.push((spot, n, form, timer));
        }
    }
    let ops = cases.iter().flat_map(|(spot, _, _, timer)| spot.before(timer)).collect();
    let called = pair.call(Some(now), ops);
    pair.settle(called).await.unwrap();
    pair.takeover(None).await.unwrap();
    pair.kit.now = now + 1;
    for (spot, n, form, timer) in &cases {
        let put = pair.apply(spot.after(timer, now)).await;
        put.unwrap_or_else(|e| panic!("while a timer was put in spot {spot:?}: {e}"));
        let op = form(timer, now);
        let mut done = pair.apply(vec![op.clone()]).await;
        if done.is_ok() {
            done = pair.check_get(&Target::Id(timer.id)).await;
        }
        if done.is_ok() {
            done = pair.check_get(&by_key(timer)).await;
        }
        done.unwrap_or_else(|e| panic!("a timer in spot {spot:?}, form {n} of the operation: {e}"));
        // A repeat, with the answer that the first time calls for.
        let repeat = pair.apply(vec![op]).await;
        repeat
            .unwrap_or_else(|e| panic!("a timer in spot {spot:?}, form {n} of the operation, repeated: {e}"));
    }
    pair.check_all().await.unwrap();
}

/// Every operation that names one timer, in forms taken at random.
pub(super) async fn every_kind_of_operation(kit: Kit) {
    let form = |kind: Kind| {
        move |timer: &Timer, now: Time| {
            let mut r = SeededRandom::new(unique());
            let fire = arbitrary_time(&mut r, now);
            let (timer, request) = (timer.clone(), RequestId(unique()));
            arbitrary_op(kind, Around { timer, known: None, now, fire, request }, &mut r)
        }
    };
    // A trim names none, and which requests come again is up to a sequence. Those of bulk jobs come
    // last, so that their jobs do not meet the others.
    let kinds = Kind::ALL.iter().filter(|kind| !matches!(kind, Kind::Trim | Kind::Again));
    let forms: Vec<_> = kinds.flat_map(|kind| [(); 3].map(|()| form(*kind))).collect();
    let forms: Vec<Form<'_>> = forms.iter().map(|form| form as Form<'_>).collect();
    on_every_spot(kit, &forms).await;
}

pub(super) async fn schedule_the_same(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, _| schedule_with(t, KeyPolicy::Create), &|t, _| schedule_with(t, KeyPolicy::Replace)],
    )
    .await;
}

pub(super) async fn schedule_other_content(kit: Kit) {
    let other = |t: &Timer, _| {
        let other = Timer { payload: "other".into(), ..t.clone() };
        schedule_with(&other, KeyPolicy::Create)
    };
    on_every_spot(kit, &[&other]).await;
}

pub(super) async fn schedule_into_its_key(kit: Kit) {
    let next = |t: &Timer, now: Time, policy| {
        let id = TimerId::new(now + MINUTE, now, t.id.partition(), unique());
        schedule_with(&Timer { id, due: now + MINUTE, deadline: None, ..t.clone() }, policy)
    };
    on_every_spot(
        kit,
        &[&|t, now| next(t, now, KeyPolicy::Create), &|t, now| next(t, now, KeyPolicy::Keep), &|t, now| {
            next(t, now, KeyPolicy::Replace)
        }],
    )
    .await;
}

pub(super) async fn cancel_by_id(kit: Kit) {
    on_every_spot(
        kit,
        &[
            &|t, _| cancel(t.id, None),
            &|t, _| cancel(t.id, Some(1)),
            &|t, _| cancel(t.id, Some(2)),
            &|t, _| cancel(t.id, Some(u32::MAX)),
        ],
    )
    .await;
}

pub(super) async fn cancel_by_key(kit: Kit) {
    let cancel = |t: &Timer, sent_attempt| {
        Op::Cancel(Cancel { target: by_key(t), sent_attempt, request: RequestId(unique()) })
    };
    on_every_spot(kit, &[&|t, _| cancel(t, None), &|t, _| cancel(t, Some(1))]).await;
}

pub(super) async fn reschedule_by_id(kit: Kit) {
    on_every_spot(
        kit,
        &[
            &|t, now| reschedule(t.id, now + 3 * DAY, false),
            &|t, now| reschedule(t.id, now - DAY, false),
            &|t, now| reschedule(t.id, now + 2 * YEAR, false),
            &|t, now| reschedule(t.id, now + HOUR, true),
        ],
    )
    .await;
}

pub(super) async fn reschedule_by_key(kit: Kit) {
    let reschedule = |t: &Timer, due| {
        Op::Reschedule(Reschedule { target: by_key(t), due, is_begun: false, request: RequestId(unique()) })
    };
    on_every_spot(kit, &[&|t, now| reschedule(t, now + 2 * SECOND), &|t, now| reschedule(t, now + YEAR)])
        .await;
}

pub(super) async fn take(kit: Kit) {
    on_every_spot(kit, &[&|t, _| Op::take(t.id, 0), &|t, _| Op::take(t.id, 2)]).await;
}

pub(super) async fn park(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, _| Op::Park(Park { id: t.id, failed: 0 }), &|t, _| Op::Park(Park { id: t.id, failed: 4 })],
    )
    .await;
}

pub(super) async fn unpark(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, now| Op::Unpark(Unpark { id: t.id, fire: now }), &|t, now| {
            Op::Unpark(Unpark { id: t.id, fire: now + 3 * HOUR })
        }],
    )
    .await;
}

pub(super) async fn replay(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, now| Op::Replay(Replay { id: t.id, fire: now }), &|t, now| {
            Op::Replay(Replay { id: t.id, fire: now + 3 * DAY })
        }],
    )
    .await;
}

pub(super) async fn purge(kit: Kit) {
    on_every_spot(kit, &[&|t, _| Op::Purge(Purge { id: t.id })]).await;
}

pub(super) async fn settle_ack(kit: Kit) {
    on_every_spot(kit, &[&|t, _| settle(t.id, Verdict::Ack)]).await;
}

pub(super) async fn settle_late_ack(kit: Kit) {
    on_every_spot(
        kit,
        &[
            &|t, _| settle(t.id, Verdict::LateAck { attempt: 0 }),
            &|t, _| settle(t.id, Verdict::LateAck { attempt: 1 }),
            &|t, _| settle(t.id, Verdict::LateAck { attempt: 2 }),
            &|t, _| settle(t.id, Verdict::LateAck { attempt: 3 }),
        ],
    )
    .await;
}

pub(super) async fn settle_retry_in_a_tier(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, now| retry(t.id, now + 5 * SECOND, 1), &|t, now| retry(t.id, now - SECOND, 2), &|t, now| {
            retry(t.id, now + 30 * DAY, 32)
        }],
    )
    .await;
}

pub(super) async fn settle_later(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, now| later(t.id, now + 5 * SECOND, 1), &|t, now| later(t.id, now - SECOND, 2), &|t, now| {
            later(t.id, now + DAY, 3)
        }],
    )
    .await;
}

pub(super) async fn settle_dead(kit: Kit) {
    let dead_letter =
        |t: &Timer, reason| settle(t.id, Verdict::Dead { reason, failed: 7, error: "no use".into() });
    on_every_spot(
        kit,
        &[
            &|t, _| dead_letter(t, DeadReason::Exhausted),
            &|t, _| dead_letter(t, DeadReason::Failed),
            &|t, _| dead_letter(t, DeadReason::Stopped),
            &|t, _| dead_letter(t, DeadReason::AtMostOnce),
        ],
    )
    .await;
}

pub(super) async fn settle_expired(kit: Kit) {
    on_every_spot(
        kit,
        &[&|t, now| settle(t.id, Verdict::Expired { next: now }), &|t, _| {
            settle(t.id, Verdict::Expired { next: t.deadline.unwrap() + 1 })
        }],
    )
    .await;
}

pub(super) async fn settle_unconfirmed(kit: Kit) {
    on_every_spot(kit, &[&|t, _| settle(t.id, Verdict::Unconfirmed)]).await;
}
