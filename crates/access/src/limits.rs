//! Limits of a token or of a group, and the check of a schedule against them.
//!
//! Invariant: [`TokenBucket`] knows no clock; time is an argument, and time that goes back changes
//! nothing.
//! Not in here: which tokens and groups are limited, and their counts (the broker's).

use std::fmt;
use std::str::FromStr;

use mtimer_types::limits::MAX_PAYLOAD_BYTES;
use serde::{Deserialize, Serialize};

/// Highest rate and burst that can be written: more than any broker takes.
const MAX_RATE: u32 = 1_000_000;
/// Most connections that can be written.
const MAX_CONNECTIONS: u32 = 1_000_000;

/// The kinds of limits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Limit {
    /// Schedules per second.
    Schedules,
    /// Timers in memory or parked.
    Pending,
    /// Bytes of payload and headers of one timer.
    Payload,
    /// Connections.
    Connections,
}

impl Limit {
    /// Returns its name, as it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Schedules => "schedules",
            Self::Pending => "pending",
            Self::Payload => "payload",
            Self::Connections => "connections",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Limits at one broker; `None` is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Schedules per second, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules: Option<u32>,
    /// Schedules at once after a pause; without it as many as in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Timers in memory or parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<u64>,
    /// Bytes of payload and headers of one timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<u32>,
    /// Connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
}

/// A limit is not right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidLimit {
    /// Not NAME=NUMBER, or no such name.
    #[error(
        "{0:?} is no limit: write schedules=NUMBER (a second), burst=NUMBER, pending=NUMBER, payload=BYTES or \
         connections=NUMBER"
    )]
    Unknown(String),
    /// The number is out of range.
    #[error("the limit {name} is {value}, allowed is {least} to {most}")]
    Range {
        /// Which.
        name: &'static str,
        /// The given number.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A burst belongs to a rate.
    #[error("a burst is given without schedules: give both, or leave the burst out")]
    BurstAlone,
}

impl Limits {
    /// Says whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the rate, if there is one.
    pub fn rate(&self) -> Option<Rate> {
        self.schedules.map(|per_second| Rate { per_second, burst: self.burst.unwrap_or(per_second) })
    }

    /// Checks the ranges.
    ///
    /// # Errors
    ///
    /// [`InvalidLimit`] if a number is out of range, or there is a burst and no rate.
    pub fn validate(&self) -> Result<(), InvalidLimit> {
        let most_payload = MAX_PAYLOAD_BYTES as u64;
        for (name, value, least, most) in [
            ("schedules", self.schedules.map(u64::from), 1, u64::from(MAX_RATE)),
            ("burst", self.burst.map(u64::from), 1, u64::from(MAX_RATE)),
            ("pending", self.pending, 1, u64::MAX),
            ("payload", self.payload.map(u64::from), 0, most_payload),
            ("connections", self.connections.map(u64::from), 1, u64::from(MAX_CONNECTIONS)),
        ] {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return Err(InvalidLimit::Range { name, value, least, most });
            }
        }
        if self.burst.is_some() && self.schedules.is_none() {
            return Err(InvalidLimit::BurstAlone);
        }
        Ok(())
    }

    /// Adds a limit that is written as NAME=NUMBER.
    ///
    /// # Errors
    ///
    /// [`InvalidLimit`] if it is no such text.
    pub fn add(&mut self, text: &str) -> Result<(), InvalidLimit> {
        let bad = || InvalidLimit::Unknown(text.chars().take(80).collect());
        let (name, number) = text.trim().split_once('=').ok_or_else(bad)?;
        let number: u64 = number.trim().parse().map_err(|_| bad())?;
        let small = || u32::try_from(number).unwrap_or(u32::MAX);
        match name.trim() {
            "schedules" => self.schedules = Some(small()),
            "burst" => self.burst = Some(small()),
            "pending" => self.pending = Some(number),
            "payload" => self.payload = Some(small()),
            "connections" => self.connections = Some(small()),
            _ => return Err(bad()),
        }
        Ok(())
    }
}

/// Written as `schedules=100,pending=5000`.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("schedules", self.schedules.map(u64::from)),
            ("burst", self.burst.map(u64::from)),
            ("pending", self.pending),
            ("payload", self.payload.map(u64::from)),
            ("connections", self.connections.map(u64::from)),
        ];
        let mut comma = "";
        for (name, value) in all {
            if let Some(value) = value {
                write!(f, "{comma}{name}={value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for Limits {
    type Err = InvalidLimit;

    fn from_str(text: &str) -> Result<Self, InvalidLimit> {
        let mut limits = Self::default();
        text.split(',').try_for_each(|part| limits.add(part))?;
        Ok(limits)
    }
}

/// A rate with a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// How many a second, on average.
    pub per_second: u32,
    /// How many at once after a pause.
    pub burst: u32,
}

/// A token bucket: it holds up to a burst, and fills at the rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenBucket {
    rate: Rate,
    /// Thousandths: at a rate of n a second it gains n of them each ms.
    level: u64,
    at_ms: u64,
}

