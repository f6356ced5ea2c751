//! The list of settings, and the layers that give them values.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use mtimer_tls::check_private;
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::units::{CommaList, Durability, LogFormat, RedisUrl, SettingValue, Size, Span};
use crate::access::PeerToken;

/// One setting: what flags, variables and documents have to know of it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name of its field in [`PartialConfig`].
    pub field: &'static str,
    /// What can be written, and what each means; empty if the values cannot be listed.
    pub choices: &'static [(&'static str, &'static str)],
    /// It is true or false; as a flag without a value it is true.
    pub is_switch: bool,
    /// What stands for its value in the help of a flag.
    pub value: &'static str,
    help: &'static str,
    read: fn(&mut PartialConfig, &str) -> Result<(), String>,
}

impl Setting {
    /// Returns its name in the file and as a flag, such as `park-after`.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Returns its environment variable, such as `MTIMER_PARK_AFTER`.
    pub fn variable(&self) -> String {
        format!("MTIMER_{}", self.field.to_ascii_uppercase())
    }

    /// Returns what it is, in one sentence without a full stop.
    pub fn help(&self) -> &'static str {
        self.help.trim_start()
    }

    /// Returns a line of the file that sets it, to show how a value is written there.
    pub fn example(&self) -> String {
        let value = match (self.field, self.value) {
            ("listen" | "advertise", _) => "\"10.0.0.5:7400\"",
            ("http", _) => "\"127.0.0.1:7480\"",
            ("cluster", _) => "\"shop\"",
            ("redis", _) => "[\"redis://10.0.0.5:6379\"]",
            ("retry", _) => "[\"1s\", \"5s\"]",
            ("log_level", _) => "\"info\"",
            ("data", _) => "\"/var/lib/mtimer\"",
            (_, "FILE") => "\"/etc/mtimer/FILE\"",
            (_, "DURATION") => "\"5s\"",
            (_, "SIZE") => "\"256MiB\"",
            (_, "N") => "16",
            _ if self.is_switch => "true",
            _ => match self.choices.first() {
                Some((choice, _)) => return format!("{} = \"{choice}\"", self.name()),
                None => "\"TEXT\"",
            },
        };
        format!("{} = {value}", self.name())
    }

    /// Sets it to what a variable or a flag says.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and what to write.
    pub fn read(&self, config: &mut PartialConfig, text: &str) -> Result<(), String> {
        (self.read)(config, text)
    }
}

