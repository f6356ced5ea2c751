//! Extensions: fields that are added to a timer or a record without a new version of its format.
//!
//! A block of extensions has the same bytes in messages and in stores: for each field its tag, the
//! length of its value, and the value. Tags and lengths are varints as in the wire protocol: below
//! 251 the byte is the number; 251 is followed by two bytes of it, 252 by four, little endian.
//!
//! Invariant: a block that is read has the only form that it can have, so it is written as it was
//! read. Tags ascend, none comes twice, and numbers have their shortest form.
//!
//! A tag is the number of a field times four, and two bits: [`MUST_BE_UNDERSTOOD`] and
//! [`VOLATILE`]. The first field has number 16. Numbers below it, and from [`FIRST_UNASSIGNED`] on,
//! are never given to one: tests and samples have them.
//!
//! | field | tag | of | value |
//! |---|---|---|---|
//! | number of the newest bulk job that passes it by ([`Extensions::bulk_mark`]) | 64 | a record | varint |
//! | attempts without success ([`Extensions::story`]) | 68 | a record | see [`crate::story`] |
//! | import of which it is, and what its release does ([`Extensions::staging`]) | 73 | a record | [`Staging::to_bytes`] |
//! | when the first of its debounce was accepted ([`Extensions::debounced_since`]) | 76 | a record | ms, 8 bytes, little endian |
//! | attempts whose handlers answered later ([`Extensions::postponed`]) | 80 | a record | two varints: how many in a row, number of the last |
//! | class among those that wait ([`Extensions::priority`]) | 92 | a timer | 1: its number; that of a normal timer has none |

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Time;
use crate::import::Staging;
use crate::limits::{MAX_EXTENSIONS, MAX_EXTENSIONS_BYTES};
use crate::priority::Priority;
use crate::story::{self, FailedAttempt};
use crate::varint::{BadVarint, put_varint, take_varint};

/// Bit of a tag: what has the field must not be used by a version that does not know it.
pub const MUST_BE_UNDERSTOOD: u32 = 1;
/// Bit of a tag. In a timer: the field is not content, so a repeated schedule may differ in it. In
/// a record: a version that does not know the field drops it when the timer's progress changes.
pub const VOLATILE: u32 = 2;
/// First number of those that no field gets.
pub const FIRST_UNASSIGNED: u32 = 1 << 16;

/// Tag of [`Extensions::bulk_mark`].
pub const BULK_MARK: u32 = 16 << 2;
/// Tag of [`Extensions::story`].
pub const STORY: u32 = 17 << 2;
/// Tag of [`Extensions::staging`].
pub const STAGING: u32 = 18 << 2 | MUST_BE_UNDERSTOOD;
/// Tag of [`Extensions::debounced_since`].
pub const DEBOUNCED_SINCE: u32 = 19 << 2;
/// Tag of [`Extensions::postponed`].
pub const POSTPONED: u32 = 20 << 2;
/// Tag of [`Extensions::priority`].
pub const PRIORITY: u32 = 23 << 2;

/// The attempts of a timer whose handlers answered later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Postponed {
    /// How many have, since an attempt ended otherwise.
    pub in_a_row: u32,
    /// The number of the last one; 0: none has. An ok of it, or of an attempt before it, is no ok
    /// any more.
    pub last: u32,
}

/// Holds the extensions of a timer or a record, in order of tag. None take no memory.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Extensions(Option<Box<Fields>>);

/// At least one field. A known one gets a member beside the block, which keeps its bytes, too.
#[derive(Clone, PartialEq, Eq)]
struct Fields {
    /// All of them, as they are written.
    block: Box<[u8]>,
}

