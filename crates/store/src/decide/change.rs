//! What clients and people ask for: schedule, cancel, reschedule, replay, purge, trim.

use std::sync::Arc;

use mtimer_types::{DeadReason, Ended, KeyPolicy, Target, Time, Timer, TimerId};

use super::steps::{dead_letter, end, file, resolve};
use super::table::{At, Context, Row, Table};
use crate::op::{Answer, CancelAnswer, RescheduleAnswer, Retained, ScheduleAnswer};
use crate::record::Record;

pub(super) fn schedule<T: Table>(
    table: &mut T,
    ctx: &Context,
    timer: &Arc<Timer>,
    policy: KeyPolicy,
) -> Result<ScheduleAnswer, T::Error> {
    if let Some(row) = table.row(timer.id)? {
        return Ok(if row.record.timer.same_content(timer) {
            ScheduleAnswer::Scheduled { new: false, replaced: None }
        } else {
            ScheduleAnswer::Conflict
        });
    }
    if let Some(how) = table.ended(timer.id, ctx.now)? {
        return Ok(ScheduleAnswer::Ended(how));
    }
    let mut replaced = None;
    if let Some(key) = &timer.key {
        if let Some(holder) = table.key(&timer.dest, key)? {
            match policy {
                KeyPolicy::Create => return Ok(ScheduleAnswer::KeyTaken(holder)),
                KeyPolicy::Keep => {
                    let row = table.row(holder)?;
                    let begun = row.is_none_or(|row| !has_not_begun(ctx, &row));
                    return Ok(ScheduleAnswer::Kept { id: holder, begun });
                }
                KeyPolicy::Replace => replaced = Some(holder),
            }
        }
        if let Some(holder) = replaced
            && let Some(row) = table.row(holder)?
        {
            end(table, ctx, &row, Some(Ended::Replaced))?;
        }
        table.set_key(&timer.dest, key, Some(timer.id))?;
    }
    file(table, ctx, None, Record::accepted(timer.clone(), ctx.now), timer.due, 0)?;
    Ok(ScheduleAnswer::Scheduled { new: true, replaced })
}

pub(super) fn cancel<T: Table>(
    table: &mut T,
    ctx: &Context,
    target: &Target,
    sent_attempt: Option<u32>,
) -> Result<CancelAnswer, T::Error> {
    let Some(id) = resolve(table, target)? else { return Ok(CancelAnswer::NotFound) };
    let Some(row) = table.row(id)? else { return cancel_unseen(table, ctx, id) };
    let under_way = sent_attempt.is_some_and(|attempt| attempt > row.record.progress.failed);
    // The cases of `Op::Cancel`. In the first arm nothing changes: dead, unconfirmed (never one
    // that this epoch has taken), taken in another epoch, or taken in this one and under way.
    match row.at {
        At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } if under_way || !ctx.has_taken(&row) => {
            Ok(CancelAnswer::TooLate(id))
        }
        _ if under_way => {
            let mut after = row.clone();
            after.record.progress.stopped = true;
            table.put(Some(&row), after)?;
            Ok(CancelAnswer::TooLate(id))
        }
        _ if untouched(ctx, &row) => {
            end(table, ctx, &row, Some(Ended::Cancelled))?;
            Ok(CancelAnswer::Cancelled(id))
        }
        _ => {
            let mut record = row.record.clone();
            let failed = record.attempt(ctx.covered(&row)).saturating_sub(1);
            record.progress.failed = failed;
            dead_letter(table, ctx, &row, record, DeadReason::Stopped)?;
            Ok(CancelAnswer::Died { id, failed })
        }
    }
}

/// A cancel that overtook its schedule must win over it.
fn cancel_unseen<T: Table>(table: &mut T, ctx: &Context, id: TimerId) -> Result<CancelAnswer, T::Error> {
    match table.ended(id, ctx.now)? {
        Some(Ended::Cancelled) => Ok(CancelAnswer::Cancelled(id)),
        Some(Ended::Acknowledged | Ended::Replaced | Ended::Expired | Ended::Dead) => {
            Ok(CancelAnswer::NotFound)
        }
        Some(Ended::CancelledUnseen) | None => {
            table.set_ended(id, Ended::CancelledUnseen, ctx.now)?;
            Ok(CancelAnswer::NotFound)
        }
    }
}

