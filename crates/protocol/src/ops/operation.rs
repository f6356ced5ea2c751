//! The trait that each module of an operation implements.

use mtimer_types::{InvalidTimer, Time, Verb};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::subject::Subject;
use crate::error::ErrorCode;
use crate::sample::Source;

/// One kind of operation.
pub trait Operation: Serialize + DeserializeOwned {
    /// How it is answered once it was done, or could not be for a reason of its own.
    type Reply: Reply;

    /// The verb that a token has to allow.
    const VERB: Verb;

    /// The timer or key that it is about.
    fn subject(&self) -> Subject<'_>;

    /// Checks the arguments.
    ///
    /// # Errors
    ///
    /// The first rule that is broken, with value and limit.
    fn check(&self, now: Time) -> Result<(), InvalidTimer>;

    /// Most bytes that it takes on the wire beside its subject and numbers.
    fn bytes_beside_subject(&self) -> usize {
        0
    }

    /// Values for tests over all operations: one of each form that it has on the wire. New ones go
    /// to the end.
    fn samples() -> Vec<Self>;

    /// One with arbitrary values, for simulated clients and fuzzers.
    fn arbitrary(from: &mut impl Source) -> Self;
}

/// Why an operation was not done, as brokers count it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotDone {
    /// It failed, so.
    Failed(ErrorCode),
    /// Another broker is to be asked.
    Moved,
    /// Another live timer has the key.
    KeyTaken,
    /// The id is in use with other content.
    Conflict,
    /// The timer of the id has ended.
    Ended,
}

/// The replies of one kind of operation.
pub trait Reply: Serialize + DeserializeOwned {
    /// Why it was not done, if brokers count that. Too late or not found is an answer like others.
    fn not_done(&self) -> Option<NotDone>;

    /// Values for tests over all operations: at least one of each variant. New ones go to the end.
    fn samples() -> Vec<Self>;
}
