//! The reference: the rules of [`crate::ops`], once more and as plainly as possible, so that a
//! store has something to be compared with. Three maps and no cleverness; it shares no code with
//! the stores.
//!
//! Not in here: loading (see `pair`), time limits of remembered outcomes, faults.

mod bulk;
mod entry;
mod import;
mod keys;
mod lists;
mod settings;
mod steps;

use std::collections::BTreeMap;

use mtimer_types::{
    BulkAction, BulkFailure, BulkObstacle, DeadReason, Destination, DestinationSettings, Ended, Epoch,
    Extensions, KeyPolicy, Mode, Target, Time, TimerId, limits,
};

pub use self::entry::Entry;
use crate::bulk::BulkJob;
use crate::ops::{
    BulkAct, BulkActAnswer, Cancel, ExtendDeadlineAnswer, MoveAnswer, Park, Purge, PurgeAnswer, Replay,
    ReplayAnswer, Reschedule, Schedule, Settle, SettleAnswer, Take, Trim, TrimAnswer, Unpark,
};
use crate::{
    Answer, CancelAnswer, InFlight, Op, Place, Progress, RescheduleAnswer, Retained, ScheduleAnswer, Verdict,
};

/// One partition.
#[derive(Clone, Default)]
pub struct Model {
    pub timers: BTreeMap<TimerId, Entry>,
    ended: BTreeMap<TimerId, Ended>,
    requests: BTreeMap<u64, Answer>,
    pub epoch: Epoch,
    pub prior_claim: Time,
    pub claimed_until: Time,
    pub in_flight: Vec<InFlight>,
    /// Bulk jobs, in the order of their numbers.
    pub jobs: Vec<BulkJob>,
    /// The settings of destinations, with their versions.
    settings: BTreeMap<Destination, (u64, DestinationSettings)>,
}

impl Model {
    /// A new owner.
    pub fn acquired(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.prior_claim = self.claimed_until;
    }

    pub fn claim(&mut self, until: Option<Time>) {
        self.claimed_until = self.claimed_until.max(until.unwrap_or(Time::ZERO));
    }

    /// The repeat horizon has passed.
    pub fn forget_ended(&mut self) {
        self.ended.clear();
        self.requests.clear();
    }

    pub fn find(&self, target: &Target) -> Option<TimerId> {
        match target {
            Target::Id(id) => self.timers.contains_key(id).then_some(*id),
            Target::Key(dest, key) => self.holder(dest, key),
        }
    }

    /// The same for a client's request, which finds no staged one.
    fn find_unstaged(&self, target: &Target) -> Option<TimerId> {
        self.find(target).filter(|id| self.timers[id].staging.is_none())
    }

    fn covered(&self, e: &Entry) -> bool {
        match e.place {
            Place::Pending { fire, .. } => fire <= self.prior_claim && e.progress.fresh != Some(self.epoch),
            _ => false,
        }
    }

    /// The number of the next delivery.
    fn attempt(&self, e: &Entry) -> u32 {
        1 + e.progress.failed + u32::from(self.covered(e))
    }

