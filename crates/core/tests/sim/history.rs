//! The history of each timer, as its clients, its brokers and the store saw it.
//!
//! Nothing is judged here but by calling the rules of [`super::check`] and [`super::operations`],
//! which look at each event as it comes and at the whole at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use mtimer_store::ops::{BulkActAnswer, Settle};
use mtimer_store::{Answer, Op, Place, Record, Verdict};
use mtimer_types::limits::REPEAT_HORIZON_MS;
use mtimer_types::{
    Destination, Epoch, HandlerOutcome, ImportId, KeyPolicy, Mode, PartitionId, Priority, Time, Timer,
    TimerId,
};

use super::bulk::BulkWatch;
use super::later::Postponements;
use super::pause::PauseWatch;
use super::plan::Plan;

/// How long before its time a timer is taken at most, ms: as far as a claim reaches at a slow store.
const TAKEN_AHEAD_MS: u64 = 320;

/// A key within its destination, as text.
pub(super) type Name = (String, String);

/// How a timer left the store's live places.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) seq: u64,
    pub(super) ms: u64,
    pub(super) epoch: Epoch,
    pub(super) by: String,
    pub(super) acknowledged: bool,
    /// An acknowledgement of an earlier attempt: the owner may be sending another one meanwhile.
    pub(super) late: bool,
}

/// The beginning of one delivery.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) seq: u64,
    pub(super) ms: u64,
    pub(super) epoch: Epoch,
    pub(super) attempt: u32,
    /// By its broker's clock.
    pub(super) time: Time,
}

/// When, and in which epoch, a broker gave an answer; and when the operation was applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) seq: u64,
    pub(super) ms: u64,
    pub(super) epoch: Epoch,
    pub(super) applied: u64,
}

/// One timer.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) asked: bool,
    pub(super) name: Option<Name>,
    pub(super) mode: Mode,
    /// What its schedule does if its key is taken.
    pub(super) policy: KeyPolicy,
    /// Its due time in the store.
    pub(super) due: Option<Time>,
    /// By its record no attempt has failed, and none was stopped.
    pub(super) is_untouched: bool,
    /// When the chain of debounces has begun of which it is the newest.
    pub(super) debounced: Option<Time>,
    /// Whose it is, and how urgent.
    pub(super) dest: Option<Destination>,
    pub(super) priority: Priority,
    /// Deliveries of less urgent timers in a row while it waited.
    pub(super) passed_over: u32,
    /// An edit that may hold it was asked for or applied last then, ms.
    pub(super) edited_ms: u64,
    pub(super) deadline: Option<Time>,
    /// Requests that have given it another one and are not answered, each with the owner's epoch.
    pub(super) extensions: BTreeSet<(u64, Epoch)>,
    /// A schedule of it was answered OK.
    pub(super) answered_ok: bool,
    /// It was in the store.
    pub(super) stored: bool,
    pub(super) place: Option<Place>,
    /// By which import it is staged.
    pub(super) staged: Option<ImportId>,
    /// It was staged, and its import was withdrawn: it may be staged anew.
    pub(super) withdrawn: bool,
    /// Pending: in which epoch it was filed there.
    pub(super) filed_in: Epoch,
    pub(super) sent: Vec<Sent>,
    pub(super) ends: Vec<End>,
    /// When replays of it were applied.
    pub(super) replays: Vec<u64>,
    /// When a repeat of its schedule made it anew: deliveries sent before are of the former timer.
    pub(super) reborn: Option<u64>,
    pub(super) ok_given: bool,
    /// Deliveries of it that clients have settled as not begun.
    pub(super) given_back: Vec<Sent>,
    /// The latest delivery to which a handler has said ok.
    pub(super) last_ok: Option<(Epoch, u32)>,
    pub(super) final_given: bool,
    /// Deliveries after which a handler has asked for another one.
    pub(super) retries_given: BTreeSet<(Epoch, u32)>,
    pub(super) postponed: Postponements,
    pub(super) cancel_asked: bool,
    pub(super) purge_asked: bool,
    pub(super) cancelled: Option<Answered>,
    pub(super) too_late: Option<Answered>,
    pub(super) replaced: Option<Answered>,
    /// The last reschedule that was answered OK, and its new due time.
    pub(super) moved: Option<(Answered, Time)>,
    /// When the last reschedule was applied.
    pub(super) move_applied: u64,
    /// When the store last applied an operation to it, ms.
    pub(super) applied_ms: u64,
    /// An outcome of it is forgotten early, so that a repeat may bring it back: it was stored by a
    /// broker whose time was far behind, or the clock that decides has stepped forward soon after.
    pub(super) forgotten: bool,
    /// The next attempt is not to be sent before this, reference ms, because a handler has said so.
    pub(super) not_before: Option<(u32, u64)>,
}

