//! A hash function for the maps of a view.
//!
//! A view decides some hundred operations and is dropped: names that are chosen to collide cost
//! microseconds, so it needs no secret. It folds products as wyhash and foldhash do; with the
//! standard library's hasher a turn of keyed timers takes 10 % more (example `turns` of the Redis
//! store).

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`Folded`].
pub(super) type BuildFolded = BuildHasherDefault<Folded>;

/// See the module.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let word = rest.iter().fold(rest.len() as u64, |word, byte| word << 8 | u64::from(*byte));
            self.write_u64(word);
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        // Two digits of pi, one odd.
        let product = u128::from(self.0 ^ n ^ 0x243f_6a88_85a3_08d3) * 0x1319_8a2e_0370_7345;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_u128(&mut self, n: u128) {
        self.write_u64(n as u64);
        self.write_u64((n >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;

    /// Distinct values of the lowest 12 and the highest 7 bits: a table uses both.
    fn spread(names: impl Iterator<Item = impl Hash>) -> (usize, usize) {
        let hashes: Vec<u64> = names.map(|name| BuildFolded::default().hash_one(name)).collect();
        let distinct = |part: fn(u64) -> u64| hashes.iter().map(|h| part(*h)).collect::<HashSet<_>>().len();
        (distinct(|h| h & 0xfff), distinct(|h| h >> 57))
    }

    #[test]
    fn names_that_differ_little_are_spread() {
        // Of 1,000 in 4,096 places 887 are expected to be taken; all of 128.
        let numbers = spread(0u128..1_000);
        let high = spread((0u128..1_000).map(|n| n << 80));
        let texts = spread((0..1_000).map(|n| format!("order-{n}")));
        for (low, top) in [numbers, high, texts] {
            assert!(low > 800 && top > 120, "{low}, {top}");
        }
    }
}
