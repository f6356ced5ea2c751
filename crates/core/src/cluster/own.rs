//! The partitions that this broker owns, is to own and is to give up, by the newest topology it
//! has.
//!
//! Purpose: the differences between the topology and the partitions that the shell owns, told to
//! the shell once each.
//! Invariant: a partition is given up only if the topology names another owner, not if it names
//! none.
//! Not in here: acquiring, releasing; who decided the topology.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_protocol::Topology;
use mtimer_types::{Epoch, PartitionId};

/// Shortest and longest time between two attempts at a partition that was lost, ms.
const AGAIN_MS: (u64, u64) = (250, 5_000);
/// Ownership that lasts this long, ms, ends the count of failures before it.
const SETTLED_MS: u64 = 10_000;

/// An action for the shell on one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnershipChange {
    Own(PartitionId),
    Disown(PartitionId),
}

/// The latest attempt to acquire a partition that this broker was assigned.
#[derive(Clone, Copy, Debug, Default)]
struct AcquisitionAttempt {
    /// When it was asked for last.
    asked: u64,
    /// It is under way.
    open: bool,
    /// How long after that it is asked for again, ms.
    wait: u64,
    /// When it is to be asked for again.
    again: Option<u64>,
}

/// The partitions that the shell owns, and the requests that it knows of.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// And since when.
    owned: BTreeMap<PartitionId, (Epoch, u64)>,
    /// To be handed over; the shell knows.
    leaving: BTreeSet<PartitionId>,
    attempts: BTreeMap<PartitionId, AcquisitionAttempt>,
}

impl Holdings {
    pub(super) fn owned(&self) -> impl Iterator<Item = (PartitionId, Epoch)> {
        self.owned.iter().map(|(p, (epoch, _))| (*p, *epoch))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// Whether something is on its way to another broker.
    pub(super) fn hands_over(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether everything owned is to stay here, or has nowhere else to go.
    pub(super) fn stays(&self, topology: &Topology, me: &str) -> bool {
        self.owned.keys().all(|p| topology.owner(*p).is_none_or(|owner| owner == me))
    }

    /// A newer topology. `stopping`: nothing new is taken.
    pub(super) fn adopt(
        &mut self,
        now: u64,
        topology: &Topology,
        me: &str,
        stopping: bool,
    ) -> Vec<OwnershipChange> {
        let all = (0..topology.owners.len()).map(|p| PartitionId(p as u16));
        all.filter_map(|p| self.compare(now, topology, me, stopping, p)).collect()
    }

    /// Stops: partitions that are being acquired are not wanted any more.
    pub(super) fn stop(&mut self) -> Vec<OwnershipChange> {
        let open =
            self.attempts.iter().filter(|(_, a)| a.open).map(|(p, _)| OwnershipChange::Disown(*p)).collect();
        self.attempts.clear();
        open
    }

    fn compare(
        &mut self,
        now: u64,
        topology: &Topology,
        me: &str,
        stopping: bool,
        partition: PartitionId,
    ) -> Option<OwnershipChange> {
        let owner = topology.owner(partition);
        let owned = self.owned.contains_key(&partition);
        if owner == Some(me) {
            return (!owned && !stopping).then(|| self.ask(now, partition));
        }
        let attempt = self.attempts.remove(&partition);
        if owned {
            return (owner.is_some() && self.leaving.insert(partition))
                .then_some(OwnershipChange::Disown(partition));
        }
        attempt.filter(|a| a.open).map(|_| OwnershipChange::Disown(partition))
    }

    fn ask(&mut self, now: u64, partition: PartitionId) -> OwnershipChange {
        let attempt = self.attempts.entry(partition).or_default();
        (attempt.asked, attempt.open, attempt.again) = (now, true, None);
        OwnershipChange::Own(partition)
    }

    /// A partition was acquired.
    pub(super) fn gained(
        &mut self,
        now: u64,
        partition: PartitionId,
        epoch: Epoch,
        topology: Option<&Topology>,
        me: &str,
    ) -> Option<OwnershipChange> {
        self.owned.insert(partition, (epoch, now));
        self.leaving.remove(&partition);
        if let Some(attempt) = self.attempts.get_mut(&partition) {
            (attempt.open, attempt.again) = (false, None);
        }
        let owner = topology.and_then(|t| t.owner(partition))?;
        (owner != me && self.leaving.insert(partition)).then_some(OwnershipChange::Disown(partition))
    }

    /// An ownership or an attempt ended. `wanted`: it is still assigned to this broker, and is
    /// asked for again in a while.
    pub(super) fn lost(&mut self, now: u64, partition: PartitionId, wanted: bool) {
        let ownership = self.owned.remove(&partition);
        self.leaving.remove(&partition);
        if !wanted {
            self.attempts.remove(&partition);
            return;
        }
        let attempt = self.attempts.entry(partition).or_default();
        if ownership.is_some_and(|(_, since)| now.saturating_sub(since) >= SETTLED_MS) {
            attempt.wait = 0;
        }
        attempt.open = false;
        if attempt.again.is_none() {
            attempt.again = Some(now.max(attempt.asked + attempt.wait));
            attempt.wait = (attempt.wait * 2).clamp(AGAIN_MS.0, AGAIN_MS.1);
        }
    }

    /// The changes that are to be asked for again by now.
    pub(super) fn due(&mut self, now: u64) -> Vec<OwnershipChange> {
        let due = |a: &AcquisitionAttempt| a.again.is_some_and(|at| at <= now);
        let partitions: Vec<_> = self.attempts.iter().filter(|(_, a)| due(a)).map(|(p, _)| *p).collect();
        partitions.into_iter().map(|p| self.ask(now, p)).collect()
    }

    pub(super) fn next(&self) -> u64 {
        self.attempts.values().filter_map(|a| a.again).min().unwrap_or(u64::MAX)
    }
}
