//! Begin bulk: a person has one action done on every timer that matches.

use mtimer_protocol::ops::{self as asked, BeginBulkReply};
use mtimer_types::limits::MAX_BULK_JOBS;
use mtimer_types::{Bulk, BulkId, Time};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::subject::Subject;
use crate::place::Retained;
use crate::table::{Context, Table};

/// Files a job ([`crate::bulk`]), unless there is one of this name.
#[derive(Clone, PartialEq, Debug)]
pub struct BeginBulk {
    /// Its name.
    pub id: BulkId,
    /// The job.
    pub bulk: Box<Bulk>,
}

/// To a [`BeginBulk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginBulkAnswer {
    /// It is filed, or was before.
    Begun,
    /// So many are under way, as many as may; nothing changed.
    TooMany(u32),
}

impl Operation for BeginBulk {
    type Answer = BeginBulkAnswer;

    const IS: Properties = Properties {
        origin: Origin::Person,
        // A full store takes it: whoever undoes timers frees space.
        adds: false,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Controls
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<BeginBulkAnswer, T::Error> {
        let bulks = table.bulks();
        if bulks.find(self.id).is_some() {
            return Ok(BeginBulkAnswer::Begun);
        }
        let under_way = bulks.under_way();
        if under_way >= MAX_BULK_JOBS {
            return Ok(BeginBulkAnswer::TooMany(under_way as u32));
        }
        table.bulks_mut().begin(self.id, (*self.bulk).clone(), ctx.now);
        Ok(BeginBulkAnswer::Begun)
    }
}

impl Asked for asked::BeginBulk {
    type Op = BeginBulk;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        false
    }

    fn complete(&self, _: &impl Memory, _: Time) -> BeginBulk {
        BeginBulk { id: self.id, bulk: self.bulk.clone() }
    }

    fn applied(&self, answer: BeginBulkAnswer) -> Applied {
        let reply = match answer {
            BeginBulkAnswer::Begun => BeginBulkReply::Begun,
            BeginBulkAnswer::TooMany(under_way) => BeginBulkReply::TooMany(under_way),
        };
        Applied::new(reply, MemoryEffect::Bulks(self.partition))
    }
}
