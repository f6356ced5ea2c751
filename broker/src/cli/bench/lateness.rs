//! How late timers fire under a steady load.
//!
//! Invariant: open loop. Each timer has its own time to be sent, fixed beforehand; a broker that is slow does not slow the
//! load down, and so cannot make its own lateness look better.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mtimer_client::{Destination, Schedule, ScheduleError, Scheduled, Time};

use super::report::Round;
use super::{Bed, LatenessBench, fire};
use crate::cli::exit::Failure;
use crate::cli::moment::millis;
use crate::cli::progress;
use crate::cli::tally::payload;

/// How often timers are sent.
const BEAT: Duration = Duration::from_millis(10);
/// How long nothing may fire, once everything is due, before the rest is taken for lost.
const PATIENCE: Duration = Duration::from_secs(10);

impl LatenessBench {
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
pub(super) async fn round(bed: &Bed, dest: &Destination, bench: &LatenessBench) -> Result<Round, Failure> {
    let timers = bench.timers();
    let (tally, registration) = fire::listen(bed, dest, timers)?;
    let first = bed.client.now() + millis(bench.ahead) + 2 * millis(BEAT);
    let (scheduled, behind) = send(bed, dest, bench, first).await?;
    let last = first + bench.offset(timers);
    let bar = progress::bar("firing", scheduled);
    let (mut fired, mut changed) = (0, Instant::now());
    while fired < scheduled && changed.elapsed() < PATIENCE && !bed.stop.is_asked() {
        let now = tally.fired();
        if now != fired || bed.client.now() < last {
            (fired, changed) = (now, Instant::now());
        }
        bar.set_position(fired);
        tokio::time::sleep(BEAT).await;
    }
    bar.finish_and_clear();
    registration.stop().await;
    let seconds = tally.last_us().saturating_sub(first.as_ms() * 1_000).max(1) as f64 / 1_000_000.0;
    let rate = tally.fired() as f64 / seconds;
    Ok(Round { behind: Some(behind), ..Round::of(&tally, scheduled, rate) })
}

/// Sends every timer at its time; how many are stored, and how many of them could only be sent when they were all but
/// due.
async fn send(
    bed: &Bed,
    dest: &Destination,
    bench: &LatenessBench,
    first: Time,
) -> Result<(u64, u64), Failure> {
    let (timers, ahead) = (bench.timers(), millis(bench.ahead));
    let make = |n| Schedule::at(dest.clone(), first + bench.offset(n)).payload(payload(n, bed.payload));
    let bar = progress::bar("scheduling", timers);
    let mut beat = tokio::time::interval(BEAT);
    let mut running = FuturesUnordered::new();
    let (mut next, mut stored, mut behind) = (0, 0, 0);
    while next < timers || !running.is_empty() {
        tokio::select! {
            biased;
            _ = beat.tick(), if next < timers => {
                if bed.stop.is_asked() {
                    break;
                }
                let now = bed.client.now();
                let due = |n| first + bench.offset(n);
                let begin = next;
                while next < timers && due(next).as_ms() <= now.as_ms() + ahead {
                    behind += u64::from(due(next).ms_since(now) < ahead / 2);
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
                    stored += 1;
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok((stored, behind))
}
