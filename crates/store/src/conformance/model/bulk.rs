//! The rules of [`crate::bulk`], once more.

use mtimer_types::{BulkAction, Time, TimerId, limits};

use super::{Entry, Model};
use crate::Place;
use crate::bulk::{BulkEnd, BulkJob, BulkPlace};
use crate::ops::{BeginBulk, BeginBulkAnswer, BulkAdvance, MoveAnswer, StopBulk, StopBulkAnswer};

impl Model {
    pub(super) fn begin_bulk(&mut self, now: Time, op: &BeginBulk) -> BeginBulkAnswer {
        if self.jobs.iter().any(|job| job.id == op.id) {
            return BeginBulkAnswer::Begun;
        }
        let number = 1 + self.jobs.iter().map(|job| job.number).max().unwrap_or(0);
        if self.jobs.len() == limits::MAX_BULK_JOBS {
            let is_release =
                |job: &BulkJob| matches!(job.bulk.action, BulkAction::Release { .. }) && !job.bulk.dry_run;
            let others = self.jobs.iter().position(|job| job.ended.is_some() && !is_release(job));
            let Some(oldest) = others.or(self.jobs.iter().position(|job| job.ended.is_some())) else {
                return BeginBulkAnswer::TooMany(limits::MAX_BULK_JOBS as u32);
            };
            self.jobs.remove(oldest);
        }
        let at = match op.bulk.action {
            BulkAction::Cancel | BulkAction::Shift { .. } | BulkAction::MoveTo { .. } => {
                BulkPlace::Pending((op.bulk.from, TimerId::from_u128(0)))
            }
            BulkAction::Release { .. } | BulkAction::Withdraw { .. } => {
                BulkPlace::Pending((op.bulk.from + limits::STAGED_MS, TimerId::from_u128(0)))
            }
            BulkAction::Replay | BulkAction::Purge => BulkPlace::Unconfirmed,
        };
        self.jobs.push(BulkJob {
            number,
            id: op.id,
            bulk: (*op.bulk).clone(),
            begun: now,
            ended: None,
            at,
            done: 0,
            not_done: 0,
            failures: Vec::new(),
        });
        BeginBulkAnswer::Begun
    }

    pub(super) fn stop_bulk(&mut self, now: Time, op: &StopBulk) -> StopBulkAnswer {
        let is_meant = |job: &&mut BulkJob| {
            job.id == op.id && (&job.bulk.filter.group, &job.bulk.filter.app) == (&op.group, &op.app)
        };
        let Some(job) = self.jobs.iter_mut().find(is_meant) else { return StopBulkAnswer::NotFound };
        match job.ended.get_or_insert((now, BulkEnd::Stopped)).1 {
            BulkEnd::Stopped => StopBulkAnswer::Stopped,
            BulkEnd::Done => StopBulkAnswer::Done,
        }
    }

    pub(super) fn bulk_advance(&mut self, now: Time, op: &BulkAdvance) -> MoveAnswer {
        let at_work = [true, false].map(|live| self.at_work(live)).contains(&Some(op.number));
        let Some(job) = self.jobs.iter_mut().find(|job| job.number == op.number) else {
            return MoveAnswer::Gone;
        };
        if job.at == op.to {
            return MoveAnswer::Done;
        }
        if !at_work {
            return MoveAnswer::Gone;
        }
        job.at = op.to;
        job.done += op.met;
        if op.to == BulkPlace::End {
            job.ended = Some((now, BulkEnd::Done));
        }
        MoveAnswer::Done
    }

    /// The mark of what is filed now.
    pub(super) fn newest_job(&self) -> u32 {
        let is_under_way = self.jobs.iter().any(|job| job.ended.is_none());
        self.jobs.iter().map(|job| job.number).max().filter(|_| is_under_way).unwrap_or(0)
    }

    /// The first job about live timers, or about retained ones, that has not ended.
    pub(super) fn at_work(&self, live: bool) -> Option<u32> {
        let of_live = |job: &BulkJob| !matches!(job.bulk.action, BulkAction::Replay | BulkAction::Purge);
        let mut jobs = self.jobs.iter().filter(|job| job.ended.is_none());
        jobs.find(|job| of_live(job) == live).map(|job| job.number)
    }

    /// Whether a job matches a timer that it has not decided.
    pub(super) fn wants(job: &BulkJob, e: &Entry) -> bool {
        let is_of_retained = matches!(job.bulk.action, BulkAction::Replay | BulkAction::Purge);
        let is_retained = matches!(e.place, Place::Dead | Place::Taken { unconfirmed: true, .. });
        let time = match e.place {
            Place::Pending { fire, .. } if e.staging.is_some() => fire - limits::STAGED_MS,
            Place::Pending { fire, .. } => fire,
            Place::Dead | Place::Taken { unconfirmed: true, .. } => {
                e.death.map(|(_, died)| died).or(e.unconfirmed_since).unwrap()
            }
            Place::Parked | Place::Taken { .. } => e.timer.due,
        };
        let is_retried = e.progress.failed != e.progress.budget_from;
        let filter = &job.bulk.filter;
        let differs = |wanted: &Option<String>, is: &str| wanted.as_ref().is_some_and(|text| text != is);
        let has_key =
            |prefix: &String| e.timer.key.as_ref().is_some_and(|key| key.as_str().starts_with(prefix));
        let has_header =
            |(name, value): &(String, String)| e.timer.headers.iter().any(|pair| pair == (name, value));
        let import = match job.bulk.action {
            BulkAction::Release { import } | BulkAction::Withdraw { import } => Some(import),
            _ => None,
        };
        is_retained == is_of_retained
            && import == e.staging.map(|staging| staging.import)
            && job.number > e.mark
            && job.bulk.from <= time
            && time <= job.bulk.until
            && (is_retained || job.bulk.retrying.is_none_or(|wanted| wanted == is_retried))
            && !differs(&filter.group, e.timer.dest.group())
            && !differs(&filter.app, e.timer.dest.app())
            && filter.key_prefix.iter().all(has_key)
            && filter.header.iter().all(has_header)
    }
}
