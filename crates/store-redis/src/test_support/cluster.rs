//! A Redis Cluster of three masters.

use std::time::{Duration, Instant};

use super::server::{Place, Server, ServerOptions};

/// How long the nodes may take to agree.
const AGREE_WITHIN: Duration = Duration::from_secs(60);
/// Hash slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// Masters with a third of the hash slots each. Killed on drop.
#[derive(Debug)]
pub struct TestCluster {
    /// The masters.
    pub nodes: Vec<Server>,
}

impl TestCluster {
    /// Starts three masters and waits until the cluster is ok.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with more of each server's command line.
    pub fn start_with(extra: &[&str]) -> Self {
        let extra: Vec<String> = extra.iter().map(|s| (*s).to_owned()).collect();
        Self::start_as(ServerOptions { extra, ..ServerOptions::default() })
    }

    /// The same, all in one place.
    pub fn start_in(place: Place) -> Self {
        Self::start_as(ServerOptions { place: Some(place), ..ServerOptions::default() })
    }

    fn start_as(options: ServerOptions) -> Self {
        Self::start_each([options.clone(), options.clone(), options])
    }

    /// The same, each server in its own way.
    pub fn start_each(options: [ServerOptions; 3]) -> Self {
        let start = |options| Server::start_with(ServerOptions { cluster: true, ..options });
        let nodes: Vec<_> = options.into_iter().map(start).collect();
        let third = SLOTS / 3 + 1;
        for (i, node) in nodes.iter().enumerate() {
            let from = third * i as u16;
            let to = (from + third - 1).min(SLOTS - 1);
            node.call::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            node.call::<()>(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
        }
        for node in &nodes[1..] {
            nodes[0].call::<()>(&["CLUSTER", "MEET", &node.host().to_string(), &node.port().to_string()]);
        }
        let this = Self { nodes };
        this.wait(|info| info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3"));
        this
    }

    /// Has a master reached by a proxy's port, by clients and by replicas. Waits until all masters
    /// know that.
    pub fn announce(&mut self, master: usize, port: u16) {
        self.nodes[master].announce_port(port);
        self.wait_until_announced(port);
    }

    /// Waits until all masters list a server at this port among those that have data.
    pub fn wait_until_announced(&self, port: u16) {
        until(|| self.nodes.iter().all(|node| lists(node, port)));
    }

    /// Starts a replica of a master and waits until it has everything.
    pub fn add_replica(&self, master: usize) -> Server {
        let replica = self.add_empty_replica(master);
        until(|| replica.call::<String>(&["INFO", "replication"]).contains("master_link_status:up"));
        until(|| replica.call::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
        replica
    }

    /// Starts a replica of a master and waits until all masters know it.
    pub fn add_empty_replica(&self, master: usize) -> Server {
        let replica = Server::start_with(ServerOptions { cluster: true, ..ServerOptions::default() });
        let (id, port) = (self.node_id(master), self.nodes[master].port().to_string());
        replica.call::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        // Refused until it has heard of its master.
        until(|| replica.try_call::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok());
        // The nodes that vote for it must know it.
        let known =
            |node: &Server| node.call::<String>(&["CLUSTER", "NODES"]).contains(&format!("slave {id}"));
        until(|| self.nodes.iter().all(known));
        replica
    }

    /// Waits until all masters list a replica among those that have data.
    pub fn wait_until_listed(&self, replica: &Server) {
        self.wait_until_announced(replica.port());
    }

    fn wait(&self, ready: impl Fn(&str) -> bool) {
        until(|| self.nodes.iter().all(|n| ready(&n.call::<String>(&["CLUSTER", "INFO"]))));
    }

    /// As the store takes them.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The hash slot of a key.
    pub fn hash_slot(&self, key: &str) -> u16 {
        self.nodes[0].call(&["CLUSTER", "KEYSLOT", key])
    }

    /// The number of the node that has a key's hash slot.
    pub fn node_of(&self, key: &str) -> usize {
        let slot = self.hash_slot(key);
        (slot / (SLOTS / 3 + 1)) as usize
    }

    /// The name by which the cluster knows a node.
    pub fn node_id(&self, node: usize) -> String {
        self.nodes[node].call(&["CLUSTER", "MYID"])
    }

    /// Begins to move a key's hash slot: it stays half way until [`Self::finish_migration`].
    pub fn begin_migration(&self, key: &str, from: usize, to: usize) {
        let slot = self.hash_slot(key).to_string();
        self.nodes[to].call::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.node_id(from)]);
        self.nodes[from].call::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.node_id(to)]);
    }

    /// Moves all keys of a hash slot.
    pub fn migrate_keys(&self, key: &str, from: usize, to: usize) {
        let slot = self.hash_slot(key).to_string();
        loop {
            let keys: Vec<String> = self.nodes[from].call(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            if keys.is_empty() {
                return;
            }
            let port = self.nodes[to].port().to_string();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            self.nodes[from].call::<()>(&migrate);
        }
    }

    /// Ends a migration: the new node has the hash slot.
    pub fn finish_migration(&self, key: &str, to: usize) {
        let slot = self.hash_slot(key).to_string();
        let id = self.node_id(to);
        self.nodes[to].call::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        for node in &self.nodes {
            node.call::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// Cuts a master off from the others, though not from clients: it forgets them, and hears
    /// nothing from nodes that it does not know. For a minute, and longer. Waits until it answers
    /// `CLUSTERDOWN`.
    pub fn isolate(&self, node: usize) {
        let nodes: String = self.nodes[node].call(&["CLUSTER", "NODES"]);
        for line in nodes.lines().filter(|line| !line.contains("myself")) {
            let id = line.split(' ').next().expect("an id");
            self.nodes[node].call::<()>(&["CLUSTER", "FORGET", id]);
        }
        let deadline = Instant::now() + AGREE_WITHIN;
        while !self.is_down(node) {
            assert!(Instant::now() < deadline, "the master is not cut off within {AGREE_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether a node knows of no quorum.
    pub fn is_down(&self, node: usize) -> bool {
        self.nodes[node].call::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:fail")
    }

    /// All keys of all nodes, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.nodes.iter().flat_map(Server::keys).collect();
        keys.sort_unstable();
        keys
    }
}

/// Whether a node lists a server of this port among those that have data.
fn lists(node: &Server, port: u16) -> bool {
    let port = redis::Value::Int(port.into());
    let slots: Vec<Vec<redis::Value>> = node.call(&["CLUSTER", "SLOTS"]);
    let is_it = |row: &redis::Value| matches!(row, redis::Value::Array(row) if row.get(1) == Some(&port));
    slots.iter().flatten().any(is_it)
}

fn until(agreed: impl Fn() -> bool) {
    let deadline = Instant::now() + AGREE_WITHIN;
    while !agreed() {
        assert!(Instant::now() < deadline, "the nodes do not agree within {AGREE_WITHIN:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
