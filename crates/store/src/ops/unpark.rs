//! Unpark: somebody takes the destination's timers again.

use mtimer_types::{Time, TimerId};

use super::bulk_act::BulkAct;
use super::operation::{MoveAnswer, Operation, Origin, Properties};
use super::steps::{file, unstaged_row};
use super::subject::Subject;
use crate::place::Retained;
use crate::table::{At, Context, Table};

/// Files a parked timer as pending at `fire`, tier 0. Done also if it is pending; else gone.
#[derive(Clone, PartialEq, Debug)]
pub struct Unpark {
    /// Which.
    pub id: TimerId,
    /// Usually now; the due time if that is later.
    pub fire: Time,
}

impl Operation for Unpark {
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
        let is_parked = row.at == At::Parked;
        let Some(row) = (if is_parked { BulkAct::first(table, ctx, row)? } else { Some(row) }) else {
            return Ok(MoveAnswer::Gone);
        };
        match row.at {
            // A bulk job was about to move it, and has.
            At::Pending { .. } if is_parked => Ok(MoveAnswer::Gone),
            At::Parked => {
                file(table, ctx, Some(&row), row.record.clone(), self.fire, 0)?;
                Ok(MoveAnswer::Done)
            }
            At::Pending { .. } => Ok(MoveAnswer::Done),
            At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => Ok(MoveAnswer::Gone),
        }
    }
}