impl Life {
    pub(super) fn replayed_since(&self, seq: u64) -> bool {
        self.replays.iter().any(|at| *at > seq)
    }

    pub(super) fn is_live(&self) -> bool {
        self.place.is_some_and(is_live)
    }
}

pub(super) fn is_live(place: Place) -> bool {
    !matches!(place, Place::Dead | Place::Taken { unconfirmed: true, .. })
}

/// When the store applies an operation, and which owner has sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) ms: u64,
    /// The owner's time when it sent it.
    pub(super) now: Time,
    /// That was far behind the clock that decides.
    pub(super) is_behind: bool,
    pub(super) epoch: Epoch,
}

/// Who has acquired a partition, and when.
#[derive(Clone, Debug)]
pub(super) struct Ownership {
    pub(super) epoch: Epoch,
    /// Each broker's monotonic clock at that moment, ms.
    pub(super) monos: Vec<u64>,
    /// Its predecessor lived and had not released the partition in time.
    pub(super) by_force: bool,
    /// The owner's clock when it heard of it.
    pub(super) begun: Option<Time>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct History {
    pub(super) plan: Plan,
    pub(super) lives: BTreeMap<TimerId, Life>,
    /// By partition.
    pub(super) owners: Vec<Vec<Ownership>>,
    /// When each request that has a number was first applied.
    pub(super) applied: HashMap<u64, u64>,
    pub(super) bulks: BulkWatch,
    pub(super) pauses: PauseWatch,
    /// Keys by which timers were cancelled, whenever they came.
    pub(super) cancelled_names: HashSet<Name>,
    /// By how much the clock that decides has stepped back in all, ms: timers that had come due
    /// before are not early after it.
    pub(super) stepped_back_ms: u64,
    pub(super) seq: u64,
    /// Times at which a timer fires or expires: until the first of them nothing happens by itself.
    pub(super) upcoming: BTreeSet<(Time, TimerId)>,
    pub(super) digest: DefaultHasher,
    /// The events in words; only if asked for.
    log: Option<Vec<(u64, Option<TimerId>, String)>>,
    /// The first thing that was wrong.
    pub(crate) wrong: Option<String>,
}

impl History {
    pub(crate) fn new(plan: Plan, partitions: u16, log: bool) -> Self {
        Self {
            plan,
            lives: BTreeMap::new(),
            owners: vec![Vec::new(); usize::from(partitions)],
            applied: HashMap::new(),
            bulks: BulkWatch::default(),
            pauses: PauseWatch::default(),
            cancelled_names: HashSet::new(),
            stepped_back_ms: 0,
            seq: 0,
            upcoming: BTreeSet::new(),
            digest: DefaultHasher::new(),
            log: log.then(Vec::new),
            wrong: None,
        }
    }

    /// Notes an event; `text` is made only if somebody is going to read it.
    pub(crate) fn note(&mut self, ms: u64, id: Option<TimerId>, text: impl FnOnce() -> String) {
        self.seq += 1;
        (ms, id, self.seq).hash(&mut self.digest);
        if let Some(log) = &mut self.log {
            log.push((ms, id, text()));
        }
    }

    pub(crate) fn fail(&mut self, ms: u64, id: Option<TimerId>, text: &str) {
        if self.wrong.is_some() {
            return;
        }
        let mut report = format!("at {ms} ms: {text}");
        if let Some(id) = id {
            report = format!("{report}\ntimer {id}: {:?}", self.lives.get(&id));
        }
        self.wrong = Some(report);
    }

    /// The notes about the timers that the failure names, and about everything that concerns all. A
    /// note told twice, as repeats are, is left out the second time.
    pub(crate) fn log_of_failure(&self) -> String {
        let Some(wrong) = &self.wrong else { return String::new() };
        let about = |id: &Option<TimerId>| id.is_none_or(|id| wrong.contains(&id.to_string()));
        let lines = self.log.iter().flatten().filter(|(_, id, _)| about(id));
        let mut told = HashSet::new();
        let lines = lines.map(|(ms, _, text)| format!("{ms:>9} {text}"));
        let lines: Vec<String> = lines.filter(|line| told.insert(line.clone())).collect();
        lines[lines.len().saturating_sub(200)..].join("\n")
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest.finish()
    }

