//! The servers of a store: finds out their roles, keeps the map of hash slots, and hands out
//! connections.
//!
//! Servers that were cut off from the others report a former state. So several are asked, and the
//! claim with the highest configuration epoch counts ([`super::topology`], [`super::sentinel`]).
//! Outside a cluster, one address (a DNS name, a virtual IP, a proxy) may lead to another server
//! after a failover: a new connection tells.
//!
//! Not in here: the handling of answers; when to look at the map again.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex as Lock;
use redis::{Pipeline, Value, cmd};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::connection::{Purpose, RedisConnection, Use};
use super::node::{Lost, Network, RedisNode};
use super::pool::ConnectionPool;
use super::sentinel::{Named, Sentinels};
use super::settings::ServerSettings;
use super::several::{all_of, first, majority};
use super::topology::{Range, SlotMap, merge, of_cluster, of_standalone};
use crate::password::LoginSource;

/// How long one server may take to say which masters there are: others are asked as well.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
/// How long a replica counts after it was last seen connected, outside a cluster. When Sentinels
/// promote one, it leaves its master seconds before they say so: the writes that it lacks must not
/// leave the log meanwhile.
const REPLICA_COUNTS_FOR: Duration = Duration::from_secs(30);

/// Where to begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seeds {
    /// Servers: some nodes of a Redis Cluster, or a master and its replicas.
    Servers(Vec<String>),
    /// Sentinels, and the name of the master that they watch.
    Sentinels(Vec<String>, String),
}

/// The servers, reached over connections of one use. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    known: Arc<Known>,
    how: Use,
}

/// The known state of the servers, and the connections to them.
#[derive(Debug)]
struct Known {
    seeds: Seeds,
    cluster: bool,
    topology: SlotMap,
    /// The last look at the map. Held while looking.
    look: Mutex<Option<Look>>,
    pool: ConnectionPool,
    sentinels: Sentinels,
    /// At the last look half of the Sentinels or more did not answer.
    is_unsure: AtomicBool,
    connected: Lock<Option<ReplicasSeen>>,
}

/// How many replicas a master outside a cluster had, when it last had no fewer.
#[derive(Debug)]
struct ReplicasSeen {
    master: String,
    replicas: u32,
    at: Instant,
}

#[derive(Debug)]
struct Look {
    began: Instant,
    /// The server that was not asked.
    without: Option<String>,
    ended: Result<(), Lost>,
}

impl Servers {
    /// Finds out from the servers, or the Sentinels, at these addresses whether there is a cluster,
    /// and which masters there are.
    ///
    /// # Errors
    ///
    /// [`Lost`] if no address leads to a master; it names the reason for each.
    pub(crate) async fn discover(seeds: Seeds, pool: ConnectionPool, how: Use) -> Result<Self, Lost> {
        let cluster = match &seeds {
            Seeds::Servers(addresses) => is_cluster(addresses, &pool, how).await?,
            Seeds::Sentinels(..) => false,
        };
        let (topology, look, is_unsure, connected) = Default::default();
        let sentinels = Sentinels::beside(&pool);
        let known = Known { seeds, cluster, topology, look, pool, sentinels, is_unsure, connected };
        let this = Self { known: Arc::new(known), how };
        this.rediscover(None).await?;
        Ok(this)
    }

    /// The same servers over other connections.
    pub(crate) fn over(&self, how: Use) -> Self {
        Self { known: self.known.clone(), how }
    }

