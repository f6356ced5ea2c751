//! First deliveries, and how late they were.

use std::collections::BTreeMap;

use crate::history::{Event, History, Said};
use crate::journal::Note;
use crate::spread::Spread;

/// First delivery of a timer.
#[derive(Clone, Copy, Debug)]
pub struct Fire {
    /// The timer's number.
    pub serial: u64,
    /// Its partition.
    pub partition: u16,
    /// When it was due, as the broker says.
    pub due: u64,
    /// From when on it could have been delivered: due, and stored or moved.
    pub ready: u64,
    /// When it was delivered.
    pub at: u64,
    /// Under which epoch.
    pub epoch: u64,
}

impl Fire {
    /// How late it was, ms.
    pub fn lateness(&self) -> u64 {
        self.at.saturating_sub(self.ready)
    }
}

/// First deliveries in the order of the timers' numbers.
pub fn fires(history: &History) -> Vec<Fire> {
    let mut stored: BTreeMap<u64, u64> = BTreeMap::new();
    let mut fires: BTreeMap<u64, Fire> = BTreeMap::new();
    for (serial, event) in &history.events {
        match event {
            Event::Schedule { answered, said: Said::Stored { .. } | Said::Unknown, .. }
            | Event::Move { answered, .. } => {
                let known = stored.entry(*serial).or_default();
                *known = (*known).max(*answered);
            }
            Event::Delivered { at, id, due, epoch, .. } => {
                let (partition, ready) = (id.partition().0, *due);
                let fire = Fire { serial: *serial, partition, due: *due, ready, at: *at, epoch: *epoch };
                fires.entry(*serial).or_insert(fire);
            }
            _ => {}
        }
    }
    for (serial, fire) in &mut fires {
        // An answer may be recorded after the delivery.
        let stored = stored.get(serial).copied().unwrap_or_default();
        fire.ready = fire.ready.max(stored.min(fire.at));
    }
    fires.into_values().collect()
}

/// How late those are that pass, of destinations that have credit.
pub fn lateness(history: &History, pass: impl Fn(&Fire) -> bool) -> Spread {
    let prompt = |f: &&Fire| pass(f) && !history.plans[&f.serial].crowded;
    Spread::of(fires(history).iter().filter(prompt).map(Fire::lateness))
}

/// What became of the partitions of a broker that died.
#[derive(Clone, Debug)]
pub struct Takeover {
    /// How many it had.
    pub partitions: usize,
    /// Timers that came due before somebody else had their partition, without those of crowded
    /// destinations.
    pub overdue: usize,
    /// From the death to the first overdue fire, ms.
    pub first_ms: Option<u64>,
    /// From the death until all overdue timers had fired, ms.
    pub all_ms: Option<u64>,
    /// From the death until the last partition was acquired, ms.
    pub acquired_ms: Option<u64>,
}

/// What became of what `brokers` owned when they died at `died`.
pub fn takeover(history: &History, brokers: &[String], died: u64) -> Takeover {
    let mut owned: BTreeMap<u16, &str> = BTreeMap::new();
    let mut taken: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    let mut journal: Vec<_> = history.journal.iter().collect();
    journal.sort_by_key(|entry| entry.at);
    for entry in journal {
        let Note::Acquired { partition, epoch } = entry.note else { continue };
        if entry.at < died {
            owned.insert(partition, &entry.broker);
        } else if owned.get(&partition).is_some_and(|o| brokers.iter().any(|b| b == o)) {
            taken.entry(partition).or_insert((entry.at, epoch));
        }
    }
    let theirs = owned.values().filter(|owner| brokers.iter().any(|b| b == *owner)).count();
    // A crowded destination has no credit to spare, so its timers are late whoever owns them.
    let prompt = |f: &&Fire| !history.plans[&f.serial].crowded;
    // Under the new owner's epoch: what the dead had sent may still arrive.
    let late = |f: &&Fire| {
        let taken = taken.get(&f.partition);
        taken.is_some_and(|(at, epoch)| f.ready >= died && f.ready <= *at && f.epoch >= *epoch)
    };
    let overdue: Vec<u64> = fires(history).iter().filter(prompt).filter(late).map(|f| f.at - died).collect();
    Takeover {
        partitions: theirs,
        overdue: overdue.len(),
        first_ms: overdue.iter().min().copied(),
        all_ms: overdue.iter().max().copied(),
        acquired_ms: taken.values().map(|(at, _)| at - died).max(),
    }
}
