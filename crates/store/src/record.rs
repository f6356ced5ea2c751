//! A timer as it is stored, and its bytes.
//!
//! The bytes are shared by every store that has bytes. All integers are little endian.
//!
//! | part | bytes | when |
//! |---|---|---|
//! | flags | 1 | always; bit 0 at-most-once, 1 key, 2 deadline, 3 more flags, 4 retry tiers, 5 progress, 6 due time, 7 zero |
//! | more flags | 1 | bit 3; bit 0 callback timeout, 1 headers, 2 accepted, 3 extensions of the timer, 4 extensions of the record, the others zero: a record with one of them set is refused |
//! | progress | 20 | bit 5: failed (u32), budget_from (u32), epoch of `fresh` or 0 (u64), stopped (u8), length of the error (u16), zero (u8) |
//! | error | n | bit 5: UTF-8 |
//! | destination | varint | always: the number under which the store has interned group and app |
//! | key | varint + n | bit 1 |
//! | due time | 6 | bit 6: if it is not the birth due time of the id |
//! | deadline | varint | bit 2: ms after the due time |
//! | callback timeout | varint | bit 0 of more flags: ms |
//! | retry tiers | varint, varints | bit 4: count, then ms each |
//! | headers | varint, (varint + n, varint + n)s | bit 1 of more flags: count, then name and value each |
//! | accepted | varint | bit 2 of more flags: ms after the due time |
//! | extensions of the timer | varint + n | bit 3 of more flags: a block of [`mtimer_types::extensions`], not empty |
//! | extensions of the record | varint + n | bit 4 of more flags: the same |
//! | payload | rest | always |
//!
//! A new field is an extension, so that it needs no new format: of the timer if its application
//! sends it, else of the record. A record with an extension that must be understood and that this
//! version does not know is refused.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use mtimer_types::{
    Destination, Epoch, Extensions, Headers, Key, Mode, RetryTiers, Time, Timer, TimerId, beginning, limits,
};

/// A stored timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The timer as the application wrote it (with its present due time).
    pub timer: Arc<Timer>,
    /// How far its deliveries have come.
    pub progress: Progress,
    /// When its due time was accepted, if that had passed already.
    pub accepted: Option<Time>,
    /// Fields that came later than this version, kept as they are; of [`Progress`] also. Those of
    /// the application are in the timer.
    pub extensions: Extensions,
}

/// How far a timer's deliveries have come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Failed attempts, for life.
    pub failed: u32,
    /// How many of them do not count for its retry budget: those up to its last replay, and those
    /// since whose handlers answered later.
    pub budget_from: u32,
    /// A cancel came too late: no attempt follows the one under way.
    pub stopped: bool,
    /// Filed at its present fire time in this epoch, at or below the claims of predecessors (see
    /// [`crate::ops`]).
    pub fresh: Option<Epoch>,
    /// The last failed attempt's error, at most 512 bytes.
    pub last_error: Option<Box<str>>,
}

/// Bytes that are not a record of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored record of timer {id} cannot be read: {what}")]
pub struct RecordError {
    /// Which.
    pub id: TimerId,
    /// The defect.
    pub what: Cow<'static, str>,
}

impl RecordError {
    /// The record of this timer has this defect.
    pub fn new(id: TimerId, what: impl Into<Cow<'static, str>>) -> Self {
        Self { id, what: what.into() }
    }
}

const AT_MOST_ONCE: u8 = 1;
const KEY: u8 = 2;
const DEADLINE: u8 = 4;
const MORE: u8 = 8;
const RETRY: u8 = 16;
const PROGRESS: u8 = 32;
const DUE: u8 = 64;

/// Of the second byte of flags.
const MORE_TIMEOUT: u8 = 1;
const MORE_HEADERS: u8 = 2;
const MORE_ACCEPTED: u8 = 4;
const MORE_TIMER_EXTENSIONS: u8 = 8;
const MORE_RECORD_EXTENSIONS: u8 = 16;
const ALL_MORE: u8 =
    MORE_TIMEOUT | MORE_HEADERS | MORE_ACCEPTED | MORE_TIMER_EXTENSIONS | MORE_RECORD_EXTENSIONS;

