//! Options of a broker, and their ranges.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mtimer_access::Limits;
use mtimer_core::EngineOptions;
use mtimer_core::cluster::is_address;
use mtimer_types::limits;

use crate::access::AccessOptions;
use crate::clock::{HostClock, SystemClock};
use crate::exposure::Lacks;
use crate::traces::SpanSink;

/// Options of a broker. [`Default`] gives a broker on 127.0.0.1:7400 that lets everybody in.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// Where clients connect; port 0 takes any free port (see
    /// [`Broker::local_addr`](crate::Broker::local_addr)).
    pub listen: SocketAddr,
    /// The cluster's name, told to clients.
    pub cluster: String,
    /// The engine's own options. The number of partitions is the store's, and a seed of 0 means a
    /// random one.
    pub engine: EngineOptions,
    /// Who may open a session, with which permissions.
    pub access: AccessOptions,
    /// Limits of groups at this broker, by name; `*` stands for every group that has none of its
    /// own.
    pub group_limits: BTreeMap<String, Limits>,
    /// The host's clock.
    pub host_clock: Arc<dyn HostClock>,
    /// Something is sent to every session at least this often.
    pub heartbeat: Duration,
    /// A session that is silent (or takes nothing) for so long is closed. At least two heartbeats.
    pub heartbeat_timeout: Duration,
    /// How long a connection may take for its handshake.
    pub handshake_timeout: Duration,
    /// How long a graceful stop waits for settlements before it gives the partitions up.
    pub drain_timeout: Duration,
    /// How long to wait for a store that is away at start; `None`: as long as it takes.
    pub startup_timeout: Option<Duration>,
    /// Sessions at most.
    pub max_sessions: usize,
    /// Connections at most that have not finished their handshake.
    pub max_handshakes: usize,
    /// Memory for frames that clients are sending, of all together.
    pub receiving_bytes: usize,
    /// Bytes at most that wait for one session to read them.
    pub session_outbox_bytes: usize,
    /// Bytes at most that wait for all sessions together to read them.
    pub outboxes_bytes: usize,
    /// Its part in a cluster, if the store is one that brokers share.
    pub membership: ClusterOptions,
    /// Where metrics and health probes are served.
    pub http: HttpListen,
    /// Destinations that have metrics of their own: those with the most pending timers and failed
    /// attempts. All others are one, `other`.
    pub metrics_destinations: usize,
    /// Where spans of traced timers go; `None`: there are none.
    pub traces: Option<Arc<dyn SpanSink>>,
}

/// Options of a broker's part in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterOptions {
    /// Where clients and other brokers reach this one, `host:port`; `None`: where it listens.
    pub advertise: Option<String>,
    /// Its share of the partitions in relation to others': 1 to 1,000.
    pub weight: u16,
    /// How long the leader's lease lasts if it is not renewed: 500 ms to 60 s. When the leader
    /// dies, nobody is given anything for about so long.
    pub lease_ttl: Duration,
    /// How often a broker tells the leader that it is there: 50 ms to a third of `peer_timeout`.
    pub peer_heartbeat: Duration,
    /// Silence after which the leader takes a broker for dead and gives its partitions to others.
    pub peer_timeout: Duration,
    /// How long a new owner waits for the old one, which is alive, to give a partition up in good
    /// order.
    pub handover_timeout: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            advertise: None,
            weight: 100,
            lease_ttl: Duration::from_millis(2_500),
            peer_heartbeat: Duration::from_millis(500),
            peer_timeout: Duration::from_millis(1_500),
            handover_timeout: Duration::from_secs(2),
        }
    }
}

