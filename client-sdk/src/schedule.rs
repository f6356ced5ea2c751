//! Descriptions of the timers to schedule.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mtimer_types::InvalidTimer;
use mtimer_types::{
    Destination, Extensions, HeaderError, Headers, Key, KeyPolicy, Mode, Priority, RetryTiers, Time, Timer,
    TimerId,
};
use serde::Serialize;

/// Says when: at a time by the cluster clock, or so long after the call.
///
/// Made of a [`Time`], a [`SystemTime`], a [`Duration`], and with the feature `jiff` a
/// `jiff::Timestamp`. Fractions of a millisecond are rounded up. A time in the past is due at once;
/// one more than ten years ahead is refused ([`InvalidTimer::TooFar`]).
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use mtimer_client::{Time, When};
///
/// assert_eq!(When::from(Duration::from_secs(5)), When::After(Duration::from_secs(5)));
/// assert_eq!(When::from(SystemTime::UNIX_EPOCH), When::At(Time::ZERO));
/// ```
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
            Self::After(after) => now + after,
        }
    }
}

impl From<Time> for When {
    fn from(time: Time) -> Self {
        Self::At(time)
    }
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> Self {
        Self::At(time.into())
    }
}

#[cfg(feature = "jiff")]
impl From<jiff::Timestamp> for When {
    fn from(time: jiff::Timestamp) -> Self {
        Self::At(time.into())
    }
}

impl From<Duration> for When {
    fn from(after: Duration) -> Self {
        Self::After(after)
    }
}

/// Describes a timer that is to be scheduled.
///
/// ```
/// use std::time::Duration;
///
/// use mtimer_client::{Destination, Key, KeyPolicy, Schedule};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let unpaid = Destination::new("shop", "unpaid-orders")?;
/// let schedule = Schedule::after(&unpaid, Duration::from_secs(900))
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
    priority: Priority,
    deadline: Option<When>,
    callback_timeout: Option<Duration>,
    retry: Option<RetryTiers>,
    payload: Bytes,
    headers: Headers,
    /// The first header that was refused.
    refused: Option<Box<HeaderError>>,
}

impl Schedule {
    /// Describes a timer that is due so long after it is scheduled. A clone that is scheduled, too,
    /// is a second timer, unless it has an id.
    pub fn after(dest: impl Into<Destination>, after: Duration) -> Self {
        Self::new(dest, When::After(after))
    }

    /// Describes a timer that is due at `time` by the cluster clock: a [`Time`], a [`SystemTime`],
    /// or a `jiff::Timestamp`. A time in the past is due at once.
    pub fn at(dest: impl Into<Destination>, time: impl Into<Time>) -> Self {
        Self::new(dest, When::At(time.into()))
    }

    /// Describes a timer that is due at `when`.
    pub fn new(dest: impl Into<Destination>, when: impl Into<When>) -> Self {
        Self {
            dest: dest.into(),
            when: when.into(),
            id: None,
            key: None,
            policy: KeyPolicy::default(),
            mode: Mode::default(),
            priority: Priority::default(),
            deadline: None,
            callback_timeout: None,
            retry: None,
            payload: Bytes::new(),
            headers: Headers::NONE,
            refused: None,
        }
    }

    /// Sets the id instead of a new one, so that a repeat is recognised. The id carries the due
    /// time: with [`Schedule::after`] the id's counts, with [`Schedule::at`] both must be equal.
    pub fn id(mut self, id: TimerId) -> Self {
        self.id = Some(id);
        self
    }

