//! The operations of clients, and how each is answered: one module for each.
//!
//! The order of the operations, and of variants and fields, is the wire format, see `message`.

mod begin_bulk;
mod cancel;
mod configure;
mod extend_deadline;
mod import;
mod operation;
mod purge;
mod replay;
mod reschedule;
mod schedule;
mod stop_bulk;
mod subject;

use mtimer_types::{InvalidTimer, Time, Verb};
use serde::{Deserialize, Serialize};

pub use self::begin_bulk::{BeginBulk, BeginBulkReply};
pub use self::cancel::{Cancel, CancelReply};
pub use self::configure::{Configure, ConfigureReply};
pub use self::extend_deadline::{ExtendDeadline, ExtendDeadlineReply};
pub use self::import::{Import, ImportReply, ImportedRecord};
pub use self::operation::{NotDone, Operation, Reply};
pub use self::purge::{Purge, PurgeReply};
pub use self::replay::{Replay, ReplayReply};
pub use self::reschedule::{Reschedule, RescheduleReply};
pub use self::schedule::{Schedule, ScheduleReply};
pub use self::stop_bulk::{StopBulk, StopBulkReply};
pub use self::subject::Subject;
use crate::error::ErrorCode;
use crate::sample::Source;

/// Most bytes of the numbers of an operation on the wire.
const NUMBERS: usize = 128;

macro_rules! operations {
    ($($name:ident => $reply:ident),* $(,)?) => {
        /// One operation.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "each variant is the operation of that name")]
        pub enum RequestOp {
            $($name($name)),*
        }

        /// The answer to one [`RequestOp`].
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum OpReply {
            /// Not done.
            Failed {
                /// The kind.
                code: ErrorCode,
                /// For people: value, limit, fix.
                message: String,
            },
            /// Not done: this partition is another broker's. Ask there.
            Moved {
                /// Its address.
                owner: String,
            },
            $(#[doc = concat!("Of a [`", stringify!($name), "`].")]
            $name($reply)),*
        }

        $(impl From<$name> for RequestOp {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        }

        impl From<$reply> for OpReply {
            fn from(reply: $reply) -> Self {
                Self::$name(reply)
            }
        }

        impl TryFrom<OpReply> for $reply {
            type Error = OpReply;

            fn try_from(reply: OpReply) -> Result<Self, OpReply> {
                match reply {
                    OpReply::$name(reply) => Ok(reply),
                    other => Err(other),
                }
            }
        })*

        impl RequestOp {
            /// The names of all operations, in their order.
            pub const NAMES: [&'static str; [$(stringify!($name)),*].len()] = [$(stringify!($name)),*];

            /// The samples of all operations, in their order.
            pub fn samples() -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend(<$name as Operation>::samples().into_iter().map(Self::from));)*
                all
            }

            /// See [`Operation::arbitrary`]: of the operation that is the `nth` in
            /// [`NAMES`](Self::NAMES), which begin anew after the last.
            pub fn arbitrary<S: Source>(nth: usize, from: &mut S) -> Self {
                let all: [fn(&mut S) -> Self; Self::NAMES.len()] =
                    [$(|from| <$name as Operation>::arbitrary(from).into()),*];
                all[nth % all.len()](from)
            }

            /// The verb that a token has to allow.
            pub const fn verb(&self) -> Verb {
                match self {
                    $(Self::$name(_) => <$name as Operation>::VERB),*
                }
            }

            /// The timer or key that it is about.
            pub fn subject(&self) -> Subject<'_> {
                match self {
                    $(Self::$name(op) => op.subject()),*
                }
            }

            fn bytes_beside_subject(&self) -> usize {
                match self {
                    $(Self::$name(op) => op.bytes_beside_subject()),*
                }
            }

            /// See [`Operation::check`].
            ///
            /// # Errors
            ///
            /// The first rule that is broken, with value and limit.
            pub fn check(&self, now: Time) -> Result<(), InvalidTimer> {
                match self {
                    $(Self::$name(op) => op.check(now)),*
                }
            }

            /// Whether a reply can be its answer.
            pub const fn is_answered_by(&self, reply: &OpReply) -> bool {
                match reply {
                    OpReply::Failed { .. } | OpReply::Moved { .. } => true,
                    $(OpReply::$name(_) => matches!(self, Self::$name(_))),*
                }
            }
        }

        impl OpReply {
            /// See [`Reply::not_done`].
            pub fn not_done(&self) -> Option<NotDone> {
                match self {
                    Self::Failed { code, .. } => Some(NotDone::Failed(*code)),
                    Self::Moved { .. } => Some(NotDone::Moved),
                    $(Self::$name(reply) => reply.not_done()),*
                }
            }

            /// The samples of the replies of all operations, in their order.
            pub fn samples() -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend(<$reply as Reply>::samples().into_iter().map(Self::from));)*
                all
            }
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            /// Whether the reply is turned into an `R`, and back into itself; if not, it is given
            /// back as it was.
            fn turned<R>(reply: &OpReply) -> bool
            where
                R: Into<OpReply> + TryFrom<OpReply, Error = OpReply>,
            {
                let own = R::try_from(reply.clone());
                let is_own = own.is_ok();
                assert_eq!(own.map_or_else(|other| other, Into::into), *reply);
                is_own
            }

            #[test]
            fn a_reply_is_turned_into_that_of_its_own_operation_alone() {
                let of_none = [
                    OpReply::Failed { code: ErrorCode::Invalid, message: String::new() },
                    OpReply::Moved { owner: String::new() },
                ];
                for reply in OpReply::samples().into_iter().chain(of_none) {
                    let own = [$(matches!(reply, OpReply::$name(_))),*];
                    assert_eq!([$(turned::<$reply>(&reply)),*], own, "{reply:?}");
                }
            }
        }
    };
}

operations! {
    Schedule => ScheduleReply,
    Cancel => CancelReply,
    Reschedule => RescheduleReply,
    Replay => ReplayReply,
    Purge => PurgeReply,
    ExtendDeadline => ExtendDeadlineReply,
    BeginBulk => BeginBulkReply,
    StopBulk => StopBulkReply,
    Import => ImportReply,
    Configure => ConfigureReply,
}

impl RequestOp {
    /// Most bytes that it takes on the wire.
    pub fn bytes(&self) -> usize {
        NUMBERS + self.subject().bytes() + self.bytes_beside_subject()
    }
}
