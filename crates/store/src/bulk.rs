//! The bulk jobs of one partition.
//!
//! ## How a job meets each timer once
//!
//! A job has a *number* in its partition, above that of every job before. A record has a *mark*
//! ([`Extensions::bulk_mark`]): jobs with that number or a lower one pass it by. While a job is at
//! work or waits, what is scheduled, is replayed or dies gets the newest number;
//! what a job has acted on, or could not act on, gets that job's. So it does not matter from where
//! a job reads on after a takeover: what it has decided is gone or marked.
//!
//! A timer that moves could get behind a job that has not met it. So whatever moves one that a job
//! wants, but for the job, has the job act on it first: a reschedule, a return from the park, a
//! taken timer that is parked. A retry only moves a timer to a later time, where the job still
//! comes.
//!
//! Of the jobs about one kind of timers, live or retained, one is at work at a time, the others
//! wait in the order of their numbers: so none moves what another has not met.
//!
//! A dry run marks nothing: what it has counted is stored when it goes on, with where it is.
//!
//! [`Extensions::bulk_mark`]: mtimer_types::Extensions::bulk_mark

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use mtimer_protocol::{DecodeError, decode, encode};
use mtimer_types::limits::{MAX_BULK_FAILURES, MAX_BULK_JOBS};
use mtimer_types::{Bulk, BulkAction, BulkFailure, BulkId, BulkObstacle, Time, TimerId};
use serde::{Deserialize, Serialize};

/// A bulk job in one partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BulkJob {
    /// Its number here, from 1.
    pub number: u32,
    /// Its name everywhere.
    pub id: BulkId,
    /// What it does.
    pub bulk: Bulk,
    /// When it was filed here.
    pub begun: Time,
    /// When and how it ended.
    pub ended: Option<(Time, BulkEnd)>,
    /// Where it goes on.
    pub at: BulkPlace,
    /// On how many timers it has acted; a dry run: how many it has met.
    pub done: u64,
    /// On how many it could not.
    pub not_done: u64,
    /// The first of these.
    pub failures: Vec<BulkFailure>,
}

/// Where a bulk job goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BulkPlace {
    /// At the pending timer that stands there, by fire time and id.
    Pending((Time, TimerId)),
    /// At the parked timers.
    Parked,
    /// At the unconfirmed timers.
    Unconfirmed,
    /// At the dead letters.
    Dead,
    /// Nowhere: it has met all.
    End,
}

/// How a bulk job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BulkEnd {
    /// It has met all.
    Done,
    /// Somebody has stopped it.
    Stopped,
}

impl BulkJob {
    /// Whether it puts staged timers where they are to be. A dry run does nothing.
    pub fn is_release(&self) -> bool {
        matches!(self.bulk.action, BulkAction::Release { .. }) && !self.bulk.dry_run
    }

    /// A job that begins.
    pub fn new(number: u32, id: BulkId, bulk: Bulk, begun: Time) -> Self {
        let at = if bulk.action.is_of_live() {
            BulkPlace::Pending((bulk.stored_range().0, TimerId::from_u128(0)))
        } else {
            // An unconfirmed timer can still become a dead letter, and then it is the newest.
            BulkPlace::Unconfirmed
        };
        Self { number, id, bulk, begun, ended: None, at, done: 0, not_done: 0, failures: Vec::new() }
    }

    /// Whether it is about live timers. Else it is about retained ones.
    pub fn is_of_live(&self) -> bool {
        self.bulk.action.is_of_live()
    }

    /// Notes that it has acted on a timer, or why it could not.
    pub fn note(&mut self, id: TimerId, obstacle: Option<BulkObstacle>) {
        match obstacle {
            None => self.done += 1,
            Some(why) => {
                self.not_done += 1;
                if self.failures.len() < MAX_BULK_FAILURES {
                    self.failures.push(BulkFailure { id, why });
                }
            }
        }
    }

    /// Its bytes in a store.
    pub fn to_bytes(&self) -> Bytes {
        let bytes = encode(self);
        debug_assert!(bytes.is_ok(), "every part of it is bounded, far below a frame");
        bytes.unwrap_or_default()
    }

    /// Reads it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes are no job of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(&BytesMut::from(bytes))
    }
}

/// The bulk jobs of a partition, in the order of their numbers, and which of them have changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bulks {
    jobs: Vec<BulkJob>,
    changed: BTreeSet<u32>,
}

impl Bulks {
    /// Those that were stored, in any order.
    pub fn stored(mut jobs: Vec<BulkJob>) -> Self {
        jobs.sort_unstable_by_key(|job| job.number);
        Self { jobs, changed: BTreeSet::new() }
    }

    /// All of them.
    pub fn all(&self) -> &[BulkJob] {
        &self.jobs
    }

    /// The job of this number.
    pub fn get(&self, number: u32) -> Option<&BulkJob> {
        self.jobs.iter().find(|job| job.number == number)
    }

    /// The job of this name.
    pub fn find(&self, id: BulkId) -> Option<&BulkJob> {
        self.jobs.iter().find(|job| job.id == id)
    }

    /// The job that is at work on live timers, or on retained ones.
    pub fn at_work(&self, live: bool) -> Option<&BulkJob> {
        self.jobs.iter().find(|job| job.ended.is_none() && job.is_of_live() == live)
    }

    /// Whether the job of this number is at work.
    pub fn is_at_work(&self, number: u32) -> bool {
        [true, false].into_iter().any(|live| self.at_work(live).is_some_and(|job| job.number == number))
    }

    /// The mark of what comes now: 0 if no job is at work or waits.
    pub fn mark(&self) -> u32 {
        let is_under_way = self.jobs.iter().any(|job| job.ended.is_none());
        self.jobs.last().map_or(0, |job| if is_under_way { job.number } else { 0 })
    }