    pub fn apply(&mut self, now: Time, op: &Op) -> Answer {
        match op {
            Op::Schedule(op) => Answer::Schedule(self.schedule(now, op)),
            Op::Cancel(Cancel { target, sent_attempt, request }) => {
                if let Some(old) = self.requests.get(&request.0) {
                    return old.clone();
                }
                let answer = self.cancel(now, target, *sent_attempt);
                let to_repeat = match answer {
                    CancelAnswer::Died { id, .. } => CancelAnswer::TooLate(id),
                    same => same,
                };
                self.requests.insert(request.0, Answer::Cancel(to_repeat));
                Answer::Cancel(answer)
            }
            Op::Reschedule(Reschedule { target, due, is_begun, request }) => {
                if let Some(old) = self.requests.get(&request.0) {
                    return old.clone();
                }
                let answer = Answer::Reschedule(self.reschedule(now, target, *due, *is_begun));
                self.requests.insert(request.0, answer.clone());
                answer
            }
            Op::ExtendDeadline(op) => {
                if let Some(old) = self.requests.get(&op.request.0) {
                    return old.clone();
                }
                let answer = Answer::ExtendDeadline(self.extend_deadline(&op.target, op.deadline));
                self.requests.insert(op.request.0, answer.clone());
                answer
            }
            Op::Take(Take { id, failed, .. }) => self.take(*id, *failed),
            Op::Settle(settle) => self.settle(now, settle),
            Op::Park(Park { id, failed }) => Answer::Park(self.park(now, *id, *failed)),
            Op::Unpark(Unpark { id, fire }) => Answer::Unpark(self.unpark(now, *id, *fire)),
            Op::Replay(Replay { id, fire }) => Answer::Replay(self.replay(now, *id, *fire)),
            Op::Purge(Purge { id }) => match self.timers.get(id) {
                Some(e) if e.place == Place::Dead || e.is_unconfirmed() => {
                    self.purge(now, *id);
                    Answer::Purge(PurgeAnswer::Done)
                }
                _ => Answer::Purge(PurgeAnswer::Gone),
            },
            Op::Trim(Trim { of, before, keep, limit }) => self.trim(now, *of, (*before, *keep), *limit),
            Op::BeginBulk(op) => Answer::BeginBulk(self.begin_bulk(now, op)),
            Op::StopBulk(op) => Answer::StopBulk(self.stop_bulk(now, op)),
            Op::BulkAct(op) => Answer::BulkAct(self.bulk_act(now, op)),
            Op::BulkAdvance(op) => Answer::BulkAdvance(self.bulk_advance(now, op)),
            Op::Import(op) => Answer::Import(self.import(op)),
            Op::Configure(op) => Answer::Configure(self.configure(op)),
        }
    }

    fn extend_deadline(&mut self, target: &Target, deadline: Time) -> ExtendDeadlineAnswer {
        let Some(e) = self.find_unstaged(target).and_then(|id| self.timers.get_mut(&id)) else {
            return ExtendDeadlineAnswer::NotFound;
        };
        let id = e.timer.id;
        let next = match e.place {
            Place::Pending { fire, .. } => fire,
            _ => e.timer.due,
        };
        if !e.waits() || e.progress.stopped {
            ExtendDeadlineAnswer::TooLate(id)
        } else if deadline < e.timer.due || deadline < next {
            ExtendDeadlineAnswer::BeforeNext(id)
        } else {
            e.timer.deadline = Some(deadline);
            ExtendDeadlineAnswer::Extended(id)
        }
    }

    fn schedule(&mut self, now: Time, op: &Schedule) -> ScheduleAnswer {
        let timer = &*op.timer;
        if let Some(e) = self.timers.get(&timer.id) {
            let same = e.timer.same_content(timer) && e.staging.is_none();
            return if same {
                Self::scheduled(op, false, None, e.timer.due)
            } else {
                ScheduleAnswer::Conflict
            };
        }
        if let Some(ended) = self.ended.get(&timer.id) {
            return ScheduleAnswer::Ended(*ended);
        }
        let holder = timer.key.as_ref().and_then(|key| self.holder(&timer.dest, key));
        match (holder, op.policy) {
            (Some(id), KeyPolicy::Create) => return ScheduleAnswer::KeyTaken(id),
            (Some(id), KeyPolicy::Keep) => {
                return ScheduleAnswer::Kept { id, begun: op.may_have_begun || self.has_begun(id) };
            }
            (Some(_), KeyPolicy::Replace | KeyPolicy::Latest | KeyPolicy::Earliest) => {}
            (Some(_), KeyPolicy::Debounce { .. }) | (None, _) => {}
        }
        let waits = holder.map(|id| &self.timers[&id]).filter(|e| self.still_waits(e, op));
        let (due, debounced) = Self::due_by_policy(now, op, waits);
        if op.policy.computes_due() && timer.deadline.is_some_and(|last| last < due) {
            return ScheduleAnswer::PastDeadline(due);
        }
        if let Some(id) = holder {
            self.end(id, Ended::Replaced);
        }
        let place = Place::Parked;
        let entry = Entry {
            timer: mtimer_types::Timer { due, ..timer.clone() },
            debounced,
            progress: Progress::default(),
            place,
            death: None,
            unconfirmed_since: None,
            accepted: (due < now).then_some(now),
            mark: self.newest_job(),
            story: Vec::new(),
            arrived: Time::ZERO,
            staging: None,
            extensions: Extensions::NONE,
        };
        self.timers.insert(timer.id, entry);
        self.file(timer.id, due, 0);
        Self::scheduled(op, true, holder, due)
    }

