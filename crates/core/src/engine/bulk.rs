//! Bulk jobs at work: pages are read, acts and advances go to the store, memory agrees with what
//! they did.
//!
//! Invariant: [`AT_ONCE`] jobs of all partitions wait for the store at a time, each for one page or
//! one portion, so that whatever else goes there waits little.
//! Not in here: what is next for a job (`bulk_work`); what an act does (`mtimer_store::ops`).

use mtimer_store::ops::{BulkActAnswer, BulkAdvance, MemoryEffect, MoveAnswer};
use mtimer_store::table::{At, Row};
use mtimer_store::{Bulks, ListPage, PendingPage, Refusal};
use mtimer_types::{Destination, PartitionId, Target};

use super::bulk_work::{BulkKind, BulkStep};
use super::calls::OpenCall;
use super::pending::{BulkActing, Own};
use super::table::TakeState;
use super::{Engine, EnginePhase};
use crate::api::{Call, Counter, Now};

/// Jobs that wait for the store at a time, of all partitions: one is read while another acts.
const AT_ONCE: usize = 2;

impl Engine {
    /// The partition's jobs are known, or known anew.
    pub(super) fn bulks_known(&mut self, at: PartitionId, jobs: Bulks) {
        if let Some(p) = self.partition(at) {
            p.bulk.learn(jobs);
            if p.bulk.has_work() {
                self.bulk_turns.join(at);
            }
        }
    }

    /// Makes the next steps of bulk jobs. The partitions take turns.
    pub(super) fn work_in_bulk(&mut self, now: Now) {
        if self.bulk_turns.is_empty() || self.phase != EnginePhase::Running {
            return;
        }
        let partitions = &self.partitions;
        self.bulk_turns.retain(|at| partitions.get(at).is_some_and(|p| p.bulk.has_work()));
        let mut free = AT_ONCE.saturating_sub(self.bulk_busy());
        if free == 0 {
            return;
        }
        for at in self.bulk_turns.in_turn() {
            if free == 0 {
                return;
            }
            let count = self.options.partitions;
            let Some(p) = self.partitions.get_mut(at).filter(|p| p.is_active()) else { continue };
            let steps: Vec<(BulkKind, BulkStep)> = BulkKind::ALL
                .into_iter()
                .filter_map(|kind| Some((kind, p.bulk.next(kind, now.mono_ms, at, count)?)))
                .collect();
            for (kind, step) in steps {
                free = free.saturating_sub(1);
                self.bulk_turns.had_turn(at);
                self.take_bulk_step(at, kind, step);
            }
        }
    }

    /// When a bulk job wants its next step, monotonic ms, if it waits for nothing else.
    pub(super) fn bulk_wake_at(&self) -> Option<u64> {
        if self.phase != EnginePhase::Running || self.bulk_busy() >= AT_ONCE {
            return None;
        }
        let active = self.bulk_turns.all().filter_map(|at| self.partitions.get(at)).filter(|p| p.is_active());
        active.filter_map(|p| p.bulk.wake_at()).min()
    }

    /// Jobs that wait for the store, where it can be reached.
    fn bulk_busy(&self) -> usize {
        let all = self.bulk_turns.all().filter_map(|at| self.partitions.get(at));
        all.filter(|p| p.is_up()).map(|p| p.bulk.busy()).sum()
    }

    fn take_bulk_step(&mut self, at: PartitionId, kind: BulkKind, step: BulkStep) {
        match step {
            BulkStep::ReadPending(range) => self.call(at, OpenCall::BulkPending, Call::Pending(range)),
            BulkStep::ReadParks => self.call(at, OpenCall::BulkParks, Call::ParkedDestinations),
            BulkStep::ReadList(listing) => self.call(at, OpenCall::BulkList(kind), Call::List(listing)),
            BulkStep::Act { number, adds, ids } => {
                for id in ids {
                    let acting = BulkActing { number, id, kind, adds, is_held: false };
                    self.enqueue(at, Own::BulkAct(acting));
                }
            }
            BulkStep::Advance(advance) => self.enqueue(at, Own::BulkAdvance { advance, kind }),
        }
    }

    /// A page of pending timers is here.
    pub(super) fn bulk_pending(&mut self, at: PartitionId, page: PendingPage) {
        let Some(p) = self.partition(at) else { return };
        let PendingPage { rows, next } = page;
        let rows = rows.into_iter().map(|row| {
            let at = At::Pending { fire: row.fire, tier: row.tier };
            Row { record: row.record, at }
        });
        p.bulk.pending_page(rows, next);
    }

    /// The destinations with parked timers are known.
    pub(super) fn bulk_parks(&mut self, at: PartitionId, parks: Vec<(Destination, u64)>) {
        if let Some(p) = self.partition(at) {
            p.bulk.parks(parks.into_iter().map(|(dest, _)| dest));
        }
    }

    /// A page of parked or retained timers is here.
    pub(super) fn bulk_list(&mut self, at: PartitionId, kind: BulkKind, page: ListPage) {
        let Some(p) = self.partition(at) else { return };
        let (rows, next) = page.into_rows();
        p.bulk.list_page(kind, rows, next);
    }

