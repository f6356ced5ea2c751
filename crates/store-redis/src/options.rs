//! Options of a store on Redis.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mtimer_store::{StoreError, without_password};
use mtimer_tls::ClientFiles;
use mtimer_types::limits::{MAX_PARTITIONS, WRITE_LOG_BYTES};
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, parse_redis_url};

use crate::password::{Login, LoginSource, ReadLogin, encoding};
use crate::tls_files::RedisTls;
use crate::wire::{Seeds, ServerAccess, split};

/// Partitions of a new cluster when nobody says otherwise.
pub const DEFAULT_PARTITIONS: u16 = 32;

/// The port of a Sentinel whose address does not say another.
const SENTINEL_PORT: u16 = 26_379;

/// How durable a write is before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RedisDurability {
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

impl RedisDurability {
    /// As in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Replicated { .. } => "redis-replicated",
        }
    }
}

/// Reads the addresses again; an error says why that fails, and shows no password.
pub type ReadUrls = Arc<dyn Fn() -> Result<Vec<String>, String> + Send + Sync>;

/// Options of a store on Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host:port[/db]`, `rediss://` with TLS, or
    /// `unix:///path[?db=1&user=u&pass=p]`, each with `?protocol=resp3` if wanted. Of a Redis
    /// Cluster some of its nodes, otherwise the master (and replicas that may take its place), or
    /// the Sentinels that watch it:
    /// `redis-sentinel://[user:password@]host[:26379][/db]?master=name`, with TLS
    /// `rediss-sentinel://`. All enter in the same way.
    pub urls: Vec<String>,
    /// Reads the addresses again, since user and password in them may have changed: when a server
    /// refuses those in use, and at [`crate::RedisStore::reload`]. `None`: they stay. It may block
    /// for as long as reading a file takes.
    pub read_urls: Option<ReadUrls>,
    /// Files for addresses that begin with `rediss`. They are read again for every connection.
    pub tls: ClientFiles,
    /// The cluster's name: part of every key.
    pub cluster: String,
    /// Partitions; `None`: as stored, or [`DEFAULT_PARTITIONS`] for a new cluster.
    pub partitions: Option<u16>,
    /// How durable a write is before it is answered.
    pub durability: RedisDurability,
    /// A server that is silent for longer is taken for lost.
    pub answer_within: Duration,
    /// Memory, in bytes, for the last writes of all partitions: writes that a failover of Redis, or
    /// a restart from its append-only file, has lost are applied again. 0: nothing is kept.
    pub log_bytes: usize,
}

impl std::fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { urls, read_urls, tls, cluster, partitions, durability, answer_within, log_bytes } = self;
        f.debug_struct("RedisOptions")
            .field("urls", &urls.iter().map(|url| without_password(url)).collect::<Vec<_>>())
            .field("read_urls", &read_urls.is_some())
            .field("tls", tls)
            .field("cluster", cluster)
            .field("partitions", partitions)
            .field("durability", durability)
            .field("answer_within", answer_within)
            .field("log_bytes", log_bytes)
            .finish()
    }
}

impl RedisOptions {
    /// The usual, for one or several addresses and a cluster's name.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>, cluster: impl Into<String>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            read_urls: None,
            tls: ClientFiles::default(),
            cluster: cluster.into(),
            partitions: None,
            durability: RedisDurability::default(),
            answer_within: Duration::from_secs(5),
            log_bytes: WRITE_LOG_BYTES,
        }
    }

    /// The addresses to which the password is sent without encryption, so that the network sees it:
    /// those without TLS beyond this host.
    pub fn unencrypted_password(&self) -> Vec<String> {
        let parsed = self.urls.iter().filter_map(|url| Parsed::from(url).ok());
        parsed
            .filter(|p| p.login.password.is_some() && !p.tls && !is_local(&p.address))
            .map(|p| p.address)
            .collect()
    }

    /// Checks everything but the cluster's name, and reads the files for TLS. Where to
    /// find the servers, and how to enter them.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] says what to change.
    pub(crate) fn check(&self) -> Result<(Seeds, ServerAccess), StoreError> {
        if let Some(n) = self.partitions.filter(|n| !(1..=MAX_PARTITIONS).contains(n)) {
            return unusable(format!("{n} partitions are not possible: give 1 to {MAX_PARTITIONS}"));
        }
        if matches!(self.durability, RedisDurability::Replicated { replicas: 0, .. }) {
            return unusable("redis-replicated needs at least 1 replica: give more, or use redis".into());
        }
        let parsed = parse_all(&self.urls)?;
        let [first, ..] = parsed.as_slice() else {
            return unusable("no Redis address was given: give one like redis://127.0.0.1:6379".into());
        };
        let access = ServerAccess {
            login: LoginSource::new(first.login.clone(), self.read_urls.clone().map(read_login)),
            db: first.db,
            resp3: first.resp3,
            tls: first.tls.then(|| RedisTls::open(self.tls.clone())).transpose()?,
        };
        if !first.tls && self.tls != ClientFiles::default() {
            return unusable(
                "files for TLS are given, but no address begins with rediss:// or rediss-sentinel://".into(),
            );
        }
        let master = first.master.clone();
        let addresses = parsed.into_iter().map(|p| p.address).collect();
        let seeds = match master {
            Some(master) => Seeds::Sentinels(addresses, master),
            None => Seeds::Servers(addresses),
        };
        Ok((seeds, access))
    }
}

