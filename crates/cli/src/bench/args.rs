//! The flags of the measurements, with their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use mtimer_broker::config::Durability;
use mtimer_client::limits::MAX_PAYLOAD_BYTES;

use super::mix::{Mix, percent};
use crate::args::{ConnectTlsArgs, TokenArgs};
use crate::flags::one_of;
use crate::logging::LogArgs;
use crate::moment::span;
use crate::redis::{TlsArgs, address};

/// How many timers a second can be scheduled
///
/// Each round begins on an empty store (of one's own), schedules --timers timers in batches, as
/// fast as they are answered, due over --over beginning in an hour, and asks the store whether it
/// has them all.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench schedule\n  \
    mtimer bench schedule --durability embedded-fast --timers 500000\n  \
    mtimer bench schedule --redis redis://127.0.0.1:6379 --json | jq .rate_per_s\n  \
    mtimer bench schedule --keyed 100                  what keys cost: each is looked up and stored, too")]
pub(crate) struct ScheduleBench {
    /// Timers of a round
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = value_parser!(u64).range(1..=50_000_000))]
    pub(super) timers: u64,
    /// Over how long their due times are spread
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = span, allow_hyphen_values = true)]
    pub(super) over: Duration,
    #[command(flatten)]
    pub(super) mix: Mix,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How many stored timers a second are delivered and settled
///
/// Each round schedules --timers timers that are due within one second (--within), early enough
/// that they are read from the store again before that. Measured is from the first due time until
/// the last of them is acknowledged and that is stored, and the processor time since the last was
/// scheduled (not reported if that was after the first were loaded again: --preload before they are
/// due). Timers due within a second cannot fire faster than they are due: give more timers, or a
/// smaller --within, where they do. With --fail the last retries come half a second after the last
/// first attempt, which the rate includes: compare the processor time.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bench fire\n  mtimer bench fire --redis redis://127.0.0.1:6379\n  \
    mtimer bench fire --timers 50000 --within 0s --rounds 10\n  \
    mtimer bench fire -- --memory 1GiB             with another setting of the broker\n  \
    mtimer bench fire --fail 1 --redis redis://127.0.0.1:6379\n          \
    one handler in a hundred fails: what filing and delivering retries costs all the others"
)]
pub(crate) struct FireBench {
    /// Timers of a round
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = value_parser!(u64).range(1..=50_000_000))]
    pub(super) timers: u64,
    /// Over how long their due times are spread
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span, allow_hyphen_values = true)]
    pub(super) within: Duration,
    /// How long before the first is due the last should have been scheduled; more than --preload,
    /// so that the store is read
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = span, allow_hyphen_values = true)]
    pub(super) ahead: Duration,
    #[command(flatten)]
    pub(super) mix: Mix,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How many timers a second can be scheduled, fire and be settled, all at once and for long
///
/// Open loop: timers are sent by plan, --ahead of their due times, whether or not the broker keeps
/// up. Without --rate the highest rate is looked for at which it does: in steps of --step, each
/// half as fast again until lateness p99 is over --p99, something is lost or behind, or is stored
/// only when half of --ahead has gone (half as fast if the first is too much); then between the
/// last two. The rounds of --for are made at that rate, and at a tenth less whenever one of them
/// does not bear it. If none is found, that is an error.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench lifecycle --redis redis://127.0.0.1:6379\n  \
    mtimer bench lifecycle --rate 60000 --for 60s\n  \
    mtimer bench lifecycle --sparse --rate 500 --partitions 1024 --redis redis://127.0.0.1:6379\n          \
    redis_above_idle_us is what a timer costs that nothing shares a slot or a script with\n  \
    mtimer bench lifecycle --rate 5000 --keyed 10 --fail 1 --at-most-once 5\n          \
    a mix as applications have it; without --rate the highest rate that it can be sustained at")]
