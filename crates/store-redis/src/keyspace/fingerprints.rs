//! Filters over the fields of hashes: each tells that a field is certainly not there, or nothing.
//!
//! Only the owner writes, so it knows the fields of every hash that it has seen from the first one
//! on, or has read whole. It keeps 24 bits of each. One that is not there is taken for one that is
//! with a probability of n/2^24 for n fields: less than 1 in 10,000. With 16 bits nearly every turn
//! of a few hundred new timers read something in vain.

use super::keys::OutcomeBucket;
use super::secret::{KeyedHash, SHARDS};

/// Fields of a hash that are remembered; of one that has more nothing is known.
const MOST: usize = 1_024;

/// Fingerprints of the fields of one hash, one for each; of an empty hash to begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprints(Option<Vec<u32>>);

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
    pub(crate) fn may_have(&self, hash: KeyedHash) -> bool {
        // Without a branch for each of them: vector instructions compare many at a time.
        let has = |some: &[u32]| some.iter().fold(false, |has, other| has | (*other == hash.fingerprint()));
        self.0.as_ref().is_none_or(|all| all.chunks(64).any(has))
    }

    /// A field is, or is about to be, there that was not.
    pub(crate) fn add(&mut self, hash: KeyedHash) {
        match &mut self.0 {
            Some(all) if all.len() < MOST => all.push(hash.fingerprint()),
            _ => self.0 = None,
        }
    }

    /// A field that was there is not any more.
    pub(crate) fn remove(&mut self, hash: KeyedHash) {
        let Some(all) = &mut self.0 else { return };
        match all.iter().position(|other| *other == hash.fingerprint()) {
            Some(at) => _ = all.swap_remove(at),
            // It was never added, so the filter is wrong: it knows nothing from now on.
            None => self.0 = None,
        }
    }
}

impl FromIterator<KeyedHash> for Fingerprints {
    fn from_iter<I: IntoIterator<Item = KeyedHash>>(fields: I) -> Self {
        let mut all = Self::default();
        fields.into_iter().for_each(|hash| all.add(hash));
        all
    }
}

/// Which timers may have an entry in `moved`; of a partition without any to begin with.
///
/// At most 64 KiB. A shard that has had more than 1,024 entries, or was found with some, is known
/// again once it is empty.
#[derive(Debug, Default)]
pub(crate) struct MovedFilter {
    shards: [Shard; SHARDS as usize],
}

#[derive(Debug, Default)]
struct Shard {
    entries: u64,
    ids: Fingerprints,
}

impl MovedFilter {
    /// A shard was found, with so many entries (HLEN).
    pub(crate) fn found(&mut self, shard: u8, entries: u64) {
        let ids = if entries == 0 { Fingerprints::default() } else { Fingerprints::UNKNOWN };
        self.shards[usize::from(shard)] = Shard { entries, ids };
    }

    /// A timer has, or is about to have, an entry that had none.
    pub(crate) fn add(&mut self, id: KeyedHash) {
        let shard = &mut self.shards[usize::from(id.shard())];
        shard.entries += 1;
        shard.ids.add(id);
    }

    /// A timer that had an entry has none any more.
    pub(crate) fn remove(&mut self, id: KeyedHash) {
        let shard = &mut self.shards[usize::from(id.shard())];
        shard.entries = shard.entries.saturating_sub(1);
        shard.ids.remove(id);
        if shard.entries == 0 {
            shard.ids = Fingerprints::default();
        }
    }

    /// Whether the timer may have an entry.
    pub(crate) fn may_have(&self, id: KeyedHash) -> bool {
        self.shards[usize::from(id.shard())].ids.may_have(id)
    }
}

/// Parts of a large hash that are filtered by themselves.
const PARTS: usize = 64;

/// Which fields a large hash may have, in parts, each of which is known as long as it has at most
/// 1,024 fields: 260 KiB at most.
///
/// With one for application keys a schedule with a new key reads nothing:
/// `bench schedule --keyed 100` makes 235,000 timers a second in place of 161,000, together with
/// the fingerprints of ids.
#[derive(Clone, Debug)]
pub(crate) struct LargeFilter(Box<[Fingerprints; PARTS]>);

