//! How fast timers are scheduled.

use std::time::{Duration, Instant};

use mtimer_client::{Destination, TimerId};

use super::args;
use super::bed::Bed;
use super::meter::Cpu;
use super::report::Round;
use crate::exit::Failure;
use crate::{load, progress};

/// Nothing fires meanwhile.
pub(super) const AHEAD: Duration = Duration::from_secs(3_600);
/// Timers that are scheduled before it counts: connections, scripts and memory are there then.
const FIRST: u64 = 10_000;

/// Schedules so many timers and asks the store whether it has them.
pub(super) async fn round(bed: &mut Bed, bench: &args::ScheduleBench, n: u32) -> Result<Round, Failure> {
    bed.renew().await?;
    let dest = bed.dest(&format!("round-{n}"))?;
    let (mark, first) = (bed.mark(), FIRST.min(bench.timers));
    let before = fill(bed, &dest, 0..first, bench.over, false).await?;
    let filled = fill(bed, &dest, first..first + bench.timers, bench.over, false).await?;
    let mut round = Round {
        rate_per_s: filled.rate_per_s(),
        cpu_us_per_timer: filled.cpu.per(filled.scheduled),
        lost: before.lost + filled.lost,
        ..Round::default()
    };
    round.more.extend(filled.keys.map(|keys| ("keyed", keys as f64)));
    if !bed.is_own() {
        let there = bed.cancel_since(mark).await?;
        round.lost += (before.scheduled + filled.scheduled).saturating_sub(there);
    }
    Ok(round)
}

/// The result of scheduling many timers.
pub(super) struct Filled {
    pub(super) scheduled: u64,
    pub(super) took: Duration,
    /// Altogether.
    pub(super) cpu: Cpu,
    /// Answered as stored, but not there. In a cluster that others use, too, only cancelling tells.
    pub(super) lost: u64,
    /// More keys in the store than before, if timers have keys and the store is its own.
    pub(super) keys: Option<u64>,
    /// Their numbers and ids, if they were to be kept.
    pub(super) stored: Vec<(u64, TimerId)>,
}

impl Filled {
    /// Ids of those that were to be kept.
    pub(super) fn ids(&self) -> impl Iterator<Item = TimerId> {
        self.stored.iter().map(|(_, id)| *id)
    }

    pub(super) fn rate_per_s(&self) -> f64 {
        self.scheduled as f64 / self.took.as_secs_f64().max(1e-6)
    }
}

/// Where timer `n` is in a window, in ms: neighbours in the batch are not neighbours in time.
pub(super) fn scattered(n: u64, over: Duration) -> u64 {
    let window = u64::try_from(over.as_millis()).unwrap_or(u64::MAX).max(1);
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % window
}

/// Schedules timers with these numbers, due over `over` from an hour on.
pub(super) async fn fill(
    bed: &Bed,
    dest: &Destination,
    numbers: std::ops::Range<u64>,
    over: Duration,
    keep: bool,
) -> Result<Filled, Failure> {
    let make = |n: u64| {
        let n = numbers.start + n;
        let after = AHEAD + Duration::from_millis(scattered(n, over));
        bed.timer(n, mtimer_client::Schedule::after(dest.clone(), after))
    };
    let timers = numbers.end - numbers.start;
    let before = bed.census().await?;
    let mut stored = Vec::new();
    let bar = progress::bar("scheduling", timers);
    let (reading, began) = (bed.meter.read().await?, Instant::now());
    let keep = |n, id| {
        if keep {
            stored.push((numbers.start + n, id));
        }
    };
    let scheduled = load::schedule_all(&bed.client, timers, make, &bar, &bed.stop, keep).await?;
    let took = began.elapsed();
    let cpu = bed.meter.read().await?.since(&reading);
    bar.finish_and_clear();
    // In a cluster that others use, too, their timers come and go meanwhile.
    let now = if bed.is_own() { Some(bed.census().await?) } else { None };
    let there = now.map_or(scheduled, |now| now.timers.saturating_sub(before.timers));
    let keys = now.filter(|_| bed.mix.keyed > 0).map(|now| now.keys.saturating_sub(before.keys));
    Ok(Filled { scheduled, took, cpu, lost: scheduled.saturating_sub(there), keys, stored })
}
