//! What a store on Redis is given.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mtimer_store::StoreError;
use mtimer_types::limits::MAX_PARTITIONS;
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion};

use crate::password::{encoding, without_password};
use crate::wire::{Access, Seeds, Tls};

/// Partitions of a new cluster when nobody says otherwise.
pub const DEFAULT_PARTITIONS: u16 = 64;
/// [`Options::log_bytes`] when nobody says otherwise.
pub const DEFAULT_LOG_BYTES: usize = 64 << 20;

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

/// Files for addresses that begin with `rediss://`. All are in PEM format, and read when the store
/// connects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsFiles {
    /// The authorities that sign the servers' certificates; `None`: those that the operating system
    /// trusts.
    pub authorities: Option<PathBuf>,
    /// The client's own certificate, with the chain up to an authority that the servers trust.
    pub certificate: Option<PathBuf>,
    /// The key of the client's certificate, in PKCS #8, PKCS #1 or SEC1.
    pub key: Option<PathBuf>,
}

/// What a store on Redis is given.
#[derive(Clone)]
pub struct Options {
    /// `redis://[user:password@]host:port[/db]`, `rediss://` with TLS, or
    /// `unix:///path[?db=1&user=u&pass=p]`, each with `?protocol=resp3` if wanted. Of a Redis
    /// Cluster some of its nodes, otherwise the master (and replicas that may take its place), or
    /// the Sentinels that watch it:
    /// `redis-sentinel://[user:password@]host[:26379][/db]?master=name`, with TLS
    /// `rediss-sentinel://`. All enter in the same way.
    pub urls: Vec<String>,
    /// Files for TLS.
    pub tls: TlsFiles,
    /// The cluster's name: part of every key.
    pub cluster: String,
    /// Partitions; `None`: as stored, or [`DEFAULT_PARTITIONS`] for a new cluster.
    pub partitions: Option<u16>,
    /// How durable a write is before it is answered.
    pub durability: Durability,
    /// A server that is silent for longer is taken for lost.
    pub answer_within: Duration,
    /// Memory, in bytes, for the last writes of all partitions: what a failover of Redis, or a
    /// restart from its append-only file, has lost is written again. 0: nothing is kept.
    pub log_bytes: usize,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { urls, tls, cluster, partitions, durability, answer_within, log_bytes } = self;
        f.debug_struct("Options")
            .field("urls", &urls.iter().map(|url| without_password(url)).collect::<Vec<_>>())
            .field("tls", tls)
            .field("cluster", cluster)
            .field("partitions", partitions)
            .field("durability", durability)
            .field("answer_within", answer_within)
            .field("log_bytes", log_bytes)
            .finish()
    }
}

