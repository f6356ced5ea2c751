//! Extend deadline: a client gives a live timer another deadline.

use mtimer_types::timer::check_distance;
use mtimer_types::{InvalidTimer, Target, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// Give a live timer another deadline, later or earlier.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExtendDeadline {
    /// Which.
    pub target: Target,
    /// The new deadline.
    pub deadline: Time,
    /// Random, the same in every repeat.
    pub request: u64,
}

/// Answers an extension of the deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtendDeadlineReply {
    /// No delivery begins after the new deadline, and until then the timer does not expire.
    Extended(TimerId),
    /// No attempt follows: it was cancelled while a delivery was under way, is at-most-once and was
    /// taken, or is dead. Nothing changed.
    TooLate(TimerId),
    /// Nothing of that name; also if it has expired.
    NotFound,
}

impl Operation for ExtendDeadline {
    type Reply = ExtendDeadlineReply;

    const VERB: Verb = Verb::Cancel;

    fn subject(&self) -> Subject<'_> {
        Subject::Named(&self.target)
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        check_distance(self.deadline, now)
    }

    fn samples() -> Vec<Self> {
        let to = |target| Self { target, deadline: sample::time(9_000), request: 11 };
        vec![to(sample::by_key()), to(sample::id().into())]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        Self { deadline: from.time(), target: from.target(), request: from.request() }
    }
}

impl Reply for ExtendDeadlineReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Extended(sample::id()), Self::TooLate(sample::id()), Self::NotFound]
    }
}
