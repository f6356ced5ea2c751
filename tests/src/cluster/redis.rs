//! The Redis below a cluster of brokers: one server, or a Redis Cluster with or without replicas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mtimer_store_redis::test_support::{
    Place, Sentinels, Server, ServerOptions, TestCluster, as_user, documented_rights, user_with,
};

use super::proxy::{Proxy, Way, Ways};
use crate::drain::is_leak;
use crate::party::Label;
use crate::wait_for;

/// How long a promotion may take: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The first request of a replica, and nothing else's of one that connects.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
/// How proxies name connections of replicas.
const REPLICA: &str = "replica";
/// How long a slow link to a replica takes for a piece of 64 KiB at most, ms.
const SLOW_MS: u64 = 2_000;

/// How a replica lags. It stays connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lag {
    /// What it is sent does not arrive; what it says does.
    Held,
    /// The link to it is slow: it follows, and falls behind ever further.
    Slow,
    /// It is stopped with its machine: it neither receives nor says anything.
    Stopped,
}

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
    /// The same; each server is reached through a proxy that can make its replica lag.
    ReplicatedByProxy,
    /// A master and a replica that Sentinels watch.
    Watched,
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
        /// In front of each server, by the server's port, if there are any.
        proxies: BTreeMap<u16, Proxy>,
    },
    /// A master and a replica.
    Watched {
        /// The master, as Sentinels see it.
        master: Box<Server>,
        /// Its replica.
        replica: Box<Server>,
        /// Those that watch them.
        sentinels: Sentinels,
    },
}

impl Redis {
    /// Three masters in one place.
    pub fn masters_in(place: Place) -> Self {
        Self::of(TestCluster::start_in(place), Vec::new())
    }

