//! The list of settings: all that has to be said once for each of them.
//!
//! Flags, variables, keys of the file, `--print-config`, `deploy/mtimer.toml` and
//! `docs/settings.md` come from here. The two files are compared by `tests/sample_config.rs`, which
//! also writes them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::kept::KeptAs;
use super::settings::settings;
use super::tables::{DestinationConfig, GroupLimitConfig};
use super::units::{CommaList, Durability, LogFormat, RedisUrl, Size, Span};
use super::value::SettingValue;
use crate::access::PeerToken;
use crate::options::BrokerOptions;

settings! {
    "Addresses and metrics" {
        /// Where clients connect. Beyond this machine only with TLS and with --tokens or
        /// --tls-client-ca, or with --insecure
        ///
        /// Other brokers connect here, too.
        listen: String => listen { value: "ADDR", example: "\"10.0.0.5:7400\"" };
        /// Where metrics and health probes are served over HTTP: HOST:PORT, off, or auto
        /// (127.0.0.1:7480 if that is free). With --tokens metrics need one that may read on *
        ///
        /// Metrics are at /metrics, probes at /healthz and /readyz. HOST:PORT must be free.
        /// docs/metrics.md lists all metrics.
        http: String => http { value: "ADDR", example: "\"127.0.0.1:7480\"" };
        /// Destinations that have metrics of their own; the others are counted together
        ///
        /// They are those with the most pending timers.
        metrics_destinations: usize => metrics_destinations;
    }

    "Tokens and TLS" {
        /// The file of tokens, made with `mtimer token create`: whoever connects has to show one of
        /// them
        ///
        /// Read again when it changes and on HUP. Without it everybody may do everything.
        tokens: PathBuf => access.tokens { reread: true, sample: "\"/etc/mtimer/tokens.toml\"" };
        /// A file with nothing but this broker's own token in it, which it shows to other brokers
        ///
        /// The token needs the grant broker,read:*. The variable MTIMER_PEER_TOKEN can hold the
        /// token itself instead.
        peer_token_file: PathBuf { reread: true, shared: true, sample: "\"/etc/mtimer/peer-token\"" };
        /// PEM file of this broker's certificate and its chain: its ports then speak TLS only, and
        /// so do its connections to other brokers
        ///
        /// Metrics and probes speak TLS then, too. Read again, with its key, when it changes and on
        /// HUP. docs/security.md shows how to make certificates.
        tls_cert: PathBuf { reread: true, sample: "\"/etc/mtimer/broker.pem\"" };
        /// PEM file of the key of that certificate
        tls_key: PathBuf { sample: "\"/etc/mtimer/broker.key\"" };
        /// PEM file of the authorities that sign the certificates of clients and other brokers:
        /// whoever has none is refused
        ///
        /// Only probes are answered without one.
        tls_client_ca: PathBuf { reread: true, sample: "\"/etc/mtimer/ca.pem\"" };
        /// PEM file of the authorities that sign the certificates of other brokers' ports
        ///
        /// Needed with tls-cert and Redis.
        tls_ca: PathBuf { reread: true, shared: true, sample: "\"/etc/mtimer/ca.pem\"" };
        /// Listen beyond this machine without TLS, or without tokens and clients' certificates:
        /// whoever gets there may read everything, or do everything [default: false]
        ///
        /// Trusted networks only.
        insecure: bool => access.insecure;
    }

    "Cluster" {
        /// The address that clients are to use, if it is not the one listened on
        ///
        /// Other brokers use it, too. It is the broker's name in the cluster: each broker has its
        /// own. Needed if it listens on 0.0.0.0.
        advertise: String => membership.advertise {
            value: "ADDR",
            shared: true,
            example: "\"10.0.0.5:7400\"",
            sample: "\"broker-1.example.com:7400\"",
        };
        /// Its share of the partitions in relation to other brokers', 1 to 1000
        weight: u16 => membership.weight { shared: true };
        /// How long the leader's lease lasts if it is not renewed
        ///
        /// 500ms to 60s: about so long after the leader's death nobody is given anything.
        lease_ttl: Span => membership.lease_ttl { shared: true };
        /// How often a broker tells the leader that it is there
        ///
        /// At most a third of peer-timeout.
        peer_heartbeat: Span => membership.peer_heartbeat { shared: true };
        /// Silence after which the leader gives a broker's partitions to others
        peer_timeout: Span => membership.peer_timeout { shared: true };
        /// How long a new owner waits for a live old one to give a partition up
        ///
        /// Then the new owner takes it.
        handover_timeout: Span => membership.handover_timeout { shared: true };
        /// The cluster's name
        ///
        /// It is part of every key in Redis, so several clusters can share one Redis. All brokers
        /// of a cluster give the same: letters, digits, '-', '_', '.', at most 64.
        cluster: String => cluster { value: "NAME", example: "\"shop\"" };
    }

    "Redis" {
        /// Redis servers, or Sentinels, separated by commas, such as redis://10.0.0.5:6379; without
        /// any the store is embedded. `ps`
        /// shows flags: put an address with a password into the settings file or MTIMER_REDIS
        ///
        /// Without it the broker is alone. Of a Redis Cluster some of its nodes (the rest is
        /// found), otherwise the master, and replicas that may take its place. With a password:
        /// redis://user:password@host:6379, where @ / ? # , % in user or password are written as
        /// %40 %2F %3F %23 %2C %25; with TLS: rediss://host:6379; over a Unix socket:
        /// unix:///run/redis/redis.sock?user=USER&pass=PASSWORD; in RESP3: ?protocol=resp3 at the
        /// end. Or the Sentinels that watch the master: redis-sentinel://host:26379?master=NAME.
        redis: CommaList<RedisUrl> {
            value: "URL",
            shared: true,
            reread: true,
            example: "[\"redis://10.0.0.5:6379\"]",
            sample: "[\"rediss://10.0.0.11:6379\", \"rediss://10.0.0.12:6379\", \"rediss://10.0.0.13:6379\"]",
        };
        /// PEM file of the authorities that sign the certificates of Redis; without it the system's
        ///
        /// Only with rediss://, as the certificate and the key. All three are read again for every
        /// connection.
        redis_tls_ca: PathBuf { shared: true, sample: "\"/etc/mtimer/redis-ca.pem\"" };
        /// PEM file of the certificate to show to Redis, and its chain
        ///
        /// If the servers ask for one (tls-auth-clients).
        redis_tls_cert: PathBuf { shared: true, sample: "\"/etc/mtimer/redis-client.pem\"" };
        /// PEM file of the key of that certificate
        ///
        /// Nobody but its owner and group may be able to read it.
        redis_tls_key: PathBuf { shared: true, sample: "\"/etc/mtimer/redis-client.key\"" };
        /// Memory for the last writes, to repeat what Redis loses; 0: none [default: 64MiB]
        ///
        /// What a failover of Redis, or a restart from its append-only file, has lost is written
        /// again by the owner of the partition. A write is kept until replicas or the file have it.
        /// 0, or at least 1MiB.
        redis_write_log: Size { shared: true, sample: "\"64MiB\"" };
    }

    "Store" {
        /// What an answered schedule means
        ///
        /// "redis" (in the master's memory) or "redis-replicated" (confirmed by replicas); without
        /// Redis "embedded-sync" (fsynced) or "embedded-fast" (fsynced a moment later). Without it:
        /// redis with Redis, else embedded-sync.
        durability: Durability { value: "LEVEL", sample: "\"redis-replicated\"" };
        /// How many replicas have to confirm a write (redis-replicated)
        ///
        /// 1 to 16; without it 1.
        replicas: u32 { shared: true, sample: "1" };
        /// How long they may take; then the write is answered as not confirmed
        ///
        /// 10ms to 60s; without it 2s.
        replicas_within: Span { shared: true, sample: "\"2s\"" };
        /// Partitions of the cluster, fixed when it is created
        ///
        /// 1 to 1024; all brokers give the same, or none. Many more than there will ever be
        /// brokers, so that they can be shared out evenly. A new cluster on Redis has 32 without
        /// it.
        partitions: u16 { sample: "32" };
    }

    "Embedded store" {
        /// Folder of the embedded store
        ///
        /// Not together with redis. A relative one is in the working directory: /var/lib/mtimer in
        /// the systemd service and in the container.
        data: PathBuf { value: "DIR", example: "\"/var/lib/mtimer\"" };
        /// Warn when the disk of the embedded store has less free space; 0: never [default: 1GiB]
        disk_watermark: Size;
        /// Refuse new timers when it has less, or less than the store needs to go on with what it
        /// has; at least 64MiB [default: 256MiB]
        ///
        /// Clients are told that the store is full, and may repeat; everything else goes on. The
        /// reserve is for what is promised already. For its journals and for merging its files the
        /// store may need up to about 350MiB.
        disk_reserve: Size;
    }

    "Delivery" {
        /// How far ahead timers are loaded into memory; less once half of --memory is used
        preload: Span => engine.preload_ms;
        /// Budget for timers in memory
        memory: Size => engine.memory_bytes;
        /// How long a due timer waits for a client before it is set aside
        ///
        /// It comes back when one registers.
        park_after: Span => engine.park_after_ms;
        /// Delays before attempt 2, 3, ..., separated by commas; empty: one attempt only
        retry: CommaList<Span> => engine.retry { value: "DELAYS", example: "[\"1s\", \"5s\"]" };
        /// Random part that is added to a retry delay, in percent
        jitter_percent: u8 => engine.jitter_percent;
        /// How long a handler may take if the timer does not say
        callback_timeout: Span => engine.callback_timeout_ms;
    }

    "Dead letters" {
        /// How long dead letters are kept
        dead_max_age: Span => engine.dead_max_age_ms;
        /// How many dead letters a partition keeps
        dead_max_count: u64 => engine.dead_max_count;
        /// How long at-most-once timers stay listed as unconfirmed
        ///
        /// They are those whose delivery nobody confirmed; `mtimer dead unconfirmed` lists them.
        unconfirmed_max_age: Span => engine.unconfirmed_max_age_ms;
        /// How many unconfirmed timers a partition keeps
        unconfirmed_max_count: u64 => engine.unconfirmed_max_count;
    }

    "Start and stop" {
        /// How long a graceful stop waits for handlers
        ///
        /// Whoever stops the broker (systemd, Kubernetes) must allow 20s more: for handing the
        /// partitions over before, and for closing everything after.
        drain_timeout: Span => drain_timeout;
        /// How long to wait at start for a store that is away; 0s: for ever
        startup_timeout: Span => startup_timeout;
    }

    "Connections and their limits" {
        /// How often either side of a connection sends something
        heartbeat: Span => heartbeat;
        /// Silence after which a client is taken for dead
        ///
        /// At least two heartbeats. Three are usual, and are taken if only heartbeat is set.
        heartbeat_timeout: Span => heartbeat_timeout;
        /// How long a connection may take for its handshake
        handshake_timeout: Span => handshake_timeout;
        /// Connections at most that have not finished their handshake
        ///
        /// If there are more, the oldest is closed (of the address that has more than half of them,
        /// if there is one).
        max_handshakes: usize => max_handshakes;
        /// Sessions of clients at most; other brokers and observers have places besides
        max_sessions: usize => max_sessions;
        /// Memory for frames that clients are sending, of all together
        ///
        /// While it is used up, clients with large frames are not read, and those that send theirs
        /// slowly are closed. At least one frame: 4 MiB.
        receiving: Size => receiving_bytes;
        /// What may wait for one session to read it, at most
        session_outbox: Size => session_outbox_bytes;
        /// What may wait for all sessions together, at most
        ///
        /// When seven eighths are used, the clients with the most waiting are closed. At least one
        /// frame: 4 MiB.
        outboxes: Size => outboxes_bytes;
    }

    "Log" {
        /// text or json
        ///
        /// "text" for people, "json" for machines. The log is on standard error.
        log_format: LogFormat { value: "FORMAT" };
        /// error, warn, info, debug or trace, or a filter such as info,mtimer_broker=debug
        log_level: String { value: "FILTER", example: "\"info\"" };
    }
}

