//! A delivery and its outcome.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mtimer_types::{Destination, Epoch, HandlerOutcome, Headers, Key, Mode, Time, TimerId};
use serde::de::DeserializeOwned;
use tokio::time::sleep_until;

use crate::machine::Input;
use crate::machine::deadline::CallbackDeadline;
use crate::machine::origin::Origin;
use crate::schedule::ms_u32;
use crate::state::ClientState;

/// One delivery of a timer, the argument of a handler.
///
/// ```
/// use mtimer_client::{Callback, Outcome};
///
/// async fn remind(callback: Callback) -> Outcome {
///     let to = String::from_utf8_lossy(&callback.payload);
///     println!("attempt {} for {to}, {} ms late", callback.attempt, callback.lateness_ms());
///     Outcome::ok()
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Callback {
    /// The timer.
    pub id: TimerId,
    /// The application's key, if it was scheduled with one.
    pub key: Option<Key>,
    /// Whose callback it is.
    pub dest: Destination,
    /// When it was due, by the cluster clock.
    pub due: Time,
    /// 1 for the first attempt. (epoch, attempt) rises with every delivery of a timer.
    pub attempt: u32,
    /// The epoch of the owner that sent it.
    pub epoch: Epoch,
    /// At-most-once or at-least-once.
    pub mode: Mode,
    /// How long the handler may take, from when the broker sent it.
    pub timeout: Duration,
    /// The payload that was scheduled with it.
    pub payload: Bytes,
    pub(crate) headers: Headers,
    /// When it arrived, by this client's view of the cluster clock
    /// ([`Client::now`](crate::Client::now)). Never before [`Callback::due`].
    pub received: Time,
    pub(crate) deadline: Arc<CallbackDeadline>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) state: Arc<ClientState>,
}

impl Callback {
    /// Reads the payload as JSON.
    ///
    /// A handler that passes the error on with `?` asks for another attempt, which fails again: use
    /// [`Register::on_json`](crate::Register::on_json), or return [`Outcome::fail`].
    ///
    /// # Errors
    ///
    /// [`serde_json::Error`] if the payload is not JSON, has something behind it, or is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// Returns the headers that the timer was scheduled with.
    ///
    /// ```
    /// # fn tenant(callback: &mtimer_client::Callback) -> Option<&str> {
    /// callback.headers().get("tenant")
    /// # }
    /// ```
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns how many ms after its due time it arrived, by the cluster clock as this client sees
    /// it. The due time is the one that was asked for, also if it had passed by then; the broker's
    /// metrics count such a timer from when it was accepted.
    pub fn lateness_ms(&self) -> u64 {
        self.received.ms_since(self.due)
    }

    /// Asks for more time: the broker waits for the outcome this long from now, rounded up to ms
    /// and at most 24 h, instead of the time that was left.
    ///
    /// Returns at once. The broker does not answer. If the timer's partition has moved to another
    /// broker, that one is asked; if the connection breaks, the delivery is lost.
    pub fn extend(&self, by: Duration) {
        let by_ms = ms_u32(by).min(crate::limits::MAX_CALLBACK_TIMEOUT_MS);
        self.deadline.extend(self.state.clock.moment(), by_ms);
        let (over, id) = (Arc::clone(&self.origin), self.id);
        let (epoch, attempt) = (self.epoch, self.attempt);
        self.state.handle(Input::Extend { over, id, epoch, attempt, by_ms });
    }

