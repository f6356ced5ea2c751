//! Bulk act: a bulk job meets a timer.

use std::sync::Arc;

use mtimer_types::extensions::STAGING;
use mtimer_types::timer::check_distance;
use mtimer_types::{BulkAction, BulkObstacle, ImportGoal, Time, TimerId};

use super::cancel::{CancelAnswer, cancel_row};
use super::operation::{Operation, Origin, Properties};
use super::purge::{Purge, PurgeAnswer};
use super::replay::{Replay, ReplayAnswer};
use super::steps::{end, file, has_not_begun};
use super::subject::Subject;
use crate::bulk::BulkJob;
use crate::place::Retained;
use crate::table::{At, Context, Row, Table};

/// Does what a job does with one timer, by the rules of the request for a single one, if the job is
/// at work and wants the timer ([`crate::bulk`]). A timer that stays is marked, so that a repeat
/// passes it by. A dry run passes all.
#[derive(Clone, PartialEq, Debug)]
pub struct BulkAct {
    /// The job.
    pub number: u32,
    /// The timer.
    pub id: TimerId,
    /// The attempt that the owner has sent and has not seen settled, if any.
    pub sent_attempt: Option<u32>,
    /// The owner has an unsettled delivery of it, or knows of an earlier one.
    pub is_begun: bool,
    /// [`BulkAction::adds`] of the job's action.
    pub adds: bool,
}

/// To a [`BulkAct`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkActAnswer {
    /// The job does not want it, or has acted on it before; nothing changed.
    Passed,
    /// See [`CancelAnswer::Cancelled`].
    Cancelled,
    /// See [`CancelAnswer::TooLate`].
    Stopped,
    /// See [`CancelAnswer::Died`].
    Died {
        /// Its failed attempts, a covered one included.
        failed: u32,
    },
    /// It has another due time.
    Moved {
        /// Which.
        due: Time,
    },
    /// It is pending again.
    Replayed,
    /// It is gone for good.
    Purged,
    /// It is staged no longer.
    Released {
        /// When it fires; `None`: it is dead or unconfirmed.
        fire: Option<Time>,
    },
    /// It was staged, and is gone for good.
    Withdrawn,
    /// The job could not; the timer is as it was.
    NotDone(BulkObstacle),
}

impl BulkActAnswer {
    fn obstacle(self) -> Option<BulkObstacle> {
        match self {
            Self::Stopped | Self::Died { .. } => Some(BulkObstacle::TooLate),
            Self::NotDone(why) => Some(why),
            Self::Passed | Self::Cancelled | Self::Moved { .. } | Self::Replayed | Self::Purged => None,
            Self::Released { .. } | Self::Withdrawn => None,
        }
    }
}

impl Operation for BulkAct {
    type Answer = BulkActAnswer;

    const IS: Properties = Properties {
        origin: Origin::Owner,
        adds: true,
        waits: true,
        reads_content: false,
        takes_key_back: true,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Timer(self.id)
    }

    fn adds(&self) -> bool {
        self.adds
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [1, 1]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<BulkActAnswer, T::Error> {
        let Some(row) = table.row(self.id)? else { return Ok(BulkActAnswer::Passed) };
        let bulks = table.bulks();
        let acts = |job: &&BulkJob| bulks.is_at_work(job.number) && !job.bulk.dry_run && job.wants(&row);
        let Some(job) = bulks.get(self.number).filter(acts) else { return Ok(BulkActAnswer::Passed) };
        let action = job.bulk.action;
        let answer = self.act(table, ctx, action, &row)?;
        if let Some(row) = table.row(self.id)? {
            let mut marked = row.clone();
            marked.record.extensions.raise_bulk_mark(self.number);
            table.put(Some(&row), marked)?;
        }
        table.bulks_mut().change(self.number, |job| job.note(self.id, answer.obstacle()));
        Ok(answer)
    }
}

impl BulkAct {
    /// The job that is at work on live timers acts on one that something else is about to move, if
    /// it wants it. Returns the row as it is then; `None`: it is gone.
    pub(super) fn first<T: Table>(table: &mut T, ctx: &Context, row: Row) -> Result<Option<Row>, T::Error> {
        let Some(number) = table.bulks().at_work(true).map(|job| job.number) else { return Ok(Some(row)) };
        let act = Self { number, id: row.id(), sent_attempt: None, is_begun: false, adds: false };
        act.decide(table, ctx)?;
        table.row(row.id())
    }

