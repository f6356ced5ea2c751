//! Replay: a person has a dead letter delivered again.

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, ReplayReply};
use mtimer_types::{Time, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::steps::{file, unstaged_row};
use super::subject::Subject;
use crate::place::Retained;
#[cfg(doc)]
use crate::record::Progress;
use crate::table::{At, Context, Table};

/// Files a dead or unconfirmed timer as pending at `fire`, tier 0, with a new retry budget
/// ([`Progress::budget_from`] becomes its failed attempts; an unconfirmed one counts one more),
/// not stopped, without a deadline that is before [`Context::now`]. It takes its key back; if
/// that names another live timer: [`ReplayAnswer::KeyTaken`], nothing changes. Done also if it is
/// pending; else gone.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    /// Which.
    pub id: TimerId,
    /// Usually now; the due time if that is later.
    pub fire: Time,
}

/// To a [`Replay`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayAnswer {
    /// Pending again, or found so.
    Done,
    /// The key names this live timer; nothing changed.
    KeyTaken(TimerId),
    /// The timer is not retained; nothing changed.
    Gone,
}

impl Operation for Replay {
    type Answer = ReplayAnswer;

    const IS: Properties = Properties {
        origin: Origin::Person,
        adds: true,
        waits: true,
        reads_content: false,
        takes_key_back: true,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Timer(self.id)
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [1, 1]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<ReplayAnswer, T::Error> {
        let Some(row) = unstaged_row(table, self.id)? else { return Ok(ReplayAnswer::Gone) };
        let unconfirmed = match row.at {
            At::Dead { .. } => false,
            At::Unconfirmed { .. } => true,
            At::Pending { .. } => return Ok(ReplayAnswer::Done),
            At::Parked | At::Taken { .. } => return Ok(ReplayAnswer::Gone),
        };
        if let Some((dest, key)) = row.key() {
            match table.key(dest, key)? {
                Some(holder) if holder != self.id => return Ok(ReplayAnswer::KeyTaken(holder)),
                _ => table.set_key(dest, key, Some(self.id))?,
            }
        }
        let mut record = row.record.clone();
        record.progress.failed = record.progress.failed.saturating_add(u32::from(unconfirmed));
        record.progress.budget_from = record.progress.failed;
        record.progress.stopped = false;
        record.extensions.raise_bulk_mark(table.bulks().mark());
        if record.timer.is_past_deadline(ctx.now) {
            Arc::make_mut(&mut record.timer).deadline = None;
        }
        file(table, ctx, Some(&row), record, self.fire, 0)?;
        Ok(ReplayAnswer::Done)
    }
}

impl Asked for asked::Replay {
    type Op = Replay;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        false
    }

    fn complete(&self, _: &impl Memory, now: Time) -> Replay {
        Replay { id: self.id, fire: now }
    }

    fn applied(&self, answer: ReplayAnswer) -> Applied {
        match answer {
            ReplayAnswer::Done => Applied::new(ReplayReply::Done, MemoryEffect::Replayed(self.id)),
            ReplayAnswer::KeyTaken(by) => Applied::new(ReplayReply::KeyTaken(by), MemoryEffect::Nothing),
            ReplayAnswer::Gone => Applied::new(ReplayReply::NotFound, MemoryEffect::Nothing),
        }
    }
}
