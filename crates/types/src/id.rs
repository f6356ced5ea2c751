//! Timer ids, and the slots that timers are filed in by them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::partition::PartitionId;
use crate::time::Time;

/// How wide the slot is that a timer is filed in at birth (hierarchical timing wheels, Varghese and
/// Lauck 1987).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum SlotWidth {
    /// 1,000 ms: due within two minutes of birth.
    Second = 0,
    /// 60,000 ms: due within two hours.
    Minute = 1,
    /// 3,600,000 ms: due within two days.
    Hour = 2,
    /// 86,400,000 ms: due later than that.
    Day = 3,
}

impl SlotWidth {
    /// All widths, narrow to wide.
    pub const ALL: [Self; 4] = [Self::Second, Self::Minute, Self::Hour, Self::Day];

    /// The width in milliseconds.
    pub const fn ms(self) -> u64 {
        match self {
            Self::Second => 1_000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
        }
    }

    /// The width for a timer due `ahead` ms after its birth.
    pub const fn for_distance(ahead: u64) -> Self {
        if ahead <= 2 * Self::Minute.ms() {
            Self::Second
        } else if ahead <= 2 * Self::Hour.ms() {
            Self::Minute
        } else if ahead <= 2 * Self::Day.ms() {
            Self::Hour
        } else {
            Self::Day
        }
    }

    /// The start of the slot of this width that contains `time`.
    pub const fn start_of(self, time: Time) -> Time {
        Time::from_ms(time.as_ms() - time.as_ms() % self.ms())
    }

    /// The next narrower width, if there is one.
    pub const fn narrower(self) -> Option<Self> {
        match self {
            Self::Second => None,
            Self::Minute => Some(Self::Second),
            Self::Hour => Some(Self::Minute),
            Self::Day => Some(Self::Hour),
        }
    }

    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Second,
            1 => Self::Minute,
            2 => Self::Hour,
            _ => Self::Day,
        }
    }
}

/// Identifies a timer: 128 bits, made by the client, so that a repeated schedule is the same
/// schedule.
///
/// From the top: birth due time (48 bits, ms), birth slot width (2 bits), partition (16 bits),
/// cohort (6 bits), random (56 bits). The text form is 26 digits of Crockford's base 32 in lower
/// case and sorts like the number. An id stays valid after a reschedule: it keeps the place at
/// birth, and the store records the new place elsewhere.
///
/// Timers of one partition, slot width and slot that have one cohort may be stored together: a
/// client gives one to about 128 ids in turn ([`crate::Cohorts`]). It is a hint, as the width is:
/// any value is valid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(u128);

impl TimerId {
    /// An id that no timer has: its partition is above [`limits::MAX_PARTITIONS`]. A query about it
    /// needs no store.
    ///
    /// [`limits::MAX_PARTITIONS`]: crate::limits::MAX_PARTITIONS
    pub const NOBODYS: Self = Self(u128::MAX);
    /// Number of random bits, those of the cohort included.
    pub const RANDOM_BITS: u32 = 62;
    /// Number of cohorts.
    pub const COHORTS: u8 = 1 << Self::COHORT_BITS;

    /// Bits below the due time and the slot width at birth.
    const BIRTH_SHIFT: u32 = 78;
    const COHORT_BITS: u32 = 6;
    const COHORT_SHIFT: u32 = Self::RANDOM_BITS - Self::COHORT_BITS;

    /// Makes an id for a timer due at `due`, born at `now`. Of `random` the low 62 bits are used;
    /// the highest six of them are the cohort ([`TimerId::with_cohort`] sets another).
    pub fn new(due: Time, now: Time, partition: PartitionId, random: u64) -> Self {
        Self::with_width(due, SlotWidth::for_distance(due.ms_since(now)), partition, random)
    }

    /// Makes an id with a given birth width.
    pub fn with_width(due: Time, width: SlotWidth, partition: PartitionId, random: u64) -> Self {
        let random = random & ((1 << Self::RANDOM_BITS) - 1);
        Self(
            u128::from(due.as_ms()) << 80
                | u128::from(width as u8) << Self::BIRTH_SHIFT
                | u128::from(partition.0) << Self::RANDOM_BITS
                | u128::from(random),
        )
    }

    /// Returns the due time at birth.
    pub const fn birth_due(self) -> Time {
        Time::from_ms((self.0 >> 80) as u64)
    }

    /// Returns the slot width at birth.
    pub const fn birth_width(self) -> SlotWidth {
        SlotWidth::from_bits((self.0 >> Self::BIRTH_SHIFT) as u8)
    }

    /// Returns the partition, which never changes.
    pub const fn partition(self) -> PartitionId {
        PartitionId((self.0 >> Self::RANDOM_BITS) as u16)
    }

