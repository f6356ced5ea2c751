//! The names of all keys.
//!
//! Invariant: every key of a partition carries the partition in braces, so that Redis Cluster keeps
//! them on one node; keys of the cluster itself carry the cluster's name there.

use std::fmt;

use mtimer_store::StoreError;
use mtimer_types::{PartitionId, SlotWidth, Time, TimerId, limits};

use super::levels::siblings;

/// Length of an `ended` bucket: the present one and the one before it cover the repeat horizon.
const BUCKET_MS: u64 = limits::REPEAT_HORIZON_MS;
/// Longest time from handing a client's request to the lane until the data for its decision was
/// read, ms. An older request is refused.
pub(crate) const LOOKED_UP_WITHIN_MS: u64 = 30_000;
/// How much longer a bucket is kept than the repeat horizon, ms: a repeat that was in time may wait
/// before it is looked up, and clocks do not run alike.
const EXPIRY_SLACK_MS: u64 = LOOKED_UP_WITHIN_MS + 10_000;
/// Bytes of a cluster's name.
const MAX_CLUSTER_BYTES: usize = 64;

/// Checks that a cluster's name is safe to put in a key.
pub(crate) fn check_cluster(name: &str) -> Result<(), StoreError> {
    let fits = (1..=MAX_CLUSTER_BYTES).contains(&name.len());
    if fits && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Ok(());
    }
    Err(StoreError::Unusable(format!(
        "the cluster name {name:?} cannot be used: give 1 to {MAX_CLUSTER_BYTES} letters, digits, '-', '_' or '.'"
    )))
}

/// The cluster that a key belongs to, if the key is one of those by which clusters are recognised:
/// `meta`, or a partition's `owner` or `slot`.
pub(crate) fn cluster_of(key: &[u8]) -> Option<&str> {
    let key = std::str::from_utf8(key).ok()?;
    let name = match key.split_once(":{")? {
        ("meta", rest) => rest.strip_suffix('}')?,
        ("owner" | "slot", rest) => {
            let (partition, name) = rest.split_once("}:")?;
            partition.parse::<u16>().ok()?;
            name.split_once(':').map_or(name, |(name, _)| name)
        }
        _ => return None,
    };
    check_cluster(name).is_ok().then_some(name)
}

/// The first parts of the names of a partition's keys; those of retry tiers have their number
/// behind `retry`.
const KINDS: [&str; 16] = [
    "owner",
    "dest",
    "settings",
    "park",
    "taken",
    "unconfirmed",
    "dead",
    "zset",
    "list",
    "copy",
    "retry",
    "moved",
    "slot",
    "key",
    "ended",
    "bulk",
];

/// Whether a key belongs to a partition of this cluster: to none whose name only begins with it.
pub(crate) fn is_of_partition(key: &str, cluster: &str) -> bool {
    let of = |key: &str| {
        let (kind, rest) = key.split_once(":{")?;
        let kind = if kind.starts_with("retry") {
            kind.trim_end_matches(|c: char| c.is_ascii_digit())
        } else {
            kind
        };
        let (partition, name) = rest.split_once("}:")?;
        partition.parse::<u16>().ok()?;
        // No cluster's name has a colon.
        let name = name.split_once(':').map_or(name, |(name, _)| name);
        Some(KINDS.contains(&kind) && name == cluster)
    };
    of(key).unwrap_or(false)
}

/// `meta:{c}`: hash of the cluster's fixed facts.
pub(crate) fn meta(cluster: &str) -> String {
    format!("meta:{{{cluster}}}")
}

/// `term:{c}`: the highest term.
pub(crate) fn term(cluster: &str) -> String {
    format!("term:{{{cluster}}}")
}

/// `leader:{c}`: the leader's lease.
pub(crate) fn leader(cluster: &str) -> String {
    format!("leader:{{{cluster}}}")
}

/// `topology:{c}`: the topology that the leader has published.
pub(crate) fn topology(cluster: &str) -> String {
    format!("topology:{{{cluster}}}")
}

/// The keys of one partition.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    partition: PartitionId,
    tail: String,
}

impl Keyspace {
    /// The keys of a partition of a cluster whose name [`check_cluster`] has passed.
    pub(crate) fn new(cluster: &str, partition: PartitionId) -> Self {
        Self { partition, tail: format!("{{{partition}}}:{cluster}") }
    }

    /// Decodes a stored id: a field, or the value of an application key. `None`: it has another
    /// length.
    pub(crate) fn id(&self, field: &[u8]) -> Option<TimerId> {
        field.try_into().ok().map(|field| TimerId::from_local(self.partition, field))
    }

    /// Hash: epoch, nonce, seq and claims of the owner.
    pub(crate) fn owner(&self) -> String {
        format!("owner:{}", self.tail)
    }

    /// Hash: number of a destination to its group and app.
    pub(crate) fn destinations(&self) -> String {
        format!("dest:{}", self.tail)
    }

