//! Schedule: a client hands over a new timer.

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, ScheduleReply};
#[cfg(doc)]
use mtimer_types::Extensions;
use mtimer_types::{Ended, KeyPolicy, Target, Time, Timer, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::steps::{end, file, has_not_begun};
use super::subject::Subject;
use crate::place::Retained;
use crate::record::{Progress, Record};
use crate::table::{At, Context, Row, Table};

/// Files a new timer as pending at its due time, tier 0. Looked at in this order: a timer of
/// this id (live or dead), an [`Ended`] of this id, the key. See [`ScheduleAnswer`].
///
/// With a policy that computes the due time ([`KeyPolicy::computes_due`]) the timer that has the
/// key is replaced, and the new one is filed
///
/// - with `latest` at the later, with `earliest` at the sooner of its own due time and that of the
///   other one (the time of its next attempt, if one has failed);
/// - with `debounce` at [`Context::now`] + quiet, at most at first + max. *First* is when the first
///   schedule of the chain was accepted ([`Extensions::debounced_since`]). A chain goes on from one
///   debounce to the next until an attempt begins.
///
/// If there is no other one, it is stopped, or its attempt is under way or may be, the new one is a
/// first: filed at its own due time, or at now + quiet. Refused if its deadline is before the time
/// that was computed.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// The timer, valid, of this partition.
    pub timer: Arc<Timer>,
    /// What to do if its key names a live timer.
    pub policy: KeyPolicy,
    /// An attempt of the timer that has the key has begun, or may have, as far as its owner knows.
    pub may_have_begun: bool,
    /// The highest attempt of the timer that has the key that was sent and not seen settled, or may
    /// have been, as far as its owner knows.
    pub sent_attempt: Option<u32>,
}

impl Schedule {
    /// A schedule beside whose key no delivery is under way.
    pub const fn new(timer: Arc<Timer>, policy: KeyPolicy) -> Self {
        Self { timer, policy, may_have_begun: false, sent_attempt: None }
    }

    /// When the new timer is due and, of a debounce, since when its chain has run. `holder`: the
    /// timer that has its key.
    fn placed(&self, ctx: &Context, holder: Option<&Row>) -> (Time, Option<Time>) {
        let due = self.timer.due;
        let waiting = holder.filter(|row| !self.is_under_way(ctx, row));
        match self.policy {
            KeyPolicy::Create | KeyPolicy::Replace | KeyPolicy::Keep => (due, None),
            KeyPolicy::Latest => (waiting.map_or(due, |row| due.max(next_attempt(row))), None),
            KeyPolicy::Earliest => (waiting.map_or(due, |row| due.min(next_attempt(row))), None),
            KeyPolicy::Debounce { quiet_ms, max_ms } => {
                let chain = waiting.filter(|row| row.record.progress.failed == 0);
                let first = chain.and_then(|row| row.record.extensions.debounced_since());
                let first = first.unwrap_or(ctx.now);
                ((ctx.now + u64::from(quiet_ms)).min(first + u64::from(max_ms)), Some(first))
            }
        }
    }

    /// An attempt of the timer that has the key is under way or may be, or none follows.
    fn is_under_way(&self, ctx: &Context, row: &Row) -> bool {
        let Progress { failed, stopped, .. } = row.record.progress;
        let sent = ctx.covered(row) || self.sent_attempt.is_some_and(|attempt| attempt > failed);
        match row.at {
            At::Pending { .. } | At::Parked => sent || stopped,
            At::Taken { .. } => sent || stopped || !ctx.has_taken(row),
            At::Unconfirmed { .. } | At::Dead { .. } => true,
        }
    }
}

