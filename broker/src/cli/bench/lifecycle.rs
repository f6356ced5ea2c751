//! Everything at once, for long: schedule, fire, settle; and the highest rate at which that goes well.

use std::time::Duration;

use serde_json::{Value, json};

use super::args;
use super::bed::Bed;
use super::report::{Report, Round, rounded};
use super::{idle, steady};
use crate::cli::exit::Failure;
use crate::cli::output::{Output, note};

/// For how long is looked at what Redis does without load.
const BASELINE: Duration = Duration::from_secs(3);
/// Steps upwards at most, and between the last two rates.
const STEPS_UP: u32 = 10;
const STEPS_BETWEEN: u32 = 3;
/// How long a warm-up lasts at most.
const WARM_UP: Duration = Duration::from_secs(5);

/// The search, if no rate is given; then the rounds.
pub(super) async fn run(bed: &mut Bed, out: Output, bench: &args::Lifecycle) -> Result<bool, Failure> {
    let (warmup, rounds) = bench.common.rounds(3);
    let baseline = idle::look(bed, BASELINE.min(bench.over)).await?;
    let start = bench.plan(bench.rate.unwrap_or(bench.from), WARM_UP.min(bench.over));
    for n in 0..warmup {
        let round = steady::run(bed, &start, &format!("warm-up-{n}")).await?;
        note(&format!("lifecycle: warm-up: {}", round.line()));
    }
    let mut search = Search { bench, steps: Vec::new() };
    let rate = match bench.rate {
        Some(rate) => rate,
        None => search.highest(bed).await?,
    };
    let plan = bench.plan(rate, bench.over);
    let mut report = Report::new("lifecycle", bed, plan.timers());
    let idle_us_per_s = baseline.more.get("redis_cpu_percent").map(|percent| percent * 10_000.0);
    for n in 1..=rounds {
        let mut round = steady::run(bed, &plan, &format!("round-{n}")).await?;
        if bed.stop.is_asked() {
            break;
        }
        let seconds = (bench.over + bench.ahead).as_secs_f64();
        if let (Some(redis), Some(idle)) = (round.cpu_us_per_timer.redis, idle_us_per_s) {
            let above = redis - idle * seconds / plan.timers() as f64;
            round.more.insert("redis_above_idle_us", above);
        }
        round.more.insert("sustained", f64::from(u8::from(is_borne(bench, &round))));
        note(&format!("lifecycle: round {n}: {}", round.line()));
        report.add(round);
    }
    report.extra.insert("steps".to_owned(), Value::Array(search.steps));
    report.show(out)?;
    Ok(report.is_exact())
}

/// Whether a rate is borne: everything exact, in time, and the load could be made.
fn is_borne(bench: &args::Lifecycle, round: &Round) -> bool {
    let in_time = round.lateness_ms.is_some_and(|t| t.p99 <= bench.p99.as_secs_f64() * 1_000.0);
    round.is_exact() && in_time && round.more.get("behind").is_none_or(|n| *n == 0.0)
}

/// The search for the highest rate.
struct Search<'a> {
    bench: &'a args::Lifecycle,
    steps: Vec<Value>,
}

impl Search<'_> {
    /// Half as much again until it is too much, then between the last two. The lowest that was tried if none is borne.
    async fn highest(&mut self, bed: &Bed) -> Result<u64, Failure> {
        let (mut good, mut bad) = (None, None);
        let mut rate = self.bench.from;
        for _ in 0..STEPS_UP {
            if !self.step(bed, rate).await? {
                bad = Some(rate);
                break;
            }
            good = Some(rate);
            rate = rate * 3 / 2;
        }
        let (Some(mut good), Some(mut bad)) = (good, bad) else { return Ok(good.unwrap_or(rate)) };
        for _ in 0..STEPS_BETWEEN {
            let between = good.midpoint(bad);
            if self.step(bed, between).await? {
                good = between;
            } else {
                bad = between;
            }
        }
        Ok(good)
    }

    async fn step(&mut self, bed: &Bed, rate: u64) -> Result<bool, Failure> {
        if bed.stop.is_asked() {
            return Ok(false);
        }
        let plan = self.bench.plan(rate, self.bench.step);
        let round = steady::run(bed, &plan, &format!("step-{}", self.steps.len())).await?;
        let borne = is_borne(self.bench, &round);
        let verdict = if borne { "sustained" } else { "too much" };
        note(&format!("lifecycle: step at {rate} a second: {verdict}: {}", round.line()));
        self.steps.push(json!({
            "rate_per_s": rate,
            "fired_per_s": rounded(round.rate_per_s),
            "lateness_ms": round.lateness_ms,
            "sustained": borne,
        }));
        Ok(borne)
    }
}
