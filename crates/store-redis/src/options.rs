//! What a store on Redis is given, and what it refuses to work with.

use std::time::Duration;

use mtimer_store::StoreError;
use mtimer_types::limits::MAX_PARTITIONS;
use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::conn::{Login, Replication};
use crate::keys::check_cluster;

/// Partitions of a new cluster when nobody says otherwise.
pub const DEFAULT_PARTITIONS: u16 = 64;

/// How durable a write is before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// In the master's memory.
    #[default]
    Redis,
    /// In the master's memory, and at least so many replicas have confirmed it.
    Replicated {
        /// At least 1.
        replicas: u32,
        /// How long to wait for them; then the answer is a refusal.
        timeout: Duration,
    },
}

impl Durability {
    /// As in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Replicated { .. } => "redis-replicated",
        }
    }
}

/// What a store on Redis is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// `redis://[user:pass@]host:port[/db]`; of a Redis Cluster some of its nodes, otherwise the master (and replicas that
    /// may take its place).
    pub urls: Vec<String>,
    /// The cluster's name: part of every key.
    pub cluster: String,
    /// Partitions; `None`: as stored, or [`DEFAULT_PARTITIONS`] for a new cluster.
    pub partitions: Option<u16>,
    /// How durable a write is before it is answered.
    pub durability: Durability,
    /// A server that is silent for longer is taken for lost.
    pub answer_within: Duration,
}

impl Options {
    /// The usual, for one or several addresses and a cluster's name.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>, cluster: impl Into<String>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            cluster: cluster.into(),
            partitions: None,
            durability: Durability::default(),
            answer_within: Duration::from_secs(5),
        }
    }

    /// Checks everything that needs no server. Addresses (`host:port`) and the login they share.
    pub(crate) fn check(&self) -> Result<(Vec<String>, Login), StoreError> {
        check_cluster(&self.cluster)?;
        if let Some(n) = self.partitions.filter(|n| !(1..=MAX_PARTITIONS).contains(n)) {
            return Err(unusable(format!("{n} partitions are not possible: give 1 to {MAX_PARTITIONS}")));
        }
        if matches!(self.durability, Durability::Replicated { replicas: 0, .. }) {
            return Err(unusable(
                "redis-replicated needs at least 1 replica: give more, or use redis".into(),
            ));
        }
        let mut addresses = Vec::new();
        let mut login = Login { answer_within: self.answer_within, ..Login::default() };
        for url in &self.urls {
            let (address, own) = parse(url)?;
            addresses.push(address);
            (login.user, login.password, login.db) = own;
        }
        if addresses.is_empty() {
            return Err(unusable("no Redis address was given: give one like redis://127.0.0.1:6379".into()));
        }
        Ok((addresses, login))
    }

    pub(crate) fn replication(&self) -> Option<Replication> {
        match self.durability {
            Durability::Redis => None,
            Durability::Replicated { replicas, timeout } => Some(Replication { replicas, timeout }),
        }
    }
}

type Parsed = (String, (Option<String>, Option<String>, i64));

fn parse(url: &str) -> Result<Parsed, StoreError> {
    // Neither the message nor the error may show a password.
    let shown = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    if url.starts_with("rediss:") {
        return Err(unusable(format!(
            "{shown}: TLS to Redis is not supported: give redis://, or a local TLS proxy"
        )));
    }
    let bad =
        || unusable(format!("{shown:?} is not a Redis address: give one like redis://user:pass@host:6379/0"));
    let info = url.into_connection_info().map_err(|_| bad())?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(bad()) };
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let settings = info.redis_settings();
    let own = |text: Option<&str>| text.filter(|t| !t.is_empty()).map(str::to_owned);
    Ok((address, (own(settings.username()), own(settings.password()), settings.db())))
}

pub(crate) const fn unusable(text: String) -> StoreError {
    StoreError::Unusable(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let options = Options::new(["redis://u:p@10.0.0.1:7000/3", "redis://10.0.0.2"], "c");
        let (addresses, _) = options.check().unwrap();
        assert_eq!(addresses, ["10.0.0.1:7000", "10.0.0.2:6379"]);
        let (_, login) = Options::new(["redis://u:p@10.0.0.1:7000/3"], "c").check().unwrap();
        assert_eq!((login.user.as_deref(), login.password.as_deref(), login.db), (Some("u"), Some("p"), 3));
    }

    #[test]
    fn what_cannot_work_is_refused_without_a_password_in_the_message() {
        let why = |o: Options| o.check().unwrap_err().to_string();
        assert!(why(Options::new(["rediss://u:secret@h:1"], "c")).contains("TLS"));
        let bad = why(Options::new(["http://u:secret@h:1"], "c"));
        assert!(bad.contains("redis://") && !bad.contains("secret"), "{bad}");
        assert!(why(Options::new(Vec::<String>::new(), "c")).contains("no Redis address"));
        assert!(
            why(Options { partitions: Some(0), ..Options::new(["redis://h"], "c") }).contains("1 to 1024")
        );
        let none = Durability::Replicated { replicas: 0, timeout: Duration::from_secs(1) };
        assert!(why(Options { durability: none, ..Options::new(["redis://h"], "c") }).contains("at least 1"));
    }
}