/// When a timer is due, or its next attempt is, if one has failed.
fn next_attempt(row: &Row) -> Time {
    match row.at {
        At::Pending { fire, .. } if row.record.progress.failed > 0 => fire,
        At::Pending { .. } | At::Parked => row.record.timer.due,
        At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => row.record.timer.due,
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
    /// The same, by a policy that computes the due time.
    Timed {
        /// False if it was stored before.
        new: bool,
        /// As in [`Self::Scheduled`].
        replaced: Option<TimerId>,
        /// When it is due.
        due: Time,
    },
    /// Its deadline is before this time, at which it would be due; nothing changed.
    PastDeadline(Time),
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

    fn reads_content(&self) -> bool {
        self.policy.computes_due() && self.timer.key.is_some()
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<ScheduleAnswer, T::Error> {
        schedule(table, ctx, self)
    }
}

impl Schedule {
    fn scheduled(&self, new: bool, replaced: Option<TimerId>, due: Time) -> ScheduleAnswer {
        if self.policy.computes_due() {
            ScheduleAnswer::Timed { new, replaced, due }
        } else {
            ScheduleAnswer::Scheduled { new, replaced }
        }
    }
}

fn schedule<T: Table>(table: &mut T, ctx: &Context, op: &Schedule) -> Result<ScheduleAnswer, T::Error> {
    let timer = &op.timer;
    if let Some(row) = table.row(timer.id)? {
        return Ok(if row.record.timer.same_content(timer) && !row.at.is_staged() {
            op.scheduled(false, None, row.record.timer.due)
        } else {
            ScheduleAnswer::Conflict
        });
    }
    if let Some(how) = table.ended(timer.id, ctx.now)? {
        return Ok(ScheduleAnswer::Ended(how));
    }
    let replaced = match &timer.key {
        Some(key) => table.key(&timer.dest, key)?,
        None => None,
    };
    if let Some(id) = replaced
        && op.policy == KeyPolicy::Create
    {
        return Ok(ScheduleAnswer::KeyTaken(id));
    }
    let holder = match replaced {
        Some(holder) => table.row(holder)?,
        None => None,
    };
    if let Some(id) = replaced
        && op.policy == KeyPolicy::Keep
    {
        let begun = op.may_have_begun || holder.is_none_or(|row| !has_not_begun(ctx, &row));
        return Ok(ScheduleAnswer::Kept { id, begun });
    }
    let (due, debounced_since) = op.placed(ctx, holder.as_ref());
    if op.policy.computes_due() && timer.is_past_deadline(due) {
        return Ok(ScheduleAnswer::PastDeadline(due));
    }
    if let Some(row) = &holder {
        end(table, ctx, row, Some(Ended::Replaced))?;
    }
    if let Some(key) = &timer.key {
        table.set_key(&timer.dest, key, Some(timer.id))?;
    }
    let mut record = Record::accepted(due_at(timer, due), ctx.now);
    record.extensions.raise_bulk_mark(table.bulks().mark());
    if let Some(first) = debounced_since {
        record.extensions.set_debounced_since(first);
    }
    file(table, ctx, None, record, due, 0)?;
    Ok(op.scheduled(true, replaced, due))
}

/// The timer, due at this time.
fn due_at(timer: &Arc<Timer>, due: Time) -> Arc<Timer> {
    if timer.due == due { timer.clone() } else { Timer { due, ..(**timer).clone() }.into() }
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
        self.policy.replaces() && holder() != Some(self.timer.id)
    }

    fn may_be_filed_sooner(&self) -> bool {
        self.policy.computes_due()
    }

    fn complete(&self, memory: &impl Memory, _: Time) -> Schedule {
        let mut op = Schedule::new(self.timer.clone(), self.policy);
        let (dest, key) = (&self.timer.dest, self.timer.key.as_ref());
        match self.policy {
            KeyPolicy::Create | KeyPolicy::Replace => {}
            KeyPolicy::Keep => op.may_have_begun = key.is_some_and(|key| memory.may_have_begun(dest, key)),
            KeyPolicy::Latest | KeyPolicy::Earliest | KeyPolicy::Debounce { .. } => {
                op.sent_attempt = key.and_then(|key| memory.may_have_sent(dest, key));
            }
        }
        op
    }

    fn applied(&self, answer: ScheduleAnswer) -> Applied {
        let filed = |new, replaced, due| {
            let is_debounced = matches!(self.policy, KeyPolicy::Debounce { .. });
            MemoryEffect::Filed { timer: due_at(&self.timer, due), new, replaced, is_debounced }
        };
        let reply = match answer {
            ScheduleAnswer::Scheduled { new, replaced } => {
                let effect = filed(new, replaced, self.timer.due);
                return Applied::new(ScheduleReply::Scheduled { new, replaced }, effect);
            }
            ScheduleAnswer::Timed { new, replaced, due } => {
                let effect = filed(new, replaced, due);
                return Applied::new(ScheduleReply::Timed { new, replaced, due }, effect);
            }
            ScheduleAnswer::PastDeadline(due) => {
                let (id, due) = (self.timer.id, due.utc());
                return Applied::invalid(format!(
                    "timer {id} would be due at {due}, after its deadline: nothing was changed"
                ));
            }
            ScheduleAnswer::Kept { id, begun } => ScheduleReply::Kept { id, being_delivered: begun },
            ScheduleAnswer::KeyTaken(id) => ScheduleReply::KeyTaken(id),
            ScheduleAnswer::Conflict => ScheduleReply::Conflict,
            ScheduleAnswer::Ended(ended) => ScheduleReply::Ended(ended),
        };
        Applied::new(reply, MemoryEffect::Nothing)
    }
}