    /// How many are at work or wait.
    pub fn under_way(&self) -> usize {
        self.jobs.iter().filter(|job| job.ended.is_none()).count()
    }

    /// Files a job. The oldest one that has ended goes, if there are too many.
    pub fn begin(&mut self, id: BulkId, bulk: Bulk, now: Time) {
        // That of one that has ended is not given again: timers may have it as their mark.
        let number = self.jobs.last().map_or(0, |job| job.number).saturating_add(1);
        while self.jobs.len() >= MAX_BULK_JOBS
            && let Some(oldest) = self.least_wanted()
        {
            self.changed.insert(self.jobs.remove(oldest).number);
        }
        self.jobs.push(BulkJob::new(number, id, bulk, now));
        self.changed.insert(number);
    }

    /// The oldest one that has ended. Releases stay longest: an import is refused because of them.
    fn least_wanted(&self) -> Option<usize> {
        let oldest = |which: fn(&BulkJob) -> bool| self.jobs.iter().position(which);
        let other = oldest(|job| job.ended.is_some() && !job.is_release());
        other.or_else(|| oldest(|job| job.ended.is_some()))
    }

    /// Changes the job of this number, if there is one.
    pub fn change(&mut self, number: u32, change: impl FnOnce(&mut BulkJob)) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.number == number) {
            change(job);
            self.changed.insert(number);
        }
    }

    /// The jobs that have changed since this was last asked, by number; `None`: gone.
    pub fn take_changes(&mut self) -> Vec<(u32, Option<BulkJob>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|number| (number, self.get(number).cloned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::limits::MAX_FILTER_BYTES;
    use mtimer_types::{BulkAction, Filter};

    use super::*;

    fn bulk(action: BulkAction) -> Bulk {
        Bulk::new(action, Filter::default())
    }

    fn begun(count: usize) -> Bulks {
        let mut bulks = Bulks::default();
        (0..count).for_each(|n| bulks.begin(BulkId(n as u128), bulk(BulkAction::Cancel), Time::ZERO));
        bulks
    }

    #[test]
    fn the_largest_job_is_read_as_it_was_written() {
        let mut job =
            BulkJob::new(u32::MAX, BulkId(u128::MAX), bulk(BulkAction::Shift { ms: i64::MIN }), Time::MAX);
        job.bulk.filter.key_prefix = Some("x".repeat(MAX_FILTER_BYTES));
        (job.bulk.from, job.bulk.retrying) = (Time::MAX, Some(true));
        job.ended = Some((Time::MAX, BulkEnd::Stopped));
        job.at = BulkPlace::Pending((Time::MAX, TimerId::from_u128(u128::MAX)));
        (0..150).for_each(|n| job.note(TimerId::from_u128(u128::MAX - n), Some(BulkObstacle::TooFar)));
        assert_eq!((job.not_done, job.failures.len()), (150, MAX_BULK_FAILURES));
        let bytes = job.to_bytes();
        assert!(bytes.len() < 8 * 1024, "it has {} bytes", bytes.len());
        assert_eq!(BulkJob::from_bytes(&bytes), Ok(job));
        assert!(BulkJob::from_bytes(&bytes[1..]).is_err());
        assert!(BulkJob::from_bytes(b"").is_err());
    }

    #[test]
    fn a_number_is_given_once_although_the_newest_job_goes() {
        let mut bulks = begun(MAX_BULK_JOBS);
        let newest = MAX_BULK_JOBS as u32;
        bulks.change(newest, |job| job.ended = Some((Time::ZERO, BulkEnd::Stopped)));
        bulks.begin(BulkId(99), bulk(BulkAction::Cancel), Time::ZERO);
        assert_eq!((bulks.get(newest), bulks.mark()), (None, newest + 1));
        assert_eq!(bulks.find(BulkId(99)).map(|job| job.number), Some(newest + 1));
    }

    #[test]
    fn changes_are_those_since_they_were_last_taken() {
        let mut bulks = begun(MAX_BULK_JOBS);
        assert_eq!(bulks.take_changes().len(), MAX_BULK_JOBS);
        assert_eq!(bulks.take_changes(), []);
        bulks.change(3, |job| job.ended = Some((Time::ZERO, BulkEnd::Done)));
        bulks.change(77, |_| unreachable!("there is none"));
        bulks.begin(BulkId(99), bulk(BulkAction::Purge), Time::ZERO);
        let changes = bulks.take_changes();
        let number = MAX_BULK_JOBS as u32 + 1;
        assert_eq!(changes, [(3, None), (number, bulks.get(number).cloned())]);
        let stored = Bulks::stored(bulks.all().iter().rev().cloned().collect());
        assert_eq!(stored, bulks, "in any order");
    }

    #[test]
    fn one_of_each_kind_is_at_work() {
        let mut bulks = begun(2);
        bulks.begin(BulkId(3), bulk(BulkAction::Replay), Time::ZERO);
        bulks.begin(BulkId(4), bulk(BulkAction::Purge), Time::ZERO);
        assert_eq!((1..=5).filter(|n| bulks.is_at_work(*n)).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((bulks.mark(), bulks.under_way()), (4, 4));
        for number in [1, 3, 4] {
            bulks.change(number, |job| job.ended = Some((Time::ZERO, BulkEnd::Done)));
        }
        assert_eq!((1..=5).filter(|n| bulks.is_at_work(*n)).collect::<Vec<_>>(), [2]);
        assert_eq!((bulks.mark(), bulks.under_way()), (4, 1), "the newest number, ended or not");
        bulks.change(2, |job| job.ended = Some((Time::ZERO, BulkEnd::Done)));
        assert_eq!((bulks.mark(), bulks.under_way()), (0, 0));
    }
}
