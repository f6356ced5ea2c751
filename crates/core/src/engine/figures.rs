//! Reads the engine's state for its operators.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mtimer_store::BulkEnd;
use mtimer_types::{BulkId, Time, TimerId};

use super::Engine;
use super::destination::HeldBack;
use super::destination_members::DestIx;
use crate::figures::{Backlog, BulkFigure, Figures};

impl Engine {
    /// The state in numbers, and the backlogs of the `top` destinations with the most pending
    /// timers and failed attempts.
    ///
    /// Takes time in proportion to the number of destinations and of timers that are due and wait
    /// for a claim.
    pub fn figures(&self, top: usize) -> Figures {
        let owned = || self.partitions.iter();
        let (top, others) = self.backlogs(top);
        Figures {
            tallies: self.tallies.clone(),
            counters: self.counters.to_vec(),
            partitions: owned().count() as u64,
            memory: self.memory(),
            memory_budget: self.options.memory_bytes,
            unsettled: self.unsettled as u64,
            queued: owned().map(|p| p.queued() as u64).sum(),
            put_off: owned().map(|p| p.put_off().len() as u64).sum(),
            paused: self.roster.paused().count() as u64,
            bulks: self.bulk_figures(),
            top,
            others,
        }
    }

    fn bulk_figures(&self) -> BTreeMap<BulkId, BulkFigure> {
        let mut figures = BTreeMap::new();
        for job in self.partitions.iter().flat_map(|p| p.bulk.jobs()) {
            let figure = figures.entry(job.id).or_insert_with(|| BulkFigure {
                bulk: job.bulk.clone(),
                under_way: 0,
                ended: None,
                is_stopped: false,
            });
            match job.ended {
                None => figure.under_way += 1,
                Some((when, how)) => {
                    figure.ended = figure.ended.max(Some(when));
                    figure.is_stopped |= how == BulkEnd::Stopped;
                }
            }
        }
        figures
    }

    /// Returns how many timers each destination has in memory or parked.
    ///
    /// Takes time in proportion to the number of destinations.
    pub fn pending(&self) -> impl Iterator<Item = (&mtimer_types::Destination, u64)> {
        self.roster.dests().map(|(_, dest)| (dest.name(), dest.pending()))
    }

    fn backlogs(&self, top: usize) -> (Vec<(mtimer_types::Destination, Backlog)>, (Backlog, u64)) {
        let mut all: Vec<(DestIx, Backlog)> =
            self.roster.dests().map(|(ix, _)| (ix, self.backlog(ix))).collect();
        self.add_unclaimed(&mut all);
        let order = |(ix, backlog): &(DestIx, Backlog)| (Reverse(backlog.pending + backlog.failures), *ix);
        if top < all.len() {
            all.select_nth_unstable_by_key(top, order);
        }
        let rest = all.split_off(top.min(all.len()));
        all.sort_unstable_by_key(order);
        let others = rest.iter().fold(Backlog::default(), |mut sum, (_, backlog)| {
            sum.merge(backlog);
            sum
        });
        let named = all.into_iter().map(|(ix, backlog)| (self.roster.dest(ix).name().clone(), backlog));
        (named.collect(), (others, rest.len() as u64))
    }

    /// The backlog of a destination, without the timers that wait for a claim.
    pub(super) fn backlog(&self, ix: DestIx) -> Backlog {
        let dest = self.roster.dest(ix);
        let held_back = dest.held_back();
        let oldest = [self.first_ready(ix), dest.parks.oldest()].into_iter().flatten().min();
        Backlog {
            pending: dest.pending(),
            waiting: dest.ready.waiting() as u64,
            parked: dest.parks.count(),
            in_flight: self.roster.outstanding(ix) as u64,
            sessions: self.roster.members(ix) as u64,
            failures: dest.failures(),
            oldest: oldest.filter(|_| held_back.is_none()),
            oldest_paused: oldest.filter(|_| held_back == Some(HeldBack::Paused)),
            oldest_limited: oldest.filter(|_| held_back == Some(HeldBack::Limited)),
            paused: u64::from(held_back == Some(HeldBack::Paused)),
            limited: u64::from(held_back == Some(HeldBack::Limited)),
        }
    }

    /// When the first timer of a destination was due that waits for credit.
    pub(super) fn first_ready(&self, ix: DestIx) -> Option<Time> {
        let since = |id: TimerId| {
            let p = self.partitions.get(id.partition())?;
            let entry = p.table.get(id)?;
            entry.state.is_ready().then_some(entry.record.late_from())
        };
        let classes = self.roster.dest(ix).ready.by_class();
        classes.filter_map(|mut ids| ids.find_map(since)).min()
    }

    /// Adds the due timers that wait for a claim. `all` is in the order of its numbers.
    fn add_unclaimed(&self, all: &mut [(DestIx, Backlog)]) {
        for p in self.partitions.iter() {
            for id in p.due() {
                let Some(entry) = p.table.get(*id).filter(|e| e.state.is_due()) else {
                    continue;
                };
                if let Ok(at) = all.binary_search_by_key(&entry.dest, |(ix, _)| *ix) {
                    let oldest = Some(entry.record.late_from());
                    let one = Backlog { waiting: 1, oldest, ..Backlog::default() };
                    all[at].1.merge(&one);
                }
            }
        }
    }
}
