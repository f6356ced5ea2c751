//! `mtimer bench`: measurements that check themselves.
//!
//! Invariant: what is measured is what was delivered, exactly once and not early; a run in which anything was lost, early
//! or duplicated ends with an exit code of its own. Warm-up rounds are not counted; the result is a median, with its spread.

mod fire;
mod lateness;
mod report;
mod schedule;

use std::time::Duration;

use clap::{Args, Subcommand};
use mtimer_client::{Client, Destination, Info};

use self::report::{Report, Round};
use super::args::destination;
use super::exit::{Exit, Failure};
use super::local::{Local, StoreArgs};
use super::logging::LogArgs;
use super::moment;
use super::output::{Output, note};
use super::signals::Stop;
use super::tally::Reference;

/// Measures how fast timers are scheduled, how fast they fire, and how late
///
/// Every measurement starts a broker of its own in this process, on an embedded store in a temporary folder, unless it is
/// given --redis, --memory (no store: what everything else costs) or the --broker of a running one. Rounds are repeated;
/// the result is the median, with the lowest and the highest (lateness_ms.max: the highest). With --json: bench, store, timers (in a round), rate_per_s,
/// lateness_ms{p50,p99,p999,max}, lost, early, duplicates, and more. Exit code 10 if anything was lost, early or
/// duplicated.
///
/// Broker, client and load share one process and one machine: what is measured is all of them together.
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    Schedule(ScheduleBench),
    Fire(FireBench),
    Lateness(LatenessBench),
}

/// How many timers a second can be scheduled
///
/// Each round schedules --timers timers that are due in an hour or more, in batches, as fast as they are answered.
/// Afterwards the store is asked whether it has them all. answer_ms is how long a lone schedule takes, one after the
/// other.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bench schedule\n  mtimer bench schedule --durability embedded-fast --timers 500000\n  \
    mtimer bench schedule --redis redis://127.0.0.1:6379 --json"
)]
pub(crate) struct ScheduleBench {
    /// Timers of a round
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    timers: u64,
    #[command(flatten)]
    common: Common,
}

/// How many timers a second can fire
///
/// Each round schedules --timers timers that are due at the same moment, and measures from that moment until the last
/// of them is acknowledged and that is stored. Lateness here is the time it takes to work through the heap.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bench fire\n  mtimer bench fire --timers 200000 --redis redis://127.0.0.1:6379"
)]
pub(crate) struct FireBench {
    /// Timers of a round
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    timers: u64,
    #[command(flatten)]
    common: Common,
}

/// How late timers fire under a steady load
///
/// Each round schedules --rate timers a second for --over, each --ahead of its due time, whether or not the broker keeps
/// up (open loop): the load never waits for the answers. Due times are spread evenly. Lateness is from the due time to
/// the handler.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bench lateness\n  mtimer bench lateness --rate 20000 --over 30s --rounds 3"
)]
pub(crate) struct LatenessBench {
    /// Timers a second
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// How long a round's load lasts
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = moment::span)]
    over: Duration,
    /// How long before its due time a timer is scheduled
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = moment::span)]
    ahead: Duration,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Clone, Debug)]
struct Common {
    /// Rounds that count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Rounds before that, which do not count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,
    /// Bytes of a payload, at least 8
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    payload: u32,
    #[command(flatten)]
    store: StoreArgs,
    /// Measure a running broker instead of one's own
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with_all = ["redis", "dir", "durability", "partitions", "memory"])]
    #[arg(help_heading = "Connection")]
    broker: Vec<String>,
    /// Proof of who you are, for --broker
    #[arg(long, env = "MTIMER_TOKEN", hide_env_values = true, default_value = "", hide_default_value = true)]
    #[arg(value_name = "TOKEN", help_heading = "Connection")]
    token: String,
    #[command(flatten)]
    log: LogArgs,
}

/// What a measurement is made with.
struct Bed {
    local: Option<Local>,
    client: Client,
    /// Of this run alone.
    group: String,
    reference: Reference,
    payload: usize,
    stop: Stop,
}

impl Bed {
    async fn new(common: &Common) -> Result<Self, Failure> {
        common.log.start()?;
        let stop = Stop::on_signals("stopping")?;
        let local = match common.broker.as_slice() {
            [] => Some(Local::start(&common.store).await?),
            _ => None,
        };
        let client = match &local {
            Some(local) => local.connect().await?,
            None => {
                Client::builder()
                    .brokers(common.broker.iter().cloned())
                    .token(&common.token)
                    .connect()
                    .await?
            }
        };
        let reference = match &local {
            None => Reference::Cluster(client.clone()),
            Some(local) if local.info.kind.starts_with("redis") => Reference::with_store_clocks(&client),
            Some(_) => Reference::host(),
        };
        let group = format!("bench-{:016x}", rand::random::<u64>());
        Ok(Self { local, client, group, reference, payload: common.payload as usize, stop })
    }

    /// The destination of one part of the run.
    fn dest(&self, part: &str) -> Result<Destination, Failure> {
        destination(&self.group, part)
    }

    fn info(&self) -> std::sync::Arc<Info> {
        self.client.info()
    }

    /// Whether the broker runs in this process and goes with it.
    fn is_own(&self) -> bool {
        self.local.is_some()
    }

    async fn end(self) -> Result<(), Failure> {
        let closed = self.client.close().await;
        if let Some(local) = self.local {
            local.end().await?;
        }
        Ok(closed?)
    }
}

impl Bench {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let common = match &self {
            Self::Schedule(bench) => &bench.common,
            Self::Fire(bench) => &bench.common,
            Self::Lateness(bench) => &bench.common,
        };
        let bed = Bed::new(common).await?;
        let result = self.measure(&bed, common).await;
        let interrupted = bed.stop.is_asked();
        bed.end().await?;
        let report = result?;
        report.show(out)?;
        match report.is_exact() {
            _ if interrupted => Err(Failure::silent(Exit::Interrupted)),
            true => Ok(()),
            false => Err(Failure::silent(Exit::Inexact)),
        }
    }

    async fn measure(&self, bed: &Bed, common: &Common) -> Result<Report, Failure> {
        let info = bed.info();
        let (name, timers) = match self {
            Self::Schedule(bench) => ("schedule", bench.timers),
            Self::Fire(bench) => ("fire", bench.timers),
            Self::Lateness(bench) => ("lateness", bench.timers()),
        };
        let mut report = Report::new(name, &info, timers, common.payload);
        for n in 0..common.warmup + common.rounds {
            if bed.stop.is_asked() {
                break;
            }
            let round = self.round(bed, n).await?;
            let counts = n >= common.warmup;
            let number =
                if counts { format!("round {}", n + 1 - common.warmup) } else { "warm-up".to_owned() };
            note(&format!("{name}: {number}: {}", round.line()));
            if counts {
                report.add(round);
            }
        }
        if let Self::Schedule(_) = self {
            report.answer_us = Some(schedule::lone(bed).await?);
        }
        Ok(report)
    }

    async fn round(&self, bed: &Bed, n: u32) -> Result<Round, Failure> {
        let dest = bed.dest(&format!("round-{n}"))?;
        match self {
            Self::Schedule(bench) => schedule::round(bed, &dest, bench.timers).await,
            Self::Fire(bench) => fire::round(bed, &dest, bench.timers).await,
            Self::Lateness(bench) => lateness::round(bed, &dest, bench).await,
        }
    }
}
