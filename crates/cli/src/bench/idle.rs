//! The cost of an idle broker.

use std::time::{Duration, Instant};

use super::args;
use super::bed::Bed;
use super::report::{BenchReport, Round};
use crate::exit::Failure;
use crate::output::{Output, note};
use crate::progress;

/// Partitions of its own store.
pub(super) const PARTITIONS: u16 = 64;
/// How often the bar moves.
const LOOK: Duration = Duration::from_millis(200);

/// Looks on for a while, as often as there are rounds.
pub(super) async fn run(bed: &mut Bed, out: Output, bench: &args::IdleBench) -> Result<bool, Failure> {
    let mut report = BenchReport::new("idle", bed, 0);
    // Waiting warms up; rounds of doing nothing do not differ.
    let (_, rounds) = bench.common.rounds(1);
    sit(bed, "becoming calm", bench.calm).await;
    for n in 1..=rounds {
        let round = look(bed, bench.over).await?;
        if bed.stop.is_asked() {
            break;
        }
        let told: Vec<String> = round.more.iter().map(|(name, v)| format!("{name} {v:.2}")).collect();
        note(&format!("idle: round {n}: {}", told.join(", ")));
        report.add(round);
    }
    report.show(out)?;
    Ok(report.is_exact())
}

/// Measures the cost of so much time without load.
pub(super) async fn look(bed: &Bed, span: Duration) -> Result<Round, Failure> {
    let (reading, began) = (bed.meter.read().await?, Instant::now());
    sit(bed, "watching", span).await;
    let ended = bed.meter.read().await?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = ended.since(&reading);
    let mut round = Round::default();
    let percent = |us: f64| us / seconds / 10_000.0;
    let used = [
        ("client_cpu_percent", cpu.client),
        ("broker_cpu_percent", cpu.broker),
        ("redis_cpu_percent", cpu.redis),
    ];
    round.more.extend(used.into_iter().filter_map(|(name, us)| Some((name, percent(us?)))));
    if let Some((commands, scripts)) = ended.commands_since(&reading, bed.meter.masters()) {
        round.more.insert("redis_commands_per_s", commands as f64 / seconds);
        round.more.insert("redis_scripts_per_s", scripts as f64 / seconds);
    }
    if let Some((now, _)) = bed.meter.broker_memory() {
        round.more.insert("broker_rss_bytes", now as f64);
    }
    Ok(round)
}

async fn sit(bed: &Bed, what: &str, span: Duration) {
    let began = Instant::now();
    let bar = progress::bar(what, span.as_secs());
    while began.elapsed() < span && !bed.stop.is_asked() {
        bar.set_position(began.elapsed().as_secs());
        tokio::time::sleep(LOOK.min(span - began.elapsed().min(span))).await;
    }
    bar.finish_and_clear();
}
