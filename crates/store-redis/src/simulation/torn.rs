//! An owner that dies while its last write is cut off half way: nobody completes that.
//!
//! Each timer is then as it was before the write or as it would be behind it, a look-up by key
//! gives the result from before or after one of the operations, keys that are taken name a live
//! timer, and when all timers have ended nothing is left of them but entries of listings. Bulk jobs
//! are as they would be behind the write only if all of it is there.

use std::collections::BTreeMap;
use std::time::Duration;

use mtimer_store::conformance::model::Model;
use mtimer_store::ops::{Purge, Schedule};
use mtimer_store::{Answer, Batch, Counts, Op, Place, Record, ScheduleAnswer, Verdict};
use mtimer_types::{KeyPolicy, Target, Time, Timer, TimerId};

use super::arbitrary::{DAY, PARTITION};
use super::compare::plain;
use super::run::{Check, Run, acquire_next, alive, block_on, pass, same, withdrawal};
use crate::partition::handed::HandedOver;
use crate::partition::turn::changes_mark;

/// Longer than a lane that lives takes for a batch.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(60);

fn row(model: &Model, id: TimerId) -> Option<(Record, Place)> {
    model.timers.get(&id).map(|entry| (plain(entry.record(), entry.place), entry.place))
}

/// One run.
pub(super) fn dies(seed: u64) -> Check {
    block_on(async {
        let mut run = Run::new(seed, 0).await?;
        run.calls(30).await?;
        let mut ops: Vec<Op> = (0..3).map(|_| run.op(20)).collect();
        // One write: see `turn_length`.
        if let Some(last) = ops.iter().position(changes_mark) {
            ops.truncate(last + 1);
        }
        let steps = run.random.below(12) as usize;
        run.server.state().last_steps = Some(steps);
        let mut states = vec![run.model.clone()];
        for op in &ops {
            let mut next = states[states.len() - 1].clone();
            next.apply(run.now, op);
            states.push(next);
        }
        let batch = Batch { now: run.now, claim: None, ops: ops.clone() };
        let answer = tokio::time::timeout(DEAD_AFTER, run.owner.apply(batch, HandedOver::now())).await;
        if !run.server.state().is_dead() {
            return Ok(());
        }
        drop(answer);
        let epoch = run.owner.epoch();
        run.owner = acquire_next(&run.server, &run.shared, epoch, epoch, &mut run.random).await?;
        survives(&mut run, &states).await.map_err(|why| format!("after {steps} steps of {ops:?}: {why}"))
    })
}

/// `states`: the model before the write, and behind each operation.
async fn survives(run: &mut Run, states: &[Model]) -> Check {
    is_counted(run).await?;
    let bulks_are_stored = bulks_are_stored(run, states).await?;
    let after = &states[states.len() - 1];
    for timer in run.timers.clone() {
        let Some(key) = timer.key else { continue };
        let holders: Vec<_> = states.iter().map(|state| state.holder(&timer.dest, &key)).collect();
        let found = alive(run.owner.get(Target::Key(timer.dest, key.clone())).await)?;
        let found = found.map(|(record, _)| record.timer.id);
        same(
            &format!("whether {found:?} of {key:?} is one of {holders:?}"),
            &holders.contains(&found),
            &true,
        )?;
    }
    let mut ids = Vec::new();
    for timer in run.timers.clone() {
        ids.push(timer.id);
        let seen = alive(run.owner.get(Target::Id(timer.id)).await)?;
        let seen = seen.map(|(record, place)| (plain(record, place), place));
        let (before, behind) = (row(&states[0], timer.id), row(after, timer.id));
        if seen != before || bulks_are_stored {
            same(&format!("{} if it is not as before: {before:?}", timer.id), &seen, &behind)?;
        }
        if timer.key.is_some() {
            ids.extend(takes_its_key(run, timer).await?);
        }
    }
    for id in ids {
        let found = alive(run.owner.get(Target::Id(id)).await)?;
        let ops = match found.and_then(|(record, _)| record.extensions.staging()) {
            Some(staging) => withdrawal(alive(run.owner.controls().await)?.bulks.all(), id, staging.import),
            None => vec![Op::settle(id, Verdict::Ack), Op::Purge(Purge { id })],
        };
        alive(run.owner.apply(Batch { now: run.now, claim: None, ops }, HandedOver::now()).await)?;
    }
    // Beyond the slots of staged timers: one of those may be indexed and have nothing.
    let far = run.now + mtimer_types::limits::STAGED_MS + 4_000 * DAY;
    alive(run.owner.unload(Time::ZERO).await)?;
    same("what is loaded of timers that have ended", &run.load_all(far).await?, &Default::default())?;
    // An entry of a listing may be left of a timer that is elsewhere: listings pass it over.
    let keys = run.server.state().data.keys();
    let is_left = |key: &&String| {
        ["slot:", "moved:", "key:", "zset:", "list:", "copy:", "retry"].iter().any(|of| key.starts_with(of))
    };
    same("what is left", &keys.iter().filter(is_left).collect::<Vec<_>>(), &Vec::new())
}

