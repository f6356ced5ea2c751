//! How fast timers are scheduled.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mtimer_client::{Destination, Schedule};

use super::Bed;
use super::report::Round;
use crate::cli::exit::Failure;
use crate::cli::tally::{histogram, payload};
use crate::cli::{load, progress};

/// Nothing fires meanwhile.
const AHEAD: Duration = Duration::from_secs(3_600);
/// Over how long the due times are spread, s.
const SPREAD_S: u64 = 600;
/// Schedules one after the other.
const LONE: u64 = 500;

/// Schedules so many timers and asks the store whether it has them.
pub(super) async fn round(bed: &Bed, dest: &Destination, timers: u64) -> Result<Round, Failure> {
    let client = &bed.client;
    let before = client.status().await?.pending;
    let make = |n: u64| {
        // Neighbours in the batch are not neighbours in time.
        let after = AHEAD + Duration::from_millis(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SPREAD_S * 1_000));
        Schedule::after(dest.clone(), after).payload(payload(n, bed.payload))
    };
    let bar = progress::bar("scheduling", timers);
    let began = Instant::now();
    let (mut ids, own) = (Vec::new(), bed.is_own());
    let keep = |id| {
        if !own {
            ids.push(id)
        }
    };
    let scheduled = load::schedule_all(client, timers, make, &bar, &bed.stop, keep).await?;
    let took = began.elapsed();
    bar.finish_and_clear();
    let stored = client.status().await?.pending.saturating_sub(before);
    load::cancel_all(client, ids).await?;
    Ok(Round {
        rate_per_s: scheduled as f64 / took.as_secs_f64(),
        lost: scheduled.saturating_sub(stored),
        ..Round::default()
    })
}

/// How long a schedule takes that nothing travels with, µs.
pub(super) async fn lone(bed: &Bed) -> Result<Histogram<u64>, Failure> {
    let dest = bed.dest("lone")?;
    let (mut us, mut ids) = (histogram(), Vec::new());
    for n in 0..LONE {
        if bed.stop.is_asked() {
            break;
        }
        let schedule = Schedule::after(dest.clone(), AHEAD).payload(payload(n, bed.payload));
        let began = Instant::now();
        ids.push(bed.client.schedule(schedule).await?.id);
        us.saturating_record(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    if !bed.is_own() {
        load::cancel_all(&bed.client, ids).await?;
    }
    Ok(us)
}
