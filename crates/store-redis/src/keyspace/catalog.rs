//! The owner's picture of the slots of its partition.
//!
//! Purpose: knows which slots there are, in which index, how full they are, fingerprints of the ids
//! in them, and how many timers of which destinations. From that it derives the slots in which an
//! id may be, the place of a timer, the slots to load next, up to when everything is loaded, the
//! slots in which a destination's next timers are, and how many it has.
//!
//! Invariants, whenever no write is under way:
//! - Every slot that has readable contents is in the picture, in the index in which it is.
//! - `need` of a slot is at or below the fire time of everything in it that the owner has not
//!   loaded or filed; nothing is needed before `next`. So the horizon is exact: see
//!   [`mtimer_store::Loaded`].
//! - The counts of a slot's destinations are exact, or there are none: then it is *uncounted*,
//!   until somebody reads it.
//!
//! A wide slot that has too much in it to be loaded at once is *dense*: it takes in nothing from
//! [`LEAD_MS`] before it begins, and its timers are moved to narrower slots, a few at a time. Those
//! are candidates of the same ids, so a timer in a slot that its id implies stays there.
//!
//! Not in here: timers, Redis, moved timers ([`super::fingerprints`]).

mod ahead;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use mtimer_types::{SlotWidth, Time, TimerId};

use super::fingerprints::Fingerprints;
use super::keys::{IndexKey, SlotKey};
use super::levels::level;
use super::place::Placed;
use super::secret::{KeyedHash, Secret};
use super::slot_counts::{SlotCounts, SlotKind, Totals};

/// Timers after which a slot is full. Redis keeps a hash of so many small values as a list-pack
/// (`hash-max-listpack-entries`, `-value`), which it searches from end to end.
pub(crate) const FULL: u32 = 128;
/// Bytes after which a slot is full: reading one stays below a millisecond.
const FULL_BYTES: u32 = 64 << 10;
/// Assumed bytes of a slot filled by a previous owner. So each takeover may add as many, until the
/// slot has [`FULL`] timers.
const FOUND_BYTES: u32 = FULL_BYTES / 2;
/// A wide slot with more than so many full siblings' contents is dense.
const DENSE: u64 = 5;
/// Splitting a dense slot starts this long before the slot does, ms: the largest takes thirteen
/// steps, and loads come every few seconds if they do not reach farther than usual.
const LEAD_MS: u64 = 120_000;
/// Timers a narrower slot should get at least when a wide one is split.
const SPLIT_DENSITY: u64 = 32;
/// Tracks: first deliveries and the retry tiers.
const TRACKS: u8 = mtimer_types::limits::MAX_RETRY_TIERS as u8 + 1;

/// Slots, timers and bytes of one step of a load, about.
const STEP_SLOTS: usize = 32;
const STEP_TIMERS: u32 = 384;
const STEP_BYTES: u32 = 256 << 10;

/// The next step of a load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoadStep {
    /// Read these slots whole and move them to the copy; then [`Catalog::read_whole`].
    Read(Vec<SlotKey>),
    /// Move the timers of these slots, siblings, to slots of [`Catalog::split_width`] or narrower.
    Split(Vec<SlotKey>),
    /// Everything that was asked for is loaded.
    Done,
}

/// A timer that is to be filed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filing {
    /// Which.
    pub(crate) id: TimerId,
    /// When it is to fire.
    pub(crate) fire: Time,
    /// The number of its destination.
    pub(crate) dest: u32,
    /// 0: first delivery, n: the n-th retry tier.
    pub(crate) track: u8,
    /// The widest slot that it may go to.
    pub(crate) width: SlotWidth,
    /// Bytes of its value.
    pub(crate) size: usize,
}

/// Where a timer is filed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    /// In this slot. It may be the one in which the timer is already.
    pub(crate) slot: SlotKey,
    /// It is one of those in which the timer is looked for, at the fire time that is in its id: it
    /// needs no entry in `moved`.
    pub(crate) is_implied: bool,
}

