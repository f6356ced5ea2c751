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
//! A slot of a second that has grown past [`FULL`] gets a level of siblings more (see [`crate::siblings`]). New timers go to the highest
//! level, so an id is in one of few places, and no timer has to be moved when a slot grows. In which of those places it cannot be its
//! prints tell (see [`crate::prints`]). Wide slots have a room of their own (see [`crate::wide`]); one that is dense is split into narrower
//! slots, a little at a time, from [`LEAD`] before it begins.
//!
//! Not in here: timers, Redis.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use mtimer_types::{SlotWidth, Time, TimerId};

use crate::keys::{IndexKey, SlotKey};
use crate::prints::Prints;
use crate::siblings::{MAX_LEVEL, level, sibling};
use crate::wide::{Fill, SPLIT_ABOVE, WideKey, WideSlots, wide_key};

/// Timers after which a slot gets more siblings: the listpack's sweet spot.
pub(crate) const FULL: u32 = 128;
/// Bytes after which a slot gets more siblings: reading one stays below a millisecond.
const FULL_BYTES: u32 = 64 << 10;
/// What a slot is taken to hold whose length is not known yet.
const UNKNOWN: u32 = FULL / 2;
/// How long before a dense wide slot is loaded its splitting begins, ms: the largest takes thirteen steps, and loads come every few seconds if
/// they do not reach farther than usual.
const LEAD: u64 = 120_000;
/// Timers a narrower slot should get at least when a wide one is split.
const SPLIT_DENSITY: u64 = 32;

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
    /// Of the ids that may be in it. (Of those in a wide slot the ledger knows.)
    prints: Prints,
}

impl Entry {
    const fn fill(&self) -> Fill {
        match (self.count, self.bytes) {
            (count, bytes) if count < FULL / 2 && bytes < FULL_BYTES / 2 => Fill::Roomy,
            (count, bytes) if count < FULL && bytes < FULL_BYTES => Fill::Some,
            (count, bytes) if count < 2 * FULL && bytes < 2 * FULL_BYTES => Fill::Full,
            _ => Fill::Overfull,
        }
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
    wide: WideSlots,
    needs: BTreeSet<(u64, SlotKey)>,
    /// The first millisecond that is not loaded.
    next: u64,
    /// Dense wide slots that start up to here are being split.
    splitting: u64,
}

const fn index_of(room: Room, track: u8) -> IndexKey {
    match room {
        Room::List => IndexKey::List,
        Room::Copy => IndexKey::Copy,
        Room::Waiting if track == 0 => IndexKey::Zset,
        Room::Waiting => IndexKey::Retry(track),
    }
}

impl Mirror {
    /// A slot found in an index at acquisition: nothing of it is loaded, its length is unknown.
    pub(crate) fn found(&mut self, slot: SlotKey, room: Room) {
        let (count, bytes) = (UNKNOWN, FULL_BYTES / 2);
        let entry =
            Entry { room, count, bytes, need: None, last_add: 0, stored: true, prints: Prints::unknown() };
        self.entries.insert(slot, entry);
        if slot.width != SlotWidth::Second {
            self.wide.found(slot);
        }
        self.set_need(slot, Some(slot.start));
    }

    fn remove(&mut self, slot: SlotKey) {
        self.set_need(slot, None);
        self.entries.remove(&slot);
        self.wide.emptied(slot);
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

    /// Whether the slot is one of several of its width and start.
    pub(crate) fn has_siblings(&self, slot: SlotKey) -> bool {
        self.group(slot.track, slot.width, slot.start).nth(1).is_some()
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
        let (mut places, mut unlikely) = self.wide.births(id);
        places.extend(self.second_births(id));
        places.append(&mut unlikely);
        places
    }

    /// In how many slots a timer that nobody has filed will have to be looked for.
    pub(crate) fn searches(&self, id: TimerId) -> usize {
        self.wide.searches(id) + self.second_births(id).count()
    }

    /// The slots of its second in which a timer may be.
    fn second_births(&self, id: TimerId) -> impl Iterator<Item = SlotKey> {
        let due = id.birth_due();
        let start = SlotWidth::Second.start_of(due).as_ms();
        let levels = self.top(0, start).map_or(0, |top| top + 1);
        let at = move |level| Self::at(0, start, level, id, due);
        let may_have = move |slot: &SlotKey| self.entries.get(slot).is_some_and(|e| e.prints.may_have(id));
        (0..levels).rev().map(at).filter(may_have)
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
        let slot = loop {
            let start = width.start_of(fire).as_ms();
            match width.narrower() {
                Some(narrower) => match self.open(id, (track, width, start)) {
                    Some(sibling) => break SlotKey { track, width, start, sibling },
                    None => width = narrower,
                },
                None => break self.place_by_time(id, fire, track, start),
            }
        };
        self.add(slot, id, fire.as_ms(), size, no);
        slot
    }

    /// The sibling of a wide slot that a timer goes to, if the slot still takes anything in.
    fn open(&mut self, id: TimerId, key: WideKey) -> Option<u32> {
        let (.., start) = key;
        // What is being loaded does not: it would have to be read again. What is being split neither.
        if start < self.next || (start <= self.splitting && self.wide.is_dense(key)) {
            return None;
        }
        self.wide.open(key, id, |slot| self.entries.get(&slot).map_or(Fill::Roomy, Entry::fill))
    }

    /// The sibling of a second's slot.
    fn place_by_time(&self, id: TimerId, fire: Time, track: u8, start: u64) -> SlotKey {
        let top = self.top(track, start).unwrap_or(0);
        let slot = Self::at(track, start, top, id, fire);
        if top < MAX_LEVEL && self.entries.get(&slot).is_some_and(|entry| entry.fill() >= Fill::Full) {
            return Self::at(track, start, top + 1, id, fire);
        }
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
            // Nobody is born into a retry tier.
            prints: if slot.track == 0 { Prints::default() } else { Prints::unknown() },
        });
        if slot.width == SlotWidth::Second {
            entry.prints.note(id);
        } else {
            self.wide.filed(slot, id);
        }
        entry.count += 1;
        entry.bytes = entry.bytes.saturating_add(u32::try_from(size).unwrap_or(u32::MAX));
        entry.last_add = entry.last_add.max(no);
        let need = match entry.room {
            Room::Copy if fire < next => entry.need,
            Room::Copy => Some(entry.need.map_or(fire, |n| n.min(fire))),
            Room::Waiting | Room::List => Some(slot.start.max(next)),
        };
        if need != entry.need {
            self.set_need(slot, need);
        }
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
        if slot.width == SlotWidth::Second {
            return self.entries.get(&slot).is_none_or(|entry| entry.prints.are_known());
        }
        self.wide.knows_ids(slot)
    }