    /// It is to be delivered, and nobody is at it.
    fn still_waits(&self, e: &Entry, op: &Schedule) -> bool {
        let own = Place::Taken { epoch: self.epoch, unconfirmed: false };
        let is_sent = self.covered(e) || op.sent_attempt.unwrap_or(0) > e.progress.failed;
        (e.waits() || e.place == own) && !is_sent && !e.progress.stopped
    }

    fn end(&mut self, id: TimerId, ended: Ended) {
        self.timers.remove(&id);
        self.ended.insert(id, ended);
    }

    fn cancel(&mut self, now: Time, target: &Target, sent_attempt: Option<u32>) -> CancelAnswer {
        let Some(id) = self.find_unstaged(target) else {
            let Target::Id(id) = target else { return CancelAnswer::NotFound };
            if self.timers.contains_key(id) {
                // It is staged.
                return CancelAnswer::NotFound;
            }
            return match *self.ended.entry(*id).or_insert(Ended::CancelledUnseen) {
                Ended::Cancelled => CancelAnswer::Cancelled(*id),
                _ => CancelAnswer::NotFound,
            };
        };
        self.cancel_found(now, id, sent_attempt)
    }

    fn cancel_found(&mut self, now: Time, id: TimerId, sent_attempt: Option<u32>) -> CancelAnswer {
        let (attempt, newest) = (self.attempt(&self.timers[&id]), self.newest_job());
        let own = Place::Taken { epoch: self.epoch, unconfirmed: false };
        let e = self.timers.get_mut(&id).unwrap();
        let flies = sent_attempt.unwrap_or(0) > e.progress.failed;
        if !(e.waits() || e.place == own) {
            // Nobody sends it any more.
        } else if flies {
            e.progress.stopped = true;
        } else if attempt == 1 && !e.progress.stopped {
            self.end(id, Ended::Cancelled);
            return CancelAnswer::Cancelled(id);
        } else {
            e.progress.failed = attempt - 1;
            e.die(DeadReason::Stopped, now, newest);
            return CancelAnswer::Died { id, failed: attempt - 1 };
        }
        CancelAnswer::TooLate(id)
    }

    /// Whether an attempt may have begun, or none follows.
    fn has_begun(&self, id: TimerId) -> bool {
        let e = &self.timers[&id];
        !e.waits() || self.attempt(e) > 1 || e.progress.stopped
    }

    fn reschedule(&mut self, now: Time, target: &Target, due: Time, is_begun: bool) -> RescheduleAnswer {
        let Some(id) = self.find_unstaged(target) else { return RescheduleAnswer::NotFound };
        if is_begun || self.has_begun(id) {
            return RescheduleAnswer::TooLate(id);
        }
        let e = self.timers.get_mut(&id).unwrap();
        if e.timer.deadline.is_some_and(|deadline| deadline < due) {
            return RescheduleAnswer::PastDeadline(id);
        }
        let deadline = e.timer.deadline;
        self.job_acts_first(now, id);
        let Some(e) = self.timers.get_mut(&id) else { return RescheduleAnswer::Cancelled(id) };
        (e.timer.due, e.timer.deadline) = (due, deadline);
        e.accepted = (due < now).then_some(now);
        self.file(id, due, 0);
        RescheduleAnswer::Rescheduled(id)
    }