    fn act<T: Table>(
        &self,
        table: &mut T,
        ctx: &Context,
        action: BulkAction,
        row: &Row,
    ) -> Result<BulkActAnswer, T::Error> {
        Ok(match action {
            BulkAction::Cancel => match cancel_row(table, ctx, row, self.sent_attempt)? {
                CancelAnswer::Cancelled(_) => BulkActAnswer::Cancelled,
                CancelAnswer::Died { failed, .. } => BulkActAnswer::Died { failed },
                CancelAnswer::TooLate(_) | CancelAnswer::NotFound => BulkActAnswer::Stopped,
            },
            BulkAction::Shift { .. } | BulkAction::MoveTo { .. }
                if self.is_begun || !has_not_begun(ctx, row) =>
            {
                BulkActAnswer::NotDone(BulkObstacle::TooLate)
            }
            BulkAction::Shift { ms } => Self::shift(table, ctx, row, ms)?,
            BulkAction::MoveTo { due } if row.record.timer.is_past_deadline(due) => {
                BulkActAnswer::NotDone(BulkObstacle::PastDeadline)
            }
            BulkAction::MoveTo { due } => Self::reschedule(table, ctx, row, due, row.record.timer.deadline)?,
            BulkAction::Replay => match (Replay { id: self.id, fire: ctx.now }).decide(table, ctx)? {
                ReplayAnswer::Done => BulkActAnswer::Replayed,
                ReplayAnswer::KeyTaken(_) => BulkActAnswer::NotDone(BulkObstacle::KeyTaken),
                ReplayAnswer::Gone => BulkActAnswer::Passed,
            },
            BulkAction::Purge => match (Purge { id: self.id }).decide(table, ctx)? {
                PurgeAnswer::Done => BulkActAnswer::Purged,
                PurgeAnswer::Gone => BulkActAnswer::Passed,
            },
            BulkAction::Release { .. } => Self::release(table, ctx, row)?,
            BulkAction::Withdraw { .. } => {
                end(table, ctx, row, None)?;
                BulkActAnswer::Withdrawn
            }
        })
    }

    /// Puts a staged timer where it is to be, if its key is free. One whose due time has passed is
    /// late from now on.
    fn release<T: Table>(table: &mut T, ctx: &Context, row: &Row) -> Result<BulkActAnswer, T::Error> {
        let (Some(staging), Some((fire, _))) = (row.staging(), row.at.pending()) else {
            return Ok(BulkActAnswer::Passed);
        };
        let mut record = row.record.clone();
        record.extensions = record.extensions.without(STAGING);
        record.extensions.raise_bulk_mark(table.bulks().mark());
        let at = match staging.goal {
            ImportGoal::Live { tier } => {
                if let Some((dest, key)) = row.key() {
                    if table.key(dest, key)?.is_some_and(|holder| holder != row.id()) {
                        return Ok(BulkActAnswer::NotDone(BulkObstacle::KeyTaken));
                    }
                    table.set_key(dest, key, Some(row.id()))?;
                }
                let fire = fire.unstaged().unwrap_or(fire);
                if record.timer.due < ctx.now {
                    record.accepted = Some(ctx.now);
                }
                file(table, ctx, Some(row), record, fire, tier)?;
                return Ok(BulkActAnswer::Released { fire: Some(fire) });
            }
            // The clock there may have been ahead.
            ImportGoal::Dead { reason, died } => At::Dead { reason, died: died.min(ctx.now) },
            ImportGoal::Unconfirmed { epoch, since } => At::Unconfirmed { epoch, since: since.min(ctx.now) },
        };
        table.put(Some(row), Row { record, at })?;
        Ok(BulkActAnswer::Released { fire: None })
    }

    fn shift<T: Table>(table: &mut T, ctx: &Context, row: &Row, ms: i64) -> Result<BulkActAnswer, T::Error> {
        let shifted = |time: Time| Time::from_ms(time.as_ms().saturating_add_signed(ms));
        let timer = &row.record.timer;
        let due = shifted(timer.due);
        if check_distance(due, ctx.now).is_err() {
            return Ok(BulkActAnswer::NotDone(BulkObstacle::TooFar));
        }
        let deadline = timer.deadline.map(shifted);
        if deadline.is_some_and(|deadline| deadline < ctx.now) {
            return Ok(BulkActAnswer::NotDone(BulkObstacle::PastDeadline));
        }
        Self::reschedule(table, ctx, row, due, deadline)
    }

    fn reschedule<T: Table>(
        table: &mut T,
        ctx: &Context,
        row: &Row,
        due: Time,
        deadline: Option<Time>,
    ) -> Result<BulkActAnswer, T::Error> {
        let mut record = row.record.clone();
        record.reschedule(due, ctx.now);
        if record.timer.deadline != deadline {
            Arc::make_mut(&mut record.timer).deadline = deadline;
        }
        file(table, ctx, Some(row), record, due, 0)?;
        Ok(BulkActAnswer::Moved { due })
    }
}
