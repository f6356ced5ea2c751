//! What the owner knows of the fields of a hash: that one is certainly not there, or nothing.
//!
//! Only the owner writes, so it knows the fields of every hash that it has seen from the first one on,
//! or has read whole. It keeps 16 bits of each. One that is not there is taken for one that is with a
//! probability of n/65,536 for n fields: 0.2 % in a full slot, 1.6 % at most.

use super::keys::{Bucket, SHELVES};
use super::secret::Hash;

/// Fields of a hash that are remembered; of one that has more nothing is known.
const MOST: usize = 1_024;

/// Fingerprints of the fields of one hash, one for each; of an empty hash to begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprints(Option<Vec<u16>>);

impl Default for Fingerprints {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Fingerprints {
    /// Of an empty hash.
    pub(crate) const EMPTY: Self = Self(Some(Vec::new()));
    /// Of a hash of which nothing is known.
    pub(crate) const UNKNOWN: Self = Self(None);

    /// Whether it is known which fields are not there.
    pub(crate) const fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the field may be there. Always true if nothing is known.
    pub(crate) fn may_have(&self, hash: Hash) -> bool {
        self.0.as_ref().is_none_or(|all| all.contains(&hash.fingerprint()))
    }

    /// A field is, or is about to be, there that was not.
    pub(crate) fn add(&mut self, hash: Hash) {
        match &mut self.0 {
            Some(all) if all.len() < MOST => all.push(hash.fingerprint()),
            _ => self.0 = None,
        }
    }

    /// A field that was there is not any more.
    pub(crate) fn remove(&mut self, hash: Hash) {
        let Some(all) = &mut self.0 else { return };
        match all.iter().position(|other| *other == hash.fingerprint()) {
            Some(at) => _ = all.swap_remove(at),
            // It was never added: whatever is known is wrong.
            None => self.0 = None,
        }
    }
}

impl FromIterator<Hash> for Fingerprints {
    fn from_iter<I: IntoIterator<Item = Hash>>(fields: I) -> Self {
        let mut all = Self::default();
        fields.into_iter().for_each(|hash| all.add(hash));
        all
    }
}

/// Which timers may have an entry in `moved`; of a partition without any to begin with.
///
/// At most 32 KiB. A shelf that has had more than 1,024 entries, or was found with some, is known again
/// once it was read whole or is empty.
#[derive(Debug, Default)]
pub(crate) struct MovedFilter {
    shelves: [Shelf; SHELVES as usize],
}

#[derive(Debug, Default)]
struct Shelf {
    entries: u64,
    ids: Fingerprints,
}

impl MovedFilter {
    /// A shelf was found, with so many entries (HLEN).
    pub(crate) fn found(&mut self, shelf: u8, entries: u64) {
        let ids = if entries == 0 { Fingerprints::default() } else { Fingerprints::UNKNOWN };
        if let Some(found) = self.shelves.get_mut(usize::from(shelf)) {
            *found = Shelf { entries, ids };
        }
    }

    /// A shelf has these ids, and no others (HKEYS).
    pub(crate) fn read(&mut self, shelf: u8, ids: impl ExactSizeIterator<Item = Hash>) {
        if let Some(found) = self.shelves.get_mut(usize::from(shelf)) {
            *found = Shelf { entries: ids.len() as u64, ids: ids.collect() };
        }
    }

    /// A timer has, or is about to have, an entry that had none.
    pub(crate) fn add(&mut self, id: Hash) {
        let shelf = &mut self.shelves[usize::from(id.shelf())];
        shelf.entries += 1;
        shelf.ids.add(id);
    }

    /// A timer that had an entry has none any more.
    pub(crate) fn remove(&mut self, id: Hash) {
        let shelf = &mut self.shelves[usize::from(id.shelf())];
        shelf.entries = shelf.entries.saturating_sub(1);
        shelf.ids.remove(id);
        if shelf.entries == 0 {
            shelf.ids = Fingerprints::default();
        }
    }

    /// Whether the timer may have an entry.
    pub(crate) fn may_have(&self, id: Hash) -> bool {
        self.shelves[usize::from(id.shelf())].ids.may_have(id)
    }
}

/// Parts of an `ended` bucket that are filtered by themselves.
const PARTS: usize = 64;
/// Buckets that are remembered: those around the present one.
const BUCKETS: usize = 4;

/// Which timers and requests may have a remembered outcome in an `ended` bucket. At most 130 KiB a
/// bucket, and four buckets; nothing is known of a 64th of a bucket in which there are more than 1,024.
///
/// Nobody but the owner writes outcomes, and only into the bucket of its clock: so buckets that begin
/// behind its acquisition are known from their first outcome on.
#[derive(Debug)]
pub(crate) struct EndedFilter {
    /// By bucket, ascending: those with outcomes.
    buckets: Vec<(Bucket, Box<[Fingerprints; PARTS]>)>,
    /// The first bucket that is known.
    known_from: Bucket,
}

impl EndedFilter {
    /// Of an owner that acquires its partition in this bucket. The clock of the owner before it was not
    /// ahead by more than a bucket.
    pub(crate) const fn new(acquired: Bucket) -> Self {
        Self { buckets: Vec::new(), known_from: Bucket(acquired.0 + 2) }
    }

    /// An outcome is, or is about to be, in a bucket.
    pub(crate) fn add(&mut self, bucket: Bucket, field: Hash) {
        if bucket < self.known_from {
            return;
        }
        let at = match self.buckets.binary_search_by_key(&bucket, |(b, _)| *b) {
            Ok(at) => at,
            Err(at) => {
                self.buckets.insert(at, (bucket, Box::new(std::array::from_fn(|_| Fingerprints::default()))));
                at
            }
        };
        let part = &mut self.buckets[at].1[field.part(PARTS)];
        if !part.may_have(field) {
            part.add(field);
        }
        if self.buckets.len() > BUCKETS {
            let (oldest, _) = self.buckets.remove(0);
            self.known_from = Bucket(oldest.0 + 1);
        }
    }

    /// Whether an outcome may be in a bucket.
    pub(crate) fn may_have(&self, bucket: Bucket, field: Hash) -> bool {
        let has = |(b, parts): &(Bucket, Box<[Fingerprints; PARTS]>)| {
            *b == bucket && parts[field.part(PARTS)].may_have(field)
        };
        bucket < self.known_from || self.buckets.iter().any(has)
    }
}
