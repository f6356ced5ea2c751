//! `mtimer bench`: measurements that check themselves.
//!
//! Invariant: only timers count that were delivered exactly once and not early, and of which
//! nothing is left in the store; a run that is not exact ends with an exit code of its own. Warm-up
//! rounds are not counted; the result is a median, with its spread. Broker and client are processes
//! of their own, so that each one's processor time can be told.
//! Not in here: comparisons with other programs (`tests/bench/peers`).

mod args;
mod bed;
mod clients;
mod edits;
mod growth;
mod idle;
mod lifecycle;
mod made;
mod meter;
mod mix;
mod own;
mod report;
mod schedule;
mod single;
mod steady;
mod volley;

use clap::Subcommand;

use self::args::Common;
use self::bed::Bed;
use self::mix::Mix;
use self::report::{BenchReport, Round};
use super::exit::{Exit, Failure};
use super::output::{Output, note};

/// Measures how fast timers are scheduled, how fast they fire, how late, and what they cost
///
/// Every measurement starts a broker of its own, a child process on an embedded store in a
/// temporary folder. --redis puts that broker on a Redis, under a cluster name that nobody else
/// has; --broker measures a running cluster (name its Redis with --redis and its processes with
/// --broker-pid, and their processor time is reported, too). What was made is removed at the end,
/// also after an error or a signal; in a running cluster timers are cancelled one by one, and if it
/// cannot be reached then, the message says how many may be left. A second signal ends at once and
/// removes nothing. Flags after -- are the broker's: -- --memory 1GiB --preload 2s.
///
/// Timers are plain by default: no key, at least once, handlers that succeed, 64 bytes. --keyed,
/// --at-most-once and --fail change that for so many percent of the timers, the same ones in every
/// run; --payload changes the bytes of all of them. The end of this help says what each mix
/// measures.
///
/// Rounds are repeated; the result is the median, with the lowest and the highest (lateness_ms.max:
/// the highest). With --json: bench, store, timers (in a round), rate_per_s,
/// lateness_ms{p50,p99,p999,max}, cpu_us_per_timer{client, broker, redis}, mix_percent, lost,
/// early, duplicates, and more; of timers that have fired how many were keyed, at_most_once, and
/// failed_once, if the mix has any. Exit code 10 if anything was lost, early, duplicated, or left
/// behind.
///
/// Everything shares one machine: a rate is that of client, broker and store together.
#[derive(Subcommand, Debug)]
#[command(after_long_help = mix::HELP)]
pub(crate) enum Bench {
    Schedule(args::ScheduleBench),
    Fire(args::FireBench),
    Lifecycle(args::LifecycleBench),
    Lateness(args::LatenessBench),
    Cancel(args::CancelBench),
    Reschedule(args::RescheduleBench),
    Burst(args::BurstBench),
    Memory(args::MemoryBench),
    Idle(args::IdleBench),
    Single(args::SingleBench),
    Clients(args::ClientsBench),
    /// What the others start: a broker that ends with the process that started it
    #[command(hide = true)]
    Broker(Box<super::broker::BrokerCommand>),
}

