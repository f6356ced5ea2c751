//! One delivery, and what a handler says of it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mtimer_types::{Destination, Epoch, HandlerOutcome, Key, Mode, Time, TimerId};
use serde::de::DeserializeOwned;

use crate::line::Line;
use crate::schedule::ms_u32;
use crate::shared::Shared;

/// One delivery of a timer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Callback {
    /// The timer.
    pub id: TimerId,
    /// The application's key.
    pub key: Option<Key>,
    /// Whose callback it is.
    pub dest: Destination,
    /// When it was due, by the cluster clock.
    pub due: Time,
    /// 1 for the first delivery. (epoch, attempt) rises with every delivery of a timer.
    pub attempt: u32,
    /// The epoch of the owner that sent it.
    pub epoch: Epoch,
    /// At-most-once or at-least-once.
    pub mode: Mode,
    /// How long the handler may take, from the sending.
    pub timeout: Duration,
    /// What was scheduled with it.
    pub payload: Bytes,
    /// When it arrived, by this client's view of the cluster clock ([`Client::now`](crate::Client::now)).
    pub received: Time,
    pub(crate) line: Arc<Line>,
    pub(crate) shared: Arc<Shared>,
}

impl Callback {
    /// The payload as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// How many ms after its due time it arrived, by the cluster clock as this client sees it.
    pub fn lateness_ms(&self) -> u64 {
        self.received.ms_since(self.due)
    }

    /// Asks for more time: the broker waits for the outcome this long from now, at most 24 h, instead of what was left.
    ///
    /// Returns at once. The broker does not answer. If the timer's partition has moved to another broker, that one is asked;
    /// if the connection breaks, the delivery is lost.
    pub fn extend(&self, by: Duration) {
        self.shared.extend(
            &self.line,
            self.id,
            self.epoch,
            self.attempt,
            ms_u32(by).min(crate::limits::MAX_CALLBACK_TIMEOUT_MS),
        );
    }
}

/// What a handler says of one delivery.
///
/// `()` and `Result<(), E>` can be returned in its place: `Err` is a [retry](Outcome::retry) with the error's text.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Outcome(pub(crate) HandlerOutcome);

impl Outcome {
    /// Done.
    pub const fn ok() -> Self {
        Self(HandlerOutcome::Ok)
    }

    /// Not done: try again by the timer's retry tiers. At-most-once timers become dead letters instead.
    pub fn retry(error: impl Display) -> Self {
        Self(HandlerOutcome::Retry { after_ms: None, error: cut(error) })
    }

    /// Not done: try again after `delay` (rounded up to ms), if the retry tiers leave another attempt.
    pub fn retry_after(delay: Duration, error: impl Display) -> Self {
        let after_ms = Some(ms_u32(delay).min(crate::limits::MAX_RETRY_DELAY_MS));
        Self(HandlerOutcome::Retry { after_ms, error: cut(error) })
    }

    /// It will never be done: dead letter now.
    pub fn fail(error: impl Display) -> Self {
        Self(HandlerOutcome::Fail { error: cut(error) })
    }

    /// Whether it is [`Outcome::ok`].
    pub fn is_ok(&self) -> bool {
        self.0 == HandlerOutcome::Ok
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::ok()
    }
}

impl<E: Display> From<Result<(), E>> for Outcome {
    fn from(result: Result<(), E>) -> Self {
        result.map_or_else(Self::retry, Self::from)
    }
}

/// The error's text, cut at a character to what a broker keeps.
fn cut(error: impl Display) -> String {
    let mut text = error.to_string();
    let mut end = text.len().min(crate::limits::MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
