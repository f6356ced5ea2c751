//! A store that is elsewhere: it answers needs, and writes changes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use mtimer_types::{Destination, Ended, Key, StoredSettings, Time, TimerId};

use crate::bulk::{BulkJob, Bulks};
use crate::controls::Controls;
use crate::ops::Op;
use crate::remembered::{RememberedAnswer, RequestId};
use crate::settings::Settings;
use crate::table::{At, Context, Row};
use crate::view::{Changes, Decided, Fact, Need, View, first_needs};

/// The stored state.
#[derive(Clone, Debug, Default)]
pub(super) struct Remote {
    pub(super) rows: HashMap<TimerId, Row>,
    pub(super) keys: HashMap<(Destination, Key), TimerId>,
    pub(super) ended: HashMap<TimerId, (Ended, Time)>,
    pub(super) answered: HashMap<RequestId, (RememberedAnswer, Time)>,
    /// By [`listing`], in the order of arrival.
    pub(super) listings: [Vec<TimerId>; 4],
    /// By number.
    pub(super) bulks: BTreeMap<u32, BulkJob>,
    pub(super) settings: BTreeMap<Destination, StoredSettings>,
}

/// In which listing a place is.
pub(super) const fn listing(at: At) -> Option<usize> {
    match at {
        At::Pending { .. } => None,
        At::Dead { .. } => Some(0),
        At::Unconfirmed { .. } => Some(1),
        At::Taken { .. } => Some(2),
        At::Parked => Some(3),
    }
}

impl Remote {
    /// A view that knows the controls alone.
    pub(super) fn view(&self, ops: &[Op]) -> View {
        let bulks = Bulks::stored(self.bulks.values().cloned().collect());
        let settings = Settings::stored(self.settings.values().cloned());
        View::of(ops, Arc::new(Controls { bulks, settings }))
    }

    pub(super) fn read(&self, need: &Need, now: Time) -> Fact {
        fn recent<T: Clone>((value, at): &(T, Time), now: Time) -> Option<T> {
            Context::remembers(now, *at).then(|| value.clone())
        }
        match need {
            Need::Row(id) => Fact::Row(*id, self.rows.get(id).cloned()),
            Need::Key(dest, key) => {
                let holder = self.keys.get(&(dest.clone(), key.clone())).copied();
                Fact::Key(dest.clone(), key.clone(), holder)
            }
            Need::Ended(id) => Fact::Ended(*id, self.ended.get(id).and_then(|e| recent(e, now))),
            Need::Answered(id) => Fact::Answered(*id, self.answered.get(id).and_then(|a| recent(a, now))),
            Need::Retained { of, limit } => {
                let ids = &self.listings[*of as usize];
                let oldest = ids.iter().take(*limit).map(|id| self.rows[id].clone()).collect();
                Fact::Retained { of: *of, limit: *limit, count: ids.len() as u64, oldest }
            }
        }
    }

    pub(super) fn write(&mut self, changes: &Changes, now: Time) {
        for change in &changes.rows {
            let (before, after) = (&change.before, &change.after);
            assert_eq!(self.rows.get(&change.id()), before.as_ref(), "before, as it is stored");
            assert_ne!(before, after, "a change");
            let (was, is) = (before.as_ref().map(|row| row.at), after.as_ref().map(|row| row.at));
            if was != is {
                was.and_then(listing)
                    .into_iter()
                    .for_each(|n| self.listings[n].retain(|id| *id != change.id()));
                is.and_then(listing).into_iter().for_each(|n| self.listings[n].push(change.id()));
            }
            match after {
                Some(row) => self.rows.insert(change.id(), row.clone()),
                None => self.rows.remove(&change.id()),
            };
        }
        for change in &changes.keys {
            let name = (change.dest.clone(), change.key.clone());
            assert_eq!(self.keys.get(&name), change.before.as_ref(), "before, as it is stored");
            assert_ne!(change.before, change.after, "a change");
            match change.after {
                Some(id) => self.keys.insert(name, id),
                None => self.keys.remove(&name),
            };
        }
        let mut controls = changes.controls.clone().unwrap_or_default();
        for (number, job) in controls.bulks.take_changes() {
            match job {
                Some(job) => self.bulks.insert(number, job),
                None => self.bulks.remove(&number),
            };
        }
        for (dest, row) in controls.settings.take_changes() {
            match row {
                Some(row) => self.settings.insert(dest, row),
                None => self.settings.remove(&dest),
            };
        }
        self.ended.extend(changes.ended.iter().map(|(id, how)| (*id, (*how, now))));
        self.answered.extend(changes.answered.iter().map(|(id, answer)| (*id, (*answer, now))));
    }

    /// Decides a batch and writes it; with the number of rounds of reading.
    pub(super) fn turn(&mut self, view: &mut View, ctx: &Context, ops: &[Op]) -> (Decided, usize) {
        let mut rounds = 0;
        let decided = loop {
            match view.decide(ctx, ops) {
                Ok(decided) => break decided,
                Err(needs) => {
                    rounds += 1;
                    self.tell(view, &needs, ctx.now);
                }
            }
        };
        self.write(&decided.changes, ctx.now);
        (decided, rounds)
    }

    /// As [`Self::turn`], after one round in which the first needs are read.
    pub(super) fn prepared_turn(&mut self, view: &mut View, ctx: &Context, ops: &[Op]) -> (Decided, usize) {
        let mut first: Vec<Need> = Vec::new();
        for need in ops.iter().flat_map(first_needs) {
            if !view.knows(&need) && !first.contains(&need) {
                first.push(need);
            }
        }
        self.tell(view, &first, ctx.now);
        let (decided, rounds) = self.turn(view, ctx, ops);
        (decided, rounds + usize::from(!first.is_empty()))
    }

    fn tell(&self, view: &mut View, needs: &[Need], now: Time) {
        assert_eq!(needs.iter().collect::<HashSet<_>>().len(), needs.len(), "each need once: {needs:?}");
        assert_eq!(needs.iter().find(|need| view.knows(need)), None, "only what is not known");
        for need in needs {
            view.learn(self.read(need, now));
            assert!(view.knows(need), "{need:?} was read");
        }
    }
}
