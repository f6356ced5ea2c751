//! Bulk jobs: one action on every timer that matches. A job is filed in every partition under the
//! same id; what the partitions tell of it is added up.
//!
//! Not in here: the work, which the owners of the partitions do, whether a client is there or not.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use mtimer_protocol::ops::{self, BeginBulkReply};
use mtimer_protocol::{BulkState, BulkView, Query, QueryAnswer};
use mtimer_types::limits::MAX_BULK_FAILURES;
use mtimer_types::{Bulk, BulkFailure, BulkId, PartitionId, Time};

use crate::{BulkError, Client, RequestError};

/// Says how far a bulk job has come: the sums over all partitions.
///
/// Partitions are asked at different times, so the sums show no one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkProgress {
    /// The job's id.
    pub id: BulkId,
    /// What it does.
    pub bulk: Bulk,
    /// [`BulkState::Waiting`] until it works or has ended in a partition, then
    /// [`BulkState::Working`] until it has ended in all that have it. [`BulkState::Stopped`]: it was
    /// stopped in one of them at least.
    pub state: BulkState,
    /// Partitions of the cluster.
    pub partitions: u16,
    /// Partitions in which it has ended.
    pub ended_partitions: u16,
    /// Partitions that do not have it. Either it was not begun there, because a
    /// [`Client::begin_bulk`] has failed, or they have forgotten it: each keeps the last 16 jobs.
    pub missing: u16,
    /// When the first partition got it.
    pub begun: Time,
    /// When it ended in the last of the partitions that have it.
    pub ended: Option<Time>,
    /// On how many timers it has acted; of a dry run: on how many it would.
    pub done: u64,
    /// On how many it could not.
    pub not_done: u64,
    /// The first 100 of these, in the order of partitions.
    pub failures: Vec<BulkFailure>,
}

impl BulkProgress {
    /// Says whether it has come to its end, or was stopped, in every partition that has it.
    pub const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

impl Client {
    /// Has brokers do one action on every timer that matches: cancel, move, replay or purge them.
    ///
    /// Returns when every partition has the job. Brokers do it from then on, also if this client
    /// ends; [`Client::bulk`] tells how far it is. It acts once on each timer that there is when its
    /// partition gets the job, by the rules of the request for a single timer, and on none that is
    /// scheduled later.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use mtimer_client::{Bulk, BulkAction, Client, Destination, Filter};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), Box<dyn std::error::Error>> {
    /// let imported = Filter { header: Some(("import".into(), "7".into())), ..Filter::of(orders) };
    /// let id = client.begin_bulk(Bulk::new(BulkAction::Cancel, imported)).await?;
    /// while let Some(job) = client.bulk(id).await?.filter(|job| !job.has_ended()) {
    ///     println!("{} cancelled, {} too late", job.done, job.not_done);
    ///     tokio::time::sleep(Duration::from_millis(500)).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BulkError`]. Unless [`BulkError::has_no_side_effects`], some partitions have the job: the
    /// error names its id, for [`Client::begin_bulk_as`] or [`Client::stop_bulk`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing, but some partitions may have the job, and nobody its id.
    /// Use [`Client::begin_bulk_as`] if that can happen.
    pub async fn begin_bulk(&self, bulk: Bulk) -> Result<BulkId, BulkError> {
        let id = BulkId(rand::random());
        self.begin_bulk_as(id, bulk).await.map(|()| id)
    }

    /// Begins a bulk job under an id of one's own, which must be random, or begins it again after
    /// an error: partitions that have a job of this id keep it as it is.
    ///
    /// # Errors
    ///
    /// [`BulkError`]. The same job can be begun again under its id, soon: each partition remembers
    /// its last 16 jobs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; some partitions may have the job all the same.
    pub async fn begin_bulk_as(&self, id: BulkId, bulk: Bulk) -> Result<(), BulkError> {
        bulk.check(self.now())?;
        let begin = |partition| ops::BeginBulk { partition, id, bulk: Box::new(bulk.clone()) };
        let (mut begun, mut most, mut failed) = (0, None, Failed::default());
        for reply in self.state().request_all(self.all_partitions().map(begin)).await {
            match reply {
                Ok(BeginBulkReply::Begun) => begun += 1,
                Ok(BeginBulkReply::TooMany(jobs)) => most = most.max(Some(jobs)),
                Err(error) => failed.add(error),
            }
        }
        match (failed.0, most) {
            (Some(error), _) => Err(BulkError::Request { id, begun, error }),
            (None, Some(jobs)) => Err(BulkError::TooMany { id, begun, jobs }),
            (None, None) => Ok(()),
        }
    }

    /// Returns how far a bulk job has come; `None` if no partition has it, or the token may not read
    /// all that it is about.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a partition could not be asked. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the questions back.
    pub async fn bulk(&self, id: BulkId) -> Result<Option<BulkProgress>, RequestError> {
        Ok(self.sums(|view| view.id == id).await?.pop())
    }

    /// Returns all bulk jobs that partitions have, oldest first: those under way, and the last ones
    /// that have ended. Jobs about destinations that the token may not read are left out.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a partition could not be asked. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the questions back.
    pub async fn bulks(&self) -> Result<Vec<BulkProgress>, RequestError> {
        self.sums(|_| true).await
    }

