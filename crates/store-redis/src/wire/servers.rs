//! The servers of a store: finds out what they are, keeps the map of hash slots, and hands out
//! connections.
//!
//! Not in here: what to do about an answer; when to look at the map again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Pipeline, cmd};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::connection::{Purpose, RedisConnection, Use};
use super::node::{Lost, Network, RedisNode};
use super::pool::ConnectionPool;
use super::sentinel::Sentinels;
use super::settings::ServerSettings;
use super::topology::{Range, SlotMap, of_cluster, of_standalone};

/// How long one server may take to say which masters there are: others are asked as well.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

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

/// What is known of the servers, and the connections to them.
#[derive(Debug)]
struct Known {
    seeds: Seeds,
    cluster: bool,
    topology: SlotMap,
    /// The last look at the map. Held while looking.
    look: Mutex<Option<Look>>,
    pool: ConnectionPool,
    sentinels: Sentinels,
}

#[derive(Debug)]
struct Look {
    began: Instant,
    /// The server that was not asked.
    without: Option<String>,
    ended: Result<(), Lost>,
}

impl Servers {
    /// Asks the servers, or the Sentinels, at these addresses what they belong to, and which
    /// masters there are.
    ///
    /// # Errors
    ///
    /// [`Lost`] if no address leads to a master; it names the reason for each.
    pub(crate) async fn discover(seeds: Seeds, pool: ConnectionPool, how: Use) -> Result<Self, Lost> {
        let cluster = match &seeds {
            Seeds::Servers(addresses) => is_cluster(addresses, &pool, how).await?,
            Seeds::Sentinels(..) => false,
        };
        let (topology, look) = Default::default();
        let sentinels = Sentinels::beside(&pool);
        let this = Self { known: Arc::new(Known { seeds, cluster, topology, look, pool, sentinels }), how };
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

    /// What the servers said of themselves.
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

    /// Looks at the map, asking all servers but these; the first that answers will do.
    ///
    /// # Errors
    ///
    /// [`Lost`] if none answers; it names the reason for each.
    pub(crate) async fn look(&self, without: &HashSet<String>) -> Result<(), Lost> {
        match &self.known.seeds {
            Seeds::Servers(seeds) => self.look_by_servers(seeds, without).await,
            Seeds::Sentinels(seeds, name) => self.look_by_sentinels(seeds, name, without).await,
        }
    }

    /// Asks the servers themselves. A standalone master that still is one stays the master,
    /// whatever others say.
    async fn look_by_servers(&self, seeds: &[String], without: &HashSet<String>) -> Result<(), Lost> {
        let masters = self.masters();
        if let Some(master) = masters.first().filter(|m| !self.known.cluster && !without.contains(*m))
            && let Ok(map) = self.look_at(master).await
        {
            self.put(map);
            return Ok(());
        }
        let seeds = seeds.iter().cloned();
        let mut asked: Vec<String> =
            masters.into_iter().chain(seeds).filter(|a| !without.contains(a)).collect();
        asked.sort_unstable();
        asked.dedup();
        self.put_first(asked.iter().map(|address| self.look_at(address))).await
    }

    /// Asks all Sentinels for the master. If none names another the present one stays, as long as
    /// it says that it is one.
    async fn look_by_sentinels(
        &self,
        seeds: &[String],
        name: &str,
        without: &HashSet<String>,
    ) -> Result<(), Lost> {
        let how = Use { purpose: Purpose::Look, ..self.how };
        let look = async |sentinel: &String| {
            let late = |_| Lost(format!("{sentinel} does not say which server is the master"));
            let asked = self.known.sentinels.master_by(sentinel, name, how);
            let master = timeout(LOOK_WITHIN, asked).await.map_err(late)??;
            if without.contains(&master) {
                return Err(Lost(format!("{sentinel} names {master} still, which does not serve")));
            }
            self.look_at(&master).await
        };
        let looked = self.put_first(seeds.iter().map(look)).await;
        match self.masters().first().filter(|master| looked.is_err() && !without.contains(*master)) {
            Some(master) => self.put_first([self.look_at(master)]).await.or(looked),
            None => looked,
        }
    }

    /// Takes in a map, and forgets the servers that are not masters any more. In a cluster, where
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

    /// Takes the first map that comes.
    async fn put_first<L>(&self, looks: impl IntoIterator<Item = L>) -> Result<(), Lost>
    where
        L: Future<Output = Result<Vec<Range>, Lost>>,
    {
        let mut looks: FuturesUnordered<_> = looks.into_iter().collect();
        let mut reasons = Vec::new();
        while let Some(looked) = looks.next().await {
            match looked {
                Ok(map) => {
                    self.put(map);
                    return Ok(());
                }
                Err(lost) => reasons.push(lost),
            }
        }
        Err(all_of(&reasons))
    }

    async fn look_at(&self, address: &str) -> Result<Vec<Range>, Lost> {
        let look = async {
            let server = self.connection(address).await?;
            let map = if self.known.cluster {
                let mut about = Pipeline::with_capacity(2);
                about.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("NODES");
                match server.call(about).await?.as_slice() {
                    [slots, nodes] => of_cluster(slots, nodes, address),
                    _ => Err(format!("{address} does not tell its hash slots and nodes")),
                }
            } else {
                of_standalone(&server.ask(cmd("ROLE")).await?, address)
            };
            map.map_err(Lost)
        };
        let late = |_| Lost(format!("{address} does not say which masters there are"));
        timeout(LOOK_WITHIN, look).await.map_err(late)?
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

/// One reason for several.
fn all_of(reasons: &[Lost]) -> Lost {
    match reasons {
        [] => Lost("no other server is known".into()),
        some => Lost(some.iter().map(|lost| lost.0.as_str()).collect::<Vec<_>>().join("; ")),
    }
}
