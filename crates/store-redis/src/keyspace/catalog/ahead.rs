//! The slots by when their timers fire: for lists, and for forecasts.

use mtimer_types::{SlotWidth, Time};

use super::super::keys::SlotKey;
use super::super::place::span;
use super::super::slot_counts::Wanted;
use super::{Catalog, Slot, TRACKS};

/// A slot from a moment on: when its first timers may fire, or that moment if it is later, ms.
pub(in crate::keyspace) type SlotFrom = (u64, SlotKey);

impl Catalog {
    /// The next slots, at most `limit`, that may have timers which fire from `from` up to `until`
    /// and are of the wanted destinations: in the order of [`SlotFrom`], behind `after`.
    pub(crate) fn from(
        &self,
        from: Time,
        until: Time,
        wanted: &Wanted,
        after: Option<SlotFrom>,
        limit: usize,
    ) -> Vec<SlotFrom> {
        let (from, until) = (from.as_ms(), until.as_ms());
        let mut slots: Vec<SlotFrom> = Vec::new();
        if from > until {
            return slots;
        }
        for width in SlotWidth::ALL {
            // Those that begin before `from` and reach it begin together.
            let begin = width.start_of(Time::from_ms(after.map_or(from, |(begin, _)| begin))).as_ms();
            for track in 0..TRACKS {
                let at = |start, sibling| SlotKey { track, width, start, sibling };
                let next = self.slots.range(at(begin, 0)..=at(until, u32::MAX));
                let next =
                    next.filter(|(slot, entry)| span(**slot).1 > from && entry.dests.may_have_of(wanted));
                let next = next.map(|(slot, _)| (span(*slot).0.max(from), *slot));
                let next = next.filter(|slot| after.is_none_or(|after| *slot > after));
                // Siblings of a second are not in the order of their spans.
                let (before, mut last) = (slots.len(), 0);
                for slot in next.filter(|(begin, _)| *begin <= until) {
                    if slots.len() - before >= limit && slot.1.start != last {
                        break;
                    }
                    last = slot.1.start;
                    slots.push(slot);
                }
            }
        }
        slots.sort_unstable();
        slots.truncate(limit);
        slots
    }

    /// The timers of the wanted destinations in each counted slot that begins from about `from` up
    /// to `until`, with when they fire: from a first moment on, and before another.
    pub(crate) fn forecast(
        &self,
        from: Time,
        until: Time,
        wanted: &Wanted,
    ) -> impl Iterator<Item = ((Time, Time), u64)> {
        let groups =
            SlotWidth::ALL.into_iter().flat_map(|width| (0..TRACKS).map(move |track| (track, width)));
        let slots = groups.flat_map(move |(track, width)| {
            let at = |start, sibling| SlotKey { track, width, start, sibling };
            let first = width.start_of(from.min(until)).as_ms();
            self.slots.range(at(first, 0)..=at(until.as_ms(), u32::MAX))
        });
        let timers = move |(slot, entry): (&SlotKey, &Slot)| {
            let (begin, end) = span(*slot);
            let timers = entry.dests.timers_of(wanted);
            (timers > 0).then(|| ((Time::from_ms(begin), Time::from_ms(end)), timers))
        };
        slots.filter_map(timers)
    }
}
