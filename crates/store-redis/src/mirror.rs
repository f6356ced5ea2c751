//! An owner's picture of its partition's slot indexes.
//!
//! Purpose: which slots there are, roughly how full, which are in the wheel; from that the place of a new timer, the
//! places where an id may be, what to load next and how far everything is loaded.
//!
//! Invariant: every slot that has contents is in the picture. A slot that no script has told of is in it for only as
//! long as a script is under way that may fill it: refused schedules leave nothing behind.
//! `need` of a slot is at or below the fire time of everything in it that was not loaded; nothing below `next` is
//! needed. So the horizon is exact: see [`mtimer_store::Loaded`].
//!
//! ## Siblings
//!
//! A slot that has grown past [`FULL`] gets a level of siblings more: 1, 4, 32, 256, ... (see [`bits`]), chosen by the
//! time at which a timer fires and the lowest bits of its id's random part (see [`time_bits`]). New timers go to the highest level, so an id is in one of few places, and no
//! timer has to be moved when a slot grows.
//!
//! ## Prints
//!
//! Most schedules are of timers that are nowhere yet, and Redis would have to search each of those places for them. So of the
//! slots that it has seen from their first timer on the owner keeps a print of every id that it filed there ([`print`], two bytes):
//! an id whose print is not among them is not there, for certain. Prints go when the slot does.
//!
//! Not in here: timers, Redis.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_types::{SlotWidth, Time, TimerId};

use crate::keys::{IndexKey, SlotKey};

/// Timers after which a slot gets more siblings: the listpack's sweet spot.
pub(crate) const FULL: u32 = 128;
/// Bytes after which a slot gets more siblings: reading one stays below a millisecond.
const FULL_BYTES: u32 = 64 << 10;
/// What a slot is taken to hold whose length is not known yet.
const UNKNOWN: u32 = FULL / 2;
/// Levels of siblings: the 131,072 siblings of the sixth take sixteen million timers of one second of one partition.
const MAX_LEVEL: u32 = 6;
/// A wide slot with more siblings is split instead of being loaded whole.
const SPLIT_ABOVE: usize = 5;
/// Timers a narrower slot should get at least when a wide one is split.
const SPLIT_DENSITY: u64 = 32;

/// Prints that are kept of a slot: of one whose timers come and go until it has had more they are not known any more.
const MAX_PRINTS: usize = 4 * FULL as usize;

/// Slots, timers and bytes that one load script reads, about.
const STEP_SLOTS: usize = 32;
const STEP_TIMERS: u32 = 384;
const STEP_BYTES: u32 = 256 << 10;

/// Where a slot is indexed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// In `zset`, or `retry<n>` for a retry tier.
    Waiting,
    /// In `list`.
    List,
    /// In `copy`.
    Copy,
}

#[derive(Clone, Debug)]
struct Entry {
    room: Room,
    count: u32,
    bytes: u32,
    /// Before this time nothing in it needs loading; `None`: nothing in it does.
    need: Option<u64>,
    /// The last script that was made to put something in.
    last_add: u64,
    /// The last script that told of it left something in it.
    stored: bool,
    /// The prints of all ids that may be in it; `None`: they are not known, or not asked for (nobody is born into a retry tier).
    prints: Option<Vec<u16>>,
}

impl Entry {
    fn note(&mut self, id: TimerId) {
        if let Some(prints) = self.prints.as_mut().filter(|prints| prints.len() < MAX_PRINTS) {
            prints.push(print(id));
        } else {
            self.prints = None;
        }
    }

    /// Whether the timer may be in it.
    fn may_hold(&self, id: TimerId) -> bool {
        self.prints.as_ref().is_none_or(|prints| prints.contains(&print(id)))
    }
}

/// What a load does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Read these slots whole.
    Read(Vec<SlotKey>),
    /// Split these siblings of one wide slot.
    Split(Vec<SlotKey>),
    /// Everything that was asked for is loaded.
    Done,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    entries: BTreeMap<SlotKey, Entry>,
    needs: BTreeSet<(u64, SlotKey)>,
    /// The first millisecond that is not loaded.
    next: u64,
}