    fn take(&mut self, id: TimerId, failed: u32) -> Answer {
        let taken = Place::Taken { epoch: self.epoch, unconfirmed: false };
        match self.timers.get_mut(&id).filter(|e| e.staging.is_none()) {
            Some(e) if e.waits() && e.timer.mode == Mode::AtMostOnce => {
                e.place = taken;
                e.progress.failed = failed;
                Answer::Take(MoveAnswer::Done)
            }
            Some(e) if e.place == taken => Answer::Take(MoveAnswer::Done),
            _ => Answer::Take(MoveAnswer::Gone),
        }
    }

    fn park(&mut self, now: Time, id: TimerId, failed: u32) -> MoveAnswer {
        let taken = Place::Taken { epoch: self.epoch, unconfirmed: false };
        if self.timers.get(&id).is_some_and(|e| e.place == taken) {
            self.job_acts_first(now, id);
        }
        match self.timers.get_mut(&id).filter(|e| e.staging.is_none()) {
            Some(e) if matches!(e.place, Place::Pending { .. }) || e.place == taken => {
                e.place = Place::Parked;
                e.progress.failed = failed;
                MoveAnswer::Done
            }
            Some(e) if e.place == Place::Parked => MoveAnswer::Done,
            _ => MoveAnswer::Gone,
        }
    }

    fn unpark(&mut self, now: Time, id: TimerId, fire: Time) -> MoveAnswer {
        let place = self.timers.get(&id).filter(|e| e.staging.is_none()).map(|e| e.place);
        if matches!(place, Some(Place::Pending { .. })) {
            return MoveAnswer::Done;
        }
        if place == Some(Place::Parked) {
            self.job_acts_first(now, id);
        }
        // A job that has moved or cancelled it has taken it out of the park.
        if self.timers.get(&id).is_none_or(|e| e.place != Place::Parked) {
            return MoveAnswer::Gone;
        }
        self.file(id, fire, 0);
        MoveAnswer::Done
    }

    fn replay(&mut self, now: Time, id: TimerId, fire: Time) -> ReplayAnswer {
        let Some(e) = self.timers.get(&id).filter(|e| e.staging.is_none()) else { return ReplayAnswer::Gone };
        if matches!(e.place, Place::Pending { .. }) {
            return ReplayAnswer::Done;
        }
        if e.place != Place::Dead && !e.is_unconfirmed() {
            return ReplayAnswer::Gone;
        }
        if let Some(holder) = e.timer.key.as_ref().and_then(|key| self.holder(&e.timer.dest, key)) {
            return ReplayAnswer::KeyTaken(holder);
        }
        let newest = self.newest_job();
        let e = self.timers.get_mut(&id).unwrap();
        e.mark = e.mark.max(newest);
        e.progress.failed += u32::from(e.is_unconfirmed());
        e.progress.budget_from = e.progress.failed;
        e.progress.stopped = false;
        e.timer.deadline = e.timer.deadline.filter(|deadline| *deadline >= now);
        self.file(id, fire, 0);
        ReplayAnswer::Done
    }

