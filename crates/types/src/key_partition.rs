//! Which partition a keyed timer goes to.

use crate::name::{Destination, Key};
use crate::partition::PartitionId;

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