    pub(super) fn life(&mut self, id: TimerId) -> &mut Life {
        self.lives.entry(id).or_default()
    }

    pub(super) fn asked_schedule(&mut self, timer: &Timer) {
        let name = timer.key.as_ref().map(|k| (timer.dest.app().to_owned(), k.as_str().to_owned()));
        let cancelled = name.as_ref().is_some_and(|n| self.cancelled_names.contains(n));
        self.bulks.know(timer);
        let life = self.life(timer.id);
        life.cancel_asked |= cancelled;
        (life.asked, life.name, life.mode, life.deadline) = (true, name, timer.mode, timer.deadline);
        (life.dest, life.priority) = (Some(timer.dest.clone()), timer.priority());
    }

    /// A handler has given an outcome.
    pub(super) fn settled(
        &mut self,
        ms: u64,
        id: TimerId,
        epoch: Epoch,
        attempt: u32,
        outcome: &HandlerOutcome,
    ) {
        self.note(ms, Some(id), || format!("{id}: {epoch}/{attempt} settled: {outcome:?}"));
        let life = self.life(id);
        match outcome {
            HandlerOutcome::Ok => {
                life.ok_given = true;
                life.last_ok = life.last_ok.max(Some((epoch, attempt)));
            }
            HandlerOutcome::Retry { .. } => _ = life.retries_given.insert((epoch, attempt)),
            HandlerOutcome::Later { after_ms } => life.postponed.answered((epoch, attempt), ms, *after_ms),
            HandlerOutcome::Fail { .. } => life.final_given = true,
            // It is as if it had not been sent. Its broker may still count it as lost.
            HandlerOutcome::NotBegun => {
                let given_back = life.sent.extract_if(.., |s| (s.epoch, s.attempt) == (epoch, attempt));
                life.given_back.extend(given_back);
            }
        }
    }

    /// A partition has a new owner (or nobody, if `epoch` was raised by a stranger).
    pub(super) fn acquired(
        &mut self,
        ms: u64,
        at: PartitionId,
        epoch: Epoch,
        monos: Vec<u64>,
        by_force: bool,
    ) {
        self.note(ms, None, || format!("partition {at} is acquired, epoch {epoch}"));
        let ownerships = &mut self.owners[usize::from(at.0)];
        if ownerships.last().is_some_and(|r| r.epoch >= epoch) {
            return self.fail(ms, None, "10: an epoch was given twice, or went back");
        }
        ownerships.push(Ownership { epoch, monos, by_force, begun: None });
    }

    /// The new owner of a partition hears of it.
    pub(super) fn begun(&mut self, at: PartitionId, epoch: Epoch, time: Time) {
        let ownerships = &mut self.owners[usize::from(at.0)];
        if let Some(ownership) = ownerships.iter_mut().find(|r| r.epoch == epoch) {
            ownership.begun = Some(time);
        }
    }