    /// Hash: number of a bulk job to the job.
    pub(crate) fn bulks(&self) -> String {
        format!("bulk:{}", self.tail)
    }

    /// Hash: group and app of a destination to its settings.
    pub(crate) fn settings(&self) -> String {
        format!("settings:{}", self.tail)
    }

    /// Sorted set: positions of timers that are in no slot; for `Park`, destinations that have
    /// parked timers.
    pub(crate) fn listing(&self, listing: ListingKey) -> String {
        match listing {
            ListingKey::Park => format!("park:{}", self.tail),
            ListingKey::ParkOf(dest) => format!("park:{}:{dest}", self.tail),
            ListingKey::Taken => format!("taken:{}", self.tail),
            ListingKey::Unconfirmed => format!("unconfirmed:{}", self.tail),
            ListingKey::Dead => format!("dead:{}", self.tail),
        }
    }

    /// Sorted set: names of slots by start.
    pub(crate) fn index(&self, index: IndexKey) -> String {
        match index {
            IndexKey::Zset => format!("zset:{}", self.tail),
            IndexKey::List => format!("list:{}", self.tail),
            IndexKey::Copy => format!("copy:{}", self.tail),
            IndexKey::Retry(tier) => format!("retry{tier}:{}", self.tail),
        }
    }

    /// Hash of timers, of application keys, or of outcomes.
    pub(crate) fn hash(&self, hash: HashKey) -> String {
        match hash {
            HashKey::Moved(shard) => format!("moved:{}:{shard}", self.tail),
            HashKey::Slot(slot) => format!("slot:{}:{slot}", self.tail),
            HashKey::AppKeys => format!("key:{}", self.tail),
            HashKey::Ended(bucket) => format!("ended:{}:{}", self.tail, bucket.0),
        }
    }
}

/// The hashes of timers, application keys and outcomes, in the order in which a turn writes them:
/// contents before entries, rows before keys. The entry of a timer that stays in its slot comes
/// before all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum HashKey {
    /// Id of a pending timer to its record.
    Slot(SlotKey),
    /// Id of a timer that is not in a slot that its id implies, or that was attempted or stopped,
    /// to its slot, or to its whole record if it is in none.
    Moved(u8),
    /// Application key to the id that it names.
    AppKeys,
    /// Id, or request, to the outcome that is remembered of it.
    Ended(OutcomeBucket),
}

/// The listings, in the order in which a turn writes them: a destination's entry in `Park` before
/// its own park.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ListingKey {
    /// Numbers of the destinations that have parked timers.
    Park,
    /// Ids of one destination's parked timers in the order in which they were parked.
    ParkOf(u32),
    /// Ids of taken timers in the order in which they were taken.
    Taken,
    /// Ids of unconfirmed timers in the order in which they became so.
    Unconfirmed,
    /// Ids of dead letters in the order in which they died.
    Dead,
}

/// A span of the cluster clock whose outcomes are remembered in one hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OutcomeBucket(pub(crate) u64);

impl OutcomeBucket {
    /// The bucket into which an outcome of `now` is written.
    pub(crate) const fn of(now: Time) -> Self {
        Self(now.as_ms() / BUCKET_MS)
    }

    /// The buckets in which an outcome is looked for: the next one, too, as an earlier owner's
    /// clock may have been ahead.
    pub(crate) const fn around(now: Time) -> [Self; 3] {
        let Self(n) = Self::of(now);
        [Self(n), Self(n.saturating_sub(1)), Self(n + 1)]
    }

    /// When the hash expires, by the owner's clock: it covers the repeat horizon of the bucket's
    /// last moment.
    pub(crate) const fn expires(self) -> Time {
        Time::from_ms((self.0 + 2) * BUCKET_MS + EXPIRY_SLACK_MS)
    }
}

/// A sorted set of slot names by start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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

/// A slot: one hash. Its name is `<track>.<width>.<start>[.<sibling>]`. There `start` is divided by
/// the width to keep names short.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SlotKey {
    /// 0: first delivery, n: the n-th retry tier.
    pub(crate) track: u8,
    /// How much time it spans.
    pub(crate) width: SlotWidth,
    /// Milliseconds since the epoch; a multiple of the width.
    pub(crate) start: u64,
    /// Which of the slots of this track, width and start: see [`super::place`].
    pub(crate) sibling: u32,
}

impl SlotKey {
    /// The first millisecond behind it.
    pub(crate) const fn end(self) -> u64 {
        self.start.saturating_add(self.width.ms())
    }

    /// A slot from its name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let track = parts.next()?.parse().ok()?;
        let width = *SlotWidth::ALL.get(parts.next()?.parse::<usize>().ok()?)?;
        let start = parts.next()?.parse::<u64>().ok()?.checked_mul(width.ms())?;
        let of_name = |n: &str| n.parse().ok().filter(|n| (1..siblings(width)).contains(n));
        let sibling = parts.next().map_or(Some(0), of_name)?;
        parts.next().is_none().then_some(Self { track, width, start, sibling })
    }
}

