//! Bulk jobs are the next owner's, with the marks of timers.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use mtimer_store::ops::{BeginBulk, BulkAct, BulkActAnswer};
use mtimer_store::{AcquireError, Answer, BulkJob, Call, CallAnswer, Op, StoreError};
use mtimer_store_redis::test_support::Server;
use mtimer_types::{Bulk, BulkAction, BulkId, Filter, Target, Timer};
use support::owner::{Owner, now, schedule, timer, try_acquire};

const KEY: &str = "bulk:{2}:t";
const DAY: u64 = 86_400_000;

fn begin(id: u128) -> Op {
    let bulk = Bulk::new(BulkAction::Shift { ms: 1_000 }, Filter::default());
    BeginBulk { id: BulkId(id), bulk: bulk.into() }.into()
}

async fn jobs(owner: &Owner) -> Vec<BulkJob> {
    match owner.lane.call(Call::Controls).await.unwrap() {
        CallAnswer::Controls(controls) => controls.bulks.all().to_vec(),
        other => panic!("{other:?}"),
    }
}

async fn mark(owner: &Owner, timer: &Timer) -> u32 {
    let (record, _) = owner.lane.get(Target::Id(timer.id)).await.unwrap().unwrap();
    record.extensions.bulk_mark()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_marks_survive_a_takeover() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let due = now() + DAY;
    let [before, during, late] = [timer(due, 5), timer(due, 5), timer(due, 5)];
    owner.one(schedule(&before)).await;
    assert!(!server.keys().iter().any(|key| key == KEY), "without jobs there is no key");
    let act = BulkAct { number: 1, id: before.id, sent_attempt: None, is_begun: false, adds: false }.into();
    let answers = owner.apply(vec![begin(1), schedule(&during), act]).await;
    assert_eq!(answers[2], Answer::BulkAct(BulkActAnswer::Moved { due: due + 1_000 }));
    let ours = jobs(&owner).await;
    assert_eq!(ours.iter().map(|job| (job.number, job.done)).collect::<Vec<_>>(), [(1, 1)]);

    let next = Owner::of(owner.store.clone()).await;
    assert_eq!(jobs(&next).await, ours);
    assert_eq!((mark(&next, &before).await, mark(&next, &during).await), (1, 1));
    next.apply(vec![begin(2), schedule(&late)]).await;
    assert_eq!(mark(&next, &late).await, 2);
    let numbers: Vec<_> = jobs(&next).await.iter().map(|job| (job.number, job.id)).collect();
    assert_eq!(numbers, [(1, BulkId(1)), (2, BulkId(2))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_job_is_not_passed_over() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    owner.one(begin(1)).await;
    server.call::<()>(&["HSET", KEY, "1", "no job"]);
    let error = try_acquire(&*owner.store).await.err();
    let Some(AcquireError::Store(StoreError::Unusable(why))) = error else { panic!("{error:?}") };
    assert!(why.contains("the bulk job 1 in bulk:{2}:t is damaged"), "{why}");
    server.call::<()>(&["HDEL", KEY, "1"]);
    assert_eq!(jobs(&Owner::of(owner.store.clone()).await).await, Vec::new());
}
