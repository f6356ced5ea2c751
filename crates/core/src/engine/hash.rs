//! Hash maps whose order is decided by the engine's seed alone, so that one seed gives one history.
//! The function is here and not in a library, so that a recorded seed means the same run in every
//! version.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};

pub(super) type Map<K, V> = HashMap<K, V, Seeded>;
pub(super) type Set<K> = HashSet<K, Seeded>;

/// Builds hashers from a seed that clients do not know, so that they cannot choose ids that
/// collide.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seeded(pub(super) u64);

impl BuildHasher for Seeded {
    type Hasher = Mixer;
    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

/// Multiplies and folds each word into the state (as in wyhash, Wang Yi, 2019).
#[derive(Debug)]
pub(super) struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.mix(u64::from(n));
    }
    fn write_u16(&mut self, n: u16) {
        self.mix(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.mix(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }
    fn write_u128(&mut self, n: u128) {
        self.mix(n as u64);
        self.mix((n >> 64) as u64);
    }
    fn finish(&self) -> u64 {
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(seed: u64, write: impl FnOnce(&mut Mixer)) -> u64 {
        let mut hasher = Seeded(seed).build_hasher();
        write(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn the_seed_alone_decides_the_order_of_a_map() {
        let order = |seed| {
            let mut map = Map::with_hasher(Seeded(seed));
            map.extend((0..100u128).map(|n| (n << 64, ())));
            map.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn bytes_of_different_lengths_are_different() {
        let texts: [&[u8]; 5] = [b"", b"\0", b"\0\0", b"12345678", b"12345678\0"];
        let hashes: Set<u64> = texts.iter().map(|text| hash(7, |h| h.write(text))).collect();
        assert_eq!(hashes.len(), texts.len());
    }

    #[test]
    fn both_halves_of_an_id_count() {
        let ids = [0, 1, 1 << 64, 1 << 127, (1 << 64) + 1];
        let hashes: Set<u64> = ids.iter().map(|id| hash(7, |h| h.write_u128(*id))).collect();
        assert_eq!(hashes.len(), ids.len());
    }

    #[test]
    fn ids_that_differ_in_their_high_bits_only_spread_over_all_buckets() {
        let mut buckets = [0; 64];
        for n in 0..6_400u128 {
            buckets[(hash(7, |h| h.write_u128(n << 80)) % 64) as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (50..200).contains(n)), "{buckets:?}");
    }
}
