//! Which connection something goes to: pure decisions, from the newest topology and the connections
//! that are open.
//!
//! Invariant: a topology never gives way to an older one. The owner that a broker's `Moved` has
//! named for a partition counts until a newer topology comes or the connection to that owner goes.
//!
//! Not in here: messages that wait to be sent, and how connections are made.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mtimer_protocol::Topology;
use mtimer_types::PartitionId;

use crate::machine::origin::{Fate, Origin};

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
    connections: BTreeMap<u64, OpenRoute>,
    /// By partition: where requests go.
    table: Vec<Option<u64>>,
    /// See [`Routes::departing`].
    departing: Vec<u64>,
}

impl Routes {
    pub(crate) fn new(partitions: u16) -> Self {
        let table = vec![None; usize::from(partitions)];
        let connections = BTreeMap::new();
        Self { topology: None, learned: BTreeMap::new(), connections, table, departing: Vec::new() }
    }

    pub(crate) fn topology(&self) -> Option<&Arc<Topology>> {
        self.topology.as_ref()
    }

    /// A connection is there. If its broker has no cluster around it, the known topology is
    /// forgotten.
    pub(crate) fn opened(&mut self, origin: &Origin) {
        if origin.name.is_none() {
            self.topology = None;
            self.learned.clear();
        }
        self.connections.insert(origin.connection, OpenRoute { name: origin.name.clone(), stopping: false });
        self.rebuild();
    }

    /// A broker wants to stop: it gets outcomes only.
    pub(crate) fn stopping(&mut self, connection: u64) {
        if let Some(open) = self.connections.get_mut(&connection) {
            open.stopping = true;
        }
        self.rebuild();
    }

    pub(crate) fn closed(&mut self, connection: u64) {
        if let Some(OpenRoute { name: Some(name), .. }) = self.connections.remove(&connection) {
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
    pub(crate) fn disowned(&mut self, partition: PartitionId, connection: u64) {
        let name = self.connections.get(&connection).and_then(|open| open.name.as_ref());
        if name.is_some() && self.learned.get(&partition) == name {
            self.learned.remove(&partition);
            self.rebuild();
        }
    }

    /// Brokers among which a registration's credit is divided.
    pub(crate) fn brokers(&self) -> u32 {
        self.topology.as_ref().map_or(1, |t| t.brokers.len().max(1) as u32)
    }

    /// Connections that are left once nothing is open over them: to a broker that stops and has no
    /// others around it, and to one that is no part of the cluster. (One of a cluster that stops
    /// may still deliver timers that it had taken before it hands over.)
    pub(crate) fn departing(&self) -> &[u64] {
        &self.departing
    }

    /// Whether this broker is not (or no longer) a part of the cluster, while others are there that
    /// are.
    fn is_outside(&self, connection: u64) -> bool {
        let Some(topology) = &self.topology else { return false };
        let inside =
            |open: &OpenRoute| topology.brokers.iter().any(|b| Some(&b.address) == open.name.as_ref());
        let outside =
            self.connections.get(&connection).is_some_and(|open| open.name.is_some() && !inside(open));
        outside && self.connections.values().any(inside)
    }

    /// Where requests about a partition go; `None`: nobody who is connected is known to own it.
    pub(crate) fn request_connection(&self, partition: PartitionId) -> Option<u64> {
        self.table.get(usize::from(partition.0)).copied().flatten()
    }

    /// Where a question goes.
    pub(crate) fn query_connection(&self, goal: &Goal) -> Option<u64> {
        let leader = || self.topology.as_ref().map(|t| t.leader.as_str());
        let named = |name: &str| self.named(name).filter(|s| !self.connections[s].stopping).or(self.alone());
        match goal {
            Goal::Partition(partition) => self.request_connection(*partition),
            Goal::Broker(name) => named(name),
            Goal::Leader => leader().map_or(self.any(), named),
            Goal::Informed => leader().and_then(named).or(self.any()),
        }
    }

    /// Why nothing can be sent to `goal`, for people; names the broker. `fault`: why the last
    /// connection was not made.
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
    pub(crate) fn settle_connection(&self, partition: PartitionId, over: &Origin) -> Option<u64> {
        let owner = self.owner(partition);
        if self.connections.contains_key(&over.connection)
            && (owner.is_none() || owner == over.name.as_deref())
        {
            return Some(over.connection);
        }
        owner.and_then(|owner| self.named(owner)).or(self.alone())
    }

    /// Whether an outcome other than ok is worth sending to `connection`: its broker can know of the
    /// delivery only if the one that made it has handed over its in-flight list. That one does so
    /// to another broker, and to the next process at its own address if it stopped gracefully;
    /// after a loss it has counted the delivery as failed.
    pub(crate) fn may_know(&self, connection: u64, over: &Origin) -> bool {
        let name = self.connections.get(&connection).and_then(|open| open.name.as_ref());
        let another = name.is_some() && over.name.is_some() && name != over.name.as_ref();
        connection == over.connection || another || over.fate() == Fate::Ended
    }

    /// The addresses of brokers that can be asked.
    pub(crate) fn connected(&self) -> impl Iterator<Item = &str> {
        self.connections.values().filter(|open| !open.stopping).filter_map(|open| open.name.as_deref())
    }

    /// The partitions that requests can be sent about just now.
    pub(crate) fn reachable(&self) -> Vec<PartitionId> {
        let all = (0..).map(PartitionId).zip(&self.table);
        all.filter(|(_, connection)| connection.is_some()).map(|(partition, _)| partition).collect()
    }

    fn owner(&self, partition: PartitionId) -> Option<&str> {
        let assigned = || self.topology.as_ref().and_then(|t| t.owner(partition));
        self.learned.get(&partition).map(String::as_str).or_else(assigned)
    }

    fn named(&self, name: &str) -> Option<u64> {
        self.connections
            .iter()
            .find(|(_, open)| open.name.as_deref() == Some(name))
            .map(|(connection, _)| *connection)
    }

    /// A broker without a cluster around it: it owns everything.
    fn alone(&self) -> Option<u64> {
        let alone = |open: &OpenRoute| open.name.is_none() && !open.stopping;
        self.connections.iter().find(|(_, open)| alone(open)).map(|(connection, _)| *connection)
    }

    fn any(&self) -> Option<u64> {
        self.connections.iter().find(|(_, open)| !open.stopping).map(|(connection, _)| *connection)
    }

    fn rebuild(&mut self) {
        let open = self.connections.iter().filter(|(_, open)| !open.stopping);
        let by_name: HashMap<&str, u64> =
            open.filter_map(|(connection, open)| Some((open.name.as_deref()?, *connection))).collect();
        let alone = self.alone();
        let connection = |partition| self.owner(partition).and_then(|o| by_name.get(o).copied()).or(alone);
        let table: Vec<_> = (0..).map(PartitionId).take(self.table.len()).map(connection).collect();
        self.table = table;
        let stops = |open: &OpenRoute| open.stopping && open.name.is_none();
        let departs = |(n, open): (&u64, &OpenRoute)| (stops(open) || self.is_outside(*n)).then_some(*n);
        self.departing = self.connections.iter().filter_map(departs).collect();
    }
}

#[cfg(test)]
mod tests;
