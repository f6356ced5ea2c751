//! Many timers that are due at once, or nearly so: how fast they fire, and when the last does.

use std::time::{Duration, Instant};

use mtimer_client::{Schedule, Time};

use super::args::{BurstBench, FireBench};
use super::bed::Bed;
use super::meter::Cpu;
use super::report::Round;
use crate::exit::Failure;
use crate::moment::millis;
use crate::tally::CallbackTally;
use crate::{load, progress};

/// How long nothing may happen before the rest is taken for lost.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// How often it looks for changes.
const LOOK: Duration = Duration::from_millis(2);

/// Why its cost is not reported.
const OVERLAP: &str = "processor time and commands are left out where scheduling went on while timers were already loaded: \
    give --ahead more than --preload and what scheduling takes";

/// The timers to fire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volley {
    pub(super) timers: u64,
    /// Over how long the due times are spread; zero: all in the same millisecond.
    pub(super) within: Duration,
    /// How long before the first is due the last should have been scheduled.
    pub(super) ahead: Duration,
}

/// The result.
pub(super) struct Fired {
    pub(super) round: Round,
    /// Altogether, from before the first was scheduled.
    pub(super) full_cycle: Cpu,
}

/// One round.
pub(super) async fn round(bed: &Bed, volley: &Volley, n: u32) -> Result<Round, Failure> {
    Ok(fire(bed, volley, &format!("round-{n}")).await?.round)
}

/// Schedules, fires and settles the timers.
pub(super) async fn fire(bed: &Bed, volley: &Volley, part: &str) -> Result<Fired, Failure> {
    let (client, dest) = (&bed.client, bed.dest(part)?);
    let (mark, probe) = (bed.mark(), bed.dest("probe")?);
    let dress = |n, one| bed.timer(n, one);
    let lead = load::estimate(client, &probe, volley.timers, dress, &bed.stop).await?;
    bed.forget(mark);
    let (stored, parked) = (bed.census().await?, bed.parked().await?);
    let (tally, registration) = bed.listen(&dest, volley.timers)?;
    let before = client.stats().settled;
    let first = client.now() + millis(lead + volley.ahead);
    let within = u128::from(millis(volley.within));
    let due = |n: u64| first + (u128::from(n) * within / u128::from(volley.timers)) as u64;
    let make = |n| bed.timer(n, Schedule::at(dest.clone(), due(n)));
    let begun = bed.meter.read().await?;
    let bar = progress::bar("scheduling", volley.timers);
    let scheduled = load::schedule_all(client, volley.timers, make, &bar, &bed.stop, |_, _| {}).await?;
    bar.finish_and_clear();
    let loaded = bed.meter.read().await?;
    let late = client.now();
    let (late, overlap) = (late.ms_since(first), (late + millis(bed.preload())).ms_since(first));
    let end_us = watch(bed, &tally, first, scheduled, before).await;
    let ended = bed.meter.read().await?;
    let settled = client.stats().settled - before;
    registration.stop().await;
    let first_us = first.as_ms() * 1_000;
    let seconds = end_us.saturating_sub(first_us).max(1) as f64 / 1_000_000.0;
    let succeeded = settled.saturating_sub(tally.retried());
    let mut round = Round::of(&tally, scheduled, settled, succeeded as f64 / seconds);
    round.add_mix(&tally, bed.mix);
    round.left = bed.left(stored).await?;
    let entered = tally.last_us().saturating_sub(first_us) as f64 / 1_000.0;
    round.more.insert("last_entered_ms", entered);
    round.more.insert("parked", bed.parked().await?.saturating_sub(parked) as f64);
    if overlap == 0 {
        round.cpu_us_per_timer = ended.since(&loaded).per(scheduled);
        round.add_commands(ended.commands_since(&loaded, bed.meter.masters()), scheduled);
    } else {
        // Some of the work had been done when counting began.
        round.more.insert("scheduled_into_loading_ms", overlap as f64);
        round.notes.insert(OVERLAP);
    }
    if late > 0 {
        // The rate comes out too low then, never too high.
        round.more.insert("scheduled_too_late_ms", late as f64);
    }
    if round.is_exact() && succeeded == scheduled {
        bed.forget(mark);
    }
    Ok(Fired { round, full_cycle: ended.since(&begun) })
}

/// Waits until everything has fired and is settled, or nothing changes any more. Returns when that
/// was, µs.
async fn watch(bed: &Bed, tally: &CallbackTally, first: Time, scheduled: u64, before: u64) -> u64 {
    while bed.client.now() < first && !bed.stop.is_asked() {
        let wait = first.ms_since(bed.client.now()).clamp(1, 200);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
    let bar = progress::bar("firing", scheduled);
    let (mut last, mut changed) = ((0, 0), Instant::now());
    loop {
        let (settled, fired) = (bed.client.stats().settled - before, tally.fired());
        let now_us = bed.reference.now_us();
        let done = settled >= scheduled + tally.retried() && fired >= scheduled;
        if done || changed.elapsed() > IDLE_LIMIT || bed.stop.is_asked() {
            bar.finish_and_clear();
            return now_us;
        }
        if (settled, fired) != last {
            (last, changed) = ((settled, fired), Instant::now());
            bar.set_position(settled);
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl FireBench {
    pub(super) fn volley(&self) -> Volley {
        Volley { timers: self.timers, within: self.within, ahead: self.ahead }
    }
}

impl BurstBench {
    pub(super) fn volley(&self) -> Volley {
        Volley { timers: self.timers, within: Duration::ZERO, ahead: self.ahead }
    }
}