    /// Completes when the callback's time is over: its timeout, as moved by [`Callback::extend`].
    /// The broker has counted the attempt as failed by then, and may have begun another; an
    /// [`Outcome::ok`] still settles a timer that lives.
    ///
    /// The client ends no handler: dropping one half way may leave its work half done. A handler
    /// that can be dropped ends itself:
    ///
    /// ```
    /// use mtimer_client::{Callback, Outcome};
    ///
    /// async fn charge(callback: Callback) -> Outcome {
    ///     tokio::select! {
    ///         outcome = call_the_bank(&callback) => outcome,
    ///         () = callback.timed_out() => Outcome::retry("the bank did not answer in time"),
    ///     }
    /// }
    /// # async fn call_the_bank(_: &Callback) -> Outcome { Outcome::ok() }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again.
    pub async fn timed_out(&self) {
        loop {
            let at = self.deadline.at();
            sleep_until(self.state.clock.instant(at)).await;
            if self.deadline.at() <= at {
                return;
            }
        }
    }
}

/// The outcome of one delivery, as a handler reports it.
///
/// A handler can return `()` and `Result<(), E>` in its place: `Err` is a [retry](Outcome::retry)
/// with the error's text.
///
/// ```
/// use mtimer_client::Outcome;
///
/// fn send(to: &str) -> Outcome {
///     match to.split_once('@') {
///         Some(_) => Outcome::ok(),
///         None => Outcome::fail(format_args!("{to:?} is no address")),
///     }
/// }
/// assert!(send("ada@example.org").is_ok());
/// assert_eq!(Outcome::from(Err::<(), _>("busy")), Outcome::retry("busy"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Outcome(pub(crate) HandlerOutcome);

impl Outcome {
    /// Settles the timer: it is done.
    pub const fn ok() -> Self {
        Self(HandlerOutcome::Ok)
    }

    /// Asks for another attempt, after the timer's next retry delay. When there is none left, the
    /// timer is a dead letter; at-most-once timers are at once.
    ///
    /// Of the error's text 512 bytes are kept with the timer, as its last error.
    pub fn retry(error: impl Display) -> Self {
        Self(HandlerOutcome::Retry { after_ms: None, error: cut(error) })
    }

    /// Asks for another attempt after `delay`, rounded up to ms and at most 30 days, if the retry
    /// delays leave another attempt; otherwise as [`Outcome::retry`].
    pub fn retry_after(delay: Duration, error: impl Display) -> Self {
        let after_ms = Some(ms_u32(delay).min(crate::limits::MAX_RETRY_DELAY_MS));
        Self(HandlerOutcome::Retry { after_ms, error: cut(error) })
    }

    /// Postpones the timer: not now, deliver it again after `delay`, rounded up to ms. That uses no
    /// retry, and no capacity while it waits. A [late ok](Callback::timed_out) of this attempt does
    /// nothing any more.
    ///
    /// A timer whose handlers have answered later 20 times in a row has failed the next time; an
    /// at-most-once timer is a dead letter at once. Its deadline goes on.
    ///
    /// `delay` is at most 24 hours. A longer one is a mistake: the outcome is a
    /// [retry](Outcome::retry) then, whose error says so.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use mtimer_client::Outcome;
    ///
    /// fn charge(is_bank_open: bool) -> Outcome {
    ///     if is_bank_open { Outcome::ok() } else { Outcome::later(Duration::from_secs(3_600)) }
    /// }
    /// assert!(!charge(false).is_ok());
    /// ```
    pub fn later(delay: Duration) -> Self {
        let (after_ms, longest) = (ms_u32(delay), crate::limits::MAX_LATER_MS);
        if after_ms > longest {
            let error = format_args!(
                "the handler answered later, in {delay:?}: 24 hours are the longest; use a shorter delay, or \
                 schedule another timer"
            );
            return Self::retry(error);
        }
        Self(HandlerOutcome::Later { after_ms })
    }

    /// Gives up: the timer is a dead letter at once, with the error as its last.
    pub fn fail(error: impl Display) -> Self {
        Self(HandlerOutcome::Fail { error: cut(error) })
    }

    /// Says whether it is [`Outcome::ok`].
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

/// The error's text, cut at a character boundary to the bytes that a broker keeps.
fn cut(error: impl Display) -> String {
    let mut text = error.to_string();
    let mut end = text.len().min(crate::limits::MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
