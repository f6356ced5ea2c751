//! A broker's state in numbers.

use mtimer_types::limits::MAX_BROKERS;
use mtimer_types::{DeliveryLimits, Destination, Pause};
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;

/// Most counters of a status.
const MAX_COUNTERS: usize = 1_000;
/// Most destinations with parked timers that a status names.
pub const MAX_PARKED_DESTINATIONS: usize = 10;
/// Most paused destinations that a status names.
pub const MAX_PAUSED_DESTINATIONS: usize = 10;
/// Most destinations that their limits hold back that a status names.
pub const MAX_LIMITED_DESTINATIONS: usize = 10;

/// A broker's state in numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Sessions past the handshake.
    pub sessions: u64,
    /// Timers in memory.
    pub loaded: u64,
    /// Payload and bookkeeping bytes of timers in memory (estimate).
    pub loaded_bytes: u64,
    /// Deliveries not settled.
    pub in_flight: u64,
    /// Due, waiting for claim or credit.
    pub ready: u64,
    /// In the store: first delivery to come.
    pub pending: u64,
    /// In the store: retries to come.
    pub retrying: u64,
    /// In the store: parked.
    pub parked: u64,
    /// In the store: at-most-once timers taken.
    pub taken: u64,
    /// In the store: dead letters.
    pub dead: u64,
    /// In the store: index entries and the like without a timer; 0 after a drain.
    pub residue: u64,
    /// In the store: live keys.
    pub keys: u64,
    /// In the store: staged by imports.
    pub staged: u64,
    /// Counters since start, by name, in order of name. Those whose names end in `_ms` are
    /// durations: of several brokers the longest counts, not the sum.
    #[serde(deserialize_with = "at_most::<MAX_COUNTERS, _, _>")]
    pub counters: Vec<(String, u64)>,
    /// Destinations with parked timers, those with the most of them first; at most
    /// [`MAX_PARKED_DESTINATIONS`].
    #[serde(deserialize_with = "at_most::<MAX_PARKED_DESTINATIONS, _, _>")]
    pub parked_destinations: Vec<ParkedDestination>,
    /// Brokers that were lost within the last hour and have not come back, and how long ago, ms.
    #[serde(deserialize_with = "at_most::<MAX_BROKERS, _, _>")]
    pub lost_brokers: Vec<(String, u64)>,
    /// Leaders that a broker has not reached for a while, and why, for people.
    #[serde(deserialize_with = "at_most::<MAX_BROKERS, _, _>")]
    pub unreached_leaders: Vec<(String, String)>,
    /// Destinations that are paused, those that have been for longest first; at most
    /// [`MAX_PAUSED_DESTINATIONS`].
    #[serde(deserialize_with = "at_most::<MAX_PAUSED_DESTINATIONS, _, _>")]
    pub paused_destinations: Vec<PausedDestination>,
    /// Destinations of which their limits alone hold back what is due, those whose timers have
    /// waited for longest first; at most [`MAX_LIMITED_DESTINATIONS`].
    #[serde(deserialize_with = "at_most::<MAX_LIMITED_DESTINATIONS, _, _>")]
    pub limited_destinations: Vec<LimitedDestination>,
}

/// A destination with parked timers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParkedDestination {
    /// Which.
    pub dest: Destination,
    /// Its parked timers; about.
    pub parked: u64,
    /// Sessions registered for it.
    pub sessions: u64,
}

/// A destination that is paused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PausedDestination {
    /// Which.
    pub dest: Destination,
    /// The version of its settings.
    pub version: u64,
    /// The pause.
    pub pause: Pause,
}

/// A destination of which its limits alone hold back what is due.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LimitedDestination {
    /// Which.
    pub dest: Destination,
    /// The limits.
    pub limits: DeliveryLimits,
    /// Its timers that are due and wait; about.
    pub waiting: u64,
    /// For how long the oldest of them has waited, ms.
    pub oldest_ms: u64,
}