impl Default for LargeFilter {
    /// Of an empty hash.
    fn default() -> Self {
        Self(Box::new([const { Fingerprints::EMPTY }; PARTS]))
    }
}

impl LargeFilter {
    /// Of a hash of which nothing is known.
    pub(crate) fn unknown() -> Self {
        Self(Box::new([const { Fingerprints::UNKNOWN }; PARTS]))
    }

    /// A field is, or is about to be, there that was not.
    pub(crate) fn add(&mut self, field: KeyedHash) {
        self.0[field.part(PARTS)].add(field);
    }

    /// A field that was there is not any more.
    pub(crate) fn remove(&mut self, field: KeyedHash) {
        self.0[field.part(PARTS)].remove(field);
    }

    /// Whether the field may be there.
    pub(crate) fn may_have(&self, field: KeyedHash) -> bool {
        self.0[field.part(PARTS)].may_have(field)
    }
}

impl FromIterator<KeyedHash> for LargeFilter {
    fn from_iter<I: IntoIterator<Item = KeyedHash>>(fields: I) -> Self {
        let mut all = Self::default();
        fields.into_iter().for_each(|field| all.add(field));
        all
    }
}

/// Buckets that are remembered: those around the present one.
const BUCKETS: usize = 4;

/// Which timers and requests may have a remembered outcome in an `ended` bucket. Of four buckets at
/// most.
///
/// Nobody but the owner writes outcomes, and only into the bucket of its clock: so buckets that
/// begin behind its acquisition are known from their first outcome on, and so are earlier ones that
/// it has found empty.
#[derive(Debug)]
pub(crate) struct EndedFilter {
    /// By bucket, ascending: those with outcomes.
    buckets: Vec<(OutcomeBucket, LargeFilter)>,
    /// All buckets from this one on are known.
    known_from: OutcomeBucket,
    /// Earlier buckets that are known: they were empty.
    found_empty: Vec<OutcomeBucket>,
    /// [`Self::begin`] was called: the owner's clock is known.
    is_begun: bool,
}

impl EndedFilter {
    /// Of an owner that acquires its partition in this bucket, by the store's clock. The clock of
    /// the owner before it was not ahead by more than a bucket of that, or of this owner's
    /// ([`Self::begin`]).
    pub(crate) const fn new(acquired: OutcomeBucket) -> Self {
        let known_from = OutcomeBucket(acquired.0 + 2);
        Self { buckets: Vec::new(), known_from, found_empty: Vec::new(), is_begun: false }
    }

    /// The buckets to look at after an acquisition, in which outcomes may be that still count.
    pub(crate) fn to_look_at(&self) -> impl Iterator<Item = OutcomeBucket> + use<> {
        let OutcomeBucket(known_from) = self.known_from;
        (known_from.saturating_sub(3)..known_from).map(OutcomeBucket)
    }

    /// A bucket was empty when the partition was this owner's already.
    pub(crate) fn found_empty(&mut self, bucket: OutcomeBucket) {
        self.found_empty.push(bucket);
    }

    fn knows(&self, bucket: OutcomeBucket) -> bool {
        bucket >= self.known_from || self.found_empty.contains(&bucket)
    }

