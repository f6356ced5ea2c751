//! Stop bulk: a person ends a bulk job before its end.

use mtimer_protocol::ops::{self as asked, StopBulkReply};
use mtimer_types::{BulkId, Time};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::subject::Subject;
use crate::bulk::BulkEnd;
use crate::place::Retained;
use crate::table::{Context, Table};

/// Ends a job that is at work or waits, if its filter has this group and this app.
#[derive(Clone, PartialEq, Debug)]
pub struct StopBulk {
    /// Its name.
    pub id: BulkId,
    /// The group of its filter.
    pub group: Option<String>,
    /// The app of its filter.
    pub app: Option<String>,
}

/// To a [`StopBulk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopBulkAnswer {
    /// It is stopped, or was before.
    Stopped,
    /// It has met all before; nothing changed.
    Done,
    /// There is none; nothing changed.
    NotFound,
}

impl Operation for StopBulk {
    type Answer = StopBulkAnswer;

    const IS: Properties = Properties {
        origin: Origin::Person,
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

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<StopBulkAnswer, T::Error> {
        let of = |filter: &mtimer_types::Filter| filter.group == self.group && filter.app == self.app;
        let Some(job) = table.bulks().find(self.id).filter(|job| of(&job.bulk.filter)) else {
            return Ok(StopBulkAnswer::NotFound);
        };
        match job.ended {
            Some((_, BulkEnd::Done)) => return Ok(StopBulkAnswer::Done),
            Some((_, BulkEnd::Stopped)) => return Ok(StopBulkAnswer::Stopped),
            None => {}
        }
        let number = job.number;
        table.bulks_mut().change(number, |job| job.ended = Some((ctx.now, BulkEnd::Stopped)));
        Ok(StopBulkAnswer::Stopped)
    }
}

impl Asked for asked::StopBulk {
    type Op = StopBulk;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        false
    }

    fn complete(&self, _: &impl Memory, _: Time) -> StopBulk {
        StopBulk { id: self.id, group: self.group.clone(), app: self.app.clone() }
    }

    fn applied(&self, answer: StopBulkAnswer) -> Applied {
        let reply = match answer {
            StopBulkAnswer::Stopped => StopBulkReply::Stopped,
            StopBulkAnswer::Done => StopBulkReply::Done,
            StopBulkAnswer::NotFound => StopBulkReply::NotFound,
        };
        Applied::new(reply, MemoryEffect::Bulks(self.partition))
    }
}
