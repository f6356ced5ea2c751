//! Opens the store that the settings name.
//!
//! Not in here: removing the leftovers of a temporary store (see [`super::local`]).

use std::sync::Arc;
use std::time::Duration;

use mtimer_broker::config::StoreConfig;
use mtimer_store::{MemoryStore, Store};
use mtimer_store_embedded::{EmbeddedDurability, EmbeddedOptions, EmbeddedStore, OpenError, SpaceLimits};
use mtimer_store_redis::{RedisOptions, RedisStore};

use super::exit::{Exit, Failure};
use super::settings::Source;

/// Partitions of an embedded store that is new: one process shares out its own work, so few are
/// enough.
const EMBEDDED_PARTITIONS: u16 = 16;

/// A store that is open.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// The cluster is new, and its Redis holds these as well: see `RedisStore::other_clusters`.
    pub(crate) other_clusters: Vec<String>,
    /// See `RedisStore::unprotected_masters`.
    pub(crate) unprotected: Vec<String>,
    embedded: Option<Arc<EmbeddedStore>>,
    redis: Option<Arc<RedisStore>>,
}

impl Opened {
    /// Opens a store. Blocks nobody: an embedded one may have a long journal to read. One that is
    /// away is waited for, for up to `timeout` (`None`: for ever). User and password of Redis are
    /// read again from `source` when they are refused.
    pub(crate) async fn open(
        config: &StoreConfig,
        cluster: &str,
        timeout: Option<Duration>,
        source: Option<Source>,
    ) -> Result<Self, Failure> {
        match config {
            StoreConfig::Embedded { data, sync, partitions, disk_watermark, disk_reserve } => {
                let durability = if *sync { EmbeddedDurability::Sync } else { EmbeddedDurability::fast() };
                let space = SpaceLimits { watermark: *disk_watermark, reserve: *disk_reserve };
                let options =
                    EmbeddedOptions { durability, space, ..EmbeddedOptions::new(data, EMBEDDED_PARTITIONS) };
                let partitions = *partitions;
                let opening = tokio::task::spawn_blocking(move || open_embedded(options, partitions));
                let opened = opening.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
                let embedded = Arc::new(opened?);
                let opened = Self::other(Arc::clone(&embedded) as Arc<dyn Store>);
                Ok(Self { embedded: Some(embedded), ..opened })
            }
            StoreConfig::Redis(redis) => {
                let read_urls = source.map(super::redis::read_urls);
                let options = RedisOptions { read_urls, ..super::redis::options(redis, cluster) };
                let store = Arc::new(super::redis::open(options, timeout).await?);
                let other_clusters = store.other_clusters().to_vec();
                let unprotected = store.unprotected_masters();
                let opened = Self::other(Arc::clone(&store) as Arc<dyn Store>);
                Ok(Self { other_clusters, unprotected, redis: Some(store), ..opened })
            }
        }
    }

    /// A store that keeps nothing: for measuring everything else.
    pub(crate) fn memory() -> Self {
        Self::other(Arc::new(MemoryStore::new(EMBEDDED_PARTITIONS)))
    }

    /// A store that needs no closing.
    pub(crate) fn other(store: Arc<dyn Store>) -> Self {
        Self { store, other_clusters: Vec::new(), unprotected: Vec::new(), embedded: None, redis: None }
    }

    /// Reads user and password of Redis again. The store logs the result.
    pub(crate) async fn reload(&self) {
        if let Some(redis) = self.redis.clone() {
            // It reads files.
            let reading = tokio::task::spawn_blocking(move || redis.reload());
            if let Err(error) = reading.await {
                tracing::error!(%error, "user and password of Redis were not read again");
            }
        }
    }

    /// Gives the data directory free, once the broker has stopped.
    pub(crate) async fn close(self) {
        if let Some(store) = self.embedded {
            store.close().await;
        }
    }
}

fn open_embedded(options: EmbeddedOptions, partitions: Option<u16>) -> Result<EmbeddedStore, Failure> {
    let open = |partitions| EmbeddedStore::open(EmbeddedOptions { partitions, ..options.clone() });
    let opened = match (open(partitions.unwrap_or(options.partitions)), partitions) {
        // Nobody asked for a number: the one that it has is right.
        (Err(OpenError::Partitions { stored, .. }), None) => open(stored),
        (opened, _) => opened,
    };
    opened.map_err(|e| Failure::new(Exit::StoreUnusable, e.to_string()))
}