pub(crate) struct LifecycleBench {
    /// Timers a second [default: the highest that is sustained]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(super) rate: Option<u64>,
    /// How long a round's load lasts
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = span, allow_hyphen_values = true)]
    pub(super) over: Duration,
    /// How long before its due time a timer is scheduled; more than --preload, so that the store is
    /// read
    #[arg(long, value_name = "DURATION", default_value = "7s", value_parser = span, allow_hyphen_values = true)]
    pub(super) ahead: Duration,
    /// Where the search begins, timers a second
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(super) from: u64,
    /// How long a step of the search lasts
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = span, allow_hyphen_values = true)]
    pub(super) step: Duration,
    /// Each timer in another partition than the one before, instead of in runs: alone in its slot,
    /// if a partition has less than one in a second. A timer with a key goes to the partition of
    /// its key
    #[arg(long)]
    pub(super) sparse: bool,
    /// Lateness p99 up to which a rate counts as sustained
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = span, allow_hyphen_values = true)]
    pub(super) p99: Duration,
    #[command(flatten)]
    pub(super) mix: Mix,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How late timers fire under a steady load
///
/// For each --rate its own rounds and report. Each round schedules so many timers a second for
/// --for, each --ahead of its due time, whether or not the broker keeps up (open loop): the load
/// never waits for the answers. Due times are spread evenly. Lateness is from the due time to the
/// handler, at the first attempt.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench lateness\n  \
    mtimer bench lateness --rate 20000 --for 30s --rounds 3\n  \
    mtimer bench lateness --redis redis://127.0.0.1:6379 --json       one line for each rate\n  \
    mtimer bench lateness --at-most-once 100       what taking each timer before it is sent does to its lateness")]
pub(crate) struct LatenessBench {
    /// Timers a second, one or several
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1_000, 10_000], value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(super) rate: Vec<u64>,
    /// How long a round's load lasts
    #[arg(long = "for", visible_alias = "over", value_name = "DURATION", default_value = "10s", value_parser = span, allow_hyphen_values = true)]
    pub(super) over: Duration,
    /// How long before its due time a timer is scheduled; more than --preload, so that the store is
    /// read
    #[arg(long, value_name = "DURATION", default_value = "7s", value_parser = span, allow_hyphen_values = true)]
    pub(super) ahead: Duration,
    #[command(flatten)]
    pub(super) mix: Mix,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How many timers a second can be cancelled
///
/// Each round begins on an empty store (of one's own), schedules --timers timers as `schedule`
/// does, and cancels all of them, by id or (--keyed) by key, 4,000 calls under way at a time.
/// rate_per_s and processor time are those of the cancels; schedule_per_s is the rate before that.
/// lost counts timers that were not cancelled, duplicates deliveries, left timers, keys and index
/// entries that are still in the store.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench cancel\n  \
    mtimer bench cancel --keyed 100 --over 24h --redis redis://127.0.0.1:6379       by key")]
pub(crate) struct CancelBench {
    #[command(flatten)]
    pub(super) edits: Edits,
}

/// How many timers a second can be given another due time
///
/// Each round begins on an empty store (of one's own), schedules --timers timers as `schedule`
/// does, and reschedules all of them, by id or (--keyed) by key, 4,000 calls under way at a time,
/// to times spread over another --over, an hour behind the first. rate_per_s and processor time are
/// those of the reschedules; schedule_per_s is the rate before that. Then every timer is asked for
/// and cancelled: lost counts those that are not there, early those at another time than the new
/// one, duplicates timers too many and deliveries, left what is still in the store.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench reschedule\n  \
    mtimer bench reschedule --keyed 50 --redis redis://127.0.0.1:6379       half of them by key")]
pub(crate) struct RescheduleBench {
    #[command(flatten)]
    pub(super) edits: Edits,
}

/// What both take.
#[derive(Args, Debug)]
pub(crate) struct Edits {
    /// Timers of a round
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u64).range(1..=50_000_000))]
    pub(super) timers: u64,
    /// Over how long their due times are spread, from an hour on
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = span, allow_hyphen_values = true)]
    pub(super) over: Duration,
    #[command(flatten)]
    pub(super) mix: Mix,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How long it takes until the last of many timers of one millisecond is with its handler