    fn settle(&mut self, now: Time, settle: &Settle) -> Answer {
        let Settle { id, verdict, attempt, .. } = settle;
        let id = *id;
        let Some(e) = self.timers.get(&id).filter(|e| e.staging.is_none()) else {
            return Answer::Settle(SettleAnswer::Gone);
        };
        let (covered, failed, newest) = (self.covered(e), e.progress.failed, self.newest_job());
        let taken = matches!(e.place, Place::Taken { .. });
        let own = Place::Taken { epoch: self.epoch, unconfirmed: false };
        let e = self.timers.get_mut(&id).unwrap();
        match verdict {
            Verdict::Ack if e.waits() || taken => self.acknowledge(id),
            Verdict::LateAck { attempt }
                if *attempt > e.extensions.postponed().last
                    && (taken || e.waits() && (failed >= *attempt || *attempt <= failed + 1 && covered)) =>
            {
                self.acknowledge(id);
            }
            Verdict::Retry { failed: already, .. } | Verdict::Later { failed: already, .. }
                if matches!(e.place, Place::Pending { .. }) && failed >= *already => {}
            Verdict::Retry { fire, tier, failed, error } if matches!(e.place, Place::Pending { .. }) => {
                e.fail(*failed, error);
                e.tell(attempt.as_deref());
                return self.wait_again(now, id, *fire, *tier);
            }
            Verdict::Later { fire, failed } if matches!(e.place, Place::Pending { .. }) => {
                e.progress.failed = *failed;
                e.progress.budget_from += 1;
                e.extensions.postpone(*failed);
                e.tell(attempt.as_deref());
                return self.wait_again(now, id, *fire, 0);
            }
            Verdict::Dead { .. } if e.place == Place::Dead => {}
            Verdict::Dead { reason, failed, error } => {
                e.fail(*failed, error);
                e.tell(attempt.as_deref());
                e.die(*reason, now, newest);
            }
            Verdict::Expired { next }
                if (e.waits() || e.place == own) && e.timer.deadline.is_some_and(|last| last < *next) =>
            {
                self.end(id, Ended::Expired);
            }
            Verdict::Unconfirmed if taken => {
                if !e.is_unconfirmed() {
                    e.arrived = now;
                    e.mark = e.mark.max(newest);
                    e.tell(attempt.as_deref());
                }
                if let Place::Taken { unconfirmed, .. } = &mut e.place {
                    *unconfirmed = true;
                }
                e.unconfirmed_since = e.unconfirmed_since.or(Some(now));
            }
            _ => return Answer::Settle(SettleAnswer::Gone),
        }
        Answer::Settle(SettleAnswer::Done)
    }

    /// Another attempt follows, unless it was stopped or expires before.
    fn wait_again(&mut self, now: Time, id: TimerId, fire: Time, tier: u8) -> Answer {
        let newest = self.newest_job();
        let e = self.timers.get_mut(&id).unwrap();
        if e.progress.stopped {
            e.die(DeadReason::Stopped, now, newest);
            return Answer::Settle(SettleAnswer::Died);
        }
        if e.timer.deadline.is_some_and(|last| last < fire) {
            self.end(id, Ended::Expired);
            return Answer::Settle(SettleAnswer::Expired);
        }
        self.file(id, fire, tier);
        Answer::Settle(SettleAnswer::Done)
    }

    fn acknowledge(&mut self, id: TimerId) {
        if self.timers[&id].timer.mode == Mode::AtMostOnce {
            self.end(id, Ended::Acknowledged);
        } else {
            self.timers.remove(&id);
        }
    }

    fn purge(&mut self, now: Time, id: TimerId) {
        let e = self.timers.remove(&id).unwrap();
        let since = e.death.map(|(_, died)| died).or(e.unconfirmed_since).unwrap();
        if now.ms_since(since) <= limits::REPEAT_HORIZON_MS {
            self.ended.insert(id, Ended::Dead);
        }
    }

    fn trim(&mut self, now: Time, of: Retained, (before, keep): (Time, u64), limit: u32) -> Answer {
        let row = |e: &Entry| {
            let since = match of {
                Retained::Dead => e.death.map(|(_, died)| died),
                Retained::Unconfirmed => e.unconfirmed_since.filter(|_| e.is_unconfirmed()),
            };
            Some((e.arrived, e.timer.id, since?))
        };
        // An import's have died before they arrived.
        let mut retained: Vec<_> = self.timers.values().filter_map(row).collect();
        retained.sort();
        let over = (retained.len() as u64).saturating_sub(keep) as usize;
        let goes = |(i, (_, _, since)): &(usize, &(Time, TimerId, Time))| *i < over || *since < before;
        let doomed: Vec<_> =
            retained.iter().enumerate().take_while(goes).map(|(_, (_, id, _))| *id).collect();
        let removed = doomed.len().min(limit as usize);
        for id in &doomed[..removed] {
            self.purge(now, *id);
        }
        Answer::Trim(TrimAnswer { removed: removed as u32, more: removed < doomed.len() })
    }

