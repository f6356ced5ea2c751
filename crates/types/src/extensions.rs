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
mod tests;
