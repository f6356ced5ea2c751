//! Where the timers live: settings of the stores, which go with one another.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mtimer_store::without_password;
use mtimer_tls::ClientFiles;
use mtimer_types::limits;

use super::error::ConfigError;
use super::list::PartialConfig;
use super::units::{Durability, Size, Span};

/// Most replicas that a write can wait for.
const MAX_REPLICAS: u32 = 16;
/// Bounds of the time that they may take: less is noise, more holds up everything behind the write.
const MIN_REPLICAS_WITHIN: Duration = Duration::from_millis(10);
const MAX_REPLICAS_WITHIN: Duration = Duration::from_secs(60);

/// The least memory for the last writes, if there is to be any: a few turns of a partition.
const MIN_WRITE_LOG: u64 = 1 << 20;

/// What `redis-replicated` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    /// Replicas that have to confirm a write, 1 to 16.
    pub replicas: u32,
    /// How long they may take, 10 ms to 60 s.
    pub within: Duration,
}

impl Default for Replication {
    fn default() -> Self {
        Self { replicas: 1, within: Duration::from_secs(2) }
    }
}

/// Where the timers live.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreConfig {
    /// In a folder of this machine.
    Embedded {
        /// The folder.
        data: PathBuf,
        /// Fsync before every answer.
        sync: bool,
        /// Partitions, if the folder is new; otherwise it must have as many. `None`: as it has, or
        /// the store's default.
        partitions: Option<u16>,
        /// Warn when its disk has fewer free bytes. 0: never.
        disk_watermark: u64,
        /// Refuse new timers when it has fewer. 0: never.
        disk_reserve: u64,
    },
    /// In Redis or Redis Cluster.
    Redis(RedisConfig),
}

/// A store in Redis or Redis Cluster. Its `Debug` shows no passwords.
#[derive(Clone, PartialEq)]
pub struct RedisConfig {
    /// One server or several.
    pub urls: Vec<String>,
    /// Files for TLS.
    pub tls: ClientFiles,
    /// Wait for replicas.
    pub replication: Option<Replication>,
    /// Memory, in bytes, for the last writes, which are repeated if Redis loses them. 0: none.
    pub write_log_bytes: usize,
    /// Partitions, if the cluster is new; otherwise it must have as many. `None`: as it has, or the
    /// store's default.
    pub partitions: Option<u16>,
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { urls, tls, replication, write_log_bytes, partitions } = self;
        f.debug_struct("RedisConfig")
            .field("urls", &urls.iter().map(|url| without_password(url)).collect::<Vec<_>>())
            .field("tls", tls)
            .field("replication", replication)
            .field("write_log_bytes", write_log_bytes)
            .field("partitions", partitions)
            .finish()
    }
}

impl PartialConfig {
    /// Checks the settings of the store, and sets those that are not given and have a default.
    pub(super) fn store(&mut self) -> Result<StoreConfig, ConfigError> {
        for url in self.redis.iter().flat_map(|list| &list.0) {
            url.check().map_err(|message| ConfigError::Setting { setting: "redis", message })?;
        }
        let urls = self.redis.iter().flat_map(|list| &list.0).map(|url| url.0.clone()).collect::<Vec<_>>();
        let tls = self.redis_tls(&urls)?;
        let write_log_bytes = self.redis_write_log(&urls)?;
        if urls.is_empty() { self.embedded() } else { self.on_redis(urls, tls, write_log_bytes) }
    }

    fn embedded(&mut self) -> Result<StoreConfig, ConfigError> {
        let sync = match self.durability.get_or_insert(Durability::EmbeddedSync) {
            Durability::EmbeddedSync => true,
            Durability::EmbeddedFast => false,
            Durability::Redis | Durability::RedisReplicated => {
                return Err(not_durable("the store is embedded: give redis URLs, or an embedded level"));
            }
        };
        let data = self.data.get_or_insert_with(|| PathBuf::from("mtimer-data")).clone();
        let (disk_watermark, disk_reserve) = self.disk_limits()?;
        // It has none.
        (self.replicas, self.replicas_within) = (None, None);
        Ok(StoreConfig::Embedded { data, sync, partitions: self.partitions, disk_watermark, disk_reserve })
    }

