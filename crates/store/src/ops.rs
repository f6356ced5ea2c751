//! The operations of a partition's owner, and the meaning of each: one module for each. Of one that
//! clients ask for it also has the owner's part ([`Asked`]).
//!
//! ## Places
//!
//! A live timer is in exactly one [`Place`]: *pending* at a time to fire, *parked* until its
//! destination has credit, or *taken* (an at-most-once timer that was or is about to be sent). A
//! *dead* one is a dead letter. A live timer holds its key, unless it is taken and unconfirmed; a
//! dead one holds none.
//!
//! ## Staged timers
//!
//! An import *stages* its timers: each is pending at its fire time plus [`STAGED_MS`], in tier 0,
//! and its record has a [`Staging`]. It is nobody's: it has no key, no owner loads it, and no
//! operation finds it but the bulk jobs that release or withdraw its import. Only they end it, so a
//! repeated import is harmless. The release looks at the key, as a replay does; if that is taken,
//! the timer stays staged.
//!
//! ## Repeats
//!
//! Every operation is idempotent, because a lane repeats operations that may or may not have been
//! applied: a schedule by its id, other requests of applications by their [`RequestId`] (whose
//! answer is kept for [`REPEAT_HORIZON_MS`] at least), everything else by the place it would move
//! the timer to. A repeat gives the answer of the first time (of a schedule: the same, as not new;
//! of a cancel that made a dead letter: too late). An operation that would remove a timer finds it
//! gone the second time.
//!
//! ## Claims
//!
//! `prior_claim` is the highest `claimed-until` that was stored when the owner acquired the
//! partition. A pending timer is *covered* (a predecessor may have sent it) if its fire time is at
//! or below `prior_claim`, unless its [`Progress::fresh`] says that it was filed there in the
//! present epoch. Whenever an operation files a timer as pending with a fire time at or below
//! `prior_claim` it sets `fresh` to its epoch; filing it above clears it. In any other place
//! `fresh` means nothing, and a move there may leave it as it was. A parked timer is never covered.
//! [`Record::attempt`] is 1 + failed attempts, + 1 when covered.
//!
//! ## Endings
//!
//! Cancelled, replaced and expired timers, and at-most-once timers that were acknowledged, leave an
//! [`Ended`] under their id for [`REPEAT_HORIZON_MS`]; so does a cancel of an id that is nowhere
//! ([`Ended::CancelledUnseen`], again with every such cancel). A timer that is purged or trimmed
//! leaves [`Ended::Dead`], unless it died or became unconfirmed longer than the horizon before
//! [`Batch::now`]: a schedule that old cannot be repeated. Plain acknowledgements leave none: the
//! owner's memory is enough.
//!
//! [`REPEAT_HORIZON_MS`]: mtimer_types::limits::REPEAT_HORIZON_MS
//! [`STAGED_MS`]: mtimer_types::limits::STAGED_MS
//! [`Staging`]: mtimer_types::Staging

mod asked;
mod begin_bulk;
mod bulk_act;
mod bulk_advance;
mod cancel;
mod configure;
mod extend_deadline;
mod import;
mod operation;
mod park;
mod purge;
mod replay;
mod reschedule;
mod schedule;
mod settle;
mod steps;
mod stop_bulk;
mod subject;
mod take;
mod trim;
mod unpark;

use mtimer_protocol::RequestOp;
#[cfg(doc)]
use mtimer_types::Ended;
use mtimer_types::{Time, TimerId};

#[cfg(doc)]
use crate::place::Place;
use crate::place::Retained;
#[cfg(doc)]
use crate::record::{Progress, Record};
use crate::refusal::Refusal;
#[cfg(doc)]
use crate::remembered::RequestId;
use crate::table::{Context, Table};

pub use self::asked::{Applied, Asked, Memory, MemoryEffect};
pub use self::begin_bulk::{BeginBulk, BeginBulkAnswer};
pub use self::bulk_act::{BulkAct, BulkActAnswer};
pub use self::bulk_advance::BulkAdvance;
pub use self::cancel::{Cancel, CancelAnswer};
pub use self::configure::{Configure, ConfigureAnswer};
pub use self::extend_deadline::{ExtendDeadline, ExtendDeadlineAnswer};
pub use self::import::{Import, ImportAnswer};
pub use self::operation::{MoveAnswer, Operation, Origin, Properties};
pub use self::park::Park;
pub use self::purge::{Purge, PurgeAnswer};
pub use self::replay::{Replay, ReplayAnswer};
pub use self::reschedule::{Reschedule, RescheduleAnswer};
pub use self::schedule::{Schedule, ScheduleAnswer};
pub use self::settle::{Settle, SettleAnswer, Verdict};
pub use self::stop_bulk::{StopBulk, StopBulkAnswer};
pub use self::subject::Subject;
pub use self::take::Take;
pub use self::trim::{Trim, TrimAnswer};
pub use self::unpark::Unpark;