    /// Where tasks of connections run.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        self.known.pool.tasks()
    }

    /// Whether it is a Redis Cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.known.cluster
    }

    /// The addresses of all masters.
    pub(crate) fn masters(&self) -> Vec<String> {
        self.known.topology.masters()
    }

    /// The address of the master of a hash slot, as far as is known.
    pub(crate) fn master_address(&self, hash_slot: u16) -> Option<String> {
        self.known.topology.master(hash_slot)
    }

    /// Whether Sentinels may have replaced the master without being heard: half of them or more did
    /// not answer.
    pub(crate) fn is_unsure(&self) -> bool {
        self.known.is_unsure.load(Ordering::Relaxed)
    }

    /// How to enter the servers.
    pub(crate) fn login(&self) -> &LoginSource {
        &self.known.pool.access().login
    }

    /// The settings that the servers have reported.
    pub(crate) fn settings(&self) -> &ServerSettings {
        self.known.pool.settings()
    }

    /// The live connection to the server at an address.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why there is none.
    pub(crate) async fn connection(&self, address: &str) -> Result<Arc<RedisConnection>, Lost> {
        self.known.pool.get(address, self.how).await
    }

    /// Looks at the map, asking all servers but these.
    ///
    /// # Errors
    ///
    /// [`Lost`] if none answers; it names the reason for each.
    pub(crate) async fn look(&self, without: &HashSet<String>) -> Result<(), Lost> {
        match &self.known.seeds {
            Seeds::Servers(seeds) if self.known.cluster => self.look_by_nodes(seeds, without).await,
            Seeds::Servers(seeds) => self.look_by_servers(seeds, without).await,
            Seeds::Sentinels(seeds, name) => self.look_by_sentinels(seeds, name, without).await,
        }
    }

    /// Looks whether the address of a master outside a cluster leads to another one by now. If it
    /// leads to no master, everything stays as it is known.
    pub(crate) async fn look_where_the_address_leads(&self) {
        if self.known.cluster {
            return;
        }
        for master in self.masters() {
            match self.look_anew(&master, false).await {
                Ok(map) => self.put_named(map, self.known.topology.epoch(0)),
                Err(lost) => tracing::debug!(%lost, "a new connection leads to no master"),
            }
        }
    }

    /// Asks the nodes of a cluster.
    async fn look_by_nodes(&self, seeds: &[String], without: &HashSet<String>) -> Result<(), Lost> {
        let asked = self.masters_and(seeds).into_iter().filter(|address| !without.contains(address));
        let asked: Vec<_> = asked.collect();
        let maps = majority(asked.iter().map(|address| self.look_at(address))).await?;
        self.put(merge(&maps));
        Ok(())
    }

    /// Asks the servers themselves. A master that still is one stays the master, and no other
    /// server is asked.
    async fn look_by_servers(&self, seeds: &[String], without: &HashSet<String>) -> Result<(), Lost> {
        if let Some(master) = self.masters().first().filter(|master| !without.contains(*master))
            && let Ok(map) = self.look_at(master).await
        {
            self.put(map);
            return Ok(());
        }
        let asked = self.masters_and(seeds);
        let looks = asked.iter().map(|address| self.look_anew(address, without.contains(address)));
        self.put(first(looks).await?);
        Ok(())
    }

    /// Asks the Sentinels for the master. The one with the highest epoch is taken, as long as it
    /// says that it is one. The present one is as good as one that is named with the same epoch.
    async fn look_by_sentinels(
        &self,
        seeds: &[String],
        name: &str,
        without: &HashSet<String>,
    ) -> Result<(), Lost> {
        let how = Use { purpose: Purpose::Look, ..self.how };
        let ask = async |sentinel: &String| {
            let late = |_| Lost(format!("{sentinel} does not say which server is the master"));
            let asked = self.known.sentinels.master_by(sentinel, name, how);
            timeout(LOOK_WITHIN, asked).await.map_err(late)?
        };
        let named = majority(seeds.iter().map(ask)).await;
        let heard = named.as_ref().map_or(0, Vec::len);
        self.known.is_unsure.store(heard <= seeds.len() / 2, Ordering::Relaxed);
        let (mut candidates, mut reasons) = match named {
            Ok(named) => (named, Vec::new()),
            Err(lost) => (Vec::new(), vec![lost]),
        };
        let epoch = self.known.topology.epoch(0);
        candidates.extend(self.masters().into_iter().map(|address| Named { address, epoch }));
        candidates.sort_by_key(|named| Reverse(named.epoch));
        let mut tried = HashSet::new();
        for Named { address, epoch } in candidates {
            if !tried.insert(address.clone()) {
                continue;
            }
            let looked = match without.contains(&address) {
                true => Err(Lost(format!("{address} is named as the master still, which does not serve"))),
                false => self.look_at(&address).await,
            };
            match looked {
                Ok(map) => {
                    self.put_named(map, epoch);
                    return Ok(());
                }
                Err(lost) => reasons.push(lost),
            }
        }
        Err(all_of(&reasons))
    }

    /// The masters and these addresses, each once.
    fn masters_and(&self, seeds: &[String]) -> Vec<String> {
        let mut all: Vec<String> = self.masters().into_iter().chain(seeds.iter().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Takes in the map of a master that was named with an epoch.
    fn put_named(&self, map: Vec<Range>, epoch: u64) {
        self.put(map.into_iter().map(|range| Range { epoch, ..range }).collect());
    }

    /// Takes in a map, and leaves the servers that are not masters any more. In a cluster, where
    /// each look asks all addresses of the settings, these stay.
    fn put(&self, map: Vec<Range>) {
        self.known.topology.put(map);
        let mut used: HashSet<String> = self.masters().into_iter().collect();
        if let Seeds::Servers(seeds) = &self.known.seeds
            && self.known.cluster
        {
            used.extend(seeds.iter().cloned());
        }
        self.known.pool.keep_only(&used);
    }

    async fn look_at(&self, address: &str) -> Result<Vec<Range>, Lost> {
        let look = async {
            let server = self.connection(address).await?;
            if !self.known.cluster {
                return self.standalone(&server.ask(cmd("ROLE")).await?, address);
            }
            let mut about = Pipeline::with_capacity(2);
            about.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("NODES");
            match server.call(about).await?.as_slice() {
                [slots, nodes] => of_cluster(slots, nodes, address).map_err(Lost),
                _ => Err(Lost(format!("{address} does not tell its hash slots and nodes"))),
            }
        };
        let late = |_| Lost(format!("{address} does not say which masters there are"));
        timeout(LOOK_WITHIN, look).await.map_err(late)?
    }

    /// Asks the server that is at an address outside a cluster by now. If it is a master,
    /// connections that lead to another server end. `fails`: the server to which they lead does not
    /// count.
    async fn look_anew(&self, address: &str, fails: bool) -> Result<Vec<Range>, Lost> {
        let (pool, how) = (&self.known.pool, Use { purpose: Purpose::Look, ..self.how });
        let look = async {
            let server = pool.open(address, how).await?;
            let role = server.ask(cmd("ROLE")).await?;
            let run_id = server.run_id();
            if fails && pool.leads_to(address, run_id.as_deref()) {
                return Err(Lost(format!("{address} leads to the server still that does not serve")));
            }
            of_standalone(&role, address).map_err(Lost)?;
            if pool.end_others(address, run_id.as_deref()) {
                // Nothing that was seen before says anything of this server.
                self.known.connected.lock().take();
            }
            self.standalone(&role, address)
        };
        let late = |_| Lost(format!("{address} does not say whether it is a master"));
        timeout(LOOK_WITHIN, look).await.map_err(late)?
    }

    /// Reads the role of a server outside a cluster.
    fn standalone(&self, role: &Value, address: &str) -> Result<Vec<Range>, Lost> {
        let mut map = of_standalone(role, address).map_err(Lost)?;
        let mut seen = self.known.connected.lock();
        for range in &mut map {
            let now = range.replicas.unwrap_or(0);
            match &*seen {
                Some(ReplicasSeen { master, replicas, at })
                    if master == address && *replicas > now && at.elapsed() < REPLICA_COUNTS_FOR =>
                {
                    range.replicas = Some(*replicas);
                }
                _ => *seen = Some(ReplicasSeen { master: address.into(), replicas: now, at: Instant::now() }),
            }
        }
        Ok(map)
    }
}

impl Network for Servers {
    fn master(&self, hash_slot: u16) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>> {
        async move {
            let Some(address) = self.master_address(hash_slot) else {
                return Err(Lost(format!("no server has hash slot {hash_slot}")));
            };
            self.at(&address).await
        }
        .boxed()
    }

    fn at(&self, address: &str) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>> {
        let address = address.to_owned();
        async move { Ok(self.connection(&address).await? as Arc<dyn RedisNode>) }.boxed()
    }

    fn leads_to(&self, hash_slot: u16, address: &str) -> bool {
        self.known.topology.leads_to(hash_slot, address)
    }

    fn moved(&self, hash_slot: u16, address: &str) {
        self.known.topology.moved(hash_slot, address);
    }

    fn rediscover<'a>(&'a self, without: Option<&'a str>) -> BoxFuture<'a, Result<(), Lost>> {
        let asked = Instant::now();
        async move {
            // One look serves all who asked for the same before it began.
            let mut last = self.known.look.lock().await;
            if let Some(last) = &*last
                && last.began >= asked
                && last.without.as_deref() == without
            {
                return last.ended.clone();
            }
            let (began, without) = (Instant::now(), without.map(str::to_owned));
            let ended = self.look(&without.iter().cloned().collect()).await;
            *last = Some(Look { began, without, ended: ended.clone() });
            ended
        }
        .boxed()
    }

    fn replicas(&self, hash_slot: u16) -> Option<u32> {
        self.known.topology.replicas(hash_slot)
    }

    fn append_only(&self, hash_slot: u16) -> bool {
        self.master_address(hash_slot).is_none_or(|master| self.settings().append_only(&master))
    }

    fn may_evict(&self, hash_slot: u16) -> bool {
        self.master_address(hash_slot).is_some_and(|master| self.settings().may_evict(&master))
    }
}

/// Whether the servers are nodes of a Redis Cluster, by the first that answers.
async fn is_cluster(addresses: &[String], pool: &ConnectionPool, how: Use) -> Result<bool, Lost> {
    let mut refused = Vec::new();
    for address in addresses {
        match pool.get(address, how).await {
            Ok(server) => return Ok(server.info().get("cluster_enabled") == Some(true)),
            Err(lost) => refused.push(lost),
        }
    }
    Err(all_of(&refused))
}