/// One setting: what flags, variables, files and documents have to know of it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name of its field in [`PartialConfig`].
    pub field: &'static str,
    /// The part of the help and of the documents that it stands in.
    pub group: &'static str,
    /// What can be written, and what each means; empty if the values cannot be listed.
    pub choices: &'static [(&'static str, &'static str)],
    /// It is true or false; as a flag without a value it is true.
    pub is_switch: bool,
    /// What stands for its value in the help of a flag.
    pub value: &'static str,
    /// It says something to brokers that share a store: one with a store of its own has no use for
    /// it.
    pub shared: bool,
    /// It names what a running broker reads again on HUP.
    pub reread: bool,
    /// A value as the file has it, to show in errors how one is written.
    example: &'static str,
    /// A value as the file has it, for the sample file; empty: the default.
    sample: &'static str,
    docs: &'static [&'static str],
    read: fn(&mut PartialConfig, &str) -> Result<(), String>,
    show: fn(&PartialConfig) -> Option<String>,
}

impl Setting {
    /// A setting of this type, with what follows from that.
    const fn of<T: SettingValue>(
        field: &'static str,
        group: &'static str,
        docs: &'static [&'static str],
        read: fn(&mut PartialConfig, &str) -> Result<(), String>,
        show: fn(&PartialConfig) -> Option<String>,
    ) -> Self {
        Self {
            field,
            group,
            choices: T::CHOICES,
            is_switch: T::IS_SWITCH,
            value: T::VALUE,
            shared: false,
            reread: false,
            example: T::EXAMPLE,
            sample: "",
            docs,
            read,
            show,
        }
    }

    /// Returns its name in the file and as a flag, such as `park-after`.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Returns its environment variable, such as `MTIMER_PARK_AFTER`.
    pub fn variable(&self) -> String {
        format!("MTIMER_{}", self.field.to_ascii_uppercase())
    }

    /// Returns what it is, in one sentence without a full stop: the first paragraph of its entry.
    pub fn help(&self) -> String {
        let lines = self.docs.iter().take_while(|line| !line.is_empty());
        lines.map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }

    /// Returns what documents say beyond its help: the other paragraphs of its entry.
    pub fn details(&self) -> String {
        let lines = self.docs.iter().skip_while(|line| !line.is_empty());
        lines.map(|line| line.trim()).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Returns a line of the file that sets it, to show how a value is written there.
    pub fn example(&self) -> String {
        match self.choices.first() {
            Some((choice, _)) => format!("{} = \"{choice}\"", self.name()),
            None => format!("{} = {}", self.name(), self.example),
        }
    }

    /// Returns the value that the sample file shows, as it is written there; `None`: the default.
    pub fn sample(&self) -> Option<&'static str> {
        Some(self.sample).filter(|sample| !sample.is_empty())
    }

    /// Sets it to what a variable or a flag says.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and what to write.
    pub fn read(&self, config: &mut PartialConfig, text: &str) -> Result<(), String> {
        (self.read)(config, text)
    }

    /// Returns its value as a flag or a variable has it, without passwords; `None`: it has none.
    pub fn show(&self, config: &PartialConfig) -> Option<String> {
        (self.show)(config)
    }
}