///
/// last_entered_ms is what counts: from the due time of them all until the last handler was
/// entered.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench burst\n  \
    mtimer bench burst --timers 1000000 --redis redis://127.0.0.1:6379")]
pub(crate) struct BurstBench {
    /// Timers that are due in the same millisecond
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u64).range(1..=50_000_000))]
    pub(super) timers: u64,
    /// How long before they are due the last should have been scheduled; more than --preload, so
    /// that the store is read
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = span, allow_hyphen_values = true)]
    pub(super) ahead: Duration,
    #[command(flatten)]
    pub(super) common: Common,
}

/// What pending timers cost: memory, and how everything else changes as they grow in number
///
/// Fills the store in steps of ten: 1,000, 10,000, ... up to --timers, spread over --over beginning
/// in an hour. On Redis first to weigh them: bytes for each timer over its payload (its key, if it
/// has one, is in them). Then on a new
/// store, at each step: the broker's memory, and what --probe further timers cost, scheduled like
/// the others and cancelled again (schedule), and scheduled, fired and settled (full_cycle),
/// medians of --rounds, with the lowest and the highest. At the end the broker of one's own is
/// stopped and started again with all of them pending: restart_ms is from the start of its process
/// until a handler was entered (--crash: it is killed, not stopped).
///
/// With --json the steps are "rows"; tests/bench/plot makes a picture of them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench memory --redis redis://127.0.0.1:6379 --tune-redis\n  \
    mtimer bench memory --redis redis://127.0.0.1:6379 --tune-redis --keyed 100\n  \
    mtimer bench memory --redis redis://127.0.0.1:6379 --sparse --timers 10000\n  \
    mtimer bench memory --redis redis://127.0.0.1:6379 --timers 10000000 --json > growth.json\n  \
    tests/bench/plot growth.json > growth.svg")]
pub(crate) struct MemoryBench {
    /// Timers pending at the end
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=50_000_000))]
    pub(super) timers: u64,
    /// Over how long their due times are spread
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = span, allow_hyphen_values = true)]
    pub(super) over: Duration,
    /// Timers that share their slot with no other: spread over 3,000 days (10,000 timers of 64
    /// partitions, say)
    #[arg(long, conflicts_with = "over")]
    pub(super) sparse: bool,
    /// So many of a hundred timers have a key, order-0, order-1, ...: it is stored with the timer,
    /// and once more to find the timer by it
    #[arg(long, value_name = "PCT", default_value_t = 0, value_parser = percent, allow_negative_numbers = true)]
    pub(super) keyed: u8,
    /// Timers by which cost is measured at each step
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(super) probe: u64,
    /// How long before they are due the last of those that fire should have been scheduled
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = span, allow_hyphen_values = true)]
    pub(super) ahead: Duration,
    /// Kill the broker instead of stopping it, before it is started again
    #[arg(long)]
    pub(super) crash: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

/// What a broker costs that has nothing to do
///
/// 64 partitions, one client that is connected, no timer: processor time of broker and Redis, and
/// commands that Redis was sent (those of the measurement are not counted).
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bench idle --redis redis://127.0.0.1:6379\n  mtimer bench idle --for 5m"
)]
pub(crate) struct IdleBench {
    /// How long to look
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = span, allow_hyphen_values = true)]
    pub(super) over: Duration,
    /// How long to wait before that, until what a start brings with it is over
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = span, allow_hyphen_values = true)]
    pub(super) calm: Duration,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How long a schedule takes that nothing travels with, beside a bare round trip to Redis
