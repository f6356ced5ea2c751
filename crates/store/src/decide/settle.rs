//! What the owner does with a timer on its way: take, settle, park, unpark.

use mtimer_types::{DeadReason, Ended, Mode, Time, TimerId};

use super::steps::{dead_letter, end, file, free_key};
use super::table::{At, Context, Row, Table};
use crate::op::{Answer, Verdict};
use crate::record::{Progress, cut_error};

pub(super) fn take<T: Table>(
    table: &mut T,
    ctx: &Context,
    id: TimerId,
    failed: u32,
) -> Result<Answer, T::Error> {
    let Some(row) = table.row(id)? else { return Ok(Answer::Gone) };
    match row.at {
        At::Pending { .. } | At::Parked if row.record.timer.mode == Mode::AtMostOnce => {
            let mut record = row.record.clone();
            record.progress.failed = failed;
            table.put(Some(&row), Row { record, at: At::Taken { epoch: ctx.epoch } })?;
            Ok(Answer::Done)
        }
        At::Taken { .. } if ctx.has_taken(&row) => Ok(Answer::Done),
        _ => Ok(Answer::Gone),
    }
}

pub(super) fn settle<T: Table>(
    table: &mut T,
    ctx: &Context,
    id: TimerId,
    verdict: &Verdict,
) -> Result<Answer, T::Error> {
    let Some(row) = table.row(id)? else { return Ok(Answer::Gone) };
    match verdict {
        Verdict::Ack => ack(table, ctx, &row),
        Verdict::LateAck { attempt } if can_have_happened(ctx, &row, *attempt) => ack(table, ctx, &row),
        Verdict::LateAck { .. } => Ok(Answer::Gone),
        Verdict::Retry { fire, tier, failed, error } => retry(table, ctx, &row, *fire, *tier, *failed, error),
        Verdict::Dead { reason, failed, error } => {
            if !matches!(row.at, At::Dead { .. }) {
                let mut record = row.record.clone();
                fail(&mut record.progress, *failed, error);
                dead_letter(table, ctx, &row, record, *reason)?;
            }
            Ok(Answer::Done)
        }
        Verdict::Expired => match row.at {
            At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } if !ctx.has_taken(&row) => {
                Ok(Answer::Gone)
            }
            _ => {
                end(table, ctx, &row, Some(Ended::Expired))?;
                Ok(Answer::Done)
            }
        },
        Verdict::Unconfirmed => unconfirm(table, ctx, &row),
    }
}

fn ack<T: Table>(table: &mut T, ctx: &Context, row: &Row) -> Result<Answer, T::Error> {
    if matches!(row.at, At::Dead { .. }) {
        return Ok(Answer::Gone);
    }
    let remember = row.record.timer.mode == Mode::AtMostOnce;
    end(table, ctx, row, remember.then_some(Ended::Acknowledged))?;
    Ok(Answer::Done)
}

fn can_have_happened(ctx: &Context, row: &Row, attempt: u32) -> bool {
    let failed = row.record.progress.failed;
    let sent = match row.at {
        At::Pending { .. } | At::Parked => {
            failed >= attempt || (ctx.covered(row) && attempt <= failed.saturating_add(1))
        }
        At::Taken { .. } | At::Unconfirmed { .. } => true,
        At::Dead { .. } => false,
    };
    // Attempts count from 1.
    sent && attempt >= 1
}

fn retry<T: Table>(
    table: &mut T,
    ctx: &Context,
    row: &Row,
    fire: Time,
    tier: u8,
    failed: u32,
    error: &str,
) -> Result<Answer, T::Error> {
    if !matches!(row.at, At::Pending { .. }) {
        return Ok(Answer::Gone);
    }
    if row.record.progress.failed >= failed {
        return Ok(Answer::Done);
    }
    let mut record = row.record.clone();
    fail(&mut record.progress, failed, error);
    if record.progress.stopped {
        dead_letter(table, ctx, row, record, DeadReason::Stopped)?;
        return Ok(Answer::Died);
    }
    file(table, ctx, Some(row), record, fire, tier)?;
    Ok(Answer::Done)
}

fn fail(progress: &mut Progress, failed: u32, error: &str) {
    progress.failed = failed;
    progress.last_error = (!error.is_empty()).then(|| cut_error(error));
}

fn unconfirm<T: Table>(table: &mut T, ctx: &Context, row: &Row) -> Result<Answer, T::Error> {
    match row.at {
        At::Taken { epoch } => {
            free_key(table, row)?;
            let at = At::Unconfirmed { epoch, since: ctx.now };
            table.put(Some(row), Row { record: row.record.clone(), at })?;
            Ok(Answer::Done)
        }
        At::Unconfirmed { .. } => Ok(Answer::Done),
        At::Pending { .. } | At::Parked | At::Dead { .. } => Ok(Answer::Gone),
    }
}

pub(super) fn park<T: Table>(
    table: &mut T,
    ctx: &Context,
    id: TimerId,
    failed: u32,
) -> Result<Answer, T::Error> {
    let Some(row) = table.row(id)? else { return Ok(Answer::Gone) };
    match row.at {
        At::Parked => return Ok(Answer::Done),
        At::Pending { .. } => {}
        At::Taken { .. } if ctx.has_taken(&row) => {}
        At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => return Ok(Answer::Gone),
    }
    let mut record = row.record.clone();
    record.progress.failed = failed;
    table.put(Some(&row), Row { record, at: At::Parked })?;
    Ok(Answer::Done)
}

pub(super) fn unpark<T: Table>(
    table: &mut T,
    ctx: &Context,
    id: TimerId,
    fire: Time,
) -> Result<Answer, T::Error> {
    let Some(row) = table.row(id)? else { return Ok(Answer::Gone) };
    match row.at {
        At::Parked => {
            file(table, ctx, Some(&row), row.record.clone(), fire, 0)?;
            Ok(Answer::Done)
        }
        At::Pending { .. } => Ok(Answer::Done),
        At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => Ok(Answer::Gone),
    }
}
