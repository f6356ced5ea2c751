//! Schedule: a client hands over a new timer.

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, ScheduleReply};
use mtimer_types::{Ended, KeyPolicy, Target, Time, Timer, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::steps::{end, file, has_not_begun};
use super::subject::Subject;
use crate::place::Retained;
use crate::record::Record;
use crate::table::{Context, Table};

/// Files a new timer as pending at its due time, tier 0. Looked at in this order: a timer of
/// this id (live or dead), an [`Ended`] of this id, the key. See [`ScheduleAnswer`].
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// The timer, valid, of this partition.
    pub timer: Arc<Timer>,
    /// What to do if its key names a live timer.
    pub policy: KeyPolicy,
    /// An attempt of the timer that has the key has begun, or may have, as far as its owner knows.
    pub may_have_begun: bool,
}

impl Schedule {
    /// A schedule beside whose key no delivery is under way.
    pub const fn new(timer: Arc<Timer>, policy: KeyPolicy) -> Self {
        Self { timer, policy, may_have_begun: false }
    }
}

/// To a [`Schedule`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleAnswer {
    /// Stored, now or by an earlier request with the same content (wherever the timer is by now:
    /// pending, parked, taken, dead).
    Scheduled {
        /// False if it was stored before.
        new: bool,
        /// The live timer whose key it took over, now ended as [`Ended::Replaced`] (wherever it
        /// was; if it had been delivered, later outcomes find nothing). `None` in the answer to a
        /// repeat.
        replaced: Option<TimerId>,
    },
    /// [`KeyPolicy::Keep`]: the key names this live timer; nothing changed.
    Kept {
        /// Which.
        id: TimerId,
        /// An attempt to deliver it may have begun, as far as the store knows, or it was stopped.
        /// The owner knows of deliveries under way that the store does not see.
        begun: bool,
    },
    /// [`KeyPolicy::Create`]: the key names this live timer; nothing changed.
    KeyTaken(TimerId),
    /// The id is in use with other content; nothing changed.
    Conflict,
    /// A timer with this id ended within the repeat horizon; nothing changed.
    Ended(Ended),
}

impl Operation for Schedule {
    type Answer = ScheduleAnswer;

    const IS: Properties = Properties {
        origin: Origin::Client,
        adds: true,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::New(&self.timer)
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<ScheduleAnswer, T::Error> {
        schedule(table, ctx, self)
    }
}

fn schedule<T: Table>(table: &mut T, ctx: &Context, op: &Schedule) -> Result<ScheduleAnswer, T::Error> {
    let timer = &op.timer;
    if let Some(row) = table.row(timer.id)? {
        return Ok(if row.record.timer.same_content(timer) && !row.at.is_staged() {
            ScheduleAnswer::Scheduled { new: false, replaced: None }
        } else {
            ScheduleAnswer::Conflict
        });
    }
    if let Some(how) = table.ended(timer.id, ctx.now)? {
        return Ok(ScheduleAnswer::Ended(how));
    }
    let mut replaced = None;
    if let Some(key) = &timer.key {
        if let Some(holder) = table.key(&timer.dest, key)? {
            match op.policy {
                KeyPolicy::Create => return Ok(ScheduleAnswer::KeyTaken(holder)),
                KeyPolicy::Keep => {
                    let row = table.row(holder)?;
                    let begun = op.may_have_begun || row.is_none_or(|row| !has_not_begun(ctx, &row));
                    return Ok(ScheduleAnswer::Kept { id: holder, begun });
                }
                KeyPolicy::Replace => replaced = Some(holder),
            }
        }
        if let Some(holder) = replaced
            && let Some(row) = table.row(holder)?
        {
            end(table, ctx, &row, Some(Ended::Replaced))?;
        }
        table.set_key(&timer.dest, key, Some(timer.id))?;
    }
    let mut record = Record::accepted(timer.clone(), ctx.now);
    record.extensions.raise_bulk_mark(table.bulks().mark());
    file(table, ctx, None, record, timer.due, 0)?;
    Ok(ScheduleAnswer::Scheduled { new: true, replaced })
}

impl Asked for asked::Schedule {
    type Op = Schedule;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, memory: &impl Memory) -> bool {
        // One that replaces holds the timer that has the key.
        let holder = || {
            let key = self.timer.key.clone()?;
            memory.named(&Target::Key(self.timer.dest.clone(), key))
        };
        match self.policy {
            KeyPolicy::Replace => holder() != Some(self.timer.id),
            KeyPolicy::Create | KeyPolicy::Keep => false,
        }
    }

    fn complete(&self, memory: &impl Memory, _: Time) -> Schedule {
        let may_have_begun = match (&self.timer.key, self.policy) {
            (Some(key), KeyPolicy::Keep) => memory.may_have_begun(&self.timer.dest, key),
            (None, _) | (Some(_), KeyPolicy::Create | KeyPolicy::Replace) => false,
        };
        Schedule { timer: self.timer.clone(), policy: self.policy, may_have_begun }
    }

    fn applied(&self, answer: ScheduleAnswer) -> Applied {
        let reply = match answer {
            ScheduleAnswer::Scheduled { new, replaced } => {
                let effect = MemoryEffect::Filed { timer: self.timer.clone(), new, replaced };
                return Applied::new(ScheduleReply::Scheduled { new, replaced }, effect);
            }
            ScheduleAnswer::Kept { id, begun } => ScheduleReply::Kept { id, being_delivered: begun },
            ScheduleAnswer::KeyTaken(id) => ScheduleReply::KeyTaken(id),
            ScheduleAnswer::Conflict => ScheduleReply::Conflict,
            ScheduleAnswer::Ended(ended) => ScheduleReply::Ended(ended),
        };
        Applied::new(reply, MemoryEffect::Nothing)
    }
}
