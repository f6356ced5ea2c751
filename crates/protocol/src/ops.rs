//! What clients ask for: one module for each operation.
//!
//! The order of the operations is the wire format, see `message`. Their answers are in `reply`.

mod cancel;
mod operation;
mod purge;
mod replay;
mod reschedule;
mod schedule;
mod subject;

use mtimer_types::{InvalidTimer, Time, Verb};
use serde::{Deserialize, Serialize};

pub use self::cancel::Cancel;
pub use self::operation::Operation;
pub use self::purge::Purge;
pub use self::replay::Replay;
pub use self::reschedule::Reschedule;
pub use self::schedule::Schedule;
pub use self::subject::Subject;
use crate::reply::OpReply;

/// Most bytes of the numbers of an operation on the wire.
const NUMBERS: usize = 128;

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// One operation.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "each variant is the operation of that name")]
        pub enum RequestOp {
            $($name($name)),*
        }

        $(impl From<$name> for RequestOp {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*

        impl RequestOp {
            /// The names of all operations, in their order.
            pub const NAMES: [&'static str; [$(stringify!($name)),*].len()] = [$(stringify!($name)),*];

            /// What a token has to allow.
            pub const fn verb(&self) -> Verb {
                match self {
                    $(Self::$name(_) => <$name as Operation>::VERB),*
                }
            }

            /// What it is about.
            pub fn subject(&self) -> Subject<'_> {
                match self {
                    $(Self::$name(op) => op.subject()),*
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
            pub fn is_answered_by(&self, reply: &OpReply) -> bool {
                reply.fits_any()
                    || match self {
                        $(Self::$name(_) => <$name as Operation>::is_answered_by(reply)),*
                    }
            }
        }
    };
}

operations!(Schedule, Cancel, Reschedule, Replay, Purge);

impl RequestOp {
    /// Most bytes that it takes on the wire.
    pub fn bytes(&self) -> usize {
        NUMBERS + self.subject().bytes()
    }
}