/// Reads all addresses, which differ in nothing but where they lead.
fn parse_all(urls: &[String]) -> Result<Vec<Parsed>, StoreError> {
    let parsed = urls.iter().map(|url| Parsed::from(url)).collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = parsed.first()
        && let Some(at) = parsed.iter().position(|p| !p.enters_like(first))
    {
        return unusable(format!(
            "{} and {} differ in more than the address: give the same scheme, user, password, database, protocol and \
             master in both",
            without_password(&urls[0]),
            without_password(&urls[at])
        ));
    }
    Ok(parsed)
}

/// Reads user and password out of the addresses.
fn read_login(read_urls: ReadUrls) -> ReadLogin {
    Box::new(move || {
        let parsed = parse_all(&read_urls()?).map_err(|error| error.to_string())?;
        let first = parsed.into_iter().next().ok_or("no Redis address is given any more")?;
        Ok(first.login)
    })
}

/// A parsed address.
struct Parsed {
    address: String,
    /// The address is a Sentinel's, which watches the master with this name.
    master: Option<String>,
    tls: bool,
    login: Login,
    db: i64,
    resp3: bool,
}

impl Parsed {
    fn from(url: &str) -> Result<Self, StoreError> {
        let bad = || {
            StoreError::Unusable(format!(
                "{:?} is not a Redis address: give one like redis://user:password@host:6379/0, and {}",
                without_password(url),
                encoding!()
            ))
        };
        // The crate ignores unknown parameters of the query.
        let mut parsed = parse_redis_url(&url.replacen("-sentinel://", "://", 1)).ok_or_else(bad)?;
        let mut master = None;
        if url.contains("-sentinel://") {
            let port = parsed.port().unwrap_or(SENTINEL_PORT);
            parsed.set_port(Some(port)).map_err(|()| bad())?;
            let name = parsed.query_pairs().find(|(name, _)| name == "master");
            let Some((_, name)) = name.filter(|(_, name)| !name.is_empty()) else {
                return unusable(format!(
                    "{}: a Sentinel is asked for a master by its name: write redis-sentinel://host:26379?master=name, \
                     and {}",
                    without_password(url),
                    encoding!()
                ));
            };
            master = Some(name.into_owned());
        }
        // The error might show a password.
        let info = parsed.into_connection_info().map_err(|_| bad())?;
        let of = |host: &str, port: u16| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        };
        let (address, tls) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (of(host, *port), false),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return unusable(format!(
                    "{}: a server whose certificate is not checked cannot be trusted: leave #insecure out, and give \
                     the file of the authority that signed it",
                    without_password(url)
                ));
            }
            ConnectionAddr::TcpTls { host, port, .. } => (of(host, *port), true),
            ConnectionAddr::Unix(path) if path.is_absolute() => {
                (path.to_str().ok_or_else(bad)?.to_owned(), false)
            }
            _ => return Err(bad()),
        };
        let settings = info.redis_settings();
        let own = |text: Option<&str>| text.filter(|t| !t.is_empty()).map(str::to_owned);
        Ok(Self {
            address,
            master,
            tls,
            login: Login { user: own(settings.username()), password: own(settings.password()) },
            db: settings.db(),
            resp3: settings.protocol() != ProtocolVersion::RESP2,
        })
    }

    fn enters_like(&self, other: &Self) -> bool {
        (self.tls, &self.login, self.db, self.resp3, &self.master)
            == (other.tls, &other.login, other.db, other.resp3, &other.master)
    }
}

/// Whether it is an address of this host: a loopback address, or a Unix socket.
fn is_local(address: &str) -> bool {
    let Some((host, _)) = split(address) else { return true };
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

const fn unusable<T>(text: String) -> Result<T, StoreError> {
    Err(StoreError::Unusable(text))
}