impl Record {
    /// A record of a timer that was never delivered.
    pub fn new(timer: Arc<Timer>) -> Self {
        Self { timer, progress: Progress::default(), accepted: None, extensions: Extensions::NONE }
    }

    /// A record of a timer whose due time is accepted `now`.
    pub fn accepted(timer: Arc<Timer>, now: Time) -> Self {
        Self { accepted: accepted(timer.due, now), ..Self::new(timer) }
    }

    /// Moves it to another due time, which is accepted `now`.
    pub fn reschedule(&mut self, due: Time, now: Time) {
        Arc::make_mut(&mut self.timer).due = due;
        self.accepted = accepted(due, now);
    }

    /// From when on it is late: its due time, or when that was accepted, if it had passed then.
    pub fn late_from(&self) -> Time {
        self.accepted.unwrap_or(self.timer.due)
    }

    /// Says whether it has nothing to keep beside the timer and what is counted of its deliveries.
    pub const fn is_plain(&self) -> bool {
        self.accepted.is_none() && self.extensions.is_empty()
    }

    /// Counts an attempt that its handler has postponed: it uses none of the retry budget.
    pub fn postpone(&mut self, attempt: u32) {
        self.progress.failed = attempt;
        self.progress.budget_from = self.progress.budget_from.saturating_add(1);
        self.extensions.postpone(attempt);
    }

    /// Drops the extensions that do not hold any more, if the progress is another than before.
    pub(crate) fn drop_outdated(&mut self, before: &Progress) {
        if !self.extensions.is_empty() && self.progress != *before {
            self.extensions.drop_volatile();
        }
    }

    /// The number of the next delivery: 1 + failed attempts, + 1 when a predecessor's claim covered
    /// it.
    pub const fn attempt(&self, covered: bool) -> u32 {
        self.progress.failed.saturating_add(1 + covered as u32)
    }

    /// Whether a predecessor may have sent this timer, pending at `fire`, to an owner of `epoch`
    /// (see [`crate::ops`]).
    pub fn covered(&self, fire: Time, epoch: Epoch, prior_claim: Time) -> bool {
        fire <= prior_claim && self.progress.fresh != Some(epoch)
    }

    /// Appends the record's bytes. `dest` is the number of its destination.
    pub fn encode(&self, dest: u32, out: &mut Vec<u8>) {
        let t = &*self.timer;
        let birth = t.id.birth_due();
        let progress = self.progress != Progress::default();
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let more = flag(t.callback_timeout_ms.is_some(), MORE_TIMEOUT)
            | flag(!t.headers.is_empty(), MORE_HEADERS)
            | flag(self.accepted.is_some(), MORE_ACCEPTED)
            | flag(!t.extensions.is_empty(), MORE_TIMER_EXTENSIONS)
            | flag(!self.extensions.is_empty(), MORE_RECORD_EXTENSIONS);
        out.put_u8(
            flag(t.mode == Mode::AtMostOnce, AT_MOST_ONCE)
                | flag(t.key.is_some(), KEY)
                | flag(t.deadline.is_some(), DEADLINE)
                | flag(more != 0, MORE)
                | flag(t.retry.is_some(), RETRY)
                | flag(progress, PROGRESS)
                | flag(t.due != birth, DUE),
        );
        if more != 0 {
            out.put_u8(more);
        }
        if progress {
            self.progress.encode(out);
        }
        put_varint(out, u64::from(dest));
        if let Some(key) = &t.key {
            put_text(out, key.as_str());
        }
        if t.due != birth {
            out.put_uint_le(t.due.as_ms(), 6);
        }
        if let Some(deadline) = t.deadline {
            put_varint(out, deadline.ms_since(t.due));
        }
        if let Some(ms) = t.callback_timeout_ms {
            put_varint(out, u64::from(ms));
        }
        if let Some(tiers) = &t.retry {
            put_varint(out, tiers.0.len() as u64);
            tiers.0.iter().for_each(|ms| put_varint(out, u64::from(*ms)));
        }
        if !t.headers.is_empty() {
            put_varint(out, t.headers.len() as u64);
            for (name, value) in t.headers.iter() {
                put_text(out, name);
                put_text(out, value);
            }
        }
        if let Some(accepted) = self.accepted {
            put_varint(out, accepted.ms_since(t.due));
        }
        for block in [&t.extensions, &self.extensions].map(Extensions::as_bytes) {
            if !block.is_empty() {
                put_varint(out, block.len() as u64);
                out.put_slice(block);
            }
        }
        out.put_slice(&t.payload);
    }

