//! What the module of an operation has to say.

use mtimer_types::{InvalidTimer, Time, Verb};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::subject::Subject;
use crate::reply::OpReply;

/// One kind of operation.
pub trait Operation: Serialize + DeserializeOwned {
    /// What a token has to allow.
    const VERB: Verb;

    /// What it is about.
    fn subject(&self) -> Subject<'_>;

    /// Checks the arguments.
    ///
    /// # Errors
    ///
    /// The first rule that is broken, with value and limit.
    fn check(&self, now: Time) -> Result<(), InvalidTimer>;

    /// Whether a reply that does not fit any operation ([`OpReply::fits_any`]) can be its answer.
    fn is_answered_by(reply: &OpReply) -> bool;
}
