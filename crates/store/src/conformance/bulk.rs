//! Bulk jobs: each meets every timer that matches once, whoever owns the partition.

mod acts;
mod first;
mod jobs;

use mtimer_types::{Bulk, BulkAction, BulkId, BulkObstacle, Filter, TimerId};

pub(super) use self::acts::*;
pub(super) use self::first::*;
pub(super) use self::jobs::*;
use super::owner::Owner;
use super::values::{HOUR, unique};
use crate::bulk::{BulkJob, BulkPlace};
use crate::ops::{BeginBulkAnswer, BulkActAnswer, MoveAnswer};

const SHIFT: BulkAction = BulkAction::Shift { ms: HOUR as i64 };
const TOO_LATE: BulkActAnswer = BulkActAnswer::NotDone(BulkObstacle::TooLate);

/// A job on all timers.
fn all(action: BulkAction) -> Bulk {
    Bulk::new(action, Filter::default())
}

/// Begins a job and returns its number.
async fn begin(owner: &Owner, bulk: Bulk) -> u32 {
    assert_eq!(owner.begin_bulk(BulkId(unique().into()), bulk).await, BeginBulkAnswer::Begun);
    owner.bulks().await.last().unwrap().number
}

async fn begin_all(owner: &Owner, action: BulkAction) -> u32 {
    begin(owner, all(action)).await
}

async fn job(owner: &Owner, number: u32) -> BulkJob {
    owner.bulks().await.into_iter().find(|job| job.number == number).expect("the job is there")
}

/// On how many timers a job has acted, and on how many it could not.
async fn counts(owner: &Owner, number: u32) -> (u64, u64) {
    let job = job(owner, number).await;
    (job.done, job.not_done)
}

async fn end(owner: &Owner, number: u32) {
    assert_eq!(owner.bulk_advance(number, BulkPlace::End, 0).await, MoveAnswer::Done);
}

async fn mark(owner: &Owner, id: TimerId) -> u32 {
    owner.record(id).await.extensions.bulk_mark()
}
