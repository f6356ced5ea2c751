//! What suites expect of each operation: its properties, stated once more, and trials of it, each
//! on a timer that is where the operation changes something.
//!
//! Suites and simulations compare a store's behaviour with this, not with the operations' own
//! statements. Those of faults, of former owners and of full stores go through all trials.

use std::sync::Arc;

use mtimer_types::{
    Bulk, BulkAction, BulkId, DeadReason, Filter, Headers, ImportGoal, ImportId, Key, KeyPolicy, Mode,
    SettingsVersion, Staging, StoredSettings, Target, Time, Timer,
};

use crate::bulk::BulkPlace;
use crate::ops::{
    BeginBulk, BeginBulkAnswer, BulkAct, BulkActAnswer, BulkAdvance, Cancel, Configure, ConfigureAnswer,
    ExtendDeadline, ExtendDeadlineAnswer, Import, ImportAnswer, MoveAnswer, Park, Purge, PurgeAnswer, Replay,
    ReplayAnswer, Reschedule, Schedule, Settle, SettleAnswer, StopBulk, StopBulkAnswer, Take, Trim,
    TrimAnswer, Unpark,
};
use crate::{
    Answer, CancelAnswer, Op, Record, RequestId, RescheduleAnswer, Retained, ScheduleAnswer, Verdict,
};

const MINUTE: u64 = 60_000;

const GIVEN: SettingsVersion = SettingsVersion::Given(7);

const LIVE: ImportGoal = ImportGoal::Live { tier: 0 };
const DEAD: ImportGoal = ImportGoal::Dead { reason: DeadReason::Failed, died: Time::from_ms(1_000) };

/// The name of the trial whose timer is not there.
pub const CANCEL_NOTHING: &str = "cancel nothing";

/// Whether the operation can make the store hold more than before, so that a full store refuses it.
pub const fn adds(op: &Op) -> bool {
    match op {
        Op::Schedule(_) | Op::Reschedule(_) | Op::ExtendDeadline(_) | Op::Replay(_) => true,
        Op::Import(_) => true,
        Op::Cancel(_) | Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) => false,
        Op::Purge(_) | Op::Trim(_) => false,
        Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAdvance(_) | Op::Configure(_) => false,
        Op::BulkAct(act) => act.adds,
    }
}

/// Whether the answer is one that a client or the delivery of an at-most-once timer rests on, so
/// that replicas have to confirm it first.
pub const fn waits(op: &Op) -> bool {
    match op {
        Op::Schedule(_) | Op::Reschedule(_) | Op::ExtendDeadline(_) => true,
        Op::Replay(_) | Op::Cancel(_) | Op::Take(_) => true,
        Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAct(_) | Op::Import(_) => true,
        Op::Configure(_) => true,
        Op::Settle(_) | Op::Park(_) | Op::Unpark(_) | Op::Purge(_) | Op::Trim(_) => false,
        Op::BulkAdvance(_) => false,
    }
}

/// Whether a client asks for it.
pub const fn is_asked_for(op: &Op) -> bool {
    match op {
        Op::Schedule(_) | Op::Reschedule(_) | Op::ExtendDeadline(_) => true,
        Op::Cancel(_) | Op::Replay(_) | Op::Purge(_) => true,
        Op::BeginBulk(_) | Op::StopBulk(_) | Op::Import(_) | Op::Configure(_) => true,
        Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) | Op::Trim(_) => false,
        Op::BulkAct(_) | Op::BulkAdvance(_) => false,
    }
}

/// Whether the operation may make a timer one that is retained: a dead letter, or unconfirmed.
pub const fn may_retain(op: &Op) -> bool {
    match op {
        Op::Settle(Settle { verdict, .. }) => match verdict {
            Verdict::Dead { .. } | Verdict::Retry { .. } | Verdict::Later { .. } => true,
            Verdict::Unconfirmed => true,
            Verdict::Ack | Verdict::LateAck { .. } | Verdict::Expired { .. } => false,
        },
        Op::Cancel(_) | Op::BulkAct(_) => true,
        // A bulk job may cancel the timer first.
        Op::Park(_) | Op::Unpark(_) => true,
        Op::Schedule(_) | Op::Reschedule(_) | Op::ExtendDeadline(_) | Op::Take(_) => false,
        Op::Replay(_) | Op::Purge(_) | Op::Trim(_) | Op::Import(_) => false,
        Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAdvance(_) | Op::Configure(_) => false,
    }
}