    /// Something is about to move a live timer: the job that would still come to it acts before.
    fn job_acts_first(&mut self, now: Time, id: TimerId) {
        if let Some(number) = self.at_work(true) {
            self.bulk_act(now, &BulkAct { number, id, sent_attempt: None, is_begun: false, adds: false });
        }
    }

    fn bulk_act(&mut self, now: Time, op: &BulkAct) -> BulkActAnswer {
        let BulkAct { number, id, .. } = *op;
        let Some(i) = self.jobs.iter().position(|job| job.number == number) else {
            return BulkActAnswer::Passed;
        };
        let at_work = [true, false].map(|live| self.at_work(live)).contains(&Some(number));
        let is_wanted = self.timers.get(&id).is_some_and(|e| Self::wants(&self.jobs[i], e));
        if !at_work || !is_wanted || self.jobs[i].bulk.dry_run {
            return BulkActAnswer::Passed;
        }
        let answer = match self.jobs[i].bulk.action {
            BulkAction::Cancel => match self.cancel_found(now, id, op.sent_attempt) {
                CancelAnswer::Cancelled(_) => BulkActAnswer::Cancelled,
                CancelAnswer::Died { failed, .. } => BulkActAnswer::Died { failed },
                CancelAnswer::TooLate(_) | CancelAnswer::NotFound => BulkActAnswer::Stopped,
            },
            BulkAction::Shift { .. } | BulkAction::MoveTo { .. } if op.is_begun || self.has_begun(id) => {
                BulkActAnswer::NotDone(BulkObstacle::TooLate)
            }
            BulkAction::Shift { ms } => {
                let shifted = |time: Time| {
                    let ahead = ms.unsigned_abs();
                    if ms < 0 { time - ahead } else { time + ahead }
                };
                let timer = &self.timers[&id].timer;
                let (due, deadline) = (shifted(timer.due), timer.deadline.map(shifted));
                if due > now + limits::MAX_AHEAD_MS {
                    BulkActAnswer::NotDone(BulkObstacle::TooFar)
                } else if deadline.is_some_and(|last| last < now) {
                    BulkActAnswer::NotDone(BulkObstacle::PastDeadline)
                } else {
                    self.bulk_move(now, id, due, deadline)
                }
            }
            BulkAction::MoveTo { due } => match self.timers[&id].timer.deadline {
                Some(deadline) if deadline < due => BulkActAnswer::NotDone(BulkObstacle::PastDeadline),
                deadline => self.bulk_move(now, id, due, deadline),
            },
            BulkAction::Replay => match self.replay(now, id, now) {
                ReplayAnswer::KeyTaken(_) => BulkActAnswer::NotDone(BulkObstacle::KeyTaken),
                _ => BulkActAnswer::Replayed,
            },
            BulkAction::Purge => {
                self.purge(now, id);
                BulkActAnswer::Purged
            }
            BulkAction::Release { .. } => self.release(now, id),
            BulkAction::Withdraw { .. } => {
                self.timers.remove(&id);
                BulkActAnswer::Withdrawn
            }
        };
        if let Some(e) = self.timers.get_mut(&id) {
            e.mark = e.mark.max(number);
        }
        let job = &mut self.jobs[i];
        let why = match answer {
            BulkActAnswer::Stopped | BulkActAnswer::Died { .. } => BulkObstacle::TooLate,
            BulkActAnswer::NotDone(why) => why,
            _ => {
                job.done += 1;
                return answer;
            }
        };
        job.not_done += 1;
        if job.failures.len() < limits::MAX_BULK_FAILURES {
            job.failures.push(BulkFailure { id, why });
        }
        answer
    }

    fn bulk_move(&mut self, now: Time, id: TimerId, due: Time, deadline: Option<Time>) -> BulkActAnswer {
        let e = self.timers.get_mut(&id).unwrap();
        (e.timer.due, e.timer.deadline) = (due, deadline);
        e.accepted = (due < now).then_some(now);
        self.file(id, due, 0);
        BulkActAnswer::Moved { due }
    }
}
