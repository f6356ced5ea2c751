//! Settings as they apply, for people: what `--print-config` and the help of flags show.

use std::time::Duration;

use mtimer_access::Limits;
use mtimer_store::without_password;
use mtimer_types::{Destination, RetryTiers};

use super::error::ConfigError;
use super::list::{DestinationConfig, GroupLimitConfig, PartialConfig};
use super::resolve::{Config, RedisConfig, StoreConfig};
use super::units::{CommaList, Durability, RedisUrl, Size, Span};
use crate::access::PeerToken;
use crate::options::HttpListen;

impl Config {
    /// Returns the settings that give this, without passwords.
    pub fn settings(&self) -> PartialConfig {
        let (b, engine, membership) = (&self.broker, &self.broker.engine, &self.broker.membership);
        let ms = |ms: u64| Some(Span(Duration::from_millis(ms)));
        let bytes = |bytes: usize| Some(Size(bytes as u64));
        // Every field is named: a setting that is missing here does not compile.
        let shared = PartialConfig {
            listen: Some(b.listen.to_string()),
            http: Some(http(b.http)),
            tokens: b.access.tokens.clone(),
            peer_token_file: match &b.access.peer_token {
                PeerToken::File(file) => Some(file.clone()),
                PeerToken::None | PeerToken::Value(_) => None,
            },
            tls_cert: b.access.tls.as_ref().map(|tls| tls.certificate.clone()),
            tls_key: b.access.tls.as_ref().map(|tls| tls.key.clone()),
            tls_client_ca: b.access.tls.as_ref().and_then(|tls| tls.client_ca.clone()),
            tls_ca: b.access.tls.as_ref().and_then(|tls| tls.ca.clone()),
            insecure: Some(b.access.insecure),
            metrics_destinations: Some(b.metrics_destinations),
            advertise: membership.advertise.clone(),
            weight: Some(membership.weight),
            lease_ttl: Some(Span(membership.lease_ttl)),
            peer_heartbeat: Some(Span(membership.peer_heartbeat)),
            peer_timeout: Some(Span(membership.peer_timeout)),
            handover_timeout: Some(Span(membership.handover_timeout)),
            cluster: Some(b.cluster.clone()),
            redis: None,
            redis_tls_ca: None,
            redis_tls_cert: None,
            redis_tls_key: None,
            redis_write_log: None,
            durability: None,
            replicas: None,
            replicas_within: None,
            partitions: None,
            data: None,
            disk_watermark: None,
            disk_reserve: None,
            preload: ms(engine.preload_ms),
            memory: Some(Size(engine.memory_bytes)),
            park_after: ms(engine.park_after_ms),
            retry: Some(spans(&engine.retry)),
            jitter_percent: Some(engine.jitter_percent),
            callback_timeout: ms(engine.callback_timeout_ms.into()),
            dead_max_age: ms(engine.dead_max_age_ms),
            dead_max_count: Some(engine.dead_max_count),
            unconfirmed_max_age: ms(engine.unconfirmed_max_age_ms),
            unconfirmed_max_count: Some(engine.unconfirmed_max_count),
            drain_timeout: Some(Span(b.drain_timeout)),
            startup_timeout: Some(Span(b.startup_timeout.unwrap_or_default())),
            heartbeat: Some(Span(b.heartbeat)),
            heartbeat_timeout: Some(Span(b.heartbeat_timeout)),
            handshake_timeout: Some(Span(b.handshake_timeout)),
            max_handshakes: Some(b.max_handshakes),
            max_sessions: Some(b.max_sessions),
            receiving: bytes(b.receiving_bytes),
            session_outbox: bytes(b.session_outbox_bytes),
            outboxes: bytes(b.outboxes_bytes),
            log_format: Some(self.log_format),
            log_level: Some(self.log_level.clone()),
            destination: self.destinations(),
            group_limit: self.group_limits(),
            // A secret.
            peer_token: PeerToken::None,
        };
        self.store.settings().or(shared)
    }

    /// Writes these settings as a file that can be read again, without passwords.
    ///
    /// # Errors
    ///
    /// If a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let written = toml::to_string_pretty(&self.settings());
        written.map_err(|error| ConfigError::Write { message: error.to_string() })
    }

    fn group_limits(&self) -> Vec<GroupLimitConfig> {
        let one = |(group, limits): (&String, &Limits)| GroupLimitConfig {
            group: group.clone(),
            schedules: limits.schedules,
            burst: limits.burst,
            pending: limits.pending,
            payload: limits.payload.map(|bytes| Size(bytes.into())),
        };
        self.broker.group_limits.iter().map(one).collect()
    }

    fn destinations(&self) -> Vec<DestinationConfig> {
        let mut all: Vec<(&Destination, &RetryTiers)> = self.broker.engine.retry_by_dest.iter().collect();
        all.sort_by_key(|(dest, _)| *dest);
        let one = |(dest, retry): (&Destination, &RetryTiers)| DestinationConfig {
            group: dest.group().to_owned(),
            app: dest.app().to_owned(),
            retry: spans(retry),
        };
        all.into_iter().map(one).collect()
    }
}

impl StoreConfig {
    /// The settings of the store, without passwords.
    fn settings(&self) -> PartialConfig {
        match self {
            Self::Embedded { data, sync, partitions, disk_watermark, disk_reserve } => PartialConfig {
                data: Some(data.clone()),
                disk_watermark: Some(Size(*disk_watermark)),
                disk_reserve: Some(Size(*disk_reserve)),
                durability: Some(if *sync { Durability::EmbeddedSync } else { Durability::EmbeddedFast }),
                partitions: *partitions,
                ..PartialConfig::default()
            },
            Self::Redis(RedisConfig { urls, tls, replication, write_log_bytes, partitions }) => {
                PartialConfig {
                    redis: Some(CommaList(urls.iter().map(|url| RedisUrl(without_password(url))).collect())),
                    redis_tls_ca: tls.authorities.clone(),
                    redis_tls_cert: tls.certificate.clone(),
                    redis_tls_key: tls.key.clone(),
                    redis_write_log: Some(Size(*write_log_bytes as u64)),
                    durability: Some(match replication {
                        Some(_) => Durability::RedisReplicated,
                        None => Durability::Redis,
                    }),
                    replicas: replication.map(|r| r.replicas),
                    replicas_within: replication.map(|r| Span(r.within)),
                    partitions: *partitions,
                    ..PartialConfig::default()
                }
            }
        }
    }
}

fn http(http: HttpListen) -> String {
    match http {
        HttpListen::Off => "off".to_owned(),
        HttpListen::Auto => "auto".to_owned(),
        HttpListen::At(addr) => addr.to_string(),
    }
}

fn spans(tiers: &RetryTiers) -> CommaList<Span> {
    CommaList(tiers.0.iter().map(|&ms| Span(Duration::from_millis(ms.into()))).collect())
}
