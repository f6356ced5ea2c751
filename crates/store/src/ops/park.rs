//! Park: nobody takes the timer for now.

use mtimer_types::TimerId;

use super::bulk_act::BulkAct;
use super::operation::{MoveAnswer, Operation, Origin, Properties};
use super::steps::unstaged_row;
use super::subject::Subject;
use crate::place::Retained;
#[cfg(doc)]
use crate::record::Progress;
use crate::table::{At, Context, Row, Table};

/// Moves a pending timer, or one this epoch has taken and not sent (nor unconfirmed), to its
/// destination's park. Done also if it is parked; gone if it is anywhere else or nowhere.
#[derive(Clone, PartialEq, Debug)]
pub struct Park {
    /// Which.
    pub id: TimerId,
    /// Becomes its [`Progress::failed`] (so that a covered attempt stays counted).
    pub failed: u32,
}

impl Operation for Park {
    type Answer = MoveAnswer;

    const IS: Properties = Properties {
        origin: Origin::Owner,
        adds: false,
        waits: false,
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
            At::Parked => return Ok(MoveAnswer::Done),
            At::Pending { .. } => {}
            At::Taken { .. } if ctx.has_taken(&row) => {}
            At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => return Ok(MoveAnswer::Gone),
        }
        let row = match row.at {
            At::Taken { .. } => BulkAct::first(table, ctx, row)?,
            _ => Some(row),
        };
        let Some(row) = row.filter(|row| row.at.retained().is_none()) else { return Ok(MoveAnswer::Gone) };
        let mut record = row.record.clone();
        record.progress.failed = self.failed;
        table.put(Some(&row), Row { record, at: At::Parked })?;
        Ok(MoveAnswer::Done)
    }
}
