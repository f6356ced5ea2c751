//! Deliveries, and their outcomes.
//!
//! The order of variants and fields is the wire format, see [`crate::message`].

use bytes::Bytes;
use mtimer_types::timer::bytes;
use mtimer_types::{Epoch, HandlerOutcome, Headers, Key, Mode, Time, TimerId};
use serde::{Deserialize, Serialize};

/// One callback.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Delivery {
    /// The timer. Its partition is in the id.
    pub id: TimerId,
    /// The application's key.
    pub key: Option<Key>,
    /// When it was due.
    pub due: Time,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// 1 for the first delivery.
    pub attempt: u32,
    /// At-most-once or at-least-once.
    pub mode: Mode,
    /// How long the handler may take, in ms from the sending.
    pub timeout_ms: u32,
    /// The payload.
    #[serde(deserialize_with = "bytes")]
    pub payload: Bytes,
    /// The timer's headers.
    pub headers: Headers,
}

impl Delivery {
    /// Returns the bytes of payload and headers, the variable part of a delivery's size.
    pub fn content_bytes(&self) -> usize {
        self.payload.len() + self.headers.bytes()
    }
}

/// The outcome of one delivery.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settlement {
    /// Which timer.
    pub id: TimerId,
    /// The delivery's epoch.
    pub epoch: Epoch,
    /// The delivery's attempt.
    pub attempt: u32,
    /// The outcome.
    pub outcome: HandlerOutcome,
}

/// Why a settlement was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum SettleRefusal {
    /// The delivery was not this session's.
    NotYours,
    /// Too late: the delivery had timed out or the timer has ended. (A late `ok` still settles a
    /// live timer.)
    Late,
    /// The partition is another broker's by now: send it there. The topology says who.
    Moved,
}
