//! The rules of staged timers, once more.

use mtimer_types::extensions::{BULK_MARK, STAGING};
use mtimer_types::{BulkAction, BulkObstacle, ImportGoal, Time, TimerId, limits};

use super::{Entry, Model};
use crate::Place;
use crate::bulk::BulkJob;
use crate::ops::{BulkActAnswer, Import, ImportAnswer};

impl Model {
    pub(super) fn import(&mut self, op: &Import) -> ImportAnswer {
        let (record, timer) = (&op.record, &*op.record.timer);
        let staging = record.extensions.staging().unwrap();
        if let Some(e) = self.timers.get(&timer.id) {
            let fire = op.fire.max(timer.due);
            let same = e.staging == Some(staging)
                && e.timer == *timer
                && (&e.progress, e.accepted) == (&record.progress, record.accepted)
                && e.extensions == record.extensions.without(STAGING).without(BULK_MARK)
                && matches!(e.place, Place::Pending { fire: at, .. } if at == fire + limits::STAGED_MS);
            return if same { ImportAnswer::Staged { new: false } } else { ImportAnswer::Exists };
        }
        if let Some(ended) = self.ended.get(&timer.id) {
            return ImportAnswer::Ended(*ended);
        }
        let fire = op.fire.max(timer.due) + limits::STAGED_MS;
        let entry = Entry {
            timer: timer.clone(),
            progress: record.progress.clone(),
            place: Place::Pending { fire, tier: 0 },
            death: None,
            unconfirmed_since: None,
            accepted: record.accepted,
            mark: self.newest_job(),
            debounced: None,
            arrived: Time::ZERO,
            staging: Some(staging),
            extensions: record.extensions.without(STAGING).without(BULK_MARK),
            story: Vec::new(),
        };
        // Marks do not count here: a job that comes later may release it, too.
        let releases = |job: &&BulkJob| match job.bulk.action {
            BulkAction::Release { import } => import == staging.import && !job.bulk.dry_run,
            _ => false,
        };
        let unmarked = Entry { mark: 0, ..entry.clone() };
        if self.jobs.iter().filter(releases).any(|job| Self::wants(job, &unmarked)) {
            return ImportAnswer::Released;
        }
        self.timers.insert(timer.id, entry);
        ImportAnswer::Staged { new: true }
    }

    pub(super) fn release(&mut self, now: Time, id: TimerId) -> BulkActAnswer {
        let newest = self.newest_job();
        let e = &self.timers[&id];
        let is_to_live = matches!(e.staging.unwrap().goal, ImportGoal::Live { .. });
        let holder = e.timer.key.as_ref().and_then(|key| self.holder(&e.timer.dest, key));
        if is_to_live && holder.is_some() {
            return BulkActAnswer::NotDone(BulkObstacle::KeyTaken);
        }
        let e = self.timers.get_mut(&id).unwrap();
        let staging = e.staging.take().unwrap();
        e.mark = e.mark.max(newest);
        e.arrived = now;
        match (staging.goal, e.place) {
            (ImportGoal::Live { tier }, Place::Pending { fire, .. }) => {
                let fire = fire.unstaged().unwrap();
                if e.timer.due < now {
                    e.accepted = Some(now);
                }
                self.file(id, fire, tier);
                return BulkActAnswer::Released { fire: Some(fire) };
            }
            (ImportGoal::Dead { reason, died }, _) => {
                (e.place, e.death) = (Place::Dead, Some((reason, died.min(now))));
            }
            (ImportGoal::Unconfirmed { epoch, since }, _) => {
                e.place = Place::Taken { epoch, unconfirmed: true };
                e.unconfirmed_since = Some(since.min(now));
            }
            (ImportGoal::Live { .. }, _) => panic!("a staged timer is pending"),
        }
        BulkActAnswer::Released { fire: None }
    }
}
