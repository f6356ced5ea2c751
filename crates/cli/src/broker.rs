//! `mtimer broker` and `mtimer dev`: a broker that stays up until it is told to stop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mtimer_broker::config::{Config, StoreConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::exit::{Exit, Failure};
use super::flags::SettingFlags;
use super::output::{Output, Tone};
use super::reload::Reload;
use super::signals::StopSignal;
use super::store::Opened;
use super::{logging, settings, traces};

const STOPPING: &str = "stopping: running handlers may finish";

/// A broker to play with: embedded store, one process, stays up
///
/// Starts a broker on an embedded store, says where it listens and what can be typed next, and
/// stays up until INT or TERM, or until its terminal is closed (HUP; not under nohup). Without
/// --data its timers live in a temporary folder that is removed at the end.
///
/// Every setting of `mtimer broker` can be given as a flag or as a variable (MTIMER_LISTEN for
/// --listen, and so on), but for MTIMER_TLS_CA, MTIMER_TLS_CERT and MTIMER_TLS_KEY: here they are
/// those of clients, and only the flags count.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dev\n  mtimer dev --data ./timers --listen 127.0.0.1:7500\n  \
    mtimer dev --listen 127.0.0.1:0 --json      any free port; the first line says which\n  \
    mtimer dev --retry 1s,5s --callback-timeout 10s")]
pub(crate) struct Dev {
    #[command(flatten)]
    settings: SettingFlags,
}

/// One broker of a cluster
///
/// Runs a broker in the foreground until INT or TERM. Then, in a cluster, it first hands its
/// partitions over to the other brokers and serves each until then (10s at most); handlers go on
/// and settle with the new owner. With what nobody has taken over it takes no more clients and lets
/// running handlers finish (up to --drain-timeout), gives it up (5s), closes the connections (4s),
/// and ends: allow --drain-timeout and 20s more. A second signal ends it at once; nothing that was
/// answered is lost by that.
///
/// Settings come from flags, over the environment (MTIMER_ and the flag's name in capitals), over
/// the file, over defaults; --print-config shows what results. A key or a variable that is not
/// known is an error.
///
/// HUP never ends it: it reads the files of tokens and certificates again, and the password of
/// Redis if that is in the file; the log says what was read and which settings have changed and
/// need a restart. Tokens and certificates are read again within seconds of a change, too; a file
/// that is not valid changes nothing.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer broker --cluster shop --redis redis://10.0.0.5:6379 --listen 0.0.0.0:7400 \\\n      \
    --tokens tokens.toml --peer-token-file peer-token \\\n      \
    --tls-cert b1.pem --tls-key b1.key --tls-ca ca.pem\n  \
    mtimer broker --store embedded --data /var/lib/mtimer\n  \
    mtimer broker --config /etc/mtimer.toml --print-config\n  \
    mtimer broker --print-config > mtimer.toml          every setting with its default, to begin with")]
pub(crate) struct BrokerCommand {
    /// A TOML file with settings, named as the flags are
    #[arg(long, value_name = "FILE", env = "MTIMER_CONFIG")]
    config: Option<PathBuf>,
    /// Where the timers live; without it: in Redis if --redis is given, else embedded
    #[arg(long, value_enum, value_name = "KIND")]
    store: Option<StoreKind>,
    /// Show the settings that result, as a file, and end
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum StoreKind {
    /// In a folder of this machine (--data)
    Embedded,
    /// In Redis or Redis Cluster (--redis)
    Redis,
}

impl Dev {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let kept = self.settings.0.data.is_some();
        let mut config = settings::read(self.settings.0, None, settings::OF_CLIENTS)?;
        let StoreConfig::Embedded { data, .. } = &mut config.store else {
            return Err(Failure::usage(
                "dev has an embedded store: leave the Redis servers out, or use mtimer broker",
            ));
        };
        let kept = kept || std::env::var_os("MTIMER_DATA").is_some();
        let folder = if kept { None } else { Some(temp_dir()?) };
        if let Some(folder) = &folder {
            *data = folder.path().join("data");
        }
        logging::start(config.log_format, &config.log_level)?;
        config.broker.traces = traces::sink();
        let ready =
            |addr: SocketAddr| if out.json { Ok(()) } else { out.text(&welcome(out, &config, kept, addr)) };
        // A closed terminal ends it, as any other program that somebody tries out.
        let stop = StopSignal::on_signals_and_hangup(STOPPING)?;
        serve(&config, stop, None, out, ready).await
    }
}

impl BrokerCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let source = settings::Source { flags: self.settings.0, file: self.config };
        let mut config = source.read()?;
        match (self.store, &config.store) {
            (Some(StoreKind::Embedded), StoreConfig::Redis { .. }) => {
                return Err(Failure::usage(
                    "--store embedded, but Redis servers are given: leave one of them out",
                ));
            }
            (Some(StoreKind::Redis), StoreConfig::Embedded { .. }) => {
                return Err(Failure::usage("--store redis needs servers: give --redis redis://host:6379"));
            }
            _ => {}
        }
        if self.print_config {
            return match out.json {
                true => out.object(&settings::as_json(config.settings())?),
                false => out.text(config.to_toml()?.trim_end()),
            };
        }
        logging::start(config.log_format, &config.log_level)?;
        config.broker.traces = traces::sink();
        let ready = |addr: SocketAddr| match out.json {
            true => Ok(()),
            false => {
                out.text(&format!("mtimer broker of cluster {} listens on {addr}", config.broker.cluster))
            }
        };
        let stop = StopSignal::on_signals(STOPPING)?;
        let reload = Reload::watch(source, &config)?;
        serve(&config, stop, Some(reload), out, ready).await
    }
}

