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
            match event {
                Event::Schedule { answered, said, .. } => {
                    stored.insert(*serial, *answered);
                    match said {
                        Said::Stored { .. } => count("stored"),
                        Said::Unknown => count("schedule unknown"),
                        _ => count("schedule refused"),
                    }
                }
                Event::Cancel { said, .. } => match said {
                    Said::Done => count("cancelled"),
                    Said::TooLate => count("cancel too late"),
                    Said::Unknown => count("cancel unknown"),
                    _ => count("cancel found nothing"),
                },
                Event::Move { said, .. } => match said {
                    Said::Done => count("moved"),
                    Said::TooLate => count("move too late"),
                    Said::Unknown => count("move unknown"),
                    _ => count("move found nothing"),
                },
                Event::Replay { said, .. } => match said {
                    Said::Done => count("replayed"),
                    Said::Unknown => count("replay unknown"),
                    _ => count("replay found nothing"),
                },
                Event::Purge { said, .. } => match said {
                    Said::Done => count("purged"),
                    Said::Unknown => count("purge unknown"),
                    _ => count("purge found nothing"),
                },
                Event::Looked { .. } => count("found after a late cancel"),
                Event::Ended { how, .. } => match how {
                    Ended::Expired => count("reported as expired"),
                    _ => count("reported as ended"),
                },
                Event::Delivered { at, due, .. } => {
                    count("deliveries");
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

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, n) in &self.counts {
            writeln!(f, "  {n:>9}  {what}")?;
        }
        writeln!(f, "  lateness of undisturbed first deliveries: {}", self.lateness)
    }
}
