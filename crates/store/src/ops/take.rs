//! Take: an at-most-once timer is about to be sent.

use std::sync::Arc;

use mtimer_types::{Mode, Timer, TimerId};

use super::operation::{MoveAnswer, Operation, Origin, Properties};
use super::steps::unstaged_row;
use super::subject::Subject;
use crate::place::Retained;
#[cfg(doc)]
use crate::record::Progress;
use crate::table::{At, Context, Row, Table};

/// Moves a pending or parked at-most-once timer to *taken* under this epoch. It keeps its key.
/// Done also if this epoch has already taken it (and it is not unconfirmed); gone if it is
/// anywhere else or nowhere, or at-least-once.
#[derive(Clone, PartialEq, Debug)]
pub struct Take {
    /// Which.
    pub id: TimerId,
    /// Becomes its [`Progress::failed`] (so that a covered attempt stays counted).
    pub failed: u32,
    /// The timer as the store has it, if the owner has that in memory, and its record has nothing
    /// more to keep ([`Record::is_plain`](crate::Record::is_plain)): a store need not read it, and
    /// writes this one.
    pub timer: Option<Arc<Timer>>,
}

impl Operation for Take {
    type Answer = MoveAnswer;

    const IS: Properties = Properties {
        origin: Origin::Owner,
        adds: false,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Timer(self.id)
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<MoveAnswer, T::Error> {
        let Some(row) = unstaged_row(table, self.id)? else { return Ok(MoveAnswer::Gone) };
        match row.at {
            At::Pending { .. } | At::Parked if row.record.timer.mode == Mode::AtMostOnce => {
                let mut record = row.record.clone();
                record.progress.failed = self.failed;
                table.put(Some(&row), Row { record, at: At::Taken { epoch: ctx.epoch } })?;
                Ok(MoveAnswer::Done)
            }
            At::Taken { .. } if ctx.has_taken(&row) => Ok(MoveAnswer::Done),
            _ => Ok(MoveAnswer::Gone),
        }
    }
}
