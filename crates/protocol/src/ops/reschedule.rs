//! Reschedule: a client gives a timer another due time.

use mtimer_types::timer::check_distance;
use mtimer_types::{InvalidTimer, Target, Time, Verb};
use serde::{Deserialize, Serialize};

use super::operation::Operation;
use super::subject::Subject;
use crate::reply::OpReply;

/// Give a timer another due time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reschedule {
    /// Which.
    pub target: Target,
    /// The new due time.
    pub due: Time,
    /// Random, the same in every repeat.
    pub request: u64,
}

impl Operation for Reschedule {
    const VERB: Verb = Verb::Cancel;

    fn subject(&self) -> Subject<'_> {
        Subject::Named(&self.target)
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        check_distance(self.due, now)
    }

    fn is_answered_by(reply: &OpReply) -> bool {
        matches!(reply, OpReply::Rescheduled(_) | OpReply::TooLate(_) | OpReply::NotFound)
    }
}
