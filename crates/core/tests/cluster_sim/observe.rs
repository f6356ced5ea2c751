//! The state of a simulated cluster at this moment.

use mtimer_protocol::Topology;
use mtimer_types::{Epoch, PartitionId};

use super::{World, index};

impl World {
    pub(crate) fn leader(&self) -> Option<usize> {
        (0..self.procs.len()).find(|i| {
            let p = self.procs[*i].as_ref().filter(|p| !p.paused);
            p.is_some_and(|p| p.node.view(p.clock.local(self.now)).leads)
        })
    }

    /// The leader's newest topology.
    pub(crate) fn topology(&self) -> Option<&Topology> {
        let leader = self.procs[self.leader()?].as_ref()?;
        leader.node.topology().map(|t| &**t)
    }

    /// Partitions that no living broker owns.
    pub(crate) fn orphans(&self) -> usize {
        let owned = |n: &u16| {
            let epoch = Epoch(self.store.owners[usize::from(*n)].epoch);
            self.procs.iter().flatten().any(|p| p.owned.get(&PartitionId(*n)) == Some(&epoch))
        };
        (0..self.plan.partitions).filter(|n| !owned(n)).count()
    }

    /// By partition: the address that it is assigned to.
    pub(crate) fn assigned(&self) -> Vec<Option<String>> {
        let Some(t) = self.topology() else { return Vec::new() };
        (0..self.plan.partitions).map(|n| t.owner(PartitionId(n)).map(str::to_owned)).collect()
    }

    /// The first difference from the state that everything should be in, if any.
    pub(crate) fn missing(&self) -> Option<String> {
        let Some(t) = self.topology() else { return Some("there is no leader with a topology".into()) };
        let mut counts = vec![0usize; self.procs.len()];
        for n in 0..self.plan.partitions {
            let p = PartitionId(n);
            let Some(i) = t.owner(p).and_then(index) else { return Some(format!("{n} is nobody's")) };
            counts[i] += 1;
            let owner = self.procs[i].as_ref();
            if !owner.is_some_and(|o| {
                o.owned.get(&p).is_some_and(|e| e.0 == self.store.owners[usize::from(n)].epoch)
            }) {
                return Some(format!("{n} is to be n{i}'s and is not"));
            }
        }
        let live: Vec<usize> = (0..self.procs.len()).filter(|i| self.procs[*i].is_some()).collect();
        let (min, max) = (live.iter().map(|i| counts[*i]).min()?, live.iter().map(|i| counts[*i]).max()?);
        if t.brokers.len() != live.len() {
            return Some(format!("{} of {} brokers are members", t.brokers.len(), live.len()));
        }
        (max - min > 1).then(|| format!("not balanced: {counts:?}"))
    }
}