/// Says why a block of extensions was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// It ends within a field.
    #[error("the extensions are cut off")]
    CutOff,
    /// A tag or a length is too large, or not in its shortest form.
    #[error("a tag or a length of the extensions is not a number in its shortest form")]
    Number,
    /// A tag is not above the one before.
    #[error("extension {tag} follows {before}: tags ascend, and none comes twice")]
    Order {
        /// The tag.
        tag: u32,
        /// The tag before it.
        before: u32,
    },
    /// Too many fields.
    #[error("there are more than {limit} extensions")]
    TooMany {
        /// Most fields allowed.
        limit: usize,
    },
    /// Too many bytes in all.
    #[error("the extensions have {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Their bytes.
        bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
}

impl ExtensionError {
    fn of_number(bad: BadVarint) -> Self {
        match bad {
            BadVarint::CutOff => Self::CutOff,
            BadVarint::Form => Self::Number,
        }
    }
}

impl Extensions {
    /// No extensions.
    pub const NONE: Self = Self(None);

    /// Makes extensions of tags and values, in ascending order of tag.
    ///
    /// # Errors
    ///
    /// [`ExtensionError`] for another order, and beyond a limit.
    pub fn new<V: AsRef<[u8]>>(fields: impl IntoIterator<Item = (u32, V)>) -> Result<Self, ExtensionError> {
        Self::from_bytes(&block_of(fields))
    }

    /// Reads a block.
    ///
    /// # Errors
    ///
    /// [`ExtensionError`] if it is not in the form in which it would be written, or beyond a limit.
    pub fn from_bytes(block: &[u8]) -> Result<Self, ExtensionError> {
        if block.is_empty() {
            return Ok(Self::NONE);
        }
        if block.len() > MAX_EXTENSIONS_BYTES {
            return Err(ExtensionError::TooLarge { bytes: block.len(), limit: MAX_EXTENSIONS_BYTES });
        }
        let (mut rest, mut count, mut last) = (block, 0, None);
        while !rest.is_empty() {
            let (tag, _) = take_field(&mut rest)?;
            if let Some(before) = last.filter(|before| tag <= *before) {
                return Err(ExtensionError::Order { tag, before });
            }
            if count == MAX_EXTENSIONS {
                return Err(ExtensionError::TooMany { limit: MAX_EXTENSIONS });
            }
            (count, last) = (count + 1, Some(tag));
        }
        Ok(Self::of_block(block.into()))
    }

