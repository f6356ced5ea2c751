//! Stores that lose their last writes: by a failover to a replica that lags, or by a restart from
//! an append-only file without its end. Between a master and its replica is a proxy: the replica
//! stays connected and lags.

use mtimer_store_redis::test_support::{
    Proxy, Sentinels, Server, ServerOptions, TestCluster, as_user, documented_rights, user_with,
};

use super::until;

/// The owner record of the tests' partition.
pub const OWNER: &str = "owner:{2}:t";

/// Where a store loses the last writes.
pub enum LosingStore {
    Failover {
        master: Server,
        replica: Server,
        proxy: Proxy,
    },
    ClusterFailover {
        cluster: TestCluster,
        replica: Server,
        proxy: Proxy,
    },
    /// Sentinels promote the replica.
    SentinelFailover {
        master: Server,
        replica: Server,
        sentinels: Sentinels,
        proxy: Proxy,
    },
    /// Restarted from an append-only file without its end.
    Restart {
        server: Server,
        kept: u64,
    },
}

impl LosingStore {
    pub async fn failover() -> Self {
        let master = Server::start();
        let proxy = Proxy::start(&master.address()).await;
        Self::Failover { replica: master.add_replica_behind(&proxy), master, proxy }
    }

    pub async fn cluster_failover() -> Self {
        let mut cluster = TestCluster::start();
        let master = cluster.node_of(OWNER);
        let proxy = Proxy::start(&cluster.nodes[master].address()).await;
        let replica = tokio::task::block_in_place(|| {
            cluster.announce(master, proxy.port());
            cluster.add_replica(master)
        });
        cluster.wait_until_listed(&replica);
        Self::ClusterFailover { cluster, replica, proxy }
    }

    /// Sentinels, their clients and the replica reach the master through the proxy.
    pub async fn sentinel_failover() -> Self {
        let master = Server::start();
        let proxy = Proxy::start(&master.address()).await;
        let replica = master.add_replica_behind(&proxy);
        // The store has the rights that operators are told to give it, and no others.
        let user =
            [vec!["ACL".to_owned(), "SETUSER".to_owned()], user_with(&documented_rights("t"))[1..].to_vec()];
        let user = user.concat();
        for server in [&master, &replica] {
            server.call::<()>(&user.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let sentinels = tokio::task::block_in_place(|| Sentinels::start_at("shop", proxy.address()));
        Self::SentinelFailover { sentinels, master, replica, proxy }
    }

    pub fn restart() -> Self {
        let extra = vec!["--appendfsync".to_owned(), "no".to_owned()];
        let options = ServerOptions { append_only: true, extra, ..ServerOptions::default() };
        Self::Restart { server: Server::start_with(options), kept: 0 }
    }

    pub fn urls(&self) -> Vec<String> {
        match self {
            Self::Failover { master, replica, .. } => vec![master.url(), replica.url()],
            Self::ClusterFailover { cluster, .. } => cluster.urls(),
            Self::SentinelFailover { sentinels, .. } => {
                sentinels.urls().iter().map(|url| as_user(url)).collect()
            }
            Self::Restart { server, .. } => vec![server.url()],
        }
    }

    /// The server that has the partition before the failure.
    pub fn master(&self) -> &Server {
        match self {
            Self::Failover { master, .. } | Self::SentinelFailover { master, .. } => master,
            Self::ClusterFailover { cluster, .. } => &cluster.nodes[cluster.node_of(OWNER)],
            Self::Restart { server, .. } => server,
        }
    }

    /// The server that has it afterwards.
    pub fn successor(&self) -> &Server {
        match self {
            Self::Failover { replica, .. }
            | Self::ClusterFailover { replica, .. }
            | Self::SentinelFailover { replica, .. } => replica,
            Self::Restart { server, .. } => server,
        }
    }

    pub fn length(server: &Server) -> u64 {
        server.append_only_file().metadata().unwrap().len()
    }

    /// Writes from here on are going to be lost.
    pub fn begin_to_lose(&mut self) {
        match self {
            Self::Restart { server, kept } => *kept = Self::length(server),
            Self::Failover { master, replica, proxy }
            | Self::SentinelFailover { master, replica, proxy, .. } => {
                master.wait_for_replica(replica);
                proxy.hold_replicas();
            }
            Self::ClusterFailover { cluster, replica, proxy } => {
                cluster.nodes[cluster.node_of(OWNER)].wait_for_replica(replica);
                proxy.hold_replicas();
            }
        }
    }

    /// Lets the replica have the data held back, and all that follows.
    pub fn let_replica_follow(&self) {
        match self {
            Self::Failover { proxy, .. }
            | Self::ClusterFailover { proxy, .. }
            | Self::SentinelFailover { proxy, .. } => proxy.let_through(),
            Self::Restart { .. } => {}
        }
    }

    /// Waits until the store has asked in vain whether the replica has everything.
    pub async fn let_trimming_fail(&self) {
        if let Self::Restart { .. } = self {
            return;
        }
        let waits = || self.master().calls_of("wait");
        let before = waits();
        until("the replica is asked for twice", || waits() >= before + 2).await;
    }

    /// Makes the server fail, and loses some of the data in the digest.
    pub fn fail(&mut self, digest: &str) {
        let loses = |server: &Server| assert_ne!(server.digest(), digest, "nothing is lost");
        match self {
            Self::Failover { master, replica, proxy } => {
                master.kill();
                proxy.down();
                loses(replica);
                replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
            }
            Self::ClusterFailover { cluster, replica, proxy } => {
                let master = cluster.node_of(OWNER);
                cluster.nodes[master].kill();
                proxy.down();
                loses(replica);
                replica.call::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
            }
            Self::SentinelFailover { master, replica, sentinels, proxy } => {
                master.kill();
                proxy.down();
                loses(replica);
                sentinels.wait_for_master(replica);
            }
            Self::Restart { server, kept } => {
                server.kill();
                // The first bytes of a transaction that is not complete.
                let file = std::fs::File::options().write(true).open(server.append_only_file()).unwrap();
                file.set_len(*kept + 10).unwrap();
                server.restart();
                loses(server);
            }
        }
    }
}