    fn on_redis(
        &mut self,
        urls: Vec<String>,
        tls: ClientFiles,
        write_log_bytes: usize,
    ) -> Result<StoreConfig, ConfigError> {
        let wrong =
            |setting, message: &str| Err(ConfigError::Setting { setting, message: message.to_owned() });
        if self.data.is_some() {
            return wrong("data", "a folder and redis URLs are given: leave one of them out");
        }
        for (setting, given) in [("disk-watermark", self.disk_watermark), ("disk-reserve", self.disk_reserve)]
        {
            if given.is_some() {
                return wrong(
                    setting,
                    "it is for the embedded store, and redis URLs are given: leave it out",
                );
            }
        }
        let replication = match self.durability.get_or_insert(Durability::Redis) {
            Durability::Redis if self.replicas.is_some() || self.replicas_within.is_some() => {
                return Err(not_durable("replicas are set: write redis-replicated, or leave them out"));
            }
            Durability::Redis => None,
            Durability::RedisReplicated => Some(self.replication()?),
            Durability::EmbeddedSync | Durability::EmbeddedFast => {
                return Err(not_durable("the store is Redis: write redis or redis-replicated"));
            }
        };
        let partitions = self.partitions;
        Ok(StoreConfig::Redis(RedisConfig { urls, tls, replication, write_log_bytes, partitions }))
    }

    /// The watermark and the reserve.
    fn disk_limits(&mut self) -> Result<(u64, u64), ConfigError> {
        let reserve = self.disk_reserve.get_or_insert(Size(limits::DISK_RESERVE_BYTES)).0;
        if reserve < limits::MIN_DISK_RESERVE_BYTES {
            let message = format!(
                "{reserve} bytes: give it at least 64MiB, so that delivering can go on when the disk is full, or \
                 leave it out for 256MiB"
            );
            return Err(ConfigError::Setting { setting: "disk-reserve", message });
        }
        // Somebody who sets only the reserve wants to be warned before.
        let watermark = Size(limits::DISK_WATERMARK_BYTES.max(reserve));
        let watermark = self.disk_watermark.get_or_insert(watermark).0;
        if watermark != 0 && watermark < reserve {
            let message = format!(
                "{watermark} bytes is less than disk-reserve, {reserve} bytes: give it at least as much, or 0 for no \
                 warning"
            );
            return Err(ConfigError::Setting { setting: "disk-watermark", message });
        }
        Ok((watermark, reserve))
    }

    fn redis_tls(&self, urls: &[String]) -> Result<ClientFiles, ConfigError> {
        let Self { redis_tls_ca, redis_tls_cert, redis_tls_key, .. } = self;
        let wrong = |setting, file: &Path, what| {
            let message = format!("{} is given, but {what}", file.display());
            Err(ConfigError::Setting { setting, message })
        };
        let given = [
            ("redis-tls-ca", redis_tls_ca),
            ("redis-tls-cert", redis_tls_cert),
            ("redis-tls-key", redis_tls_key),
        ];
        for (setting, file) in given {
            if let Some(file) = file
                && !urls.iter().any(|url| url.starts_with("rediss"))
            {
                return wrong(
                    setting,
                    file,
                    "no server in redis begins with rediss:// or rediss-sentinel://: write that, or leave it out",
                );
            }
        }
        match (redis_tls_cert, redis_tls_key) {
            (Some(file), None) => wrong("redis-tls-cert", file, "not its key: give redis-tls-key, too"),
            (None, Some(file)) => {
                wrong("redis-tls-key", file, "not its certificate: give redis-tls-cert, too")
            }
            (certificate, key) => Ok(ClientFiles {
                authorities: redis_tls_ca.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
            }),
        }
    }

    fn redis_write_log(&mut self, urls: &[String]) -> Result<usize, ConfigError> {
        let wrong = |message| Err(ConfigError::Setting { setting: "redis-write-log", message });
        if urls.is_empty() {
            return match self.redis_write_log {
                Some(_) => wrong("the store is embedded: give redis URLs, or leave it out".to_owned()),
                None => Ok(0),
            };
        }
        let bytes = self.redis_write_log.get_or_insert(Size(limits::WRITE_LOG_BYTES as u64)).0;
        if (1..MIN_WRITE_LOG).contains(&bytes) {
            return wrong(format!("{bytes} bytes: allowed are 0 (none), or 1MiB and more"));
        }
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn replication(&mut self) -> Result<Replication, ConfigError> {
        let base = Replication::default();
        let replicas = *self.replicas.get_or_insert(base.replicas);
        let within = self.replicas_within.get_or_insert(Span(base.within)).0;
        let wrong = |setting, message| Err(ConfigError::Setting { setting, message });
        if !(1..=MAX_REPLICAS).contains(&replicas) {
            return wrong("replicas", format!("{replicas} replicas: allowed are 1 to {MAX_REPLICAS}"));
        }
        if within < MIN_REPLICAS_WITHIN || within > MAX_REPLICAS_WITHIN {
            let ms = within.as_millis();
            return wrong("replicas-within", format!("{ms} ms: allowed are 10ms to 60s"));
        }
        Ok(Replication { replicas, within })
    }
}

fn not_durable(message: &str) -> ConfigError {
    ConfigError::Setting { setting: "durability", message: message.to_owned() }
}
