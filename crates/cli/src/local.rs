//! A broker in this process, for as long as a demo or a measurement lasts.
//!
//! Invariant: it leaves nothing behind: it removes the temporary folder, or the keys of its cluster
//! in Redis, whose name nobody else has.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use mtimer_broker::config::{Durability, PartialConfig, StoreConfig};
use mtimer_broker::{Broker, BrokerOptions};
use mtimer_client::Client;
use mtimer_store::StoreInfo;
use mtimer_store_redis::RedisOptions;
use tempfile::TempDir;

use super::exit::{Exit, Failure};
use super::flags::one_of;
use super::redis::{TlsArgs, address};
use super::store::Opened;
use super::{output, redis};

/// How long a store may be away at the start: somebody looks on.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the timers of a demo or a measurement live.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArgs {
    /// Use Redis (or a Redis Cluster: name some of its masters); the keys are removed afterwards
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = address, help_heading = "Store")]
    pub(crate) redis: Vec<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Make the temporary folder of the embedded store in here [default: the system's]
    #[arg(long, value_name = "DIR", conflicts_with = "redis", help_heading = "Store")]
    pub(crate) dir: Option<PathBuf>,
    /// What an answered schedule means [default: embedded-sync, or redis]
    #[arg(long, value_parser = one_of::<Durability>(), value_name = "LEVEL", help_heading = "Store")]
    pub(crate) durability: Option<Durability>,
    /// Partitions [default: the store's]
    #[arg(long, value_name = "N", help_heading = "Store")]
    pub(crate) partitions: Option<u16>,
    /// Keep nothing at all: shows what everything but the store costs
    #[arg(long, conflicts_with_all = ["redis", "dir", "durability", "partitions"], help_heading = "Store")]
    pub(crate) memory: bool,
}

/// A running broker of one's own.
pub(crate) struct Local {
    broker: Broker,
    opened: Opened,
    pub(crate) addr: SocketAddr,
    pub(crate) info: StoreInfo,
    /// Where it is, for people.
    pub(crate) place: String,
    rest: Rest,
}

/// The leftovers to remove.
#[derive(Debug)]
pub(crate) enum Rest {
    Nothing,
    Folder(TempDir),
    Keys(RedisOptions),
}

impl Local {
    pub(crate) async fn start(args: &StoreArgs) -> Result<Self, Failure> {
        let cluster = format!("mtimer-{:016x}", rand::random::<u64>());
        let (opened, place, rest) = open(args, &cluster).await?;
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = BrokerOptions { listen, cluster, ..BrokerOptions::default() };
        let info = opened.store.info();
        match mtimer_broker::start(options, opened.store.clone()).await {
            Ok(broker) => Ok(Self { addr: broker.local_addr(), broker, opened, info, place, rest }),
            Err(error) => {
                opened.close().await;
                rest.remove().await;
                Err(error.into())
            }
        }
    }

    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::builder()
            .brokers([self.addr.to_string()])
            .software(concat!("mtimer/", env!("CARGO_PKG_VERSION")))
            .connect()
            .await?)
    }

    /// Stops the broker and removes its leftovers.
    pub(crate) async fn end(self) -> Result<(), Failure> {
        let ended = self.broker.stop().await;
        drop(self.broker);
        self.opened.close().await;
        self.rest.remove().await;
        Ok(ended?)
    }
}

async fn open(args: &StoreArgs, cluster: &str) -> Result<(Opened, String, Rest), Failure> {
    if args.memory {
        return Ok((Opened::memory(), "in memory".to_owned(), Rest::Nothing));
    }
    let (durability, partitions) = (args.durability, args.partitions);
    if !args.redis.is_empty() {
        let settings = args.tls.settings(&args.redis);
        let config = PartialConfig { durability, partitions, ..settings }.resolve()?;
        let opened = Opened::open(&config.store, cluster, Some(STORE_TIMEOUT), None).await?;
        let rest = Rest::Keys(args.tls.options(&args.redis, cluster));
        return Ok((opened, format!("cluster {cluster}"), rest));
    }
    let folder = folder(args.dir.as_deref())?;
    let data = Some(folder.path().join("data"));
    let config = PartialConfig { durability, partitions, data, ..PartialConfig::default() }.resolve()?;
    let place = match &config.store {
        StoreConfig::Embedded { data, .. } => data.display().to_string(),
        StoreConfig::Redis { .. } => String::new(),
    };
    Ok((Opened::open(&config.store, cluster, Some(STORE_TIMEOUT), None).await?, place, Rest::Folder(folder)))
}

/// A temporary folder, in `dir` if that is given.
pub(crate) fn folder(dir: Option<&Path>) -> Result<TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("mtimer-");
    match dir {
        Some(dir) => builder.tempdir_in(dir),
        None => builder.tempdir(),
    }
    .map_err(|e| Failure::new(Exit::Failed, format!("cannot make a temporary folder: {e}")))
}

impl Rest {
    pub(crate) async fn remove(self) {
        match self {
            Self::Nothing => {}
            Self::Folder(folder) => {
                let path = folder.path().to_owned();
                if let Err(error) = folder.close() {
                    output::note(&format!(
                        "the temporary folder {} could not be removed: {error}",
                        path.display()
                    ));
                }
            }
            Self::Keys(options) => {
                if let Err(failure) = redis::remove(&options).await {
                    let cluster = &options.cluster;
                    output::note(&format!("the keys of cluster {cluster} could not be removed: {failure}"));
                }
            }
        }
    }
}
