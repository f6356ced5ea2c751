//! Schedule: a client hands over a new timer.

use std::sync::Arc;

use mtimer_types::{Ended, InvalidTimer, KeyPolicy, Time, Timer, TimerId, Verb};
use serde::{Deserialize, Deserializer, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// Schedule a timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// The timer.
    #[serde(deserialize_with = "shared")]
    pub timer: Arc<Timer>,
    /// If its key is taken.
    pub policy: KeyPolicy,
}

/// Answers a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ScheduleReply {
    /// Stored at the broker's durability level.
    Scheduled {
        /// False: an earlier request with the same content had stored it.
        new: bool,
        /// The timer that this one replaced.
        replaced: Option<TimerId>,
    },
    /// With keep: a live timer has the key.
    Kept {
        /// Which.
        id: TimerId,
        /// An attempt to deliver it has begun, or may have, or it was stopped: its handler may have
        /// read the state of before this request.
        being_delivered: bool,
    },
    /// With create: this live timer has the key. Nothing changed.
    KeyTaken(TimerId),
    /// The id is in use with other content. Nothing changed.
    Conflict,
    /// The timer of this id has ended already, so.
    Ended(Ended),
    /// As [`Self::Scheduled`], by a policy with which the owner computes the due time.
    Timed {
        /// False: an earlier request with the same content had stored it.
        new: bool,
        /// The timer that this one replaced.
        replaced: Option<TimerId>,
        /// When it is due.
        due: Time,
    },
}

/// Reads a timer into the place where it stays: it is shared from then on.
pub(super) fn shared<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<Timer>, D::Error> {
    Timer::deserialize(d).map(Arc::new)
}

impl Operation for Schedule {
    type Reply = ScheduleReply;

    const VERB: Verb = Verb::Schedule;

    fn subject(&self) -> Subject<'_> {
        Subject::New(&self.timer)
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        self.policy.validate()?;
        self.timer.validate(now)
    }

    fn samples() -> Vec<Self> {
        let timers = [sample::plain_timer(), sample::full_timer()].map(Arc::new);
        let policies = [KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep];
        let computing =
            [KeyPolicy::Latest, KeyPolicy::Earliest, KeyPolicy::Debounce { quiet_ms: 5_000, max_ms: 60_000 }];
        let with = |timer: &Arc<Timer>, policy| Self { timer: Arc::clone(timer), policy };
        let of = |timer: &Arc<Timer>| policies.map(|policy| with(timer, policy));
        timers.iter().flat_map(of).chain(computing.map(|policy| with(&timers[0], policy))).collect()
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        let (timer, policy) = from.timer();
        Self { timer, policy }
    }
}

impl Reply for ScheduleReply {
    fn not_done(&self) -> Option<NotDone> {
        match self {
            Self::Scheduled { .. } | Self::Timed { .. } | Self::Kept { .. } => None,
            Self::KeyTaken(_) => Some(NotDone::KeyTaken),
            Self::Conflict => Some(NotDone::Conflict),
            Self::Ended(_) => Some(NotDone::Ended),
        }
    }

    fn samples() -> Vec<Self> {
        let id = sample::id();
        let answered = [
            Self::Scheduled { new: true, replaced: None },
            Self::Scheduled { new: false, replaced: Some(id) },
            Self::Kept { id, being_delivered: true },
            Self::KeyTaken(id),
            Self::Conflict,
        ];
        let ended = [
            Ended::Acknowledged,
            Ended::Cancelled,
            Ended::Replaced,
            Ended::Expired,
            Ended::Dead,
            Ended::CancelledUnseen,
        ];
        let timed = [
            Self::Timed { new: true, replaced: Some(id), due: id.birth_due() },
            Self::Timed { new: false, replaced: None, due: Time::ZERO },
        ];
        answered.into_iter().chain(ended.map(Self::Ended)).chain(timed).collect()
    }
}
