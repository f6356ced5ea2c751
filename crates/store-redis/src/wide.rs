//! Wide slots, those of a minute, an hour or a day: which siblings they have, which of them is being filled, where in them an id may be.
//!
//! A wide slot's siblings are filled one after another, in the order in which timers arrive: what is filed over a day in batches shares
//! slots so, however many timers the day has. In which of them an id may be its ledger tells (see [`crate::ledger`]); if too many are not
//! known, as after a takeover, their ids are asked for first.
//!
//! Not in here: how full siblings are, what is loaded ([`crate::mirror`]).

use std::collections::{BTreeMap, BTreeSet, btree_map};

use mtimer_types::{SlotWidth, TimerId};

use crate::keys::SlotKey;
use crate::ledger::{Ledger, SIBLINGS};

/// A wide slot with more siblings is split instead of being loaded whole, so many of them at a time.
pub(crate) const SPLIT_ABOVE: usize = 5;
/// Siblings of a wide slot that are not known and would have to be searched one by one: if there are more their ids are asked for first.
pub(crate) const STRANGE: u32 = 8;

/// How full a sibling is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fill {
    /// It is not there, or many have left it again.
    Roomy,
    Some,
    /// It takes in no others.
    Full,
    /// Nor those back that it has had before.
    Overfull,
}

#[derive(Debug, Default)]
struct Wide {
    /// Those that are there, a bit each.
    siblings: u64,
    /// The one that is being filled; `None`: all are full.
    open: Option<u32>,
    ledger: Ledger,
    /// The ids of those that are not known were asked for, and will be told.
    asked: bool,
}

/// Track, width, start.
pub(crate) type WideKey = (u8, SlotWidth, u64);

pub(crate) const fn wide_key(slot: SlotKey) -> WideKey {
    (slot.track, slot.width, slot.start)
}

