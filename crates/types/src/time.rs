//! Points in time by the cluster clock.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Deserializer, Serialize, de};

/// Milliseconds since the Unix epoch by the cluster clock; 0 to 2^48-1 (the year 10889).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Time(u64);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let ms = u64::deserialize(d)?;
        let max = Self::MAX.0;
        if ms > max {
            return Err(de::Error::custom(format_args!(
                "the time {ms} ms is beyond {max} ms, the latest there is"
            )));
        }
        Ok(Self(ms))
    }
}

impl Time {
    /// The beginning of time: earlier than or equal to every other value.
    pub const ZERO: Self = Self(0);
    /// The latest time that can be named.
    pub const MAX: Self = Self((1 << 48) - 1);

    /// From milliseconds since the Unix epoch; values beyond [`Time::MAX`] become [`Time::MAX`].
    pub const fn from_ms(ms: u64) -> Self {
        if ms > Self::MAX.0 { Self::MAX } else { Self(ms) }
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// How many milliseconds `self` is after `earlier`; 0 if it is not.
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// `time + ms`, stopping at [`Time::MAX`].
impl Add<u64> for Time {
    type Output = Self;
    fn add(self, ms: u64) -> Self {
        Self::from_ms(self.0.saturating_add(ms))
    }
}

/// `time - ms`, stopping at [`Time::ZERO`].
impl Sub<u64> for Time {
    type Output = Self;
    fn sub(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_beyond_the_latest_is_not_read() {
        let max = Time::MAX.as_ms();
        assert_eq!(serde_json::from_str::<Time>(&max.to_string()).unwrap(), Time::MAX);
        let error = serde_json::from_str::<Time>(&(max + 1).to_string()).unwrap_err();
        assert!(error.to_string().contains("281474976710656"), "{error}");
    }

    #[test]
    fn times_stop_at_the_first_and_the_latest() {
        let max = Time::MAX.as_ms();
        assert_eq!(max, 281_474_976_710_655);
        assert_eq!(Time::from_ms(max - 1).as_ms(), max - 1);
        assert_eq!(Time::from_ms(max + 1), Time::MAX);
        assert_eq!(Time::from_ms(5) + 2, Time::from_ms(7));
        assert_eq!([Time::MAX + 1, Time::from_ms(7) + u64::MAX], [Time::MAX; 2]);
        assert_eq!(Time::from_ms(5) - 2, Time::from_ms(3));
        assert_eq!(Time::from_ms(5) - 6, Time::ZERO);
    }

    #[test]
    fn nothing_is_after_a_later_time() {
        let (early, late) = (Time::from_ms(3), Time::from_ms(8));
        assert_eq!((late.ms_since(early), early.ms_since(late)), (5, 0));
    }
}