/// Operations that are applied in order, each one exactly once, each one whole or not at all. A
/// store may apply them in several steps; a crash in between leaves a prefix. Schedules without a
/// key that follow each other may change places, which nobody can tell by the outcome.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The cluster clock when the batch was made: the time of death of dead letters, the time at
    /// which a timer becomes unconfirmed, the start of the repeat horizon.
    pub now: Time,
    /// If set, `claimed-until` becomes at least this, before or together with the operations.
    pub claim: Option<Time>,
    /// The operations, in their order.
    pub ops: Vec<Op>,
}

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// One operation.
        #[derive(Clone, PartialEq, Debug)]
        #[expect(missing_docs, reason = "each variant is the operation of that name")]
        pub enum Op {
            $($name($name)),*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*

        /// The store's answer to one operation.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Answer {
            $(#[doc = concat!("To [`", stringify!($name), "`].")]
            $name(<$name as Operation>::Answer),)*
            /// The store would not take the write, or cannot tell that it is safe.
            Refused(Refusal),
        }

        impl Op {
            /// All operations, each by its name, with its properties.
            pub const ALL: [(&'static str, Properties); [$(stringify!($name)),*].len()] =
                [$((stringify!($name), <$name as Operation>::IS)),*];

            /// Returns the properties of this kind of operation.
            pub const fn is(&self) -> &'static Properties {
                match self {
                    $(Self::$name(_) => &<$name as Operation>::IS),*
                }
            }

            /// Returns the subject of the operation.
            pub fn subject(&self) -> Subject<'_> {
                match self {
                    $(Self::$name(op) => op.subject()),*
                }
            }

            /// See [`Operation::adds`].
            pub fn adds(&self) -> bool {
                match self {
                    $(Self::$name(op) => op.adds()),*
                }
            }

            /// See [`Operation::reads_content`].
            pub fn reads_content(&self) -> bool {
                match self {
                    $(Self::$name(op) => op.reads_content()),*
                }
            }

            /// See [`Operation::removes`].
            pub fn removes(&self) -> [usize; Retained::COUNT] {
                match self {
                    $(Self::$name(op) => op.removes()),*
                }
            }

            /// See [`Operation::decide`].
            ///
            /// # Errors
            ///
            /// The table's, if a read or a write of it fails.
            pub fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<Answer, T::Error> {
                match self {
                    $(Self::$name(op) => op.decide(table, ctx).map(Answer::$name)),*
                }
            }
        }
    };
}

macro_rules! asked_by_clients {
    ($($name:ident),* $(,)?) => {
        /// See [`Asked::CHANGES_UNHELD`].
        pub const fn changes_unheld(asked: &RequestOp) -> bool {
            match asked {
                $(RequestOp::$name(_) => <mtimer_protocol::ops::$name as Asked>::CHANGES_UNHELD),*
            }
        }

        /// See [`Asked::may_be_filed_sooner`].
        pub fn may_be_filed_sooner(asked: &RequestOp) -> bool {
            match asked {
                $(RequestOp::$name(asked) => asked.may_be_filed_sooner()),*
            }
        }

        /// See [`Asked::holds`].
        pub fn holds(asked: &RequestOp, memory: &impl Memory) -> bool {
            match asked {
                $(RequestOp::$name(asked) => asked.holds(memory)),*
            }
        }

        /// See [`Asked::complete`].
        pub fn complete(asked: &RequestOp, memory: &impl Memory, now: Time) -> Op {
            match asked {
                $(RequestOp::$name(asked) => Op::$name(asked.complete(memory, now))),*
            }
        }

        /// See [`Asked::applied`].
        ///
        /// # Errors
        ///
        /// The answer, if it is a refusal, or answers another kind of operation.
        pub fn applied(asked: &RequestOp, answer: Answer) -> Result<Applied, Answer> {
            match (asked, answer) {
                $((RequestOp::$name(asked), Answer::$name(answer)) => Ok(asked.applied(answer)),)*
                (_, answer) => Err(answer),
            }
        }
    };
}

asked_by_clients!(
    Schedule,
    Cancel,
    Reschedule,
    Replay,
    Purge,
    ExtendDeadline,
    BeginBulk,
    StopBulk,
    Import,
    Configure,
);

operations!(
    Schedule,
    Cancel,
    Reschedule,
    ExtendDeadline,
    Take,
    Settle,
    Park,
    Unpark,
    Replay,
    Purge,
    Trim,
    BeginBulk,
    StopBulk,
    BulkAct,
    BulkAdvance,
    Import,
    Configure,
);

impl Op {
    /// A [`Take`] of a timer that is not in memory.
    pub const fn take(id: TimerId, failed: u32) -> Self {
        Self::Take(Take { id, failed, timer: None })
    }

    /// A [`Settle`] of a timer that is not in memory.
    pub const fn settle(id: TimerId, verdict: Verdict) -> Self {
        Self::Settle(Settle { id, verdict, timer: None, attempt: None })
    }

    /// The timer that the operation names by its id: of one that names a key, only the partition
    /// knows which it is.
    pub fn id(&self) -> Option<TimerId> {
        self.subject().id()
    }
}

#[cfg(test)]
mod tests;
