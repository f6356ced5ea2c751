//! Schedule: a client hands over a new timer.

use std::sync::Arc;

use mtimer_types::{InvalidTimer, KeyPolicy, Time, Timer, Verb};
use serde::{Deserialize, Deserializer, Serialize};

use super::operation::Operation;
use super::subject::Subject;
use crate::reply::OpReply;

/// Schedule a timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// The timer.
    #[serde(deserialize_with = "shared")]
    pub timer: Arc<Timer>,
    /// If its key is taken.
    pub policy: KeyPolicy,
}

/// Reads a timer into the place where it stays: it is shared from then on.
fn shared<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<Timer>, D::Error> {
    Timer::deserialize(d).map(Arc::new)
}

impl Operation for Schedule {
    const VERB: Verb = Verb::Schedule;

    fn subject(&self) -> Subject<'_> {
        Subject::New(&self.timer)
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        self.timer.validate(now)
    }

    fn is_answered_by(reply: &OpReply) -> bool {
        use OpReply as R;
        matches!(reply, R::Scheduled { .. } | R::Kept { .. } | R::KeyTaken(_) | R::Conflict | R::Ended(_))
    }
}
