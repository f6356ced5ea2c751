//! The bytes of values.
//!
//! | where | field | value |
//! |---|---|---|
//! | `slot` | id (14 bytes) | without an entry in `moved`: the record |
//! | | | with one: 128 + tier, fire time (6 bytes), the record |
//! | `moved` | id | `s`, name of the slot in which it is |
//! | | | `p`, record: parked |
//! | | | `t`, epoch (8), record: taken |
//! | | | `u`, epoch (8), since (6), record: unconfirmed |
//! | | | `d`, reason (1), time of death (6), record: dead |
//! | `ended` | id | an end as [`remembered`] has it |
//! | | `r`, request id (8) | an answer as [`remembered`] has it |
//! | `key` | [`super::secret::KeyField`] | id |
//! | | empty | [`LARGE`] |
//! | `dest` | number | group, 0, app |
//! | `bulk` | number | a job as [`BulkJob::to_bytes`] has it |
//! | `settings` | group, 0, app | settings as [`settings_to_bytes`] has them |
//!
//! A timer has no entry in `moved` if it is in a slot that its id implies and was neither attempted
//! nor stopped.
//!
//! An id is [`TimerId::to_local`]: its partition is in the name of the Redis key. Redis adds two
//! bytes to a field, so 14 bytes take 16 of its allocator, and 16 bytes take 32. `bench memory
//! --keyed 100` weighs 119 bytes a timer with 14, and 154 with 16.
//!
//! Integers are little endian, times are milliseconds, records are [`Record::encode`]'s, whose
//! first byte is below 128. Any value may be damaged: that is an error, which names the timer.

use bytes::{Buf, BufMut, Bytes};
use mtimer_store::RequestId;
use mtimer_store::remembered;
use mtimer_store::settings::settings_from_bytes;
#[cfg(doc)]
use mtimer_store::settings::settings_to_bytes;
use mtimer_store::table::{At, Row};
use mtimer_store::{BulkJob, InFlight, Record, RecordError};
use mtimer_types::{DeadReason, Destination, Ended, Epoch, StoredSettings, Time, TimerId};

use super::keys::SlotKey;

/// The first byte of a value in a slot whose timer has an entry in `moved`, for tier 0.
const MOVED: u8 = 128;
/// Bytes of a time.
const TIME: usize = 6;
/// Bytes of a delivery under way.
const IN_FLIGHT: usize = 44;

/// Stands in `key` beside the keys for as long as there are any. It is larger than the values that
/// Redis puts into a list-pack, also with the recommended settings, so the hash is a hash table: a
/// list-pack, of 512 keys at most, is searched from end to end for each of them. With up to 128
/// keys in a partition `bench schedule --keyed 100 --timers 8000` takes 4 µs of Redis for each, and
/// 8 µs without it.
pub(crate) const LARGE: [u8; 1_025] = [b'-'; 1_025];

/// Where the bytes of a timer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// In a slot, with an entry in `moved` unless `is_implied`.
    Slot {
        /// Which.
        slot: SlotKey,
        /// See [`super::catalog::Placement::is_implied`]; and its first attempt is to come, and was
        /// not stopped.
        is_implied: bool,
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
pub(crate) fn encode_pending(record: &Record, fire: Time, tier: u8, is_implied: bool, dest: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.timer.content_bytes() + 32);
    if !is_implied {
        out.put_u8(MOVED | tier);
        put_time(&mut out, fire);
    }
    record.encode(dest, &mut out);
    out
}

/// A pending timer from its value in a slot. `dest` turns the number of a destination into the
/// destination.
pub(crate) fn decode_pending(
    id: TimerId,
    value: &Bytes,
    dest: impl FnOnce(u32) -> Option<Destination>,
) -> Result<(Row, bool), RecordError> {
    let mut rest = value.clone();
    let is_implied = value.first().is_none_or(|first| *first < MOVED);
    let at = if is_implied {
        At::Pending { fire: id.birth_due(), tier: 0 }
    } else {
        let tier = rest.get_u8() & !MOVED;
        At::Pending { fire: time(id, &mut rest)?, tier }
    };
    Ok((Row { record: Record::decode(id, &rest, dest)?, at }, is_implied))
}

/// The entry in `moved` of a timer in a slot.
pub(crate) fn encode_moved_to(slot: SlotKey) -> Vec<u8> {
    format!("s{slot}").into_bytes()
}

/// The entry in `moved` of a timer that is in no slot. `None`: it is pending.
pub(crate) fn encode_moved(row: &Row, dest: u32) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(row.record.timer.content_bytes() + 48);
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

