//! Bulk jobs are there again when a directory is opened again.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::path::Path;
use std::sync::Arc;

use mtimer_store::ops::{BeginBulk, BulkAct, BulkActAnswer, BulkAdvance, MoveAnswer, Schedule, StopBulk};
use mtimer_store::{Acquire, Answer, Batch, BulkEnd, BulkJob, BulkPlace, Call, CallAnswer, Lane, Op, Store};
use mtimer_store_embedded::{EmbeddedOptions, EmbeddedStore, SpaceLimits, repair};
use mtimer_types::limits::MAX_BULK_JOBS;
use mtimer_types::{
    Bulk, BulkAction, BulkId, Destination, Filter, KeyPolicy, Nonce, PartitionId, Target, Time, Timer,
    TimerId,
};

const P: PartitionId = PartitionId(1);
const NOW: Time = Time::from_ms(1_900_000_000_000);
/// How full the disk of the machine is does not matter.
const ANY_SPACE: SpaceLimits = SpaceLimits { watermark: 0, reserve: 0 };

struct Open {
    store: EmbeddedStore,
    lane: Arc<dyn Lane>,
}

impl Open {
    async fn new(path: &Path) -> Self {
        let options = EmbeddedOptions { space: ANY_SPACE, ..EmbeddedOptions::new(path, 4) };
        let store = EmbeddedStore::open(options).unwrap();
        let owner = store.owner(P).await.unwrap();
        let request = Acquire {
            partition: P,
            expected: owner.epoch,
            floor: owner.epoch,
            nonce: Nonce(owner.epoch.0 + 1),
            term: owner.term,
            version: owner.version + 1,
        };
        let lane = store.acquire(request).await.unwrap_or_else(|error| panic!("{error}")).lane;
        Self { store, lane }
    }

    async fn apply(&self, ops: Vec<Op>) -> Vec<Answer> {
        self.lane.apply(Batch { now: NOW, claim: None, ops }).await.unwrap()
    }

    async fn jobs(&self) -> Vec<BulkJob> {
        match self.lane.call(Call::Controls).await.unwrap() {
            CallAnswer::Controls(controls) => controls.bulks.all().to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// The mark of a timer.
    async fn mark(&self, timer: &Timer) -> u32 {
        let (record, _) = self.lane.get(Target::Id(timer.id)).await.unwrap().unwrap();
        record.extensions.bulk_mark()
    }
}

fn timer(n: u64) -> Timer {
    let due = NOW + 60_000;
    Timer::new(TimerId::new(due, NOW, P, n), Destination::new("orders", "billing").unwrap(), due)
}

fn schedule(timer: &Timer) -> Op {
    Schedule::new(timer.clone().into(), KeyPolicy::Create).into()
}

fn begin(id: u128, action: BulkAction) -> Op {
    BeginBulk { id: BulkId(id), bulk: Bulk::new(action, Filter::default()).into() }.into()
}

fn stop(id: u128) -> Op {
    StopBulk { id: BulkId(id), group: None, app: None }.into()
}

#[tokio::test]
async fn jobs_and_marks_survive_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let (before, during) = (timer(1), timer(2));
    let open = Open::new(dir.path()).await;
    open.apply(vec![schedule(&before), begin(1, BulkAction::Shift { ms: 1_000 }), schedule(&during)]).await;
    let act = BulkAct { number: 1, id: before.id, sent_attempt: None, is_begun: false, adds: false }.into();
    let moved = Answer::BulkAct(BulkActAnswer::Moved { due: before.due + 1_000 });
    assert_eq!(open.apply(vec![act, begin(2, BulkAction::Purge)]).await[0], moved);
    let jobs = open.jobs().await;
    assert_eq!(jobs.iter().map(|job| (job.number, job.done)).collect::<Vec<_>>(), [(1, 1), (2, 0)]);
    open.store.close().await;

    let open = Open::new(dir.path()).await;
    assert_eq!(open.jobs().await, jobs);
    assert_eq!((open.mark(&before).await, open.mark(&during).await), (1, 1));
    let (end, late) = (BulkAdvance { number: 1, to: BulkPlace::End, met: 0 }, timer(3));
    let answers = open.apply(vec![end.into(), schedule(&late)]).await;
    assert_eq!(answers[0], Answer::BulkAdvance(MoveAnswer::Done));
    open.store.close().await;

    // A repair keeps them, too, if there is anything to repair.
    assert!(repair(dir.path(), false).unwrap().is_clean());
    let open = Open::new(dir.path()).await;
    let ended: Vec<_> = open.jobs().await.into_iter().map(|job| job.ended).collect();
    assert_eq!(ended, [Some((NOW, BulkEnd::Done)), None]);
    assert_eq!(open.mark(&late).await, 2, "the second job is under way");
    open.store.close().await;
}

#[tokio::test]
async fn the_oldest_that_has_ended_is_gone_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let open = Open::new(dir.path()).await;
    let newest = MAX_BULK_JOBS as u128 + 3;
    for id in 1..=newest {
        open.apply(vec![begin(id, BulkAction::Cancel), stop(id)]).await;
    }
    open.store.close().await;
    let open = Open::new(dir.path()).await;
    let ids: Vec<_> = open.jobs().await.into_iter().map(|job| job.id.0).collect();
    assert_eq!(ids, (4..=newest).collect::<Vec<_>>());
    open.apply(vec![begin(100, BulkAction::Cancel)]).await;
    assert_eq!(u128::from(open.jobs().await.last().unwrap().number), newest + 1);
    open.store.close().await;
}
