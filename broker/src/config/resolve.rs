//! What the settings mean: options of the broker, and where the timers live.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mtimer_access::Limits;
use mtimer_core::EngineOptions;
use mtimer_store::without_password;
use mtimer_tls::ClientFiles;
use mtimer_types::{Destination, RetryTiers, limits};

use super::error::ConfigError;
use super::list::{GroupLimitConfig, PEER_TOKEN, PartialConfig};
use super::units::{CommaList, Durability, LogFormat, Size, Span};
use crate::access::{AccessOptions, PeerToken, RedisCertificates};
use crate::limits::EVERY_GROUP;
use crate::options::{BrokerOptions, ClusterOptions, HttpListen};
use crate::tls::BrokerTlsOptions;

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

/// Every setting with its value.
#[derive(Clone, Debug)]
pub struct Config {
    /// The broker's options.
    pub broker: BrokerOptions,
    /// Where the timers live.
    pub store: StoreConfig,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The log filter.
    pub log_level: String,
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
    /// Adds the defaults and checks every value.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the setting's name, if a value is out of range or does not go with
    /// another.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        let store = self.store()?;
        let base = BrokerOptions::default();
        let listen = match &self.listen {
            Some(text) => parse_address("listen", text, "host:port, such as 0.0.0.0:7400")?,
            None => base.listen,
        };
        let span = |value: Option<Span>, default: Duration| value.map_or(default, |s| s.0);
        // Somebody who sets only the heartbeat wants the usual three of them.
        let heartbeat = span(self.heartbeat, base.heartbeat);
        let size = |value: Option<Size>, default: usize| {
            value.map_or(default, |s| usize::try_from(s.0).unwrap_or(usize::MAX))
        };
        let broker = BrokerOptions {
            listen,
            cluster: self.cluster.clone().unwrap_or(base.cluster),
            engine: self.engine(base.engine)?,
            heartbeat,
            heartbeat_timeout: span(self.heartbeat_timeout, heartbeat.saturating_mul(3)),
            drain_timeout: span(self.drain_timeout, base.drain_timeout),
            startup_timeout: self.startup_timeout.map(|s| s.0).filter(|d| !d.is_zero()),
            handshake_timeout: span(self.handshake_timeout, base.handshake_timeout),
            max_handshakes: self.max_handshakes.unwrap_or(base.max_handshakes),
            max_sessions: self.max_sessions.unwrap_or(base.max_sessions),
            receiving_bytes: size(self.receiving, base.receiving_bytes),
            session_outbox_bytes: size(self.session_outbox, base.session_outbox_bytes),
            outboxes_bytes: size(self.outboxes, base.outboxes_bytes),
            membership: ClusterOptions {
                advertise: self.advertise.clone(),
                weight: self.weight.unwrap_or(base.membership.weight),
                lease_ttl: span(self.lease_ttl, base.membership.lease_ttl),
                peer_heartbeat: span(self.peer_heartbeat, base.membership.peer_heartbeat),
                peer_timeout: span(self.peer_timeout, base.membership.peer_timeout),
                handover_timeout: span(self.handover_timeout, base.membership.handover_timeout),
            },
            http: self.http()?,
            access: self.access()?,
            group_limits: self.group_limits()?,
            metrics_destinations: self.metrics_destinations.unwrap_or(base.metrics_destinations),
            ..BrokerOptions::default()
        };
        broker.validate()?;
        Ok(Config {
            broker,
            store,
            log_format: self.log_format.unwrap_or_default(),
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
        })
    }

    fn group_limits(&self) -> Result<BTreeMap<String, Limits>, ConfigError> {
        let mut all = BTreeMap::new();
        for given in &self.group_limit {
            let bad = |message: String| ConfigError::Setting { setting: "group-limit", message };
            let GroupLimitConfig { group, schedules, burst, pending, payload } = given.clone();
            // Checks the name.
            if group != EVERY_GROUP {
                Destination::new(&group, "app").map_err(|e| bad(e.to_string()))?;
            }
            let payload = payload.map(|size| u32::try_from(size.0).unwrap_or(u32::MAX));
            let limits = Limits { schedules, burst, pending, payload, connections: None };
            if all.insert(group.clone(), limits).is_some() {
                return Err(bad(format!("{group} is there twice: write it once")));
            }
        }
        Ok(all)
    }

    fn access(&self) -> Result<AccessOptions, ConfigError> {
        let peer_token = match (&self.peer_token_file, &self.peer_token) {
            (Some(file), PeerToken::None) => PeerToken::File(file.clone()),
            (None, token) => token.clone(),
            (Some(_), _) => {
                let message = format!("{PEER_TOKEN} is set as well: leave one of them out");
                return Err(ConfigError::Setting { setting: "peer-token-file", message });
            }
        };
        if self.tokens.is_some() && self.redis.is_some() && peer_token == PeerToken::None {
            let file = self.tokens.as_deref().unwrap_or(Path::new("tokens.toml")).display().to_string();
            let message = format!(
                "brokers of a cluster show a token to each other, and this one has none: make one with `mtimer \
                 token create --file '{}' --name brokers --grant 'broker,read:*'` and give it in peer-token-file or \
                 {PEER_TOKEN}",
                file.replace('\'', "'\\''")
            );
            return Err(ConfigError::Setting { setting: "tokens", message });
        }
        let insecure = self.insecure.unwrap_or_default();
        let redis =
            RedisCertificates { certificate: self.redis_tls_cert.clone(), ca: self.redis_tls_ca.clone() };
        Ok(AccessOptions { tokens: self.tokens.clone(), peer_token, tls: self.tls()?, redis, insecure })
    }

    fn tls(&self) -> Result<Option<BrokerTlsOptions>, ConfigError> {
        let Self { tls_cert, tls_key, tls_client_ca, tls_ca, .. } = self;
        let wrong = |setting, file: &Path, what| {
            let message = format!("{} is given, but {what}", file.display());
            Err(ConfigError::Setting { setting, message })
        };
        match (tls_cert, tls_key, tls_client_ca, tls_ca) {
            (None, None, None, None) => Ok(None),
            (Some(file), None, ..) => wrong("tls-cert", file, "not its key: give tls-key, too"),
            (None, Some(file), ..) => wrong("tls-key", file, "not its certificate: give tls-cert, too"),
            (None, None, Some(file), _) => {
                wrong("tls-client-ca", file, "this broker has no certificate: give tls-cert and tls-key, too")
            }
            (None, None, None, Some(file)) => {
                wrong("tls-ca", file, "this broker has no certificate: give tls-cert and tls-key, too")
            }
            (Some(file), Some(_), _, None) if self.redis.is_some() => wrong(
                "tls-cert",
                file,
                "not who signs the certificates of the cluster's other brokers: give tls-ca, too",
            ),
            (Some(certificate), Some(key), client_ca, ca) => Ok(Some(BrokerTlsOptions {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
                ca: ca.clone(),
            })),
        }
    }

    fn http(&self) -> Result<HttpListen, ConfigError> {
        Ok(match self.http.as_deref() {
            None | Some("auto") => HttpListen::Auto,
            Some("off") => HttpListen::Off,
            Some(text) => HttpListen::At(parse_address(
                "http",
                text,
                "host:port, such as 127.0.0.1:7480, or off, or auto",
            )?),
        })
    }

    fn store(&self) -> Result<StoreConfig, ConfigError> {
        let partitions = self.partitions;
        let urls = self.redis.iter().flat_map(|list| &list.0).map(|url| url.0.clone()).collect::<Vec<_>>();
        for url in self.redis.iter().flat_map(|list| &list.0) {
            url.check().map_err(|message| ConfigError::Setting { setting: "redis", message })?;
        }
        let tls = self.redis_tls(&urls)?;
        let write_log_bytes = self.redis_write_log(&urls)?;
        let wrong =
            |message: &str| ConfigError::Setting { setting: "durability", message: message.to_owned() };
        if urls.is_empty() {
            let sync = match self.durability {
                None | Some(Durability::EmbeddedSync) => true,
                Some(Durability::EmbeddedFast) => false,
                Some(_) => return Err(wrong("the store is embedded: give redis URLs, or an embedded level")),
            };
            let data = self.data.clone().unwrap_or_else(|| PathBuf::from("mtimer-data"));
            let (disk_watermark, disk_reserve) = self.disk_limits()?;
            return Ok(StoreConfig::Embedded { data, sync, partitions, disk_watermark, disk_reserve });
        }
        if self.data.is_some() {
            let message = "a folder and redis URLs are given: leave one of them out".to_owned();
            return Err(ConfigError::Setting { setting: "data", message });
        }
        for (setting, given) in [("disk-watermark", self.disk_watermark), ("disk-reserve", self.disk_reserve)]
        {
            if given.is_some() {
                let message =
                    "it is for the embedded store, and redis URLs are given: leave it out".to_owned();
                return Err(ConfigError::Setting { setting, message });
            }
        }
        let replication = match self.durability {
            None | Some(Durability::Redis) if self.replicas.or(self.replicas_within.map(|_| 0)).is_some() => {
                return Err(wrong("replicas are set: write redis-replicated, or leave them out"));
            }
            None | Some(Durability::Redis) => None,
            Some(Durability::RedisReplicated) => Some(self.replication()?),
            Some(_) => return Err(wrong("the store is Redis: write redis or redis-replicated")),
        };
        Ok(StoreConfig::Redis(RedisConfig { urls, tls, replication, write_log_bytes, partitions }))
    }

    /// The watermark and the reserve.
    fn disk_limits(&self) -> Result<(u64, u64), ConfigError> {
        let bytes = |given: Option<Size>, default: u64| given.map_or(default, |size| size.0);
        let reserve = bytes(self.disk_reserve, limits::DISK_RESERVE_BYTES);
        if reserve < limits::MIN_DISK_RESERVE_BYTES {
            let message = format!(
                "{reserve} bytes: give it at least 64MiB, so that delivering can go on when the disk is full, or \
                 leave it out for 256MiB"
            );
            return Err(ConfigError::Setting { setting: "disk-reserve", message });
        }
        // Somebody who sets only the reserve wants to be warned before.
        let watermark = bytes(self.disk_watermark, limits::DISK_WATERMARK_BYTES.max(reserve));
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

    fn redis_write_log(&self, urls: &[String]) -> Result<usize, ConfigError> {
        let wrong = |message| Err(ConfigError::Setting { setting: "redis-write-log", message });
        let Some(Size(bytes)) = self.redis_write_log else { return Ok(limits::WRITE_LOG_BYTES) };
        if urls.is_empty() {
            return wrong("the store is embedded: give redis URLs, or leave it out".to_owned());
        }
        if (1..MIN_WRITE_LOG).contains(&bytes) {
            return wrong(format!("{bytes} bytes: allowed are 0 (none), or 1MiB and more"));
        }
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn replication(&self) -> Result<Replication, ConfigError> {
        let base = Replication::default();
        let replicas = self.replicas.unwrap_or(base.replicas);
        let within = self.replicas_within.map_or(base.within, |s| s.0);
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

    fn engine(&self, base: EngineOptions) -> Result<EngineOptions, ConfigError> {
        let mut retry_by_dest = HashMap::new();
        for d in &self.destination {
            let bad = |message: String| ConfigError::Setting { setting: "destination", message };
            let dest = Destination::new(&d.group, &d.app).map_err(|e| bad(e.to_string()))?;
            if retry_by_dest.insert(dest.clone(), tiers(&d.retry)).is_some() {
                return Err(bad(format!("{dest} is there twice: write it once")));
            }
        }
        Ok(EngineOptions {
            address: base.address,
            partitions: self.partitions.unwrap_or(base.partitions),
            preload_ms: self.preload.map_or(base.preload_ms, Span::as_ms),
            memory_bytes: self.memory.map_or(base.memory_bytes, |s| s.0),
            batch_ops: base.batch_ops,
            park_after_ms: self.park_after.map_or(base.park_after_ms, Span::as_ms),
            retry: self.retry.as_ref().map_or(base.retry, tiers),
            retry_by_dest,
            jitter_percent: self.jitter_percent.unwrap_or(base.jitter_percent),
            callback_timeout_ms: self.callback_timeout.map_or(base.callback_timeout_ms, Span::as_ms_u32),
            dead_max_age_ms: self.dead_max_age.map_or(base.dead_max_age_ms, Span::as_ms),
            dead_max_count: self.dead_max_count.unwrap_or(base.dead_max_count),
            unconfirmed_max_age_ms: self.unconfirmed_max_age.map_or(base.unconfirmed_max_age_ms, Span::as_ms),
            unconfirmed_max_count: self.unconfirmed_max_count.unwrap_or(base.unconfirmed_max_count),
            traces: base.traces,
            seed: base.seed,
        })
    }
}

fn tiers(list: &CommaList<Span>) -> RetryTiers {
    RetryTiers(list.0.iter().map(|s| s.as_ms_u32()).collect())
}

fn parse_address(setting: &'static str, text: &str, write: &str) -> Result<SocketAddr, ConfigError> {
    let bad = |what: String| ConfigError::Setting {
        setting,
        message: format!("{text:?} is not an address: {what}; write {write}"),
    };
    let mut found = text.to_socket_addrs().map_err(|e| bad(e.to_string()))?;
    found.next().ok_or_else(|| bad("the name has no address".to_owned()))
}
