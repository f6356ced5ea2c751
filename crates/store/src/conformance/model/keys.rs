//! Policies for keys that compute the due time, in the model.

use mtimer_types::{KeyPolicy, Time, TimerId};

use super::{Entry, Model};
use crate::ops::Schedule;
use crate::{Place, ScheduleAnswer};

impl Model {
    /// When the timer of a schedule is due, and when its chain of debounces has begun.
    /// `waits`: the timer that has the key, if nobody is at it.
    pub(super) fn due_by_policy(now: Time, op: &Schedule, waits: Option<&Entry>) -> (Time, Option<Time>) {
        // That of the next attempt counts once one has failed.
        let other = waits.map(|e| match e.place {
            Place::Pending { fire, .. } if e.progress.failed != 0 => fire,
            _ => e.timer.due,
        });
        let own = op.timer.due;
        match (op.policy, other) {
            (KeyPolicy::Latest, Some(other)) => (if other > own { other } else { own }, None),
            (KeyPolicy::Earliest, Some(other)) => (if other < own { other } else { own }, None),
            (KeyPolicy::Debounce { quiet_ms, max_ms }, _) => {
                let chain = waits.filter(|e| e.progress.failed == 0).and_then(|e| e.debounced);
                let (quiet, first) = (now + u64::from(quiet_ms), chain.unwrap_or(now));
                let last = first + u64::from(max_ms);
                (if quiet > last { last } else { quiet }, Some(first))
            }
            (KeyPolicy::Latest | KeyPolicy::Earliest, None) => (own, None),
            (KeyPolicy::Create | KeyPolicy::Replace | KeyPolicy::Keep, _) => (own, None),
        }
    }

    pub(super) fn scheduled(
        op: &Schedule,
        new: bool,
        replaced: Option<TimerId>,
        due: Time,
    ) -> ScheduleAnswer {
        match op.policy {
            KeyPolicy::Create | KeyPolicy::Replace | KeyPolicy::Keep => {
                ScheduleAnswer::Scheduled { new, replaced }
            }
            KeyPolicy::Latest | KeyPolicy::Earliest | KeyPolicy::Debounce { .. } => {
                ScheduleAnswer::Timed { new, replaced, due }
            }
        }
    }
}
