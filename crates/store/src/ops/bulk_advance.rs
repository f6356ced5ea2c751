//! Bulk advance: a bulk job has met all timers of a page.

use super::operation::{MoveAnswer, Operation, Origin, Properties};
use super::subject::Subject;
use crate::bulk::{BulkEnd, BulkPlace};
use crate::place::Retained;
use crate::table::{Context, Table};

/// A job that is at work goes on elsewhere; at [`BulkPlace::End`] it ends. Done also if it is there;
/// gone if it is not at work.
#[derive(Clone, PartialEq, Debug)]
pub struct BulkAdvance {
    /// The job.
    pub number: u32,
    /// Where it goes on.
    pub to: BulkPlace,
    /// Timers that a dry run has met on the way.
    pub met: u64,
}

impl Operation for BulkAdvance {
    type Answer = MoveAnswer;

    const IS: Properties = Properties {
        origin: Origin::Owner,
        adds: false,
        waits: false,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Controls
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<MoveAnswer, T::Error> {
        let bulks = table.bulks();
        let Some(job) = bulks.get(self.number) else { return Ok(MoveAnswer::Gone) };
        if job.at == self.to {
            return Ok(MoveAnswer::Done);
        }
        if !bulks.is_at_work(self.number) {
            return Ok(MoveAnswer::Gone);
        }
        table.bulks_mut().change(self.number, |job| {
            job.at = self.to;
            job.done += self.met;
            if self.to == BulkPlace::End {
                job.ended = Some((ctx.now, BulkEnd::Done));
            }
        });
        Ok(MoveAnswer::Done)
    }
}
