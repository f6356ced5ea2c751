//! How fast timers fire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_client::{Destination, Outcome, Registration, Schedule};

use super::Bed;
use super::report::Round;
use crate::cli::exit::Failure;
use crate::cli::moment::millis;
use crate::cli::tally::{Tally, payload};
use crate::cli::{load, progress};

/// Callbacks that may be under way.
const CONCURRENCY: u32 = 10_000;
/// How long nothing may happen before the rest is taken for lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks for what has changed.
const LOOK: Duration = Duration::from_millis(2);

/// Lets so many timers fire at the same moment.
pub(super) async fn round(bed: &Bed, dest: &Destination, timers: u64) -> Result<Round, Failure> {
    let client = &bed.client;
    let lead = load::estimate(client, &bed.dest("probe")?, timers, bed.payload, &bed.stop).await?;
    let (tally, registration) = listen(bed, dest, timers)?;
    let settled_before = client.stats().settled;
    let due = client.now() + millis(lead);
    let make = |n| Schedule::at(dest.clone(), due).payload(payload(n, bed.payload));
    let bar = progress::bar("scheduling", timers);
    let scheduled = load::schedule_all(client, timers, make, &bar, &bed.stop, |_| {}).await?;
    bar.finish_and_clear();
    // Also if scheduling took longer than was thought: then the rate comes out too low, never too high.
    let begin_us = due.as_ms() * 1_000;
    if client.now() < due {
        tokio::time::sleep(Duration::from_millis(due.ms_since(client.now()))).await;
    }
    let bar = progress::bar("firing", scheduled);
    let (mut last, mut changed) = (0, Instant::now());
    let end_us = loop {
        let settled = client.stats().settled - settled_before;
        let now_us = bed.reference.now_us();
        if settled >= scheduled || changed.elapsed() > PATIENCE || bed.stop.is_asked() {
            break now_us;
        }
        if settled != last {
            (last, changed) = (settled, Instant::now());
            bar.set_position(settled);
        }
        tokio::time::sleep(LOOK).await;
    };
    bar.finish_and_clear();
    registration.stop().await;
    let seconds = end_us.saturating_sub(begin_us).max(1) as f64 / 1_000_000.0;
    Ok(Round::of(&tally, scheduled, tally.fired() as f64 / seconds))
}

/// Takes and counts the callbacks of a destination.
pub(super) fn listen(
    bed: &Bed,
    dest: &Destination,
    timers: u64,
) -> Result<(Arc<Tally>, Registration), Failure> {
    let tally = Arc::new(Tally::new(timers, bed.reference.clone()));
    let counted = Arc::clone(&tally);
    let registration = bed.client.register(dest.clone()).concurrency(CONCURRENCY).on(move |callback| {
        counted.entered(&callback);
        std::future::ready(Outcome::ok())
    })?;
    Ok((tally, registration))
}
