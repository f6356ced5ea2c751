//! Cancel: a client takes a timer back.

use mtimer_protocol::ops::{self as asked, CancelReply};
use mtimer_types::{DeadReason, Ended, Target, Time, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::steps::{dead_letter, end, once, resolve, untouched};
use super::subject::Subject;
use crate::place::Retained;
#[cfg(doc)]
use crate::record::{Progress, Record};
use crate::remembered::{RememberedAnswer, Repeated, RequestId};
use crate::table::{At, Context, Row, Table};

/// Removes a timer that was not and will not be delivered; stops the future attempts of any
/// other.
///
/// A delivery is under way if `sent_attempt` is above the record's failed attempts; otherwise
/// that attempt's outcome has been stored since the request was made. In this order:
///
/// - Staged: nothing changes, not found.
/// - Dead, unconfirmed, or taken in another epoch: nothing changes, too late.
/// - A delivery is under way: too late, and the timer gets [`Progress::stopped`]. A taken one, too:
///   its client may give it back, and then it must not be sent again.
/// - [`Record::attempt`] is 1 (so not covered) and not stopped: removed, leaves
///   [`Ended::Cancelled`]. So is a timer that this epoch has taken: without a delivery under
///   way it was not sent. (A covered attempt counts as failed once it is taken.)
/// - Any other becomes a dead letter for [`DeadReason::Stopped`] (a covered attempt counts as
///   failed there): too late, [`CancelAnswer::Died`].
#[derive(Clone, PartialEq, Debug)]
pub struct Cancel {
    /// Which.
    pub target: Target,
    /// The attempt that the owner has sent and has not seen settled, if any.
    pub sent_attempt: Option<u32>,
    /// For repeats.
    pub request: RequestId,
}

/// To a [`Cancel`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelAnswer {
    /// No delivery starts afterwards, by anyone.
    Cancelled(TimerId),
    /// Delivered, being delivered, possibly so, dead or unconfirmed; no attempt follows.
    TooLate(TimerId),
    /// Too late, and this request has made the timer a dead letter. A repeat gets `TooLate`.
    Died {
        /// Which.
        id: TimerId,
        /// Its failed attempts, a covered one included.
        failed: u32,
    },
    /// Nothing of that name. For an id, [`Ended::CancelledUnseen`] is remembered. (An id that ended
    /// as [`Ended::Cancelled`] within the horizon gives `Cancelled`, one that ended otherwise gives
    /// `NotFound`.)
    NotFound,
}

impl Repeated for CancelAnswer {
    fn remember(self) -> RememberedAnswer {
        match self {
            Self::Cancelled(id) => RememberedAnswer::of(b'X', id),
            Self::TooLate(id) | Self::Died { id, .. } => RememberedAnswer::of(b'L', id),
            Self::NotFound => RememberedAnswer::alone(b'F'),
        }
    }

    fn recalled(id: TimerId) -> impl IntoIterator<Item = Self> {
        [Self::Cancelled(id), Self::TooLate(id), Self::NotFound]
    }
}

impl Operation for Cancel {
    type Answer = CancelAnswer;

    const IS: Properties = Properties {
        origin: Origin::Client,
        adds: false,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Named { target: &self.target, request: self.request }
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<CancelAnswer, T::Error> {
        once(table, ctx, self.request, |table| cancel(table, ctx, self))
    }
}

/// Decides a cancel that is no repeat.
fn cancel<T: Table>(table: &mut T, ctx: &Context, cancel: &Cancel) -> Result<CancelAnswer, T::Error> {
    let Some(id) = resolve(table, &cancel.target)? else { return Ok(CancelAnswer::NotFound) };
    match table.row(id)? {
        // It is nobody's yet.
        Some(row) if row.at.is_staged() => Ok(CancelAnswer::NotFound),
        Some(row) => cancel_row(table, ctx, &row, cancel.sent_attempt),
        None => cancel_unseen(table, ctx, id),
    }
}

/// Decides a cancel of a timer that is there.
pub(super) fn cancel_row<T: Table>(
    table: &mut T,
    ctx: &Context,
    row: &Row,
    sent_attempt: Option<u32>,
) -> Result<CancelAnswer, T::Error> {
    let id = row.id();
    let under_way = sent_attempt.is_some_and(|attempt| attempt > row.record.progress.failed);
    match row.at {
        At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } if !ctx.has_taken(row) => {
            Ok(CancelAnswer::TooLate(id))
        }
        _ if under_way => {
            let mut after = row.clone();
            after.record.progress.stopped = true;
            table.put(Some(row), after)?;
            Ok(CancelAnswer::TooLate(id))
        }
        _ if untouched(ctx, row) => {
            end(table, ctx, row, Some(Ended::Cancelled))?;
            Ok(CancelAnswer::Cancelled(id))
        }
        _ => {
            let mut record = row.record.clone();
            let failed = record.attempt(ctx.covered(row)).saturating_sub(1);
            record.progress.failed = failed;
            dead_letter(table, ctx, row, record, DeadReason::Stopped)?;
            Ok(CancelAnswer::Died { id, failed })
        }
    }
}

/// A cancel that overtook its schedule must win over it.
fn cancel_unseen<T: Table>(table: &mut T, ctx: &Context, id: TimerId) -> Result<CancelAnswer, T::Error> {
    match table.ended(id, ctx.now)? {
        Some(Ended::Cancelled) => Ok(CancelAnswer::Cancelled(id)),
        Some(Ended::Acknowledged | Ended::Replaced | Ended::Expired | Ended::Dead) => {
            Ok(CancelAnswer::NotFound)
        }
        Some(Ended::CancelledUnseen) | None => {
            table.set_ended(id, Ended::CancelledUnseen, ctx.now)?;
            Ok(CancelAnswer::NotFound)
        }
    }
}

impl Asked for asked::Cancel {
    type Op = Cancel;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        true
    }

    fn complete(&self, memory: &impl Memory, _: Time) -> Cancel {
        // A timer that is being taken is not delivered while this cancel is under way.
        let sent_attempt = memory.named(&self.target).and_then(|id| memory.sent_attempt(id));
        Cancel { target: self.target.clone(), sent_attempt, request: RequestId(self.request) }
    }

    fn applied(&self, answer: CancelAnswer) -> Applied {
        let stopped = |id, died| Applied::new(CancelReply::TooLate(id), MemoryEffect::Stopped { id, died });
        match answer {
            CancelAnswer::Cancelled(id) => {
                Applied::new(CancelReply::Cancelled(id), MemoryEffect::Cancelled(id))
            }
            CancelAnswer::TooLate(id) => stopped(id, None),
            CancelAnswer::Died { id, failed } => stopped(id, Some(failed)),
            CancelAnswer::NotFound => Applied::new(CancelReply::NotFound, MemoryEffect::Nothing),
        }
    }
}
