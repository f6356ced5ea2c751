//! What a bulk job does with a timer in every place.

use mtimer_types::{Bulk, BulkAction, BulkId, Filter, ImportId, Target, Time, Timer};

use super::super::kit::Kit;
use super::super::pair::Pair;
use super::super::values::{DAY, SECOND, unique};
use super::{SPOTS, Spot, by_key, reschedule};
use crate::Op;
use crate::bulk::BulkPlace;
use crate::ops::{BeginBulk, BulkAct, BulkAdvance, Park, Unpark};

/// Makes the operation under test, given the timer, now, and the number of the job.
type FormOfJob<'a> = &'a (dyn Fn(&Timer, Time, u32) -> Op + Sync);

/// For each action and each form, puts a timer in each spot, begins a job about these timers, and
/// applies the form twice.
async fn with_a_job_on_every_spot(kit: Kit, actions: &[BulkAction], forms: &[FormOfJob<'_>]) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let mut cases = Vec::new();
    for action in actions {
        for form in forms {
            let prefix = format!("{}/", cases.len());
            let timer = |spot: &Spot| {
                let (due, key) = (spot.due(now), pair.kit.key(&format!("{prefix}{spot:?}/")));
                let timer = if spot.at_most_once() { pair.kit.amo(due) } else { pair.kit.timer(due) };
                (*spot, Timer { key: Some(key), deadline: Some(due + 11 * DAY), ..timer })
            };
            let timers: Vec<(Spot, Timer)> = SPOTS.iter().map(timer).collect();
            cases.push((action, form, prefix, timers));
        }
    }
    let timers = || cases.iter().flat_map(|(.., timers)| timers);
    let ops = timers().flat_map(|(spot, timer)| spot.before(timer)).collect();
    let called = pair.call(Some(now), ops);
    pair.settle(called).await.unwrap();
    pair.takeover(None).await.unwrap();
    pair.kit.now = now + 1;
    pair.apply(timers().flat_map(|(spot, timer)| spot.after(timer, now)).collect()).await.unwrap();
    for (action, form, prefix, timers) in &cases {
        let filter = Filter { key_prefix: Some(prefix.clone()), ..Filter::default() };
        let begin = BeginBulk { id: BulkId(unique().into()), bulk: Bulk::new(**action, filter).into() };
        pair.apply(vec![begin.into()]).await.unwrap();
        let number = pair.model.jobs.last().unwrap().number;
        for (spot, timer) in timers {
            for _ in 0..2 {
                let op = form(timer, now, number);
                let mut done = pair.apply(vec![op.clone()]).await;
                if done.is_ok() {
                    done = pair.check_get(&Target::Id(timer.id)).await;
                }
                if done.is_ok() {
                    done = pair.check_get(&by_key(timer)).await;
                }
                done.unwrap_or_else(|e| panic!("{op:?} in spot {spot:?}, with a job of {action:?}: {e}"));
            }
        }
        let end = BulkAdvance { number, to: BulkPlace::End, met: 0 };
        pair.apply(vec![end.into()]).await.unwrap();
    }
    pair.check_all().await.unwrap();
}

pub(in crate::conformance) async fn bulk_act(kit: Kit) {
    let now = kit.now;
    let act = |timer: &Timer, number, sent_attempt, is_begun| {
        BulkAct { number, id: timer.id, sent_attempt, is_begun, adds: false }.into()
    };
    let actions = [
        BulkAction::Cancel,
        BulkAction::Shift { ms: DAY as i64 },
        BulkAction::Shift { ms: -(DAY as i64) },
        BulkAction::MoveTo { due: now + 11 * DAY + 5 * SECOND },
        BulkAction::Replay,
        BulkAction::Purge,
        BulkAction::Release { import: ImportId(1) },
        BulkAction::Withdraw { import: ImportId(1) },
    ];
    let forms: [FormOfJob<'_>; 2] =
        [&|t, _, number| act(t, number, None, false), &|t, _, number| act(t, number, Some(1), true)];
    with_a_job_on_every_spot(kit, &actions, &forms).await;
}

pub(in crate::conformance) async fn moves_while_a_bulk_job_is_at_work(kit: Kit) {
    let actions = [
        BulkAction::Cancel,
        BulkAction::Shift { ms: -(20 * DAY as i64) },
        BulkAction::MoveTo { due: kit.now + 11 * DAY + 5 * SECOND },
        BulkAction::Purge,
        BulkAction::Release { import: ImportId(1) },
        BulkAction::Withdraw { import: ImportId(1) },
    ];
    let forms: [FormOfJob<'_>; 4] = [
        &|t, now, _| reschedule(t.id, now + 3 * DAY, false),
        &|t, now, _| reschedule(t.id, now + 30 * DAY, false),
        &|t, now, _| Op::Unpark(Unpark { id: t.id, fire: now }),
        &|t, _, _| Op::Park(Park { id: t.id, failed: 1 }),
    ];
    with_a_job_on_every_spot(kit, &actions, &forms).await;
}
