//! Replay: a person has a dead letter delivered again.

use mtimer_types::{InvalidTimer, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// Deliver a dead or unconfirmed timer again, now, with a new retry budget.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replay {
    /// Which.
    pub id: TimerId,
}

/// Answers a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReplayReply {
    /// It is delivered again.
    Done,
    /// Neither dead nor unconfirmed.
    NotFound,
    /// This live timer has its key. Nothing changed.
    KeyTaken(TimerId),
}

impl Operation for Replay {
    type Reply = ReplayReply;

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

impl Reply for ReplayReply {
    fn not_done(&self) -> Option<NotDone> {
        match self {
            Self::KeyTaken(_) => Some(NotDone::KeyTaken),
            Self::Done | Self::NotFound => None,
        }
    }

    fn samples() -> Vec<Self> {
        vec![Self::Done, Self::NotFound, Self::KeyTaken(sample::id())]
    }
}
