//! Replay: a person has a dead letter delivered again.

use mtimer_types::{InvalidTimer, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::Operation;
use super::subject::Subject;
use crate::reply::OpReply;

/// Deliver a dead or unconfirmed timer again, now, with a new retry budget.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replay {
    /// Which.
    pub id: TimerId,
}

impl Operation for Replay {
    const VERB: Verb = Verb::Operate;

    fn subject(&self) -> Subject<'_> {
        Subject::Retained(self.id)
    }

    fn check(&self, _: Time) -> Result<(), InvalidTimer> {
        Ok(())
    }

    fn is_answered_by(reply: &OpReply) -> bool {
        matches!(reply, OpReply::Done | OpReply::KeyTaken(_) | OpReply::NotFound)
    }
}