    /// The store has applied an operation to a timer.
    pub(super) fn applied(
        &mut self,
        By { ms, now, is_behind, epoch }: By,
        id: TimerId,
        op: &Op,
        answer: &Answer,
        after: Option<(Record, Place)>,
    ) {
        self.note(ms, Some(id), || {
            let place = after.as_ref().map(|a| a.1);
            format!("{id}: epoch {epoch} at {now}: {op:?} -> {answer:?}, now {place:?}")
        });
        let seq = self.seq;
        let moves = self.moves(op, answer);
        self.note_applied(id, epoch, op, answer);
        self.check_computed_due(By { ms, now, is_behind, epoch }, id, op, (answer, after.as_ref()));
        let life = self.life(id);
        if moves {
            life.move_applied = seq;
        }
        life.applied_ms = ms;
        life.forgotten |= is_behind;
        let (before, place) = (life.place, after.as_ref().map(|a| a.1));
        life.place = place;
        if let Some((record, _)) = &after {
            life.due = Some(record.timer.due);
            life.is_untouched = record.progress.failed == 0 && !record.progress.stopped;
        }
        let staging = after.as_ref().and_then(|(record, _)| record.extensions.staging());
        let staged_before = std::mem::replace(&mut life.staged, staging.map(|staging| staging.import));
        let ahead_ms = match (op, before) {
            (Op::Take(_), Some(Place::Pending { fire, .. })) => fire.ms_since(now),
            _ => 0,
        };
        life.stored |= place.is_some();
        let was_live = before.is_some_and(is_live);
        if let Some(Place::Pending { .. }) = place
            && before != place
        {
            life.filed_in = epoch;
        }
        if before.is_some() && !was_live && place.is_some_and(is_live) {
            life.replays.push(seq);
            life.not_before = None;
            life.postponed.lift();
        }
        // A plain acknowledgement is remembered by the owner that took it: a repeat that reaches
        // the next one is a new timer.
        let last = life.ends.last().filter(|_| before.is_none() && place.is_some());
        let mut reborn =
            last.map(|end| life.mode == Mode::AtLeastOnce && end.acknowledged && end.epoch < epoch);
        if reborn == Some(true) {
            life.replays.push(seq);
            life.reborn = Some(seq);
        }
        // Until it is staged anew: an import that the store has refused does not.
        if place.is_some() && std::mem::take(&mut life.withdrawn) {
            life.reborn = Some(seq);
            life.replays.push(seq);
            reborn = None;
        }
        life.withdrawn |= *answer == Answer::BulkAct(BulkActAnswer::Withdrawn);
        let old_deadline = life.deadline;
        if let Some((record, _)) = &after {
            // A replay lifts a deadline that has passed.
            life.deadline = record.timer.deadline.or(life.deadline.filter(|_| life.replays.is_empty()));
        }
        if let Op::Settle(Settle { verdict: Verdict::Retry { failed, error, .. }, .. }) = op
            && let Some(ms) = error.strip_prefix("after ").and_then(|at| at.parse().ok())
            && life.is_live()
        {
            life.not_before = Some((*failed, ms));
        }
        let ended = was_live && !place.is_some_and(is_live);
        if ended {
            let late = match op {
                Op::Settle(Settle { verdict: Verdict::Ack, .. }) => {
                    let last = life.sent.last().map(|s| (s.epoch, s.attempt));
                    last != life.last_ok || last.is_some_and(|(of, _)| of != epoch)
                }
                Op::Settle(Settle { verdict: Verdict::LateAck { .. }, .. }) => true,
                _ => false,
            };
            let by = format!("{op:?}").chars().take(120).collect();
            let acknowledged =
                matches!(op, Op::Settle(Settle { verdict: Verdict::Ack | Verdict::LateAck { .. }, .. }));
            life.ends.push(End { seq, ms, epoch, by, acknowledged, late });
        }
        let (deadline, forgotten) = (life.deadline, life.forgotten);
        self.upcoming_changes(id, (before, old_deadline), (place, deadline));
        if ahead_ms > TAKEN_AHEAD_MS + self.stepped_back_ms {
            self.fail(ms, Some(id), &format!("4: taken {ahead_ms} ms before its time"));
        }
        if reborn == Some(false) && !forgotten {
            self.fail(ms, Some(id), "1: a repeat has brought back a timer that had ended");
        }
        if ended {
            self.check_end(ms, now, id, op, after.as_ref());
        }
        self.check_later(ms, id, op, after.as_ref().map(|(record, _)| record));
        self.check_story(ms, epoch, id, (op, answer), after.as_ref());
        self.check_staged(ms, id, op, (staged_before, before));
    }

    /// The clock that decides has stepped forward by more than [`FORGETFUL_MS`].
    pub(super) fn stepped_forward(&mut self, ms: u64) {
        let lately = self.lives.values_mut().filter(|l| ms - l.applied_ms <= REPEAT_HORIZON_MS);
        lately.for_each(|l| l.forgotten = true);
    }

    /// Keeps the times at which something happens by itself.
    fn upcoming_changes(
        &mut self,
        id: TimerId,
        before: (Option<Place>, Option<Time>),
        after: (Option<Place>, Option<Time>),
    ) {
        let times = |(place, deadline): (Option<Place>, Option<Time>)| {
            let live = place.is_some_and(is_live);
            let fire =
                place.and_then(|p| if let Place::Pending { fire, .. } = p { Some(fire) } else { None });
            [fire, deadline.filter(|_| live)]
        };
        times(before).into_iter().flatten().for_each(|t| _ = self.upcoming.remove(&(t, id)));
        self.upcoming.extend(times(after).into_iter().flatten().map(|t| (t, id)));
    }

    /// Timers that are live in the store.
    pub(super) fn live(&self) -> impl Iterator<Item = (&TimerId, &Life)> {
        self.lives.iter().filter(|(_, l)| l.is_live())
    }

    /// Dead and unconfirmed timers.
    pub(super) fn kept(&self) -> Vec<TimerId> {
        self.lives.iter().filter(|(_, l)| l.place.is_some() && !l.is_live()).map(|(id, _)| *id).collect()
    }
}
