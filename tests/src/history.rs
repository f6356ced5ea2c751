//! What clients saw: every request with the times around it, every delivery, every outcome; and
//! what was done to brokers and stores meanwhile.

use std::collections::BTreeMap;

use mtimer_client::{Ended, TimerId, TimerState};

use crate::journal::Entry;
use crate::plan::Plan;

/// What a request was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Schedule: stored.
    Stored {
        /// Its id, where the test learns it.
        id: Option<TimerId>,
        /// What it replaced; `None` in the inner option: nothing. `None` in the outer: not said (a
        /// repeat).
        replaced: Option<Option<TimerId>>,
    },
    /// Cancel, reschedule: done.
    Done,
    /// Cancel, reschedule: too late.
    TooLate,
    /// Cancel, reschedule: nothing of that name.
    NotFound,
    /// Replay: another timer has the key, so nothing was done.
    KeyTaken,
    /// Certainly not done.
    Refused,
    /// It may or may not have been done.
    Unknown,
}

/// What a handler did with a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// Outcome ok.
    Ok,
    /// Outcome retry.
    Retry,
    /// Outcome fail.
    Fail,
}

/// Something of one timer. Times are ms since the epoch by the host's clock.
#[derive(Clone, Debug)]
pub enum Event {
    /// It was to be scheduled.
    Schedule {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// It was to be cancelled.
    Cancel {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// It was to be due at another time.
    Move {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The new time.
        due: u64,
        /// The answer.
        said: Said,
    },
    /// A dead letter was to be delivered again.
    Replay {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// A dead letter was to be removed.
    Purge {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// It was looked at.
    Looked {
        /// When answered.
        at: u64,
        /// Its state then.
        state: TimerState,
    },
    /// A repeat of its schedule was told that it has ended.
    Ended {
        /// When answered.
        at: u64,
        /// How it has ended.
        how: Ended,
    },
    /// A client got it.
    Delivered {
        /// When.
        at: u64,
        /// When, as the callback tells it.
        received: u64,
        /// What the client's clock showed when the handler began.
        client_clock: u64,
        /// Which client, of those that record.
        client: u32,
        /// Under this id.
        id: TimerId,
        /// The owner's epoch.
        epoch: u64,
        /// The attempt.
        attempt: u32,
        /// When it was due, as the broker says.
        due: u64,
        /// Key, destination, mode, payload and headers are those of the plan.
        intact: bool,
    },
    /// A handler returned.
    Settled {
        /// When.
        at: u64,
        /// The delivery's epoch.
        epoch: u64,
        /// The delivery's attempt.
        attempt: u32,
        /// What it said.
        outcome: Handled,
    },
}

impl Event {
    /// When it happened; the end, of what took time.
    pub fn at(&self) -> u64 {
        match self {
            Self::Schedule { answered, .. }
            | Self::Cancel { answered, .. }
            | Self::Move { answered, .. }
            | Self::Replay { answered, .. }
            | Self::Purge { answered, .. } => *answered,
            Self::Delivered { at, .. }
            | Self::Settled { at, .. }
            | Self::Ended { at, .. }
            | Self::Looked { at, .. } => *at,
        }
    }
}

/// What a fault excuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Excuse {
    /// Nothing: it was planned, and nobody is to notice.
    Nothing,
    /// Duplicates.
    #[default]
    Duplicates,
    /// Duplicates, and deliveries that arrive long after they were sent: a broker was stopped, or a
    /// connection held back what was on it.
    Delays,
    /// Whatever follows if the store has lost what it had answered just before.
    Losses,
}

/// Something that was done to the parties: from a kill, for example, until all is well again.
#[derive(Clone, Debug)]
pub struct Fault {
    /// From.
    pub from: u64,
    /// To.
    pub until: u64,
    /// What.
    pub what: String,
    /// What it excuses.
    pub excuse: Excuse,
}

/// What is asked of a history beyond the contract's words. Generous: a machine may be slow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Most ms from when a timer could have fired (due, stored, faults over) until it does.
    pub liveness_ms: Option<u64>,
    /// Most ms that a timer may wait while later ones of other destinations are delivered, without
    /// a fault.
    pub starving_ms: Option<u64>,
    /// Most ms that a broker's clock may be away from the reference.
    pub clock_ms: Option<u64>,
}

/// What a broker said of the time, and the reference clock around it. Times are ms since the epoch.
#[derive(Clone, Debug)]
pub struct ClockReading {
    /// Which broker.
    pub broker: String,
    /// The reference before the question was sent.
    pub before: u64,
    /// The cluster clock, as the broker says.
    pub says: u64,
    /// The reference when the answer was there.
    pub after: u64,
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The timers.
    pub plans: BTreeMap<u64, Plan>,
    /// What happened to them, in the order of recording.
    pub events: Vec<(u64, Event)>,
    /// Deliveries whose payload has no serial number of a plan.
    pub strangers: Vec<String>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// What the brokers' logs say.
    pub journal: Vec<Entry>,
    /// When the wall clock of a party jumped.
    pub jumps: Vec<u64>,
    /// What brokers said of the time.
    pub clocks: Vec<ClockReading>,
    /// What is asked of it.
    pub limits: Limits,
}
