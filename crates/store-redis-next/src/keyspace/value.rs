//! The bytes of values.
//!
//! | where | field | value |
//! |---|---|---|
//! | `slot` | id (16 bytes) | at its birth position: the record |
//! | | | elsewhere: 128 + tier, fire time (6 bytes), the record |
//! | `moved` | id | `s`, name of the slot in which it is |
//! | | | `p`, record: parked |
//! | | | `t`, epoch (8), record: taken |
//! | | | `u`, epoch (8), since (6), record: unconfirmed |
//! | | | `d`, reason (1), time of death (6), record: dead |
//! | `ended` | id | [`Ended`] (1) |
//! | | `r`, request id (8) | a letter, the timer's id (16) if there is one |
//! | `key` | [`super::secret::KeyField`] | id |
//! | `dest` | number | group, 0, app |
//!
//! Integers are little endian, times are milliseconds, records are [`Record::encode`]'s, whose first byte
//! is below 128. Whatever is read may be damaged: that is an error, which says of which timer.

use bytes::{Buf, BufMut, Bytes};
use mtimer_store::decide::{At, Row};
use mtimer_store::op::{Answer, CancelAnswer, RequestId, RescheduleAnswer};
use mtimer_store::{InFlight, Record, RecordError};
use mtimer_types::{DeadReason, Destination, Ended, Epoch, Time, TimerId};

use super::keys::SlotKey;

/// The first byte of a value that is not at its birth position, for tier 0.
const MOVED: u8 = 128;
/// Bytes of a time.
const TIME: usize = 6;
/// Bytes of a delivery under way.
const IN_FLIGHT: usize = 44;

/// Where the bytes of a timer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// In a slot, with an entry in `moved` unless it is at its birth position.
    Slot {
        /// Which.
        slot: SlotKey,
        /// See [`super::catalog::Place::is_birth`].
        is_birth: bool,
    },
    /// In its entry in `moved`.
    Moved,
}

/// An entry in `moved`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MovedEntry {
    /// The timer is in this slot.
    Slot(SlotKey),
    /// The timer.
    Row(Row),
}

/// The value of a pending timer in its slot. `dest` is the number of its destination.
pub(crate) fn encode_pending(record: &Record, fire: Time, tier: u8, is_birth: bool, dest: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.timer.payload.len() + 32);
    if !is_birth {
        out.put_u8(MOVED | tier);
        put_time(&mut out, fire);
    }
    record.encode(dest, &mut out);
    out
}

/// A pending timer from its value in a slot. `dest` turns the number of a destination into the destination.
pub(crate) fn decode_pending(
    id: TimerId,
    value: &Bytes,
    dest: impl FnOnce(u32) -> Option<Destination>,
) -> Result<(Row, bool), RecordError> {
    let mut rest = value.clone();
    let is_birth = value.first().is_none_or(|first| *first < MOVED);
    let at = if is_birth {
        At::Pending { fire: id.birth_due(), tier: 0 }
    } else {
        let tier = rest.get_u8() - MOVED;
        At::Pending { fire: time(id, &mut rest)?, tier }
    };
    Ok((Row { record: Record::decode(id, &rest, dest)?, at }, is_birth))
}

/// The entry in `moved` of a timer in a slot.
pub(crate) fn encode_moved_to(slot: SlotKey) -> Vec<u8> {
    format!("s{slot}").into_bytes()
}

/// The entry in `moved` of a timer that is in no slot. `None`: it is pending.
pub(crate) fn encode_moved(row: &Row, dest: u32) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(row.record.timer.payload.len() + 48);
    match row.at {
        At::Pending { .. } => return None,
        At::Parked => out.put_u8(b'p'),
        At::Taken { epoch } => {
            out.put_u8(b't');
            out.put_u64_le(epoch.0);
        }
        At::Unconfirmed { epoch, since } => {
            out.put_u8(b'u');
            out.put_u64_le(epoch.0);
            put_time(&mut out, since);
        }
        At::Dead { reason, died } => {
            out.put_slice(&[b'd', reason as u8]);
            put_time(&mut out, died);
        }
    }
    row.record.encode(dest, &mut out);
    Some(out)
}

/// What an entry in `moved` says. `dest` turns the number of a destination into the destination.
pub(crate) fn decode_moved(
    id: TimerId,
    value: &Bytes,
    dest: impl FnOnce(u32) -> Option<Destination>,
) -> Result<MovedEntry, RecordError> {
    let damaged = |what| move |_| RecordError { id, what };
    let mut rest = value.clone();
    let at = match rest.try_get_u8().map_err(damaged("its entry is empty"))? {
        b's' => {
            let slot = std::str::from_utf8(&rest).ok().and_then(SlotKey::parse);
            let slot = slot.ok_or(RecordError { id, what: "it is in a slot of no known name" })?;
            return Ok(MovedEntry::Slot(slot));
        }
        b'p' => At::Parked,
        b't' => At::Taken { epoch: epoch(id, &mut rest)? },
        b'u' => At::Unconfirmed { epoch: epoch(id, &mut rest)?, since: time(id, &mut rest)? },
        b'd' => {
            let reason = rest.try_get_u8().ok().and_then(DeadReason::from_u8);
            let reason = reason.ok_or(RecordError { id, what: "it died for no known reason" })?;
            At::Dead { reason, died: time(id, &mut rest)? }
        }
        _ => return Err(RecordError { id, what: "it is in no known place" }),
    };
    Ok(MovedEntry::Row(Row { record: Record::decode(id, &rest, dest)?, at }))
}