    /// Takes in the bucket of the owner's clock at its first turn; later calls change nothing.
    pub(crate) fn begin(&mut self, first: OutcomeBucket) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.known_from = self.known_from.max(OutcomeBucket(first.0 + 2));
        }
    }

    /// An outcome is, or is about to be, in a bucket.
    pub(crate) fn add(&mut self, bucket: OutcomeBucket, field: KeyedHash) {
        if !self.knows(bucket) {
            return;
        }
        let at = match self.buckets.binary_search_by_key(&bucket, |(b, _)| *b) {
            Ok(at) => at,
            Err(at) => {
                self.buckets.insert(at, (bucket, LargeFilter::default()));
                at
            }
        };
        let fields = &mut self.buckets[at].1;
        if !fields.may_have(field) {
            fields.add(field);
        }
        if self.buckets.len() > BUCKETS {
            let (oldest, _) = self.buckets.remove(0);
            self.known_from = self.known_from.max(OutcomeBucket(oldest.0 + 1));
            self.found_empty.retain(|bucket| *bucket > oldest);
        }
    }

    /// Whether an outcome may be in a bucket.
    pub(crate) fn may_have(&self, bucket: OutcomeBucket, field: KeyedHash) -> bool {
        let has = |(b, fields): &(OutcomeBucket, LargeFilter)| *b == bucket && fields.may_have(field);
        !self.knows(bucket) || self.buckets.iter().any(has)
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::{PartitionId, SlotWidth, Time, TimerId};
    use proptest::prelude::*;

    use super::super::secret::Secret;
    use super::*;

    fn hash(n: u64) -> KeyedHash {
        let id = TimerId::with_width(Time::from_ms(7_000), SlotWidth::Second, PartitionId(0), n);
        Secret::new([3; 16]).id(id)
    }

    #[test]
    fn what_was_added_may_be_there_and_little_else() {
        let all: Fingerprints = (0..128).map(hash).collect();
        let mistaken = (128..1_000_128).filter(|n| all.may_have(hash(*n))).count();
        assert!(all.is_known() && (0..128).all(|n| all.may_have(hash(n))));
        // 1,000,000 x 128 / 2^24 = 7.6.
        assert!((1..20).contains(&mistaken), "{mistaken}");
    }

    #[test]
    fn of_too_many_nothing_is_known() {
        let mut all: Fingerprints = (0..MOST as u64).map(hash).collect();
        assert!(all.is_known());
        all.add(hash(MOST as u64));
        assert!(!all.is_known() && all.may_have(hash(1 << 40)));
        all.remove(hash(0));
        assert!(!all.is_known());
    }

    #[test]
    fn one_that_was_never_added_cannot_be_removed() {
        let mut all: Fingerprints = [hash(1)].into_iter().collect();
        all.remove(hash(2));
        assert_eq!(all, Fingerprints::UNKNOWN);
    }

    proptest! {
        #[test]
        fn none_that_is_there_is_ruled_out(acts in proptest::collection::vec((0u64..300, any::<bool>()), 0..2_000)) {
            let (mut all, mut there) = (Fingerprints::default(), std::collections::BTreeSet::new());
            for (n, adds) in acts {
                match adds {
                    true if there.insert(n) => all.add(hash(n)),
                    false if there.remove(&n) => all.remove(hash(n)),
                    _ => {}
                }
            }
            prop_assert!(all.is_known() && there.iter().all(|n| all.may_have(hash(*n))));
            there.iter().for_each(|n| all.remove(hash(*n)));
            prop_assert_eq!(all, Fingerprints::EMPTY);
        }
    }

    #[test]
    fn keys_are_known_until_a_part_has_too_many() {
        let mut keys: LargeFilter = (0..10_000).map(hash).collect();
        assert!((0..10_000).all(|n| keys.may_have(hash(n))));
        assert!((10_000..20_000).filter(|n| keys.may_have(hash(*n))).count() < 5);
        (0..9_999).for_each(|n| keys.remove(hash(n)));
        assert!(keys.may_have(hash(9_999)) && !keys.may_have(hash(9_998)));
        (0..200_000).for_each(|n| keys.add(hash(n)));
        assert!(keys.may_have(hash(1 << 40)));
        assert!(LargeFilter::unknown().may_have(hash(1)) && !LargeFilter::default().may_have(hash(1)));
    }

    #[test]
    fn a_shard_is_known_if_it_was_seen_from_its_first_entry_on_or_is_empty() {
        let mut moved = MovedFilter::default();
        let [one, other] = [1, 2].map(hash);
        assert!(!moved.may_have(one));
        moved.add(one);
        assert!(moved.may_have(one) && !moved.may_have(other));
        moved.remove(one);
        assert!(!moved.may_have(one));
        (0..SHARDS).for_each(|shard| moved.found(shard, u64::from(shard == one.shard())));
        let elsewhere = (3..).map(hash).find(|hash| hash.shard() != one.shard()).unwrap();
        let beside = (3..).map(hash).find(|hash| hash.shard() == one.shard()).unwrap();
        assert!(moved.may_have(one) && moved.may_have(beside) && !moved.may_have(elsewhere));
        moved.found(one.shard(), 2);
        moved.remove(beside);
        assert!(moved.may_have(beside));
        moved.remove(one);
        assert!(!moved.may_have(one) && !moved.may_have(beside));
    }

    #[test]
    fn a_shard_that_had_too_many_is_known_when_it_is_empty() {
        let mut moved = MovedFilter::default();
        let many = || (0..20_000).map(hash);
        many().for_each(|id| moved.add(id));
        assert!(moved.may_have(hash(1 << 30)));
        many().for_each(|id| moved.remove(id));
        assert!(!moved.may_have(hash(1 << 30)));
    }

    #[test]
    fn buckets_that_began_before_the_acquisition_are_unknown() {
        let mut ended = EndedFilter::new(OutcomeBucket(100));
        assert!((98..102).all(|b| ended.may_have(OutcomeBucket(b), hash(1))));
        ended.add(OutcomeBucket(100), hash(2));
        ended.add(OutcomeBucket(102), hash(2));
        assert!(ended.may_have(OutcomeBucket(101), hash(1)) && ended.may_have(OutcomeBucket(102), hash(2)));
        assert!(!ended.may_have(OutcomeBucket(102), hash(1)) && !ended.may_have(OutcomeBucket(103), hash(2)));
        // A forgotten bucket is unknown, also to a clock that goes back.
        (103..107).for_each(|b| ended.add(OutcomeBucket(b), hash(b)));
        assert!(ended.may_have(OutcomeBucket(102), hash(1)) && !ended.may_have(OutcomeBucket(103), hash(1)));
        assert!((103..107).all(|b| ended.may_have(OutcomeBucket(b), hash(b))));
        ended.add(OutcomeBucket(102), hash(7));
        assert_eq!(ended.buckets.len(), BUCKETS);
    }

    #[test]
    fn a_bucket_that_was_found_empty_is_known_until_it_is_forgotten() {
        let mut ended = EndedFilter::new(OutcomeBucket(100));
        assert_eq!(ended.to_look_at().collect::<Vec<_>>(), [99, 100, 101].map(OutcomeBucket));
        ended.found_empty(OutcomeBucket(100));
        assert!([99, 101].iter().all(|b| ended.may_have(OutcomeBucket(*b), hash(1))));
        assert!(!ended.may_have(OutcomeBucket(100), hash(1)));
        ended.add(OutcomeBucket(100), hash(2));
        assert!(ended.may_have(OutcomeBucket(100), hash(2)) && !ended.may_have(OutcomeBucket(100), hash(1)));
        (102..106).for_each(|b| ended.add(OutcomeBucket(b), hash(b)));
        assert!(ended.may_have(OutcomeBucket(100), hash(1)) && !ended.may_have(OutcomeBucket(102), hash(1)));
    }

    #[test]
    fn an_owner_whose_clock_is_ahead_of_the_stores_knows_only_what_begins_behind_it() {
        let mut ended = EndedFilter::new(OutcomeBucket(100));
        ended.begin(OutcomeBucket(107));
        ended.begin(OutcomeBucket(300));
        assert!(ended.may_have(OutcomeBucket(108), hash(1)) && !ended.may_have(OutcomeBucket(109), hash(1)));
        let mut ended = EndedFilter::new(OutcomeBucket(100));
        ended.begin(OutcomeBucket(90));
        assert!(ended.may_have(OutcomeBucket(101), hash(1)) && !ended.may_have(OutcomeBucket(102), hash(1)));
    }

    #[test]
    fn a_bucket_is_bounded() {
        let mut ended = EndedFilter::new(OutcomeBucket(0));
        let add = |ended: &mut EndedFilter, n| ended.add(OutcomeBucket(5), hash(n));
        (0..30_000).for_each(|n| add(&mut ended, n));
        // The same again costs nothing.
        (0..30_000).for_each(|n| add(&mut ended, n));
        let mistaken = |ended: &EndedFilter| {
            (1 << 20..(1 << 20) + 10_000).filter(|n| ended.may_have(OutcomeBucket(5), hash(*n))).count()
        };
        assert!(mistaken(&ended) < 10, "{}", mistaken(&ended));
        (30_000..200_000).for_each(|n| add(&mut ended, n));
        assert_eq!(mistaken(&ended), 10_000);
        assert!(ended.buckets.iter().flat_map(|(_, fields)| fields.0.iter()).all(|part| !part.is_known()));
    }
}
