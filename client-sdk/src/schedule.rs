//! What an application asks for.

use std::time::Duration;

use bytes::Bytes;
use mtimer_types::timer::InvalidTimer;
use mtimer_types::{Destination, Key, KeyPolicy, Mode, RetryTiers, Time, Timer, TimerId};
use serde::Serialize;

/// A point in time: named, or counted from the moment of the call by the cluster clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At this time.
    At(Time),
    /// So long after the call; fractions of a millisecond are rounded up.
    After(Duration),
}

impl When {
    pub(crate) fn time(self, now: Time) -> Time {
        match self {
            Self::At(time) => time,
            Self::After(after) => now + ms_up(after),
        }
    }
}

impl From<Time> for When {
    fn from(time: Time) -> Self {
        Self::At(time)
    }
}

impl From<Duration> for When {
    fn from(after: Duration) -> Self {
        Self::After(after)
    }
}

/// A timer to be scheduled.
///
/// ```
/// use std::time::Duration;
/// use mtimer_client::{Destination, Key, KeyPolicy, Schedule};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let schedule = Schedule::after(Destination::new("orders", "billing")?, Duration::from_secs(900))
///     .key(Key::new("order-17")?)
///     .policy(KeyPolicy::Replace)
///     .retry([Duration::from_secs(1), Duration::from_secs(30)])
///     .json(&serde_json::json!({ "order": 17 }))?;
/// # let _ = schedule;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a schedule does nothing until it is given to Client::schedule"]
pub struct Schedule {
    pub(crate) dest: Destination,
    pub(crate) when: When,
    pub(crate) id: Option<TimerId>,
    pub(crate) key: Option<Key>,
    pub(crate) policy: KeyPolicy,
    mode: Mode,
    deadline: Option<When>,
    callback_timeout: Option<Duration>,
    retry: Option<RetryTiers>,
    payload: Bytes,
}

impl Schedule {
    /// A timer due so long after it is scheduled. A second call with a clone makes a second timer, unless it has an id.
    pub fn after(dest: Destination, after: Duration) -> Self {
        Self::new(dest, When::After(after))
    }

    /// A timer due at `time` by the cluster clock. A time in the past is due at once.
    pub fn at(dest: Destination, time: Time) -> Self {
        Self::new(dest, When::At(time))
    }

    /// A timer due then.
    pub fn new(dest: Destination, when: impl Into<When>) -> Self {
        Self {
            dest,
            when: when.into(),
            id: None,
            key: None,
            policy: KeyPolicy::default(),
            mode: Mode::default(),
            deadline: None,
            callback_timeout: None,
            retry: None,
            payload: Bytes::new(),
        }
    }

    /// Uses this id instead of a new one, so that a repeat is recognised. The id carries the due time: with
    /// [`Schedule::after`] the id's counts, with [`Schedule::at`] both must be equal.
    pub fn id(mut self, id: TimerId) -> Self {
        self.id = Some(id);
        self
    }

    /// Gives it a key, unique within its destination while the timer is live.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// What happens if the key names a live timer already. Default: [`KeyPolicy::Create`].
    pub fn policy(mut self, policy: KeyPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How often it may be delivered. Default: [`Mode::AtLeastOnce`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// After this time it is not delivered any more. Not before the due time. Default: none.
    pub fn deadline(mut self, deadline: impl Into<When>) -> Self {
        self.deadline = Some(deadline.into());
        self
    }

    /// How long a handler may take, 100 ms to 24 h. Default: the broker's.
    pub fn callback_timeout(mut self, timeout: Duration) -> Self {
        self.callback_timeout = Some(timeout);
        self
    }

    /// Its own delays before attempts 2, 3, ...: at most 32 of at most 30 days; none means one attempt only.
    /// Default: the destination's or the cluster's.
    pub fn retry(mut self, delays: impl IntoIterator<Item = Duration>) -> Self {
        self.retry = Some(RetryTiers(delays.into_iter().map(ms_u32).collect()));
        self
    }

    /// What the handler gets: up to 64 KiB. Default: nothing.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// What the handler gets, as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, payload: &T) -> Result<Self, serde_json::Error> {
        self.payload = serde_json::to_vec(payload)?.into();
        Ok(self)
    }

    /// What [`Schedule::resolve`] made, to be resolved again to the same.
    pub(crate) fn fixed(timer: Timer, policy: KeyPolicy) -> Self {
        Self {
            dest: timer.dest,
            when: When::At(timer.due),
            id: Some(timer.id),
            key: timer.key,
            policy,
            mode: timer.mode,
            deadline: timer.deadline.map(When::At),
            callback_timeout: timer.callback_timeout_ms.map(|ms| Duration::from_millis(ms.into())),
            retry: timer.retry,
            payload: timer.payload,
        }
    }

    /// Fixes due time, deadline and id, and checks the limits. `new_id` makes an id for a due time.
    pub(crate) fn resolve(
        mut self,
        now: Time,
        new_id: impl FnOnce(&Destination, Option<&Key>, Time) -> TimerId,
    ) -> Result<(Timer, KeyPolicy), InvalidTimer> {
        let due = match (self.when, self.id) {
            (When::After(_), Some(id)) => id.birth_due(),
            (when, _) => when.time(now),
        };
        let id = match self.id {
            Some(id) => id,
            None => new_id(&self.dest, self.key.as_ref(), due),
        };
        let timer = Timer {
            id,
            dest: self.dest,
            key: self.key.take(),
            due,
            mode: self.mode,
            deadline: self.deadline.map(|d| d.time(now)),
            callback_timeout_ms: self.callback_timeout.map(ms_u32),
            retry: self.retry,
            payload: self.payload,
        };
        timer.validate(now)?;
        Ok((timer, self.policy))
    }
}

/// Whole milliseconds, rounded up: nothing is ever early.
pub(crate) fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(crate) fn ms_u32(duration: Duration) -> u32 {
    u32::try_from(ms_up(duration)).unwrap_or(u32::MAX)
}