/// Whether the bulk jobs are as behind the write, and were others before. Else they are as before.
async fn bulks_are_stored(run: &mut Run, states: &[Model]) -> Check<bool> {
    let (before, behind) = (&states[0].jobs, &states[states.len() - 1].jobs);
    let mut jobs = alive(run.owner.controls().await)?.bulks.all().to_vec();
    if jobs == *before {
        return Ok(false);
    }
    // The one that went may be left.
    jobs.retain(|job| behind.iter().any(|other| other.number == job.number));
    same("the bulk jobs", &jobs, behind)?;
    Ok(true)
}

/// Compares the counts of destinations with where the timers are. An entry of a park may be left of
/// a timer that is elsewhere, so there may be more parked ones.
async fn is_counted(run: &mut Run) -> Check {
    let mut expected = BTreeMap::<_, Counts>::new();
    for timer in &run.timers {
        let Some((_, place)) = alive(run.owner.get(Target::Id(timer.id)).await)? else { continue };
        let counts = expected.entry(timer.dest.clone()).or_default();
        *match place {
            Place::Pending { fire, .. } if fire.is_staged() => &mut counts.staged,
            Place::Pending { tier: 0, .. } => &mut counts.pending,
            Place::Pending { .. } => &mut counts.retrying,
            Place::Parked => &mut counts.parked,
            Place::Taken { unconfirmed: false, .. } => &mut counts.taken,
            Place::Taken { unconfirmed: true, .. } => &mut counts.unconfirmed,
            Place::Dead => &mut counts.dead,
        } += 1;
    }
    let mut counted: BTreeMap<_, _> = run.counts().await?.into_iter().collect();
    for (dest, counts) in &mut counted {
        let parked = expected.get(dest).map_or(0, |counts| counts.parked);
        same(&format!("whether all that is parked of {dest} is counted"), &(counts.parked >= parked), &true)?;
        counts.parked = parked;
    }
    counted.retain(|_, counts| counts.total() > 0);
    same("the counts after a write that was cut off", &counted, &expected)
}

/// Schedules a timer with a key that may be taken: the timer, unless it is.
async fn takes_its_key(run: &mut Run, like: Timer) -> Check<Option<TimerId>> {
    let id = TimerId::new(like.due, run.now, PARTITION, run.random.next_u64());
    let timer = Timer { id, ..like };
    let op = Op::Schedule(Schedule::new(timer.clone().into(), KeyPolicy::Create));
    let answers =
        alive(run.owner.apply(Batch { now: run.now, claim: None, ops: vec![op] }, HandedOver::now()).await)?;
    match answers[..] {
        [Answer::Schedule(ScheduleAnswer::Scheduled { .. })] => Ok(Some(id)),
        [Answer::Schedule(ScheduleAnswer::KeyTaken(holder))] => {
            let holder = alive(run.owner.get(Target::Id(holder)).await)?;
            let is_held = holder.as_ref().is_some_and(|(record, place)| {
                record.timer.key == timer.key
                    && !matches!(place, Place::Dead | Place::Taken { unconfirmed: true, .. })
            });
            same(&format!("whether {holder:?} holds the key {:?}", timer.key), &is_held, &true)?;
            Ok(None)
        }
        _ => Err(format!("a schedule was answered {answers:?}")),
    }
}

#[test]
fn what_a_dying_owner_leaves_is_whole() {
    pass("what_a_dying_owner_leaves_is_whole", dies);
}
