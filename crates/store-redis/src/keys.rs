//! The whole keyspace in one place.
//!
//! Invariant: every key of a partition carries the partition in braces, so that Redis Cluster keeps them on one node;
//! what belongs to the cluster carries the cluster's name there.

use std::fmt;

use mtimer_store::StoreError;
use mtimer_types::{PartitionId, SlotWidth, Time};

use crate::ledger::SIBLINGS;

/// Shelves of moved timers, and of application keys: bounds the size of one Redis key to migrate.
pub(crate) const SHELVES: u8 = 16;
/// Length of an `ended` bucket: three of them cover the repeat horizon whatever way clocks differ.
const BUCKET_MS: u64 = 30_000;
/// Bytes of a cluster's name.
const MAX_CLUSTER_BYTES: usize = 64;

/// A cluster's name that is safe to put in a key.
pub(crate) fn check_cluster(name: &str) -> Result<(), StoreError> {
    let fits = (1..=MAX_CLUSTER_BYTES).contains(&name.len());
    if fits && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Ok(());
    }
    Err(StoreError::Unusable(format!(
        "the cluster name {name:?} cannot be used: give 1 to {MAX_CLUSTER_BYTES} letters, digits, '-', '_' or '.'"
    )))
}

/// `meta:{c}`
pub(crate) fn meta(cluster: &str) -> String {
    format!("meta:{{{cluster}}}")
}

/// `term:{c}`
pub(crate) fn term(cluster: &str) -> String {
    format!("term:{{{cluster}}}")
}

/// `leader:{c}`
pub(crate) fn leader(cluster: &str) -> String {
    format!("leader:{{{cluster}}}")
}

/// `topology:{c}`
pub(crate) fn topology(cluster: &str) -> String {
    format!("topology:{{{cluster}}}")
}

/// The keys of one partition.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    tail: String,
    slot: String,
}

impl Keyspace {
    pub(crate) fn new(cluster: &str, partition: PartitionId) -> Self {
        let tail = format!("{{{partition}}}:{cluster}");
        let slot = format!("slot:{tail}:");
        Self { tail, slot }
    }

    pub(crate) fn owner(&self) -> String {
        format!("owner:{}", self.tail)
    }

    pub(crate) fn destinations(&self) -> String {
        format!("dest:{}", self.tail)
    }

    pub(crate) fn dead(&self) -> String {
        format!("dead:{}", self.tail)
    }

    pub(crate) fn taken(&self) -> String {
        format!("taken:{}", self.tail)
    }

    pub(crate) fn park(&self) -> String {
        format!("park:{}", self.tail)
    }

    pub(crate) fn moved(&self, shelf: u8) -> String {
        format!("moved:{}:{shelf}", self.tail)
    }

    pub(crate) fn app_keys(&self, shelf: u8) -> String {
        format!("key:{}:{shelf}", self.tail)
    }

    /// The buckets of remembered outcomes around `now`.
    pub(crate) fn ended(&self, now: Time) -> [String; 3] {
        let bucket = now.as_ms() / BUCKET_MS + 1;
        [bucket - 1, bucket, bucket + 1].map(|b| format!("ended:{}:{b}", self.tail))
    }

    pub(crate) fn index(&self, index: IndexKey) -> String {
        match index {
            IndexKey::Zset => format!("zset:{}", self.tail),
            IndexKey::List => format!("list:{}", self.tail),
            IndexKey::Copy => format!("copy:{}", self.tail),
            IndexKey::Retry(tier) => format!("retry{tier}:{}", self.tail),
        }
    }

    pub(crate) fn slot(&self, slot: SlotKey) -> String {
        format!("{}{slot}", self.slot)
    }

    /// Bytes of a slot's key before the slot's name.
    pub(crate) fn slot_prefix(&self) -> usize {
        self.slot.len()
    }
}

/// A sorted set of slot names by start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum IndexKey {
    /// Slots of first deliveries that are not loaded.
    Zset,
    /// Slots that have left the wheel.
    List,
    /// Slots that are in the wheel.
    Copy,
    /// Slots of a retry tier that are not loaded.
    Retry(u8),
}

/// A slot: one hash. Its name is `<track>.<width>.<start>[.<sibling>]`, its start counted in its width: a lone timer's slot
/// is named three times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SlotKey {
    /// 0: first delivery, n: the n-th retry tier.
    pub(crate) track: u8,
    pub(crate) width: SlotWidth,
    /// Milliseconds since the epoch.
    pub(crate) start: u64,
    pub(crate) sibling: u32,
}

impl SlotKey {
    /// The first millisecond behind it.
    pub(crate) const fn end(self) -> u64 {
        self.start + self.width.ms()
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let track = parts.next()?.parse().ok()?;
        let width = *SlotWidth::ALL.get(parts.next()?.parse::<usize>().ok()?)?;
        let start = parts.next()?.parse::<u64>().ok()?.checked_mul(width.ms())?;
        let most = if width == SlotWidth::Second { u32::MAX } else { SIBLINGS - 1 };
        let siblings = 1..=most;
        let sibling = parts.next().map_or(Some(0), |n| n.parse().ok().filter(|n| siblings.contains(n)))?;
        parts.next().is_none().then_some(Self { track, width, start, sibling })
    }
}

impl fmt::Display for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.track, self.width as u8, self.start / self.width.ms())?;
        if self.sibling == 0 { Ok(()) } else { write!(f, ".{}", self.sibling) }
    }
}

/// The Redis Cluster hash slot of a key: CRC16 (XMODEM) of what stands in its first braces, modulo 16384.
pub(crate) fn hash_slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    let mut crc: u16 = 0;
    for b in tag.bytes() {
        crc ^= u16::from(b) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_hashed_as_redis_does() {
        // CLUSTER KEYSLOT says so.
        assert_eq!(hash_slot("123456789"), 0x31c3);
        assert_eq!(hash_slot("owner:{7}:c"), hash_slot("7"));
        assert_eq!(hash_slot("foo{}{bar}"), hash_slot("foo{}{bar}"));
    }

    #[test]
    fn slot_names_survive() {
        let slot = SlotKey { track: 3, width: SlotWidth::Hour, start: 7_200_000, sibling: 5 };
        assert_eq!(slot.to_string(), "3.2.2.5");
        assert_eq!(SlotKey::parse("3.2.2.5"), Some(slot));
        let first = SlotKey { sibling: 0, ..slot };
        assert_eq!(first.to_string(), "3.2.2");
        assert_eq!(SlotKey::parse("3.2.2"), Some(first));
        for bad in [
            "",
            "3.2",
            "3.4.0",
            "3.2.1.0",
            "3.2.1.1.1",
            "x.2.1",
            "3.2.1.",
            "3.2.1.64",
            "3.3.18446744073709551615",
        ] {
            assert_eq!(SlotKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cluster_name_cannot_break_out_of_its_braces() {
        assert!(check_cluster("prod-1").is_ok());
        for bad in ["", "a}b", "a b", &"x".repeat(65)] {
            assert!(check_cluster(bad).is_err(), "{bad}");
        }
    }
}
