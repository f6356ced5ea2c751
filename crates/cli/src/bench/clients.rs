//! Many clients that each schedule one timer and wait for its answer before the next, as the
//! requests of a web service do.
//!
//! They are tasks that share one connection, and one thread. With a rate each client has its own
//! times at which it calls, fixed beforehand, and an answer's time counts from there: a client that
//! is kept waiting does not make the waiting look shorter. Without a rate the rate follows from the
//! time of an answer.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use mtimer_client::{Destination, Schedule};
use tokio::time::{Instant, sleep_until};

use super::args::ClientsBench;
use super::bed::Bed;
use super::report::Round;
use super::schedule::AHEAD;
use crate::exit::Failure;
use crate::progress;
use crate::tally::{histogram, quantile};

/// Schedules so many timers, and asks the store whether it has them all.
pub(super) async fn round(bed: &mut Bed, bench: &ClientsBench, n: u32) -> Result<Round, Failure> {
    bed.renew().await?;
    let (dest, mark, before) = (bed.dest(&format!("round-{n}"))?, bed.mark(), bed.census().await?);
    let answers = RefCell::new(histogram());
    let bar = progress::bar("scheduling", bench.timers);
    let (reading, began) = (bed.meter.read().await?, Instant::now());
    let clients = (0..bench.clients).map(|client| calls(bed, bench, &dest, client, began, &answers, &bar));
    try_join_all(clients).await?;
    let (took, ended) = (began.elapsed(), bed.meter.read().await?);
    bar.finish_and_clear();
    let answers = answers.into_inner();
    let calls = answers.len();
    let there = match bed.is_own() {
        true => bed.census().await?.timers.saturating_sub(before.timers),
        false => bed.cancel_since(mark).await?,
    };
    let mut round = Round {
        rate_per_s: calls as f64 / took.as_secs_f64(),
        cpu_us_per_timer: ended.since(&reading).per(calls),
        lost: calls.saturating_sub(there),
        ..Round::default()
    };
    let at = |q| quantile(&answers, q);
    round.more.extend([("answer_p50_ms", at(0.5)), ("answer_p99_ms", at(0.99)), ("answer_max_ms", at(1.0))]);
    round.more.extend(bench.rate.map(|rate| ("planned_rate_per_s", rate as f64)));
    round.add_commands(ended.commands_since(&reading, bed.meter.masters()), calls);
    Ok(round)
}

/// The calls of one client, one after the other.
async fn calls(
    bed: &Bed,
    bench: &ClientsBench,
    dest: &Destination,
    client: u64,
    began: Instant,
    answers: &RefCell<Histogram<u64>>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    for n in (client..bench.timers).step_by(bench.clients as usize) {
        let at = bench.rate.map(|rate| began + Duration::from_secs_f64(n as f64 / rate as f64));
        if let Some(at) = at {
            sleep_until(at).await;
        }
        if bed.stop.is_asked() {
            break;
        }
        let at = at.unwrap_or_else(Instant::now);
        bed.client.schedule(bed.timer(n, Schedule::after(dest.clone(), AHEAD))).await?;
        let us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        answers.borrow_mut().saturating_record(us);
        bar.inc(1);
    }
    Ok(())
}