/// Defines [`PartialConfig`] and [`SETTINGS`]: all that has to be said once for each setting.
macro_rules! settings {
    ($( $(#[doc = $help:literal])+ $name:ident : $ty:ty, )*) => {
        /// Settings, each given or not. Layers are read with [`PartialConfig::from_file`],
        /// [`PartialConfig::from_env`] and [`Setting::read`], and put together with
        /// [`PartialConfig::or`].
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct PartialConfig {
            $(
                $(#[doc = $help])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $name: Option<$ty>,
            )*
            /// Retry tiers of single destinations; only in the file, as `[[destination]]`.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub destination: Vec<DestinationConfig>,
            /// Limits of groups; only in the file, as `[[group-limit]]`.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub group_limit: Vec<GroupLimitConfig>,
            /// This broker's own token, which it shows to other brokers; only from the variable
            /// `MTIMER_PEER_TOKEN`, so that it stands in no list of processes and in no settings.
            #[serde(skip)]
            pub peer_token: PeerToken,
        }

        /// Every setting that is one value.
        pub const SETTINGS: &[Setting] = &[$( Setting {
            field: stringify!($name),
            choices: <$ty as SettingValue>::CHOICES,
            is_switch: <$ty as SettingValue>::IS_SWITCH,
            value: <$ty as SettingValue>::VALUE,
            help: concat!($($help),+),
            read: |config, text| {
                config.$name = Some(<$ty as SettingValue>::read(text)?);
                Ok(())
            },
        }, )*];

        impl PartialConfig {
            /// What is given here, and from `lower` what is not.
            #[must_use]
            pub fn or(mut self, lower: Self) -> Self {
                $( self.$name = self.$name.or(lower.$name); )*
                if self.destination.is_empty() {
                    self.destination = lower.destination;
                }
                if self.group_limit.is_empty() {
                    self.group_limit = lower.group_limit;
                }
                if self.peer_token == PeerToken::None {
                    self.peer_token = lower.peer_token;
                }
                self
            }
        }
    };
}

settings! {
    /// Where clients connect. Beyond this machine only with TLS and with --tokens or
    /// --tls-client-ca, or with --insecure
    listen: String,
    /// Where metrics and health probes are served over HTTP: HOST:PORT, off, or auto
    /// (127.0.0.1:7480 if that is free). With --tokens metrics need one that may read on *
    http: String,
    /// The file of tokens, made with `mtimer token create`: whoever connects has to show one of
    /// them
    tokens: PathBuf,
    /// A file with nothing but this broker's own token in it, which it shows to other brokers
    peer_token_file: PathBuf,
    /// PEM file of this broker's certificate and its chain: its ports then speak TLS only, and so
    /// do its connections to other brokers
    tls_cert: PathBuf,
    /// PEM file of the key of that certificate
    tls_key: PathBuf,
    /// PEM file of the authorities that sign the certificates of clients and other brokers: whoever
    /// has none is refused
    tls_client_ca: PathBuf,
    /// PEM file of the authorities that sign the certificates of other brokers' ports
    tls_ca: PathBuf,
    /// Listen beyond this machine without TLS, or without tokens and clients' certificates: whoever
    /// gets there may read everything, or do everything [default: false]
    insecure: bool,
    /// Destinations that have metrics of their own; the others are counted together
    metrics_destinations: usize,
    /// The address that clients are to use, if it is not the one listened on
    advertise: String,
    /// Its share of the partitions in relation to other brokers', 1 to 1000
    weight: u16,
    /// How long the leader's lease lasts if it is not renewed
    lease_ttl: Span,
    /// How often a broker tells the leader that it is there
    peer_heartbeat: Span,
    /// Silence after which the leader gives a broker's partitions to others
    peer_timeout: Span,
    /// How long a new owner waits for a live old one to give a partition up
    handover_timeout: Span,
    /// The cluster's name
    cluster: String,
    /// Redis servers, or Sentinels, separated by commas, such as redis://10.0.0.5:6379; without any
    /// the store is embedded. `ps`
    /// shows flags: put an address with a password into the settings file or MTIMER_REDIS
    redis: CommaList<RedisUrl>,
    /// PEM file of the authorities that sign the certificates of Redis; without it the system's
    redis_tls_ca: PathBuf,
    /// PEM file of the certificate to show to Redis, and its chain
    redis_tls_cert: PathBuf,
    /// PEM file of the key of that certificate
    redis_tls_key: PathBuf,
    /// Memory for the last writes, to repeat what Redis loses; 0: none [default: 64MiB]
    redis_write_log: Size,
    /// What an answered schedule means
    durability: Durability,
    /// How many replicas have to confirm a write (redis-replicated)
    replicas: u32,
    /// How long they may take; then the write is answered as not confirmed
    replicas_within: Span,
    /// Partitions of the cluster, fixed when it is created
    partitions: u16,
    /// Folder of the embedded store
    data: PathBuf,
    /// Warn when the disk of the embedded store has less free space; 0: never [default: 1GiB]
    disk_watermark: Size,
    /// Refuse new timers when it has less, or less than the store needs to go on with what it has;
    /// at least 64MiB [default: 256MiB]
    disk_reserve: Size,
    /// How far ahead timers are loaded into memory; less once half of --memory is used
    preload: Span,
    /// Budget for timers in memory
    memory: Size,
    /// How long a due timer waits for a client before it is set aside
    park_after: Span,
    /// Delays before attempt 2, 3, ..., separated by commas; empty: one attempt only
    retry: CommaList<Span>,
    /// Random part that is added to a retry delay, in percent
    jitter_percent: u8,
    /// How long a handler may take if the timer does not say
    callback_timeout: Span,
    /// How long dead letters are kept
    dead_max_age: Span,
    /// How many dead letters a partition keeps
    dead_max_count: u64,
    /// How long at-most-once timers stay listed as unconfirmed
    unconfirmed_max_age: Span,
    /// How many unconfirmed timers a partition keeps
    unconfirmed_max_count: u64,
    /// How long a graceful stop waits for handlers
    drain_timeout: Span,
    /// How long to wait at start for a store that is away; 0s: for ever
    startup_timeout: Span,
    /// How often either side of a connection sends something
    heartbeat: Span,
    /// Silence after which a client is taken for dead
    heartbeat_timeout: Span,
    /// How long a connection may take for its handshake
    handshake_timeout: Span,
    /// Connections at most that have not finished their handshake
    max_handshakes: usize,
    /// Sessions of clients at most; other brokers and observers have places besides
    max_sessions: usize,
    /// Memory for frames that clients are sending, of all together
    receiving: Size,
    /// What may wait for one session to read it, at most
    session_outbox: Size,
    /// What may wait for all sessions together, at most
    outboxes: Size,
    /// text or json
    log_format: LogFormat,
    /// error, warn, info, debug or trace, or a filter such as info,mtimer_broker=debug
    log_level: String,
}

/// Variables that are not settings of a broker but belong to other commands or name the file.
const OTHER_VARIABLES: &[&str] = &[
    "MTIMER_CONFIG",
    "MTIMER_BROKER",
    "MTIMER_TOKEN",
    "MTIMER_TOKEN_FILE",
    "MTIMER_TLS_SERVER_NAME",
    PEER_TOKEN,
];
/// The variable with this broker's own token.
pub(super) const PEER_TOKEN: &str = "MTIMER_PEER_TOKEN";

/// Retry tiers of one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DestinationConfig {
    /// Group key.
    pub group: String,
    /// App key.
    pub app: String,
    /// Delays before attempt 2, 3, ...
    pub retry: CommaList<Span>,
}

/// Limits of a group at this broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GroupLimitConfig {
    /// Group key; `*`: each group that has no limits of its own.
    pub group: String,
    /// Schedules per second, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules: Option<u32>,
    /// Schedules at once after a pause; without it as many as in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Timers in memory or parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<u64>,
    /// Bytes of payload and headers of one timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Size>,
}

impl PartialConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the line, if the file cannot be read, has an unknown name or a value
    /// that is not valid; if it holds a password of Redis, and others than its owner and group can
    /// read it.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let config: Self =
            toml::from_str(&text).map_err(|e| ConfigError::of_file(path, &text, &e, setting_of))?;
        let mut urls = config.redis.iter().flat_map(|list| &list.0);
        if urls.any(RedisUrl::has_password) {
            check_private(&file, path)?;
        }
        Ok(config)
    }

    /// Reads `MTIMER_*` variables, usually from [`std::env::vars`]; others are not looked at.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the variable's name, if it is unknown or its value is not valid.
    pub fn from_env(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (name, value) in vars {
            if name == PEER_TOKEN {
                config.peer_token = PeerToken::Value(value);
            } else if name.starts_with("MTIMER_") && !OTHER_VARIABLES.contains(&name.as_str()) {
                let setting = SETTINGS.iter().find(|setting| setting.variable() == name);
                let Some(setting) = setting else {
                    return Err(ConfigError::UnknownVariable { name, known: known_variables() });
                };
                setting
                    .read(&mut config, &value)
                    .map_err(|message| ConfigError::Variable { name, message })?;
            }
        }
        Ok(config)
    }

    /// Puts flags over the environment over the file (if there is one).
    ///
    /// # Errors
    ///
    /// As those of [`PartialConfig::from_file`] and [`PartialConfig::from_env`].
    pub fn layered(
        flags: Self,
        vars: impl IntoIterator<Item = (String, String)>,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let file = file.map(Self::from_file).transpose()?.unwrap_or_default();
        Ok(flags.or(Self::from_env(vars)?).or(file))
    }
}

/// The setting that a line of the file gives a value to, and an example of one.
fn setting_of(line: &str) -> Option<(String, String)> {
    let (name, _) = line.split_once('=')?;
    let setting = SETTINGS.iter().find(|setting| setting.name() == name.trim())?;
    Some((setting.name(), setting.example()))
}

fn known_variables() -> String {
    let settings = SETTINGS.iter().map(Setting::variable);
    let known: BTreeSet<String> =
        settings.chain(OTHER_VARIABLES.iter().map(|&name| name.to_owned())).collect();
    known.into_iter().collect::<Vec<_>>().join(", ")
}
