//! Purge: a person removes a dead letter for good.

use mtimer_types::{InvalidTimer, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// Remove a dead or unconfirmed timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Purge {
    /// Which.
    pub id: TimerId,
}

/// Answers a purge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PurgeReply {
    /// It is removed.
    Done,
    /// Neither dead nor unconfirmed.
    NotFound,
}

impl Operation for Purge {
    type Reply = PurgeReply;

    const VERB: Verb = Verb::Operate;

    fn subject(&self) -> Subject<'_> {
        Subject::Retained(self.id)
    }

    fn check(&self, _: Time) -> Result<(), InvalidTimer> {
        Ok(())
    }

    fn samples() -> Vec<Self> {
        vec![Self { id: sample::id() }]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        Self { id: from.retained() }
    }
}

impl Reply for PurgeReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Done, Self::NotFound]
    }
}
