//! The Redis below a cluster of brokers: one server, or a Redis Cluster with or without replicas.

use std::time::Duration;

use mtimer_store_redis::test_support::{Place, Server, ServerOptions, TestCluster};

use crate::drain::is_leak;
use crate::wait_for;

/// How long a promotion may take: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Which Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedisKind {
    /// One server.
    One,
    /// One server with an append-only file that is synced every second.
    AppendOnly,
    /// Three masters.
    Masters,
    /// Three masters with a replica each.
    Replicated,
}

/// See the module. Killed on drop.
#[derive(Debug)]
pub enum Redis {
    /// One server.
    One(Server),
    /// Three masters and their replicas, if there are any.
    Many {
        /// The masters at first.
        masters: TestCluster,
        /// The replica of each, in the masters' order.
        replicas: Vec<Server>,
    },
}

impl Redis {
    /// Three masters in one place.
    pub fn masters_in(place: Place) -> Self {
        Self::Many { masters: TestCluster::start_in(place), replicas: Vec::new() }
    }

    /// Starts it and waits until it is well.
    pub fn start(kind: RedisKind) -> Self {
        match kind {
            RedisKind::One => Self::One(Server::start_with(ServerOptions::default())),
            RedisKind::AppendOnly => {
                // Never rewritten, so that tests can cut it.
                let extra = ["--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"];
                let extra = extra.map(str::to_owned).to_vec();
                Self::One(Server::start_with(ServerOptions {
                    append_only: true,
                    extra,
                    ..ServerOptions::default()
                }))
            }
            RedisKind::Masters => Self::Many { masters: TestCluster::start(), replicas: Vec::new() },
            RedisKind::Replicated => {
                let masters = TestCluster::start();
                let replicas: Vec<Server> =
                    (0..masters.nodes.len()).map(|master| masters.add_replica(master)).collect();
                // Brokers count a replica once they have seen it.
                replicas.iter().for_each(|replica| masters.wait_until_listed(replica));
                Self::Many { masters, replicas }
            }
        }
    }

    /// As a broker takes it.
    pub fn urls(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Many { masters, .. } => masters.urls().join(","),
        }
    }

    /// The one server, to be killed and started again.
    pub fn one_mut(&mut self) -> &mut Server {
        match self {
            Self::One(server) => server,
            Self::Many { .. } => panic!("this Redis is a cluster"),
        }
    }

    /// The one server.
    pub fn one(&self) -> &Server {
        match self {
            Self::One(server) => server,
            Self::Many { .. } => panic!("this Redis is a cluster"),
        }
    }

    /// The masters at first, and their replicas.
    pub fn many(&mut self) -> (&mut TestCluster, &mut Vec<Server>) {
        match self {
            Self::One(_) => panic!("this Redis is no cluster"),
            Self::Many { masters, replicas } => (masters, replicas),
        }
    }

    /// The server that has a key, as long as no master has died and no slot was moved.
    pub fn server_of(&self, key: &str) -> &Server {
        match self {
            Self::One(server) => server,
            Self::Many { masters, .. } => &masters.nodes[masters.node_of(key)],
        }
    }

    /// Kills a master and has its replica take its place; returns when that one says that it is a
    /// master.
    pub async fn fail_over(&mut self, master: usize) {
        let (masters, replicas) = self.many();
        masters.nodes[master].kill();
        let replica = &replicas[master];
        // Without waiting for the other masters to agree that it is dead: what is tested is not
        // Redis.
        replica.call::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        wait_for("a promoted replica", TIMEOUT, async || is_master(replica)).await;
    }

    /// Starts a master that was failed over again: it becomes the replica of who took its place,
    /// and the two change names.
    pub fn bring_back(&mut self, master: usize) {
        let (masters, replicas) = self.many();
        masters.nodes[master].restart();
        let (old, new) = (&masters.nodes[master], &replicas[master]);
        let began = std::time::Instant::now();
        let synced = || {
            let info = old.try_call::<String>(&["INFO", "replication"]);
            info.is_ok_and(|i| i.contains("role:slave") && i.contains("master_link_status:up"))
        };
        while !synced() {
            assert!(began.elapsed() < TIMEOUT, "no replica of {} within {TIMEOUT:?}", new.address());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::mem::swap(&mut masters.nodes[master], &mut replicas[master]);
    }

    /// What is left in it that should not be there.
    pub fn leaks(&self) -> Vec<String> {
        let servers: Vec<&Server> = match self {
            Self::One(server) => vec![server],
            Self::Many { masters, replicas } => masters.nodes.iter().chain(replicas).collect(),
        };
        let of = |server: &&Server| {
            let keys = server.keys();
            keys.into_iter().filter(|key| is_leak(server, key)).collect::<Vec<_>>()
        };
        let leaks = servers.iter().filter(|server| is_master(server)).flat_map(of);
        leaks.map(|key| format!("the key {key} is left in Redis")).collect()
    }
}

/// Whether a server is there and is a master.
fn is_master(server: &Server) -> bool {
    let info = server.try_call::<String>(&["INFO", "replication"]);
    info.is_ok_and(|info| info.contains("role:master"))
}
