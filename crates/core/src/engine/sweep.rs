//! Parked timers that miss their deadlines: a sweep reads the park of one destination in one
//! partition, page by page, and ends those that have missed their deadlines as expired.
//!
//! Invariant: the partition is owned and not being given up. Sweeps cost little, however many
//! timers are parked: see `sweeps`.

use mtimer_store::{Listed, Listing, Page, Record, Verdict};
use mtimer_types::{Destination, PartitionId, Time};

use super::Engine;
use super::calls::OpenCall;
use super::destination_members::DestIx;
use super::parks::classes_of;
use super::pending::Own;
use crate::api::{Call, Now};

/// Parked timers of one page.
const SWEEP_PAGE: u32 = 200;
/// Parks that are looked at in one turn.
const PARKS_AT_ONCE: usize = 1_000;

impl Engine {
    /// Begins a sweep where a deadline has passed among parked timers.
    pub(super) fn sweep_parks(&mut self, now: Now) {
        if !self.sweeps.may_begin(now.mono_ms) {
            return;
        }
        let Some((at, ix)) = self.overdue_park(now.time) else { return };
        let dest = self.roster.dest(ix).name().clone();
        self.roster.dest_mut(ix).parks.begin_sweep(at);
        self.sweeps.begin(at, dest.clone());
        self.ask_sweep(at, dest, 0);
    }

    /// The next park in which a deadline has passed, among so many at a time.
    fn overdue_park(&mut self, now: Time) -> Option<(PartitionId, DestIx)> {
        let mut first = None;
        for _ in 0..PARKS_AT_ONCE {
            let (at, ix) = self.roster.next_park(self.sweeps.looked_at())?;
            if first.is_some_and(|first| first == (at, ix)) {
                return None;
            }
            first.get_or_insert((at, ix));
            self.sweeps.look_at((at, ix));
            let can_sweep = self.partitions.get(at).is_some_and(|p| p.is_active());
            if can_sweep && self.roster.dest(ix).parks.is_overdue(at, now) {
                return Some((at, ix));
            }
        }
        None
    }

    /// One page of a sweep: timers that have missed their deadlines end as expired. The page of a
    /// partition that was given up since is passed over.
    pub(super) fn swept(&mut self, now: Now, at: PartitionId, dest: &Destination, page: Page<Record>) {
        if !self.sweeps.page_done(now.mono_ms, at, dest, page.next) {
            return;
        }
        let oldest = page.rows.iter().map(Record::late_from).min();
        let classes = classes_of(&page.rows);
        let mut earliest = None;
        for record in page.rows {
            let (id, deadline) = (record.timer.id, record.timer.deadline);
            let here = self.partition(at).is_some_and(|p| p.table.contains(id));
            match deadline {
                Some(_) if record.timer.is_past_deadline(now.time) && !here => {
                    self.enqueue(at, Own::settle(id, Verdict::Expired { next: now.time }));
                }
                Some(d) => earliest = Some(earliest.map_or(d, |e: Time| e.min(d))),
                None => {}
            }
        }
        let ix = self.roster.dest_ix(dest);
        self.roster.change_park(ix, at, |parks| parks.note_swept(at, earliest, oldest, classes));
    }

    /// Goes on with a sweep after its pause.
    pub(super) fn continue_sweep(&mut self, now: Now) {
        if let Some((at, dest, cursor)) = self.sweeps.resume(now.mono_ms) {
            self.ask_sweep(at, dest, cursor);
        }
    }

    fn ask_sweep(&mut self, at: PartitionId, dest: Destination, cursor: u64) {
        let listing = Listing { of: Listed::Parked(dest.clone()), cursor, limit: SWEEP_PAGE };
        self.call(at, OpenCall::Sweep { dest }, Call::List(listing));
    }
}
