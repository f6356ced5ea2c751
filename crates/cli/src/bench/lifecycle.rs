//! Everything at once, for long: schedule, fire, settle; and the highest rate at which that goes
//! well.
//!
//! Invariant: a rate that was looked for is reported only if it was borne in every round; if there
//! is none, that is an error.

use std::time::Duration;

use serde_json::{Value, json};

use super::args;
use super::bed::Bed;
use super::report::{BenchReport, Round, rounded};
use super::steady::Plan;
use super::{idle, steady};
use crate::exit::{Exit, Failure};
use crate::moment::span_shown;
use crate::output::{Output, note};

/// How long Redis is measured without load.
const BASELINE: Duration = Duration::from_secs(3);
/// Steps upwards at most, downwards, and between the last two rates.
const STEPS_UP: u32 = 10;
const STEPS_DOWN: u32 = 10;
const STEPS_BETWEEN: u32 = 3;
/// How often a rate is lowered at most that a step has borne and a round has not.
const LOWERED: u32 = 10;
/// How long a warm-up lasts at most.
const WARM_UP: Duration = Duration::from_secs(5);

/// The search, if no rate is given; then the rounds.
pub(super) async fn run(bed: &mut Bed, out: Output, bench: &args::LifecycleBench) -> Result<bool, Failure> {
    let (warmup, rounds) = bench.common.rounds(3);
    let baseline = idle::look(bed, BASELINE.min(bench.over)).await?;
    let start = bench.plan(bench.rate.unwrap_or(bench.from), WARM_UP.min(bench.over));
    for n in 0..warmup {
        let round = steady::run(bed, &start, &format!("warm-up-{n}")).await?;
        note(&format!("lifecycle: warm-up: {}", round.line()));
    }
    let idle_us_per_s = baseline.more.get("redis_cpu_percent").map(|percent| percent * 10_000.0);
    let mut search = Search { bench, idle_us_per_s, rounds, steps: Vec::new() };
    let mut report = match bench.rate {
        Some(rate) => search.rounds(bed, rate, false).await?,
        None => search.highest(bed).await?,
    };
    report.extra.insert("steps".to_owned(), Value::Array(search.steps));
    report.show(out)?;
    Ok(report.is_exact())
}

/// Whether a rate is borne: everything exact, in time, and the load could be made and did not pile
/// up.
fn is_borne(bench: &args::LifecycleBench, round: &Round) -> bool {
    let in_time = round.lateness_ms.is_some_and(|t| t.p99 <= bench.p99.as_secs_f64() * 1_000.0);
    let none = |name| round.more.get(name).is_none_or(|n| *n == 0.0);
    round.is_exact() && in_time && none("behind") && none("answered_late")
}

/// The rates known so far, and the next one to try.
#[derive(Debug, Default)]
struct Rates {
    /// The highest that was borne, and the lowest that was not.
    good: Option<u64>,
    bad: Option<u64>,
    /// Since both are known.
    between: u32,
    tried: u32,
}

/// The next step of the search for a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextRate {
    Try(u64),
    Highest(u64),
    /// None is borne, down to this.
    None(u64),
}

impl Rates {
    fn next(&self, from: u64) -> NextRate {
        match (self.good, self.bad) {
            (None, None) => NextRate::Try(from),
            (Some(good), None) if self.tried < STEPS_UP => NextRate::Try((good * 3 / 2).max(good + 1)),
            (None, Some(bad)) if self.tried < STEPS_DOWN && bad > 1 => NextRate::Try(bad / 2),
            (None, Some(bad)) => NextRate::None(bad),
            (Some(good), Some(bad)) if self.between < STEPS_BETWEEN && bad > good + 1 => {
                NextRate::Try(good.midpoint(bad))
            }
            (Some(good), _) => NextRate::Highest(good),
        }
    }

    fn tell(&mut self, rate: u64, borne: bool) {
        self.between += u32::from(self.good.is_some() && self.bad.is_some());
        self.tried += 1;
        *(if borne { &mut self.good } else { &mut self.bad }) = Some(rate);
    }
}

/// A tenth less, if that is still a rate.
fn lowered(rate: u64) -> Option<u64> {
    (rate > 1).then(|| (rate * 9 / 10).max(1))
}

/// The search for the highest rate.
struct Search<'a> {
    bench: &'a args::LifecycleBench,
    idle_us_per_s: Option<f64>,
    rounds: u32,
    steps: Vec<Value>,
}

