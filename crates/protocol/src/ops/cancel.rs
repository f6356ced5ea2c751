//! Cancel: a client takes a timer back.

use mtimer_types::{InvalidTimer, Target, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// Cancel a timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// Which.
    pub target: Target,
    /// Random, the same in every repeat.
    pub request: u64,
}

/// Answers a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CancelReply {
    /// No delivery starts after this answer, by any broker.
    Cancelled(TimerId),
    /// Delivered, being delivered, or possibly so. No further attempt follows.
    TooLate(TimerId),
    /// Nothing of that name.
    NotFound,
}

impl Operation for Cancel {
    type Reply = CancelReply;

    const VERB: Verb = Verb::Cancel;

    fn subject(&self) -> Subject<'_> {
        Subject::Named(&self.target)
    }

    fn check(&self, _: Time) -> Result<(), InvalidTimer> {
        Ok(())
    }

    fn samples() -> Vec<Self> {
        vec![Self { target: sample::id().into(), request: 9 }, Self { target: sample::by_key(), request: 9 }]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        Self { target: from.target(), request: from.request() }
    }
}

impl Reply for CancelReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Cancelled(sample::id()), Self::TooLate(sample::id()), Self::NotFound]
    }
}
