//! Which connection something goes to: pure decisions, from the newest topology and the connections
//! that are open.
//!
//! Invariant: a topology never gives way to an older one. What a broker's `Moved` taught about a
//! partition holds until a newer topology comes or the connection to that owner goes.
//!
//! Not in here: what waits to be sent, and how connections are made.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mtimer_protocol::Topology;
use mtimer_types::PartitionId;

use crate::handle::{Fate, SessionHandle};

/// Who is to be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// The owner of a partition.
    Partition(PartitionId),
    /// The leader.
    Leader,
    /// The leader, or anybody if there is no connection to it.
    Informed,
    /// A broker by its address in the topology.
    Broker(String),
}

#[derive(Debug)]
struct OpenRoute {
    name: Option<String>,
    stopping: bool,
}

#[derive(Debug)]
pub(crate) struct Routes {
    topology: Option<Arc<Topology>>,
    learned: BTreeMap<PartitionId, String>,
    sessions: BTreeMap<u64, OpenRoute>,
    /// By partition: where requests go.
    table: Vec<Option<u64>>,
}

impl Routes {
    pub(crate) fn new(partitions: u16) -> Self {
        let table = vec![None; usize::from(partitions)];
        Self { topology: None, learned: BTreeMap::new(), sessions: BTreeMap::new(), table }
    }

    pub(crate) fn topology(&self) -> Option<&Arc<Topology>> {
        self.topology.as_ref()
    }

    /// A connection is there. A broker without a cluster around it ends what was known of one.
    pub(crate) fn opened(&mut self, handle: &SessionHandle) {
        if handle.name.is_none() {
            self.topology = None;
            self.learned.clear();
        }
        self.sessions.insert(handle.session, OpenRoute { name: handle.name.clone(), stopping: false });
        self.rebuild();
    }

    /// A broker wants to stop: it gets outcomes only.
    pub(crate) fn stopping(&mut self, session: u64) {
        if let Some(open) = self.sessions.get_mut(&session) {
            open.stopping = true;
        }
        self.rebuild();
    }

    pub(crate) fn closed(&mut self, session: u64) {
        if let Some(OpenRoute { name: Some(name), .. }) = self.sessions.remove(&session) {
            self.learned.retain(|_, owner| *owner != name);
        }
        self.rebuild();
    }

    /// Takes a topology in; says whether it is newer than the one before.
    pub(crate) fn observe(&mut self, topology: Topology) -> bool {
        if self.topology.as_ref().is_some_and(|known| known.stamp() >= topology.stamp()) {
            return false;
        }
        self.learned.clear();
        self.topology = Some(Arc::new(topology));
        self.rebuild();
        true
    }

    /// A broker named another one as a partition's owner. Without a connection to that one it is of
    /// no use.
    pub(crate) fn moved(&mut self, partition: PartitionId, owner: &str) {
        if self.named(owner).is_some() && self.owner(partition) != Some(owner) {
            self.learned.insert(partition, owner.to_owned());
            self.rebuild();
        }
    }

    /// The broker at the end of this connection says that a partition is not its own, and knows no
    /// other owner.
    pub(crate) fn disowned(&mut self, partition: PartitionId, session: u64) {
        let name = self.sessions.get(&session).and_then(|open| open.name.as_ref());
        if name.is_some() && self.learned.get(&partition) == name {
            self.learned.remove(&partition);
            self.rebuild();
        }
    }

    /// Brokers among which a registration's credit is divided.
    pub(crate) fn brokers(&self) -> u32 {
        self.topology.as_ref().map_or(1, |t| t.brokers.len().max(1) as u32)
    }

    /// Whether this broker is not (or no longer) a part of the cluster, while others are there that
    /// are.
    pub(crate) fn is_outside(&self, session: u64) -> bool {
        let Some(topology) = &self.topology else { return false };
        let inside =
            |open: &OpenRoute| topology.brokers.iter().any(|b| Some(&b.address) == open.name.as_ref());
        let outside = self.sessions.get(&session).is_some_and(|open| open.name.is_some() && !inside(open));
        outside && self.sessions.values().any(inside)
    }

    /// Where requests about a partition go; `None`: nobody who is connected is known to own it.
    pub(crate) fn request_session(&self, partition: PartitionId) -> Option<u64> {
        self.table.get(usize::from(partition.0)).copied().flatten()
    }

