//! Purge: a person removes a dead letter for good.

use mtimer_types::TimerId;

use super::operation::{Operation, Origin, Properties};
use super::steps::{end, purged};
use super::subject::Subject;
use crate::answer::Answer;
use crate::place::Retained;
use crate::table::{Context, Table};

/// Removes a dead or unconfirmed timer for good (see *Endings* in [`crate::ops`]). Else gone.
#[derive(Clone, PartialEq, Debug)]
pub struct Purge {
    /// Which.
    pub id: TimerId,
}

impl Operation for Purge {
    const IS: Properties = Properties {
        origin: Origin::Person,
        adds: false,
        waits: false,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Timer(self.id)
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [1, 1]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<Answer, T::Error> {
        match table.row(self.id)? {
            Some(row) if row.at.retained_since().is_some() => {
                end(table, ctx, &row, purged(ctx, &row))?;
                Ok(Answer::Done)
            }
            _ => Ok(Answer::Gone),
        }
    }
}