    /// Returns the same id in another cohort. Of `cohort` the low 6 bits are used.
    #[must_use]
    pub fn with_cohort(self, cohort: u8) -> Self {
        let all = u128::from(Self::COHORTS - 1) << Self::COHORT_SHIFT;
        Self(self.0 & !all | u128::from(cohort) << Self::COHORT_SHIFT & all)
    }

    /// Returns the cohort; below [`TimerId::COHORTS`].
    pub const fn cohort(self) -> u8 {
        (self.random() >> Self::COHORT_SHIFT) as u8
    }

    /// Returns the 62 random bits: cohort and random.
    pub const fn random(self) -> u64 {
        (self.0 as u64) & ((1 << Self::RANDOM_BITS) - 1)
    }

    /// Returns the id as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Makes an id of a number; every number is an id.
    pub const fn from_u128(n: u128) -> Self {
        Self(n)
    }

    /// Returns the id as 16 bytes, big endian: bytes sort like ids.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Makes an id of 16 bytes, big endian.
    pub const fn from_bytes(b: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(b))
    }

    /// Returns the id without its partition, as 14 bytes, big endian: birth due time, slot width,
    /// cohort, random. Within one partition these bytes are unique, and sort like ids.
    pub const fn to_local(self) -> [u8; 14] {
        let local = self.0 >> Self::BIRTH_SHIFT << Self::RANDOM_BITS | self.random() as u128;
        let [_, _, bytes @ ..] = local.to_be_bytes();
        bytes
    }

    /// Makes an id of a partition and the bytes that [`TimerId::to_local`] returned.
    pub fn from_local(partition: PartitionId, bytes: [u8; 14]) -> Self {
        let mut all = [0; 16];
        all[2..].copy_from_slice(&bytes);
        let local = u128::from_be_bytes(all);
        let random = local & ((1 << Self::RANDOM_BITS) - 1);
        let birth = local >> Self::RANDOM_BITS << Self::BIRTH_SHIFT;
        Self(birth | u128::from(partition.0) << Self::RANDOM_BITS | random)
    }
}

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TEXT_LEN: usize = 26;

impl fmt::Display for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; TEXT_LEN];
        for (i, slot) in text.iter_mut().enumerate() {
            let shift = 5 * (TEXT_LEN - 1 - i);
            *slot = DIGITS[((self.0 >> shift) & 31) as usize];
        }
        // The alphabet is ASCII.
        f.pad(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Says that a text is not a timer id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a timer id: an id has 26 characters of 0-9 a-z without i, l, o, u, the first of them 0-7"
)]
pub struct ParseIdError(String);

impl FromStr for TimerId {
    type Err = ParseIdError;

    fn from_str(s: &str) -> Result<Self, ParseIdError> {
        let bad = || ParseIdError(s.chars().take(40).collect());
        if s.len() != TEXT_LEN {
            return Err(bad());
        }
        let mut n: u128 = 0;
        for (i, b) in s.bytes().enumerate() {
            let digit = DIGITS.iter().position(|d| *d == b.to_ascii_lowercase()).ok_or_else(bad)?;
            if i == 0 && digit > 7 {
                return Err(bad());
            }
            n = n << 5 | digit as u128;
        }
        Ok(Self(n))
    }
}

impl Serialize for TimerId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.collect_str(self) } else { self.0.serialize(s) }
    }
}

