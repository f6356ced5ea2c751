//! Extend deadline: a client gives a live timer another deadline.

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, ExtendDeadlineReply};
use mtimer_types::{Target, Time, TimerId};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::steps::{once, resolve, unstaged_row};
use super::subject::Subject;
use crate::place::Retained;
use crate::remembered::{RememberedAnswer, Repeated, RequestId};
use crate::table::{At, Context, Row, Table};

/// Gives a pending or parked timer another deadline, where it is; a delivery under way goes on. If
/// it was stopped or taken, or is dead or unconfirmed, it is too late and nothing changes, whatever
/// the deadline.
#[derive(Clone, PartialEq, Debug)]
pub struct ExtendDeadline {
    /// Which.
    pub target: Target,
    /// The new deadline.
    pub deadline: Time,
    /// For repeats.
    pub request: RequestId,
}

/// To an [`ExtendDeadline`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtendDeadlineAnswer {
    /// No delivery begins after the new deadline.
    Extended(TimerId),
    /// No attempt follows; nothing changed.
    TooLate(TimerId),
    /// The timer is due, or delivered next, after the new deadline; nothing changed.
    BeforeNext(TimerId),
    /// Nothing of that name.
    NotFound,
}

impl Repeated for ExtendDeadlineAnswer {
    fn remember(self) -> RememberedAnswer {
        match self {
            Self::Extended(id) => RememberedAnswer::of(b'E', id),
            Self::TooLate(id) => RememberedAnswer::of(b'T', id),
            Self::BeforeNext(id) => RememberedAnswer::of(b'B', id),
            Self::NotFound => RememberedAnswer::alone(b'N'),
        }
    }

    fn recalled(id: TimerId) -> impl IntoIterator<Item = Self> {
        [Self::Extended(id), Self::TooLate(id), Self::BeforeNext(id), Self::NotFound]
    }
}

impl Operation for ExtendDeadline {
    type Answer = ExtendDeadlineAnswer;

    const IS: Properties = Properties {
        origin: Origin::Client,
        adds: true,
        waits: true,
        reads_content: true,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Named { target: &self.target, request: self.request }
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<ExtendDeadlineAnswer, T::Error> {
        once(table, ctx, self.request, |table| extend(table, self))
    }
}

/// Decides one that is no repeat.
fn extend<T: Table>(table: &mut T, edit: &ExtendDeadline) -> Result<ExtendDeadlineAnswer, T::Error> {
    let Some(id) = resolve(table, &edit.target)? else { return Ok(ExtendDeadlineAnswer::NotFound) };
    let Some(row) = unstaged_row(table, id)? else { return Ok(ExtendDeadlineAnswer::NotFound) };
    let next = match row.at {
        At::Pending { fire, .. } if !row.record.progress.stopped => fire,
        At::Parked if !row.record.progress.stopped => row.record.timer.due,
        At::Pending { .. } | At::Parked | At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => {
            return Ok(ExtendDeadlineAnswer::TooLate(id));
        }
    };
    if edit.deadline < next {
        return Ok(ExtendDeadlineAnswer::BeforeNext(id));
    }
    let mut record = row.record.clone();
    Arc::make_mut(&mut record.timer).deadline = Some(edit.deadline);
    table.put(Some(&row), Row { record, at: row.at })?;
    Ok(ExtendDeadlineAnswer::Extended(id))
}

impl Asked for asked::ExtendDeadline {
    type Op = ExtendDeadline;

    const CHANGES_UNHELD: bool = true;

    fn holds(&self, _: &impl Memory) -> bool {
        // Whether a delivery begins meanwhile is decided by the deadline of before.
        false
    }

    fn complete(&self, _: &impl Memory, _: Time) -> ExtendDeadline {
        let (target, request) = (self.target.clone(), RequestId(self.request));
        ExtendDeadline { target, deadline: self.deadline, request }
    }

    fn applied(&self, answer: ExtendDeadlineAnswer) -> Applied {
        match answer {
            ExtendDeadlineAnswer::Extended(id) => Applied::new(
                ExtendDeadlineReply::Extended(id),
                MemoryEffect::Extended { id, deadline: self.deadline },
            ),
            ExtendDeadlineAnswer::TooLate(id) => {
                Applied::new(ExtendDeadlineReply::TooLate(id), MemoryEffect::Nothing)
            }
            ExtendDeadlineAnswer::BeforeNext(id) => {
                let deadline = self.deadline.utc();
                Applied::invalid(format!(
                    "timer {id} is delivered next after {deadline}: nothing was changed"
                ))
            }
            ExtendDeadlineAnswer::NotFound => {
                Applied::new(ExtendDeadlineReply::NotFound, MemoryEffect::Nothing)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::{DeadReason, Destination, Epoch, KeyPolicy, Timer};

    use super::*;
    use crate::memory::MemoryTable;
    use crate::ops::{Answer, Op, Park, Schedule, Verdict};
    use crate::remembered::letters_of;

    #[test]
    fn answers_are_remembered_by_letters() {
        assert_eq!(letters_of::<ExtendDeadlineAnswer>(), ["BET", "N"]);
    }

    #[test]
    fn a_timer_keeps_its_place_and_a_repeat_its_answer() {
        let ctx = Context { epoch: Epoch(7), prior_claim: Time::ZERO, now: Time::from_ms(5) };
        let mut table = MemoryTable::default();
        let mut apply = |op: Op| {
            let Ok(answer) = op.decide(&mut table, &ctx);
            answer
        };
        let id = TimerId::from_u128(7);
        let timer = Timer::new(id, Destination::new("g", "a").unwrap(), Time::from_ms(100));
        let extend = |ms, request| {
            let (target, request) = (Target::Id(id), RequestId(request));
            ExtendDeadline { target, deadline: Time::from_ms(ms), request }.into()
        };
        let answered = Answer::ExtendDeadline;
        assert_eq!(apply(extend(200, 1)), answered(ExtendDeadlineAnswer::NotFound));
        apply(Schedule::new(timer.into(), KeyPolicy::Create).into());
        apply(Park { id, failed: 0 }.into());
        assert_eq!(apply(extend(200, 1)), answered(ExtendDeadlineAnswer::NotFound), "a repeat");
        assert_eq!(apply(extend(99, 2)), answered(ExtendDeadlineAnswer::BeforeNext(id)));
        assert_eq!(apply(extend(100, 3)), answered(ExtendDeadlineAnswer::Extended(id)));
        assert_eq!(
            apply(Op::settle(
                id,
                Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() }
            )),
            Answer::Settle(crate::ops::SettleAnswer::Done)
        );
        assert_eq!(apply(extend(300, 4)), answered(ExtendDeadlineAnswer::TooLate(id)));
        assert_eq!(apply(extend(300, 3)), answered(ExtendDeadlineAnswer::Extended(id)), "a repeat");
        let Ok(row) = table.row(id);
        assert_eq!(row.unwrap().record.timer.deadline, Some(Time::from_ms(100)));
    }
}