/// Decodes an entry in `moved`. `dest` turns the number of a destination into the destination.
pub(crate) fn decode_moved(
    id: TimerId,
    value: &Bytes,
    dest: impl FnOnce(u32) -> Option<Destination>,
) -> Result<MovedEntry, RecordError> {
    let damaged = |what: &'static str| move |_| RecordError::new(id, what);
    let mut rest = value.clone();
    let at = match rest.try_get_u8().map_err(damaged("its entry is empty"))? {
        b's' => {
            let slot = std::str::from_utf8(&rest).ok().and_then(SlotKey::parse);
            let slot = slot.ok_or(RecordError::new(id, "it is in a slot of no known name"))?;
            return Ok(MovedEntry::Slot(slot));
        }
        b'p' => At::Parked,
        b't' => At::Taken { epoch: epoch(id, &mut rest)? },
        b'u' => At::Unconfirmed { epoch: epoch(id, &mut rest)?, since: time(id, &mut rest)? },
        b'd' => {
            let reason = rest.try_get_u8().ok().and_then(DeadReason::from_u8);
            let reason = reason.ok_or(RecordError::new(id, "it died for no known reason"))?;
            At::Dead { reason, died: time(id, &mut rest)? }
        }
        _ => return Err(RecordError::new(id, "it is in no known place")),
    };
    Ok(MovedEntry::Row(Row { record: Record::decode(id, &rest, dest)?, at }))
}

/// The field of a request in `ended`.
pub(crate) fn request_field(request: RequestId) -> [u8; 9] {
    let mut field = [b'r'; 9];
    field[1..].copy_from_slice(&request.0.to_le_bytes());
    field
}

/// How a timer ended, from its value in `ended`.
pub(crate) fn decode_ended(id: TimerId, value: &[u8]) -> Result<Ended, RecordError> {
    remembered::decode_ended(value).ok_or(RecordError::new(id, "it ended in no known way"))
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

/// Decodes the deliveries under way from the owner record. `None`: they are damaged.
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

/// A bulk job, from its field and value in `bulk`. `None`: it is damaged.
pub(crate) fn decode_bulk(field: &[u8], value: &[u8]) -> Option<BulkJob> {
    BulkJob::from_bytes(value).ok().filter(|job| job.number.to_string().as_bytes() == field)
}

/// The settings of a destination, from their field and value in `settings`. `None`: they are
/// damaged.
pub(crate) fn decode_settings(field: &[u8], value: &[u8]) -> Option<StoredSettings> {
    let is_of = |row: &StoredSettings| encode_destination(&row.dest).as_bytes() == field;
    settings_from_bytes(value).ok().filter(is_of)
}

/// A destination's value in `dest`, and its field in `settings`.
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
    let ms = rest.try_get_uint_le(TIME).map_err(|_| RecordError::new(id, "a time is cut off"))?;
    Ok(Time::from_ms(ms))
}

