//! The bytes of keys and values: every key of the store is built here, but for those of remembered
//! outcomes ([`crate::remembered`]).
//!
//! All numbers in keys are big endian, so that keys sort like their values. `p` is the partition (2
//! bytes).
//!
//! | space | key | value |
//! |---|---|---|
//! | pending | p, fire time (6), rest of the id (11 or 17) | tier (1), record |
//! | queues | place (1), p, destination (4, parked only), order (8) | id (16), place's own, record |
//! | moved | id (16) | location: of every timer that is not pending at its birth time |
//! | keys | p, destination (4), key | id (16) |
//! | ended | p, bucket of 30 s (4), kind (1), id (16) or request (8) | when (6), how or answer |
//! | facts | kind (1), what (0 to 6) | owner record, in-flight list, counters, a destination's counts, bulk job, destination, term, batch header |
//!
//! The rest of a pending timer's id: 0 or 2 and the id, if its birth due time is before or after
//! the fire time; 1 and the id without its birth due time (10), if they are the same. So keys sort
//! by (fire time, id), and almost every key has 19 bytes: up to 20 the engine keeps within its
//! nodes, where comparing them costs no step through memory.
//!
//! A place's own in `queues`: taken: epoch (8), zero (1); unconfirmed: epoch (8), since when (6);
//! dead: reason (1), died (6). `order` is a number that rises with every timer that is put on a
//! queue of the partition; in parks, with the class above it
//! ([`mtimer_store::listing::park_position`]).

use std::cmp::Ordering;

use bytes::{Buf, BufMut, Bytes};
use fjall::Slice;
use mtimer_store::listing::{park_position, park_start};
use mtimer_store::table::At;
use mtimer_types::{DeadReason, Epoch, PartitionId, Priority, Time, TimerId};

use crate::group;

/// One of the store's key spaces: a tree of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    Pending,
    Queues,
    Moved,
    Keys,
    Ended,
    Facts,
}

impl Space {
    pub(crate) const ALL: [Self; 6] =
        [Self::Pending, Self::Queues, Self::Moved, Self::Keys, Self::Ended, Self::Facts];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Queues => "queues",
            Self::Moved => "moved",
            Self::Keys => "keys",
            Self::Ended => "ended",
            Self::Facts => "facts",
        }
    }
}

/// Where a timer's record is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordPosition {
    Pending { fire: Time },
    Parked { dest: u32, order: u64 },
    Taken { order: u64 },
    Unconfirmed { order: u64 },
    Dead { order: u64 },
}

/// An ordered queue of timers in one state: all of the partition, or those of one destination if
/// parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queue {
    Parked { dest: u32 },
    Taken,
    Dead,
    Unconfirmed,
}

/// A part of a queue that has a first order of its own: of a park each class, else all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueuePart {
    Class { dest: u32, priority: Priority },
    Taken,
    Dead,
    Unconfirmed,
}

impl QueuePart {
    pub(crate) const fn queue(self) -> Queue {
        match self {
            Self::Class { dest, .. } => Queue::Parked { dest },
            Self::Taken => Queue::Taken,
            Self::Dead => Queue::Dead,
            Self::Unconfirmed => Queue::Unconfirmed,
        }
    }

    /// The order at which it ends, exclusive.
    pub(crate) const fn end(self) -> u64 {
        match self {
            Self::Class { priority, .. } => park_start(priority) + park_start(Priority::High),
            Self::Taken | Self::Dead | Self::Unconfirmed => u64::MAX,
        }
    }

    /// Its order with this number.
    pub(crate) const fn order(self, number: u64) -> u64 {
        match self {
            Self::Class { priority, .. } => park_position(priority, number),
            Self::Taken | Self::Dead | Self::Unconfirmed => number,
        }
    }
}

/// Bytes of an id that follow its birth due time.
const AFTER_BIRTH: usize = 10;

pub(crate) fn pending_key(p: PartitionId, fire: Time, id: TimerId) -> Slice {
    let (due, bytes) = (id.birth_due(), id.to_bytes());
    let (mark, rest) = match due.cmp(&fire) {
        Ordering::Less => (0, &bytes[..]),
        Ordering::Equal => (1, &bytes[16 - AFTER_BIRTH..]),
        Ordering::Greater => (2, &bytes[..]),
    };
    let mut key = [0; 25];
    let mut free = &mut key[..];
    free.put_u16(p.0);
    free.put_uint(fire.as_ms(), 6);
    free.put_u8(mark);
    free.put_slice(rest);
    let unused = free.len();
    Slice::from(&key[..key.len() - unused])
}

/// The fire time and the id in a key of [`Space::Pending`].
pub(crate) fn parse_pending_key(key: &[u8]) -> Option<(Time, TimerId)> {
    let mut rest = key.get(2..).filter(|rest| rest.len() >= 7)?;
    let fire = rest.get_uint(6);
    let id = match (rest.get_u8(), rest.len()) {
        (1, AFTER_BIRTH) => {
            let (high, low) = (rest.get_u16(), rest.get_u64());
            u128::from(fire) << 80 | u128::from(high) << 64 | u128::from(low)
        }
        (0 | 2, 16) => rest.get_u128(),
        _ => return None,
    };
    Some((Time::from_ms(fire), TimerId::from_u128(id)))
}