    /// Where a question goes.
    pub(crate) fn query_session(&self, goal: &Goal) -> Option<u64> {
        let leader = || self.topology.as_ref().map(|t| t.leader.as_str());
        let named = |name: &str| self.named(name).filter(|s| !self.sessions[s].stopping).or(self.alone());
        match goal {
            Goal::Partition(partition) => self.request_session(*partition),
            Goal::Broker(name) => named(name),
            Goal::Leader => leader().map_or(self.any(), named),
            Goal::Informed => leader().and_then(named).or(self.any()),
        }
    }

    /// Why nothing can be sent to whom it concerns, for people; names the broker. `fault`: why the
    /// last connection was not made.
    pub(crate) fn why_unrouted(&self, goal: &Goal, fault: &str) -> String {
        let (who, what) = match goal {
            Goal::Partition(partition) => (self.owner(*partition), "the partition's owner"),
            Goal::Broker(name) => (Some(name.as_str()), "the broker"),
            Goal::Leader | Goal::Informed => {
                (self.topology.as_ref().map(|t| t.leader.as_str()), "the leader")
            }
        };
        match who {
            Some(who) if fault.contains(who) => format!("{what}, {who}, is not connected: {fault}"),
            Some(who) => format!("{what}, {who}, is not connected"),
            None => format!("{what} is not known"),
        }
    }

    /// Where the outcome of a delivery goes that came over connection `over`: back over it while
    /// its broker owns the partition, else to the owner; `None`: the owner is not connected.
    pub(crate) fn settle_session(&self, partition: PartitionId, over: &SessionHandle) -> Option<u64> {
        let owner = self.owner(partition);
        if self.sessions.contains_key(&over.session) && (owner.is_none() || owner == over.name.as_deref()) {
            return Some(over.session);
        }
        owner.and_then(|owner| self.named(owner)).or(self.alone())
    }

    /// Whether an outcome other than ok is worth sending to `session`: its broker can know of the
    /// delivery only if the one that made it has handed over its in-flight list. That one does so
    /// to another broker, and to the next process at its own address if it stopped gracefully;
    /// after a loss it has counted the delivery as failed.
    pub(crate) fn may_know(&self, session: u64, over: &SessionHandle) -> bool {
        let name = self.sessions.get(&session).and_then(|open| open.name.as_ref());
        let another = name.is_some() && over.name.is_some() && name != over.name.as_ref();
        session == over.session || another || over.fate() == Fate::Ended
    }

    /// The addresses of brokers that can be asked.
    pub(crate) fn connected(&self) -> impl Iterator<Item = &str> {
        self.sessions.values().filter(|open| !open.stopping).filter_map(|open| open.name.as_deref())
    }

    /// The partitions that requests can be sent about just now.
    pub(crate) fn reachable(&self) -> Vec<PartitionId> {
        let all = (0..).map(PartitionId).zip(&self.table);
        all.filter(|(_, session)| session.is_some()).map(|(partition, _)| partition).collect()
    }

    fn owner(&self, partition: PartitionId) -> Option<&str> {
        let assigned = || self.topology.as_ref().and_then(|t| t.owner(partition));
        self.learned.get(&partition).map(String::as_str).or_else(assigned)
    }

    fn named(&self, name: &str) -> Option<u64> {
        self.sessions.iter().find(|(_, open)| open.name.as_deref() == Some(name)).map(|(session, _)| *session)
    }

    /// A broker without a cluster around it: it owns everything.
    fn alone(&self) -> Option<u64> {
        let alone = |open: &OpenRoute| open.name.is_none() && !open.stopping;
        self.sessions.iter().find(|(_, open)| alone(open)).map(|(session, _)| *session)
    }

    fn any(&self) -> Option<u64> {
        self.sessions.iter().find(|(_, open)| !open.stopping).map(|(session, _)| *session)
    }

    fn rebuild(&mut self) {
        let open = self.sessions.iter().filter(|(_, open)| !open.stopping);
        let by_name: HashMap<&str, u64> =
            open.filter_map(|(session, open)| Some((open.name.as_deref()?, *session))).collect();
        let alone = self.alone();
        let session = |partition| self.owner(partition).and_then(|o| by_name.get(o).copied()).or(alone);
        let table: Vec<_> = (0..).map(PartitionId).take(self.table.len()).map(session).collect();
        self.table = table;
    }
}

#[cfg(test)]
mod tests;
