//! The Redis store: opening it, and removing the keys of a temporary cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use mtimer_broker::config::{
    CommaList, InvalidValue, PartialConfig, RedisConfig, RedisUrl, Replication, StoreConfig,
};
use mtimer_store::StoreError;
use mtimer_store_redis::{
    ClientFiles, ReadUrls, RedisDurability, RedisOptions, RedisStore, connect_to_masters,
};
use mtimer_types::Backoff;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd, pipe};

use super::exit::{Exit, Failure};
use super::settings::Source;

/// Pauses between two tries to reach a store that is away.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Keys looked at and removed in one go.
const KEYS: u64 = 1_000;

/// Files for addresses that begin with rediss://, for commands that have no other settings.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// PEM file of the authorities that sign the certificates of Redis [default: the system's]
    #[arg(long, value_name = "FILE", requires = "redis", help_heading = "Store")]
    pub(crate) redis_tls_ca: Option<PathBuf>,
    /// PEM file of the certificate to show to Redis, and its chain
    #[arg(long, value_name = "FILE", requires = "redis", help_heading = "Store")]
    pub(crate) redis_tls_cert: Option<PathBuf>,
    /// PEM file of the key of that certificate
    #[arg(long, value_name = "FILE", requires = "redis", help_heading = "Store")]
    pub(crate) redis_tls_key: Option<PathBuf>,
}

/// Reads the address of a server. Whether it is one is checked with the settings: an error here
/// would show the password in it.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let url: RedisUrl = text.parse().map_err(|error: InvalidValue| error.to_string())?;
    Ok(url.0)
}

impl TlsArgs {
    /// The settings of a broker on these servers.
    pub(crate) fn settings(&self, urls: &[String]) -> PartialConfig {
        let Self { redis_tls_ca, redis_tls_cert, redis_tls_key } = self.clone();
        let redis = Some(CommaList(urls.iter().cloned().map(RedisUrl).collect()));
        PartialConfig { redis, redis_tls_ca, redis_tls_cert, redis_tls_key, ..PartialConfig::default() }
    }

    /// Options to connect to these servers.
    pub(crate) fn options(&self, urls: &[String], cluster: &str) -> RedisOptions {
        let Self { redis_tls_ca, redis_tls_cert, redis_tls_key } = self.clone();
        let tls = ClientFiles { authorities: redis_tls_ca, certificate: redis_tls_cert, key: redis_tls_key };
        RedisOptions { tls, ..RedisOptions::new(urls.iter().cloned(), cluster) }
    }

    /// The flags that are given, each with its file.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let Self { redis_tls_ca, redis_tls_cert, redis_tls_key } = self;
        let all = [
            ("--redis-tls-ca", redis_tls_ca),
            ("--redis-tls-cert", redis_tls_cert),
            ("--redis-tls-key", redis_tls_key),
        ];
        all.into_iter().filter_map(|(name, file)| Some((name, file.as_deref()?)))
    }
}

/// Options of the store.
pub(crate) fn options(config: &RedisConfig, cluster: &str) -> RedisOptions {
    let durability = match config.replication {
        None => RedisDurability::Redis,
        Some(Replication { replicas, within }) => RedisDurability::Replicated { replicas, timeout: within },
    };
    RedisOptions {
        tls: config.tls.clone(),
        partitions: config.partitions,
        durability,
        log_bytes: config.write_log_bytes,
        ..RedisOptions::new(config.urls.iter().cloned(), cluster)
    }
}

/// Reads the addresses again where the settings come from.
pub(crate) fn read_urls(source: Source) -> ReadUrls {
    Arc::new(move || match source.read().map_err(|failure| failure.to_string())?.store {
        StoreConfig::Redis(redis) => Ok(redis.urls),
        StoreConfig::Embedded { .. } => Err("the settings name no Redis any more".to_owned()),
    })
}

/// Opens a store on Redis. While it is away it is tried again, for up to `timeout` (`None`: for
/// ever).
pub(crate) async fn open(options: RedisOptions, timeout: Option<Duration>) -> Result<RedisStore, Failure> {
    let exposed = options.unencrypted_password();
    if !exposed.is_empty() {
        tracing::warn!(
            servers = exposed.join(", "),
            "the password of Redis is sent without encryption: give addresses that begin with rediss://, or see that \
             nobody else can read this network"
        );
    }
    let (began, mut pauses) = (Instant::now(), 0);
    loop {
        let why = match RedisStore::connect(options.clone()).await {
            Ok(store) => return Ok(store),
            Err(StoreError::Unavailable(why)) => why,
            Err(error) => return Err(error.into()),
        };
        let pause = PAUSES.pause(pauses);
        if let Some(timeout) = timeout.filter(|p| began.elapsed() + pause > *p) {
            let text = format!(
                "the store could not be used within {} s: {why}; start it, or allow more with --startup-timeout",
                timeout.as_secs()
            );
            return Err(Failure::new(Exit::NotNow, text));
        }
        if pauses == 0 {
            tracing::warn!(%why, "the store is away, trying again");
        }
        tokio::time::sleep(pause).await;
        pauses += 1;
    }
}

/// Removes every key of a cluster whose name is used for nothing else and is part of no other key:
/// the random name of a temporary one. Returns how many there were.
pub(crate) async fn remove(options: &RedisOptions) -> Result<u64, Failure> {
    let masters = connect_to_masters(options).await?;
    remove_keys(masters, &options.cluster).await.map_err(|e| Failure::new(Exit::NotNow, e.to_string()))
}

async fn remove_keys(masters: Vec<MultiplexedConnection>, cluster: &str) -> Result<u64, RedisError> {
    let mut removed = 0;
    for mut connection in masters {
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("*{cluster}*")).arg("COUNT").arg(KEYS);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
            if !keys.is_empty() {
                // One command a key: those of a Redis Cluster lie in different hash slots.
                let mut all = pipe();
                for key in &keys {
                    all.cmd("UNLINK").arg(key).ignore();
                }
                let () = all.query_async(&mut connection).await?;
                removed += keys.len() as u64;
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    Ok(removed)
}