    /// Starts it and waits until it is well.
    pub async fn start(kind: RedisKind) -> Self {
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
            RedisKind::Masters => Self::of(TestCluster::start(), Vec::new()),
            RedisKind::Replicated => {
                let masters = TestCluster::start();
                let replicas: Vec<Server> =
                    (0..masters.nodes.len()).map(|master| masters.add_replica(master)).collect();
                // Brokers count a replica once they have seen it.
                replicas.iter().for_each(|replica| masters.wait_until_listed(replica));
                Self::of(masters, replicas)
            }
            RedisKind::ReplicatedByProxy => Self::start_with_proxies().await,
            RedisKind::Watched => Self::start_watched(),
        }
    }

    /// Brokers have a user of their own: Sentinels can lose sight of a server that brokers reach.
    fn start_watched() -> Self {
        let extra = user_with(&documented_rights("t"));
        let options = || ServerOptions { extra: extra.clone(), ..ServerOptions::default() };
        let start = || Box::new(Server::start_with(options()));
        let (master, replica) = (start(), start());
        master.take_as_replica(&replica);
        Self::Watched { sentinels: Sentinels::start("shop", &master), master, replica }
    }

    fn of(masters: TestCluster, replicas: Vec<Server>) -> Self {
        Self::Many { masters, replicas, proxies: BTreeMap::new() }
    }

    async fn start_with_proxies() -> Self {
        let (mut masters, mut replicas) = (TestCluster::start(), Vec::new());
        let mut proxies = BTreeMap::new();
        for master in 0..masters.nodes.len() {
            let proxy = before(&masters.nodes[master]).await;
            tokio::task::block_in_place(|| masters.announce(master, proxy.port()));
            let mut replica = tokio::task::block_in_place(|| masters.add_replica(master));
            proxies.insert(masters.nodes[master].port(), proxy);
            let proxy = before(&replica).await;
            replica.announce_port(proxy.port());
            tokio::task::block_in_place(|| masters.wait_until_announced(proxy.port()));
            proxies.insert(replica.port(), proxy);
            replicas.push(replica);
        }
        Self::Many { masters, replicas, proxies }
    }

    /// As a broker takes it.
    pub fn urls(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Many { masters, .. } => masters.urls().join(","),
            Self::Watched { sentinels, .. } => {
                let urls = sentinels.urls();
                urls.iter().map(|url| as_user(url)).collect::<Vec<_>>().join(",")
            }
        }
    }

    /// The one server, to be killed and started again.
    pub fn one_mut(&mut self) -> &mut Server {
        match self {
            Self::One(server) => server,
            Self::Many { .. } | Self::Watched { .. } => panic!("this Redis is several servers"),
        }
    }

    /// The one server.
    pub fn one(&self) -> &Server {
        match self {
            Self::One(server) => server,
            Self::Many { .. } | Self::Watched { .. } => panic!("this Redis is several servers"),
        }
    }

    /// The masters at first, and their replicas.
    pub fn many(&mut self) -> (&mut TestCluster, &mut Vec<Server>) {
        match self {
            Self::One(_) | Self::Watched { .. } => panic!("this Redis is no cluster"),
            Self::Many { masters, replicas, .. } => (masters, replicas),
        }
    }

    /// The server that has a key, as long as no master has died and no slot was moved.
    pub fn server_of(&self, key: &str) -> &Server {
        match self {
            Self::One(server) => server,
            Self::Many { masters, .. } => &masters.nodes[masters.node_of(key)],
            Self::Watched { master, .. } => master,
        }
    }

    /// Has a master's replica lag from now on, until the master is failed over.
    pub fn make_lag(&self, master: usize, lag: Lag) {
        let Self::Many { masters, replicas, proxies } = self else { panic!("this Redis is no cluster") };
        let way = match lag {
            Lag::Held | Lag::Stopped => Way::Held,
            Lag::Slow => Way::Slow(SLOW_MS),
        };
        let proxy = proxies.get(&masters.nodes[master].port()).expect("a proxy before the master");
        proxy.set_for(REPLICA, Ways::back(way));
        if lag == Lag::Stopped {
            replicas[master].freeze();
        }
    }

    /// How far a master's replica is behind, in bytes; it is asserted that it is connected.
    pub fn lag_of(&self, master: usize) -> u64 {
        let Self::Many { masters, .. } = self else { panic!("this Redis is no cluster") };
        masters.nodes[master].replica_lags_by().expect("a replica that lags is connected")
    }

    /// Kills a master and has its replica take its place; returns when that one says that it is a
    /// master. What has not arrived at a replica that lags is lost.
    pub async fn fail_over(&mut self, master: usize) {
        let Self::Many { masters, replicas, proxies } = self else { panic!("this Redis is no cluster") };
        masters.nodes[master].kill();
        if let Some(proxy) = proxies.get(&masters.nodes[master].port()) {
            // Nothing of what is on its way arrives.
            proxy.set_for(REPLICA, Ways::both(Way::Lost));
            proxy.reset();
        }
        let replica = &replicas[master];
        replica.thaw();
        // Without waiting for the other masters to agree that it is dead: what is tested is not
        // Redis.
        replica.call::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        wait_for("a promoted replica", TIMEOUT, async || is_master(replica)).await;
    }

    /// Starts a master that was failed over again: it becomes the replica of who took its place,
    /// and the two change names.
    pub fn bring_back(&mut self, master: usize) {
        let Self::Many { masters, replicas, proxies } = self else { panic!("this Redis is no cluster") };
        if let Some(proxy) = proxies.get(&masters.nodes[master].port()) {
            proxy.heal();
        }
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

    /// Sentinels lose sight of the master and promote its replica; the master serves on. Returns
    /// once brokers write to the new one.
    pub async fn replace_unseen(&self) {
        let Self::Watched { master, replica, sentinels } = self else { panic!("no Sentinels here") };
        master.hide_from_sentinels();
        tokio::task::block_in_place(|| sentinels.wait_for_master(replica));
        let before = replica.calls_of("evalsha");
        let used = async || replica.calls_of("evalsha") > before + 100;
        wait_for("writes to the new master", TIMEOUT, used).await;
    }

    /// Sentinels see the replaced master again: it becomes the replica of who took its place, and
    /// the two change names.
    pub async fn see_again(&mut self) {
        let Self::Watched { master, replica, .. } = self else { panic!("no Sentinels here") };
        master.show_to_sentinels();
        wait_for("a replica", TIMEOUT, async || replica.replica_lags_by().is_some()).await;
        std::mem::swap(master, replica);
    }

    /// What is left in it that should not be there.
    pub fn leaks(&self) -> Vec<String> {
        let servers: Vec<&Server> = match self {
            Self::One(server) => vec![server],
            Self::Watched { master, replica, .. } => vec![&**master, &**replica],
            Self::Many { masters, replicas, .. } => masters.nodes.iter().chain(replicas).collect(),
        };
        let of = |server: &&Server| {
            let keys = server.keys();
            keys.into_iter().filter(|key| is_leak(server, key)).collect::<Vec<_>>()
        };
        let leaks = servers.iter().filter(|server| is_master(server)).flat_map(of);
        leaks.map(|key| format!("the key {key} is left in Redis")).collect()
    }
}

/// A proxy before a server, which names the connections of replicas.
async fn before(server: &Server) -> Proxy {
    let label: Label = Arc::new(|_, _, first| if first == PING { REPLICA } else { "" }.to_owned());
    Proxy::start(&server.address(), label).await
}

/// Whether a server is there and is a master.
fn is_master(server: &Server) -> bool {
    let info = server.try_call::<String>(&["INFO", "replication"]);
    info.is_ok_and(|info| info.contains("role:master"))
}
