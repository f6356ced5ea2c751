//! Load for demos and measurements: schedules many timers, as fast as they are taken.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use indicatif::ProgressBar;
use mtimer_client::{Client, Destination, Schedule, ScheduleError, Scheduled, TimerId};

use super::exit::Failure;
use super::signals::StopSignal;

/// Timers of a call, and calls under way.
const CHUNK: u64 = 500;
const IN_FLIGHT: usize = 16;
/// Timers by which the store's speed is learned.
const PROBE: u64 = 1_000;

/// Schedules timers 0 to n-1 in this order; how many are stored, and their numbers and ids for
/// `keep`. Sends no more after the first that is not, or when told to stop; waits for those that
/// were sent.
pub(crate) async fn schedule_all(
    client: &Client,
    timers: u64,
    make: impl Fn(u64) -> Schedule,
    bar: &ProgressBar,
    stop: &StopSignal,
    mut keep: impl FnMut(u64, TimerId),
) -> Result<u64, Failure> {
    let (mut stored, mut failed) = (0, None);
    let mut running = FuturesUnordered::new();
    let mut next = 0;
    loop {
        while next < timers && running.len() < IN_FLIGHT && failed.is_none() && !stop.is_asked() {
            let end = (next + CHUNK).min(timers);
            let (begin, call) = (next, client.schedule_all((next..end).map(&make).collect()));
            running.push(async move { (begin, call.await) });
            next = end;
        }
        let Some((begin, results)) = running.next().await else {
            return failed.map_or(Ok(stored), |error: ScheduleError| Err(error.into()));
        };
        let results: Vec<Result<Scheduled, ScheduleError>> = results;
        bar.inc(results.len() as u64);
        for (n, result) in (begin..).zip(results) {
            match result {
                Ok(scheduled) => {
                    keep(n, scheduled.id);
                    stored += 1;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
    }
}

/// Cancels timers; how many of them were there.
pub(crate) async fn cancel_all(
    client: &Client,
    ids: impl IntoIterator<Item = TimerId>,
) -> Result<u64, Failure> {
    let mut answers = stream::iter(ids).map(|id| client.cancel(id)).buffer_unordered(2_000);
    let mut cancelled = 0;
    while let Some(answer) = answers.next().await {
        cancelled += u64::from(matches!(answer?, mtimer_client::Cancelled::Cancelled(_)));
    }
    Ok(cancelled)
}

/// How long it will take to schedule so many timers, with something to spare: from a few that are
/// scheduled for much later and cancelled again, each of them as `dress` makes it. Warms everything
/// up, too.
pub(crate) async fn estimate(
    client: &Client,
    dest: &Destination,
    timers: u64,
    dress: impl Fn(u64, Schedule) -> Schedule,
    stop: &StopSignal,
) -> Result<Duration, Failure> {
    let probe = PROBE.min(timers);
    let later = Duration::from_secs(3_600);
    let make = |n| dress(n, Schedule::after(dest.clone(), later));
    let began = Instant::now();
    let mut ids = Vec::new();
    schedule_all(client, probe, make, &ProgressBar::hidden(), stop, |_, id| ids.push(id)).await?;
    let took = began.elapsed();
    cancel_all(client, ids).await?;
    let all = took.mul_f64(timers as f64 / probe.max(1) as f64);
    Ok(Duration::from_millis(300) + all.mul_f64(1.5))
}
