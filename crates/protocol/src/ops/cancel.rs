//! Cancel: a client takes a timer back.

use mtimer_types::{InvalidTimer, Target, Time, Verb};
use serde::{Deserialize, Serialize};

use super::operation::Operation;
use super::subject::Subject;
use crate::reply::OpReply;

/// Cancel a timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// Which.
    pub target: Target,
    /// Random, the same in every repeat.
    pub request: u64,
}

impl Operation for Cancel {
    const VERB: Verb = Verb::Cancel;

    fn subject(&self) -> Subject<'_> {
        Subject::Named(&self.target)
    }

    fn check(&self, _: Time) -> Result<(), InvalidTimer> {
        Ok(())
    }

    fn is_answered_by(reply: &OpReply) -> bool {
        matches!(reply, OpReply::Cancelled(_) | OpReply::TooLate(_) | OpReply::NotFound)
    }
}