/// Asserts that each operation is among these: a list of operations that a suite goes through has
/// a new one, too.
///
/// # Panics
///
/// With the names of those that are missing.
pub fn assert_all_occur<'a>(ops: impl IntoIterator<Item = &'a Op>) {
    let mut missing: Vec<&str> = Op::ALL.iter().map(|(name, _)| *name).collect();
    for op in ops {
        missing.retain(|name| !is_named(op, name));
    }
    assert!(missing.is_empty(), "these operations are missing in the list: {missing:?}");
}

/// Whether the operation has this name in [`Op::ALL`].
pub(super) fn is_named(op: &Op, name: &str) -> bool {
    format!("{op:?}").split('(').next() == Some(name)
}

/// One operation on timers of its own.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What it tries.
    pub name: &'static str,
    /// Brings its timers where the operation needs them.
    pub before: Vec<Op>,
    /// The operation.
    pub op: Op,
    /// The answer to it, once.
    pub answer: Answer,
}

/// What a suite has for trials.
pub trait TrialSource {
    /// The time of the suite's batches.
    fn now(&self) -> Time;

    /// A new at-least-once timer without a key, of the partition under test.
    fn timer(&self, due: Time) -> Timer;

    /// A new key of that partition, for the destination of [`Self::timer`].
    fn key(&self) -> Key;

    /// A number for a request that nobody has used.
    fn request(&self) -> RequestId;
}

/// Returns trials of every operation. They can be made in this order, or each after what is
/// `before` all of them, but then the answers to trims are others. The partition has no bulk jobs
/// before: the trials name theirs by their numbers.
pub fn trials(source: &impl TrialSource) -> Vec<Trial> {
    // Trims come first: later trials leave retained timers behind. Bulk jobs come last: they mark
    // what is scheduled while they are under way.
    let trials =
        [trims(source), requests(source), of_persons(source), verdicts(source), moves(source), bulk(source)]
            .concat();
    assert_all_occur(trials.iter().map(|trial| &trial.op));
    trials
}

fn schedule(timer: &Timer) -> Op {
    Schedule::new(Arc::new(timer.clone()), KeyPolicy::Create).into()
}

fn dead(timer: &Timer) -> Op {
    Op::settle(timer.id, Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() })
}

fn park(timer: &Timer) -> Op {
    Park { id: timer.id, failed: 0 }.into()
}

fn import(timer: &Timer, import: ImportId, goal: ImportGoal) -> Op {
    let mut record = Record::new(Arc::new(timer.clone()));
    record.extensions = record.extensions.staged(Staging { import, goal }).expect("it fits");
    Import { record: record.into(), fire: timer.due }.into()
}

fn unconfirmed(timer: &Timer) -> Op {
    Op::settle(timer.id, Verdict::Unconfirmed)
}

/// A timer that is due in a minute.
fn timer(source: &impl TrialSource) -> Timer {
    source.timer(source.now() + MINUTE)
}

fn keyed(source: &impl TrialSource) -> Timer {
    Timer { key: Some(source.key()), ..timer(source) }
}

fn once(source: &impl TrialSource) -> Timer {
    Timer { mode: Mode::AtMostOnce, ..timer(source) }
}

fn trims(source: &impl TrialSource) -> Vec<Trial> {
    let (letter, lost) = (timer(source), once(source));
    let trim = |name, of, before| {
        let op = Trim { of, before: Time::MAX, keep: 0, limit: 10 }.into();
        let answer = Answer::Trim(TrimAnswer { removed: 1, more: false });
        Trial { name, before, op, answer }
    };
    vec![
        trim("trim dead", Retained::Dead, vec![schedule(&letter), dead(&letter)]),
        trim(
            "trim unconfirmed",
            Retained::Unconfirmed,
            vec![schedule(&lost), Op::take(lost.id, 0), unconfirmed(&lost)],
        ),
    ]
}

