//! Partitions, and the numbers that fence one owner from the next.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{Destination, Key};

/// Numbers one of a cluster's P partitions: 0 to P-1. A timer stays in its partition for life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionId(pub u16);

impl PartitionId {
    /// Computes the partition of a keyed timer: FNV-1a 64 over `group 0x00 app 0x00 key`, finished
    /// with the 64-bit finalizer of MurmurHash3 (Appleby, 2011), modulo `partitions`.
    ///
    /// `partitions` is at least 1.
    pub fn of_key(dest: &Destination, key: &Key, partitions: u16) -> Self {
        let mut h: u64 = 0xcbf2_9ce4_8422_2325;
        let bytes = dest.group().bytes().chain([0]).chain(dest.app().bytes()).chain([0]);
        for b in bytes.chain(key.as_str().bytes()) {
            h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        h ^= h >> 33;
        h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^= h >> 33;
        h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^= h >> 33;
        Self((h % u64::from(partitions.max(1))) as u16)
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts the owners of one partition, one after the other. Rises with every acquisition; no value
/// returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts the leaders of a cluster, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

/// A random number that tells two acquisitions apart that would otherwise look alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_partition_is_pinned() {
        // Other implementations must agree: docs/protocol.md gives the first example.
        let partition = |group, app, key, partitions| {
            let (dest, key) = (Destination::new(group, app).unwrap(), Key::new(key).unwrap());
            PartitionId::of_key(&dest, &key, partitions).0
        };
        let of_order = [64, 1_000, 1_024].map(|p| partition("orders", "billing", "order-1", p));
        assert_eq!(of_order, [9, 393, 713]);
        // Two bytes of "ä" and three of "€".
        let of_text = [64, 1_000, 1_024].map(|p| partition("g", "ä", "€", p));
        assert_eq!(of_text, [51, 755, 179]);
    }
}