impl TokenBucket {
    /// Returns a full bucket.
    pub fn full(rate: Rate, now_ms: u64) -> Self {
        Self { rate, level: u64::from(rate.burst) * 1_000, at_ms: now_ms }
    }

    /// Fills it up to now. Another rate than before applies from the last call on.
    pub fn fill(&mut self, rate: Rate, now_ms: u64) {
        let gained = now_ms.saturating_sub(self.at_ms).saturating_mul(u64::from(rate.per_second));
        self.level = self.level.saturating_add(gained).min(u64::from(rate.burst) * 1_000);
        self.at_ms = self.at_ms.max(now_ms);
        self.rate = rate;
    }

    /// Says whether it holds one.
    pub fn has_one(&self) -> bool {
        self.level >= 1_000
    }

    /// Takes one; says whether it held one.
    pub fn take(&mut self) -> bool {
        let held = self.has_one();
        if held {
            self.level -= 1_000;
        }
        held
    }

    /// Says whether it holds the whole burst by now: then it is as good as a new one.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let mut filled = *self;
        filled.fill(self.rate, now_ms);
        filled.level >= u64::from(self.rate.burst) * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 100, burst: 20 };

    fn taken(bucket: &mut TokenBucket, now_ms: u64, want: u32) -> u32 {
        bucket.fill(RATE, now_ms);
        (0..want).map(|_| u32::from(bucket.take())).sum()
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::full(RATE, 5_000);
        assert_eq!(taken(&mut bucket, 5_000, 50), 20);
        assert_eq!(taken(&mut bucket, 5_009, 50), 0, "nine tenths of one");
        assert_eq!(taken(&mut bucket, 5_010, 50), 1);
        assert_eq!(taken(&mut bucket, 5_100, 50), 9);
        assert!(!bucket.is_idle(5_299) && bucket.is_idle(5_300));
        assert_eq!(taken(&mut bucket, 9_000, 50), 20, "never more than the burst");
        // Over a long time it gives the rate, however it is asked.
        let sum: u32 = (1..=10_000).map(|ms| taken(&mut bucket, 9_000 + ms, 3)).sum();
        assert_eq!(sum, 1_000);
    }

    #[test]
    fn time_that_goes_back_gives_nothing() {
        let mut bucket = TokenBucket::full(RATE, 5_000);
        assert_eq!(taken(&mut bucket, 5_000, 20), 20);
        assert_eq!(taken(&mut bucket, 1_000, 1), 0);
        assert_eq!(taken(&mut bucket, 5_000, 1), 0, "what was given is not given again");
        assert_eq!(taken(&mut bucket, u64::MAX, 50), 20, "no overflow");
    }

    #[test]
    fn another_rate_applies_at_once() {
        let mut bucket = TokenBucket::full(RATE, 0);
        let lower = Rate { per_second: 1, burst: 2 };
        bucket.fill(lower, 0);
        assert!(bucket.take() && bucket.take() && !bucket.take());
        bucket.fill(lower, 1_000);
        assert!(bucket.take() && !bucket.take());
    }

    #[test]
    fn limits_are_read_as_they_are_written() {
        let text = "schedules=100,burst=20,pending=5000,payload=4096,connections=5";
        let limits: Limits = text.parse().unwrap();
        assert_eq!(limits.to_string(), text);
        assert_eq!(limits.rate(), Some(RATE));
        let plain: Limits = "schedules=100".parse().unwrap();
        assert_eq!(plain.rate(), Some(Rate { per_second: 100, burst: 100 }));
        assert!(Limits::default().is_empty() && !plain.is_empty());
        for bad in ["", "schedules", "schedules=", "schedules=-1", "speed=1", "pending=1,", "payload=4KiB"] {
            assert!(bad.parse::<Limits>().unwrap_err().to_string().contains("is no limit"), "{bad}");
        }
    }

    #[test]
    fn a_limit_out_of_range_is_named() {
        for (text, part) in [
            ("schedules=0", "the limit schedules is 0, allowed is 1 to 1000000"),
            ("schedules=4294967296", "schedules is 4294967295"),
            ("burst=5", "without schedules"),
            ("payload=65537", "payload is 65537, allowed is 0 to 65536"),
            ("connections=0", "connections is 0"),
            ("pending=0", "pending is 0"),
        ] {
            let error = text.parse::<Limits>().unwrap().validate().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        "payload=0,pending=1".parse::<Limits>().unwrap().validate().unwrap();
    }
}
