//! The partitions that have bulk jobs, and whose turn it is.

use std::collections::BTreeSet;

use mtimer_types::PartitionId;

/// Partitions with bulk jobs.
#[derive(Debug, Default)]
pub(super) struct BulkTurns {
    partitions: BTreeSet<PartitionId>,
    /// It begins with this one, or the first after it.
    next: PartitionId,
}

impl BulkTurns {
    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// A partition has work.
    pub(super) fn join(&mut self, at: PartitionId) {
        self.partitions.insert(at);
    }

    /// Leaves out those that have none any more.
    pub(super) fn retain(&mut self, has_work: impl Fn(PartitionId) -> bool) {
        self.partitions.retain(|at| has_work(*at));
    }

    pub(super) fn all(&self) -> impl Iterator<Item = PartitionId> {
        self.partitions.iter().copied()
    }

    /// All, beginning with the one whose turn it is.
    pub(super) fn in_turn(&self) -> Vec<PartitionId> {
        let (before, from): (Vec<_>, Vec<_>) = self.all().partition(|at| *at < self.next);
        [from, before].concat()
    }

    /// A partition has had its turn.
    pub(super) fn had_turn(&mut self, at: PartitionId) {
        self.next = PartitionId(at.0.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_take_turns() {
        let mut turns = BulkTurns::default();
        [3, 1, 7].into_iter().for_each(|at| turns.join(PartitionId(at)));
        let order = |turns: &BulkTurns| turns.in_turn().iter().map(|at| at.0).collect::<Vec<_>>();
        assert_eq!(order(&turns), [1, 3, 7]);
        turns.had_turn(PartitionId(1));
        assert_eq!(order(&turns), [3, 7, 1]);
        turns.had_turn(PartitionId(7));
        assert_eq!(order(&turns), [1, 3, 7]);
        turns.retain(|at| at.0 == 7);
        assert_eq!(order(&turns), [7]);
    }
}
