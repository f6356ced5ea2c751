//! Schedule: a client hands over a new timer.

use std::sync::Arc;

use mtimer_types::{Ended, KeyPolicy, Timer};

use super::operation::{Operation, Origin, Properties};
use super::steps::{end, file, has_not_begun};
use super::subject::Subject;
use crate::answer::{Answer, ScheduleAnswer};
use crate::place::Retained;
use crate::record::Record;
use crate::table::{Context, Table};

/// Files a new timer as pending at its due time, tier 0. Looked at in this order: a timer of
/// this id (live or dead), an [`Ended`] of this id, the key. See [`ScheduleAnswer`].
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// The timer, valid, of this partition.
    pub timer: Arc<Timer>,
    /// What to do if its key names a live timer.
    pub policy: KeyPolicy,
}

impl Operation for Schedule {
    const IS: Properties = Properties {
        origin: Origin::Client,
        adds: true,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::New(&self.timer)
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<Answer, T::Error> {
        schedule(table, ctx, &self.timer, self.policy).map(Answer::Schedule)
    }
}

fn schedule<T: Table>(
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