    /// A job has acted on a timer, or could not.
    pub(super) fn bulk_acted(
        &mut self,
        now: Now,
        at: PartitionId,
        acting: BulkActing,
        answer: BulkActAnswer,
    ) {
        let BulkActing { number, id, kind, is_held, .. } = acting;
        let Some(p) = self.partition(at) else { return };
        p.bulk.acted(kind);
        let (park, horizon) = (p.bulk.park().cloned(), p.horizon());
        let is_here = match p.table.get_mut(id) {
            Some(entry) => {
                // The store may have marked it: a take must not bring it as it is here.
                entry.record.extensions.raise_bulk_mark(number);
                true
            }
            None => false,
        };
        self.count_act(answer);
        let effect = match answer {
            BulkActAnswer::Passed => {
                // It may have been acted on when this was first asked of the store.
                if is_here {
                    self.read_anew(id);
                }
                MemoryEffect::Nothing
            }
            BulkActAnswer::Cancelled => MemoryEffect::Cancelled(id),
            BulkActAnswer::Stopped => MemoryEffect::Stopped { id, died: None },
            BulkActAnswer::Died { failed } => MemoryEffect::Stopped { id, died: Some(failed) },
            BulkActAnswer::Moved { due } => MemoryEffect::Moved { id, due },
            BulkActAnswer::Replayed => MemoryEffect::Replayed(id),
            BulkActAnswer::Released { fire } => {
                if fire.is_some_and(|fire| fire <= horizon) {
                    self.fetch(id);
                }
                MemoryEffect::Nothing
            }
            BulkActAnswer::Withdrawn => MemoryEffect::Nothing,
            BulkActAnswer::Purged | BulkActAnswer::NotDone(_) => MemoryEffect::Nothing,
        };
        let leaves = match answer {
            BulkActAnswer::Cancelled | BulkActAnswer::Moved { .. } | BulkActAnswer::Died { .. } => true,
            BulkActAnswer::Passed
            | BulkActAnswer::Stopped
            | BulkActAnswer::Replayed
            | BulkActAnswer::Purged
            | BulkActAnswer::Released { .. }
            | BulkActAnswer::Withdrawn
            | BulkActAnswer::NotDone(_) => false,
        };
        if let Some(dest) = park.filter(|_| leaves && !is_here) {
            self.one_left(&dest, at);
        }
        self.agree(now, None, effect);
        self.end_edit(at, is_held.then_some(id), None);
    }

    fn count_act(&mut self, answer: BulkActAnswer) {
        match answer {
            BulkActAnswer::Cancelled
            | BulkActAnswer::Moved { .. }
            | BulkActAnswer::Replayed
            | BulkActAnswer::Purged
            | BulkActAnswer::Released { .. }
            | BulkActAnswer::Withdrawn => self.count(Counter::BulkDone, 1),
            BulkActAnswer::Stopped | BulkActAnswer::Died { .. } | BulkActAnswer::NotDone(_) => {
                self.count(Counter::BulkNotDone, 1);
            }
            BulkActAnswer::Passed => {}
        }
    }

    /// The store would not take an act, or could not say that it is safe.
    pub(super) fn bulk_refused(&mut self, now: Now, at: PartitionId, acting: BulkActing, why: &Refusal) {
        let BulkActing { number, id, kind, is_held, .. } = acting;
        self.count(Counter::BulkRefused, 1);
        let Some(p) = self.partition(at) else { return };
        let is_undone = match why {
            Refusal::OutOfMemory | Refusal::DiskFull { .. } | Refusal::MayEvict => true,
            Refusal::ReadOnly | Refusal::NotReplicated => false,
        };
        p.bulk.refused(kind, is_undone.then_some(id), now.mono_ms);
        match p.table.get_mut(id) {
            _ if is_undone => {}
            // It may have been done all the same, and the timer be due before the next load.
            Some(entry) => {
                entry.record.extensions.raise_bulk_mark(number);
                // Of a take that is asked for, its own answer tells: what is read here would not
                // say whether that one is confirmed.
                if entry.take != TakeState::Asked {
                    self.read_anew(id);
                }
            }
            None => self.look(at, Target::Id(id)),
        }
        self.end_edit(at, is_held.then_some(id), None);
    }

    /// It is stored where a job goes on.
    pub(super) fn bulk_advanced(
        &mut self,
        now: Now,
        at: PartitionId,
        kind: BulkKind,
        advance: &BulkAdvance,
        answer: MoveAnswer,
    ) {
        let Some(p) = self.partition(at) else { return };
        match answer {
            MoveAnswer::Done => p.bulk.advanced(kind, now.time, advance),
            // Somebody has stopped the job: that is read, too.
            MoveAnswer::Gone => p.bulk.not_advanced(kind, now.mono_ms),
        }
    }

    /// A timer that was not in memory has left a park.
    fn one_left(&mut self, dest: &Destination, at: PartitionId) {
        if let Some(ix) = self.roster.find_dest(dest) {
            self.roster.change_park(ix, at, |parks| parks.one_left(at));
        }
    }
}