pub(crate) fn queue_key(p: PartitionId, queue: Queue, order: u64) -> Slice {
    let mut key = Vec::with_capacity(15);
    key.put_u8(match queue {
        Queue::Parked { .. } => 1,
        Queue::Taken => 2,
        Queue::Dead => 3,
        Queue::Unconfirmed => 4,
    });
    key.put_u16(p.0);
    if let Queue::Parked { dest } = queue {
        key.put_u32(dest);
    }
    key.put_u64(order);
    key.into()
}

/// The order in a key of [`Space::Queues`].
pub(crate) fn parse_queue_order(key: &[u8]) -> Option<u64> {
    let (_, order) = key.split_last_chunk::<8>()?;
    Some(u64::from_be_bytes(*order))
}

pub(crate) fn app_key(p: PartitionId, dest: u32, key: &str) -> Slice {
    let mut out = Vec::with_capacity(6 + key.len());
    out.put_u16(p.0);
    out.put_u32(dest);
    out.put_slice(key.as_bytes());
    out.into()
}

/// A fact's key.
pub(crate) fn fact_key(fact: FactName) -> Slice {
    let mut key = Vec::with_capacity(7);
    match fact {
        FactName::Owner(p) => {
            key.put_u8(b'o');
            key.put_u16(p.0);
        }
        FactName::InFlight(p) => {
            key.put_u8(b'f');
            key.put_u16(p.0);
        }
        FactName::Counters(p) => {
            key.put_u8(b'c');
            key.put_u16(p.0);
        }
        FactName::Counts(p, dest) => {
            key.put_u8(b'p');
            key.put_u16(p.0);
            key.put_u32(dest);
        }
        FactName::Bulk(p, number) => {
            key.put_u8(b'b');
            key.put_u16(p.0);
            key.put_u32(number);
        }
        FactName::Settings(p, dest) => {
            key.put_u8(b's');
            key.put_u16(p.0);
            key.put_u32(dest);
        }
        FactName::Destination(dest) => {
            key.put_u8(b'd');
            key.put_u32(dest);
        }
        FactName::Term => key.put_u8(b't'),
        FactName::Group => key.put_slice(group::KEY),
    }
    key.into()
}

/// Names a fact: one of the few values that are mirrored in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FactName {
    Owner(PartitionId),
    InFlight(PartitionId),
    Counters(PartitionId),
    /// How many timers of a destination are where.
    Counts(PartitionId, u32),
    /// The bulk job of a number.
    Bulk(PartitionId, u32),
    /// The settings of a destination.
    Settings(PartitionId, u32),
    Destination(u32),
    Term,
    /// The header of the last write batch ([`group::Group`]).
    Group,
}

/// Reads the key of a fact.
pub(crate) fn parse_fact_key(key: &[u8]) -> Option<FactName> {
    let (kind, mut rest) = key.split_first()?;
    let fact = match (kind, rest.len()) {
        (b'o', 2) => FactName::Owner(PartitionId(rest.get_u16())),
        (b'f', 2) => FactName::InFlight(PartitionId(rest.get_u16())),
        (b'c', 2) => FactName::Counters(PartitionId(rest.get_u16())),
        (b'p', 6) => FactName::Counts(PartitionId(rest.get_u16()), rest.get_u32()),
        (b'b', 6) => FactName::Bulk(PartitionId(rest.get_u16()), rest.get_u32()),
        (b's', 6) => FactName::Settings(PartitionId(rest.get_u16()), rest.get_u32()),
        (b'd', 4) => FactName::Destination(rest.get_u32()),
        (b't', 0) => FactName::Term,
        (b'n', 0) => FactName::Group,
        _ => return None,
    };
    Some(fact)
}

