//! Reschedule: a client gives a timer another due time.

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, RescheduleReply};
use mtimer_types::{Target, Time, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::bulk_act::BulkAct;
use super::operation::{Operation, Origin, Properties};
use super::steps::{file, has_not_begun, once, resolve, unstaged_row};
use super::subject::Subject;
use crate::place::Retained;
use crate::remembered::{RememberedAnswer, Repeated, RequestId};
use crate::table::{Context, Table};

/// Files a pending or parked timer of attempt 1 as pending at `due`, tier 0, which becomes its
/// due time. Anything else (in flight, covered, retried, stopped, taken, dead): too late,
/// nothing changes. This is looked at before the deadline. Of a bulk job that was about to move it
/// nothing stays: it keeps its deadline.
#[derive(Clone, PartialEq, Debug)]
pub struct Reschedule {
    /// Which.
    pub target: Target,
    /// The new due time.
    pub due: Time,
    /// The owner has an unsettled delivery of it, or knows of an earlier one.
    pub is_begun: bool,
    /// For repeats.
    pub request: RequestId,
}

/// To a [`Reschedule`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RescheduleAnswer {
    /// The old time never fires.
    Rescheduled(TimerId),
    /// As with cancel; nothing changed.
    TooLate(TimerId),
    /// The timer's deadline is before the new time; nothing changed.
    PastDeadline(TimerId),
    /// A bulk job was about to cancel it, and has.
    Cancelled(TimerId),
    /// Nothing of that name.
    NotFound,
}

impl Repeated for RescheduleAnswer {
    fn remember(self) -> RememberedAnswer {
        match self {
            Self::Rescheduled(id) => RememberedAnswer::of(b'H', id),
            Self::TooLate(id) => RememberedAnswer::of(b'M', id),
            Self::PastDeadline(id) => RememberedAnswer::of(b'P', id),
            Self::Cancelled(id) => RememberedAnswer::of(b'B', id),
            Self::NotFound => RememberedAnswer::alone(b'G'),
        }
    }

    fn recalled(id: TimerId) -> impl IntoIterator<Item = Self> {
        [
            Self::Rescheduled(id),
            Self::TooLate(id),
            Self::PastDeadline(id),
            Self::Cancelled(id),
            Self::NotFound,
        ]
    }
}

impl Operation for Reschedule {
    type Answer = RescheduleAnswer;

    const IS: Properties = Properties {
        origin: Origin::Client,
        adds: true,
        waits: true,
        reads_content: true,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Named { target: &self.target, request: self.request }
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<RescheduleAnswer, T::Error> {
        once(table, ctx, self.request, |table| reschedule(table, ctx, self))
    }
}

/// Decides a reschedule that is no repeat.
fn reschedule<T: Table>(
    table: &mut T,
    ctx: &Context,
    edit: &Reschedule,
) -> Result<RescheduleAnswer, T::Error> {
    let Some(id) = resolve(table, &edit.target)? else { return Ok(RescheduleAnswer::NotFound) };
    let Some(row) = unstaged_row(table, id)? else { return Ok(RescheduleAnswer::NotFound) };
    if edit.is_begun || !has_not_begun(ctx, &row) {
        return Ok(RescheduleAnswer::TooLate(id));
    }
    if row.record.timer.is_past_deadline(edit.due) {
        return Ok(RescheduleAnswer::PastDeadline(id));
    }
    let deadline = row.record.timer.deadline;
    let Some(row) = BulkAct::first(table, ctx, row)? else { return Ok(RescheduleAnswer::Cancelled(id)) };
    let mut record = row.record.clone();
    record.reschedule(edit.due, ctx.now);
    // A shift has moved it, perhaps before the due time that it was held against.
    if record.timer.deadline != deadline {
        Arc::make_mut(&mut record.timer).deadline = deadline;
    }
    file(table, ctx, Some(&row), record, edit.due, 0)?;
    Ok(RescheduleAnswer::Rescheduled(id))
}

impl Asked for asked::Reschedule {
    type Op = Reschedule;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, memory: &impl Memory) -> bool {
        // The store is certain to refuse to move these.
        let is_unmovable =
            |id| memory.has_begun(id) || memory.deadline(id).is_some_and(|deadline| deadline < self.due);
        !memory.named(&self.target).is_some_and(is_unmovable)
    }

    fn complete(&self, memory: &impl Memory, _: Time) -> Reschedule {
        let is_begun = memory.named(&self.target).is_some_and(|id| memory.has_begun(id));
        let (target, request) = (self.target.clone(), RequestId(self.request));
        Reschedule { target, due: self.due, is_begun, request }
    }

    fn applied(&self, answer: RescheduleAnswer) -> Applied {
        match answer {
            RescheduleAnswer::Rescheduled(id) => {
                Applied::new(RescheduleReply::Rescheduled(id), MemoryEffect::Moved { id, due: self.due })
            }
            RescheduleAnswer::TooLate(id) => {
                Applied::new(RescheduleReply::TooLate(id), MemoryEffect::Nothing)
            }
            RescheduleAnswer::PastDeadline(id) => {
                let due = self.due.utc();
                Applied::invalid(format!("timer {id} has a deadline before {due}: nothing was changed"))
            }
            RescheduleAnswer::Cancelled(id) => {
                Applied::new(RescheduleReply::NotFound, MemoryEffect::Cancelled(id))
            }
            RescheduleAnswer::NotFound => Applied::new(RescheduleReply::NotFound, MemoryEffect::Nothing),
        }
    }
}
