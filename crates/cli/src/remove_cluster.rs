//! `mtimer cluster remove`: empties a cluster that nobody uses any more from Redis.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use mtimer_broker::config::{PartialConfig, StoreConfig};
use mtimer_store_redis::{ClusterRemoval, RemovalError};
use serde_json::json;

use super::confirm::Yes;
use super::exit::{Exit, Failure};
use super::logging::LogArgs;
use super::output::{Output, counted, grouped};
use super::redis::{TlsArgs, address};
use super::{progress, redis, settings};

/// How long it is looked for a broker: one that lives takes the lease within that, when the last
/// leader has gone.
const LOOK: Duration = Duration::from_secs(3);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Remove a cluster from Redis, with all its timers
///
/// For a cluster whose name was mistyped, or that is not used any more: every key of it goes, and
/// with them all its timers. Keys of others stay, also of clusters whose names begin in the same
/// way.
///
/// Asks first; where nobody can be asked, it needs --yes. It refuses (exit code 13) while a broker
/// of the cluster has the lease, for which it looks for three seconds and before every step. A
/// broker that cannot reach Redis at that time shows nothing: stop all of them first. It works in
/// steps of 1,000 keys, so that Redis serves others meanwhile; a removal that was interrupted is
/// finished by another one. The user of Redis needs +unlink besides what a broker needs, and +scan.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer cluster remove shpo --redis redis://10.0.0.5:6379 --dry-run\n  \
    mtimer cluster remove shpo --redis redis://10.0.0.5:6379\n  \
    mtimer cluster remove shpo --config /etc/mtimer.toml --yes      Redis as a broker has it")]
pub(crate) struct RemoveCluster {
    /// The cluster's name
    name: String,
    /// Redis servers, or Sentinels, separated by commas; without it those of MTIMER_REDIS or
    /// --config
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = address, help_heading = "Store")]
    redis: Vec<String>,
    /// A settings file of a broker: its Redis servers, and files for TLS
    #[arg(long, value_name = "FILE", env = "MTIMER_CONFIG", help_heading = "Store")]
    config: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Only count the keys
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    log: LogArgs,
}

impl RemoveCluster {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        self.log.start()?;
        let removal = ClusterRemoval::open(&self.options()?).await?;
        let name = &self.name;
        let bar = progress::counter("counting keys");
        let found = removal.count(|found| bar.set_position(found)).await;
        bar.finish_and_clear();
        let found = found?;
        if found == 0 {
            return Err(Failure::new(Exit::NotFound, nothing(name, &removal.others().await)));
        }
        let began = Instant::now();
        loop {
            removal.check_not_led().await.map_err(failed)?;
            if began.elapsed() > LOOK {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        if self.dry_run {
            let object = json!({ "cluster": name, "keys": found });
            return out
                .either(&object, || format!("{} of cluster {name} would be removed", counted(found, "key")));
        }
        let keys = counted(found, "key");
        self.yes.confirm(&format!(
            "this removes cluster {name} from Redis for good: {keys}, with all its timers"
        ))?;
        let bar = progress::bar("removing keys", found);
        let removed = removal.run(|removed| bar.set_position(removed)).await;
        bar.finish_and_clear();
        let removed = removed.map_err(failed)?;
        let object = json!({ "cluster": name, "removed": removed });
        out.either(&object, || format!("cluster {name} is removed: {} keys", grouped(removed)))
    }

    fn options(&self) -> Result<mtimer_store_redis::RedisOptions, Failure> {
        let mut given = self.tls.settings(&self.redis);
        if self.redis.is_empty() {
            given.redis = None;
        }
        // Checked as the name of any cluster.
        let given = PartialConfig { cluster: Some(self.name.clone()), ..given };
        match settings::read(given, self.config.as_deref(), &[])?.store {
            StoreConfig::Redis(redis) => Ok(redis::options(&redis, &self.name)),
            StoreConfig::Embedded { .. } => Err(Failure::usage(
                "where is the cluster? Give --redis redis://HOST:6379, or --config with a file that names Redis; an \
                 embedded store is removed with its folder",
            )),
        }
    }
}

/// There is no such cluster; perhaps one of the others was meant.
fn nothing(name: &str, others: &[String]) -> String {
    match others {
        [] => format!("this Redis holds nothing of a cluster {name}"),
        others => format!("this Redis holds nothing of a cluster {name}; it holds {}", others.join(", ")),
    }
}

fn failed(error: RemovalError) -> Failure {
    match error {
        RemovalError::Led { .. } => Failure::new(Exit::NotNow, error.to_string()),
        RemovalError::Store(error) => error.into(),
    }
}
