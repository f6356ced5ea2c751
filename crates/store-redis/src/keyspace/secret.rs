//! Keyed hashes: of ids, and of application keys.
//!
//! The spread of timers over hashes, and fingerprints, are derived from SipHash-2-4 (Aumasson and
//! Bernstein 2012) under a secret of the cluster: no client can choose ids, or keys, that meet in
//! one place. The secret is made when the cluster is, and never changes: places depend on it.

use std::fmt;

use mtimer_types::{Destination, Key, TimerId};
use siphasher::{sip, sip128};

/// Hashes over which moved timers are spread: bounds the size of one Redis key to migrate, and of
/// its fingerprints.
pub(crate) const SHARDS: u8 = 16;

/// Bits of a hash, from the lowest: 16 are of the fingerprint, 8 choose a shard, 8 are of the
/// fingerprint, 32 choose a sibling. So timers of one hash have independent fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyedHash(u64);

impl KeyedHash {
    /// Of the field of an application key, which is a keyed hash already.
    pub(crate) fn of_key(field: &KeyField) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *field;
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The 24 bits that [`super::fingerprints`] keeps.
    pub(crate) const fn fingerprint(self) -> u32 {
        self.0 as u32 & 0xff00_ffff
    }

    /// Chooses one of at most 256 parts.
    pub(crate) const fn part(self, parts: usize) -> usize {
        (self.0 >> 16 & 0xff) as usize % parts
    }

    /// The `moved` shard of a timer.
    pub(crate) const fn shard(self) -> u8 {
        self.part(SHARDS as usize) as u8
    }

    /// Chooses a sibling.
    pub(crate) const fn spread(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The field of an application key: the first 112 bits of its hash, since longer fields take twice
/// the memory ([`super::value`]). Two keys with the same field are possible, if hardly: code that
/// reads a timer through it compares destination and key with the timer's own.
pub(crate) type KeyField = [u8; 14];

/// The cluster's secret.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    short: sip::SipHasher24,
    long: sip128::SipHasher24,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Bytes of a secret.
    pub(crate) const BYTES: usize = 16;

    /// A secret from its bytes.
    pub(crate) fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self {
            short: sip::SipHasher24::new_with_key(&bytes),
            long: sip128::SipHasher24::new_with_key(&bytes),
        }
    }

    /// The hash of an id.
    pub(crate) fn id(&self, id: TimerId) -> KeyedHash {
        KeyedHash(self.short.hash(&id.to_bytes()))
    }

    /// The hash of the field of an `ended` bucket.
    pub(crate) fn outcome_field(&self, field: &[u8]) -> KeyedHash {
        KeyedHash(self.short.hash(field))
    }

    /// The field of an application key.
    pub(crate) fn key(&self, dest: &Destination, key: &Key) -> KeyField {
        // None of the three has a control character in it.
        let text = [dest.group(), "\0", dest.app(), "\0", key.as_str()].concat();
        let [field @ .., _, _] = self.long.hash(text.as_bytes()).as_bytes();
        field
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn secret() -> Secret {
        Secret::new(std::array::from_fn(|n| n as u8))
    }

    #[test]
    fn it_is_siphash() {
        // The reference implementation's vectors: key 00 01 .. 0f, message 00 01 .. 0e.
        let message: [u8; 15] = std::array::from_fn(|n| n as u8);
        assert_eq!(secret().short.hash(&message), 0xa129_ca61_49be_45e5);
        let long: [u8; 16] =
            [0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3, 0xd9];
        assert_eq!(secret().long.hash(&message).as_bytes(), long);
    }

    #[test]
    fn keys_of_two_destinations_have_two_fields() {
        let dest = |g, a| Destination::new(g, a).unwrap();
        let key = Key::new("c").unwrap();
        let fields = [dest("a", "b"), dest("ab", "c"), dest("a", "bc")].map(|d| secret().key(&d, &key));
        assert_eq!(fields.iter().collect::<BTreeSet<_>>().len(), 3);
        let other = Secret::new([7; 16]).key(&dest("a", "b"), &key);
        assert_ne!(other, fields[0]);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", secret()), "Secret(..)");
    }
}
