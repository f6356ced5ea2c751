//! Purge: a person removes a dead letter for good.

use mtimer_types::{InvalidTimer, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::Operation;
use super::subject::Subject;
use crate::reply::OpReply;

/// Remove a dead or unconfirmed timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Purge {
    /// Which.
    pub id: TimerId,
}

impl Operation for Purge {
    const VERB: Verb = Verb::Operate;

    fn subject(&self) -> Subject<'_> {
        Subject::Retained(self.id)
    }

    fn check(&self, _: Time) -> Result<(), InvalidTimer> {
        Ok(())
    }

    fn is_answered_by(reply: &OpReply) -> bool {
        matches!(reply, OpReply::Done | OpReply::NotFound)
    }
}
