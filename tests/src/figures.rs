//! What a history amounts to, in numbers, for people who read a test's output.

use std::collections::BTreeMap;
use std::fmt;

use mtimer_client::{Ended, Mode};

use crate::history::{Event, Handled, History, Said};
use crate::left::{Final, Left};
use crate::spread::Spread;

/// Counts of a history.
#[derive(Clone, Debug)]
pub struct Figures {
    /// By name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Of first deliveries of destinations that have credit, without those that came during or
    /// right after a fault.
    pub lateness: Spread,
}

impl Figures {
    /// Counts everything.
    pub fn of(history: &History, end: &Final) -> Self {
        let mut counts = BTreeMap::new();
        let mut count = |what: &'static str| *counts.entry(what).or_insert(0) += 1;
        let mut last: BTreeMap<u64, (u64, Option<Handled>)> = BTreeMap::new();
        let mut stored: BTreeMap<u64, u64> = BTreeMap::new();
        let mut late = Vec::new();
        let disturbed =
            |from: u64, to: u64| history.faults.iter().any(|f| f.from <= to && f.until + 2_000 >= from);
        history.plans.keys().for_each(|_| count("timers"));
        history.faults.iter().for_each(|_| count("faults"));
        for (serial, event) in &history.events {
            if let Some(name) = name_of(event) {
                count(name);
            }
            match event {
                Event::Schedule { answered, .. } => _ = stored.insert(*serial, *answered),
                Event::Delivered { at, due, .. } => {
                    if history.plans[serial].mode == Mode::AtMostOnce {
                        count("deliveries at most once");
                    }
                    let earlier = last.insert(*serial, (*at, None));
                    // What was due in the past is late from when it was there.
                    let due = stored.get(serial).map_or(*due, |stored| *stored.max(due));
                    match earlier {
                        None if history.plans[serial].crowded => {}
                        None if !disturbed(due, *at) => late.push(at.saturating_sub(due)),
                        None => {}
                        Some((_, Some(Handled::Retry))) => count("again: retry asked"),
                        Some((then, _)) if disturbed(then, *at) => count("again: a fault"),
                        Some(_) => count("again: no answer in time"),
                    }
                }
                Event::Settled { outcome, .. } => {
                    if let Some(entry) = last.get_mut(serial) {
                        entry.1 = Some(*outcome);
                    }
                }
                _ => {}
            }
        }
        for (_, left) in &end.left {
            match left {
                Left::Live(_) => count("left live"),
                Left::Dead { .. } => count("dead letters"),
                Left::Unconfirmed { .. } => count("unconfirmed"),
            }
        }
        Self { counts, lateness: Spread::of(late) }
    }
}

/// The name under which an event is counted by itself.
fn name_of(event: &Event) -> Option<&'static str> {
    /// By what a request was told: done, too late, unknown, anything else.
    fn by(said: &Said, names: [&'static str; 4]) -> Option<&'static str> {
        let at = match said {
            Said::Stored { .. } | Said::Done => 0,
            Said::TooLate => 1,
            Said::Unknown => 2,
            Said::NotFound | Said::KeyTaken | Said::Refused => 3,
        };
        Some(names[at])
    }
    match event {
        Event::Schedule { said, .. } => {
            by(said, ["stored", "schedule refused", "schedule unknown", "schedule refused"])
        }
        Event::Cancel { said, .. } => {
            by(said, ["cancelled", "cancel too late", "cancel unknown", "cancel found nothing"])
        }
        Event::Move { said, .. } => {
            by(said, ["moved", "move too late", "move unknown", "move found nothing"])
        }
        Event::Replay { said, .. } => {
            by(said, ["replayed", "replay found nothing", "replay unknown", "replay found nothing"])
        }
        Event::Purge { said, .. } => {
            by(said, ["purged", "purge found nothing", "purge unknown", "purge found nothing"])
        }
        Event::Looked { .. } => Some("found after a late cancel"),
        Event::Ended { how: Ended::Expired, .. } => Some("reported as expired"),
        Event::Ended { .. } => Some("reported as ended"),
        Event::Delivered { .. } => Some("deliveries"),
        Event::Settled { .. } => None,
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, n) in &self.counts {
            writeln!(f, "  {n:>9}  {what}")?;
        }
        writeln!(f, "  lateness of undisturbed first deliveries: {}", self.lateness)
    }
}