/// The value of an id in `key`, or its field anywhere. `None`: it is none.
pub(crate) fn decode_id(bytes: &[u8]) -> Option<TimerId> {
    <[u8; 16]>::try_from(bytes).ok().map(TimerId::from_bytes)
}

/// The field of a request in `ended`.
pub(crate) fn request_field(request: RequestId) -> [u8; 9] {
    let mut field = [b'r'; 9];
    field[1..].copy_from_slice(&request.0.to_le_bytes());
    field
}

/// The value of an id in `ended`.
pub(crate) const fn encode_ended(how: Ended) -> [u8; 1] {
    [how as u8]
}

/// How a timer ended, from its value in `ended`.
pub(crate) fn decode_ended(id: TimerId, value: &[u8]) -> Result<Ended, RecordError> {
    let how = if let [how] = value { Ended::from_u8(*how) } else { None };
    how.ok_or(RecordError { id, what: "it ended in no known way" })
}

/// The value of a request in `ended`. `None`: it is no answer to a cancel or a reschedule.
pub(crate) fn encode_answer(answer: &Answer) -> Option<Vec<u8>> {
    let (letter, id) = match answer {
        Answer::Cancel(CancelAnswer::Cancelled(id)) => (b'X', Some(id)),
        Answer::Cancel(CancelAnswer::TooLate(id)) => (b'L', Some(id)),
        Answer::Cancel(CancelAnswer::NotFound) => (b'F', None),
        Answer::Reschedule(RescheduleAnswer::Rescheduled(id)) => (b'H', Some(id)),
        Answer::Reschedule(RescheduleAnswer::TooLate(id)) => (b'M', Some(id)),
        Answer::Reschedule(RescheduleAnswer::PastDeadline(id)) => (b'P', Some(id)),
        Answer::Reschedule(RescheduleAnswer::NotFound) => (b'G', None),
        _ => return None,
    };
    let mut out = vec![letter];
    out.extend(id.iter().flat_map(|id| id.to_bytes()));
    Some(out)
}

/// The answer to a cancel or a reschedule, from its value in `ended`. `None`: it is damaged.
pub(crate) fn decode_answer(value: &[u8]) -> Option<Answer> {
    let (letter, id) = value.split_first()?;
    Some(match (letter, decode_id(id)) {
        (b'X', Some(id)) => Answer::Cancel(CancelAnswer::Cancelled(id)),
        (b'L', Some(id)) => Answer::Cancel(CancelAnswer::TooLate(id)),
        (b'F', None) if id.is_empty() => Answer::Cancel(CancelAnswer::NotFound),
        (b'H', Some(id)) => Answer::Reschedule(RescheduleAnswer::Rescheduled(id)),
        (b'M', Some(id)) => Answer::Reschedule(RescheduleAnswer::TooLate(id)),
        (b'P', Some(id)) => Answer::Reschedule(RescheduleAnswer::PastDeadline(id)),
        (b'G', None) if id.is_empty() => Answer::Reschedule(RescheduleAnswer::NotFound),
        _ => return None,
    })
}

/// Deliveries under way, as the owner record keeps them.
pub(crate) fn encode_in_flight(rows: &[InFlight]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * IN_FLIGHT);
    for row in rows {
        out.put_slice(&row.id.to_bytes());
        out.put_u32_le(row.attempt);
        out.put_u128_le(row.session);
        out.put_u64_le(row.until.as_ms());
    }
    out
}

/// Deliveries under way, from what the owner record keeps. `None`: it is damaged.
pub(crate) fn decode_in_flight(bytes: &[u8]) -> Option<Vec<InFlight>> {
    let row = |mut row: &[u8]| {
        Some(InFlight {
            id: TimerId::from_u128(row.try_get_u128().ok()?),
            attempt: row.try_get_u32_le().ok()?,
            session: row.try_get_u128_le().ok()?,
            until: Time::from_ms(row.try_get_u64_le().ok()?),
        })
    };
    bytes.chunks(IN_FLIGHT).map(row).collect()
}

/// A destination's value in `dest`.
pub(crate) fn encode_destination(dest: &Destination) -> String {
    format!("{}\0{}", dest.group(), dest.app())
}

/// A destination, from its value in `dest`. `None`: it is damaged.
pub(crate) fn decode_destination(text: &str) -> Option<Destination> {
    let (group, app) = text.split_once('\0')?;
    Destination::new(group, app).ok()
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.put_uint_le(time.as_ms(), TIME);
}

fn time(id: TimerId, rest: &mut Bytes) -> Result<Time, RecordError> {
    let ms = rest.try_get_uint_le(TIME).map_err(|_| RecordError { id, what: "a time is cut off" })?;
    Ok(Time::from_ms(ms))
}

fn epoch(id: TimerId, rest: &mut Bytes) -> Result<Epoch, RecordError> {
    rest.try_get_u64_le().map(Epoch).map_err(|_| RecordError { id, what: "its epoch is cut off" })
}
