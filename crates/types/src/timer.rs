//! The timer that a client schedules, and its limits.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    Destination, Extensions, Headers, InvalidTimer, Key, Priority, RetryTiers, Time, TimerId, limits,
};

/// Says how often a callback may be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Delivered until settled; duplicates can follow timeouts, crashes and takeovers.
    #[default]
    AtLeastOnce,
    /// Delivered once at most, also after failures.
    AtMostOnce,
}

/// Says what a schedule does when its key already names a live timer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyPolicy {
    /// Refuse: the answer names the live timer.
    #[default]
    Create,
    /// Cancel the live timer and create this one, in one step.
    Replace,
    /// Keep the live timer: the answer names it, nothing changes.
    Keep,
    /// Replace the live timer by this one, due at the later of the two times: the key's timer only
    /// moves later.
    Latest,
    /// Replace the live timer by this one, due at the sooner of the two times: the key's timer only
    /// moves sooner.
    Earliest,
    /// Replace the live timer by this one, due so long from now, but not longer after the first of
    /// the chain than the longest wait. The owner's clock decides, whatever due time the timer has.
    Debounce {
        /// Due so long after this schedule, ms, if no other follows.
        quiet_ms: u32,
        /// Due at the latest so long after the first schedule of the chain, ms.
        max_ms: u32,
    },
}

impl KeyPolicy {
    /// Whether the owner computes the due time.
    pub const fn computes_due(self) -> bool {
        match self {
            Self::Latest | Self::Earliest | Self::Debounce { .. } => true,
            Self::Create | Self::Replace | Self::Keep => false,
        }
    }

    /// Whether the live timer makes way for the new one.
    pub const fn replaces(self) -> bool {
        match self {
            Self::Replace | Self::Latest | Self::Earliest | Self::Debounce { .. } => true,
            Self::Create | Self::Keep => false,
        }
    }

    /// Checks the times of a debounce.
    ///
    /// # Errors
    ///
    /// [`InvalidTimer::Debounce`] beyond a limit, or if the quiet time is the longer one.
    pub const fn validate(self) -> Result<(), InvalidTimer> {
        match self {
            Self::Debounce { quiet_ms, max_ms }
                if quiet_ms == 0 || quiet_ms > max_ms || max_ms > limits::MAX_DEBOUNCE_MS =>
            {
                Err(InvalidTimer::Debounce { quiet_ms, max_ms, limit: limits::MAX_DEBOUNCE_MS })
            }
            _ => Ok(()),
        }
    }
}

/// Holds a timer as its application scheduled it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timer {
    /// Chosen by the client; [`TimerId::birth_due`] equals `due` when a client sends it.
    pub id: TimerId,
    /// Who is called back.
    pub dest: Destination,
    /// The application's own name for it.
    pub key: Option<Key>,
    /// When, by the cluster clock. A reschedule changes it, and a key's policy may
    /// ([`KeyPolicy::computes_due`]). Else nothing in a stored timer changes but the deadline.
    pub due: Time,
    /// How often.
    pub mode: Mode,
    /// After this time no delivery begins, and it ends as expired; not before `due`.
    pub deadline: Option<Time>,
    /// How long a handler may take, in ms; 100 ms to 24 h; `None`: the broker's default.
    pub callback_timeout_ms: Option<u32>,
    /// Own retry delays; `None`: the destination's or the cluster's.
    pub retry: Option<RetryTiers>,
    /// Handed to the handler as it is; up to 64 KiB.
    #[serde(deserialize_with = "bytes")]
    pub payload: Bytes,
    /// Handed to the handler as they are.
    #[serde(default)]
    pub headers: Headers,
    /// Fields that came later than this version, kept as they are.
    #[serde(default)]
    pub extensions: Extensions,
}

/// Reads bytes into memory of their own: copied once from where they stand, without clearing the
/// place for them first.
///
/// # Errors
///
/// The format's own error, if the value is neither bytes nor a list of them.
pub fn bytes<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    d.deserialize_bytes(BytesVisitor)
}

