//! Purge: a person removes a dead letter for good.

use mtimer_protocol::ops::{self as asked, PurgeReply};
use mtimer_types::{Time, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::steps::{end, purged};
use super::subject::Subject;
use crate::place::Retained;
use crate::table::{Context, Table};

/// Removes a dead or unconfirmed timer for good (see *Endings* in [`crate::ops`]). Else gone.
#[derive(Clone, PartialEq, Debug)]
pub struct Purge {
    /// Which.
    pub id: TimerId,
}

/// To a [`Purge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PurgeAnswer {
    /// Removed.
    Done,
    /// The timer is not retained; nothing changed.
    Gone,
}

impl Operation for Purge {
    type Answer = PurgeAnswer;

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

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<PurgeAnswer, T::Error> {
        match table.row(self.id)? {
            Some(row) if row.at.retained_since().is_some() => {
                end(table, ctx, &row, purged(ctx, &row))?;
                Ok(PurgeAnswer::Done)
            }
            _ => Ok(PurgeAnswer::Gone),
        }
    }
}

impl Asked for asked::Purge {
    type Op = Purge;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        false
    }

    fn complete(&self, _: &impl Memory, _: Time) -> Purge {
        Purge { id: self.id }
    }

    fn applied(&self, answer: PurgeAnswer) -> Applied {
        match answer {
            PurgeAnswer::Done => Applied::new(PurgeReply::Done, MemoryEffect::Purged),
            PurgeAnswer::Gone => Applied::new(PurgeReply::NotFound, MemoryEffect::Nothing),
        }
    }
}