impl fmt::Display for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.track, self.width as u8, self.start / self.width.ms())?;
        if self.sibling == 0 { Ok(()) } else { write!(f, ".{}", self.sibling) }
    }
}

/// The Redis Cluster hash slot of a key: CRC16 (XMODEM) of the text in its first braces, modulo
/// 16384.
pub(crate) fn hash_slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16_384
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_hashed_as_redis_does() {
        // CLUSTER KEYSLOT says so.
        assert_eq!(hash_slot("123456789"), 0x31c3);
        assert_eq!(hash_slot("owner:{7}:c"), hash_slot("7"));
        assert_ne!(hash_slot("foo{}{bar}"), hash_slot("bar"));
    }

    #[test]
    fn all_keys_of_a_partition_have_its_hash_slot() {
        let keys = Keyspace::new("c", PartitionId(7));
        let slot = SlotKey { track: 0, width: SlotWidth::Minute, start: 60_000, sibling: 2 };
        assert_eq!(keys.hash(HashKey::Slot(slot)), "slot:{7}:c:0.1.1.2");
        assert_eq!(keys.index(IndexKey::Retry(3)), "retry3:{7}:c");
        let all = [
            keys.owner(),
            keys.destinations(),
            keys.bulks(),
            keys.settings(),
            keys.listing(ListingKey::Dead),
            keys.listing(ListingKey::Taken),
            keys.listing(ListingKey::Park),
            keys.hash(HashKey::Moved(3)),
            keys.hash(HashKey::AppKeys),
            keys.hash(HashKey::Ended(OutcomeBucket(5))),
            keys.index(IndexKey::Copy),
            keys.hash(HashKey::Slot(slot)),
        ];
        assert!(all.iter().all(|key| hash_slot(key) == hash_slot("7")), "{all:?}");
    }

    #[test]
    fn an_outcome_is_looked_for_where_it_was_written_as_long_as_it_counts() {
        for written in [0, 1, 29_999, 30_000, 1_700_000_012_345] {
            let bucket = OutcomeBucket::of(Time::from_ms(written));
            for later in [0, 1, 15_000, 30_000] {
                let now = Time::from_ms(written + later);
                assert!(OutcomeBucket::around(now).contains(&bucket));
                assert!(bucket.expires() > now);
            }
        }
    }

    #[test]
    fn every_key_of_a_partition_is_recognised_and_none_of_another_cluster() {
        let keys = |cluster: &str| {
            let k = Keyspace::new(cluster, PartitionId(7));
            let slot =
                SlotKey { track: 2, width: SlotWidth::ALL[1], start: SlotWidth::ALL[1].ms() * 9, sibling: 0 };
            vec![
                k.owner(),
                k.destinations(),
                k.bulks(),
                k.settings(),
                k.listing(ListingKey::Park),
                k.listing(ListingKey::ParkOf(3)),
                k.listing(ListingKey::Taken),
                k.listing(ListingKey::Unconfirmed),
                k.listing(ListingKey::Dead),
                k.index(IndexKey::Zset),
                k.index(IndexKey::List),
                k.index(IndexKey::Copy),
                k.index(IndexKey::Retry(12)),
                k.hash(HashKey::Moved(1)),
                k.hash(HashKey::Slot(slot)),
                k.hash(HashKey::AppKeys),
                k.hash(HashKey::Ended(OutcomeBucket(5))),
            ]
        };
        assert!(keys("shop").iter().all(|key| is_of_partition(key, "shop")));
        for other in ["shop-2", "sho", "shop.", "my-shop"] {
            assert!(keys(other).iter().all(|key| !is_of_partition(key, "shop")), "{other}");
        }
        for foreign in
            ["shop", "owner:{7}:", "owner:{x}:shop", "queue:{7}:shop", "owner:7:shop", "meta:{shop}"]
        {
            assert!(!is_of_partition(foreign, "shop"), "{foreign}");
        }
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for bad in [
            "",
            "3.2",
            "3.4.0",
            "3.2.1.0",
            "3.2.1.1.1",
            "x.2.1",
            "3.2.1.",
            "3.2.1.65",
            "0.0.1.99999999",
            "3.3.18446744073709551615",
        ] {
            assert_eq!(SlotKey::parse(bad), None, "{bad}");
        }
        let first = SlotKey { track: 3, width: SlotWidth::Hour, start: 7_200_000, sibling: 0 };
        assert_eq!(first.to_string(), "3.2.2");
    }

    proptest! {
        #[test]
        fn slot_names_survive(track: u8, width in 0usize..4, start in 0u64..1 << 30, sibling: u32) {
            let width = SlotWidth::ALL[width];
            let sibling = sibling % siblings(width);
            let slot = SlotKey { track, width, start: start * width.ms(), sibling };
            prop_assert_eq!(SlotKey::parse(&slot.to_string()), Some(slot));
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
