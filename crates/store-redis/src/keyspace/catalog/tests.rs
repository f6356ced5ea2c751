//! The guarantees of the picture: places, fingerprints, horizons.

use mtimer_store::conformance::mix;
use mtimer_types::{Cohorts, PartitionId};
use proptest::prelude::*;

use super::super::place::span;
use super::super::slot_counts::Wanted;
use super::*;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

fn id(due: u64, width: SlotWidth, random: u64) -> TimerId {
    TimerId::with_width(Time::from_ms(due), width, PartitionId(0), random)
}

fn catalog() -> Catalog {
    Catalog::new(Secret::new([7; Secret::BYTES]))
}

/// The destination of a timer in these tests: one of seven.
fn dest(id: TimerId) -> u32 {
    1 + (id.as_u128() % 7) as u32
}

fn with_dest(id: TimerId) -> (TimerId, u32) {
    (id, dest(id))
}

fn filing(id: TimerId, fire: Time, track: u8, width: SlotWidth) -> Filing {
    Filing { id, fire, dest: dest(id), track, width, size: 10 }
}

/// Files a timer in a slot that its id implies.
fn file(catalog: &mut Catalog, id: TimerId) -> SlotKey {
    let mut turn = Placements::default();
    let place = catalog.place(filing(id, id.birth_due(), 0, id.birth_width()), &mut turn);
    assert!(place.is_implied);
    assert!(catalog.candidates(id).contains(&place.slot));
    place.slot
}

fn counts(catalog: &Catalog) -> Vec<u32> {
    catalog.slots.values().map(|entry| entry.timers).collect()
}

#[test]
fn timers_of_about_the_same_time_share_siblings_and_those_of_one_millisecond_spread() {
    let siblings = |fire: &dyn Fn(u64) -> u64| {
        let mut catalog = catalog();
        let all = (0..6_000).map(|n| file(&mut catalog, id(7_000 + fire(n), SlotWidth::Second, mix(n))));
        // Slots of the last hundred: an apply that files or settles them has to write so many.
        let last = all.skip(5_900).collect::<BTreeSet<_>>().len();
        assert!(counts(&catalog).iter().all(|n| *n <= FULL));
        last
    };
    assert!(siblings(&|n| n / 6) <= 30);
    assert!(siblings(&|_| 500) >= 40);
}