/// Runs a broker until it is told to stop, or ends by itself.
async fn serve(
    config: &Config,
    stop: StopSignal,
    reload: Option<Reload>,
    out: Output,
    ready: impl FnOnce(SocketAddr) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let source = reload.as_ref().map(Reload::source);
    let opening = Opened::open(&config.store, &config.broker.cluster, config.broker.startup_timeout, source);
    // Told to stop while it starts, it stops as it would later: gracefully, and that is no
    // failure.
    let Some(opened) = stop.unless(opening).await else { return Ok(()) };
    let opened = opened?;
    warn_of(&opened, &config.broker.cluster);
    let starting = mtimer_broker::start_unless(config.broker.clone(), opened.store.clone(), stop.asked());
    let Some(broker) = starting.await? else {
        opened.close().await;
        return Ok(());
    };
    let addr = broker.local_addr();
    if out.json {
        out.object(&started(config, &broker, &opened))?;
    }
    ready(addr)?;
    let ended = match stop.unless(run(&broker, &opened, reload)).await {
        Some(ended) => ended,
        None => broker.stop().await,
    };
    drop(broker);
    opened.close().await;
    Ok(ended?)
}

/// Warns of findings when the store was opened.
fn warn_of(opened: &Opened, cluster: &str) {
    if !opened.other_clusters.is_empty() {
        tracing::warn!("{}", new_beside(cluster, &opened.other_clusters));
    }
    if !opened.unprotected.is_empty() {
        tracing::warn!(
            masters = opened.unprotected.join(", "),
            "Redis keeps no append-only file and has no replica: if it restarts, all timers since its last snapshot are \
             lost, or all if it takes none; set appendonly yes there, or give it a replica"
        );
    }
}

/// A broker that has started, for scripts.
fn started(config: &Config, broker: &mtimer_broker::Broker, opened: &Opened) -> Value {
    let info = opened.store.info();
    let data = match &config.store {
        StoreConfig::Embedded { data, .. } => Some(data),
        StoreConfig::Redis { .. } => None,
    };
    json!({
        "listening": broker.local_addr().to_string(),
        "http": broker.http_addr().map(|addr| addr.to_string()),
        "cluster": config.broker.cluster,
        "store": info.kind,
        "durability": info.durability,
        "partitions": info.partitions,
        "data": data,
        "pid": std::process::id(),
    })
}

/// The message about a new cluster on a Redis that holds others.
fn new_beside(cluster: &str, others: &[String]) -> String {
    let others: Vec<String> = others.iter().map(|name| format!("{name:?}")).collect();
    format!(
        "cluster {cluster:?} is new here; this Redis also holds {}: if one of them was meant, stop this broker and \
         correct its setting `cluster`; the new one is empty",
        others.join(", ")
    )
}

/// Waits for the broker's end, and reloads at each HUP.
async fn run(
    broker: &mtimer_broker::Broker,
    opened: &Opened,
    reload: Option<Reload>,
) -> Result<(), mtimer_broker::BrokerError> {
    let reloading = async {
        match reload {
            Some(reload) => reload.at_each_hangup(broker, opened).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = broker.wait() => ended,
        () = reloading => Ok(()),
    }
}

fn welcome(out: Output, config: &Config, kept: bool, addr: SocketAddr) -> String {
    let data = match &config.store {
        StoreConfig::Embedded { data, .. } => data.display().to_string(),
        StoreConfig::Redis(_) => "Redis".to_owned(),
    };
    let flag = match reachable(addr).to_string() {
        usual if usual == "127.0.0.1:7400" => String::new(),
        addr => format!(" --broker {addr}"),
    };
    let until = if kept { "kept" } else { "gone when this stops; keep them with --data DIR" };
    let command = |c: &str| out.tone(Tone::Strong, c);
    format!(
        "mtimer listens on {}\ntimers: {data} ({until})\n\nIn another terminal:\n  {}\n  {}\n  {}\n\nStop with Ctrl-C.",
        out.tone(Tone::Good, &addr.to_string()),
        command(&format!("mtimer listen{flag} --group demo --app hello")),
        command(&format!("mtimer schedule{flag} --group demo --app hello --in 3s --payload 'it is time'")),
        command(&format!("mtimer status{flag}")),
    )
}

/// An address to connect to, for one to listen on.
fn reachable(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), addr.port()),
        _ => addr,
    }
}

/// A folder that goes when it is dropped.
pub(crate) fn temp_dir() -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("mtimer-")
        .tempdir()
        .map_err(|e| Failure::new(Exit::Failed, format!("cannot make a temporary folder: {e}")))
}