struct BytesVisitor;

impl<'de> de::Visitor<'de> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
        Ok(bytes.into())
    }

    /// As texts write them.
    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Bytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }
}

impl Timer {
    /// Makes a timer that is delivered at least once, with an empty payload and nothing optional.
    ///
    /// `due` has to be the due time of `id`.
    pub fn new(id: TimerId, dest: Destination, due: Time) -> Self {
        Self {
            id,
            dest,
            key: None,
            due,
            mode: Mode::AtLeastOnce,
            deadline: None,
            callback_timeout_ms: None,
            retry: None,
            payload: Bytes::new(),
            headers: Headers::NONE,
            extensions: Extensions::NONE,
        }
    }

    /// Its class among the timers of its destination that wait.
    pub fn priority(&self) -> Priority {
        self.extensions.priority()
    }

    /// Says whether `at` is after the deadline: then no delivery begins.
    pub fn is_past_deadline(&self, at: Time) -> bool {
        self.deadline.is_some_and(|deadline| deadline < at)
    }

    /// Checks every limit that one timer can break on its own. `now` is the cluster clock.
    ///
    /// # Errors
    ///
    /// [`InvalidTimer`] for the first limit that it breaks.
    pub fn validate(&self, now: Time) -> Result<(), InvalidTimer> {
        if self.id.birth_due() != self.due {
            return Err(InvalidTimer::IdDue { id: self.id, birth: self.id.birth_due(), due: self.due });
        }
        self.validate_content(now)
    }

    /// Checks the same but for the id: a timer that was stored before may have another due time.
    ///
    /// # Errors
    ///
    /// [`InvalidTimer`] for the first limit that it breaks.
    pub fn validate_content(&self, now: Time) -> Result<(), InvalidTimer> {
        if self.payload.len() > limits::MAX_PAYLOAD_BYTES {
            return Err(InvalidTimer::Payload { len: self.payload.len(), limit: limits::MAX_PAYLOAD_BYTES });
        }
        if let Some(tag) = self.extensions.not_understood() {
            return Err(InvalidTimer::Extension { tag });
        }
        check_distance(self.due, now)?;
        if let Some(deadline) = self.deadline.filter(|d| *d < self.due) {
            return Err(InvalidTimer::Deadline { deadline, due: self.due });
        }
        if let Some(ms) = self.callback_timeout_ms {
            let (min, max) = (limits::MIN_CALLBACK_TIMEOUT_MS, limits::MAX_CALLBACK_TIMEOUT_MS);
            if !(min..=max).contains(&ms) {
                return Err(InvalidTimer::CallbackTimeout { ms, min, max });
            }
        }
        self.retry.as_ref().map_or(Ok(()), RetryTiers::validate)
    }

    /// Says whether a repeated schedule of the same id asks for the same thing. The due time is in
    /// the id, so it is not looked at: the stored timer may have been rescheduled since. Neither is
    /// the deadline, which a replay lifts and a client can extend, nor the trace context, by which
    /// every request differs (see [`Headers::same_content`]), nor an extension that is volatile.
    pub fn same_content(&self, other: &Self) -> bool {
        self.id == other.id
            && self.dest == other.dest
            && self.key == other.key
            && self.mode == other.mode
            && self.callback_timeout_ms == other.callback_timeout_ms
            && self.retry == other.retry
            && self.payload == other.payload
            && self.headers.same_content(&other.headers)
            && self.extensions.same_content(&other.extensions)
    }

    /// Returns the bytes of payload, headers and extensions, the variable part of a timer's size.
    pub fn content_bytes(&self) -> usize {
        self.payload.len() + self.headers.bytes() + self.extensions.as_bytes().len()
    }
}

