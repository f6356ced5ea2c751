//! A history, told timer by timer.

use std::collections::{BTreeMap, HashMap};

use mtimer_client::{Ended, TimerId, TimerState};

use crate::history::{Event, Handled, History, Said};
use crate::left::{Final, Left};

/// One delivery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) at: u64,
    pub(super) received: u64,
    pub(super) client_clock: u64,
    pub(super) id: TimerId,
    pub(super) epoch: u64,
    pub(super) attempt: u32,
    pub(super) due: u64,
    pub(super) intact: bool,
}

/// One reschedule that may have been done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) asked: u64,
    pub(super) answered: u64,
    pub(super) due: u64,
    pub(super) said: Said,
}

/// One timer's history, sorted by kind.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) schedules: Vec<(u64, Said)>,
    pub(super) cancels: Vec<(u64, u64, Said)>,
    pub(super) moves: Vec<Moved>,
    pub(super) deliveries: Vec<Seen>,
    pub(super) settled: Vec<(u64, u64, u32, Handled)>,
    pub(super) replays: Vec<(u64, u64, Said)>,
    pub(super) purges: Vec<(u64, u64, Said)>,
    /// Its states when it was looked at.
    pub(super) looks: Vec<(u64, TimerState)>,
    /// What repeats of its schedule were told of its end, and when.
    pub(super) endings: Vec<(u64, Ended)>,
    /// Certainly replaced: when the replacing schedule was asked for and answered.
    pub(super) replaced: Option<(u64, u64)>,
    /// A schedule that replaces its key may have replaced it.
    pub(super) maybe_replaced: bool,
    pub(super) left: Vec<Left>,
}

/// Every timer of which anything is known.
pub(super) fn timelines(history: &History, end: &Final) -> BTreeMap<u64, Timeline> {
    let mut timelines: BTreeMap<u64, Timeline> = BTreeMap::new();
    let mut ids: HashMap<TimerId, u64> = HashMap::new();
    let mut by_key: HashMap<_, Vec<u64>> = HashMap::new();
    for plan in history.plans.values() {
        if let Some(key) = &plan.key {
            by_key.entry((&plan.dest, key)).or_default().push(plan.serial);
        }
    }
    for (serial, event) in &history.events {
        let timeline = timelines.entry(*serial).or_default();
        match event {
            Event::Schedule { answered, said, .. } => {
                timeline.schedules.push((*answered, *said));
                if let Said::Stored { id: Some(id), .. } = said {
                    ids.insert(*id, *serial);
                }
            }
            Event::Cancel { asked, answered, said } => timeline.cancels.push((*asked, *answered, *said)),
            Event::Move { asked, answered, due, said } => {
                timeline.moves.push(Moved { asked: *asked, answered: *answered, due: *due, said: *said });
            }
            Event::Replay { asked, answered, said } => timeline.replays.push((*asked, *answered, *said)),
            Event::Purge { asked, answered, said } => timeline.purges.push((*asked, *answered, *said)),
            Event::Looked { at, state } => timeline.looks.push((*at, *state)),
            Event::Ended { at, how } => timeline.endings.push((*at, *how)),
            Event::Delivered { at, received, client_clock, id, epoch, attempt, due, intact, client: _ } => {
                ids.insert(*id, *serial);
                let (received, client_clock) = (*received, *client_clock);
                let (at, id, epoch, attempt, due, intact) = (*at, *id, *epoch, *attempt, *due, *intact);
                let seen = Seen { at, received, client_clock, id, epoch, attempt, due, intact };
                timeline.deliveries.push(seen);
            }
            Event::Settled { at, epoch, attempt, outcome } => {
                timeline.settled.push((*at, *epoch, *attempt, *outcome));
            }
        }
    }
    for (serial, left) in &end.left {
        timelines.entry(*serial).or_default().left.push(left.clone());
    }
    // What replaced what, where that was said; and what may have been, where the answer is missing.
    for (serial, event) in &history.events {
        let Event::Schedule { asked, answered, said } = event else { continue };
        let plan = &history.plans[serial];
        let Some(key) = plan.key.as_ref().filter(|_| plan.replaces) else { continue };
        match said {
            Said::Stored { replaced: Some(replaced), .. } => {
                let old = replaced.and_then(|id| ids.get(&id));
                if let Some(old) = old {
                    timelines.entry(*old).or_default().replaced = Some((*asked, *answered));
                }
            }
            Said::Stored { replaced: None, .. } | Said::Unknown => {
                for other in by_key[&(&plan.dest, key)].iter().filter(|o| *o != serial) {
                    timelines.entry(*other).or_default().maybe_replaced = true;
                }
            }
            _ => {}
        }
    }
    timelines
}