const fn index_of(room: Room, track: u8) -> IndexKey {
    match room {
        Room::List => IndexKey::List,
        Room::Copy => IndexKey::Copy,
        Room::Waiting if track == 0 => IndexKey::Zset,
        Room::Waiting => IndexKey::Retry(track),
    }
}

/// Bits that choose a sibling of a level. Four siblings are what a wide slot grows to before it is split; from then on
/// a script that looks for an id has few levels to look at.
const fn bits(level: u32) -> u32 {
    if level == 0 { 0 } else { 3 * level - 1 }
}

/// The first sibling of a level: behind 1 + 4 + 32 + ... of the levels below.
const fn first_of(level: u32) -> u32 {
    // From the second level on each has eight times as many: a geometric sum.
    if level == 0 { 0 } else { 1 + 4 * ((1 << (3 * (level - 1))) - 1) / 7 }
}

/// Of the bits that choose a sibling, those that are taken from the fire time: timers of about the same time, which are
/// mostly filed and settled together, share siblings. The others are random: timers of the same millisecond spread.
const fn time_bits(level: u32) -> u32 {
    match level {
        0 | 1 => 0,
        2 => 2,
        3 => 4,
        _ => 5,
    }
}

/// The sibling of a level that an id belongs to that fires `at` ms behind the start of a slot `width` ms wide.
const fn sibling(level: u32, random: u64, at: u64, width: u64) -> u32 {
    let (time, random_bits) = ((at << time_bits(level)) / width, bits(level) - time_bits(level));
    first_of(level) + ((time << random_bits) | (random & ((1 << random_bits) - 1))) as u32
}

/// The level of a sibling.
const fn level(sibling: u32) -> u32 {
    let mut level = 0;
    while level < MAX_LEVEL && sibling >= first_of(level + 1) {
        level += 1;
    }
    level
}

/// What is kept of an id: not the bits alone that choose a sibling, which those of one slot have in common.
const fn print(id: TimerId) -> u16 {
    let (random, due) = (id.random(), id.birth_due().as_ms());
    (random ^ random >> 16 ^ random >> 32 ^ random >> 48 ^ due) as u16
}

impl Mirror {
    /// A slot found in an index at acquisition: nothing of it is loaded, its length is unknown.
    pub(crate) fn found(&mut self, slot: SlotKey, room: Room) {
        let (count, bytes) = (UNKNOWN, FULL_BYTES / 2);
        let entry = Entry { room, count, bytes, need: None, last_add: 0, stored: true, prints: None };
        self.entries.insert(slot, entry);
        self.set_need(slot, Some(slot.start));
    }

    /// Whether the slot is known.
    pub(crate) fn has(&self, slot: SlotKey) -> bool {
        self.entries.contains_key(&slot)
    }

    /// Bytes of a timer in this slot, on the average.
    pub(crate) fn mean_size(&self, slot: SlotKey) -> Option<usize> {
        self.entries.get(&slot).map(|e| (e.bytes / e.count.max(1)) as usize)
    }

    /// Where the slot is indexed. A slot that is not known is taken to wait.
    pub(crate) fn index(&self, slot: SlotKey) -> IndexKey {
        index_of(self.entries.get(&slot).map_or(Room::Waiting, |e| e.room), slot.track)
    }