    /// Gives it a key, unique within its destination while the timer is live.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the policy for a key that names a live timer already. Default: [`KeyPolicy::Create`].
    pub fn policy(mut self, policy: KeyPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Moves the key's timer only later: if the key names a live timer, this one replaces it, due
    /// at the later of the two times.
    pub fn latest(self) -> Self {
        self.policy(KeyPolicy::Latest)
    }

    /// Moves the key's timer only sooner: if the key names a live timer, this one replaces it, due
    /// at the sooner of the two times.
    pub fn earliest(self) -> Self {
        self.policy(KeyPolicy::Earliest)
    }

    /// Waits until the key has been quiet for so long, at most `max` after the first of them: if
    /// the key names a live timer, this one replaces it. The broker computes the due time by the
    /// cluster clock; that of this schedule does not count. Both from 1 ms to 24 h, rounded up to
    /// ms, `quiet` not above `max`.
    pub fn debounce(mut self, quiet: Duration, max: Duration) -> Self {
        self.when = When::After(quiet);
        self.policy(KeyPolicy::Debounce { quiet_ms: ms_u32(quiet), max_ms: ms_u32(max) })
    }

    /// Says how often it may be delivered. Default: [`Mode::AtLeastOnce`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Says how urgent it is among the timers of its destination that wait for capacity. Default:
    /// [`Priority::Normal`]. Of 15 turns urgent ones have 8, high ones 4, normal ones 2 and low
    /// ones 1, unless the destination's order is strict. When it is due has nothing to do with it.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Lets it end as expired after this time, undelivered or between two attempts; not before the
    /// due time. Default: none.
    pub fn deadline(mut self, deadline: impl Into<When>) -> Self {
        self.deadline = Some(deadline.into());
        self
    }

    /// Limits how long a handler may take, 100 ms to 24 h, rounded up to ms. An attempt that takes
    /// longer has failed. Default: the broker's, 30 s unless configured otherwise.
    pub fn callback_timeout(mut self, timeout: Duration) -> Self {
        self.callback_timeout = Some(timeout);
        self
    }

    /// Sets the delays before attempts 2, 3, ...: at most 32, each of 1 ms to 30 days, rounded up
    /// to ms. The broker adds up to its `jitter-percent` to each (10 % unless configured
    /// otherwise). An empty list means one attempt only. Default: the destination's or the
    /// cluster's; unless configured otherwise 1 s, 5 s, 30 s, 2 min and 10 min.
    pub fn retry(mut self, delays: impl IntoIterator<Item = Duration>) -> Self {
        self.retry = Some(RetryTiers(delays.into_iter().map(ms_u32).collect()));
        self
    }

    /// Sets the payload that the handler gets: up to 64 KiB. Default: nothing.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets the payload that the handler gets to this value as JSON: up to 64 KiB.
    ///
    /// # Errors
    ///
    /// [`serde_json::Error`] if the value cannot be written as JSON, such as a map whose keys are
    /// no strings.
    pub fn json<T: Serialize + ?Sized>(mut self, payload: &T) -> Result<Self, serde_json::Error> {
        self.payload = serde_json::to_vec(payload)?.into();
        Ok(self)
    }

    /// Gives it a header, which the handler finds in
    /// [`Callback::headers`](crate::Callback::headers), in place of an earlier one of that name. A
    /// name has 1 to 64 of the characters `a-z`, `0-9`, `-`, `_` and `.`; a value has up to 1,024
    /// bytes and no control characters. At most 32, with 4 KiB in all. One that breaks a limit is
    /// told when the timer is scheduled ([`InvalidTimer::Header`]).
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        match self.headers.with(name.as_ref(), value.as_ref()) {
            Ok(headers) => self.headers = headers,
            Err(error) => self.refused = self.refused.or_else(|| Some(Box::new(error))),
        }
        self
    }

    /// Gives it these headers instead of those that it has.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Makes a schedule of a result of [`Schedule::resolve`]; it resolves to the same again.
    pub(crate) fn fixed(timer: Timer, policy: KeyPolicy) -> Self {
        Self {
            dest: timer.dest,
            when: When::At(timer.due),
            id: Some(timer.id),
            key: timer.key,
            policy,
            mode: timer.mode,
            priority: timer.extensions.priority(),
            deadline: timer.deadline.map(When::At),
            callback_timeout: timer.callback_timeout_ms.map(|ms| Duration::from_millis(ms.into())),
            retry: timer.retry,
            payload: timer.payload,
            headers: timer.headers,
            refused: None,
        }
    }