const fn at((track, width, start): WideKey, sibling: u32) -> SlotKey {
    SlotKey { track, width, start, sibling }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WideSlots {
    wide: BTreeMap<WideKey, Wide>,
    /// Those with many siblings whose ids are not known and were not asked for.
    strange: BTreeSet<WideKey>,
}

impl WideSlots {
    /// A sibling is there, and any id may be in it.
    pub(crate) fn found(&mut self, slot: SlotKey) {
        let wide = self.wide.entry(wide_key(slot)).or_default();
        wide.siblings |= 1 << slot.sibling;
        // What was filled last.
        wide.open = wide.open.max(Some(slot.sibling));
        wide.ledger.lose(slot.sibling);
        self.wonder(slot);
    }

    /// The id may be in this sibling from now on.
    pub(crate) fn filed(&mut self, slot: SlotKey, id: TimerId) {
        let wide = self.wide.entry(wide_key(slot)).or_default();
        wide.siblings |= 1 << slot.sibling;
        wide.open = wide.open.or(Some(slot.sibling));
        // Nobody is born into a retry tier.
        if slot.track == 0 && !wide.ledger.note(slot.sibling, id) {
            wide.asked = false;
            self.wonder(slot);
        }
    }

    fn wonder(&mut self, slot: SlotKey) {
        let unknown = self.wide.get(&wide_key(slot)).map_or(0, |wide| wide.ledger.unknown().count_ones());
        if slot.track == 0 && unknown > STRANGE {
            self.strange.insert(wide_key(slot));
        }
    }

    /// A sibling is not there any more.
    pub(crate) fn emptied(&mut self, slot: SlotKey) {
        let btree_map::Entry::Occupied(mut found) = self.wide.entry(wide_key(slot)) else { return };
        let wide = found.get_mut();
        wide.siblings &= !(1 << slot.sibling);
        wide.ledger.forget(slot.sibling);
        wide.open = wide.open.or(Some(slot.sibling));
        if wide.siblings == 0 {
            found.remove();
            self.strange.remove(&wide_key(slot));
        }
    }

    /// Many have left this sibling.
    pub(crate) fn has_room(&mut self, slot: SlotKey) {
        if let Some(wide) = self.wide.get_mut(&wide_key(slot)) {
            wide.open = wide.open.or(Some(slot.sibling));
        }
    }

    /// The sibling that a timer goes to: the one that has it already if this is a repeat, else the one that is being filled. `None`: the
    /// slot is full.
    pub(crate) fn open(&mut self, key: WideKey, id: TimerId, fill: impl Fn(SlotKey) -> Fill) -> Option<u32> {
        let Some(wide) = self.wide.get_mut(&key) else { return Some(0) };
        let fill = |sibling: &u32| fill(at(key, *sibling));
        // It may have been elsewhere since, and the sibling been filled with others.
        let had = bits(wide.ledger.likely(id) & wide.siblings).find(|had| fill(had) < Fill::Overfull);
        if had.is_some() {
            return had;
        }
        let takes = |open: &u32| fill(open) < Fill::Full;
        let next = || (0..SIBLINGS).find(|sibling| fill(sibling) == Fill::Roomy);
        wide.open = wide.open.and_then(|open| Some(open).filter(takes).or_else(next));
        wide.open
    }

    /// Siblings that almost certainly have a timer which was never moved, and those that may have any.
    pub(crate) fn births(&self, id: TimerId) -> (Vec<SlotKey>, Vec<SlotKey>) {
        let (mut likely, mut unknown) = (Vec::new(), Vec::new());
        for (key, wide) in self.births_of(id) {
            likely.extend(bits(wide.ledger.likely(id) & wide.siblings).map(|sibling| at(key, sibling)));
            unknown.extend(bits(wide.ledger.unknown() & wide.siblings).map(|sibling| at(key, sibling)));
        }
        (likely, unknown)
    }

    /// In how many siblings a timer that nobody has filed will have to be looked for.
    pub(crate) fn searches(&self, id: TimerId) -> usize {
        let not_asked = self.births_of(id).filter(|(_, wide)| !wide.asked);
        not_asked.map(|(_, wide)| wide.ledger.unknown().count_ones() as usize).sum()
    }

    /// The wide slots in which a timer may have been filed at birth, the widest first.
    fn births_of(&self, id: TimerId) -> impl Iterator<Item = (WideKey, &Wide)> {
        birth_keys(id).rev().filter_map(|key| self.wide.get(&key).map(|wide| (key, wide)))
    }

    /// Whether it is known which ids this sibling has.
    pub(crate) fn knows_ids(&self, slot: SlotKey) -> bool {
        self.wide.get(&wide_key(slot)).is_none_or(|wide| wide.ledger.unknown() >> slot.sibling & 1 == 0)
    }

    /// Siblings whose ids are to be asked for before the timer is looked for: else they would have to be searched one by one, for each
    /// timer anew. Of each wide slot once, until some of it are unknown anew.
    pub(crate) fn strange(&mut self, id: TimerId) -> Vec<SlotKey> {
        let mut slots = Vec::new();
        for key in birth_keys(id) {
            if self.strange.remove(&key)
                && let Some(wide) = self.wide.get_mut(&key)
            {
                wide.asked = true;
                slots.extend(bits(wide.ledger.unknown()).map(|sibling| at(key, sibling)));
            }
        }
        slots
    }

    /// The ids of a sibling, and no others.
    pub(crate) fn told(&mut self, slot: SlotKey, ids: impl Iterator<Item = TimerId>) {
        if let Some(wide) = self.wide.get_mut(&wide_key(slot)) {
            wide.ledger.tell(slot.sibling, ids);
        }
    }

    /// The ids of a sibling are out of date.
    pub(crate) fn told_too_late(&mut self, slot: SlotKey) {
        if let Some(wide) = self.wide.get_mut(&wide_key(slot)) {
            wide.asked = false;
            self.wonder(slot);
        }
    }

    /// Whether it is split instead of being loaded.
    pub(crate) fn is_dense(&self, key: WideKey) -> bool {
        self.wide.get(&key).is_some_and(Wide::is_dense)
    }

    /// Those that are dense and start up to here, each by its first sibling.
    pub(crate) fn dense_until(&self, start: u64) -> impl Iterator<Item = SlotKey> {
        let soon = self.wide.iter().filter(move |(key, wide)| key.2 <= start && wide.is_dense());
        soon.map(|(key, _)| at(*key, 0))
    }
}

impl Wide {
    const fn is_dense(&self) -> bool {
        self.siblings.count_ones() as usize > SPLIT_ABOVE
    }
}

/// The wide slots in which a timer may have been filed at birth.
fn birth_keys(id: TimerId) -> impl DoubleEndedIterator<Item = WideKey> {
    let widths = SlotWidth::ALL.into_iter().filter(move |w| *w <= id.birth_width());
    widths.map(move |width| (0, width, width.start_of(id.birth_due()).as_ms()))
}

/// The numbers of the bits that are set.
fn bits(mut of: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (of != 0).then(|| of.trailing_zeros())?;
        of &= of - 1;
        Some(bit)
    })
}