/// Timers and slots that one apply files, until its outcome is known: then they are dropped, or go
/// to [`Catalog::abandon`].
#[derive(Debug, Default)]
pub(crate) struct Placements {
    placed: Vec<PlacedIn>,
    new: Vec<SlotKey>,
}

#[derive(Debug)]
struct PlacedIn {
    slot: SlotKey,
    hash: KeyedHash,
    size: u32,
    dest: u32,
}

impl Placements {
    /// Slots that are in no index yet: their entries ([`Catalog::index`], with the slot's start as
    /// score) are written before their contents.
    pub(crate) fn new_slots(&self) -> &[SlotKey] {
        &self.new
    }
}

#[derive(Debug)]
struct Slot {
    /// The index in which it is, or is to be.
    index: IndexKey,
    timers: u32,
    bytes: u32,
    /// Earliest fire time, ms, of a timer that may not be loaded; `None`: all are.
    need: Option<u64>,
    ids: Fingerprints,
    /// Unknown: it is uncounted.
    dests: SlotCounts,
}

impl Slot {
    const fn new(index: IndexKey) -> Self {
        Self { index, timers: 0, bytes: 0, need: None, ids: Fingerprints::EMPTY, dests: SlotCounts::EMPTY }
    }

    const fn is_full(&self) -> bool {
        self.timers >= FULL || self.bytes >= FULL_BYTES
    }
}

/// See the module. Starts empty.
#[derive(Debug)]
pub(crate) struct Catalog {
    secret: Secret,
    slots: BTreeMap<SlotKey, Slot>,
    needs: BTreeSet<(u64, SlotKey)>,
    /// The first millisecond that is not loaded.
    next: u64,
    /// Dense slots that start up to here are being split.
    splitting: u64,
    /// Of the slots that are counted.
    totals: Totals,
    uncounted: BTreeSet<SlotKey>,
}

impl Catalog {
    pub(crate) fn new(secret: Secret) -> Self {
        let (slots, needs, totals, uncounted) = Default::default();
        Self { secret, slots, needs, next: 0, splitting: 0, totals, uncounted }
    }

    /// A slot was found in an index when the partition was acquired, with so many timers: any id
    /// may be in it.
    pub(crate) fn found(&mut self, slot: SlotKey, index: IndexKey, timers: u32) {
        let (bytes, ids) = (FOUND_BYTES, Fingerprints::UNKNOWN);
        let ids = if broken!(FoundSlotsTakenForEmpty) { Fingerprints::EMPTY } else { ids };
        self.slots.insert(slot, Slot { timers, bytes, ids, dests: SlotCounts::UNKNOWN, ..Slot::new(index) });
        self.uncounted.insert(slot);
        self.set_need(slot, Some(slot.start.max(self.next)));
    }