    /// Fixes due time, deadline and id, and checks the limits. `new_id` makes an id for a due time.
    pub(crate) fn resolve(
        mut self,
        now: Time,
        new_id: impl FnOnce(&Destination, Option<&Key>, Time) -> TimerId,
    ) -> Result<(Timer, KeyPolicy), InvalidTimer> {
        if let Some(refused) = self.refused {
            return Err(InvalidTimer::Header(*refused));
        }
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
            headers: self.headers,
            // One field is within every limit.
            extensions: Extensions::NONE.with_priority(self.priority).unwrap_or_default(),
        };
        self.policy.validate()?;
        timer.validate(now)?;
        Ok((timer, self.policy))
    }
}

/// Returns whole milliseconds, rounded up as [`Time`] does, at most [`u32::MAX`].
pub(crate) fn ms_u32(duration: Duration) -> u32 {
    u32::try_from((Time::ZERO + duration).as_ms()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_time_is_the_same_time() {
        let now = Time::from_ms(1_000);
        let at = |when: When| when.time(now).as_ms();
        assert_eq!(at(Time::from_ms(5_000).into()), 5_000);
        assert_eq!(at((SystemTime::UNIX_EPOCH + Duration::from_micros(4_999_001)).into()), 5_000);
        assert_eq!(at(Duration::from_micros(3_999_001).into()), 5_000);
        assert_eq!((at(Duration::MAX.into()), at(Duration::ZERO.into())), (Time::MAX.as_ms(), 1_000));
        #[cfg(feature = "jiff")]
        assert_eq!(at(jiff::Timestamp::from_microsecond(4_999_001).unwrap().into()), 5_000);
    }

    #[test]
    fn a_priority_goes_into_the_timer_unless_it_is_normal() {
        for priority in Priority::ALL {
            let dest = Destination::new("g", "a").unwrap();
            let schedule = Schedule::at(dest, Time::from_ms(9)).priority(priority);
            let id =
                |_: &_, _: Option<&_>, due| TimerId::new(due, Time::ZERO, mtimer_types::PartitionId(0), 1);
            let (timer, _) = schedule.resolve(Time::ZERO, id).unwrap();
            assert_eq!(timer.priority(), priority);
            assert_eq!(timer.extensions.is_empty(), priority == Priority::Normal);
            let again = Schedule::fixed(timer.clone(), KeyPolicy::Create).resolve(Time::ZERO, id).unwrap().0;
            assert_eq!(again, timer);
        }
    }

    #[test]
    fn headers_go_into_the_timer_and_the_first_refusal_is_told() {
        let schedule =
            || Schedule::at(Destination::new("g", "a").unwrap(), Time::from_ms(9)).header("b", "1");
        let resolve = |schedule: Schedule| {
            let id =
                |_: &_, _: Option<&_>, due| TimerId::new(due, Time::ZERO, mtimer_types::PartitionId(0), 1);
            schedule.resolve(Time::ZERO, id).map(|(timer, _)| timer)
        };
        let timer = resolve(schedule().header("a", "2").header("b", "3")).unwrap();
        assert_eq!(timer.headers, Headers::new([("a", "2"), ("b", "3")]).unwrap());
        let again = resolve(Schedule::fixed(timer.clone(), KeyPolicy::Create)).unwrap();
        assert_eq!(again, timer);
        let error = resolve(schedule().header("B", "").header("c", "\n").header("d", "")).unwrap_err();
        assert!(error.to_string().starts_with("the header name \"B\" has 'B' in it"), "{error}");
        let others = Headers::new([("z", "0")]).unwrap();
        assert_eq!(resolve(schedule().headers(others.clone())).unwrap().headers, others);
    }

    #[test]
    fn milliseconds_stop_at_the_most_there_are() {
        let given = [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(7), Duration::MAX];
        assert_eq!(given.map(ms_u32), [0, 1, 7, u32::MAX]);
    }
}
