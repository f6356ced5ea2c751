//! What bulk jobs may do, as the checker sees it: each meets every timer that was there when it
//! began, once, and none that came later.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_store::ops::{BulkActAnswer, MoveAnswer};
use mtimer_store::{Answer, BulkJob, BulkPlace, Op, Place, RescheduleAnswer};
use mtimer_types::{Bulk, BulkAction, BulkId, Destination, PartitionId, Timer, TimerId};

use super::history::{History, is_live};

/// The jobs that were filed, and the timers that they are about.
#[derive(Debug, Default)]
pub(super) struct BulkWatch {
    timers: BTreeMap<TimerId, Timer>,
    /// By partition, in the order of their numbers.
    jobs: BTreeMap<PartitionId, Vec<WatchedJob>>,
}

#[derive(Debug)]
struct WatchedJob {
    id: BulkId,
    bulk: Bulk,
    /// Timers that it has to meet.
    due: BTreeSet<TimerId>,
    /// On how many it has acted, or could not.
    met: u64,
    has_ended: bool,
}

impl WatchedJob {
    fn is_of_live(&self) -> bool {
        self.bulk.action.is_of_live()
    }
}

impl BulkWatch {
    /// A client asks for a schedule of a timer.
    pub(super) fn know(&mut self, timer: &Timer) {
        self.timers.entry(timer.id).or_insert_with(|| timer.clone());
    }

    /// The destination of a timer that a client has asked for.
    pub(super) fn dest_of(&self, id: TimerId) -> Option<Destination> {
        self.timers.get(&id).map(|timer| timer.dest.clone())
    }

    /// The job that is at work on live timers, or on retained ones.
    fn at_work(&mut self, at: PartitionId, live: bool) -> Option<&mut WatchedJob> {
        let jobs = self.jobs.get_mut(&at)?;
        jobs.iter_mut().find(|job| !job.has_ended && job.is_of_live() == live)
    }

    /// Whether a job acts first on a timer that something else is about to move, and cancels it.
    pub(super) fn cancels_first(&mut self, id: TimerId) -> bool {
        let job = self.at_work(id.partition(), true);
        job.is_some_and(|job| {
            job.bulk.action == BulkAction::Cancel && !job.bulk.dry_run && job.due.contains(&id)
        })
    }

    /// A job acts, or acts first. Says what is wrong with it.
    fn act(&mut self, id: TimerId, live: bool) -> Option<&'static str> {
        let Some(job) = self.at_work(id.partition(), live) else {
            return Some("bulk: acted for a job that is not at work");
        };
        job.met += 1;
        let is_due = job.due.remove(&id) && !job.bulk.dry_run;
        (!is_due).then_some("bulk: acted on a timer twice, or on one that had come later")
    }

    /// A timer has left the places that jobs of a kind look at.
    fn leave(&mut self, id: TimerId, live: bool) {
        let jobs = self.jobs.entry(id.partition()).or_default();
        for job in jobs.iter_mut().filter(|job| job.is_of_live() == live) {
            job.due.remove(&id);
        }
    }
}

impl History {
    /// The store has applied an operation to a partition. `before`: where its timer was.
    pub(super) fn watch_bulk(
        &mut self,
        ms: u64,
        at: PartitionId,
        op: &Op,
        before: Option<Place>,
        answer: &Answer,
    ) {
        let wrong = match (op, answer) {
            (Op::BeginBulk(op), Answer::BeginBulk(_)) => {
                self.begin_bulk(at, op.id, &op.bulk);
                None
            }
            (Op::StopBulk(op), Answer::StopBulk(_)) => {
                let jobs = self.bulks.jobs.entry(at).or_default();
                let is_it = |job: &&mut WatchedJob| {
                    let filter = &job.bulk.filter;
                    job.id == op.id && filter.group == op.group && filter.app == op.app
                };
                jobs.iter_mut().filter(is_it).for_each(|job| job.has_ended = true);
                None
            }
            (Op::BulkAdvance(op), Answer::BulkAdvance(MoveAnswer::Done)) if op.to == BulkPlace::End => {
                self.end_bulk(at, op.number)
            }
            (Op::BulkAct(op), Answer::BulkAct(answer)) => {
                let live = before.is_some_and(is_live);
                match answer {
                    BulkActAnswer::Passed => None,
                    BulkActAnswer::Stopped | BulkActAnswer::Died { .. } => {
                        self.life(op.id).cancel_asked = true;
                        self.bulks.act(op.id, live)
                    }
                    BulkActAnswer::Cancelled
                    | BulkActAnswer::Moved { .. }
                    | BulkActAnswer::Replayed
                    | BulkActAnswer::Purged
                    | BulkActAnswer::Released { .. }
                    | BulkActAnswer::Withdrawn
                    | BulkActAnswer::NotDone(_) => self.bulks.act(op.id, live),
                }
            }
            (
                Op::Reschedule(op),
                Answer::Reschedule(RescheduleAnswer::Rescheduled(id) | RescheduleAnswer::Cancelled(id)),
            ) => {
                // A repeat decides nothing.
                if !self.applied.contains_key(&op.request.0) {
                    self.act_first(*id);
                }
                None
            }
            (Op::Unpark(op), Answer::Unpark(_)) if before == Some(Place::Parked) => {
                self.act_first(op.id);
                None
            }
            (Op::Park(op), Answer::Park(_)) if matches!(before, Some(Place::Taken { .. })) => {
                let is_taken = |place| matches!(place, Some(Place::Taken { .. }));
                if !is_taken(self.life(op.id).place) {
                    self.act_first(op.id);
                }
                None
            }
            _ => None,
        };
        if let Some(text) = wrong {
            self.fail(ms, op.id(), text);
        }
    }