impl Options {
    /// The usual, for one or several addresses and a cluster's name.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>, cluster: impl Into<String>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            tls: TlsFiles::default(),
            cluster: cluster.into(),
            partitions: None,
            durability: Durability::default(),
            answer_within: Duration::from_secs(5),
            log_bytes: DEFAULT_LOG_BYTES,
        }
    }

    /// Checks everything but the cluster's name, and reads the files for TLS. Where to
    /// find the servers, and how to enter them.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] says what to change.
    pub(crate) fn check(&self) -> Result<(Seeds, Access), StoreError> {
        if let Some(n) = self.partitions.filter(|n| !(1..=MAX_PARTITIONS).contains(n)) {
            return unusable(format!("{n} partitions are not possible: give 1 to {MAX_PARTITIONS}"));
        }
        if matches!(self.durability, Durability::Replicated { replicas: 0, .. }) {
            return unusable("redis-replicated needs at least 1 replica: give more, or use redis".into());
        }
        let mut parsed = Vec::new();
        for url in &self.urls {
            parsed.push(Parsed::from(url)?);
        }
        let Some(first) = parsed.first() else {
            return unusable("no Redis address was given: give one like redis://127.0.0.1:6379".into());
        };
        if let Some(at) = parsed.iter().position(|p| !p.enters_like(first)) {
            return unusable(format!(
                "{} and {} differ in more than the address: give the same scheme, user, password, database, protocol \
                 and master in both",
                without_password(&self.urls[0]),
                without_password(&self.urls[at])
            ));
        }
        let access = Access {
            user: first.user.clone(),
            password: first.password.clone(),
            db: first.db,
            resp3: first.resp3,
            tls: first.tls.then(|| self.tls.read()).transpose()?,
        };
        if !first.tls && self.tls != TlsFiles::default() {
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

impl TlsFiles {
    fn read(&self) -> Result<Tls, StoreError> {
        let authorities = self.authorities.as_deref().map(read).transpose()?;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (None, None) => None,
            _ => return unusable("a client certificate and its key go together: give both, or none".into()),
        };
        Ok(Tls { authorities, identity })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|e| {
        StoreError::Unusable(format!("{} cannot be read ({e}): give another file", path.display()))
    })
}

/// An address, and what goes with it.
struct Parsed {
    address: String,
    /// The address is a Sentinel's, which watches the master with this name.
    master: Option<String>,
    tls: bool,
    user: Option<String>,
    password: Option<String>,
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
        let sentinel = SentinelUrl::from(url);
        if sentinel.as_ref().is_some_and(|of| of.master.is_empty()) {
            return unusable(format!(
                "{}: a Sentinel is asked for a master by its name: write redis-sentinel://host:26379?master=name, and \
                 {}",
                without_password(url),
                encoding!()
            ));
        }
        let (url, master) = match &sentinel {
            Some(SentinelUrl { server, master }) => (server.as_str(), Some(master.clone())),
            None => (url, None),
        };
        // The error might show a password.
        let info = url.into_connection_info().map_err(|_| bad())?;
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
            user: own(settings.username()),
            password: own(settings.password()),
            db: settings.db(),
            resp3: settings.protocol() != ProtocolVersion::RESP2,
        })
    }

    fn enters_like(&self, other: &Self) -> bool {
        (self.tls, &self.user, &self.password, self.db, self.resp3, &self.master)
            == (other.tls, &other.user, &other.password, other.db, other.resp3, &other.master)
    }
}

/// The address of a Sentinel, taken apart.
struct SentinelUrl {
    /// The same address as one of a server.
    server: String,
    /// The name of the master; empty if it is missing.
    master: String,
}

impl SentinelUrl {
    const PORT: u16 = 26_379;

    /// `None`: it is another address.
    fn from(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("-sentinel://")?;
        // A password may have a question mark in it.
        let host_at = rest.rfind('@').map_or(0, |at| at + 1);
        let (login, rest) = rest.split_at(host_at);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, db) = place.split_once('/').map_or((place, None), |(host, db)| (host, Some(db)));
        let has_port = host.rsplit(']').next().is_some_and(|tail| tail.contains(':'));
        let (names, others): (Vec<&str>, Vec<&str>) =
            query.split('&').filter(|pair| !pair.is_empty()).partition(|pair| pair.starts_with("master="));
        let master = names.first().and_then(|pair| pair.split_once('=')).map_or("", |(_, name)| name);
        let mut server = format!("{scheme}://{login}{host}");
        if !has_port {
            server.push_str(&format!(":{}", Self::PORT));
        }
        db.iter().for_each(|db| server.extend(["/", db]));
        if !others.is_empty() {
            server.extend(["?", &others.join("&")]);
        }
        Some(Self { server, master: master.to_owned() })
    }
}

