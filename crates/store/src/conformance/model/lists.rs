//! What there is, as stores list and count it.

use std::collections::BTreeMap;

use mtimer_types::Destination;

use super::{Entry, Model};
use crate::{Census, Counts, DeadLetter, LoadedTimer, Place, Record, Taken, Unconfirmed};

impl Model {
    /// Those that are loaded some day: all that are pending and not staged.
    pub fn pending(&self) -> Vec<LoadedTimer> {
        let mut filed = self.filed();
        filed.retain(|timer| !timer.fire.is_staged());
        filed
    }

    /// All that are pending, staged ones included.
    pub fn filed(&self) -> Vec<LoadedTimer> {
        let row = |e: &Entry| match e.place {
            Place::Pending { fire, tier } => {
                Some(LoadedTimer { record: e.record(), fire, tier, covered: self.covered(e) })
            }
            _ => None,
        };
        self.timers.values().filter_map(row).collect()
    }

    /// How many timers each destination has where.
    pub fn counts(&self) -> BTreeMap<Destination, Counts> {
        let mut all = BTreeMap::<_, Counts>::new();
        for entry in self.timers.values() {
            let counts = all.entry(entry.timer.dest.clone()).or_default();
            *match entry.place {
                _ if entry.staging.is_some() => &mut counts.staged,
                Place::Pending { tier: 0, .. } => &mut counts.pending,
                Place::Pending { .. } => &mut counts.retrying,
                Place::Parked => &mut counts.parked,
                Place::Taken { unconfirmed: false, .. } => &mut counts.taken,
                Place::Taken { unconfirmed: true, .. } => &mut counts.unconfirmed,
                Place::Dead => &mut counts.dead,
            } += 1;
        }
        all
    }

    pub fn parked(&self) -> Vec<Record> {
        self.timers.values().filter(|e| e.place == Place::Parked).map(Entry::record).collect()
    }

    pub fn taken(&self) -> Vec<Taken> {
        let row = |e: &Entry| match e.place {
            Place::Taken { epoch, unconfirmed: false } => Some(Taken { record: e.record(), epoch }),
            _ => None,
        };
        self.timers.values().filter_map(row).collect()
    }

    /// Oldest first; those that became unconfirmed at the same time in the order of ids.
    pub fn unconfirmed(&self) -> Vec<Unconfirmed> {
        let row = |e: &Entry| match (e.place, e.unconfirmed_since) {
            (Place::Taken { epoch, unconfirmed: true }, Some(since)) => {
                Some(Unconfirmed { record: e.record(), epoch, since })
            }
            _ => None,
        };
        let mut rows: Vec<_> = self.timers.values().filter_map(row).collect();
        rows.sort_by_key(|u| u.since);
        rows
    }

    /// Oldest first; those that died at the same time in the order of ids.
    pub fn dead(&self) -> Vec<DeadLetter> {
        let row = |e: &Entry| e.death.map(|(reason, died)| DeadLetter { record: e.record(), reason, died });
        let mut rows: Vec<_> = self.timers.values().filter_map(row).collect();
        rows.sort_by_key(|d| d.died);
        rows
    }

    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for e in self.timers.values() {
            match e.place {
                _ if e.staging.is_some() => census.staged += 1,
                Place::Pending { tier: 0, .. } => census.pending += 1,
                Place::Pending { .. } => census.retrying += 1,
                Place::Parked => census.parked += 1,
                Place::Taken { .. } => census.taken += 1,
                Place::Dead => census.dead += 1,
            }
            census.keys += u64::from(e.timer.key.is_some() && e.holds_key());
        }
        census
    }
}
