//! Points in time by the cluster clock.
//!
//! Invariant: every value that becomes a [`Time`] is rounded up to a whole millisecond and stops at
//! [`Time::ZERO`] and [`Time::MAX`]; nothing panics or wraps around.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, de};

/// A point in time: milliseconds since the Unix epoch by the cluster clock, 0 to 2^48-1 (the year
/// 10889).
///
/// A [`SystemTime`] becomes a `Time` and a [`Duration`] can be added or subtracted. The result is
/// rounded up to a whole millisecond, so that a timer is never early, and stops at [`Time::ZERO`]
/// and [`Time::MAX`]. With the feature `jiff` the same holds for `jiff::Timestamp`.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use mtimer_types::Time;
///
/// let tomorrow = Time::from(SystemTime::now()) + Duration::from_secs(86_400);
/// assert!(SystemTime::from(tomorrow) > SystemTime::now());
/// assert_eq!(Time::from_ms(5) + Duration::from_micros(1), Time::from_ms(6));
/// ```
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

    /// Makes a time of milliseconds since the Unix epoch; values beyond [`Time::MAX`] become
    /// [`Time::MAX`].
    pub const fn from_ms(ms: u64) -> Self {
        if ms > Self::MAX.0 { Self::MAX } else { Self(ms) }
    }

    /// Returns milliseconds since the Unix epoch.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// Shows it for people, in UTC: `2030-01-31T12:00:00.000Z`, or milliseconds from the year 10000
    /// on, which RFC 3339 cannot write.
    pub fn utc(self) -> impl fmt::Display + use<> {
        Utc(self)
    }

    /// Returns how many milliseconds `self` is after `earlier`; 0 if it is not.
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

/// `time + duration`, rounded up to a whole millisecond, stopping at [`Time::MAX`].
impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        self + saturated(duration.as_nanos().div_ceil(NANOS_PER_MS))
    }
}

/// `time - duration`, rounded up to a whole millisecond, stopping at [`Time::ZERO`].
impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        self - saturated(duration.as_millis())
    }
}

/// The host's time as a cluster time, rounded up to a whole millisecond. A time before the Unix
/// epoch becomes [`Time::ZERO`], one after [`Time::MAX`] becomes [`Time::MAX`].
///
/// The host's clock and the cluster's may differ.
impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        Self::ZERO + time.duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

/// Exact: a [`SystemTime`] holds every [`Time`].
impl From<Time> for SystemTime {
    fn from(time: Time) -> Self {
        UNIX_EPOCH + Duration::from_millis(time.0)
    }
}

/// Rounded up to a whole millisecond. A time before the Unix epoch becomes [`Time::ZERO`].
#[cfg(feature = "jiff")]
impl From<jiff::Timestamp> for Time {
    fn from(time: jiff::Timestamp) -> Self {
        let nanos = u128::try_from(time.as_nanosecond()).unwrap_or(0);
        Self::from_ms(saturated(nanos.div_ceil(NANOS_PER_MS)))
    }
}

/// Exact. An error from the last second of [`jiff::Timestamp::MAX`] on, which is at the end of the
/// year 9999.
#[cfg(feature = "jiff")]
impl TryFrom<Time> for jiff::Timestamp {
    type Error = jiff::Error;
    fn try_from(time: Time) -> Result<Self, jiff::Error> {
        // At most 2^48-1.
        Self::from_millisecond(time.0 as i64)
    }
}

struct Utc(Time);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.0;
        // Days since 1 March of the year 0, so that a leap day is the last of its year. The
        // algorithm is "civil_from_days" of https://howardhinnant.github.io/date_algorithms.html.
        let days = ms / MS_PER_DAY + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        if year > 9_999 {
            return write!(f, "{ms} ms");
        }
        let (hour, minute) = (ms / 3_600_000 % 24, ms / 60_000 % 60);
        let (second, rest) = (ms / 1_000 % 60, ms % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest:03}Z")
    }
}

const MS_PER_DAY: u64 = 86_400_000;
const NANOS_PER_MS: u128 = 1_000_000;

fn saturated(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
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

    #[test]
    fn a_duration_is_added_and_subtracted_to_the_later_millisecond() {
        let time = Time::from_ms(1_000);
        let (ms, less) = (Duration::from_millis(7), Duration::from_nanos(1));
        assert_eq!((time + ms, time - ms), (Time::from_ms(1_007), Time::from_ms(993)));
        assert_eq!((time + less, time - less), (Time::from_ms(1_001), time));
        assert_eq!((time + (ms - less), time - (ms - less)), (Time::from_ms(1_007), Time::from_ms(994)));
        assert_eq!((time + Duration::MAX, time - Duration::MAX), (Time::MAX, Time::ZERO));
    }

    #[test]
    fn a_system_time_becomes_the_same_time_or_the_nearest_there_is() {
        let at = |duration| Time::from(UNIX_EPOCH + duration);
        assert_eq!(at(Duration::from_millis(1_700_000_000_123)), Time::from_ms(1_700_000_000_123));
        assert_eq!(at(Duration::from_nanos(1)), Time::from_ms(1));
        assert_eq!(at(Duration::from_secs(1 << 40)), Time::MAX);
        assert_eq!(Time::from(UNIX_EPOCH - Duration::from_nanos(1)), Time::ZERO);
        for time in [Time::ZERO, Time::from_ms(1_700_000_000_123), Time::MAX] {
            assert_eq!(Time::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn a_time_is_shown_in_utc_while_rfc_3339_can_write_it() {
        let shown = |ms| Time::from_ms(ms).utc().to_string();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(shown(951_868_799_000), "2000-02-29T23:59:59.000Z");
        assert_eq!(shown(1_896_091_200_000), "2030-01-31T12:00:00.000Z");
        assert_eq!(shown(253_402_300_799_999), "9999-12-31T23:59:59.999Z");
        assert_eq!(shown(253_402_300_800_000), "253402300800000 ms");
        assert_eq!(Time::MAX.utc().to_string(), "281474976710655 ms");
    }

    #[cfg(feature = "jiff")]
    #[test]
    fn days_up_to_the_year_9999_are_shown_as_jiff_shows_them() {
        for day in (0..2_932_897).step_by(5) {
            let time = Time::from_ms(day * MS_PER_DAY + 1);
            let same = jiff::Timestamp::from_millisecond(time.0 as i64).unwrap();
            assert_eq!(time.utc().to_string(), format!("{same:.3}"));
        }
    }

    #[cfg(feature = "jiff")]
    #[test]
    fn a_timestamp_becomes_the_same_time_or_the_nearest_there_is() {
        use jiff::Timestamp;
        let at = |nanos| Time::from(Timestamp::from_nanosecond(nanos).unwrap());
        assert_eq!(at(1_700_000_000_123_000_000), Time::from_ms(1_700_000_000_123));
        assert_eq!((at(1), at(-1), Time::from(Timestamp::MIN)), (Time::from_ms(1), Time::ZERO, Time::ZERO));
        for time in [Time::ZERO, Time::from_ms(1_700_000_000_123)] {
            assert_eq!(Timestamp::try_from(time).map(Time::from).unwrap(), time);
        }
        assert!(Timestamp::try_from(Time::from(Timestamp::MAX) - 1_000).is_ok());
        assert!(Timestamp::try_from(Time::MAX).is_err());
    }
}