fn epoch(id: TimerId, rest: &mut Bytes) -> Result<Epoch, RecordError> {
    rest.try_get_u64_le().map(Epoch).map_err(|_| RecordError::new(id, "its epoch is cut off"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mtimer_store::Progress;
    use mtimer_types::{PartitionId, SlotWidth, Timer};
    use proptest::prelude::*;

    use super::super::keys::Keyspace;
    use super::*;

    const BIRTH: Time = Time::from_ms(7_000);

    fn dest() -> Destination {
        Destination::new("orders", "billing").unwrap()
    }

    fn known(number: u32) -> Option<Destination> {
        (number == 300).then(dest)
    }

    fn id() -> TimerId {
        TimerId::with_width(BIRTH, SlotWidth::Second, PartitionId(3), 5)
    }

    fn record(payload: Vec<u8>, failed: u32) -> Record {
        let timer = Timer { payload: payload.into(), ..Timer::new(id(), dest(), BIRTH) };
        Record { progress: Progress { failed, ..Progress::default() }, ..Record::new(Arc::new(timer)) }
    }

    fn at() -> impl Strategy<Value = At> {
        let time = || (0u64..1 << 48).prop_map(Time::from_ms);
        prop_oneof![
            (time(), 0u8..33).prop_map(|(fire, tier)| At::Pending { fire, tier }),
            Just(At::Pending { fire: BIRTH, tier: 0 }),
            Just(At::Parked),
            any::<u64>().prop_map(|e| At::Taken { epoch: Epoch(e) }),
            (any::<u64>(), time()).prop_map(|(e, since)| At::Unconfirmed { epoch: Epoch(e), since }),
            (0u8..4, time()).prop_map(|(n, died)| At::Dead { reason: DeadReason::from_u8(n).unwrap(), died }),
        ]
    }

    proptest! {
        #[test]
        fn rows_survive(at in at(), payload in proptest::collection::vec(any::<u8>(), 0..80), failed: u32) {
            let row = Row { record: record(payload, failed), at };
            if let At::Pending { fire, tier } = at {
                for is_implied in [false, true] {
                    if is_implied && (fire, tier) != (BIRTH, 0) {
                        continue;
                    }
                    let value = encode_pending(&row.record, fire, tier, is_implied, 300).into();
                    prop_assert_eq!(decode_pending(id(), &value, known).unwrap(), (row.clone(), is_implied));
                }
                prop_assert_eq!(encode_moved(&row, 300), None);
            } else {
                let value = encode_moved(&row, 300).unwrap().into();
                prop_assert_eq!(decode_moved(id(), &value, known).unwrap(), MovedEntry::Row(row));
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..90), first in "[sptud]?", n: u128) {
            let bytes = Bytes::from([first.as_bytes(), &bytes].concat());
            let id = TimerId::from_u128(n);
            let any = |_| Some(dest());
            let errors = [
                decode_pending(id, &bytes, any).err(),
                decode_moved(id, &bytes, any).err(),
                decode_ended(id, &bytes).err(),
            ];
            prop_assert!(errors.iter().flatten().all(|error| error.id == id));
            let _ = (decode_in_flight(&bytes), Keyspace::new("c", PartitionId(3)).id(&bytes));
            let _ = std::str::from_utf8(&bytes).map(decode_destination);
        }

        #[test]
        fn deliveries_under_way_survive(rows in proptest::collection::vec(any::<(u128, u32, u128, u64)>(), 0..5)) {
            let row = |(id, attempt, session, until): (u128, u32, u128, u64)| InFlight {
                id: TimerId::from_u128(id),
                attempt,
                session,
                until: Time::from_ms(until),
            };
            let rows: Vec<InFlight> = rows.into_iter().map(row).collect();
            let bytes = encode_in_flight(&rows);
            if let Some((_, cut)) = bytes.split_last() {
                prop_assert_eq!(decode_in_flight(cut), None);
            }
            prop_assert_eq!(decode_in_flight(&bytes), Some(rows));
        }
    }

    #[test]
    fn a_plain_record_is_its_own_value() {
        let (value, mut plain) = (encode_pending(&record(vec![1, 2], 0), BIRTH, 0, true, 300), Vec::new());
        record(vec![1, 2], 0).encode(300, &mut plain);
        assert_eq!(value, plain);
    }

    #[test]
    fn names_of_slots_and_destinations_survive() {
        let slot = SlotKey { track: 2, width: SlotWidth::Hour, start: 7_200_000, sibling: 9 };
        let value = encode_moved_to(slot).into();
        assert_eq!(decode_moved(id(), &value, known).unwrap(), MovedEntry::Slot(slot));
        assert_eq!(decode_destination(&encode_destination(&dest())), Some(dest()));
        assert_eq!(decode_destination("orders"), None);
        assert_eq!(request_field(RequestId(0x0102)), *b"r\x02\x01\0\0\0\0\0\0");
    }

    #[test]
    fn what_is_damaged_says_of_which_timer_and_how() {
        let text = |error: RecordError| error.to_string();
        let moved =
            |value: &'static [u8]| text(decode_moved(id(), &Bytes::from_static(value), known).unwrap_err());
        let damaged = format!("the stored record of timer {} cannot be read: ", id());
        assert_eq!(moved(b""), format!("{damaged}its entry is empty"));
        assert_eq!(moved(b"s0.9.1"), format!("{damaged}it is in a slot of no known name"));
        assert_eq!(moved(b"t1234567"), format!("{damaged}its epoch is cut off"));
        assert_eq!(moved(b"u12345678"), format!("{damaged}a time is cut off"));
        assert_eq!(moved(b"d\x09"), format!("{damaged}it died for no known reason"));
        assert_eq!(moved(b"x"), format!("{damaged}it is in no known place"));
        assert_eq!(text(decode_ended(id(), &[]).unwrap_err()), format!("{damaged}it ended in no known way"));
        for how in (0..6).filter_map(Ended::from_u8) {
            assert_eq!(decode_ended(id(), &remembered::encode_ended(how)), Ok(how));
        }
    }
}