    /// All slots, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotKey> {
        self.slots.keys().copied()
    }

    /// Whether there is such a slot.
    #[cfg(test)]
    pub(crate) fn has(&self, slot: SlotKey) -> bool {
        self.slots.contains_key(&slot)
    }

    /// The index in which a slot is, or is to be.
    pub(crate) fn index(&self, slot: SlotKey) -> IndexKey {
        self.slots.get(&slot).map_or(self.new_index(slot), |entry| entry.index)
    }

    const fn new_index(&self, slot: SlotKey) -> IndexKey {
        match slot.track {
            _ if slot.start < self.next => IndexKey::Copy,
            0 => IndexKey::Zset,
            tier => IndexKey::Retry(tier),
        }
    }

    /// Whether every id in this slot is known.
    pub(crate) fn knows_ids(&self, slot: SlotKey) -> bool {
        self.slots.get(&slot).is_none_or(|entry| entry.ids.is_known())
    }

    /// The slots in which a timer without an entry in `moved` may be, most likely slot first.
    /// Mostly none for a new timer, and one for a stored one.
    pub(crate) fn candidates(&self, id: TimerId) -> Vec<SlotKey> {
        let timer = Placed { id, hash: self.secret.id(id), fire: id.birth_due() };
        let (mut likely, mut unknown) = (Vec::new(), Vec::new());
        for width in SlotWidth::ALL.into_iter().rev().filter(|width| *width <= id.birth_width()) {
            let levels = self.levels_in_use(timer, width);
            for slot in timer.candidates(0, width).take(levels) {
                match self.slots.get(&slot).map(|entry| &entry.ids) {
                    Some(ids) if !ids.is_known() => unknown.push(slot),
                    Some(ids) if ids.may_have(timer.hash) => likely.push(slot),
                    _ => {}
                }
            }
        }
        likely.append(&mut unknown);
        likely
    }

    /// Number of sibling levels in use.
    fn levels_in_use(&self, timer: Placed, width: SlotWidth) -> usize {
        let start = width.start_of(timer.fire).as_ms();
        let last = self.group((0, width, start)).next_back();
        last.map_or(0, |(slot, _)| level(width, slot.sibling) as usize + 1)
    }

    /// The place for a timer. It counts from now on, unless it is abandoned. A timer that is in a
    /// slot already is counted there until [`Catalog::removed`], also if that is the same slot.
    pub(crate) fn place(&mut self, filing: Filing, turn: &mut Placements) -> Placement {
        let Filing { id, fire, dest, track, width, size } = filing;
        let timer = Placed { id, hash: self.secret.id(id), fire };
        let slot = self.choose(timer, track, width);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        if !self.slots.contains_key(&slot) {
            self.slots.insert(slot, Slot::new(self.new_index(slot)));
            turn.new.push(slot);
        }
        turn.placed.push(PlacedIn { slot, hash: timer.hash, size, dest });
        self.add(slot, timer.hash, fire.as_ms(), size);
        if !broken!(DestinationsForgotten) {
            self.count(slot, dest);
        }
        let is_implied = track == 0 && fire == id.birth_due() && slot.width <= id.birth_width();
        Placement { slot, is_implied }
    }

    fn choose(&self, timer: Placed, track: u8, width: SlotWidth) -> SlotKey {
        let mut width = width;
        loop {
            let mut candidates = timer.candidates(track, width);
            let has_space = |slot: &SlotKey| self.slots.get(slot).is_none_or(|entry| !entry.is_full());
            let Some(narrower) = width.narrower() else {
                // The last level of a second takes in everything that is left.
                let mut last = SlotKey { track, width, start: 0, sibling: 0 };
                return candidates.inspect(|slot| last = *slot).find(has_space).unwrap_or(last);
            };
            if self.takes_in(track, width, timer.fire)
                && let Some(slot) = candidates.find(has_space)
            {
                return slot;
            }
            width = narrower;
        }
    }

    /// Whether a wide slot accepts new timers: not if it is loaded, or being split.
    fn takes_in(&self, track: u8, width: SlotWidth, fire: Time) -> bool {
        let start = width.start_of(fire).as_ms();
        start >= self.next && (start > self.splitting || !self.is_dense((track, width, start)))
    }

    fn add(&mut self, slot: SlotKey, id: KeyedHash, fire: u64, size: u32) {
        let next = self.next;
        let Some(entry) = self.slots.get_mut(&slot) else { return };
        entry.timers += 1;
        entry.bytes = entry.bytes.saturating_add(size);
        entry.ids.add(id);
        let need = match entry.index {
            // The owner remembers a timer that it files before the horizon.
            IndexKey::Copy if fire < next => entry.need,
            IndexKey::Copy => Some(entry.need.map_or(fire, |need| need.min(fire))),
            IndexKey::Zset | IndexKey::Retry(_) | IndexKey::List => Some(slot.start.max(next)),
        };
        self.set_need(slot, need);
    }

    /// Undoes placements whose apply failed.
    pub(crate) fn abandon(&mut self, turn: Placements) {
        for PlacedIn { slot, hash, size, dest } in turn.placed {
            self.take_out(slot, [(hash, dest)], Some(size));
        }
        for slot in turn.new {
            if self.slots.get(&slot).is_some_and(|entry| entry.timers == 0) {
                self.emptied(slot);
            }
        }
    }

    /// Removes timers, each with the number of its destination. Forgets the slot with its last
    /// readable timer if all its ids are known: only damaged records keep it in its index.
    pub(crate) fn removed(&mut self, slot: SlotKey, timers: impl IntoIterator<Item = (TimerId, u32)>) {
        let secret = self.secret;
        self.take_out(slot, timers.into_iter().map(|(id, dest)| (secret.id(id), dest)), None);
        if self.slots.get(&slot).is_some_and(|entry| entry.timers == 0 && entry.ids.is_known()) {
            self.emptied(slot);
        }
    }

    /// `size`: of each; `None`: the average.
    fn take_out(
        &mut self,
        slot: SlotKey,
        timers: impl IntoIterator<Item = (KeyedHash, u32)>,
        size: Option<u32>,
    ) {
        for (id, dest) in timers {
            let Some(entry) = self.slots.get_mut(&slot) else { return };
            let size = size.unwrap_or(entry.bytes / entry.timers.max(1));
            entry.timers = entry.timers.saturating_sub(1);
            entry.bytes = entry.bytes.saturating_sub(size);
            entry.ids.remove(id);
            self.discount(slot, dest);
        }
    }

    /// One more timer of a destination is in a slot.
    fn count(&mut self, slot: SlotKey, dest: u32) {
        if self.slots.get_mut(&slot).is_some_and(|entry| entry.dests.add(dest)) {
            self.totals.add(SlotKind::of(slot), [(dest, 1)]);
        }
    }

    /// One timer of a destination has left a slot.
    fn discount(&mut self, slot: SlotKey, dest: u32) {
        let Some(entry) = self.slots.get_mut(&slot).filter(|entry| entry.dests.is_known()) else { return };
        if entry.dests.remove(dest) {
            self.totals.subtract(SlotKind::of(slot), [(dest, 1)]);
        } else {
            // A leftover of an owner before.
            self.uncount(slot);
        }
    }

    /// Nothing is known of a slot's destinations any more.
    pub(crate) fn uncount(&mut self, slot: SlotKey) {
        self.set_counts(slot, SlotCounts::UNKNOWN);
    }

    /// A slot was read whole: it has a timer of each of these destinations, and no others.
    pub(crate) fn read_destinations(&mut self, slot: SlotKey, dests: impl Iterator<Item = u32>) {
        self.set_counts(slot, SlotCounts::of(dests));
    }

    fn set_counts(&mut self, slot: SlotKey, counts: SlotCounts) {
        let Some(entry) = self.slots.get_mut(&slot) else { return };
        let is_known = counts.is_known();
        let before = std::mem::replace(&mut entry.dests, counts);
        self.totals.subtract(SlotKind::of(slot), before.iter());
        self.totals.add(SlotKind::of(slot), entry.dests.iter());
        if is_known {
            self.uncounted.remove(&slot);
        } else {
            self.uncounted.insert(slot);
        }
    }

    /// The first uncounted slots, at most so many.
    pub(crate) fn uncounted_slots(&self, limit: usize) -> Vec<SlotKey> {
        self.uncounted.iter().take(limit).copied().collect()
    }

    /// Whether slots are uncounted.
    pub(crate) fn has_uncounted(&self) -> bool {
        !self.uncounted.is_empty()
    }

    /// Timers in uncounted slots.
    pub(crate) fn uncounted(&self) -> u64 {
        let timers = |slot| self.slots.get(slot).map_or(0, |entry| u64::from(entry.timers));
        self.uncounted.iter().map(timers).sum()
    }

    /// The timers of a destination, by its number, in slots that are counted, by [`SlotKind`].
    pub(crate) fn total(&self, dest: u32) -> [u64; 3] {
        self.totals.of(dest)
    }

    /// A slot is empty and in no index.
    pub(crate) fn emptied(&mut self, slot: SlotKey) {
        self.set_need(slot, None);
        if let Some(entry) = self.slots.remove(&slot) {
            self.totals.subtract(SlotKind::of(slot), entry.dests.iter());
        }
        self.uncounted.remove(&slot);
    }

    /// A slot has these ids, and no others (HKEYS).
    pub(crate) fn read_ids(&mut self, slot: SlotKey, ids: impl ExactSizeIterator<Item = TimerId>) {
        let secret = self.secret;
        if let Some(entry) = self.slots.get_mut(&slot) {
            entry.timers = ids.len() as u32;
            entry.ids = ids.map(|id| secret.id(id)).collect();
        }
    }

    /// A slot was read, has these ids and so many bytes of values, and is in the copy. One without
    /// ids is forgotten; only damaged records keep it in its index.
    pub(crate) fn read_whole(
        &mut self,
        slot: SlotKey,
        ids: impl ExactSizeIterator<Item = TimerId>,
        bytes: usize,
    ) {
        if ids.len() == 0 {
            return self.emptied(slot);
        }
        self.read_ids(slot, ids);
        if let Some(entry) = self.slots.get_mut(&slot) {
            (entry.index, entry.bytes) = (IndexKey::Copy, u32::try_from(bytes).unwrap_or(u32::MAX));
            self.set_need(slot, None);
        }
    }

    /// Chooses the next step of a load up to `until`: a bounded number of timers and bytes.
    pub(crate) fn step(&self, until: Time) -> LoadStep {
        let mut read: Vec<SlotKey> = Vec::new();
        let (mut timers, mut bytes) = (0, 0);
        for (_, slot) in self.needs.iter().take_while(|(need, _)| *need <= until.as_ms()) {
            if self.is_dense(window(*slot)) {
                if read.is_empty() {
                    return LoadStep::Split(self.to_split(window(*slot)));
                }
                break;
            }
            let size = self.slots.get(slot).map_or((0, 0), |entry| (entry.timers, entry.bytes));
            (timers, bytes) = (timers + size.0, bytes + size.1);
            let is_enough = timers > STEP_TIMERS || bytes > STEP_BYTES || read.len() >= STEP_SLOTS;
            if is_enough && !read.is_empty() {
                break;
            }
            read.push(*slot);
        }
        if read.is_empty() { LoadStep::Done } else { LoadStep::Read(read) }
    }

    /// Siblings of a dense slot that begins soon behind `until`, to be split next, so that little
    /// is left of it when it is needed; none if there is no such slot.
    pub(crate) fn split_ahead(&mut self, until: Time) -> Vec<SlotKey> {
        self.splitting = self.splitting.max(until.as_ms().saturating_add(LEAD_MS));
        let soon = self.wide_windows(self.splitting).filter(|window| self.is_dense(*window));
        let parts = soon.map(|window| self.to_split(window)).filter(|parts| !parts.is_empty());
        // A day that begins goes into its hours before they are split in turn.
        parts.min_by_key(|parts| (parts[0].start, Reverse(parts[0].width))).unwrap_or_default()
    }

    /// Wide slots that start at `start` or before.
    fn wide_windows(&self, start: u64) -> impl Iterator<Item = SiblingWindow> {
        let wide = SlotWidth::ALL.into_iter().filter(|width| *width != SlotWidth::Second);
        let all = wide.flat_map(|width| (0..TRACKS).map(move |track| (track, width)));
        let slots = all.flat_map(move |(track, width)| {
            let at = |start, sibling| SlotKey { track, width, start, sibling };
            self.slots.range(at(0, 0)..=at(start, u32::MAX)).map(|(slot, _)| window(*slot))
        });
        let mut last = None;
        slots.filter(move |window| last.replace(*window) != Some(*window))
    }

    fn to_split(&self, window: SiblingWindow) -> Vec<SlotKey> {
        // Not the loaded ones: timers that could not be moved out of them stay there.
        let needed = self.group(window).filter(|(_, entry)| entry.need.is_some());
        needed.map(|(slot, _)| slot).take(DENSE as usize).collect()
    }

    /// The width into which the timers of a dense slot go, at most.
    pub(crate) fn split_width(&self, slot: SlotKey) -> SlotWidth {
        let (timers, _) = self.contents(window(slot));
        let is_dense = |w: &SlotWidth| timers / (slot.width.ms() / w.ms()) >= SPLIT_DENSITY;
        let narrower = SlotWidth::ALL.into_iter().filter(|w| *w < slot.width);
        narrower.clone().find(is_dense).or_else(|| slot.width.narrower()).unwrap_or(SlotWidth::Second)
    }

    /// Notes that a load up to `until` has ended. The horizon advances as far as everything is
    /// loaded.
    pub(crate) fn advance(&mut self, until: Time) {
        let needed = self.needs.first().map_or(u64::MAX, |(need, _)| *need);
        self.next = self.next.max(needed.min(until.as_ms().saturating_add(1)));
    }

    /// Everything up to here is loaded.
    pub(crate) const fn horizon(&self) -> Time {
        Time::from_ms(self.next.saturating_sub(1))
    }

    /// Notes that the owner has forgotten the timers that fire after `beyond`. Returns the slots to
    /// move from the copy to the list; then [`Catalog::listed`].
    pub(crate) fn unload(&mut self, beyond: Time) -> Vec<SlotKey> {
        self.next = self.next.min(beyond.as_ms().saturating_add(1));
        let next = self.next;
        let affected =
            self.slots.iter().filter(|(slot, entry)| entry.index == IndexKey::Copy && slot.end() > next);
        let affected: Vec<SlotKey> = affected.map(|(slot, _)| *slot).collect();
        affected.iter().for_each(|slot| self.set_need(*slot, Some(slot.start.max(next))));
        affected.into_iter().filter(|slot| slot.start >= next).collect()
    }

    /// A slot was moved to the list.
    pub(crate) fn listed(&mut self, slot: SlotKey) {
        if let Some(entry) = self.slots.get_mut(&slot) {
            entry.index = IndexKey::List;
        }
    }

    fn set_need(&mut self, slot: SlotKey, need: Option<u64>) {
        let Some(entry) = self.slots.get_mut(&slot).filter(|entry| entry.need != need) else { return };
        if let Some(old) = std::mem::replace(&mut entry.need, need) {
            self.needs.remove(&(old, slot));
        }
        if let Some(need) = need {
            self.needs.insert((need, slot));
        }
    }

    fn group(&self, of: SiblingWindow) -> impl DoubleEndedIterator<Item = (SlotKey, &Slot)> {
        let at = |sibling| SlotKey { track: of.0, width: of.1, start: of.2, sibling };
        self.slots.range(at(0)..=at(u32::MAX)).map(|(slot, entry)| (*slot, entry))
    }

    /// Timers and bytes of all siblings.
    fn contents(&self, of: SiblingWindow) -> (u64, u64) {
        let add =
            |sum: (u64, u64), entry: &Slot| (sum.0 + u64::from(entry.timers), sum.1 + u64::from(entry.bytes));
        self.group(of).fold((0, 0), |sum, (_, entry)| add(sum, entry))
    }

    fn is_dense(&self, of: SiblingWindow) -> bool {
        if of.1 == SlotWidth::Second {
            return false;
        }
        let (timers, bytes) = self.contents(of);
        timers > DENSE * u64::from(FULL) || bytes > DENSE * u64::from(FULL_BYTES)
    }
}

/// Track, width and start, which siblings have in common.
type SiblingWindow = (u8, SlotWidth, u64);

const fn window(slot: SlotKey) -> SiblingWindow {
    (slot.track, slot.width, slot.start)
}

#[cfg(test)]
mod tests;