///
/// One call under way at a time: the schedules; then as many PINGs to Redis on a connection of
/// their own, which processor time does not include. schedule_p50_ms, ping_p50_ms (on Redis), and
/// over_ping_ms: the difference of their medians.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bench single\n  mtimer bench single --redis redis://127.0.0.1:6379"
)]
pub(crate) struct SingleBench {
    /// Calls of a round
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(super) calls: u64,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How many timers a second many clients schedule that wait for each answer
///
/// So many --clients schedule --timers timers, each client one at a time, and wait for each answer:
/// the load of a web service whose requests make timers. They are tasks that share one connection.
/// With --rate they schedule so many a second together, each client at times of its own, from which
/// the time of its answer counts; without, as fast as they are answered (the mean time of an answer
/// is --clients over the rate then). answer_p50_ms, answer_p99_ms, answer_max_ms: from the call
/// until it is stored. Each round begins on an empty store (of one's own), and asks it at the end
/// whether it has them all.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bench clients --redis redis://127.0.0.1:6379\n  \
    mtimer bench clients --rate 25000 --redis redis://127.0.0.1:6379   the time of an answer\n  \
    mtimer bench clients --clients 20 --keyed 0")]
pub(crate) struct ClientsBench {
    /// Clients
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = value_parser!(u64).range(1..=100_000))]
    pub(super) clients: u64,
    /// Timers a second, of all of them [default: as fast as they are answered]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(super) rate: Option<u64>,
    /// Timers of a round, of all of them
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u64).range(1..=50_000_000))]
    pub(super) timers: u64,
    /// So many of a hundred timers have a key, order-0, order-1, ...
    #[arg(long, value_name = "PCT", default_value_t = 100, value_parser = percent, allow_negative_numbers = true)]
    pub(super) keyed: u8,
    #[command(flatten)]
    pub(super) common: Common,
}

/// What all measurements take.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Rounds that count [default: 5; clients, lateness, lifecycle and memory: 3; idle: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Rounds before that, which do not count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(0..=100))]
    warmup: u32,
    /// Bytes of a payload: 8 (the timer's number) to 65,536
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = payload, allow_negative_numbers = true)]
    pub(super) payload: usize,
    /// Put the broker on this Redis (or Redis Cluster: name some of its masters); its keys are
    /// removed afterwards
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = address, help_heading = "Store")]
    pub(super) redis: Vec<String>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// Give Redis the recommended list-pack settings meanwhile: hash-max-listpack-entries 512,
    /// -value 1024, zset-max-listpack-entries 512
    #[arg(long, requires = "redis", help_heading = "Store")]
    pub(super) tune_redis: bool,
    /// Make the temporary folder of the embedded store in here [default: the system's]
    #[arg(long, value_name = "DIR", conflicts_with = "redis", help_heading = "Store")]
    pub(super) dir: Option<PathBuf>,
    /// What an answered schedule means [default: embedded-sync, or redis]
    #[arg(long, value_parser = one_of::<Durability>(), value_name = "LEVEL", help_heading = "Store")]
    pub(super) durability: Option<Durability>,
    /// Partitions [default: the store's; idle: 64]
    #[arg(long, value_name = "N", help_heading = "Store")]
    pub(super) partitions: Option<u16>,
    /// Measure a running cluster instead of a broker of one's own; --redis then only says where its
    /// Redis is
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with_all = ["dir", "durability", "partitions", "flags"])]
    #[arg(help_heading = "Connection")]
    pub(super) broker: Vec<String>,
    /// Processes of that cluster's brokers, if they run on this machine: their processor time is
    /// reported then
    #[arg(long, value_name = "PID", value_delimiter = ',', requires = "broker", help_heading = "Connection")]
    pub(super) broker_pid: Vec<u32>,
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) connect_tls: ConnectTlsArgs,
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Flags for the broker of one's own: see mtimer broker --help
    #[arg(last = true, value_name = "FLAG")]
    pub(super) flags: Vec<String>,
}

impl Common {
    /// Rounds that do not count, and those that do.
    pub(super) fn rounds(&self, default: u32) -> (u32, u32) {
        (self.warmup, self.rounds.unwrap_or(default))
    }
}

/// Bytes that hold a timer's number, and that a timer may have.
fn payload(text: &str) -> Result<usize, String> {
    let (least, most) = (size_of::<u64>(), MAX_PAYLOAD_BYTES);
    let bytes: i64 =
        text.parse().map_err(|_| format!("{text:?} is not a number of bytes: give {least} to {most}"))?;
    let within = usize::try_from(bytes).ok().filter(|bytes| (least..=most).contains(bytes));
    within.ok_or_else(|| format!("a payload of {bytes} bytes is outside the limits: give {least} to {most}"))
}