    /// Ends a bulk job before its end, in every partition, and returns how far it has come. What it
    /// has done stays done. `None`: see [`Client::bulk`].
    ///
    /// A [`Client::begin_bulk`] of this job that is still under way may begin it in further
    /// partitions.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a partition could not be asked: the job may go on there. It can be
    /// repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; the job may be stopped in some partitions, or in all.
    pub async fn stop_bulk(&self, id: BulkId) -> Result<Option<BulkProgress>, RequestError> {
        let Some(found) = self.bulk(id).await? else { return Ok(None) };
        let (group, app) = (found.bulk.filter.group, found.bulk.filter.app);
        let stop = |partition| ops::StopBulk { partition, id, group: group.clone(), app: app.clone() };
        // Also where it is missing: it may have been begun there since.
        let mut failed = Failed::default();
        for reply in self.state().request_all(self.all_partitions().map(stop)).await {
            if let Err(error) = reply {
                failed.add(error);
            }
        }
        match failed.0 {
            Some(error) => Err(error),
            None => self.bulk(id).await,
        }
    }

    fn all_partitions(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.info().partitions).map(PartitionId)
    }

    /// Asks every partition, and adds up what they tell of the jobs that are wanted, oldest first.
    async fn sums(&self, is_wanted: impl Fn(&BulkView) -> bool) -> Result<Vec<BulkProgress>, RequestError> {
        let partitions = self.info().partitions;
        let mut answers = self.ask_partitions(|partition| self.bulks_of_partition(partition));
        let mut sums = BTreeMap::new();
        while let Some(views) = answers.next().await {
            for view in views?.into_iter().filter(&is_wanted) {
                match sums.get_mut(&view.id) {
                    Some(sum) => add(sum, view),
                    None => _ = sums.insert(view.id, sum_of(view, partitions)),
                }
            }
        }
        let mut all: Vec<_> = sums.into_values().collect();
        all.sort_by_key(|job| job.begun);
        Ok(all)
    }

    async fn bulks_of_partition(&self, partition: u16) -> Result<Vec<BulkView>, RequestError> {
        match self.query(Query::Bulks { partition }).await? {
            QueryAnswer::Bulks(views) => Ok(views),
            _ => Err(RequestError::Mismatched),
        }
    }
}

/// The error of several partitions: the first one, but rather one after which something may have
/// been done.
#[derive(Default)]
pub(crate) struct Failed(Option<RequestError>);

impl Failed {
    pub(crate) fn into_error(self) -> Option<RequestError> {
        self.0
    }

    pub(crate) fn add(&mut self, error: RequestError) {
        let is_worse = |known: &RequestError| known.has_no_side_effects() && !error.has_no_side_effects();
        if self.0.as_ref().is_none_or(is_worse) {
            self.0 = Some(error);
        }
    }
}

/// What one partition tells of a job, the others having nothing of it.
fn sum_of(view: BulkView, partitions: u16) -> BulkProgress {
    let BulkView { id, bulk, state, begun, ended, done, not_done, failures } = view;
    BulkProgress {
        id,
        bulk,
        state,
        partitions,
        ended_partitions: u16::from(ended.is_some()),
        missing: partitions.saturating_sub(1),
        begun,
        ended,
        done,
        not_done,
        failures,
    }
}

/// Adds what another partition tells of the same job.
fn add(sum: &mut BulkProgress, view: BulkView) {
    sum.state = state_of_both(sum.state, view.state);
    sum.ended_partitions += u16::from(view.ended.is_some());
    sum.missing = sum.missing.saturating_sub(1);
    sum.begun = sum.begun.min(view.begun);
    sum.ended = sum.ended.zip(view.ended).map(|(a, b)| a.max(b));
    sum.done = sum.done.saturating_add(view.done);
    sum.not_done = sum.not_done.saturating_add(view.not_done);
    let room = MAX_BULK_FAILURES.saturating_sub(sum.failures.len());
    sum.failures.extend(view.failures.into_iter().take(room));
}

/// The state of a job that has one in some partitions and another in others.
const fn state_of_both(a: BulkState, b: BulkState) -> BulkState {
    match (a, b) {
        (BulkState::Waiting, BulkState::Waiting) => BulkState::Waiting,
        // It has begun somewhere, and goes on somewhere.
        (BulkState::Working | BulkState::Waiting, _) | (_, BulkState::Working | BulkState::Waiting) => {
            BulkState::Working
        }
        (BulkState::Stopped, _) | (_, BulkState::Stopped) => BulkState::Stopped,
        (BulkState::Done, BulkState::Done) => BulkState::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_at_work_while_it_is_anywhere_and_ends_as_the_worst_partition() {
        use BulkState::{Done, Stopped, Waiting, Working};
        for (states, sum) in [
            (&[Waiting, Waiting][..], Waiting),
            (&[Waiting, Done], Working),
            (&[Waiting, Stopped], Working),
            (&[Working, Waiting, Waiting], Working),
            (&[Stopped, Working], Working),
            (&[Done, Stopped, Done], Stopped),
            (&[Done, Done], Done),
        ] {
            let all = states.iter().copied();
            assert_eq!(all.clone().reduce(state_of_both), Some(sum), "{states:?}");
            assert_eq!(all.rev().reduce(state_of_both), Some(sum), "{states:?} backwards");
        }
    }

    #[test]
    fn an_error_after_which_something_may_be_done_goes_before_others() {
        let unknown = || RequestError::Unknown { reason: "late".to_owned() };
        let not_sent = |ms| RequestError::NotSent { ms, reason: "away".to_owned() };
        let of = |errors: Vec<RequestError>| {
            let mut failed = Failed::default();
            errors.into_iter().for_each(|error| failed.add(error));
            failed.0
        };
        assert_eq!(of(vec![]), None);
        assert_eq!(of(vec![not_sent(1), not_sent(2)]), Some(not_sent(1)));
        assert_eq!(of(vec![not_sent(1), unknown(), not_sent(2)]), Some(unknown()));
        assert_eq!(of(vec![unknown(), RequestError::Mismatched]), Some(unknown()));
    }
}