impl RecordPosition {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(13);
        match self {
            Self::Pending { fire } => {
                out.put_u8(0);
                out.put_uint(fire.as_ms(), 6);
            }
            Self::Parked { dest, order } => {
                out.put_u8(1);
                out.put_u32(dest);
                out.put_u64(order);
            }
            Self::Taken { order } => {
                out.put_u8(2);
                out.put_u64(order);
            }
            Self::Dead { order } => {
                out.put_u8(3);
                out.put_u64(order);
            }
            Self::Unconfirmed { order } => {
                out.put_u8(4);
                out.put_u64(order);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        let location = match (kind, rest.len()) {
            (0, 6) => Self::Pending { fire: Time::from_ms(rest.get_uint(6)) },
            (1, 12) => Self::Parked { dest: rest.get_u32(), order: rest.get_u64() },
            (2, 8) => Self::Taken { order: rest.get_u64() },
            (3, 8) => Self::Dead { order: rest.get_u64() },
            (4, 8) => Self::Unconfirmed { order: rest.get_u64() },
            _ => return None,
        };
        Some(location)
    }

    /// The space and the key under which the record is.
    pub(crate) fn key(self, p: PartitionId, id: TimerId) -> (Space, Slice) {
        match self {
            Self::Pending { fire } => (Space::Pending, pending_key(p, fire, id)),
            Self::Parked { dest, order } => (Space::Queues, queue_key(p, Queue::Parked { dest }, order)),
            Self::Taken { order } => (Space::Queues, queue_key(p, Queue::Taken, order)),
            Self::Dead { order } => (Space::Queues, queue_key(p, Queue::Dead, order)),
            Self::Unconfirmed { order } => (Space::Queues, queue_key(p, Queue::Unconfirmed, order)),
        }
    }
}

/// Writes the head of a value, before the record.
pub(crate) fn put_head(at: At, id: TimerId, out: &mut Vec<u8>) {
    if !matches!(at, At::Pending { .. }) {
        out.put_slice(&id.to_bytes());
    }
    match at {
        At::Pending { tier, .. } => out.put_u8(tier),
        At::Parked => {}
        At::Taken { epoch } => {
            out.put_u64(epoch.0);
            out.put_u8(0);
        }
        At::Unconfirmed { epoch, since } => {
            out.put_u64(epoch.0);
            out.put_uint(since.as_ms(), 6);
        }
        At::Dead { reason, died } => {
            out.put_u8(reason as u8);
            out.put_uint(died.as_ms(), 6);
        }
    }
}

/// Reads the head of a value of [`Space::Queues`], before the record.
pub(crate) fn take_queue_head(queue: Queue, value: &mut Bytes) -> Option<(TimerId, At)> {
    let id = TimerId::from_u128(value.try_get_u128().ok()?);
    let at = match queue {
        Queue::Parked { .. } => At::Parked,
        Queue::Taken => {
            let epoch = Epoch(value.try_get_u64().ok()?);
            value.try_get_u8().ok()?;
            At::Taken { epoch }
        }
        Queue::Unconfirmed => {
            let epoch = Epoch(value.try_get_u64().ok()?);
            At::Unconfirmed { epoch, since: Time::from_ms(value.try_get_uint(6).ok()?) }
        }
        Queue::Dead => {
            let reason = DeadReason::from_u8(value.try_get_u8().ok()?)?;
            At::Dead { reason, died: Time::from_ms(value.try_get_uint(6).ok()?) }
        }
    };
    Some((id, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_facts_read_back() {
        let p = PartitionId(9);
        let fire = Time::from_ms(77);
        for location in [
            RecordPosition::Pending { fire },
            RecordPosition::Parked { dest: 3, order: 4 },
            RecordPosition::Taken { order: 5 },
            RecordPosition::Dead { order: u64::MAX },
            RecordPosition::Unconfirmed { order: 6 },
        ] {
            assert_eq!(RecordPosition::decode(&location.encode()), Some(location));
        }
        for fact in [
            FactName::Owner(p),
            FactName::InFlight(p),
            FactName::Counters(p),
            FactName::Counts(p, 8),
            FactName::Bulk(p, u32::MAX),
            FactName::Settings(p, 7),
            FactName::Destination(1),
            FactName::Term,
            FactName::Group,
        ] {
            assert_eq!(parse_fact_key(&fact_key(fact)), Some(fact));
        }
        assert_eq!(parse_queue_order(&queue_key(p, Queue::Dead, 6)), Some(6));
    }

    #[test]
    fn pending_keys_read_back_and_sort_by_fire_time_and_id() {
        let times = [0, 1, 76, 77, 78, 1 << 40, Time::MAX.as_ms()].map(Time::from_ms);
        let ids = times.into_iter().flat_map(|due| {
            [(0, 0), (9, 5), (9, u64::MAX), (u16::MAX, 0), (u16::MAX, u64::MAX)].map(|(p, random)| {
                TimerId::with_width(due, mtimer_types::SlotWidth::Day, PartitionId(p), random)
            })
        });
        let mut ids: Vec<_> = ids.chain([0, 12, u128::MAX].map(TimerId::from_u128)).collect();
        ids.sort();
        ids.dedup();
        let pairs: Vec<_> = times.iter().flat_map(|fire| ids.iter().map(|id| (*fire, *id))).collect();
        let keys: Vec<_> = pairs.iter().map(|(fire, id)| pending_key(PartitionId(9), *fire, *id)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        for (pair, key) in pairs.iter().zip(&keys) {
            assert_eq!(parse_pending_key(key), Some(*pair));
            assert!(pair.0 != pair.1.birth_due() || key.len() == 19);
        }
        for damaged in [&keys[0][..8], &keys[0][..18], &[0; 24], &[1; 25], &[3; 19]] {
            assert_eq!(parse_pending_key(damaged), None);
        }
    }

    #[test]
    fn damaged_values_are_refused() {
        for bytes in [&b""[..], b"\x07", b"\x01\0", b"\x07\0\0\0\0\0\x09"] {
            assert_eq!(RecordPosition::decode(bytes), None);
            assert_eq!(take_queue_head(Queue::Dead, &mut Bytes::copy_from_slice(bytes)), None);
        }
    }
}
