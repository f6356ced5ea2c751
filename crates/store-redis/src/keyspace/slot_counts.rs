//! How many timers each destination has in a slot, and in all slots that are counted.
//!
//! Not in here: which slots there are, and who reads those that are not counted.

use std::collections::{HashMap, HashSet};

use mtimer_types::Time;

use super::keys::SlotKey;

/// The destinations that a listing is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// All.
    Any,
    /// Those of these numbers.
    Only(HashSet<u32>),
}

/// How many timers each destination has in one slot, if that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SlotCounts(Option<Vec<(u32, u32)>>);

/// What the timers of a slot wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotKind {
    /// First deliveries.
    First,
    /// Retries.
    Retry,
    /// The release of their import.
    Staged,
}

impl SlotKind {
    /// The kind of a slot: staged timers are stored at times that no others have.
    pub(crate) fn of(slot: SlotKey) -> Self {
        match slot.track {
            _ if Time::from_ms(slot.start).is_staged() => Self::Staged,
            0 => Self::First,
            _ => Self::Retry,
        }
    }
}

/// How many timers each destination has in all slots, by [`SlotKind`].
#[derive(Debug, Default)]
pub(crate) struct Totals(HashMap<u32, [u64; 3]>);

impl SlotCounts {
    /// Nothing is known of the slot.
    pub(crate) const UNKNOWN: Self = Self(None);
    /// The slot is empty.
    pub(crate) const EMPTY: Self = Self(Some(Vec::new()));

    /// Of a slot that has one timer of each of these destinations.
    pub(crate) fn of(dests: impl Iterator<Item = u32>) -> Self {
        let mut dests: Vec<u32> = dests.collect();
        dests.sort_unstable();
        let counts = dests.chunk_by(|one, other| one == other).map(|some| (some[0], some.len() as u32));
        Self(Some(counts.collect()))
    }

    /// Whether it is known.
    pub(crate) const fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// The counts that are known, in the order of the destinations' numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().flatten().copied()
    }

    /// One more timer of a destination is in the slot. Whether it is counted.
    pub(crate) fn add(&mut self, dest: u32) -> bool {
        let Some(counts) = &mut self.0 else { return false };
        match counts.binary_search_by_key(&dest, |(dest, _)| *dest) {
            Ok(at) => counts[at].1 += 1,
            Err(at) => counts.insert(at, (dest, 1)),
        }
        true
    }

    /// A timer of a destination has left the slot. Whether it was counted.
    pub(crate) fn remove(&mut self, dest: u32) -> bool {
        let Some(counts) = &mut self.0 else { return false };
        let Ok(at) = counts.binary_search_by_key(&dest, |(dest, _)| *dest) else { return false };
        counts[at].1 -= 1;
        if counts[at].1 == 0 {
            counts.remove(at);
        }
        true
    }

    /// How many timers of these destinations the slot has; none, if that is not known.
    pub(crate) fn timers_of(&self, wanted: &Wanted) -> u64 {
        let is_wanted = |dest: &u32| match wanted {
            Wanted::Any => true,
            Wanted::Only(wanted) => wanted.contains(dest),
        };
        self.iter().filter(|(dest, _)| is_wanted(dest)).map(|(_, timers)| u64::from(timers)).sum()
    }

    /// Whether timers of one of these destinations may be in the slot.
    pub(crate) fn may_have_of(&self, wanted: &Wanted) -> bool {
        match (wanted, &self.0) {
            (Wanted::Any, _) | (_, None) => true,
            (Wanted::Only(wanted), Some(counts)) => counts.iter().any(|(dest, _)| wanted.contains(dest)),
        }
    }
}

impl Totals {
    /// Timers have come to a slot.
    pub(crate) fn add(&mut self, kind: SlotKind, counts: impl IntoIterator<Item = (u32, u32)>) {
        for (dest, timers) in counts {
            self.0.entry(dest).or_default()[kind as usize] += u64::from(timers);
        }
    }

    /// Timers have left a slot.
    pub(crate) fn subtract(&mut self, kind: SlotKind, counts: impl IntoIterator<Item = (u32, u32)>) {
        for (dest, timers) in counts {
            let Some(totals) = self.0.get_mut(&dest) else { continue };
            let total = &mut totals[kind as usize];
            *total = total.saturating_sub(u64::from(timers));
            if *totals == [0; 3] {
                self.0.remove(&dest);
            }
        }
    }

    /// The timers of a destination, by [`SlotKind`].
    pub(crate) fn of(&self, dest: u32) -> [u64; 3] {
        self.0.get(&dest).copied().unwrap_or_default()
    }
}
