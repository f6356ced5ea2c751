//! Bulk jobs, and the marks of timers, where a run does not get by itself.

use mtimer_store::ops::{BeginBulk, BulkAct, BulkActAnswer, Schedule, Take};
use mtimer_store::{Answer, Batch, BulkJob, Op};
use mtimer_types::{Bulk, BulkAction, BulkId, Filter, KeyPolicy, Mode, Target, Timer};

use super::run::{Check, Run, acquire_next, alive, block_on, empty, same, timer};
use super::torn::DEAD_AFTER;
use crate::partition::handed::HandedOver;

/// A job that cancels all timers.
fn begin(id: u128) -> Op {
    let bulk = Bulk::new(BulkAction::Cancel, Filter::default());
    BeginBulk { id: BulkId(id), bulk: bulk.into() }.into()
}

fn schedule(timer: &Timer) -> Op {
    Schedule::new(timer.clone().into(), KeyPolicy::Create).into()
}

fn at_most_once(random: u64) -> Timer {
    Timer { mode: Mode::AtMostOnce, ..timer(random, None) }
}

async fn apply(run: &mut Run, ops: Vec<Op>) -> Check<Vec<Answer>> {
    alive(run.owner.apply(Batch { ops, ..empty() }, HandedOver::now()).await)
}

/// The bulk jobs, as the owner has them, and as the next one finds them.
async fn jobs(run: &mut Run) -> Check<[Vec<BulkJob>; 2]> {
    let ours = alive(run.owner.controls().await)?.bulks.all().to_vec();
    let epoch = run.owner.epoch();
    run.owner = acquire_next(&run.server, &run.shared, epoch, epoch, &mut run.random).await?;
    Ok([ours, alive(run.owner.controls().await)?.bulks.all().to_vec()])
}

/// The mark of a timer.
async fn mark(run: &mut Run, timer: &Timer) -> Check<Option<u32>> {
    let found = alive(run.owner.get(Target::Id(timer.id)).await)?;
    Ok(found.map(|(record, _)| record.extensions.bulk_mark()))
}

/// The answer to a write that begins a job is lost.
pub(super) fn lost_answer() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        apply(&mut run, vec![begin(1)]).await?;
        // It is lost together with the one before; then both arrive.
        let before = run.server.state().data.clone();
        apply(&mut run, vec![schedule(&timer(1, None))]).await?;
        run.server.state().delay_next_write(before);
        apply(&mut run, vec![begin(2)]).await?;
        let late = timer(2, None);
        apply(&mut run, vec![schedule(&late)]).await?;
        same("the mark of a timer that was scheduled behind both", &mark(&mut run, &late).await?, &Some(2))?;
        let expected = [1, 2].map(|number| {
            let bulk = Bulk::new(BulkAction::Cancel, Filter::default());
            BulkJob::new(number, BulkId(number.into()), bulk, empty().now)
        });
        same("the jobs", &jobs(&mut run).await?, &[expected.to_vec(), expected.to_vec()])
    })
}

/// Timers that were scheduled while a job is under way are taken from the memory of a broker that
/// does not know of their marks.
pub(super) fn marked_timer() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let (before, marked) = (at_most_once(1), at_most_once(2));
        apply(&mut run, vec![schedule(&before), begin(1), schedule(&marked)]).await?;
        let take = |timer: &Timer| -> Op {
            Take { id: timer.id, failed: 0, timer: Some(timer.clone().into()) }.into()
        };
        apply(&mut run, vec![take(&before), take(&marked)]).await?;
        let act = |timer: &Timer| -> Op {
            BulkAct { number: 1, id: timer.id, sent_attempt: Some(1), is_begun: true, adds: false }.into()
        };
        let acts = vec![act(&before), act(&marked)];
        let expected = [BulkActAnswer::Stopped, BulkActAnswer::Passed].map(Answer::BulkAct);
        same("what the job does", &apply(&mut run, acts).await?, &expected.to_vec())?;
        for timer in [before, marked] {
            same("the mark of a taken timer", &mark(&mut run, &timer).await?, &Some(1))?;
        }
        let [ours, found] = jobs(&mut run).await?;
        same("the jobs of the next owner", &found, &ours)?;
        same("on how many it could not act", &found[0].not_done, &1)
    })
}

/// The owner dies while the write of a job's act on a timer is cut off, wherever that is: the job
/// counts the timer only if that is gone.
pub(super) fn torn_act() -> Check {
    (0..12).try_for_each(|steps| {
        block_on(async {
            let mut run = Run::new(1, 0).await?;
            let timer = timer(1, None);
            apply(&mut run, vec![schedule(&timer), begin(1)]).await?;
            run.server.state().last_steps = Some(steps);
            let act = BulkAct { number: 1, id: timer.id, sent_attempt: None, is_begun: false, adds: false };
            let batch = Batch { ops: vec![act.into()], ..empty() };
            _ = tokio::time::timeout(DEAD_AFTER, run.owner.apply(batch, HandedOver::now())).await;
            if !run.server.state().is_dead() {
                return Ok(());
            }
            let epoch = run.owner.epoch();
            run.owner = acquire_next(&run.server, &run.shared, epoch, epoch, &mut run.random).await?;
            let counted = alive(run.owner.controls().await)?.bulks.all().iter().any(|job| job.done == 1);
            let is_there = alive(run.owner.get(Target::Id(timer.id)).await)?.is_some();
            let what = format!("after {steps} steps, whether a timer that is there is counted as cancelled");
            same(&what, &(counted && is_there), &false)
        })
    })
}
