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

use super::connection::{Connection, Use};
use super::node::{Lost, Network, Node};
use super::pool::Pool;
use super::settings::Settings;
use super::topology::{Range, Topology, of_cluster, of_standalone};

/// How long one server may take to say which masters there are: others are asked as well.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// The servers, reached over the connections of one pool. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    known: Arc<Known>,
    pool: Arc<Pool>,
}

/// What is known of the servers, over whatever connections.
#[derive(Debug)]
struct Known {
    seeds: Vec<String>,
    cluster: bool,
    topology: Topology,
    /// The last look at the map. Held while looking.
    look: Mutex<Option<Look>>,
}

#[derive(Debug)]
struct Look {
    began: Instant,
    /// The server that was not asked.
    without: Option<String>,
    ended: Result<(), Lost>,
}

impl Servers {
    /// Asks the servers at these addresses what they belong to, and which masters there are.
    ///
    /// # Errors
    ///
    /// [`Lost`] if no address leads to a master; it names the reason for each.
    pub(crate) async fn discover(seeds: Vec<String>, pool: Pool) -> Result<Self, Lost> {
        let (mut cluster, mut refused) = (None, Vec::new());
        for address in &seeds {
            match pool.get(address).await {
                Ok(server) => {
                    cluster = Some(server.info().get("cluster_enabled").is_some_and(|on| on == "1"));
                    break;
                }
                Err(lost) => refused.push(lost),
            }
        }
        let cluster = cluster.ok_or_else(|| all_of(&refused))?;
        let (topology, look) = Default::default();
        let known = Arc::new(Known { seeds, cluster, topology, look });
        let this = Self { known, pool: Arc::new(pool) };
        this.rediscover(None).await?;
        Ok(this)
    }

    /// The same servers over other connections.
    pub(crate) fn over(&self, how: Use) -> Self {
        Self { known: self.known.clone(), pool: Arc::new(self.pool.with(how)) }
    }

    /// Where tasks of connections run.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        self.pool.tasks()
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

    /// How many replicas the master of a hash slot has: in a cluster those that have not failed by
    /// the vote of the masters, otherwise those that are connected. As it was when the servers were
    /// last looked at.
    pub(crate) fn replicas(&self, hash_slot: u16) -> Option<u32> {
        self.known.topology.replicas(hash_slot)
    }

    /// Whether the master of a hash slot keeps an append-only file, or has not said yet that it
    /// keeps none.
    pub(crate) fn append_only(&self, hash_slot: u16) -> bool {
        self.master_address(hash_slot).is_none_or(|master| self.settings().append_only(&master))
    }

    /// What the servers said of themselves.
    pub(crate) fn settings(&self) -> &Settings {
        self.pool.settings()
    }

    /// The live connection to the server at an address.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why there is none.
    pub(crate) async fn connection(&self, address: &str) -> Result<Arc<Connection>, Lost> {
        self.pool.get(address).await
    }

    /// Looks at the map, asking all servers but these; the first that answers will do. A standalone
    /// master that still is one stays the master, whatever others say.
    ///
    /// # Errors
    ///
    /// [`Lost`] if none answers; it names the reason for each.
    pub(crate) async fn look(&self, without: &HashSet<String>) -> Result<(), Lost> {
        let masters = self.masters();
        if let Some(master) = masters.first().filter(|m| !self.known.cluster && !without.contains(*m))
            && let Ok(map) = self.look_at(master).await
        {
            self.known.topology.put(map);
            return Ok(());
        }
        let seeds = self.known.seeds.iter().cloned();
        let mut asked: Vec<String> =
            masters.into_iter().chain(seeds).filter(|a| !without.contains(a)).collect();
        asked.sort_unstable();
        asked.dedup();
        let mut looks: FuturesUnordered<_> = asked.iter().map(|address| self.look_at(address)).collect();
        let mut reasons = Vec::new();
        while let Some(looked) = looks.next().await {
            match looked {
                Ok(map) => {
                    self.known.topology.put(map);
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
    fn master(&self, hash_slot: u16) -> BoxFuture<'_, Result<Arc<dyn Node>, Lost>> {
        async move {
            let Some(address) = self.master_address(hash_slot) else {
                return Err(Lost(format!("no server has hash slot {hash_slot}")));
            };
            self.at(&address).await
        }
        .boxed()
    }

    fn at(&self, address: &str) -> BoxFuture<'_, Result<Arc<dyn Node>, Lost>> {
        let address = address.to_owned();
        async move { Ok(self.connection(&address).await? as Arc<dyn Node>) }.boxed()
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

    fn may_evict(&self, hash_slot: u16) -> bool {
        self.master_address(hash_slot).is_some_and(|master| self.settings().may_evict(&master))
    }
}

/// One reason for several.
fn all_of(reasons: &[Lost]) -> Lost {
    match reasons {
        [] => Lost("no other server is known".into()),
        some => Lost(some.iter().map(|lost| lost.0.as_str()).collect::<Vec<_>>().join("; ")),
    }
}