impl Search<'_> {
    /// Half as much again until it is too much (or half until it is not), then between the last
    /// two; then rounds, at less if they do not bear the rate that the steps did.
    async fn highest(&mut self, bed: &Bed) -> Result<BenchReport, Failure> {
        let mut rates = Rates::default();
        let mut rate = loop {
            match rates.next(self.bench.from) {
                NextRate::Try(rate) => {
                    let borne = self.step(bed, rate).await?;
                    if bed.stop.is_asked() {
                        return Ok(self.report(bed, rate));
                    }
                    rates.tell(rate, borne);
                }
                NextRate::Highest(rate) => break rate,
                NextRate::None(rate) => return Err(self.none(rate)),
            }
        };
        for _ in 0..LOWERED {
            let report = self.rounds(bed, rate, true).await?;
            if bed.stop.is_asked() || report.len() == self.rounds as usize {
                return Ok(report);
            }
            let Some(less) = lowered(rate) else { break };
            rate = less;
        }
        Err(self.none(rate))
    }

    fn none(&self, rate: u64) -> Failure {
        let (p99, ahead) = (span_shown(self.bench.p99), span_shown(self.bench.ahead));
        let text = format!(
            "no rate is sustained, down to {rate} a second, with a lateness p99 of {p99} at most and timers scheduled \
             {ahead} ahead: give a higher --p99, a lower --from or more --ahead"
        );
        Failure::new(Exit::Failed, text)
    }

    fn report(&self, bed: &Bed, rate: u64) -> BenchReport {
        BenchReport::new("lifecycle", bed, self.bench.plan(rate, self.bench.over).timers())
    }

    /// The rounds at a rate; if all have to be borne, no more after the first that is not, which is
    /// a step then.
    async fn rounds(&mut self, bed: &Bed, rate: u64, all_borne: bool) -> Result<BenchReport, Failure> {
        let (bench, plan) = (self.bench, self.bench.plan(rate, self.bench.over));
        let mut report = self.report(bed, rate);
        for n in 1..=self.rounds {
            let mut round = steady::run(bed, &plan, &format!("rate-{rate}-round-{n}")).await?;
            if bed.stop.is_asked() {
                break;
            }
            let seconds = (bench.over + bench.ahead).as_secs_f64();
            if let (Some(redis), Some(idle)) = (round.cpu_us_per_timer.redis, self.idle_us_per_s) {
                let above = redis - idle * seconds / plan.timers() as f64;
                round.more.insert("redis_above_idle_us", above);
            }
            let borne = is_borne(bench, &round);
            round.more.insert("sustained", f64::from(u8::from(borne)));
            note(&format!("lifecycle: round {n}: {}", round.line()));
            if all_borne && !borne {
                note(&format!("lifecycle: {rate} a second is too much for {}", span_shown(bench.over)));
                self.tried(&plan, &round, borne);
                break;
            }
            report.add(round);
        }
        Ok(report)
    }

    async fn step(&mut self, bed: &Bed, rate: u64) -> Result<bool, Failure> {
        let plan = self.bench.plan(rate, self.bench.step);
        let round = steady::run(bed, &plan, &format!("step-{}", self.steps.len())).await?;
        let borne = is_borne(self.bench, &round);
        let verdict = if borne { "sustained" } else { "too much" };
        note(&format!("lifecycle: step at {rate} a second: {verdict}: {}", round.line()));
        self.tried(&plan, &round, borne);
        Ok(borne)
    }

    fn tried(&mut self, plan: &Plan, round: &Round, borne: bool) {
        self.steps.push(json!({
            "rate_per_s": plan.rate,
            "for_s": rounded(plan.over.as_secs_f64()),
            "fired_per_s": rounded(round.rate_per_s),
            "lateness_ms": round.lateness_ms,
            "answered_late": round.more.get("answered_late"),
            "inexact": round.lost + round.early + round.duplicates + round.left,
            "sustained": borne,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates that are tried from 100 on if all up to `most` are borne, and the result.
    fn search(most: u64) -> (Vec<u64>, NextRate) {
        let (mut rates, mut tried) = (Rates::default(), Vec::new());
        loop {
            match rates.next(100) {
                NextRate::Try(rate) => {
                    tried.push(rate);
                    rates.tell(rate, rate <= most);
                }
                next => return (tried, next),
            }
        }
    }

    #[test]
    fn the_highest_rate_is_found_from_above_and_from_below() {
        assert_eq!(search(180), (vec![100, 150, 225, 187, 168, 177], NextRate::Highest(177)));
        assert_eq!(search(30), (vec![100, 50, 25, 37, 31, 28], NextRate::Highest(28)));
        assert_eq!(search(0), (vec![100, 50, 25, 12, 6, 3, 1], NextRate::None(1)));
        let (tried, next) = search(u64::MAX);
        assert_eq!((tried.len(), next), (STEPS_UP as usize, NextRate::Highest(tried[tried.len() - 1])));
    }

    #[test]
    fn a_rate_can_be_lowered_until_there_is_none() {
        assert_eq!((lowered(100), lowered(2), lowered(1)), (Some(90), Some(1), None));
    }
}