/// Where metrics and health probes are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpListen {
    /// Nowhere.
    #[default]
    Off,
    /// At [`DEFAULT_HTTP`](crate::DEFAULT_HTTP) if that is free, else nowhere, with a warning:
    /// several brokers of one machine need not be told anything.
    Auto,
    /// At this address, or the broker does not start.
    At(SocketAddr),
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7400)),
            cluster: "mtimer".to_owned(),
            engine: EngineOptions::default(),
            access: AccessOptions::default(),
            group_limits: BTreeMap::new(),
            host_clock: Arc::new(SystemClock),
            heartbeat: Duration::from_millis(limits::HEARTBEAT_MS),
            heartbeat_timeout: Duration::from_millis(limits::HEARTBEAT_TIMEOUT_MS),
            handshake_timeout: Duration::from_millis(limits::HANDSHAKE_DEADLINE_MS),
            drain_timeout: Duration::from_secs(10),
            startup_timeout: None,
            max_sessions: limits::MAX_SESSIONS,
            max_handshakes: limits::MAX_HANDSHAKES,
            receiving_bytes: limits::MAX_RECEIVING,
            session_outbox_bytes: limits::MAX_SESSION_OUTBOX,
            outboxes_bytes: limits::MAX_OUTBOXES,
            membership: ClusterOptions::default(),
            http: HttpListen::Off,
            metrics_destinations: 50,
            traces: None,
        }
    }
}

/// An option is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option} is {value}, allowed is {allowed}: {fix}")]
pub struct InvalidOptions {
    /// The setting's name, as in the file.
    pub option: &'static str,
    /// The given value.
    pub value: String,
    /// The range.
    pub allowed: String,
    /// The fix.
    pub fix: &'static str,
}

/// Longest name of a cluster, bytes: it is part of every key in the store.
const MAX_CLUSTER_BYTES: usize = 64;
/// Shortest heartbeat: below it the heartbeats themselves are the load.
const MIN_HEARTBEAT: Duration = Duration::from_millis(20);
/// Longest of any of the shell's durations.
const MAX_SPAN: Duration = Duration::from_secs(86_400);
/// Least memory for timers, bytes: one load step of largest payloads.
const MIN_MEMORY: u64 = 1024 * 1024;
/// Most memory for frames that are being received, bytes: a largest one of each of 1,000 clients.
const MAX_RECEIVING_BYTES: usize = 4_000 * 1024 * 1024;
/// Most memory for messages that wait to be read, bytes: the largest outbox of each of 60 clients.
const MAX_OUTBOXES_BYTES: usize = 4_000 * 1024 * 1024;
/// Most destinations with metrics of their own: a scrape has to stay small.
const MAX_METRICS_DESTINATIONS: usize = 10_000;
/// Longest preload window, ms: beyond it memory holds timers that are not needed for long.
const MAX_PRELOAD_MS: u64 = 600_000;
/// Longest wait of a due timer for a session before it is parked, ms.
const MAX_PARK_AFTER_MS: u64 = 60_000;

