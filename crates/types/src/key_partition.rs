//! Which partition a keyed timer goes to.

use crate::hash::Fnv64;
use crate::name::{Destination, Key};
use crate::partition::PartitionId;

impl PartitionId {
    /// Computes the partition of a keyed timer: [`Fnv64`] over `group 0x00 app 0x00 key`, modulo
    /// `partitions`.
    ///
    /// `partitions` is at least 1.
    pub fn of_key(dest: &Destination, key: &Key, partitions: u16) -> Self {
        let mut hash = Fnv64::default();
        for part in [dest.group(), "\0", dest.app(), "\0", key.as_str()] {
            hash.write(part.as_bytes());
        }
        Self((hash.finish() % u64::from(partitions.max(1))) as u16)
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