fn requests(source: &impl TrialSource) -> Vec<Trial> {
    let due = source.now() + 2 * MINUTE;
    let [a, c, d, f] = [(); 4].map(|()| timer(source));
    let [old, b, e, former] = [(); 4].map(|()| keyed(source));
    let heir = Timer { key: old.key.clone(), ..timer(source) };
    let latest = Timer { key: former.key.clone(), ..source.timer(former.due - 1) };
    let moved = ScheduleAnswer::Timed { new: true, replaced: Some(former.id), due: former.due };
    let unknown = timer(source).id;
    let by_key = |timer: &Timer| Target::Key(timer.dest.clone(), timer.key.clone().expect("a key"));
    let cancel = |name, before: &[&Timer], target, sent_attempt, answer| {
        let op = Cancel { target, sent_attempt, request: source.request() }.into();
        let before = before.iter().map(|timer| schedule(timer)).collect();
        Trial { name, before, op, answer: Answer::Cancel(answer) }
    };
    let reschedule = |name, timer: &Timer, target| {
        let op = Reschedule { target, due, is_begun: false, request: source.request() }.into();
        let answer = Answer::Reschedule(RescheduleAnswer::Rescheduled(timer.id));
        Trial { name, before: vec![schedule(timer)], op, answer }
    };
    let scheduled = |replaced| Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced });
    vec![
        Trial { name: "schedule", before: vec![], op: schedule(&timer(source)), answer: scheduled(None) },
        Trial {
            name: "schedule for next month",
            before: vec![],
            op: schedule(&source.timer(source.now() + 30 * 24 * 60 * MINUTE)),
            answer: scheduled(None),
        },
        Trial {
            name: "schedule in the place of another",
            before: vec![schedule(&old)],
            op: Schedule::new(heir.into(), KeyPolicy::Replace).into(),
            answer: scheduled(Some(old.id)),
        },
        Trial {
            name: "schedule the latest of two",
            before: vec![schedule(&former)],
            op: Schedule::new(latest.into(), KeyPolicy::Latest).into(),
            answer: Answer::Schedule(moved),
        },
        cancel("cancel", &[&a], Target::Id(a.id), None, CancelAnswer::Cancelled(a.id)),
        cancel("cancel by key", &[&b], by_key(&b), None, CancelAnswer::Cancelled(b.id)),
        cancel("cancel in flight", &[&c], Target::Id(c.id), Some(1), CancelAnswer::TooLate(c.id)),
        cancel(CANCEL_NOTHING, &[], Target::Id(unknown), None, CancelAnswer::NotFound),
        Trial {
            name: "extend the deadline",
            before: vec![schedule(&f)],
            op: ExtendDeadline { target: Target::Id(f.id), deadline: due, request: source.request() }.into(),
            answer: Answer::ExtendDeadline(ExtendDeadlineAnswer::Extended(f.id)),
        },
        reschedule("reschedule", &d, Target::Id(d.id)),
        reschedule("reschedule by key", &e, by_key(&e)),
    ]
}

/// What persons ask for.
fn of_persons(source: &impl TrialSource) -> Vec<Trial> {
    let fire = source.now() + 2 * MINUTE;
    let letters = [(); 2].map(|()| timer(source));
    let lost = [(); 2].map(|()| once(source));
    let is_dead = |timer: &Timer| vec![schedule(timer), dead(timer)];
    let is_lost = |timer: &Timer| vec![schedule(timer), Op::take(timer.id, 0), unconfirmed(timer)];
    let replay = |name, timer: &Timer, before| {
        let op = Replay { id: timer.id, fire }.into();
        Trial { name, before, op, answer: Answer::Replay(ReplayAnswer::Done) }
    };
    let purge = |name, timer: &Timer, before| {
        let op = Purge { id: timer.id }.into();
        Trial { name, before, op, answer: Answer::Purge(PurgeAnswer::Done) }
    };
    let imported = |name, timer: &Timer, goal| {
        let op = import(timer, ImportId(source.request().0.into()), goal);
        Trial { name, before: vec![], op, answer: Answer::Import(ImportAnswer::Staged { new: true }) }
    };
    vec![
        replay("replay dead", &letters[0], is_dead(&letters[0])),
        replay("replay unconfirmed", &lost[0], is_lost(&lost[0])),
        purge("purge dead", &letters[1], is_dead(&letters[1])),
        purge("purge unconfirmed", &lost[1], is_lost(&lost[1])),
        imported("import", &keyed(source), LIVE),
        imported("import a dead one", &keyed(source), DEAD),
        Trial {
            name: "configure",
            before: vec![],
            op: Configure { dest: timer(source).dest, settings: Box::default(), version: GIVEN }.into(),
            answer: Answer::Configure(ConfigureAnswer::Done(
                StoredSettings { dest: timer(source).dest, version: 7, settings: Default::default() }.into(),
            )),
        },
    ]
}

