//! How long a schedule takes that nothing travels with.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redis::cmd;

use super::args;
use super::bed::Bed;
use super::report::Round;
use super::schedule::AHEAD;
use crate::exit::{Exit, Failure};
use crate::tally::{histogram, quantile};
use crate::{load, progress};

/// Schedules, then PINGs, one under way at a time. One after the other, so that processor time is
/// that of the schedules.
pub(super) async fn round(bed: &Bed, bench: &args::SingleBench, n: u32) -> Result<Round, Failure> {
    let dest = bed.dest(&format!("round-{n}"))?;
    let (mark, mut schedules) = (bed.mark(), histogram());
    let (mut ids, mut busy) = (Vec::new(), Duration::ZERO);
    let bar = progress::bar("scheduling one by one", bench.calls);
    let reading = bed.meter.read().await?;
    for n in 0..bench.calls {
        if bed.stop.is_asked() {
            break;
        }
        let schedule = bed.timer(n, mtimer_client::Schedule::after(dest.clone(), AHEAD));
        let began = Instant::now();
        ids.push(bed.client.schedule(schedule).await?.id);
        let took = began.elapsed();
        record(&mut schedules, took);
        busy += took;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (calls, cpu) = (ids.len() as u64, bed.meter.read().await?.since(&reading));
    let there = load::cancel_all(&bed.client, ids).await?;
    bed.forget(mark);
    let mut round = Round {
        rate_per_s: calls as f64 / busy.as_secs_f64().max(1e-6),
        cpu_us_per_timer: cpu.per(calls),
        lost: calls.saturating_sub(there),
        ..Round::default()
    };
    let p50 = quantile(&schedules, 0.5);
    round.more.extend([("schedule_p50_ms", p50), ("schedule_p99_ms", quantile(&schedules, 0.99))]);
    if let Some(pings) = pings(bed, bench.calls).await?.filter(|pings| !pings.is_empty()) {
        let ping = quantile(&pings, 0.5);
        round.more.extend([("ping_p50_ms", ping), ("ping_p99_ms", quantile(&pings, 0.99))]);
        round.more.insert("over_ping_ms", p50 - ping);
    }
    Ok(round)
}

/// How long as many PINGs to Redis take, if there is one.
async fn pings(bed: &Bed, calls: u64) -> Result<Option<Histogram<u64>>, Failure> {
    let Some(mut redis) = bed.meter.redis_connection() else { return Ok(None) };
    let mut pings = histogram();
    for _ in 0..calls {
        if bed.stop.is_asked() {
            break;
        }
        let began = Instant::now();
        let () = cmd("PING")
            .query_async(&mut redis)
            .await
            .map_err(|e| Failure::new(Exit::NotNow, format!("Redis does not answer: {e}")))?;
        record(&mut pings, began.elapsed());
    }
    Ok(Some(pings))
}

fn record(us: &mut Histogram<u64>, took: Duration) {
    us.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
}