impl BrokerOptions {
    /// Checks every option that can be checked without the store.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`] with the option's name, its value and the allowed range.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        check_cluster(&self.cluster)?;
        self.check_exposure()?;
        let fix = "give a duration such as 5s";
        within("heartbeat", self.heartbeat, MIN_HEARTBEAT, MAX_SPAN / 4, fix)?;
        let fix = "give at least two heartbeats, three are usual";
        within("heartbeat-timeout", self.heartbeat_timeout, self.heartbeat * 2, MAX_SPAN, fix)?;
        within("handshake-timeout", self.handshake_timeout, MIN_HEARTBEAT, MAX_SPAN, "5s is usual")?;
        within("drain-timeout", self.drain_timeout, Duration::ZERO, MAX_SPAN, "10s is usual")?;
        in_range(
            "max-sessions",
            self.max_sessions,
            1,
            limits::MAX_SESSIONS,
            "start more brokers for more sessions",
        )?;
        in_range("max-handshakes", self.max_handshakes, 1, limits::MAX_HANDSHAKES, "leave it out")?;
        let (least, most) = (limits::MAX_FRAME, MAX_RECEIVING_BYTES);
        in_range("receiving", self.receiving_bytes, least, most, "64MiB is usual")?;
        let (least, most) = (64 * 1024, limits::MAX_SESSION_OUTBOX);
        in_range("session-outbox", self.session_outbox_bytes, least, most, "leave it out")?;
        let (least, most) = (limits::MAX_FRAME, MAX_OUTBOXES_BYTES);
        in_range("outboxes", self.outboxes_bytes, least, most, "512MiB is usual")?;
        in_range(
            "metrics-destinations",
            self.metrics_destinations,
            0,
            MAX_METRICS_DESTINATIONS,
            "each costs six time series",
        )?;
        check_group_limits(&self.group_limits)?;
        check_membership(&self.membership)?;
        check_engine(&self.engine)
    }

    /// Checks the ports that other machines can reach: they are authenticated and encrypted, unless
    /// `insecure` is set.
    fn check_exposure(&self) -> Result<(), InvalidOptions> {
        if self.access.insecure {
            return Ok(());
        }
        let protection = self.access.protection();
        let http = match self.http {
            HttpListen::At(addr) => Some(("http", addr)),
            HttpListen::Off | HttpListen::Auto => None,
        };
        for (option, addr) in [Some(("listen", self.listen)), http].into_iter().flatten() {
            let (what, fix) = match protection.check(addr.ip()) {
                Ok(()) => continue,
                Err(Lacks::Authentication) => (
                    "without a token",
                    "set tokens to a file made with `mtimer token create`, or tls-client-ca, or insecure on a \
                     trusted network",
                ),
                Err(Lacks::Encryption) => (
                    "without encryption",
                    "set tls-cert and tls-key to a certificate and its key, or insecure on a trusted network",
                ),
            };
            return Err(InvalidOptions {
                option,
                value: format!("{addr}, which other machines reach {what}"),
                allowed: "an address of this machine only, such as 127.0.0.1:7400".to_owned(),
                fix,
            });
        }
        Ok(())
    }

    /// Checks the settings that a store shared by brokers requires.
    pub(crate) fn check_shared(&self) -> Result<(), InvalidOptions> {
        match &self.access.tls {
            Some(tls) if tls.ca.is_none() => Err(InvalidOptions {
                option: "tls-ca",
                value: "not set, and this broker has a certificate and a store that brokers share".to_owned(),
                allowed: "the file of the authorities that sign the other brokers' certificates".to_owned(),
                fix: "set it: without it this broker connects to the others without TLS, which they refuse",
            }),
            _ => Ok(()),
        }
    }

    /// Where clients and other brokers reach a broker that listens on `local`.
    pub(crate) fn address(&self, local: SocketAddr) -> Result<String, InvalidOptions> {
        match &self.membership.advertise {
            Some(address) => Ok(address.clone()),
            None if local.ip().is_unspecified() => Err(InvalidOptions {
                option: "advertise",
                value: format!("not set, and the broker listens on {local}"),
                allowed: "host:port by which clients and other brokers reach it".to_owned(),
                fix: "set it to this machine's name or address",
            }),
            None => Ok(local.to_string()),
        }
    }
}

/// Bounds of the lease: less is noise of the network, more leaves the cluster without a leader for
/// too long.
const LEASE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

fn check_membership(m: &ClusterOptions) -> Result<(), InvalidOptions> {
    if let Some(address) = m.advertise.as_ref().filter(|address| !is_address(address)) {
        return Err(InvalidOptions {
            option: "advertise",
            value: format!("{:?}", address.chars().take(80).collect::<String>()),
            allowed: format!(
                "host:port of at most {} bytes, an IPv6 address in brackets",
                limits::MAX_ADDRESS_BYTES
            ),
            fix: "name the host and the port by which clients and other brokers reach this one",
        });
    }
    in_range("weight", m.weight, 1, 1_000, "100 is usual")?;
    within("lease-ttl", m.lease_ttl, LEASE.0, LEASE.1, "2500ms is usual")?;
    within("peer-timeout", m.peer_timeout, Duration::from_millis(150), LEASE.1, "1500ms is usual")?;
    let (least, most) = (Duration::from_millis(50), m.peer_timeout / 3);
    within("peer-heartbeat", m.peer_heartbeat, least, most, "give at most a third of peer-timeout")?;
    within("handover-timeout", m.handover_timeout, least, LEASE.1, "2s is usual")
}

fn check_group_limits(all: &BTreeMap<String, Limits>) -> Result<(), InvalidOptions> {
    let wrong = |value, allowed: &str, fix| {
        Err(InvalidOptions { option: "group-limit", value, allowed: allowed.to_owned(), fix })
    };
    if all.len() > limits::MAX_LIMITED {
        return wrong(
            format!("given for {} groups", all.len()),
            &format!("{} groups", limits::MAX_LIMITED),
            "give groups with the same limits one, for *",
        );
    }
    for (group, limits) in all {
        if let Err(error) = limits.validate() {
            let value = format!("not right for {group}");
            return wrong(value, &error.to_string(), "correct the number, or leave the limit out");
        }
        if limits.connections.is_some() {
            let value = format!("connections for {group}");
            let fix = "limit the connections of a token: a connection belongs to no group";
            return wrong(value, "schedules, burst, pending and payload", fix);
        }
    }
    Ok(())
}