    /// All slots, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotKey> {
        self.entries.keys().copied()
    }

    /// Everything up to here is loaded.
    pub(crate) fn horizon(&self) -> Time {
        Time::from_ms(self.next.saturating_sub(1))
    }

    /// Slots where a timer may be that was never moved, the likeliest first. Of a timer that nobody has filed, mostly none.
    pub(crate) fn birth_places(&self, id: TimerId) -> Vec<SlotKey> {
        let (due, width) = (id.birth_due(), id.birth_width());
        let mut places = Vec::new();
        for width in SlotWidth::ALL.into_iter().filter(|w| *w <= width).rev() {
            let start = width.start_of(due).as_ms();
            let Some(top) = self.top(0, width, start) else { continue };
            places.extend((0..=top).rev().map(|l| Self::at(0, width, start, l, id, due)));
        }
        places.retain(|slot| self.entries.get(slot).is_some_and(|entry| entry.may_hold(id)));
        places
    }

    /// The place for a timer that the script `no` files at `fire`, and takes note of it.
    pub(crate) fn place(
        &mut self,
        id: TimerId,
        fire: Time,
        track: u8,
        width: SlotWidth,
        size: usize,
        no: u64,
    ) -> SlotKey {
        let mut width = width;
        while let Some(narrower) = width.narrower() {
            // What is being loaded takes nothing in any more: it would have to be read again. What is dense already
            // neither: it would only have to be split.
            let start = width.start_of(fire).as_ms();
            let closed = start < self.next || self.group_is_dense(track, width, start);
            if !closed {
                break;
            }
            width = narrower;
        }
        let start = width.start_of(fire).as_ms();
        let top = self.top(track, width, start).unwrap_or(0);
        let mut slot = Self::at(track, width, start, top, id, fire);
        let full = |e: &Entry| e.count >= FULL || e.bytes >= FULL_BYTES;
        if top < MAX_LEVEL && self.entries.get(&slot).is_some_and(full) {
            slot = Self::at(track, width, start, top + 1, id, fire);
        }
        self.add(slot, id, fire.as_ms(), size, no);
        slot
    }

    fn add(&mut self, slot: SlotKey, id: TimerId, fire: u64, size: usize, no: u64) {
        let next = self.next;
        let entry = self.entries.entry(slot).or_insert(Entry {
            room: if slot.start < next { Room::Copy } else { Room::Waiting },
            count: 0,
            bytes: 0,
            need: None,
            last_add: no,
            stored: false,
            prints: (slot.track == 0).then(Vec::new),
        });
        entry.note(id);
        entry.count += 1;
        entry.bytes = entry.bytes.saturating_add(u32::try_from(size).unwrap_or(u32::MAX));
        entry.last_add = entry.last_add.max(no);
        let need = match entry.room {
            Room::Copy if fire < next => entry.need,
            Room::Copy => Some(entry.need.map_or(fire, |n| n.min(fire))),
            Room::Waiting | Room::List => Some(slot.start.max(next)),
        };
        self.set_need(slot, need);
    }

    /// A slot that a script asked for: it exists.
    pub(crate) fn asked(&mut self, slot: SlotKey) {
        if !self.entries.contains_key(&slot) {
            let room = if slot.start < self.next { Room::Copy } else { Room::Waiting };
            self.found(slot, room);
            self.set_need(slot, Some(slot.start.max(self.next)));
        }
    }

    /// Whether it is known which ids a slot has.
    pub(crate) fn knows_ids(&self, slot: SlotKey) -> bool {
        self.entries.get(&slot).is_none_or(|entry| entry.prints.is_some())
    }

    /// The ids that a slot had before the script `no`.
    pub(crate) fn ids(&mut self, slot: SlotKey, ids: impl Iterator<Item = TimerId>, no: u64) {
        // From then on others may have been filed there.
        if let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.last_add < no) {
            entry.prints = Some(ids.map(print).collect());
        }
    }

    /// The length of a slot when the script `no` was done.
    pub(crate) fn length(&mut self, slot: SlotKey, length: u32, no: u64) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        entry.stored = length > 0;
        if entry.last_add > no {
            return;
        }
        if length == 0 {
            self.set_need(slot, None);
            self.entries.remove(&slot);
        } else {
            if length < entry.count {
                entry.bytes = (u64::from(entry.bytes) * u64::from(length) / u64::from(entry.count)) as u32;
            }
            entry.count = length;
        }
    }

    /// The script `no` is done, and has not put what was placed in this slot for it anywhere there.
    pub(crate) fn withdraw(&mut self, slot: SlotKey, size: usize, no: u64) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        entry.count = entry.count.saturating_sub(1);
        entry.bytes = entry.bytes.saturating_sub(u32::try_from(size).unwrap_or(u32::MAX));
        // A later script may be about to fill it.
        if !entry.stored && entry.last_add <= no {
            self.set_need(slot, None);
            self.entries.remove(&slot);
        }
    }

    /// What to load next, up to `until`: a bounded number of timers and bytes in one step.
    pub(crate) fn step(&self, until: Time) -> Step {
        let mut read: Vec<SlotKey> = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        for (need, slot) in &self.needs {
            if *need > until.as_ms() {
                break;
            }
            if slot.width != SlotWidth::Second && self.group_is_dense(slot.track, slot.width, slot.start) {
                if read.is_empty() {
                    // Not those that are in the copy already: what cannot be moved out of them stays there.
                    let needed = |s: &SlotKey| self.entries.get(s).is_some_and(|e| e.need.is_some());
                    let group = self.group(slot.track, slot.width, slot.start).filter(needed);
                    return Step::Split(group.take(SPLIT_ABOVE).collect());
                }
                break;
            }
            let size = self.entries.get(slot).map_or((0, 0), |e| (e.count, e.bytes));
            (count, bytes) = (count + size.0, bytes + size.1);
            let more = count > STEP_TIMERS || bytes > STEP_BYTES || read.len() >= STEP_SLOTS;
            if more && !read.is_empty() {
                break;
            }
            read.push(*slot);
        }
        if read.is_empty() { Step::Done } else { Step::Read(read) }
    }

    /// The width into which the timers of a dense wide slot go.
    pub(crate) fn split_width(&self, slot: SlotKey) -> SlotWidth {
        let group = self.group(slot.track, slot.width, slot.start);
        let count: u64 = group.filter_map(|s| self.entries.get(&s)).map(|e| u64::from(e.count)).sum();
        let dense = |w: &SlotWidth| count / (slot.width.ms() / w.ms()) >= SPLIT_DENSITY;
        let narrower = SlotWidth::ALL.into_iter().filter(|w| *w < slot.width);
        narrower.clone().find(dense).or_else(|| slot.width.narrower()).unwrap_or(SlotWidth::Second)
    }

    /// A slot was read whole and is in the copy.
    pub(crate) fn loaded(&mut self, slot: SlotKey, count: u32, bytes: u32) {
        if count == 0 {
            self.set_need(slot, None);
            self.entries.remove(&slot);
        } else if let Some(entry) = self.entries.get_mut(&slot) {
            (entry.room, entry.count, entry.bytes, entry.stored) = (Room::Copy, count, bytes, true);
            self.set_need(slot, None);
        }
    }

    /// A load up to `until` has done what it could.
    pub(crate) fn advance(&mut self, until: Time) {
        let needed = self.needs.first().map_or(u64::MAX, |(need, _)| *need);
        self.next = self.next.max(needed.min(until.as_ms() + 1));
    }

    /// The owner has forgotten what fires after `beyond`. Slots to move from the copy to the list.
    pub(crate) fn unload(&mut self, beyond: Time) -> Vec<SlotKey> {
        self.next = self.next.min(beyond.as_ms() + 1);
        let next = self.next;
        let affected: Vec<_> = self
            .entries
            .iter()
            .filter(|(s, e)| e.room == Room::Copy && s.end() > next)
            .map(|(s, _)| *s)
            .collect();
        let mut moving = Vec::new();
        for slot in affected {
            if slot.start >= next {
                moving.push(slot);
            }
            self.set_need(slot, Some(slot.start.max(next)));
        }
        moving
    }

    /// A slot was moved to the list.
    pub(crate) fn listed(&mut self, slot: SlotKey) {
        if let Some(entry) = self.entries.get_mut(&slot) {
            entry.room = Room::List;
        }
    }

    fn set_need(&mut self, slot: SlotKey, need: Option<u64>) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        if let Some(old) = std::mem::replace(&mut entry.need, need) {
            self.needs.remove(&(old, slot));
        }
        if let Some(need) = need {
            self.needs.insert((need, slot));
        }
    }

    fn group(&self, track: u8, width: SlotWidth, start: u64) -> impl Iterator<Item = SlotKey> {
        let at = |sibling| SlotKey { track, width, start, sibling };
        self.entries.range(at(0)..=at(u32::MAX)).map(|(slot, _)| *slot)
    }

    fn group_is_dense(&self, track: u8, width: SlotWidth, start: u64) -> bool {
        self.group(track, width, start).take(SPLIT_ABOVE + 1).count() > SPLIT_ABOVE
    }

    /// The highest level of siblings that a slot has.
    fn top(&self, track: u8, width: SlotWidth, start: u64) -> Option<u32> {
        let at = |sibling| SlotKey { track, width, start, sibling };
        self.entries.range(at(0)..=at(u32::MAX)).next_back().map(|(slot, _)| level(slot.sibling))
    }

    fn at(track: u8, width: SlotWidth, start: u64, level: u32, id: TimerId, fire: Time) -> SlotKey {
        let sibling = sibling(level, id.random(), fire.as_ms() - start, width.ms());
        SlotKey { track, width, start, sibling }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::PartitionId;
    use proptest::prelude::*;

    use super::*;

    fn id(due: u64, width: SlotWidth, random: u64) -> TimerId {
        TimerId::with_width(Time::from_ms(due), width, PartitionId(0), random)
    }

    #[test]
    fn siblings_know_their_level() {
        assert_eq!([first_of(0), first_of(1), first_of(2), first_of(3)], [0, 1, 5, 37]);
        for l in 0..=MAX_LEVEL {
            assert_eq!(level(first_of(l)), l);
            assert_eq!(level(sibling(l, u64::MAX, 999, 1_000)), l);
            assert_eq!(sibling(l, u64::MAX, 999, 1_000) + 1, first_of(l + 1));
            assert_eq!(sibling(l, 0, 0, 1_000), first_of(l));
        }
    }

    #[test]
    fn timers_of_about_the_same_time_share_siblings_and_those_of_one_millisecond_spread() {
        let siblings = |fire: &dyn Fn(u64) -> u64| {
            let mut mirror = Mirror::default();
            let mut filed = Vec::new();
            for n in 0..6_000u64 {
                let id = id(7_000 + fire(n), SlotWidth::Second, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
                filed.push(mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, n));
            }
            assert!(mirror.entries.values().all(|e| e.count <= FULL));
            // Of the last hundred: what a script that files or settles them has to write.
            filed[5_900..].iter().collect::<BTreeSet<_>>().len()
        };
        assert!(siblings(&|n| n / 6) <= 20);
        assert!(siblings(&|_| 500) >= 40);
    }

    #[test]
    fn a_slot_that_fills_up_gets_siblings_and_stays_findable() {
        let mut mirror = Mirror::default();
        for n in 0..5_000u64 {
            let id = id(7_000, SlotWidth::Second, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
            let slot = mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, n);
            assert!(mirror.birth_places(id).contains(&slot));
        }
        assert!(mirror.entries.values().all(|e| e.count <= FULL));
        assert!(mirror.slots().count() > 40);
    }

    #[test]
    fn an_id_that_nobody_filed_is_looked_for_only_where_ids_are_not_known() {
        let mut mirror = Mirror::default();
        let new = |n: u64| id(7_000, SlotWidth::Second, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
        for n in 0..5_000 {
            mirror.place(new(n), new(n).birth_due(), 0, SlotWidth::Second, 10, n);
        }
        // One print in 65,536 is another's, and a slot has up to 128.
        let places =
            |mirror: &Mirror| (5_000..6_000).map(|n| mirror.birth_places(new(n)).len()).sum::<usize>();
        assert!(places(&mirror) < 50);
        let first = SlotKey { track: 0, width: SlotWidth::Second, start: 7_000, sibling: 0 };
        mirror.found(first, Room::Waiting);
        assert!(!mirror.knows_ids(first) && places(&mirror) >= 1_000);
        // A later script may have filed something there.
        mirror.place(new(6_000), new(6_000).birth_due(), 0, SlotWidth::Minute, 10, 6_000);
        let wide = mirror.birth_places(TimerId::with_width(
            new(6_000).birth_due(),
            SlotWidth::Minute,
            PartitionId(0),
            new(6_000).random(),
        ));
        mirror.found(wide[0], Room::Waiting);
        mirror.add(wide[0], new(6_000), 7_000, 10, 6_001);
        mirror.ids(wide[0], std::iter::empty(), 6_001);
        assert!(!mirror.knows_ids(wide[0]));
        mirror.ids(first, std::iter::once(new(5_000)), 6_001);
        assert!(mirror.knows_ids(first) && places(&mirror) < 50);
        assert!(mirror.birth_places(new(5_000)).contains(&first));
    }

    #[test]
    fn a_slot_whose_timers_come_and_go_for_long_has_no_endless_list_of_them() {
        let mut mirror = Mirror::default();
        let slot = |mirror: &mut Mirror, n: u64| {
            let id = id(7_000, SlotWidth::Second, n);
            let slot = mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, n);
            mirror.length(slot, 1, n);
            slot
        };
        let one = slot(&mut mirror, 0);
        assert!((1..MAX_PRINTS as u64).all(|n| slot(&mut mirror, n) == one) && mirror.knows_ids(one));
        assert!(slot(&mut mirror, MAX_PRINTS as u64) == one && !mirror.knows_ids(one));
    }

    #[test]
    fn a_wide_slot_that_is_dense_takes_nothing_in_any_more() {
        let mut mirror = Mirror::default();
        for n in 0..2_000u64 {
            let id = id(3_600_000 + n, SlotWidth::Hour, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
            let slot = mirror.place(id, id.birth_due(), 0, SlotWidth::Hour, 10, n);
            assert!(mirror.birth_places(id).contains(&slot));
        }
        let wide = mirror.group(0, SlotWidth::Hour, 3_600_000).count();
        assert_eq!(wide, SPLIT_ABOVE + 1);
    }

    /// What scripts do, and become.
    #[derive(Clone, Debug)]
    enum Script {
        /// It files timers: due times, and random parts.
        File(Vec<(u64, u64)>),
        /// The first of those under way is done, or refused.
        Done { applied: bool },
        /// Everything in the slot of a timer goes.
        Empty { timer: usize },
        /// The ids of the slot of a timer are told.
        Tell { timer: usize },
    }

    fn script() -> impl Strategy<Value = Script> {
        let timers = proptest::collection::vec((5_000u64..7_000, 0u64..4), 1..200);
        prop_oneof![
            3 => timers.prop_map(Script::File),
            3 => any::<bool>().prop_map(|applied| Script::Done { applied }),
            1 => (0usize..1_000).prop_map(|timer| Script::Empty { timer }),
            1 => (0usize..1_000).prop_map(|timer| Script::Tell { timer }),
        ]
    }

    proptest! {
        /// Whatever is filed, refused, emptied and told: an id is looked for where it is, and where it may come to be.
        #[test]
        fn no_timer_is_passed_over(scripts in proptest::collection::vec(script(), 1..40), unknown in any::<bool>()) {
            let mut mirror = Mirror::default();
            let mut stored: BTreeMap<SlotKey, BTreeSet<TimerId>> = BTreeMap::new();
            let mut under_way: std::collections::VecDeque<(u64, Vec<(SlotKey, TimerId)>)> = Default::default();
            if unknown {
                for start in [5_000, 6_000] {
                    let slot = SlotKey { track: 0, width: SlotWidth::Second, start, sibling: 0 };
                    let old = (0..100).map(|n| id(start + n, SlotWidth::Second, 1 << 20 | n));
                    stored.entry(slot).or_default().extend(old);
                    mirror.found(slot, Room::Waiting);
                }
            }
            for (no, script) in (1..).zip(scripts) {
                let nth = |stored: &BTreeMap<SlotKey, BTreeSet<TimerId>>, n: usize| {
                    let all = stored.iter().flat_map(|(slot, ids)| ids.iter().map(|_| *slot));
                    all.collect::<Vec<_>>().get(n).copied()
                };
                match script {
                    Script::File(timers) => {
                        let ids: BTreeSet<_> = timers
                            .into_iter()
                            .enumerate()
                            .map(|(n, (due, random))| id(due, SlotWidth::Second, no << 40 | (n as u64) << 2 | random))
                            .collect();
                        let place = |id| (mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, no), id);
                        under_way.push_back((no, ids.into_iter().map(place).collect()));
                    }
                    Script::Done { applied } => {
                        let Some((no, placed)) = under_way.pop_front() else { continue };
                        for (slot, id) in placed {
                            if applied {
                                stored.entry(slot).or_default().insert(id);
                                mirror.length(slot, stored[&slot].len() as u32, no);
                            } else {
                                mirror.withdraw(slot, 10, no);
                            }
                        }
                    }
                    // What empties or tells comes behind all that is under way: here it waits until nothing is.
                    Script::Empty { timer } if under_way.is_empty() => {
                        let Some(slot) = nth(&stored, timer) else { continue };
                        stored.remove(&slot);
                        mirror.length(slot, 0, no);
                    }
                    Script::Tell { timer } if under_way.is_empty() => {
                        let Some(slot) = nth(&stored, timer) else { continue };
                        mirror.ids(slot, stored[&slot].iter().copied(), no);
                    }
                    Script::Empty { .. } | Script::Tell { .. } => {}
                }
                if no % 4 > 0 {
                    continue;
                }
                let coming = under_way.iter().flat_map(|(_, placed)| placed.iter().copied());
                let there = stored.iter().flat_map(|(slot, ids)| ids.iter().map(|id| (*slot, *id)));
                for (slot, id) in coming.chain(there) {
                    prop_assert!(mirror.birth_places(id).contains(&slot), "{id} is in {slot}");
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        File { fire: u64, width: usize, track: u8 },
        Load { until: u64, steps: usize },
        Unload { beyond: u64 },
    }

    fn act() -> impl Strategy<Value = Act> {
        let time = 0u64..400_000;
        prop_oneof![
            4 => (time.clone(), 0usize..4, 0u8..2).prop_map(|(fire, width, track)| Act::File { fire, width, track }),
            2 => (time.clone(), 1usize..4).prop_map(|(until, steps)| Act::Load { until, steps }),
            1 => time.prop_map(|beyond| Act::Unload { beyond }),
        ]
    }

    proptest! {
        /// Whatever is filed, loaded and unloaded: what is at or below the horizon is in the wheel.
        #[test]
        fn the_horizon_is_exact(acts in proptest::collection::vec(act(), 1..60)) {
            let mut mirror = Mirror::default();
            let mut stored: BTreeMap<SlotKey, Vec<u64>> = BTreeMap::new();
            // Fire times of everything, and whether the owner has it.
            let mut wheel: BTreeMap<(SlotKey, u64), bool> = BTreeMap::new();
            for (no, act) in acts.into_iter().enumerate() {
                match act {
                    Act::File { fire, width, track } => {
                        let id = TimerId::from_u128(no as u128);
                        let at = Time::from_ms(fire);
                        let slot = mirror.place(id, at, track, SlotWidth::ALL[width], 10, no as u64);
                        stored.entry(slot).or_default().push(fire);
                        let own = fire < mirror.next;
                        let known = wheel.entry((slot, fire)).or_insert(own);
                        *known &= own;
                    }
                    Act::Load { until, steps } => {
                        let before = mirror.horizon();
                        for _ in 0..steps {
                            let Step::Read(slots) = mirror.step(Time::from_ms(until)) else { break };
                            for slot in slots {
                                let content = stored.get(&slot).cloned().unwrap_or_default();
                                wheel.extend(content.iter().map(|fire| ((slot, *fire), true)));
                                mirror.loaded(slot, content.len() as u32, 10);
                            }
                        }
                        mirror.advance(Time::from_ms(until));
                        prop_assert!(mirror.horizon() >= before);
                    }
                    Act::Unload { beyond } => {
                        for slot in mirror.unload(Time::from_ms(beyond)) {
                            mirror.listed(slot);
                        }
                        wheel.iter_mut().for_each(|((_, fire), known)| *known &= *fire <= beyond);
                    }
                }
                for ((slot, fire), known) in &wheel {
                    prop_assert!(*known || *fire >= mirror.next, "{slot} has {fire}, loaded is up to {}", mirror.next);
                }
            }
        }
    }
}