    /// Reads a record. `dest` turns the number of a destination into the destination.
    ///
    /// # Errors
    ///
    /// [`RecordError`] if the bytes are no record, or `dest` does not know the number.
    pub fn decode(
        id: TimerId,
        bytes: &Bytes,
        dest: impl FnOnce(u32) -> Option<Destination>,
    ) -> Result<Self, RecordError> {
        let mut rest = bytes.clone();
        decode(id, &mut rest, dest).map_err(|what| RecordError::new(id, what))
    }
}

impl Progress {
    /// Bytes before the error text.
    pub const FIXED: usize = 20;

    fn encode(&self, out: &mut Vec<u8>) {
        let error = self.last_error.as_deref().unwrap_or_default();
        out.put_u32_le(self.failed);
        out.put_u32_le(self.budget_from);
        out.put_u64_le(self.fresh.map_or(0, |e| e.0));
        out.put_u8(u8::from(self.stopped));
        out.put_u16_le(error.len() as u16);
        out.put_u8(0);
        out.put_slice(error.as_bytes());
    }
}

/// Cuts an error text to [`limits::MAX_ERROR_BYTES`], at a character's boundary.
pub fn cut_error(text: &str) -> Box<str> {
    beginning(text, limits::MAX_ERROR_BYTES).into()
}

/// When a due time is accepted, if it has passed by then.
fn accepted(due: Time, now: Time) -> Option<Time> {
    (due < now).then_some(now)
}

fn decode(
    id: TimerId,
    rest: &mut Bytes,
    dest: impl FnOnce(u32) -> Option<Destination>,
) -> Result<Record, Cow<'static, str>> {
    let birth = id.birth_due();
    let flags = rest.try_get_u8().map_err(|_| "it is empty")?;
    let has = |bit: u8| flags & bit != 0;
    let more = if has(MORE) { rest.try_get_u8().map_err(|_| "it is cut off")? } else { 0 };
    if more & !ALL_MORE != 0 {
        return Err("it has parts that this version does not know".into());
    }
    let progress = if has(PROGRESS) { decode_progress(rest)? } else { Progress::default() };
    let number = u32::try_from(get_varint(rest)?).map_err(|_| "its destination number is too large")?;
    let dest = dest(number).ok_or("its destination number is unknown")?;
    let key = if has(KEY) {
        let text = take_text(rest)?;
        let text = std::str::from_utf8(&text).map_err(|_| "its key is not UTF-8")?;
        Some(Key::new(text).map_err(|_| "its key is not valid")?)
    } else {
        None
    };
    let due = if has(DUE) {
        Time::from_ms(rest.try_get_uint_le(6).map_err(|_| "its due time is cut off")?)
    } else {
        birth
    };
    let deadline = if has(DEADLINE) { Some(due + get_varint(rest)?) } else { None };
    let small = |n: u64| u32::try_from(n).map_err(|_| "a duration is too large");
    let callback_timeout_ms = if more & MORE_TIMEOUT != 0 { Some(small(get_varint(rest)?)?) } else { None };
    let retry = if has(RETRY) {
        let count = get_varint(rest)? as usize;
        if count > limits::MAX_RETRY_TIERS {
            return Err("it has too many retry tiers".into());
        }
        let tiers: Result<Vec<u32>, _> = (0..count).map(|_| small(get_varint(rest)?)).collect();
        Some(RetryTiers(tiers?))
    } else {
        None
    };
    let headers = if more & MORE_HEADERS != 0 { decode_headers(rest)? } else { Headers::NONE };
    let mode = if has(AT_MOST_ONCE) { Mode::AtMostOnce } else { Mode::AtLeastOnce };
    let accepted = if more & MORE_ACCEPTED != 0 { Some(due + get_varint(rest)?) } else { None };
    let mut block = |bit: u8| if more & bit != 0 { decode_extensions(rest) } else { Ok(Extensions::NONE) };
    let (of_timer, of_record) = (block(MORE_TIMER_EXTENSIONS)?, block(MORE_RECORD_EXTENSIONS)?);
    if let Some(tag) = of_timer.not_understood().or(of_record.not_understood_in_record()) {
        let text = format!("it has extension {tag}, which must be understood and is of a newer version");
        return Err(text.into());
    }
    let timer = Timer {
        id,
        dest,
        key,
        due,
        mode,
        deadline,
        callback_timeout_ms,
        retry,
        payload: rest.split_off(0),
        headers,
        extensions: of_timer,
    };
    Ok(Record { timer: Arc::new(timer), progress, accepted, extensions: of_record })
}

