//! Settle: the fate of a timer after a delivery, or in place of one.

use std::sync::Arc;

use mtimer_types::{DeadReason, Ended, FailedAttempt, Mode, Time, Timer, TimerId};

use super::operation::{Operation, Origin, Properties};
use super::steps::{dead_letter, end, file, free_key, unstaged_row};
use super::subject::Subject;
use crate::place::Retained;
use crate::record::{Record, cut_error};
use crate::table::{At, Context, Row, Table};

/// Ends or continues a timer after a delivery, a missed deadline or a lost client. See
/// [`Verdict`].
#[derive(Clone, PartialEq, Debug)]
pub struct Settle {
    /// Which.
    pub id: TimerId,
    /// How.
    pub verdict: Verdict,
    /// The timer, if the owner has it in memory. A store may remove it by this without reading
    /// it first: nearly all timers end so.
    pub timer: Option<Arc<Timer>>,
    /// The attempt that it ends without success, for the timer's story.
    pub attempt: Option<Box<FailedAttempt>>,
}

/// The fate of a timer after a delivery (or in place of one).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Done: removes a pending, parked or taken timer and frees its key. Gone if dead or nowhere.
    Ack,
    /// An `ok` for a delivery that this owner does not remember: like `Ack`, if a delivery with
    /// this number can have happened (failed attempts >= `attempt`, or `attempt` <= failed + 1 and
    /// covered, or taken), and neither it nor a later one was postponed; else gone. Attempts count
    /// from 1: 0 is gone.
    LateAck {
        /// The attempt it answers.
        attempt: u32,
    },
    /// Files a pending timer as pending at `fire` in `tier`, with `failed` failed attempts and the
    /// error. A record that has that many failed attempts already is left as it is (a repeat). A
    /// stopped timer becomes a dead letter for [`DeadReason::Stopped`] instead
    /// ([`SettleAnswer::Died`]); another one whose deadline is before `fire` expires
    /// ([`SettleAnswer::Expired`]). Gone if it is not pending.
    Retry {
        /// When; the due time if that is later.
        fire: Time,
        /// The tier, 1..=32.
        tier: u8,
        /// Failed attempts, this one included.
        failed: u32,
        /// The handler's words, or the cause of the failure; at most 512 bytes (a longer text is
        /// cut), empty for none.
        error: Box<str>,
    },
    /// Postponed by its handler: files a pending timer as pending at `fire`, in tier 0, with
    /// `failed` failed attempts, of which this one does not count for the retry budget, and one
    /// more [postponed](mtimer_types::Extensions::postponed) attempt. The last error stays. The
    /// rest is as for [`Verdict::Retry`].
    Later {
        /// When; the due time if that is later.
        fire: Time,
        /// Failed attempts, this one included.
        failed: u32,
    },
    /// Moves a pending, parked or taken timer to the dead letters and frees its key. Done also if
    /// dead.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Failed attempts, this one included.
        failed: u32,
        /// The last error; at most 512 bytes (a longer text is cut), empty for none.
        error: Box<str>,
    },
    /// Its deadline passes before it is sent: removes a pending or parked timer, or one that this
    /// epoch has taken and not sent (nor unconfirmed), frees its key, leaves [`Ended::Expired`].
    /// Gone if it is anywhere else, or its deadline is not before `next`: it may have another one
    /// by now.
    Expired {
        /// When its next delivery would begin.
        next: Time,
    },
    /// Nobody will settle this taken timer: frees its key and makes it unconfirmed as of
    /// [`Context::now`]; it stays until a late ok, a replay, a purge or a trim. Done also if so
    /// already; gone if it is not taken.
    Unconfirmed,
}

/// To a [`Settle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleAnswer {
    /// Applied, or found applied.
    Done,
    /// To [`Verdict::Retry`] and [`Verdict::Later`]: applied, and the timer was stopped, so it is a
    /// dead letter now.
    Died,
    /// To [`Verdict::Retry`] and [`Verdict::Later`]: applied, and the next attempt would be after
    /// the deadline, so the timer has expired.
    Expired,
    /// The timer is not where the verdict needs it; nothing changed.
    Gone,
}