fn verdicts(source: &impl TrialSource) -> Vec<Trial> {
    let settle = |name, timer: Timer, moved: Option<Op>, verdict| {
        let before = [schedule(&timer)].into_iter().chain(moved).collect();
        let op = Op::settle(timer.id, verdict);
        Trial { name, before, op, answer: Answer::Settle(SettleAnswer::Done) }
    };
    let pending = |name, verdict| settle(name, timer(source), None, verdict);
    let taken = |name, verdict| {
        let timer = once(source);
        let take = Op::take(timer.id, 0);
        settle(name, timer, Some(take), verdict)
    };
    let (fire, error) = (source.now() + 60 * MINUTE, Box::<str>::from("no"));
    let parked = Timer { deadline: Some(source.now() + MINUTE), ..timer(source) };
    let parks = park(&parked);
    vec![
        pending("acknowledge", Verdict::Ack),
        pending("retry", Verdict::Retry { fire, tier: 1, failed: 1, error: error.clone() }),
        pending("postpone", Verdict::Later { fire, failed: 1 }),
        pending("make dead", Verdict::Dead { reason: DeadReason::Failed, failed: 1, error }),
        settle("expire", parked, Some(parks), Verdict::Expired { next: fire }),
        taken("acknowledge late", Verdict::LateAck { attempt: 1 }),
        taken("make unconfirmed", Verdict::Unconfirmed),
    ]
}

fn moves(source: &impl TrialSource) -> Vec<Trial> {
    let [a, b] = [(); 2].map(|()| timer(source));
    let [c, d] = [(); 2].map(|()| once(source));
    let known = Some(Arc::new(d.clone()));
    let unpark = Unpark { id: b.id, fire: source.now() };
    let take_known = Take { id: d.id, failed: 0, timer: known };
    let done = MoveAnswer::Done;
    vec![
        Trial { name: "park", before: vec![schedule(&a)], op: park(&a), answer: Answer::Park(done) },
        Trial {
            name: "unpark",
            before: vec![schedule(&b), park(&b)],
            op: unpark.into(),
            answer: Answer::Unpark(done),
        },
        Trial { name: "take", before: vec![schedule(&c)], op: Op::take(c.id, 0), answer: Answer::Take(done) },
        Trial {
            name: "take one in memory",
            before: vec![schedule(&d)],
            op: take_known.into(),
            answer: Answer::Take(done),
        },
    ]
}