    /// Returns the block: empty if there are none.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |fields| &fields.block)
    }

    /// Returns tags and values, in order of tag.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> + Clone {
        let mut rest = self.as_bytes();
        std::iter::from_fn(move || take_field(&mut rest).ok())
    }

    /// The number of the newest bulk job of its partition that passes by what has these. 0: none
    /// does.
    pub fn bulk_mark(&self) -> u32 {
        self.value(BULK_MARK).and_then(|mut value| take_varint(&mut value).ok()).unwrap_or(0)
    }

    /// Raises [`Self::bulk_mark`] to at least this. Extensions that are full stay as they are.
    pub fn raise_bulk_mark(&mut self, number: u32) {
        if number <= self.bulk_mark() {
            return;
        }
        let mut value = Vec::new();
        put_varint(number, &mut value);
        self.set(BULK_MARK, &value);
    }

    /// The attempts of a record that have ended without success, the last
    /// [`MAX_STORY_ATTEMPTS`](crate::story::MAX_STORY_ATTEMPTS) of them.
    pub fn story(&self) -> Vec<FailedAttempt> {
        self.value(STORY).and_then(story::decode).unwrap_or_default()
    }

    /// Adds the newest attempt to [`Self::story`]. The oldest ones are dropped if it
    /// does not fit otherwise.
    pub fn add_attempt(&mut self, attempt: FailedAttempt) {
        let mut attempts = self.story();
        attempts.push(attempt);
        while !self.set(STORY, &story::encode(&attempts)) && attempts.len() > 1 {
            attempts.remove(0);
        }
    }

    /// Leaves out what [`Self::story`] says, but not that there is one.
    pub fn abridge_story(&mut self) {
        if self.value(STORY).is_some_and(|value| !value.is_empty()) {
            self.set(STORY, &[]);
        }
    }

    /// When the first schedule of the debounce was accepted whose newest timer the record is.
    /// `None`: it is of no debounce.
    pub fn debounced_since(&self) -> Option<Time> {
        let bytes = self.value(DEBOUNCED_SINCE)?.try_into().ok()?;
        Some(Time::from_ms(u64::from_le_bytes(bytes)))
    }

    /// Sets [`Self::debounced_since`]. Extensions that are full stay as they are.
    pub fn set_debounced_since(&mut self, first: Time) {
        self.set(DEBOUNCED_SINCE, &first.as_ms().to_le_bytes());
    }

    /// The class of a timer with these. One that this version does not know is normal.
    pub fn priority(&self) -> Priority {
        let read = |value: &[u8]| Priority::from_u8(*value.first()?);
        self.value(PRIORITY).and_then(read).unwrap_or_default()
    }

    /// The same with this class. Normal timers have no field of it.
    ///
    /// # Errors
    ///
    /// [`ExtensionError`] beyond a limit.
    pub fn with_priority(&self, priority: Priority) -> Result<Self, ExtensionError> {
        match priority {
            Priority::Normal => Ok(self.without(PRIORITY)),
            Priority::Urgent | Priority::High | Priority::Low => self.with(PRIORITY, &[priority as u8]),
        }
    }

    /// Which attempts were postponed by their handlers.
    pub fn postponed(&self) -> Postponed {
        let read = |mut value: &[u8]| {
            let mut number = || take_varint(&mut value).ok();
            Some(Postponed { in_a_row: number()?, last: number()? })
        };
        self.value(POSTPONED).and_then(read).unwrap_or_default()
    }

    /// Counts an attempt that its handler has postponed.
    pub fn postpone(&mut self, attempt: u32) {
        let Postponed { in_a_row, last } = self.postponed();
        self.set_postponed(in_a_row.saturating_add(1), last.max(attempt));
    }

    /// Counts from 0 again: an attempt has ended otherwise. Writes nothing if none was postponed.
    pub fn end_postponing(&mut self) {
        let Postponed { in_a_row, last } = self.postponed();
        if in_a_row > 0 {
            self.set_postponed(0, last);
        }
    }

    fn set_postponed(&mut self, in_a_row: u32, last: u32) {
        let mut value = Vec::new();
        put_varint(in_a_row, &mut value);
        put_varint(last, &mut value);
        self.set(POSTPONED, &value);
    }

    fn value(&self, tag: u32) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == tag).map(|(_, value)| value)
    }

    /// Returns whether the field fits; else nothing changes.
    fn set(&mut self, tag: u32, value: &[u8]) -> bool {
        let changed = self.with(tag, value);
        let fits = changed.is_ok();
        *self = changed.unwrap_or_else(|_| std::mem::take(self));
        fits
    }

    /// Of which import the record is that has these, and what its release does. `None`: it is not
    /// staged.
    pub fn staging(&self) -> Option<Staging> {
        self.value(STAGING).and_then(Staging::from_bytes)
    }

    /// The same, staged.
    ///
    /// # Errors
    ///
    /// [`ExtensionError`] beyond a limit.
    pub fn staged(&self, staging: Staging) -> Result<Self, ExtensionError> {
        self.with(STAGING, &staging.to_bytes())
    }

    /// The same without a field.
    #[must_use]
    pub fn without(&self, tag: u32) -> Self {
        Self::of_block(block_of(self.iter().filter(|(other, _)| *other != tag)))
    }

    /// The same with this field.
    fn with(&self, tag: u32, value: &[u8]) -> Result<Self, ExtensionError> {
        let mut fields: BTreeMap<u32, &[u8]> = self.iter().collect();
        fields.insert(tag, value);
        Self::new(fields)
    }

    /// Says whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the first tag that must be understood and that this version does not know in a
    /// timer.
    pub fn not_understood(&self) -> Option<u32> {
        self.iter().map(|(tag, _)| tag).find(|tag| tag & MUST_BE_UNDERSTOOD != 0)
    }

    /// The same in a record, where [`Extensions::staging`] is known.
    pub fn not_understood_in_record(&self) -> Option<u32> {
        let is_known = |tag| tag == STAGING && self.staging().is_some();
        self.iter().map(|(tag, _)| tag).find(|tag| tag & MUST_BE_UNDERSTOOD != 0 && !is_known(*tag))
    }

    /// Says whether a timer with these and one with the others have the same content: all fields
    /// but the volatile ones are equal.
    pub fn same_content(&self, other: &Self) -> bool {
        self == other || self.lasting().eq(other.lasting())
    }

    /// Removes the volatile fields.
    pub fn drop_volatile(&mut self) {
        if self.iter().any(|(tag, _)| tag & VOLATILE != 0) {
            *self = Self::of_block(block_of(self.lasting()));
        }
    }

    fn lasting(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.iter().filter(|(tag, _)| tag & VOLATILE == 0)
    }

    /// Of a valid block.
    fn of_block(block: Vec<u8>) -> Self {
        Self((!block.is_empty()).then(|| Box::new(Fields { block: block.into() })))
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn block_of<V: AsRef<[u8]>>(fields: impl IntoIterator<Item = (u32, V)>) -> Vec<u8> {
    let mut block = Vec::new();
    for (tag, value) in fields {
        let value = value.as_ref();
        put_varint(tag, &mut block);
        // A longer value is beyond the limit in any case.
        put_varint(u32::try_from(value.len()).unwrap_or(u32::MAX), &mut block);
        block.extend_from_slice(value);
    }
    block
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Result<(u32, &'a [u8]), ExtensionError> {
    let mut number = || take_varint(rest).map_err(ExtensionError::of_number);
    let (tag, len) = (number()?, number()?);
    let (value, after) = rest.split_at_checked(len as usize).ok_or(ExtensionError::CutOff)?;
    *rest = after;
    Ok((tag, value))
}

/// The block, as bytes.
impl Serialize for Extensions {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Extensions {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_bytes(BlockVisitor)
    }
}

struct BlockVisitor;

impl<'de> de::Visitor<'de> for BlockVisitor {
    type Value = Extensions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a block of extensions")
    }

    fn visit_bytes<E: de::Error>(self, block: &[u8]) -> Result<Extensions, E> {
        Extensions::from_bytes(block).map_err(E::custom)
    }

    /// As texts write bytes.
    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Extensions, A::Error> {
        let mut block = Vec::new();
        while let Some(byte) = seq.next_element()? {
            block.push(byte);
        }
        self.visit_bytes(&block)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Attempt, AttemptEnd, Epoch};

    fn of(fields: &[(u32, &str)]) -> Extensions {
        Extensions::new(fields.iter().copied()).unwrap()
    }

    fn refused(block: &[u8]) -> String {
        Extensions::from_bytes(block).unwrap_err().to_string()
    }

    #[test]
    fn a_block_has_tags_lengths_and_values() {
        let extensions = of(&[(0, ""), (250, "a"), (251, "bc"), (65_535, "d"), (65_536, "e")]);
        let block: &[u8] = b"\x00\x00\xfa\x01a\xfb\xfb\x00\x02bc\xfb\xff\xff\x01d\xfc\x00\x00\x01\x00\x01e";
        assert_eq!(extensions.as_bytes(), block);
        assert_eq!(Extensions::from_bytes(block), Ok(extensions.clone()));
        let fields: Vec<(u32, &[u8])> = extensions.iter().collect();
        assert_eq!(fields, [(0, &b""[..]), (250, b"a"), (251, b"bc"), (65_535, b"d"), (65_536, b"e")]);
        let long = Extensions::new([(u32::MAX, [7; 300])]).unwrap();
        assert_eq!(long.as_bytes()[..8], *b"\xfc\xff\xff\xff\xff\xfb\x2c\x01");
        assert_eq!(format!("{:?}", of(&[(4, "a")])), "{4: [97]}");
    }

    #[test]
    fn none_take_no_memory_and_one_word_in_place() {
        assert_eq!(Extensions::from_bytes(&[]), Ok(Extensions::NONE));
        assert_eq!(of(&[]), Extensions::NONE);
        assert!(Extensions::NONE.is_empty() && !of(&[(0, "")]).is_empty());
        assert_eq!((Extensions::NONE.as_bytes(), Extensions::NONE.iter().count()), (&[][..], 0));
        assert_eq!(size_of::<Extensions>(), size_of::<usize>());
    }

    #[test]
    fn only_the_form_that_is_written_is_read() {
        let cut_off = "the extensions are cut off";
        for block in
            [&b"\x04"[..], b"\x04\x01", b"\x04\xfb\x01", b"\xfb\x01", b"\xfc\x00\x00\x01", b"\x04\x00\x08"]
        {
            assert_eq!(refused(block), cut_off, "{block:?}");
        }
        let number = "a tag or a length of the extensions is not a number in its shortest form";
        // Too long a form of 250 and of 65,535, as a tag and as a length; 8 and 16 bytes.
        for long in
            [&b"\xfb\xfa\x00"[..], b"\xfc\xff\xff\x00\x00", b"\xfd\x00\x00\x00\x00\x01\x00\x00\x00", b"\xfe"]
        {
            assert_eq!(refused(&[long, b"\x00"].concat()), number);
            assert_eq!(refused(&[b"\x04", long, &[0; 300]].concat()), number);
        }
        assert_eq!(refused(b"\xff\x00"), number);
        assert_eq!(refused(b"\x04\x00\x04\x00"), "extension 4 follows 4: tags ascend, and none comes twice");
        assert_eq!(refused(b"\x08\x01a\x04\x00"), "extension 4 follows 8: tags ascend, and none comes twice");
    }

    #[test]
    fn extensions_at_the_limits_are_read_and_beyond_are_not() {
        let many = |count: u32| Extensions::new((0..count).map(|tag| (tag, "")));
        assert_eq!(many(16).unwrap().iter().count(), 16);
        assert_eq!(many(17).unwrap_err().to_string(), "there are more than 16 extensions");
        // The tag has one byte, the length three.
        let large = |len: usize| Extensions::new([(4, vec![7; len])]);
        assert_eq!(large(1_020).unwrap().as_bytes().len(), 1_024);
        assert_eq!(
            large(1_021).unwrap_err().to_string(),
            "the extensions have 1025 bytes, the limit is 1024"
        );
    }

    #[test]
    fn volatile_fields_are_not_content_and_can_be_dropped() {
        let lasting = of(&[(4, "a"), (9, "b")]);
        let both = of(&[(4, "a"), (6, "x"), (9, "b"), (11, "y")]);
        let volatile = of(&[(6, "x"), (11, "y")]);
        assert!(lasting.same_content(&both) && both.same_content(&lasting) && both.same_content(&both));
        assert!(volatile.same_content(&Extensions::NONE));
        for other in [of(&[(4, "b"), (9, "b")]), of(&[(4, "a")]), of(&[(5, "a"), (9, "b")]), volatile.clone()]
        {
            assert!(!lasting.same_content(&other) && !other.same_content(&both), "{other:?}");
        }
        let dropped = |mut extensions: Extensions| {
            extensions.drop_volatile();
            extensions
        };
        assert_eq!([both, lasting.clone()].map(dropped), [lasting.clone(), lasting]);
        assert_eq!([volatile, Extensions::NONE].map(dropped), [Extensions::NONE, Extensions::NONE]);
    }

    #[test]
    fn a_mark_of_bulk_jobs_only_rises_and_leaves_the_others() {
        let mut extensions = of(&[(4, "a"), (65, "b"), (66, "c")]);
        assert_eq!(extensions.bulk_mark(), 0);
        for (raised, mark) in [(0, 0), (7, 7), (3, 7), (300, 300), (70_000, 70_000)] {
            extensions.raise_bulk_mark(raised);
            assert_eq!(extensions.bulk_mark(), mark);
        }
        assert_eq!(extensions.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 64, 65, 66]);
        extensions.drop_volatile();
        assert_eq!(extensions.bulk_mark(), 70_000);
    }

    #[test]
    fn a_debounce_knows_its_first_schedule() {
        let mut extensions = of(&[(4, "a"), (80, "c")]);
        assert_eq!(extensions.debounced_since(), None);
        for first in [Time::from_ms(7), Time::from_ms(1_700_000_000_000)] {
            extensions.set_debounced_since(first);
            assert_eq!(extensions.debounced_since(), Some(first));
        }
        extensions.drop_volatile();
        assert_eq!(extensions.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 76, 80]);
        assert_eq!((extensions.not_understood_in_record(), of(&[(76, "x")]).debounced_since()), (None, None));
    }

    #[test]
    fn a_story_grows_beside_the_other_fields_and_can_be_abridged() {
        let attempt = |number| FailedAttempt {
            attempt: Attempt { number, epoch: Epoch(1), client: 2, sent: None, late_ms: 0, late_by: None },
            ended: Time::from_ms(3),
            end: AttemptEnd::Retry,
            error: "no".into(),
        };
        let mut extensions = of(&[(4, "a"), (72, "c")]);
        extensions.abridge_story();
        assert_eq!((extensions.story(), extensions.iter().count()), (vec![], 2));
        (1..=3).for_each(|n| extensions.add_attempt(attempt(n)));
        extensions.raise_bulk_mark(7);
        assert_eq!(extensions.story(), [1, 2, 3].map(attempt));
        extensions.abridge_story();
        assert_eq!((extensions.story(), extensions.bulk_mark(), extensions.iter().count()), (vec![], 7, 4));
        // Where few fit the newest ones are kept.
        let mut full = of(&[(4, &"x".repeat(880))]);
        (1..=8).for_each(|n| full.add_attempt(attempt(n)));
        assert_eq!(full.story(), [6, 7, 8].map(attempt));
    }

    #[test]
    fn postponed_attempts_are_counted_until_one_ends_otherwise() {
        let mut extensions = of(&[(4, "a"), (84, "c")]);
        extensions.end_postponing();
        assert_eq!((extensions.postponed(), extensions.iter().count()), (Postponed::default(), 2));
        for (n, attempt) in [(1, 1), (2, 2), (3, 300)] {
            extensions.postpone(attempt);
            assert_eq!(extensions.postponed(), Postponed { in_a_row: n, last: attempt });
        }
        extensions.end_postponing();
        assert_eq!(extensions.postponed(), Postponed { in_a_row: 0, last: 300 });
        extensions.postpone(70_000);
        extensions.drop_volatile();
        assert_eq!(extensions.postponed(), Postponed { in_a_row: 1, last: 70_000 });
        assert_eq!(extensions.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 80, 84]);
        assert_eq!(of(&[(80, "")]).postponed(), Postponed::default());
    }

    #[test]
    fn a_normal_timer_has_no_byte_of_its_priority() {
        let before = of(&[(4, "a"), (96, "c")]);
        for priority in Priority::ALL {
            let with = before.with_priority(priority).unwrap();
            let tags = with.iter().map(|(tag, _)| tag).collect::<Vec<_>>();
            assert_eq!((with.priority(), with.not_understood()), (priority, None));
            assert_eq!(tags.contains(&92), priority != Priority::Normal);
            assert_eq!(with.same_content(&before), priority == Priority::Normal, "it is content");
            assert_eq!(with.with_priority(Priority::Normal).unwrap(), before);
        }
        for unknown in ["", "\u{9}"] {
            assert_eq!(of(&[(92, unknown)]).priority(), Priority::Normal);
        }
        assert!(Extensions::new((0..16).map(|tag| (tag, ""))).unwrap().with_priority(Priority::Low).is_err());
    }

    #[test]
    fn a_record_is_staged_and_released() {
        let goal = crate::ImportGoal::Live { tier: 1 };
        let staging = Staging { import: crate::ImportId(7), goal };
        let before = of(&[(4, "a"), (74, "c")]);
        let staged = before.staged(staging).unwrap();
        assert_eq!((staged.staging(), before.staging()), (Some(staging), None));
        assert_eq!(staged.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 73, 74]);
        assert_eq!((staged.not_understood(), staged.not_understood_in_record()), (Some(73), None));
        assert_eq!((staged.without(STAGING), before.without(STAGING)), (before.clone(), before));
        let damaged = of(&[(73, "x")]);
        assert_eq!((damaged.staging(), damaged.not_understood_in_record()), (None, Some(73)));
        assert!(Extensions::new((0..16).map(|tag| (tag, ""))).unwrap().staged(staging).is_err());
    }

    #[test]
    fn the_first_tag_that_must_be_understood_is_named() {
        let first =
            |tags: &[u32]| Extensions::new(tags.iter().map(|tag| (*tag, "x"))).unwrap().not_understood();
        assert_eq!(
            [first(&[]), first(&[4, 6]), first(&[4, 9, 11]), first(&[7])],
            [None, None, Some(9), Some(7)]
        );
    }

    #[test]
    fn a_text_form_is_a_list_of_bytes() {
        let extensions = of(&[(4, "a")]);
        assert_eq!(serde_json::to_string(&extensions).unwrap(), "[4,1,97]");
        assert_eq!(serde_json::from_str::<Extensions>("[4,1,97]").unwrap(), extensions);
        assert_eq!(serde_json::from_str::<Extensions>("[]").unwrap(), Extensions::NONE);
        assert!(serde_json::from_str::<Extensions>("[4,1]").is_err());
    }

    /// Bytes that are often a block, or nearly.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let fields = proptest::collection::btree_map(0u32..1_000, "[a-z]{0,3}", 0..5);
        let block = fields.prop_map(block_of);
        let damage = proptest::option::of((any::<prop::sample::Index>(), 0u8..8));
        let damaged = (block, damage).prop_map(|(mut block, damage)| {
            if let Some((at, byte)) = damage.filter(|_| !block.is_empty()) {
                let at = at.index(block.len());
                block[at] = byte;
            }
            block
        });
        prop_oneof![
            proptest::collection::vec(0u8..4, 0..20),
            proptest::collection::vec(any::<u8>(), 0..40),
            damaged
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_survive_or_are_refused(block in bytes()) {
            if let Ok(extensions) = Extensions::from_bytes(&block) {
                prop_assert_eq!(extensions.as_bytes(), &block[..]);
                prop_assert_eq!(Extensions::new(extensions.iter()), Ok(extensions.clone()));
                prop_assert!(extensions.iter().is_sorted_by(|(a, _), (b, _)| a < b));
            }
        }

        #[test]
        fn a_block_that_is_cut_off_has_fewer_fields_or_is_refused(
            fields in proptest::collection::btree_map(any::<u32>(), "[a-z]{0,9}", 1..9),
        ) {
            let extensions = Extensions::new(fields.clone()).unwrap();
            let block = extensions.as_bytes();
            for end in 0..block.len() {
                if let Ok(fewer) = Extensions::from_bytes(&block[..end]) {
                    let expected: Vec<_> = fields.iter().map(|(tag, value)| (*tag, value.as_bytes())).collect();
                    let fewer: Vec<_> = fewer.iter().collect();
                    prop_assert!(fewer.len() < expected.len() && expected.starts_with(&fewer));
                }
            }
        }
    }
}