impl Bench {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        if let Self::Broker(broker) = self {
            own::end_with_parent()?;
            return broker.run(out).await;
        }
        let Some(common) = self.common() else { return Ok(()) };
        let mix = self.mix();
        mix.check()?;
        let mut bed = Bed::new(common, self.partitions(), mix).await?;
        let result = self.measure(&mut bed, out).await;
        let interrupted = bed.stop.is_asked();
        let ended = bed.end().await;
        let result = match result {
            // A measurement that was cut short may have failed because of that.
            _ if interrupted => Err(Failure::silent(Exit::Interrupted)),
            result => result,
        };
        if let (Err(_), Err(failure)) = (&result, &ended) {
            note(&failure.message);
        }
        let exact = result?;
        ended?;
        if exact { Ok(()) } else { Err(Failure::silent(Exit::Inexact)) }
    }

    fn common(&self) -> Option<&Common> {
        Some(match self {
            Self::Schedule(bench) => &bench.common,
            Self::Fire(bench) => &bench.common,
            Self::Lifecycle(bench) => &bench.common,
            Self::Lateness(bench) => &bench.common,
            Self::Cancel(bench) => &bench.edits.common,
            Self::Reschedule(bench) => &bench.edits.common,
            Self::Burst(bench) => &bench.common,
            Self::Memory(bench) => &bench.common,
            Self::Idle(bench) => &bench.common,
            Self::Single(bench) => &bench.common,
            Self::Clients(bench) => &bench.common,
            Self::Broker(_) => return None,
        })
    }

    /// The traits of its timers; plain, where there is no choice.
    fn mix(&self) -> Mix {
        match self {
            Self::Schedule(bench) => bench.mix,
            Self::Fire(bench) => bench.mix,
            Self::Lifecycle(bench) => bench.mix,
            Self::Lateness(bench) => bench.mix,
            Self::Cancel(bench) => bench.edits.mix,
            Self::Reschedule(bench) => bench.edits.mix,
            Self::Memory(bench) => Mix { keyed: bench.keyed, ..Mix::default() },
            Self::Clients(bench) => Mix { keyed: bench.keyed, ..Mix::default() },
            Self::Burst(_) | Self::Idle(_) | Self::Single(_) | Self::Broker(_) => Mix::default(),
        }
    }

    /// Partitions of its own store, where the measurement has an opinion.
    fn partitions(&self) -> Option<u16> {
        matches!(self, Self::Idle(_)).then_some(idle::PARTITIONS)
    }

    /// Whether everything was exact.
    async fn measure(&self, bed: &mut Bed, out: Output) -> Result<bool, Failure> {
        match self {
            Self::Schedule(bench) => {
                let round = async |bed: &mut Bed, n| schedule::round(bed, bench, n).await;
                rounds(bed, out, "schedule", bench.timers, bench.common.rounds(5), round).await
            }
            Self::Fire(bench) => {
                let volley = bench.volley();
                let round = async |bed: &mut Bed, n| volley::round(bed, &volley, n).await;
                rounds(bed, out, "fire", bench.timers, bench.common.rounds(5), round).await
            }
            Self::Burst(bench) => {
                let volley = bench.volley();
                let round = async |bed: &mut Bed, n| volley::round(bed, &volley, n).await;
                rounds(bed, out, "burst", bench.timers, bench.common.rounds(5), round).await
            }
            Self::Single(bench) => {
                let round = async |bed: &mut Bed, n| single::round(bed, bench, n).await;
                rounds(bed, out, "single", bench.calls, bench.common.rounds(5), round).await
            }
            Self::Clients(bench) => {
                let round = async |bed: &mut Bed, n| clients::round(bed, bench, n).await;
                rounds(bed, out, "clients", bench.timers, bench.common.rounds(3), round).await
            }
            Self::Lateness(bench) => {
                let mut exact = true;
                for rate in &bench.rate {
                    let plan = bench.plan(*rate);
                    let round = async |bed: &mut Bed, n| steady::round(bed, &plan, n).await;
                    let rounds = rounds(bed, out, "lateness", plan.timers(), bench.common.rounds(3), round);
                    exact &= rounds.await?;
                }
                Ok(exact)
            }
            Self::Cancel(args::CancelBench { edits }) => {
                let round = async |bed: &mut Bed, n| edits::cancel(bed, edits, n).await;
                rounds(bed, out, "cancel", edits.timers, edits.common.rounds(5), round).await
            }
            Self::Reschedule(args::RescheduleBench { edits }) => {
                let round = async |bed: &mut Bed, n| edits::reschedule(bed, edits, n).await;
                rounds(bed, out, "reschedule", edits.timers, edits.common.rounds(5), round).await
            }
            Self::Lifecycle(bench) => lifecycle::run(bed, out, bench).await,
            Self::Memory(bench) => growth::run(bed, out, bench).await,
            Self::Idle(bench) => idle::run(bed, out, bench).await,
            Self::Broker(_) => Ok(true),
        }
    }
}

/// Warm-up and rounds, then the report; whether everything was exact.
async fn rounds(
    bed: &mut Bed,
    out: Output,
    name: &'static str,
    timers: u64,
    (warmup, rounds): (u32, u32),
    round: impl AsyncFn(&mut Bed, u32) -> Result<Round, Failure>,
) -> Result<bool, Failure> {
    let mut report = BenchReport::new(name, bed, timers);
    for n in 0..warmup + rounds {
        let one = round(bed, n).await?;
        if bed.stop.is_asked() {
            // Cut short.
            break;
        }
        let counts = n >= warmup;
        let number = if counts { format!("round {}", n + 1 - warmup) } else { "warm-up".to_owned() };
        note(&format!("{name}: {number}: {}", one.line()));
        if counts {
            report.add(one);
        }
    }
    report.show(out)?;
    Ok(report.is_exact())
}