pub(super) fn reschedule<T: Table>(
    table: &mut T,
    ctx: &Context,
    target: &Target,
    due: Time,
    is_begun: bool,
) -> Result<RescheduleAnswer, T::Error> {
    let Some(id) = resolve(table, target)? else { return Ok(RescheduleAnswer::NotFound) };
    let Some(row) = table.row(id)? else { return Ok(RescheduleAnswer::NotFound) };
    if is_begun || !has_not_begun(ctx, &row) {
        return Ok(RescheduleAnswer::TooLate(id));
    }
    if row.record.timer.is_past_deadline(due) {
        return Ok(RescheduleAnswer::PastDeadline(id));
    }
    let mut record = row.record.clone();
    record.reschedule(due, ctx.now);
    file(table, ctx, Some(&row), record, due, 0)?;
    Ok(RescheduleAnswer::Rescheduled(id))
}

/// The timer waits for its first delivery, as far as the store knows.
fn has_not_begun(ctx: &Context, row: &Row) -> bool {
    matches!(row.at, At::Pending { .. } | At::Parked) && untouched(ctx, row)
}

/// The next delivery is the first, and the timer was not stopped. Unless the caller knows of a
/// delivery under way, none can have been started, in whatever epoch.
fn untouched(ctx: &Context, row: &Row) -> bool {
    row.record.attempt(ctx.covered(row)) == 1 && !row.record.progress.stopped
}

pub(super) fn replay<T: Table>(
    table: &mut T,
    ctx: &Context,
    id: TimerId,
    fire: Time,
) -> Result<Answer, T::Error> {
    let Some(row) = table.row(id)? else { return Ok(Answer::Gone) };
    let unconfirmed = match row.at {
        At::Dead { .. } => false,
        At::Unconfirmed { .. } => true,
        At::Pending { .. } => return Ok(Answer::Done),
        At::Parked | At::Taken { .. } => return Ok(Answer::Gone),
    };
    if let Some((dest, key)) = row.key() {
        match table.key(dest, key)? {
            Some(holder) if holder != id => return Ok(Answer::KeyTaken(holder)),
            _ => table.set_key(dest, key, Some(id))?,
        }
    }
    let mut record = row.record.clone();
    record.progress.failed = record.progress.failed.saturating_add(u32::from(unconfirmed));
    record.progress.budget_from = record.progress.failed;
    record.progress.stopped = false;
    if record.timer.is_past_deadline(ctx.now) {
        Arc::make_mut(&mut record.timer).deadline = None;
    }
    file(table, ctx, Some(&row), record, fire, 0)?;
    Ok(Answer::Done)
}

pub(super) fn purge<T: Table>(table: &mut T, ctx: &Context, id: TimerId) -> Result<Answer, T::Error> {
    match table.row(id)? {
        Some(row) if row.at.retained_since().is_some() => {
            end(table, ctx, &row, purged(ctx, &row))?;
            Ok(Answer::Done)
        }
        _ => Ok(Answer::Gone),
    }
}

pub(super) fn trim<T: Table>(
    table: &mut T,
    ctx: &Context,
    of: Retained,
    (before, keep): (Time, u64),
    limit: u32,
) -> Result<Answer, T::Error> {
    let surplus = table.retained_count(of)?.saturating_sub(keep);
    // One more than may go, to see whether more could.
    let oldest = table.oldest_retained(of, (limit as usize).saturating_add(1))?;
    let goes = |i: usize, row: &Row| {
        (i as u64) < surplus || row.at.retained_since().is_some_and(|since| since < before)
    };
    let count = oldest.iter().enumerate().take_while(|(i, row)| goes(*i, row)).count();
    let removed = count.min(limit as usize);
    for row in &oldest[..removed] {
        end(table, ctx, row, purged(ctx, row))?;
    }
    Ok(Answer::Trimmed { removed: removed as u32, more: count > removed })
}

/// A schedule of a timer that is retained for longer than the repeat horizon cannot be repeated any
/// more. The end of any other timer must be remembered, or a repeat would bring it back.
fn purged(ctx: &Context, row: &Row) -> Option<Ended> {
    let old = row.at.retained_since().is_some_and(|since| !Context::remembers(ctx.now, since));
    (!old).then_some(Ended::Dead)
}
