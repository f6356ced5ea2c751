//! Questions about timers, brokers and the cluster, and their answers. None changes a timer.
//!
//! The order of variants and fields is the wire format, see [`crate::message`].

use mtimer_types::limits::{MAX_BROKERS, MAX_PAGE};
use mtimer_types::{DeadReason, Destination, Epoch, Target, Time, Timer};
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::cluster::{BrokerView, ClusterView};
use crate::error::ErrorCode;

/// Most rows of a page.
const MAX_ROWS: usize = MAX_PAGE as usize;
/// Most counters of a status.
const MAX_COUNTERS: usize = 1_000;
/// Most reasons why a broker is not ready.
const MAX_REASONS: usize = 100;
/// Most destinations with parked timers that a status names.
pub const MAX_PARKED_DESTINATIONS: usize = 10;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// One timer, live or dead.
    Get(Target),
    /// Dead letters, oldest first in each partition.
    Dead {
        /// Only of this group.
        group: Option<String>,
        /// Only of this app.
        app: Option<String>,
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// At-most-once timers that were claimed and never confirmed.
    Unconfirmed {
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// The broker's state.
    Status,
    /// The cluster as this broker sees it.
    Cluster,
    /// This broker in detail.
    Broker,
    /// Empties a broker for maintenance, or gives it partitions again. Only the leader does it.
    Drain {
        /// The broker's address, as in the topology.
        broker: String,
        /// Whether to empty it, or to end that.
        drain: bool,
    },
    /// Whether this broker is ready, as its `/readyz` says. Asks neither the store nor others.
    Ready,
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QueryAnswer {
    /// To [`Query::Get`].
    Timer(Option<TimerView>),
    /// To [`Query::Dead`].
    Dead {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<DeadRow>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Unconfirmed`].
    Unconfirmed {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<UnconfirmedRow>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Status`].
    Status(Status),
    /// No answer.
    Failed {
        /// The kind.
        code: ErrorCode,
        /// For people.
        message: String,
    },
    /// No answer: this partition is another broker's. Ask there.
    Moved {
        /// Its address.
        owner: String,
    },
    /// To [`Query::Cluster`].
    Cluster(ClusterView),
    /// To [`Query::Broker`].
    Broker(BrokerView),
    /// To [`Query::Drain`]: the leader has taken note; the topology shows how far it is.
    Done,
    /// To [`Query::Ready`]: why it is not, for people; empty if it is.
    Ready(#[serde(deserialize_with = "at_most::<MAX_REASONS, _, _>")] Vec<String>),
}

/// A timer as `get` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimerView {
    /// The timer.
    pub timer: Timer,
    /// Where it stands.
    pub state: TimerState,
    /// Failed attempts so far.
    pub failed: u32,
    /// A cancel came too late: no attempt follows.
    pub stopped: bool,
    /// The last error.
    pub last_error: Option<String>,
}

/// Where a timer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimerState {
    /// Waits for its due time.
    Pending {
        /// When it is delivered.
        fire: Time,
    },
    /// Waits for its next attempt.
    Retrying {
        /// When it is delivered.
        fire: Time,
        /// The tier.
        tier: u8,
    },
    /// Waits for a client of its destination.
    Parked,
    /// Sent, not settled.
    InFlight {
        /// Under this epoch.
        epoch: Epoch,
        /// This attempt.
        attempt: u32,
    },
    /// At-most-once, claimed and never confirmed.
    Unconfirmed,
    /// A dead letter.
    Dead,
}

/// A dead letter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeadRow {
    /// The timer with its payload.
    pub timer: Timer,
    /// Why.
    pub reason: DeadReason,
    /// Failed attempts.
    pub attempts: u32,
    /// The last error.
    pub last_error: Option<String>,
    /// When it died.
    pub died: Time,
}

/// An at-most-once timer that was claimed and never confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnconfirmedRow {
    /// The timer with its payload.
    pub timer: Timer,
    /// Claimed by this owner.
    pub epoch: Epoch,
}

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
