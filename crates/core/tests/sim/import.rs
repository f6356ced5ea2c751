//! Imports, as the checker sees them: a staged timer is nobody's until a bulk job of its import
//! meets it, and nothing else changes it.

use mtimer_protocol::ops::{BeginBulk, ImportReply};
use mtimer_protocol::{OpReply, RequestOp};
use mtimer_store::{Op, Place};
use mtimer_types::{Bulk, BulkAction, BulkId, Filter, ImportId, PartitionId, TimerId};

use super::history::History;
use super::{PARTITIONS, World};

/// So many timers are of one import.
const TIMERS: u64 = 8;

/// The imports of a run.
#[derive(Debug, Default)]
pub(super) struct Imports {
    timers: u64,
}

impl Imports {
    /// The import of which the next timer is.
    pub(super) fn next(&mut self) -> ImportId {
        self.timers += 1;
        ImportId(u128::from(self.timers / TIMERS))
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<ImportId> {
        let last = self.timers / TIMERS;
        (0..=last).filter(|_| self.timers > 0).map(|n| ImportId(n.into())).collect()
    }
}

impl History {
    /// A timer of another cluster is staged, as a broker says.
    pub(super) fn answered_import(&mut self, id: TimerId, reply: &OpReply) {
        if matches!(reply, OpReply::Import(ImportReply::Staged { .. })) {
            self.life(id).answered_ok = true;
        }
    }

    /// Something has changed a timer, which was staged before, or is now.
    pub(super) fn check_staged(
        &mut self,
        ms: u64,
        id: TimerId,
        op: &Op,
        before: (Option<ImportId>, Option<Place>),
    ) {
        let life = self.life(id);
        let (staged, place) = (life.staged, life.place);
        let is_by = match op {
            Op::Import(_) => before.1.is_none(),
            Op::BulkAct(_) => before.0.is_some(),
            _ => false,
        };
        if (staged, place) != before && (staged.is_some() || before.0.is_some()) && !is_by {
            self.fail(ms, Some(id), "import: a staged timer was changed by something else than its jobs");
        }
    }
}

impl World {
    /// Has every import released, or withdrawn.
    pub(super) fn end_imports(&mut self, action: impl Fn(ImportId) -> BulkAction) {
        for import in self.load.imports.all() {
            for at in (0..PARTITIONS).map(PartitionId) {
                let id = BulkId(u128::from(self.rng.next_u64()));
                let bulk = Bulk::new(action(import), Filter::default()).into();
                self.ask(RequestOp::BeginBulk(BeginBulk { partition: at, id, bulk }));
            }
        }
    }

    /// Waits until nothing is staged any more.
    pub(super) fn withdraw_the_rest(&mut self) {
        if !self.history.has_staged() {
            return;
        }
        self.end_imports(|import| BulkAction::Withdraw { import });
        let limit = self.ms + 120_000;
        while self.ms < limit && self.history.has_staged() && self.history.wrong.is_none() {
            self.run_until(self.ms + 1_000);
        }
        let left = self.history.staged().next();
        if let Some(id) = left {
            self.history.fail(self.ms, Some(id), "import: staged, and its import was withdrawn");
        }
    }
}

impl History {
    fn staged(&self) -> impl Iterator<Item = TimerId> {
        self.lives.iter().filter(|(_, life)| life.staged.is_some()).map(|(id, _)| *id)
    }

    pub(super) fn has_staged(&self) -> bool {
        self.staged().next().is_some()
    }
}