impl<'de> Deserialize<'de> for TimerId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
            text.parse().map_err(de::Error::custom)
        } else {
            u128::deserialize(d).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_and_text_survive(due in 0u64..(1 << 48), w in 0..4usize, p: u16, r: u64) {
            let width = SlotWidth::ALL[w];
            let id = TimerId::with_width(Time::from_ms(due), width, PartitionId(p), r);
            prop_assert_eq!(id.birth_due().as_ms(), due);
            prop_assert_eq!(id.birth_width(), width);
            prop_assert_eq!(id.partition(), PartitionId(p));
            prop_assert_eq!(id.random(), r & ((1 << 62) - 1));
            prop_assert_eq!(u64::from(id.cohort()), r >> 56 & 63);
            prop_assert_eq!(id.to_string().parse::<TimerId>().unwrap(), id);
            prop_assert_eq!(TimerId::from_bytes(id.to_bytes()), id);
            prop_assert_eq!(TimerId::from_u128(id.as_u128()), id);
        }

        #[test]
        fn an_id_is_the_same_without_its_partition_and_with_it(n: u128, other: u128) {
            let (id, other) = (TimerId::from_u128(n), TimerId::from_u128(other));
            let elsewhere = TimerId::from_local(PartitionId(3), id.to_local());
            prop_assert_eq!(TimerId::from_local(id.partition(), id.to_local()), id);
            prop_assert_eq!(elsewhere.partition(), PartitionId(3));
            prop_assert_eq!(elsewhere.to_local(), id.to_local());
            let other = TimerId::from_local(id.partition(), other.to_local());
            prop_assert_eq!(id.cmp(&other), id.to_local().cmp(&other.to_local()));
        }

        #[test]
        fn a_cohort_changes_nothing_else(n: u128, cohort: u8) {
            let (old, new) = (TimerId::from_u128(n), TimerId::from_u128(n).with_cohort(cohort));
            prop_assert_eq!(new.cohort(), cohort & 63);
            prop_assert_eq!(new.with_cohort(old.cohort()), old);
            prop_assert_eq!((new.birth_due(), new.partition()), (old.birth_due(), old.partition()));
            prop_assert_eq!(new.birth_width(), old.birth_width());
        }

        #[test]
        fn text_sorts_like_the_number(a: u128, b: u128) {
            let (x, y) = (TimerId::from_u128(a), TimerId::from_u128(b));
            prop_assert_eq!(x.cmp(&y), x.to_string().cmp(&y.to_string()));
        }

        #[test]
        fn any_text_parses_or_is_refused(s in ".{0,40}") {
            if let Ok(id) = s.parse::<TimerId>() {
                prop_assert_eq!(id.to_string(), s.to_ascii_lowercase());
            }
        }
    }

    #[test]
    fn the_bytes_without_the_partition_are_pinned() {
        let id = TimerId::with_width(Time::from_ms(0x0102_0304_0506), SlotWidth::Day, PartitionId(9), 0x0b0c);
        assert_eq!(id.to_local(), [1, 2, 3, 4, 5, 6, 0xc0, 0, 0, 0, 0, 0, 0x0b, 0x0c]);
    }

    #[test]
    fn json_is_the_text_form() {
        let id = TimerId::from_u128(42);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, "\"0000000000000000000000001a\"");
        assert_eq!(serde_json::from_str::<TimerId>(&json).unwrap(), id);
    }

    #[test]
    fn text_has_the_digits_of_its_alphabet_and_the_length_of_an_id() {
        let text = "0123456789abcdefghjkmnpqrs";
        let id: TimerId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!("0123456789ABCDEFGHJKMNPQRS".parse(), Ok(id));
        let refused = |text: &str| assert!(text.parse::<TimerId>().is_err(), "{text}");
        ["", &text[1..], "00123456789abcdefghjkmnpqrs"].into_iter().for_each(refused);
        ["i", "l", "o", "u", "-"].iter().for_each(|digit| refused(&format!("{digit}{}", &text[1..])));
        // 128 bits are 25 digits of five bits, and three bits before them.
        assert_eq!("7zzzzzzzzzzzzzzzzzzzzzzzzz".parse(), Ok(TimerId::from_u128(u128::MAX)));
        refused("80000000000000000000000000");
    }

    #[test]
    fn a_timer_further_ahead_gets_a_wider_slot() {
        let (minute, hour, day) = (60_000, 3_600_000, 86_400_000);
        let widths = [
            (SlotWidth::Second, 0),
            (SlotWidth::Second, 2 * minute),
            (SlotWidth::Minute, 2 * minute + 1),
            (SlotWidth::Minute, 2 * hour),
            (SlotWidth::Hour, 2 * hour + 1),
            (SlotWidth::Hour, 2 * day),
            (SlotWidth::Day, 2 * day + 1),
        ];
        let now = Time::from_ms(1_700_000_000_123);
        for (width, ahead) in widths {
            assert_eq!(SlotWidth::for_distance(ahead), width, "{ahead} ms ahead");
            assert_eq!(TimerId::new(now + ahead, now, PartitionId(0), 0).birth_width(), width);
        }
    }

    #[test]
    fn slots_begin_at_multiples_of_their_width() {
        let starts = SlotWidth::ALL.map(|width| width.start_of(Time::from_ms(1_700_000_000_123)).as_ms());
        assert_eq!(starts, [1_700_000_000_000, 1_699_999_980_000, 1_699_999_200_000, 1_699_920_000_000]);
        assert_eq!(SlotWidth::Second.start_of(Time::from_ms(2_000)), Time::from_ms(2_000));
    }

    #[test]
    fn each_width_but_the_narrowest_has_a_narrower_one() {
        for (narrow, wide) in SlotWidth::ALL.iter().zip(&SlotWidth::ALL[1..]) {
            assert_eq!(wide.narrower(), Some(*narrow));
        }
        assert_eq!(SlotWidth::Second.narrower(), None);
    }
}
