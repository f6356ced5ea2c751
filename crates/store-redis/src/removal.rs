//! Removes all keys of a cluster.
//!
//! Invariant: only keys whose names are those of this cluster are removed, none of other clusters
//! or programs on the same servers; each step is bounded, so the servers serve on; the keys of the
//! cluster itself go last, so that another removal can finish an interrupted one.
//! Not in here: whether somebody wants that. A broker that lives must be stopped before: its lease
//! is looked for, but a broker that does not reach Redis for now shows nothing.

use futures_util::future::join_all;
use mtimer_store::StoreError;
use redis::cmd;
use tokio_util::task::TaskTracker;

use crate::keyspace::keys::{check_cluster, hash_slot, is_of_partition, leader, meta, term, topology};
use crate::options::RedisOptions;
use crate::other_clusters::other_clusters;
use crate::wire::{ConnectionPool, Lost, Purpose, Reply, Servers, Use, ask, explain};

/// Keys that one command looks at: a server is busy with them for a fraction of a millisecond.
const KEYS: u32 = 1_000;
/// Keys whose removal is under way at the same time.
const AT_ONCE: usize = 100;

/// Why a cluster was not removed, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// A broker has the lease of the cluster.
    #[error("a broker of this cluster is alive ({holder} leads it): stop all its brokers first")]
    Led {
        /// Who has the lease.
        holder: String,
    },
    /// The servers, or their addresses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A cluster that is to be removed.
#[derive(Debug)]
pub struct ClusterRemoval {
    servers: Servers,
    cluster: String,
}

impl ClusterRemoval {
    /// Connects to the servers that [`RedisOptions::cluster`] is on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`]: try again. [`StoreError::Unusable`] says what to change.
    pub async fn open(options: &RedisOptions) -> Result<Self, StoreError> {
        check_cluster(&options.cluster)?;
        let (seeds, access) = options.check()?;
        let how = Use { purpose: Purpose::Look, answer_within: options.answer_within };
        let pool = ConnectionPool::new(access, TaskTracker::new());
        let servers = Servers::discover(seeds, pool, how).await.map_err(explain)?;
        Ok(Self { servers, cluster: options.cluster.clone() })
    }

    /// Returns names of other clusters on these servers, a few at most, as far as a short look
    /// finds any.
    pub async fn others(&self) -> Vec<String> {
        other_clusters(&self.servers, &self.cluster).await
    }

    /// Checks that no broker has the lease at this moment.
    ///
    /// # Errors
    ///
    /// [`RemovalError::Led`] if one has.
    pub async fn check_not_led(&self) -> Result<(), RemovalError> {
        let key = leader(&self.cluster);
        let mut get = cmd("GET");
        get.arg(&key);
        let answer = ask(&self.servers, hash_slot(&key), &get).await?;
        match answer.text().map(|lease| lease.split(' ').next().unwrap_or_default().to_owned()) {
            Some(holder) => Err(RemovalError::Led { holder }),
            None => Ok(()),
        }
    }

    /// Counts the keys of the cluster, in steps. `step` is told how many were found by then; a key
    /// may be counted twice.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a server does not answer.
    pub async fn count(&self, mut step: impl FnMut(u64)) -> Result<u64, StoreError> {
        let mut found = 0;
        for key in self.fixed() {
            // The rights that a broker needs have no EXISTS.
            let mut kind = cmd("TYPE");
            kind.arg(&key);
            found += u64::from(ask(&self.servers, hash_slot(&key), &kind).await?.text() != Some("none"));
        }
        for address in self.servers.masters() {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let (next, keys) = self.scan(&address, from).await?;
                found += keys.len() as u64;
                step(found);
                cursor = next;
            }
        }
        Ok(found)
    }

    /// Removes every key of the cluster, in steps; before each it looks for a broker. `step` is
    /// told how many have gone by then.
    ///
    /// # Errors
    ///
    /// [`RemovalError`]; keys removed by then stay removed, and another call removes the rest.
    ///
    /// # Cancel safety
    ///
    /// As after an error.
    pub async fn run(&self, mut step: impl FnMut(u64)) -> Result<u64, RemovalError> {
        let mut removed = 0;
        for address in self.servers.masters() {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                self.check_not_led().await?;
                let (next, keys) = self.scan(&address, from).await?;
                removed += self.unlink(&keys).await?;
                step(removed);
                cursor = next;
            }
        }
        self.check_not_led().await?;
        for key in self.fixed() {
            removed += self.unlink(&[key]).await?;
        }
        step(removed);
        Ok(removed)
    }

    /// The keys of the cluster itself and of its leader; `meta` is last.
    fn fixed(&self) -> [String; 4] {
        [topology, leader, term, meta].map(|name| name(&self.cluster))
    }

    /// Looks at some keys of a master. Returns where to go on, and those that are of a partition of
    /// this cluster.
    async fn scan(&self, address: &str, from: u64) -> Result<(Option<u64>, Vec<String>), StoreError> {
        let server = self.servers.connection(address).await.map_err(explain)?;
        let mut scan = cmd("SCAN");
        // A cluster's name has no character that means something to MATCH.
        scan.arg(from).arg("MATCH").arg(format!("*:{{*}}:{}*", self.cluster)).arg("COUNT").arg(KEYS);
        let reply = server.ask(scan).await.map_err(explain)?;
        let [next, keys] = reply.items() else {
            let why = reply.refusal().unwrap_or_else(|| "no answer to SCAN".to_owned());
            return Err(explain(Lost(format!("{address}: {why}"))));
        };
        let mine =
            keys.items().iter().filter_map(Reply::text).filter(|key| is_of_partition(key, &self.cluster));
        Ok((next.number().filter(|next| *next > 0), mine.map(str::to_owned).collect()))
    }

    /// Removes keys one by one: those of a Redis Cluster lie in different hash slots.
    async fn unlink(&self, keys: &[String]) -> Result<u64, StoreError> {
        let one = async |key: &String| {
            let mut unlink = cmd("UNLINK");
            unlink.arg(key);
            ask(&self.servers, hash_slot(key), &unlink).await
        };
        let mut removed = 0;
        for chunk in keys.chunks(AT_ONCE) {
            for answer in join_all(chunk.iter().map(one)).await {
                removed += answer?.number().unwrap_or(0);
            }
        }
        Ok(removed)
    }
}