    /// Slots whose ids are to be asked for before the timer is looked for.
    pub(crate) fn strange(&mut self, id: TimerId) -> Vec<SlotKey> {
        self.wide.strange(id)
    }

    /// The ids that a slot had before the script `no`.
    pub(crate) fn ids(&mut self, slot: SlotKey, ids: impl Iterator<Item = TimerId>, no: u64) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        // From then on others may have been filed there.
        let are_all = entry.last_add < no;
        match (slot.width, are_all) {
            (SlotWidth::Second, true) => entry.prints = ids.collect(),
            (SlotWidth::Second, false) => {}
            (_, true) => self.wide.told(slot, ids),
            (_, false) => self.wide.told_too_late(slot),
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
            self.remove(slot);
            return;
        }
        if length < entry.count {
            entry.bytes = (u64::from(entry.bytes) * u64::from(length) / u64::from(entry.count)) as u32;
        }
        entry.count = length;
        if entry.fill() == Fill::Roomy {
            self.wide.has_room(slot);
        }
    }

    /// The script `no` is done, and has not put what was placed in this slot for it anywhere there.
    pub(crate) fn withdraw(&mut self, slot: SlotKey, size: usize, no: u64) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        entry.count = entry.count.saturating_sub(1);
        entry.bytes = entry.bytes.saturating_sub(u32::try_from(size).unwrap_or(u32::MAX));
        // A later script may be about to fill it.
        if !entry.stored && entry.last_add <= no {
            self.remove(slot);
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
            if self.is_dense(*slot) {
                if read.is_empty() {
                    return Step::Split(self.to_split(*slot));
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

    /// What of the dense wide slots that begin soon behind `until` is to be split next, so that little is left of them when they are needed.
    /// They take nothing in for as long as they are dense.
    pub(crate) fn split_ahead(&mut self, until: Time) -> Option<Vec<SlotKey>> {
        self.splitting = self.splitting.max(until.as_ms() + LEAD);
        let soon = self.wide.dense_until(self.splitting);
        let parts = soon.map(|slot| self.to_split(slot)).filter(|parts| !parts.is_empty());
        // A day that begins goes into its hours before they are split in turn.
        parts.min_by_key(|parts| (parts[0].start, Reverse(parts[0].width)))
    }

    fn to_split(&self, slot: SlotKey) -> Vec<SlotKey> {
        // Not those that are in the copy already: what cannot be moved out of them stays there.
        let needed = |s: &SlotKey| self.entries.get(s).is_some_and(|e| e.need.is_some());
        self.group(slot.track, slot.width, slot.start).filter(needed).take(SPLIT_ABOVE).collect()
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
            self.remove(slot);
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

    fn is_dense(&self, slot: SlotKey) -> bool {
        self.wide.is_dense(wide_key(slot))
    }

    /// The highest level of siblings that a second's slot has.
    fn top(&self, track: u8, start: u64) -> Option<u32> {
        let at = |sibling| SlotKey { track, width: SlotWidth::Second, start, sibling };
        self.entries.range(at(0)..=at(u32::MAX)).next_back().map(|(slot, _)| level(slot.sibling))
    }

    fn at(track: u8, start: u64, level: u32, id: TimerId, fire: Time) -> SlotKey {
        let sibling = sibling(level, id.random(), fire.as_ms() - start);
        SlotKey { track, width: SlotWidth::Second, start, sibling }
    }
}

#[cfg(test)]
mod tests;