/// Refuses due times beyond [`limits::MAX_AHEAD_MS`].
///
/// # Errors
///
/// [`InvalidTimer::TooFar`].
pub fn check_distance(due: Time, now: Time) -> Result<(), InvalidTimer> {
    if due.ms_since(now) > limits::MAX_AHEAD_MS {
        let max_days = limits::MAX_AHEAD_MS / 86_400_000;
        return Err(InvalidTimer::TooFar { due, now, max_days });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartitionId;
    use crate::extensions::{MUST_BE_UNDERSTOOD, VOLATILE};

    const NOW: Time = Time::from_ms(1_700_000_000_000);

    fn timer(ahead: u64) -> Timer {
        let due = NOW + ahead;
        Timer::new(TimerId::new(due, NOW, PartitionId(3), 7), Destination::new("g", "a").unwrap(), due)
    }

    fn error(timer: &Timer) -> String {
        timer.validate(NOW).unwrap_err().to_string()
    }

    #[test]
    fn a_timer_at_every_limit_is_valid() {
        for callback_timeout_ms in [100, 86_400_000].map(Some) {
            let ten_years = timer(3_653 * 86_400_000);
            let timer = Timer {
                deadline: Some(ten_years.due),
                callback_timeout_ms,
                retry: Some(RetryTiers([[1; 16], [30 * 86_400_000; 16]].concat())),
                payload: vec![7; 64 * 1024].into(),
                ..ten_years
            };
            assert_eq!(timer.validate(NOW), Ok(()));
        }
    }

    #[test]
    fn a_timer_beyond_a_limit_is_refused_with_value_and_limit() {
        let payload = Timer { payload: vec![7; 65_537].into(), ..timer(5) };
        assert!(error(&payload).contains("65537 bytes, the limit is 65536"));
        let other_due = Timer { due: NOW + 6, ..timer(5) };
        assert!(
            error(&other_due).contains(
                "due time 2023-11-14T22:13:20.005Z, but the timer is due at 2023-11-14T22:13:20.006Z"
            )
        );
        let too_far = timer(3_653 * 86_400_000 + 1);
        assert!(error(&too_far).contains("more than 3653 days ahead of 2023-11-14T22:13:20.000Z"));
        let deadline = Timer { deadline: Some(NOW + 4), ..timer(5) };
        assert!(error(&deadline).contains("deadline 2023-11-14T22:13:20.004Z is before the due time"));
        for ms in [99, 86_400_001] {
            let timeout = Timer { callback_timeout_ms: Some(ms), ..timer(5) };
            assert!(error(&timeout).contains(&format!("{ms} ms, allowed are 100 to 86400000 ms")));
        }
    }

    #[test]
    fn a_debounce_waits_from_a_millisecond_to_a_day() {
        let debounce = |quiet_ms, max_ms| KeyPolicy::Debounce { quiet_ms, max_ms }.validate();
        for (quiet_ms, max_ms) in [(1, 1), (5, 60_000), (86_400_000, 86_400_000)] {
            assert_eq!(debounce(quiet_ms, max_ms), Ok(()));
        }
        for (quiet_ms, max_ms) in [(0, 0), (0, 5), (6, 5), (5, 86_400_001)] {
            let text = debounce(quiet_ms, max_ms).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("debounce with quiet {quiet_ms} ms and max {max_ms} ms")),
                "{text}"
            );
        }
        for policy in [KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep] {
            assert!(policy.validate().is_ok() && !policy.computes_due());
        }
    }

    #[test]
    fn an_unknown_extension_is_kept_unless_it_must_be_understood() {
        let with = |tag| Timer { extensions: Extensions::new([(4, "x"), (tag, "")]).unwrap(), ..timer(5) };
        assert_eq!(with(8 | VOLATILE).validate(NOW), Ok(()));
        for tag in [8 | MUST_BE_UNDERSTOOD, 8 | MUST_BE_UNDERSTOOD | VOLATILE] {
            assert_eq!(with(tag).validate(NOW), Err(InvalidTimer::Extension { tag }));
            assert!(error(&with(tag)).starts_with(&format!("the timer has extension {tag}, which must be")));
        }
    }

    #[test]
    fn a_timer_is_small() {
        // Each is in memory hundreds of thousands of times.
        assert!(size_of::<Timer>() <= 208, "{} bytes", size_of::<Timer>());
    }

    #[test]
    fn the_first_retry_tier_out_of_range_is_named() {
        let refused = |tiers: Vec<u32>| error(&Timer { retry: Some(RetryTiers(tiers)), ..timer(5) });
        assert!(refused(vec![1, 0, 2]).starts_with("retry tier 2 of 3 is 0 ms"));
        assert!(refused(vec![2_592_000_001]).starts_with("retry tier 1 of 1 is 2592000001 ms"));
        assert!(refused(vec![1; 34]).starts_with("retry tier 33 of 34 is 1 ms"));
    }

    #[test]
    fn a_delivery_at_the_deadline_may_begin_and_later_it_may_not() {
        let timer = Timer { deadline: Some(NOW + 5), ..timer(5) };
        let past = [4, 5, 6].map(|ms| timer.is_past_deadline(NOW + ms));
        assert_eq!(past, [false, false, true]);
        assert!(!Timer { deadline: None, ..timer }.is_past_deadline(Time::MAX));
    }

    #[test]
    fn content_is_everything_but_the_times() {
        let timer = timer(5);
        let with = |change: fn(&mut Timer)| {
            let mut other = timer.clone();
            change(&mut other);
            timer.same_content(&other)
        };
        assert!(with(|_| {}) && with(|t| t.due = NOW));
        assert!(!with(|t| t.id = TimerId::from_u128(9)));
        assert!(!with(|t| t.dest = Destination::new("g", "b").unwrap()));
        assert!(!with(|t| t.key = Key::new("k").ok()));
        assert!(!with(|t| t.mode = Mode::AtMostOnce));
        assert!(with(|t| t.deadline = Some(NOW + 9)));
        assert!(!with(|t| t.callback_timeout_ms = Some(500)));
        assert!(!with(|t| t.retry = Some(RetryTiers::default())));
        assert!(!with(|t| t.payload = Bytes::from_static(b"x")));
        assert!(!with(|t| t.headers = Headers::new([("a", "")]).unwrap()));
        assert!(with(|t| t.headers = Headers::new([("traceparent", "x")]).unwrap()));
        assert!(!with(|t| t.extensions = Extensions::new([(4, "")]).unwrap()));
        assert!(with(|t| t.extensions = Extensions::new([(VOLATILE, "x")]).unwrap()));
    }

    #[test]
    fn content_counts_payload_headers_and_extensions() {
        let timer = Timer { payload: Bytes::from_static(b"1234"), ..timer(5) };
        assert_eq!(timer.content_bytes(), 4);
        let headers = Headers::new([("a", "xyz")]).unwrap();
        assert_eq!(Timer { headers, ..timer.clone() }.content_bytes(), 4 + 6);
        let extensions = Extensions::new([(4, "abc")]).unwrap();
        assert_eq!(Timer { extensions, ..timer }.content_bytes(), 4 + 5);
    }

    #[test]
    fn a_payload_is_read_from_bytes_and_from_a_list() {
        use serde::de::value::{BytesDeserializer, Error, SeqDeserializer};
        let expected = Bytes::from_static(b"hi");
        assert_eq!(bytes(BytesDeserializer::<Error>::new(b"hi")), Ok(expected.clone()));
        let list = SeqDeserializer::<_, Error>::new([b'h', b'i'].into_iter());
        assert_eq!(bytes(list), Ok(expected.clone()));
        assert_eq!(de::Visitor::visit_byte_buf::<Error>(BytesVisitor, b"hi".to_vec()), Ok(expected));
    }
}