#[test]
fn nothing_that_a_client_chooses_makes_a_slot_overflow() {
    // All ids have the same cohort and low bits; the times are one millisecond, one second or one
    // day.
    type Choice = (&'static str, fn(u64) -> u64);
    let choices: [Choice; 3] =
        [("ms", |_| 40 * HOUR), ("second", |n| 40 * HOUR + n % 1_000), ("day", |n| DAY + n * 863 % DAY)];
    for width in SlotWidth::ALL {
        for (name, due) in choices {
            let mut catalog = catalog();
            for n in 0..20_000u64 {
                let id = id(due(n), width, (n << 20) & ((1 << 56) - 1));
                assert_eq!(id.cohort(), 0);
                file(&mut catalog, id);
            }
            let counts = counts(&catalog);
            assert!(counts.iter().all(|n| *n <= FULL), "{width:?}, {name}");
            assert_eq!(counts.iter().sum::<u32>(), 20_000);
        }
    }
}

#[test]
fn a_million_timers_of_one_second_spread_over_full_slots() {
    let mut catalog = catalog();
    let new = |n: u64| id(7_000 + n / 1_000, SlotWidth::Second, mix(n));
    for n in 0..1_000_000 {
        let mut turn = Placements::default();
        catalog.place(filing(new(n), new(n).birth_due(), 0, SlotWidth::Second), &mut turn);
    }
    let counts = counts(&catalog);
    assert!(counts.iter().all(|n| *n <= FULL));
    // The last level has eight times as many siblings as the one before, and is as yet half full.
    assert!(counts.len() < 3 * 1_000_000 / FULL as usize, "{}", counts.len());
    let places = |from: u64| (from..from + 1_000).map(|n| catalog.candidates(new(n)).len()).sum::<usize>();
    // Of a stored timer one; of a new one none, but for its fingerprint in six candidates.
    let (stored, fresh) = (places(500_000), places(1_000_000));
    assert!((1_000..1_020).contains(&stored) && fresh < 20, "{stored} {fresh}");
}

#[test]
fn a_batch_over_a_day_writes_to_a_few_dozen_hashes() {
    // One of 64 partitions of ten million timers, in batches of 128.
    let (mut catalog, cohorts) = (catalog(), Cohorts::new(7));
    let (mut batches, mut hashes) = (0, 0);
    for batch in 0..10_000_000u64 / 64 / 128 {
        let new = |n: u64| id(DAY + mix(n) % DAY, SlotWidth::Hour, mix(n + (1 << 40)));
        let batch = (batch * 128..(batch + 1) * 128).map(|n| file(&mut catalog, cohorts.assign(new(n))));
        hashes += batch.collect::<BTreeSet<_>>().len();
        batches += 1;
    }
    assert!((24..36).contains(&(hashes / batches)), "{}", hashes / batches);
    // The slots are as full as they can be.
    assert!(catalog.slots().all(|slot| slot.width == SlotWidth::Hour));
    assert!(counts(&catalog).len() < 1_400, "{}", counts(&catalog).len());
}

#[test]
fn an_id_that_nobody_filed_is_looked_for_only_where_ids_are_not_known() {
    let mut catalog = catalog();
    let new = |n: u64| id(7_000, SlotWidth::Second, mix(n));
    (0..5_000).for_each(|n| _ = file(&mut catalog, new(n)));
    let places = |catalog: &Catalog| (5_000..6_000).map(|n| catalog.candidates(new(n)).len()).sum::<usize>();
    assert!(places(&catalog) < 50);
    // After an acquisition all are unknown.
    let mut later = self::catalog();
    catalog.slots().for_each(|slot| later.found(slot, IndexKey::Zset, 100));
    let first = SlotKey { track: 0, width: SlotWidth::Second, start: 7_000, sibling: 0 };
    assert!(later.has(first) && !later.knows_ids(first) && places(&later) >= 3_000);
    let before = places(&later);
    later.read_ids(first, [new(5_000)].into_iter());
    assert!(later.knows_ids(first) && places(&later) < before - 900);
    // A slot whose ids are known comes first.
    assert_eq!(later.candidates(new(5_000)).first(), Some(&first));
    later.removed(first, [with_dest(new(5_000))]);
    assert!(!later.has(first));
}

#[test]
fn a_slot_is_forgotten_with_its_last_timer_and_an_unknown_one_is_not() {
    let mut catalog = catalog();
    let timers: Vec<TimerId> = (0..3).map(|n| id(7_000, SlotWidth::Second, mix(n))).collect();
    let slot = file(&mut catalog, timers[0]);
    file(&mut catalog, timers[1]);
    catalog.removed(slot, [with_dest(timers[1])]);
    assert_eq!(catalog.candidates(timers[1]), []);
    catalog.removed(slot, [with_dest(timers[0])]);
    assert!(!catalog.has(slot) && catalog.step(Time::from_ms(9_000)) == LoadStep::Done);
    catalog.found(slot, IndexKey::List, 200);
    catalog.removed(slot, (0..200).map(|n| with_dest(id(7_000, SlotWidth::Second, mix(n)))));
    assert!(catalog.has(slot) && !catalog.knows_ids(slot));
    assert_eq!(catalog.index(slot), IndexKey::List);
    catalog.emptied(slot);
    assert!(!catalog.has(slot));
}

#[test]
fn what_an_abandoned_apply_would_have_filed_is_nowhere() {
    let mut catalog = catalog();
    let stored = file(&mut catalog, id(7_000, SlotWidth::Second, 1));
    let (mut turn, before) = (Placements::default(), format!("{catalog:?}"));
    for n in 2..300 {
        let id = id(7_000, SlotWidth::Second, mix(n));
        catalog.place(filing(id, id.birth_due(), 0, SlotWidth::Second), &mut turn);
    }
    let new: BTreeSet<SlotKey> = turn.new_slots().iter().copied().collect();
    assert_eq!(new, catalog.slots().filter(|slot| *slot != stored).collect());
    catalog.abandon(turn);
    assert_eq!(format!("{catalog:?}"), before);
}

#[test]
fn a_rescheduled_or_retried_timer_is_not_at_its_birth_position() {
    let (mut catalog, mut turn) = (catalog(), Placements::default());
    let id = id(HOUR, SlotWidth::Minute, 1);
    let mut is_implied = |fire, track, width| {
        catalog.place(filing(id, Time::from_ms(fire), track, width), &mut turn).is_implied
    };
    assert!(is_implied(HOUR, 0, SlotWidth::Minute) && is_implied(HOUR, 0, SlotWidth::Second));
    assert!(!is_implied(HOUR + 1, 0, SlotWidth::Minute));
    assert!(!is_implied(HOUR, 1, SlotWidth::Second));
    assert!(!is_implied(HOUR, 0, SlotWidth::Day));
}

#[test]
fn a_dense_wide_slot_is_split_before_it_begins_and_takes_nothing_in_from_then_on() {
    let mut catalog = catalog();
    let new = |n: u64| id(10 * HOUR + n * 7_919 % HOUR, SlotWidth::Hour, mix(n));
    let all: Vec<_> = (0..2_000).map(|n| (new(n), file(&mut catalog, new(n)))).collect();
    let at = |ms: u64| Time::from_ms(10 * HOUR - LEAD_MS - 1 + ms);
    assert_eq!(catalog.split_ahead(at(0)), []);
    assert_eq!(file(&mut catalog, new(2_000)).width, SlotWidth::Hour);
    let first = catalog.split_ahead(at(1));
    assert_eq!(first.len(), DENSE as usize);
    assert_eq!(catalog.split_width(first[0]), SlotWidth::Minute);
    assert_eq!(file(&mut catalog, new(2_001)).width, SlotWidth::Minute);
    // Once it is dense no more, the rest is loaded whole.
    while let Some(slot) = catalog.split_ahead(at(1)).first().copied() {
        let ids: Vec<_> = all.iter().filter(|(_, in_slot)| *in_slot == slot).map(|(id, _)| *id).collect();
        catalog.removed(slot, ids.into_iter().map(with_dest));
        if catalog.has(slot) {
            // The one that was filed later.
            catalog.emptied(slot);
        }
    }
    let (left, _) = catalog.contents((0, SlotWidth::Hour, 10 * HOUR));
    assert!((500..=640).contains(&left), "{left}");
    assert_eq!(file(&mut catalog, new(2_002)).width, SlotWidth::Hour);
    assert!(matches!(catalog.step(Time::from_ms(11 * HOUR)), LoadStep::Read(_)));
}

#[test]
fn a_step_is_bounded() {
    let mut catalog = catalog();
    for n in 0..2_000 {
        file(&mut catalog, id(n * 50, SlotWidth::Second, mix(n)));
    }
    let LoadStep::Read(slots) = catalog.step(Time::from_ms(HOUR)) else { panic!("nothing to read") };
    let sizes = slots.iter().map(|slot| catalog.slots[slot].timers);
    assert!(sizes.sum::<u32>() <= STEP_TIMERS && slots.len() <= STEP_SLOTS && slots.len() > 1);
    let LoadStep::Read(slots) = catalog.step(Time::from_ms(1_000)) else { panic!("nothing to read") };
    assert!(slots.iter().all(|slot| slot.start <= 1_000));
}

/// A partition as the store has it, and its owner's knowledge of it.
#[derive(Debug)]
struct World {
    catalog: Catalog,
    /// By slot: ids, when they fire, and whether they are at a slot that their id implies.
    stored: BTreeMap<SlotKey, BTreeMap<TimerId, (u64, bool)>>,
    indexes: BTreeMap<SlotKey, IndexKey>,
    /// Timers that the owner has in memory.
    loaded: BTreeSet<TimerId>,
    next_id: u64,
}

#[derive(Clone, Debug)]
enum Act {
    File { due: u64, spread: u64, width: usize, track: u8, count: u64, is_applied: bool },
    Remove { nth: usize, count: usize },
    Empty { nth: usize },
    ReadIds { nth: usize },
    Load { until: u64, steps: usize },
    SplitAhead,
    Unload { beyond: u64 },
    Acquire,
}

fn act() -> impl Strategy<Value = Act> {
    let time = 0u64..3 * HOUR;
    let count = prop_oneof![3 => 1u64..200, 1 => 700u64..1_500];
    let file = (time.clone(), prop_oneof![Just(1), Just(5_000), Just(HOUR)], 0usize..4, 0u8..2, count);
    prop_oneof![
        6 => (file, prop_oneof![9 => Just(true), 1 => Just(false)]).prop_map(
            |((due, spread, width, track, count), is_applied)| Act::File {
                due, spread, width, track, count, is_applied,
            }
        ),
        2 => (any::<usize>(), 1usize..200).prop_map(|(nth, count)| Act::Remove { nth, count }),
        1 => any::<usize>().prop_map(|nth| Act::Empty { nth }),
        1 => any::<usize>().prop_map(|nth| Act::ReadIds { nth }),
        4 => (time.clone(), 1usize..6).prop_map(|(until, steps)| Act::Load { until, steps }),
        2 => Just(Act::SplitAhead),
        1 => time.prop_map(|beyond| Act::Unload { beyond }),
        1 => Just(Act::Acquire),
    ]
}

impl World {
    fn new() -> Self {
        let (stored, indexes, loaded) = Default::default();
        Self { catalog: catalog(), stored, indexes, loaded, next_id: 0 }
    }

    /// Files timers; those that the owner files at or below its horizon it has in memory.
    fn put(&mut self, timers: &[(TimerId, u64)], track: u8, width: SlotWidth, is_applied: bool) {
        let mut turn = Placements::default();
        let horizon = self.catalog.next;
        let place = |(id, fire): &(TimerId, u64)| {
            let place = self.catalog.place(filing(*id, Time::from_ms(*fire), track, width), &mut turn);
            (*id, *fire, place)
        };
        let places: Vec<_> = timers.iter().map(place).collect();
        if !is_applied {
            return self.catalog.abandon(turn);
        }
        for slot in turn.new_slots() {
            assert_eq!(self.indexes.insert(*slot, self.catalog.index(*slot)), None);
        }
        for (id, fire, place) in places {
            assert!(self.indexes.contains_key(&place.slot));
            self.stored.entry(place.slot).or_default().insert(id, (fire, place.is_implied));
            if fire < horizon {
                self.loaded.insert(id);
            }
        }
    }

    fn take_out(&mut self, slot: SlotKey, ids: &[TimerId]) {
        let Some(content) = self.stored.get_mut(&slot) else { return };
        ids.iter().for_each(|id| _ = content.remove(id));
        let is_empty = content.is_empty();
        self.catalog.removed(slot, ids.iter().copied().map(with_dest));
        if is_empty {
            self.stored.remove(&slot);
            self.indexes.remove(&slot);
            self.catalog.emptied(slot);
        }
    }

    fn nth(&self, nth: usize) -> Option<SlotKey> {
        self.stored.keys().nth(nth % self.stored.len().max(1)).copied()
    }

    fn ids(&self, slot: SlotKey) -> Vec<TimerId> {
        self.stored.get(&slot).into_iter().flat_map(|content| content.keys().copied()).collect()
    }

    fn read(&mut self, slot: SlotKey) {
        let ids = self.ids(slot);
        if ids.is_empty() {
            self.indexes.remove(&slot);
        } else {
            self.indexes.insert(slot, IndexKey::Copy);
        }
        self.loaded.extend(&ids);
        self.catalog.read_whole(slot, ids.iter().copied(), ids.len() * 10);
        self.catalog.read_destinations(slot, ids.iter().map(|id| dest(*id)));
    }

    fn split(&mut self, slots: Vec<SlotKey>) {
        for from in slots {
            let content = self.stored.get(&from).cloned().unwrap_or_default();
            if content.is_empty() {
                self.read(from);
                continue;
            }
            let timers: Vec<_> = content.iter().map(|(id, (fire, _))| (*id, *fire)).collect();
            for some in timers.chunks(100) {
                let width = self.catalog.split_width(from);
                self.put(some, from.track, width, true);
                self.take_out(from, &some.iter().map(|(id, _)| *id).collect::<Vec<_>>());
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::File { due, spread, width, track, count, is_applied } => {
                let width = SlotWidth::ALL[width];
                let mut timers = Vec::new();
                for _ in 0..count {
                    self.next_id += 1;
                    let due = due + mix(self.next_id) % spread;
                    timers.push((id(due, width, mix(self.next_id << 1)), due));
                }
                self.put(&timers, track, width, is_applied);
            }
            Act::Remove { nth, count } => {
                let Some(slot) = self.nth(nth) else { return };
                let ids = self.ids(slot);
                self.take_out(slot, &ids[..count.min(ids.len())]);
            }
            Act::Empty { nth } => {
                let Some(slot) = self.nth(nth) else { return };
                let ids = self.ids(slot);
                self.take_out(slot, &ids);
            }
            Act::ReadIds { nth } => {
                let Some(slot) = self.nth(nth) else { return };
                self.catalog.read_ids(slot, self.ids(slot).into_iter());
            }
            Act::Load { until, steps } => {
                let before = self.catalog.horizon();
                for _ in 0..steps {
                    match self.catalog.step(Time::from_ms(until)) {
                        LoadStep::Read(slots) => slots.into_iter().for_each(|slot| self.read(slot)),
                        LoadStep::Split(slots) => {
                            assert!(!slots.is_empty());
                            self.split(slots);
                        }
                        LoadStep::Done => break,
                    }
                }
                self.catalog.advance(Time::from_ms(until));
                assert!(self.catalog.horizon() >= before);
            }
            Act::SplitAhead => {
                let slots = self.catalog.split_ahead(self.catalog.horizon());
                self.split(slots);
            }
            Act::Unload { beyond } => {
                for slot in self.catalog.unload(Time::from_ms(beyond)) {
                    self.indexes.insert(slot, IndexKey::List);
                    self.catalog.listed(slot);
                }
                let fires = self.stored.values().flatten();
                let gone: Vec<_> = fires.filter(|(_, (fire, _))| *fire > beyond).map(|(id, _)| *id).collect();
                gone.iter().for_each(|id| _ = self.loaded.remove(id));
            }
            Act::Acquire => {
                self.loaded.clear();
                self.catalog = catalog();
                for (slot, index) in &self.indexes {
                    let timers = self.stored.get(slot).map_or(0, BTreeMap::len) as u32;
                    self.catalog.found(*slot, *index, timers);
                }
            }
        }
    }

    /// Going on from slot to slot finds every slot that may have a later timer, once, in order.
    fn check_order(&self, from: u64) {
        let until = from + HOUR;
        for wanted in [Wanted::Any, Wanted::Only([1, 5].into())] {
            let mut found = Vec::new();
            loop {
                let (from, until) = (Time::from_ms(from), Time::from_ms(until));
                let next = self.catalog.from(from, until, &wanted, found.last().copied(), 3);
                if next.is_empty() {
                    break;
                }
                found.extend(next);
            }
            let reaches = |slot: &SlotKey| span(*slot).1 > from && span(*slot).0 <= until;
            let entries = self.catalog.slots.iter().filter(|(slot, _)| reaches(slot));
            let entries = entries.filter(|(_, entry)| entry.dests.may_have_of(&wanted));
            let mut expected: Vec<_> = entries.map(|(slot, _)| (span(*slot).0.max(from), *slot)).collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "from {from}, {wanted:?}");
        }
    }

    fn check(&self) {
        assert!(self.catalog.slots().eq(self.indexes.keys().copied()));
        for (slot, index) in &self.indexes {
            assert_eq!(self.catalog.index(*slot), *index, "{slot}");
        }
        for (slot, content) in &self.stored {
            let entry = &self.catalog.slots[slot];
            let len = content.len() as u32;
            assert!(entry.timers == len && len <= FULL, "{slot} has {len}: {entry:?}");
            if entry.dests.is_known() {
                assert_eq!(entry.dests, SlotCounts::of(content.keys().map(|id| dest(*id))), "{slot}");
            }
            for (id, (fire, is_implied)) in content {
                let is_there = || self.catalog.candidates(*id).contains(slot);
                assert!(!is_implied || is_there(), "{id} is in {slot}");
                let is_loaded = self.loaded.contains(id);
                assert!(is_loaded || *fire >= self.catalog.next, "{slot} has {fire} and is not loaded");
            }
        }
        let of_uncounted = |slot: &&SlotKey| !self.catalog.slots[*slot].dests.is_known();
        assert!(self.indexes.keys().filter(of_uncounted).eq(&self.catalog.uncounted));
        let mut totals = BTreeMap::<u32, [u64; 3]>::new();
        for (slot, entry) in &self.catalog.slots {
            for (dest, timers) in entry.dests.iter() {
                totals.entry(dest).or_default()[SlotKind::of(*slot) as usize] += u64::from(timers);
            }
        }
        assert_eq!(
            totals,
            (1..8).map(|dest| (dest, self.catalog.total(dest))).filter(|(_, n)| *n != [0; 3]).collect()
        );
        [0, HOUR, HOUR + 70_507].iter().for_each(|from| self.check_order(*from));
        for (need, slot) in &self.catalog.needs {
            assert_eq!(self.catalog.slots[slot].need, Some(*need));
            assert!(*need >= self.catalog.next);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// After any sequence of filing, refusing, removing, splitting, loading, unloading and
    /// acquiring: an id is looked for where it is, all timers at or below the horizon are in
    /// memory, every slot is in the index it is said to be, and none has more than a full one's
    /// timers.
    #[test]
    fn the_picture_is_true(acts in proptest::collection::vec(act(), 1..40)) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            world.check();
        }
    }
}
