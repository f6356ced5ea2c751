//! A steady load: how late timers fire under it, and whether it is borne.
//!
//! Invariant: open loop. Each timer has its own time to be sent, fixed beforehand; a broker that is slow does not slow the
//! load down, and so cannot make its own lateness look better.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mtimer_client::{Destination, Schedule, ScheduleError, Scheduled, Time};
use tokio::time::MissedTickBehavior;

use super::bed::Bed;
use super::report::Round;
use crate::cli::exit::Failure;
use crate::cli::moment::millis;
use crate::cli::progress;
use crate::cli::tally::{Tally, payload};

/// How often timers are sent.
const BEAT: Duration = Duration::from_millis(5);
/// How long nothing may happen, once everything is due, before the rest is taken for lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is sent when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Timers a second.
    pub(super) rate: u64,
    /// How long.
    pub(super) over: Duration,
    /// How long before its due time each is sent.
    pub(super) ahead: Duration,
}

impl Plan {
    /// Timers of a round.
    pub(super) fn timers(&self) -> u64 {
        let timers = u128::from(self.rate) * self.over.as_millis() / 1_000;
        u64::try_from(timers).unwrap_or(u64::MAX).max(1)
    }

    /// When timer `n` is due, ms after the first.
    fn offset(&self, n: u64) -> u64 {
        (u128::from(n) * 1_000 / u128::from(self.rate)) as u64
    }
}

/// One round.
pub(super) async fn round(bed: &Bed, plan: &Plan, n: u32) -> Result<Round, Failure> {
    run(bed, plan, &format!("rate-{}-round-{n}", plan.rate)).await
}

/// Schedules, fires and settles the timers of a plan.
pub(super) async fn run(bed: &Bed, plan: &Plan, part: &str) -> Result<Round, Failure> {
    let dest = bed.dest(part)?;
    let (stored, parked) = (bed.stored().await?, bed.parked().await?);
    let (tally, registration) = bed.listen(&dest, plan.timers())?;
    let before = bed.client.stats().settled;
    let reading = bed.meter.read().await?;
    let first = bed.client.now() + millis(plan.ahead) + 2 * millis(BEAT);
    let sent = send(bed, &dest, plan, first).await?;
    wait(bed, plan, &tally, first, &sent, before).await;
    let (ended, settled) = (bed.meter.read().await?, bed.client.stats().settled - before);
    registration.stop().await;
    let seconds = tally.last_us().saturating_sub(first.as_ms() * 1_000).max(1) as f64 / 1_000_000.0;
    let mut round = Round::of(&tally, sent.stored, settled, tally.fired() as f64 / seconds);
    round.left = bed.left(stored).await?;
    round.cpu_us_per_timer = ended.since(&reading).per(sent.stored);
    round.more.insert("planned_rate_per_s", plan.rate as f64);
    round.more.insert("behind", sent.behind as f64);
    round.more.insert("parked", bed.parked().await?.saturating_sub(parked) as f64);
    round.add_commands(ended.commands_since(&reading, bed.meter.masters()), sent.stored);
    Ok(round)
}

/// What was sent.
struct Sent {
    stored: u64,
    /// Timers that could only be sent when more than half of the time before they were due had gone: this machine is too
    /// slow for the load.
    behind: u64,
}

/// Sends every timer at its time.
async fn send(bed: &Bed, dest: &Destination, plan: &Plan, first: Time) -> Result<Sent, Failure> {
    let (timers, ahead) = (plan.timers(), millis(plan.ahead));
    let make = |n| Schedule::at(dest.clone(), first + plan.offset(n)).payload(payload(n, bed.payload));
    let bar = progress::bar("scheduling", timers);
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut running = FuturesUnordered::new();
    let (mut next, mut sent) = (0, Sent { stored: 0, behind: 0 });
    while next < timers || !running.is_empty() {
        tokio::select! {
            biased;
            _ = beat.tick(), if next < timers => {
                if bed.stop.is_asked() {
                    break;
                }
                let now = bed.client.now();
                let due = |n| first + plan.offset(n);
                let begin = next;
                while next < timers && due(next).as_ms() <= now.as_ms() + ahead {
                    sent.behind += u64::from(due(next).ms_since(now) < ahead / 2);
                    next += 1;
                }
                if next > begin {
                    running.push(bed.client.schedule_all((begin..next).map(make).collect()));
                }
            }
            Some(results) = running.next() => {
                let results: Vec<Result<Scheduled, ScheduleError>> = results;
                bar.inc(results.len() as u64);
                for result in results {
                    result?;
                    sent.stored += 1;
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(sent)
}

/// Waits until everything has fired and is settled, or nothing changes any more.
async fn wait(bed: &Bed, plan: &Plan, tally: &Tally, first: Time, sent: &Sent, before: u64) {
    let last = first + plan.offset(plan.timers());
    let bar = progress::bar("firing", sent.stored);
    let (mut seen, mut changed) = ((0, 0), Instant::now());
    loop {
        let now = (tally.fired(), bed.client.stats().settled - before);
        let done = now.0 >= sent.stored && now.1 >= sent.stored;
        if done || changed.elapsed() > PATIENCE || bed.stop.is_asked() {
            break;
        }
        if now != seen || bed.client.now() < last {
            (seen, changed) = (now, Instant::now());
        }
        bar.set_position(now.0);
        tokio::time::sleep(BEAT).await;
    }
    bar.finish_and_clear();
}
