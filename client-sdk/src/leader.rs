//! Looking the leader up in the cluster's Redis.
//!
//! Invariant: nothing is written there, and the connection lives for one look only.
//!
//! Not in here: the lease itself. The key names a place to begin at; the topology names the owners
//! of partitions.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError, cmd, pipe};
use redis::{ErrorKind, IntoConnectionInfo, ServerErrorKind};

use crate::ConnectError;

/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// To name other clusters: names that are told, commands that are sent, and keys that one of them
/// looks at. An idle cluster may be missed among very many keys of others.
const MOST_OTHERS: usize = 5;
const SCANS: usize = 20;
const SCANNED: u32 = 1_000;
/// Nodes of a Redis Cluster that one look goes through.
const HOPS: usize = 4;

/// A Redis server, or a node of a Redis Cluster, and the name of the mtimer cluster in it.
#[derive(Clone)]
pub(crate) struct LeaderLookup {
    url: String,
    cluster: String,
}

impl fmt::Debug for LeaderLookup {
    // The URL may have a password in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderLookup").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// One node that was asked.
enum NodeAnswer {
    Value(Option<String>),
    /// Another node has the key, perhaps only for this once.
    Elsewhere(ConnectionAddr, bool),
}

impl LeaderLookup {
    pub(crate) fn new(url: String, cluster: String) -> Self {
        Self { url, cluster }
    }

    /// Whether the URL is one.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        self.info().map(drop)
    }

    /// The leader's address.
    pub(crate) async fn leader(&self) -> Result<String, ConnectError> {
        let mut info = self.info()?;
        let mut asking = false;
        for _ in 0..HOPS {
            let found = self
                .ask(&info, asking)
                .await
                .map_err(|e| ConnectError::Redis { redis: info.addr().to_string(), what: e.to_string() })?;
            match found {
                NodeAnswer::Value(Some(value)) => return self.address(&info, Some(&value)),
                NodeAnswer::Value(None) => {
                    let others = self.others(&info).await.unwrap_or_default();
                    return self.address(&info, None).map_err(|error| also_there(error, &others));
                }
                NodeAnswer::Elsewhere(address, only_now) => {
                    info = info.set_addr(address);
                    asking = only_now;
                }
            }
        }
        let what = format!("{HOPS} nodes sent the question about the leader on to others");
        Err(ConnectError::Redis { redis: info.addr().to_string(), what })
    }

    async fn ask(&self, info: &ConnectionInfo, asking: bool) -> Result<NodeAnswer, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let client = Client::open(info.clone())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let key = format!("leader:{{{}}}", self.cluster);
        let answer: Result<Option<String>, RedisError> = match asking {
            false => cmd("GET").arg(key).query_async(&mut connection).await,
            true => {
                let mut both = pipe();
                both.cmd("ASKING").ignore().cmd("GET").arg(key);
                let answer: Result<(Option<String>,), _> = both.query_async(&mut connection).await;
                answer.map(|(value,)| value)
            }
        };
        let error = match answer {
            Ok(value) => return Ok(NodeAnswer::Value(value)),
            Err(error) => error,
        };
        let only_now = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let node = error.redirect_node().and_then(|(node, _)| elsewhere(info.addr(), node));
        node.map(|node| NodeAnswer::Elsewhere(node, only_now)).ok_or(error)
    }

    /// Names of other clusters that this node knows of, as far as a short look finds any.
    async fn others(&self, info: &ConnectionInfo) -> Result<BTreeSet<String>, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let client = Client::open(info.clone())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let (mut found, mut cursor) = (BTreeSet::new(), 0_u64);
        for _ in 0..SCANS {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg("meta:{*}").arg("COUNT").arg(SCANNED);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
            let names = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
            let names = names.filter_map(|key| key.strip_prefix("meta:{")?.strip_suffix('}'));
            found.extend(names.filter(|name| *name != self.cluster).map(str::to_owned));
            if next == 0 || found.len() >= MOST_OTHERS {
                break;
            }
            cursor = next;
        }
        Ok(found.into_iter().take(MOST_OTHERS).collect())
    }

    fn address(&self, info: &ConnectionInfo, value: Option<&str>) -> Result<String, ConnectError> {
        let address = value.and_then(|value| value.split(' ').next()).filter(|a| a.contains(':'));
        address.map(str::to_owned).ok_or_else(|| ConnectError::Redis {
            redis: info.addr().to_string(),
            what: format!("no broker leads the cluster {:?} just now", self.cluster),
        })
    }

    fn info(&self) -> Result<ConnectionInfo, ConnectError> {
        self.url.as_str().into_connection_info().map_err(|_| ConnectError::RedisUrl)
    }
}

/// Adds to an error which clusters there are instead.
fn also_there(error: ConnectError, others: &BTreeSet<String>) -> ConnectError {
    match error {
        ConnectError::Redis { redis, what } if !others.is_empty() => {
            let others: Vec<String> = others.iter().map(|name| format!("{name:?}")).collect();
            ConnectError::Redis { redis, what: format!("{what}; this Redis holds {}", others.join(", ")) }
        }
        error => error,
    }
}

/// The address of another node: `host:port`, without a host the one that answered.
fn elsewhere(from: &ConnectionAddr, node: &str) -> Option<ConnectionAddr> {
    let (to, port) = node.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let to = |host: &str| if to.is_empty() { host.to_owned() } else { to.to_owned() };
    match from {
        ConnectionAddr::Tcp(host, _) => Some(ConnectionAddr::Tcp(to(host), port)),
        ConnectionAddr::TcpTls { host, insecure, tls_params, .. } => Some(ConnectionAddr::TcpTls {
            host: to(host),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_host_is_on_the_host_that_answered() {
        let from = ConnectionAddr::Tcp("r1".into(), 7000);
        assert_eq!(elsewhere(&from, "10.0.0.2:7001"), Some(ConnectionAddr::Tcp("10.0.0.2".into(), 7001)));
        assert_eq!(elsewhere(&from, ":7001"), Some(ConnectionAddr::Tcp("r1".into(), 7001)));
        assert_eq!(elsewhere(&from, "nowhere"), None);
    }

    #[test]
    fn a_password_is_not_shown() {
        let lookup = LeaderLookup::new("redis://:secret@h:1".into(), "main".into());
        assert!(!format!("{lookup:?}").contains("secret"));
        assert!(lookup.check().is_ok());
        let wrong = LeaderLookup::new("http//:secret@".into(), "main".into()).check().unwrap_err();
        assert!(!format!("{wrong} {wrong:?}").contains("secret"));
    }
}