fn check_cluster(name: &str) -> Result<(), InvalidOptions> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_CLUSTER_BYTES || !name.chars().all(plain) {
        return Err(InvalidOptions {
            option: "cluster",
            value: format!("{:?}", name.chars().take(80).collect::<String>()),
            allowed: format!("1 to {MAX_CLUSTER_BYTES} characters of a-z A-Z 0-9 - _ ."),
            fix: "it becomes part of keys in the store, choose a plain name",
        });
    }
    Ok(())
}

fn check_engine(e: &EngineOptions) -> Result<(), InvalidOptions> {
    in_range("partitions", e.partitions, 1, limits::MAX_PARTITIONS, "16 a core is plenty")?;
    in_range("memory", e.memory_bytes, MIN_MEMORY, u64::MAX, "256MiB is usual")?;
    let ms = Duration::from_millis;
    within("preload", ms(e.preload_ms), ms(100), ms(MAX_PRELOAD_MS), "5s is usual")?;
    within("park-after", ms(e.park_after_ms), ms(1), ms(MAX_PARK_AFTER_MS), "250ms is usual")?;
    in_range("jitter-percent", e.jitter_percent, 0, 100, "10 is usual")?;
    let (least, most) = (limits::MIN_CALLBACK_TIMEOUT_MS, limits::MAX_CALLBACK_TIMEOUT_MS);
    let (least, most) = (ms(least.into()), ms(most.into()));
    within("callback-timeout", ms(e.callback_timeout_ms.into()), least, most, "30s is usual")?;
    for tiers in std::iter::once(&e.retry).chain(e.retry_by_dest.values()) {
        tiers.validate().map_err(|error| InvalidOptions {
            option: "retry",
            value: format!("{:?} ms", tiers.0),
            allowed: error.to_string(),
            fix: "shorten the list or the delay",
        })?;
    }
    Ok(())
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    option: &'static str,
    value: T,
    least: T,
    most: T,
    fix: &'static str,
) -> Result<(), InvalidOptions> {
    if value < least || value > most {
        return Err(InvalidOptions {
            option,
            value: value.to_string(),
            allowed: format!("{least} to {most}"),
            fix,
        });
    }
    Ok(())
}

fn within(
    option: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
    fix: &'static str,
) -> Result<(), InvalidOptions> {
    if value < least || value > most {
        let allowed = format!("{least:?} to {most:?}");
        return Err(InvalidOptions { option, value: format!("{value:?}"), allowed, fix });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        BrokerOptions::default().validate().unwrap();
    }

    #[test]
    fn refusals_name_value_range_and_fix() {
        let options = BrokerOptions { heartbeat_timeout: Duration::from_secs(6), ..BrokerOptions::default() };
        let text = options.validate().unwrap_err().to_string();
        assert_eq!(
            text,
            "heartbeat-timeout is 6s, allowed is 10s to 86400s: give at least two heartbeats, three are usual"
        );
        for address in ["nowhere", ":7400", "b1:0", "2001:db8::5:7400", "b 1:7400"] {
            let membership = ClusterOptions { advertise: Some(address.into()), ..ClusterOptions::default() };
            let options = BrokerOptions { membership, ..BrokerOptions::default() };
            let text = options.validate().unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("advertise is {address:?}")) && text.contains("brackets"),
                "{text}"
            );
        }
        let advertise = Some("[2001:db8::5]:7400".into());
        let membership = ClusterOptions { advertise, ..ClusterOptions::default() };
        BrokerOptions { membership, ..BrokerOptions::default() }.validate().unwrap();
        let options = BrokerOptions { cluster: "a b".into(), ..BrokerOptions::default() };
        assert!(
            options.validate().unwrap_err().to_string().starts_with("cluster is \"a b\", allowed is 1 to 64")
        );
        let engine = EngineOptions { jitter_percent: 101, ..EngineOptions::default() };
        let options = BrokerOptions { engine, ..BrokerOptions::default() };
        assert_eq!(
            options.validate().unwrap_err().to_string(),
            "jitter-percent is 101, allowed is 0 to 100: 10 is usual"
        );
    }
}