const fn unusable<T>(text: String) -> Result<T, StoreError> {
    Err(StoreError::Unusable(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(options: &Options) -> String {
        options.check().unwrap_err().to_string()
    }

    #[test]
    fn addresses_are_read() {
        let options = Options::new(["redis://u:p@10.0.0.1:7000/3", "redis://u:p@[::1]/3"], "c");
        let (seeds, access) = options.check().unwrap();
        assert_eq!(seeds, Seeds::Servers(["10.0.0.1:7000", "[::1]:6379"].map(str::to_owned).to_vec()));
        assert_eq!(
            (access.user.as_deref(), access.password.as_deref(), access.db),
            (Some("u"), Some("p"), 3)
        );
        assert!(!access.resp3 && access.tls.is_none());
        let (seeds, access) = Options::new(["unix:///run/r.sock?db=2&pass=p"], "c").check().unwrap();
        assert_eq!((seeds, access.db), (Seeds::Servers(vec!["/run/r.sock".to_owned()]), 2));
        assert_eq!(access.password.as_deref(), Some("p"));
        let (_, access) = Options::new(["rediss://h:1?protocol=resp3"], "c").check().unwrap();
        assert!(access.resp3 && access.tls.is_some());
    }

    #[test]
    fn addresses_of_sentinels_are_read() {
        let read = |urls: &[&str]| Options::new(urls.iter().copied(), "c").check().unwrap();
        let sentinels =
            |all: &[&str]| Seeds::Sentinels(all.iter().map(|a| (*a).to_owned()).collect(), "shop".to_owned());
        let (seeds, access) =
            read(&["redis-sentinel://s1?master=shop", "redis-sentinel://[::1]:5000?master=shop"]);
        assert_eq!(seeds, sentinels(&["s1:26379", "[::1]:5000"]));
        assert!(access.password.is_none() && access.tls.is_none());
        let (seeds, access) = read(&["rediss-sentinel://u:p%3F@[::1]/3?protocol=resp3&master=shop"]);
        assert_eq!(seeds, sentinels(&["[::1]:26379"]));
        assert_eq!((access.user.as_deref(), access.password.as_deref()), (Some("u"), Some("p?")));
        assert!(access.db == 3 && access.resp3 && access.tls.is_some());
        for url in ["redis-sentinel://s1", "redis-sentinel://u:secret@s1/1?master=&protocol=resp3"] {
            let why = why(&Options::new([url], "c"));
            assert!(why.contains("s1") && why.contains("?master=name") && !why.contains("secret"), "{why}");
        }
        let mixed =
            Options::new(["redis-sentinel://s1?master=shop", "redis-sentinel://s2?master=other"], "c");
        assert!(why(&mixed).contains("and master in both"), "{}", why(&mixed));
        let mixed = Options::new(["redis-sentinel://s1?master=shop", "redis://s1"], "c");
        assert!(why(&mixed).contains("differ"), "{}", why(&mixed));
    }

    #[test]
    fn what_cannot_work_is_refused_and_nothing_secret_is_shown() {
        let urls = [
            "http://u:secret@h:1",
            "rediss://u:secret@h:1#insecure",
            "unix://x?pass=secret",
            "redis://u:secret@h:x",
            "redis://u:secret@h:1/x",
            // Parts of an address that was split at a comma in its password, and `@` in passwords.
            "redis://u:secret",
            "secret@h:1",
            "unix://s?pass=a@secret",
            "redis://u:a@secret@h:x",
        ];
        for url in urls {
            let options = Options::new([url], "c");
            assert!(!why(&options).contains("secret"), "{}", why(&options));
            assert!(!format!("{options:?}").contains("secret"), "{options:?}");
        }
        let options = Options::new(["unix:///s?pass=a@secret", "unix:///s?pass=b@secret"], "c");
        assert!(
            why(&options).starts_with("unix:///s?pass=*** and unix:///s?pass=*** differ"),
            "{}",
            why(&options)
        );
        assert!(!format!("{options:?}").contains("secret"), "{options:?}");
        assert!(why(&Options::new(["redis://u:a@b@h:x"], "c")).contains("as %40 %2F"), "percent-encoding");
        let options = Options::new(["redis://:secret@h:1", "redis://:other@h:2"], "c");
        assert!(
            why(&options).starts_with("redis://:***@h:1 and redis://:***@h:2 differ"),
            "{}",
            why(&options)
        );
        assert!(why(&Options::new(Vec::<String>::new(), "c")).contains("no Redis address"));
        let partitions = Some(0);
        assert!(why(&Options { partitions, ..Options::new(["redis://h"], "c") }).contains("1 to 1024"));
        let durability = Durability::Replicated { replicas: 0, timeout: Duration::from_secs(1) };
        assert!(why(&Options { durability, ..Options::new(["redis://h"], "c") }).contains("at least 1"));
    }

    #[test]
    fn files_for_tls_are_complete_and_used() {
        let with = |url: &str, tls| why(&Options { tls, ..Options::new([url], "c") });
        let certificate = Some(PathBuf::from("/nowhere/c.pem"));
        let tls = TlsFiles { certificate, ..TlsFiles::default() };
        assert!(with("rediss://h", tls.clone()).contains("give both"));
        assert!(with("redis://h", tls).contains("rediss://"));
        let tls = TlsFiles { authorities: Some(PathBuf::from("/nowhere/ca.pem")), ..TlsFiles::default() };
        assert!(with("rediss://h", tls).contains("/nowhere/ca.pem cannot be read"));
    }
}
