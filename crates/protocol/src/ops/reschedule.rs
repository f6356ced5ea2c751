//! Reschedule: a client gives a timer another due time.

use mtimer_types::timer::check_distance;
use mtimer_types::{InvalidTimer, Target, Time, TimerId, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

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

/// Answers a reschedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RescheduleReply {
    /// The old time never fires. The id stays valid.
    Rescheduled(TimerId),
    /// Delivered, being delivered, or possibly so. Nothing changed.
    TooLate(TimerId),
    /// Nothing of that name.
    NotFound,
}

impl Operation for Reschedule {
    type Reply = RescheduleReply;

    const VERB: Verb = Verb::Cancel;

    fn subject(&self) -> Subject<'_> {
        Subject::Named(&self.target)
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        check_distance(self.due, now)
    }

    fn samples() -> Vec<Self> {
        let to = |target| Self { target, due: sample::time(9_000), request: 10 };
        vec![to(sample::by_key()), to(sample::id().into())]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        Self { due: from.time(), target: from.target(), request: from.request() }
    }
}

impl Reply for RescheduleReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Rescheduled(sample::id()), Self::TooLate(sample::id()), Self::NotFound]
    }
}