    /// A timer may have left the places that jobs look at.
    pub(super) fn watch_place(&mut self, id: TimerId) {
        let place = self.lives.get(&id).and_then(|life| life.place);
        if !place.is_some_and(is_live) {
            self.bulks.leave(id, true);
        }
        if place.is_none_or(is_live) {
            self.bulks.leave(id, false);
        }
        if self.lives.get(&id).is_none_or(|life| life.staged.is_none()) {
            let jobs = self.bulks.jobs.entry(id.partition()).or_default();
            for job in jobs.iter_mut().filter(|job| job.bulk.action.import().is_some()) {
                job.due.remove(&id);
            }
        }
    }

    /// The jobs of a partition, as the store has them: they have counted each timer once.
    pub(super) fn compare_bulks(&mut self, ms: u64, at: PartitionId, stored: &[BulkJob]) {
        let watched = self.bulks.jobs.entry(at).or_default();
        let wrong = stored.iter().filter(|job| !job.bulk.dry_run).find_map(|job| {
            let watched = watched.iter().find(|watched| watched.id == job.id)?;
            let counted = job.done + job.not_done;
            (counted != watched.met).then(|| format!("bulk: counts {counted}, has met {}", watched.met))
        });
        if let Some(text) = wrong {
            self.fail(ms, None, &text);
        }
    }

    /// After everything has drained.
    pub(super) fn check_bulks(&mut self, ms: u64) {
        let all = self.bulks.jobs.values().flatten();
        if let Some(job) = all.into_iter().find(|job| !job.has_ended) {
            let text = format!("bulk: a job has not come to its end: {job:?}");
            self.fail(ms, None, &text);
        }
    }

    fn begin_bulk(&mut self, at: PartitionId, id: BulkId, bulk: &Bulk) {
        let jobs = self.bulks.jobs.entry(at).or_default();
        if jobs.iter().any(|job| job.id == id) {
            return;
        }
        let live = bulk.action.is_of_live();
        let matches = |timer: &Timer| timer.id.partition() == at && bulk.filter.accepts(timer);
        let is_there = |id: &TimerId| {
            let Some(life) = self.lives.get(id) else { return false };
            let is_meant = life.staged == bulk.action.import();
            is_meant && life.place.is_some_and(|place| is_live(place) == live)
        };
        let due = self.bulks.timers.values().filter(|timer| matches(timer)).map(|timer| timer.id);
        let due = due.filter(is_there).collect();
        jobs.push(WatchedJob { id, bulk: bulk.clone(), due, met: 0, has_ended: false });
    }

    /// A job has come to its end. Taken timers are not met: they were sent, or are about to be.
    fn end_bulk(&mut self, at: PartitionId, number: u32) -> Option<&'static str> {
        let jobs = self.bulks.jobs.entry(at).or_default();
        let job = jobs.get_mut((number as usize).checked_sub(1)?).filter(|job| !job.has_ended)?;
        job.has_ended = true;
        let is_met = |id: &TimerId| {
            let place = self.lives.get(id).and_then(|life| life.place);
            job.bulk.dry_run || matches!(place, Some(Place::Taken { unconfirmed: false, .. }))
        };
        job.due.iter().any(|id| !is_met(id)).then_some("bulk: a job has ended, and not met all")
    }

    /// Something has moved a timer: the job that is at work on live timers has acted first, if it
    /// had not met it.
    fn act_first(&mut self, id: TimerId) {
        if let Some(job) = self.bulks.at_work(id.partition(), true)
            && !job.bulk.dry_run
            && job.due.remove(&id)
        {
            job.met += 1;
        }
    }
}
