//! A broker on Redis that is broken on purpose, to see the tests notice:
//! `broken-broker WHAT --json --redis URL [--SETTING VALUE]...`.
//!
//! `WHAT` is `fence`, `claim` or `early-ok` ([`breaking::Sabotage`]), or `nothing` for a broker
//! that is like any other. Settings are those of `mtimer broker`. Its log is that of
//! `mtimer broker --json`, and so is its first line, as far as tests read it; it stops on TERM.

mod breaking;

use std::process::ExitCode;
use std::sync::Arc;

use mtimer_broker::config::{Config, LogFormat, PartialConfig, RedisConfig, Replication, StoreConfig};
use mtimer_broker::{Broker, StartError, start_unless};
use mtimer_store::{Store, StoreInfo};
use mtimer_store_redis::{RedisDurability, RedisOptions, RedisStore};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use self::breaking::Sabotage;

/// The exit code of `mtimer` if its address is taken.
const LISTEN: u8 = 14;

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run(std::env::args().skip(1)).await else { return ExitCode::SUCCESS };
    eprintln!("{error}");
    match error.downcast_ref() {
        Some(StartError::Listen { .. }) => ExitCode::from(LISTEN),
        _ => ExitCode::FAILURE,
    }
}

async fn run(mut args: impl Iterator<Item = String>) -> Result<(), Error> {
    let what = args.next().ok_or("the first argument says what is broken")?;
    let sabotage: Option<Sabotage> = if what == "nothing" { None } else { Some(what.parse()?) };
    let config = settings(args)?;
    start_log(&config)?;
    if let Some(sabotage) = sabotage {
        sabotage.begin();
    }
    let StoreConfig::Redis(redis) = &config.store else { return Err("it needs --redis".into()) };
    let store: Arc<dyn Store> =
        Arc::new(RedisStore::connect(redis_options(redis, &config.broker.cluster)).await?);
    let store = match sabotage {
        Some(sabotage) => sabotage.wrap(store),
        None => store,
    };
    let mut term = signal(SignalKind::terminate())?;
    let told = async { _ = term.recv().await };
    let info = store.info();
    let Some(broker) = start_unless(config.broker, store, told).await? else { return Ok(()) };
    serve(&broker, &info).await
}

/// Runs until it is told to stop, or ends by itself.
async fn serve(broker: &Broker, info: &StoreInfo) -> Result<(), Error> {
    let mut term = signal(SignalKind::terminate())?;
    let about = json!({
        "listening": broker.local_addr().to_string(),
        "partitions": info.partitions,
        "pid": std::process::id(),
    });
    println!("{about}");
    tokio::select! {
        ended = broker.wait() => Ok(ended?),
        _ = term.recv() => Ok(broker.stop().await?),
    }
}

/// Flags over the environment. A flag is its setting's variable under another name.
fn settings(args: impl Iterator<Item = String>) -> Result<Config, Error> {
    let mut flags = Vec::new();
    let mut args = args.filter(|arg| arg != "--json").peekable();
    while let Some(flag) = args.next() {
        let name = flag.strip_prefix("--").ok_or_else(|| format!("{flag:?} is no flag"))?;
        let variable = format!("MTIMER_{}", name.replace('-', "_").to_uppercase());
        let value = args.next_if(|next| !next.starts_with("--")).unwrap_or_else(|| "true".to_owned());
        flags.push((variable, value));
    }
    let layers = PartialConfig::layered(PartialConfig::from_env(flags)?, std::env::vars(), None)?;
    Ok(layers.resolve()?)
}

fn start_log(config: &Config) -> Result<(), Error> {
    let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::try_new(&config.log_level)?);
    let log = log.with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Json => log.json().flatten_event(true).try_init(),
        LogFormat::Text => log.with_ansi(false).try_init(),
    }
    .map_err(|error| error as Error)
}

fn redis_options(redis: &RedisConfig, cluster: &str) -> RedisOptions {
    let durability = match redis.replication {
        None => RedisDurability::Redis,
        Some(Replication { replicas, within }) => RedisDurability::Replicated { replicas, timeout: within },
    };
    RedisOptions {
        tls: redis.tls.clone(),
        partitions: redis.partitions,
        durability,
        log_bytes: redis.write_log_bytes,
        ..RedisOptions::new(redis.urls.iter().cloned(), cluster)
    }
}
