//! What the settings mean: options of the broker.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use mtimer_access::Limits;
use mtimer_store::without_password;
use mtimer_types::{Destination, RetryTiers};

use super::error::ConfigError;
use super::kept::KeptAs;
use super::layers::PEER_TOKEN;
use super::list::PartialConfig;
use super::store::StoreConfig;
use super::tables::GroupLimitConfig;
use super::units::{CommaList, LogFormat, RedisUrl, Span};
use crate::access::{AccessOptions, PeerToken, RedisCertificates};
use crate::limits::EVERY_GROUP;
use crate::options::{BrokerOptions, HttpListen};
use crate::tls::BrokerTlsOptions;

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
    /// All of these as settings, without secrets.
    settings: PartialConfig,
}

impl Config {
    /// Returns the settings that give this, each with its value, without passwords.
    pub fn settings(&self) -> &PartialConfig {
        &self.settings
    }

    /// Writes these settings as a file that can be read again, without passwords.
    ///
    /// # Errors
    ///
    /// If a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let written = toml::to_string_pretty(&self.settings);
        written.map_err(|error| ConfigError::Write { message: error.to_string() })
    }
}

impl PartialConfig {
    /// Adds the defaults and checks every value.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the setting's name, if a value is out of range or does not go with
    /// another.
    pub fn resolve(mut self) -> Result<Config, ConfigError> {
        let store = self.store()?;
        let mut broker = BrokerOptions { http: HttpListen::Auto, ..BrokerOptions::default() };
        // Somebody who sets only the heartbeat wants the usual three of them.
        let usual = self.heartbeat.map(|heartbeat| Span(heartbeat.0.saturating_mul(3)));
        self.heartbeat_timeout = self.heartbeat_timeout.or(usual);
        self.settle(&mut broker)?;
        broker.engine.partitions = self.partitions.unwrap_or(broker.engine.partitions);
        broker.engine.retry_by_dest = self.retry_by_dest()?;
        self.access(&mut broker.access)?;
        broker.group_limits = self.group_limits()?;
        broker.validate()?;
        let log_format = *self.log_format.get_or_insert_default();
        let log_level = self.log_level.get_or_insert_with(|| "info".to_owned()).clone();
        Ok(Config { broker, store, log_format, log_level, settings: self.without_secrets() })
    }

    fn without_secrets(mut self) -> Self {
        let conceal = |list: CommaList<RedisUrl>| {
            CommaList(list.0.iter().map(|url| RedisUrl(without_password(&url.0))).collect())
        };
        self.redis = self.redis.filter(|list| !list.0.is_empty()).map(conceal);
        self.peer_token = PeerToken::None;
        self
    }

    /// In order afterwards, and as exact as it is kept.
    fn retry_by_dest(&mut self) -> Result<HashMap<Destination, RetryTiers>, ConfigError> {
        let mut all = HashMap::new();
        for given in &mut self.destination {
            let bad = |message: String| ConfigError::Setting { setting: "destination", message };
            let dest = Destination::new(&given.group, &given.app).map_err(|e| bad(e.to_string()))?;
            let retry: RetryTiers = given.retry.clone().keep().map_err(bad)?;
            given.retry = KeptAs::kept(&retry).unwrap_or_else(|| given.retry.clone());
            if all.insert(dest.clone(), retry).is_some() {
                return Err(bad(format!("{dest} is there twice: write it once")));
            }
        }
        self.destination.sort_by(|a, b| (&a.group, &a.app).cmp(&(&b.group, &b.app)));
        Ok(all)
    }

    /// In order afterwards.
    fn group_limits(&mut self) -> Result<BTreeMap<String, Limits>, ConfigError> {
        self.group_limit.sort_by(|a, b| a.group.cmp(&b.group));
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

    fn access(&self, options: &mut AccessOptions) -> Result<(), ConfigError> {
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
        options.peer_token = peer_token;
        options.tls = self.tls()?;
        options.redis =
            RedisCertificates { certificate: self.redis_tls_cert.clone(), ca: self.redis_tls_ca.clone() };
        Ok(())
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
}