fn decode_progress(rest: &mut Bytes) -> Result<Progress, &'static str> {
    let mut fixed = take(rest, Progress::FIXED)?;
    let failed = fixed.get_u32_le();
    let budget_from = fixed.get_u32_le();
    let epoch = fixed.get_u64_le();
    let stopped = fixed.get_u8() != 0;
    let error = take(rest, usize::from(fixed.get_u16_le()))?;
    let error = std::str::from_utf8(&error).map_err(|_| "its error text is not UTF-8")?;
    Ok(Progress {
        failed,
        budget_from,
        stopped,
        fresh: (epoch != 0).then_some(Epoch(epoch)),
        last_error: (!error.is_empty()).then(|| error.into()),
    })
}

fn decode_headers(rest: &mut Bytes) -> Result<Headers, &'static str> {
    let count = get_varint(rest)?;
    if count > limits::MAX_HEADERS as u64 {
        return Err("it has too many headers");
    }
    let texts: Result<Vec<Bytes>, _> = (0..2 * count).map(|_| take_text(rest)).collect();
    let texts = texts?;
    let texts: Result<Vec<&str>, _> = texts.iter().map(|text| std::str::from_utf8(text)).collect();
    let texts = texts.map_err(|_| "its headers are not UTF-8")?;
    let pairs = texts.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    Headers::new(pairs).map_err(|_| "its headers are not valid")
}

fn decode_extensions(rest: &mut Bytes) -> Result<Extensions, Cow<'static, str>> {
    let extensions = Extensions::from_bytes(&take_text(rest)?).map_err(|error| error.to_string())?;
    if extensions.is_empty() {
        return Err("it announces extensions and has none".into());
    }
    Ok(extensions)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

fn take_text(rest: &mut Bytes) -> Result<Bytes, &'static str> {
    let len = get_varint(rest)?;
    take(rest, usize::try_from(len).unwrap_or(usize::MAX))
}

fn take(rest: &mut Bytes, len: usize) -> Result<Bytes, &'static str> {
    if len > rest.len() { Err("it is cut off") } else { Ok(rest.split_to(len)) }
}

/// LEB128, as in Protocol Buffers.
fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.put_u8(n as u8 | 0x80);
        n >>= 7;
    }
    out.put_u8(n as u8);
}

fn get_varint(rest: &mut Bytes) -> Result<u64, &'static str> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let b = rest.try_get_u8().map_err(|_| "it is cut off")?;
        n |= u64::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            return Ok(n);
        }
    }
    Err("a number is too long")
}

#[cfg(test)]
mod tests;