impl Operation for Settle {
    type Answer = SettleAnswer;

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
        match self.verdict {
            Verdict::Ack | Verdict::LateAck { .. } | Verdict::Dead { .. } => [0, 1],
            Verdict::Retry { .. } | Verdict::Later { .. } => [0, 0],
            Verdict::Expired { .. } | Verdict::Unconfirmed => [0, 0],
        }
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<SettleAnswer, T::Error> {
        let Some(row) = unstaged_row(table, self.id)? else { return Ok(SettleAnswer::Gone) };
        match &self.verdict {
            Verdict::Ack => ack(table, ctx, &row),
            Verdict::LateAck { attempt } if can_have_happened(ctx, &row, *attempt) => ack(table, ctx, &row),
            Verdict::LateAck { .. } => Ok(SettleAnswer::Gone),
            Verdict::Retry { fire, tier, failed, error } => {
                retry(table, ctx, &row, self.failed(&row.record, *failed, error), *fire, *tier)
            }
            Verdict::Later { fire, failed } => {
                retry(table, ctx, &row, self.postponed(&row.record, *failed), *fire, 0)
            }
            Verdict::Dead { reason, failed, error } => {
                if !matches!(row.at, At::Dead { .. }) {
                    dead_letter(table, ctx, &row, self.failed(&row.record, *failed, error), *reason)?;
                }
                Ok(SettleAnswer::Done)
            }
            Verdict::Expired { next } => match row.at {
                At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } if !ctx.has_taken(&row) => {
                    Ok(SettleAnswer::Gone)
                }
                _ if !row.record.timer.is_past_deadline(*next) => Ok(SettleAnswer::Gone),
                _ => {
                    end(table, ctx, &row, Some(Ended::Expired))?;
                    Ok(SettleAnswer::Done)
                }
            },
            Verdict::Unconfirmed => self.unconfirm(table, ctx, &row),
        }
    }
}

impl Settle {
    /// The record with so many failed attempts.
    fn failed(&self, record: &Record, failed: u32, error: &str) -> Record {
        let mut record = record.clone();
        record.progress.failed = failed;
        record.progress.last_error = (!error.is_empty()).then(|| cut_error(error));
        record.extensions.end_postponing();
        self.tell(&mut record);
        record
    }

    /// The record with so many failed attempts, the last of which was postponed.
    fn postponed(&self, record: &Record, failed: u32) -> Record {
        let mut record = record.clone();
        record.postpone(failed);
        self.tell(&mut record);
        record
    }

    /// Adds the attempt to the timer's story.
    fn tell(&self, record: &mut Record) {
        if let Some(attempt) = &self.attempt {
            record.extensions.add_attempt((**attempt).clone());
        }
    }

    fn unconfirm<T: Table>(&self, table: &mut T, ctx: &Context, row: &Row) -> Result<SettleAnswer, T::Error> {
        match row.at {
            At::Taken { epoch } => {
                free_key(table, row)?;
                let at = At::Unconfirmed { epoch, since: ctx.now };
                let mut record = row.record.clone();
                record.extensions.raise_bulk_mark(table.bulks().mark());
                self.tell(&mut record);
                table.put(Some(row), Row { record, at })?;
                Ok(SettleAnswer::Done)
            }
            At::Unconfirmed { .. } => Ok(SettleAnswer::Done),
            At::Pending { .. } | At::Parked | At::Dead { .. } => Ok(SettleAnswer::Gone),
        }
    }
}

fn ack<T: Table>(table: &mut T, ctx: &Context, row: &Row) -> Result<SettleAnswer, T::Error> {
    if matches!(row.at, At::Dead { .. }) {
        return Ok(SettleAnswer::Gone);
    }
    let remember = row.record.timer.mode == Mode::AtMostOnce;
    end(table, ctx, row, remember.then_some(Ended::Acknowledged))?;
    Ok(SettleAnswer::Done)
}

/// An ok cannot undo the answer of a handler that was asked after it, or that has given it: it
/// would end what that has put off.
fn can_have_happened(ctx: &Context, row: &Row, attempt: u32) -> bool {
    let failed = row.record.progress.failed;
    let sent = match row.at {
        At::Pending { .. } | At::Parked => {
            failed >= attempt || (ctx.covered(row) && attempt <= failed.saturating_add(1))
        }
        At::Taken { .. } | At::Unconfirmed { .. } => true,
        At::Dead { .. } => false,
    };
    // Attempts count from 1.
    sent && attempt > row.record.extensions.postponed().last
}

fn retry<T: Table>(
    table: &mut T,
    ctx: &Context,
    row: &Row,
    record: Record,
    fire: Time,
    tier: u8,
) -> Result<SettleAnswer, T::Error> {
    if !matches!(row.at, At::Pending { .. }) {
        return Ok(SettleAnswer::Gone);
    }
    if row.record.progress.failed >= record.progress.failed {
        return Ok(SettleAnswer::Done);
    }
    if record.progress.stopped {
        dead_letter(table, ctx, row, record, DeadReason::Stopped)?;
        return Ok(SettleAnswer::Died);
    }
    if record.timer.is_past_deadline(fire) {
        end(table, ctx, row, Some(Ended::Expired))?;
        return Ok(SettleAnswer::Expired);
    }
    file(table, ctx, Some(row), record, fire, tier)?;
    Ok(SettleAnswer::Done)
}