/// Each job has a timer of its own. Of two jobs about one kind of timers the first one ends before
/// the second one acts.
fn bulk(source: &impl TrialSource) -> Vec<Trial> {
    let day = 24 * 60 * MINUTE;
    let with = |value: &str| Timer {
        headers: Headers::new([("trial", value)]).expect("valid headers"),
        ..timer(source)
    };
    let begin = |value: &str, action| {
        let header = Some(("trial".into(), value.into()));
        let bulk = Bulk::new(action, Filter { header, ..Filter::default() });
        BeginBulk { id: BulkId(source.request().0.into()), bulk: bulk.into() }
    };
    let act = |name, number, timer: &Timer, before, answer| {
        // Of the jobs about live timers one is at work at a time: if the first operations of all
        // trials are done at once, that is the shift. So the release is told not to add.
        let adds = matches!(answer, BulkActAnswer::Moved { .. } | BulkActAnswer::Replayed);
        let op = BulkAct { number, id: timer.id, sent_attempt: None, is_begun: false, adds }.into();
        Trial { name, before, op, answer: Answer::BulkAct(answer) }
    };
    let end = |name, number| Trial {
        name,
        before: vec![],
        op: BulkAdvance { number, to: BulkPlace::End, met: 0 }.into(),
        answer: Answer::BulkAdvance(MoveAnswer::Done),
    };
    let import_id = ImportId(source.request().0.into());
    let [shifted, cancelled, replayed, purged, released, withdrawn] =
        ["a", "b", "c", "d", "f", "g"].map(with);
    let due = shifted.due + day;
    let replay = begin("c", BulkAction::Replay);
    let stop = StopBulk { id: replay.id, group: None, app: None };
    vec![
        // What adds comes first of its kind: a full store must find its job at work.
        act(
            "bulk act: shift",
            1,
            &shifted,
            vec![schedule(&shifted), begin("a", BulkAction::Shift { ms: day as i64 }).into()],
            BulkActAnswer::Moved { due },
        ),
        end("bulk advance", 1),
        act(
            "bulk act: release",
            2,
            &released,
            vec![
                import(&released, import_id, LIVE),
                begin("f", BulkAction::Release { import: import_id }).into(),
            ],
            BulkActAnswer::Released { fire: Some(released.due) },
        ),
        end("end release", 2),
        act(
            "bulk act: cancel",
            3,
            &cancelled,
            vec![schedule(&cancelled), begin("b", BulkAction::Cancel).into()],
            BulkActAnswer::Cancelled,
        ),
        end("end cancel", 3),
        act(
            "bulk act: withdraw",
            4,
            &withdrawn,
            vec![
                import(&withdrawn, import_id, LIVE),
                begin("g", BulkAction::Withdraw { import: import_id }).into(),
            ],
            BulkActAnswer::Withdrawn,
        ),
        act(
            "bulk act: replay",
            5,
            &replayed,
            vec![schedule(&replayed), dead(&replayed), replay.into()],
            BulkActAnswer::Replayed,
        ),
        Trial {
            name: "stop bulk",
            before: vec![],
            op: stop.into(),
            answer: Answer::StopBulk(StopBulkAnswer::Stopped),
        },
        act(
            "bulk act: purge",
            6,
            &purged,
            vec![schedule(&purged), dead(&purged), begin("d", BulkAction::Purge).into()],
            BulkActAnswer::Purged,
        ),
        Trial {
            name: "begin bulk",
            before: vec![],
            op: begin("e", BulkAction::Cancel).into(),
            answer: Answer::BeginBulk(BeginBulkAnswer::Begun),
        },
    ]
}

#[cfg(test)]
mod tests {
    use mtimer_types::{Destination, TimerId};

    use super::*;
    use crate::ops::Origin;

    struct Bare(std::cell::Cell<u64>);

    impl TrialSource for Bare {
        fn now(&self) -> Time {
            Time::from_ms(5)
        }

        fn timer(&self, due: Time) -> Timer {
            Timer::new(TimerId::from_u128(self.request().0.into()), Destination::new("g", "a").unwrap(), due)
        }

        fn key(&self) -> Key {
            Key::new(&self.request().0.to_string()).unwrap()
        }

        fn request(&self) -> RequestId {
            self.0.update(|n| n + 1);
            RequestId(self.0.get())
        }
    }

    #[test]
    fn operations_are_what_the_suites_expect() {
        for Trial { name, op, .. } in &trials(&Bare(Default::default())) {
            let is = op.is();
            assert!(Op::ALL.iter().any(|(of, all)| is_named(op, of) && all == is), "{name}");
            assert_eq!(op.adds(), adds(op), "{name} adds");
            assert_eq!(is.waits, waits(op), "{name} waits");
            assert_eq!(is.origin != Origin::Owner, is_asked_for(op), "{name} is of a client");
        }
    }

    #[test]
    fn the_documentation_lists_what_operations_are() {
        let document = include_str!("../../../../docs/architecture.md");
        for (name, is) in Op::ALL {
            let origin = match is.origin {
                Origin::Client => "client",
                Origin::Person => "person",
                Origin::Owner => "owner",
            };
            let [adds, waits, reads, key] = [is.adds, is.waits, is.reads_content, is.takes_key_back]
                .map(|is| if is { "yes" } else { "" });
            let row = format!("| `{name}` | {origin} | {adds} | {waits} | {reads} | {key} |");
            assert!(document.contains(&row), "docs/architecture.md lacks this row: {row}");
        }
    }
}
