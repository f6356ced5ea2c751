//! The cost of pending timers, and how other costs change as they grow in number.

use std::time::{Duration, Instant};

use mtimer_client::Schedule;
use serde_json::{Value, json};

use super::args;
use super::bed::{Bed, StoreCounts};
use super::meter::Cpu;
use super::mix::Mix;
use super::report::{BenchReport, MedianRange, Round, ends, middle, object, rounded, spread};
use super::schedule::fill;
use super::volley::{Volley, fire};
use crate::exit::Failure;
use crate::output::{Output, grouped, note};
use crate::{load, progress};

/// The first step.
const FIRST: u64 = 1_000;
/// Over how long timers are spread that are to share their slot with no other.
const SPARSE: Duration = Duration::from_secs(3_000 * 86_400);
/// Within this the timers of a probe are due.
const WITHIN: Duration = Duration::from_secs(1);
/// How long Redis may take to update the memory of its connections after a load: it looks every
/// second.
const CALM: Duration = Duration::from_millis(1_500);
/// Timers that are due while the broker is away, and how long after they were scheduled.
const WAITING: u64 = 100;
const AWAY: Duration = Duration::from_secs(2);
/// How long the first of them may take.
const FIRE_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(1);

/// Fills, probes, restarts.
pub(super) async fn run(bed: &mut Bed, out: Output, bench: &args::MemoryBench) -> Result<bool, Failure> {
    let (warmup, rounds) = bench.common.rounds(3);
    let over = if bench.sparse { SPARSE } else { bench.over };
    let (mark, total) = (bed.mark(), Round::default());
    let mut growth = Growth { bench, over, rounds, probes: 0, total, rows: Vec::new(), last: Vec::new() };
    let weights = growth.weigh(bed).await?;
    for _ in 0..warmup {
        growth.probe(bed).await?;
    }
    let dest = bed.dest("pending")?;
    let mut pending = 0;
    for (n, target) in std::iter::once(0).chain(growth.steps()).enumerate() {
        if bed.stop.is_asked() {
            break;
        }
        let filled = fill(bed, &dest, pending..target, over, false).await?;
        growth.total.lost += filled.lost;
        pending += filled.scheduled;
        let mut row = growth.measure(bed).await?;
        if filled.scheduled > 0 {
            row["fill_per_s"] = json!(rounded(filled.rate_per_s()));
            row["fill_cpu_us"] = json!(filled.cpu.per(filled.scheduled));
        }
        row["pending"] = json!(pending);
        if let Some(bytes) = n.checked_sub(1).and_then(|n| weights.get(n)) {
            row["redis_bytes_per_timer"] = json!(rounded(*bytes));
            row["redis_memory_bytes"] = json!((bytes + bed.payload as f64) * pending as f64);
        }
        let rss = bed.meter.broker_memory();
        row["broker_rss_bytes"] = json!(rss.map(|(now, _)| now));
        row["broker_peak_bytes"] = json!(rss.map(|(_, peak)| peak));
        note(&line(&row, bed.mix));
        growth.rows.push(row);
    }
    if bed.is_own() && !bed.stop.is_asked() {
        growth.restart(bed, pending).await?;
    }
    if !bed.is_own() {
        growth.total.lost += pending.saturating_sub(bed.cancel_since(mark).await?);
    }
    growth.report(bed, pending).show_exact(out)
}

/// Memory of Redis, bytes.
async fn memory(bed: &Bed) -> Result<u64, Failure> {
    Ok(bed.meter.read().await?.redis.map_or(0, |redis| redis.memory))
}

/// A step for people.
fn line(row: &Value, mix: Mix) -> String {
    let number = |name: &str| row.pointer(name).and_then(Value::as_f64);
    let shown = |name: &str| number(name).map_or_else(|| "-".to_owned(), |v| format!("{v:.1}"));
    let whole = |name: &str| grouped(number(name).unwrap_or_default() as u64);
    format!(
        "memory: {} pending{mix}: schedule {} a second; a full cycle: client {}, broker {}, redis {} µs; redis {} bytes each; \
         broker {} MiB",
        whole("/pending"),
        whole("/schedule_per_s"),
        shown("/full_cycle_cpu_us/client"),
        shown("/full_cycle_cpu_us/broker"),
        shown("/full_cycle_cpu_us/redis"),
        shown("/redis_bytes_per_timer"),
        number("/broker_rss_bytes").map_or(0, |bytes| bytes as u64 / (1 << 20)),
    )
}

struct Growth<'a> {
    bench: &'a args::MemoryBench,
    over: Duration,
    rounds: u32,
    /// Made so far.
    probes: u32,
    total: Round,
    rows: Vec<Value>,
    /// The probes of the last row.
    last: Vec<ProbeResult>,
}

/// The result of a probe.
struct ProbeResult {
    schedule_per_s: f64,
    schedule: Cpu,
    fire_per_s: f64,
    full_cycle: Cpu,
    p99_ms: f64,
}

/// Medians of probes, with the lowest and the highest of each.
fn row(probes: &[ProbeResult]) -> Value {
    let over = |f: &dyn Fn(&ProbeResult) -> Option<f64>| spread(probes.iter().filter_map(f));
    let cpu = |f: fn(&ProbeResult) -> Cpu| -> [(&'static str, MedianRange); 3] {
        let of = |who: fn(Cpu) -> Option<f64>| over(&|p| who(f(p)));
        [("client", of(|c| c.client)), ("broker", of(|c| c.broker)), ("redis", of(|c| c.redis))]
    };
    let figures = [
        ("schedule_per_s", over(&|p| Some(p.schedule_per_s))),
        ("fire_per_s", over(&|p| Some(p.fire_per_s))),
        ("fire_p99_ms", over(&|p| Some(p.p99_ms))),
    ];
    let (mut row, mut spread) = (object(middle, &figures), object(ends, &figures));
    for (name, cpu) in
        [("schedule_cpu_us", cpu(|p| p.schedule)), ("full_cycle_cpu_us", cpu(|p| p.full_cycle))]
    {
        row[name] = object(middle, &cpu);
        spread[name] = object(ends, &cpu);
    }
    row["spread"] = spread;
    row
}

impl Growth<'_> {
    /// Numbers of pending timers.
    fn steps(&self) -> impl Iterator<Item = u64> + use<> {
        let timers = self.bench.timers;
        let powers = std::iter::successors(Some(FIRST), |n| Some(n * 10)).take_while(move |n| *n < timers);
        powers.chain([timers])
    }

    /// Bytes of Redis for each timer over its payload, at each step. On its own, before anything
    /// else: outcomes of settled and cancelled timers are remembered for a while and would weigh,
    /// too. Of a Redis that others use nobody can tell.
    async fn weigh(&mut self, bed: &mut Bed) -> Result<Vec<f64>, Failure> {
        let mut weights = Vec::new();
        if !bed.is_own() || bed.meter.masters() == 0 {
            return Ok(weights);
        }
        // Scripts, connections and partitions are there after a few.
        let few = fill(bed, &bed.dest("first")?, 0..WAITING, self.over, true).await?;
        load::cancel_all(&bed.client, few.ids()).await?;
        tokio::time::sleep(CALM).await;
        let empty = memory(bed).await?;
        let (dest, mut pending) = (bed.dest("weighed")?, 0);
        for target in self.steps() {
            let filled = fill(bed, &dest, pending..target, self.over, false).await?;
            self.total.lost += filled.lost;
            pending += filled.scheduled;
            tokio::time::sleep(CALM).await;
            let bytes =
                (memory(bed).await? as f64 - empty as f64) / pending.max(1) as f64 - bed.payload as f64;
            note(&format!(
                "memory: {} pending{} take {bytes:.1} bytes each over their payload",
                grouped(pending),
                bed.mix
            ));
            weights.push(bytes);
            if bed.stop.is_asked() {
                break;
            }
        }
        bed.renew().await?;
        Ok(weights)
    }

    /// Probes, and their results.
    async fn measure(&mut self, bed: &Bed) -> Result<Value, Failure> {
        let mut probes = Vec::new();
        for _ in 0..self.rounds {
            if !bed.stop.is_asked() {
                probes.push(self.probe(bed).await?);
            }
        }
        let row = row(&probes);
        self.last = probes;
        Ok(row)
    }

    /// Schedules some timers like the others, and cancels them; then some that fire.
    async fn probe(&mut self, bed: &Bed) -> Result<ProbeResult, Failure> {
        self.probes += 1;
        let (timers, number, mark) = (self.bench.probe, self.probes, bed.mark());
        let filled = fill(bed, &bed.dest(&format!("far-{number}"))?, 0..timers, self.over, true).await?;
        let (schedule_per_s, schedule) = (filled.rate_per_s(), filled.cpu.per(filled.scheduled));
        self.total.lost += filled.lost;
        let cancelled = load::cancel_all(&bed.client, filled.ids()).await?;
        self.total.lost += filled.scheduled.saturating_sub(cancelled);
        bed.forget(mark);
        let volley = Volley { timers, within: WITHIN, ahead: self.bench.ahead };
        let fired = fire(bed, &volley, &format!("near-{number}")).await?;
        self.total.add_counts(&fired.round);
        let p99_ms = fired.round.lateness_ms.map_or(0.0, |t| t.p99);
        let (fire_per_s, full_cycle) = (fired.round.rate_per_s, fired.full_cycle.per(timers));
        Ok(ProbeResult { schedule_per_s, schedule, fire_per_s, full_cycle, p99_ms })
    }

    /// How long it takes from the start of the broker's process until a handler is entered, with
    /// all of them pending.
    async fn restart(&mut self, bed: &mut Bed, pending: u64) -> Result<(), Failure> {
        let stored = bed.census().await?;
        let dest = bed.dest("restart")?;
        let due = bed.client.now() + AWAY.as_millis() as u64;
        let make = |n| Schedule::at(dest.clone(), due).payload(crate::tally::payload(n, bed.payload));
        let bar = progress::bar("restarting", WAITING);
        let waiting = load::schedule_all(&bed.client, WAITING, make, &bar, &bed.stop, |_, _| {}).await?;
        let began = Instant::now();
        bed.halt(self.bench.crash).await?;
        let stopped = began.elapsed();
        tokio::time::sleep(AWAY.saturating_sub(stopped)).await;
        let began = Instant::now();
        bed.resume().await?;
        let ready = began.elapsed();
        // Read first: overdue timers may be settled at once.
        let before = bed.client.stats().settled;
        let (tally, registration) = bed.listen(&dest, WAITING)?;
        let mut first = None;
        let settled = || bed.client.stats().settled - before;
        while settled() < waiting && began.elapsed() < FIRE_WITHIN && !bed.stop.is_asked() {
            if first.is_none() && tally.fired() > 0 {
                first = Some(began.elapsed());
            }
            tokio::time::sleep(LOOK).await;
        }
        let first = first.unwrap_or_else(|| began.elapsed());
        let settled = settled();
        bar.finish_and_clear();
        registration.stop().await;
        self.total.add_counts(&Round::of(&tally, waiting, settled, 0.0));
        self.total.left += bed.left(StoreCounts { timers: pending, ..stored }).await?;
        self.total.lost += pending.saturating_sub(bed.census().await?.timers);
        let ms = |span: Duration| span.as_secs_f64() * 1_000.0;
        let told = [("stop_ms", stopped), ("restart_ready_ms", ready), ("restart_ms", first)];
        self.total.more.extend(told.map(|(name, span)| (name, ms(span))));
        Ok(())
    }

    /// Its rounds are the probes at the last step; findings elsewhere are counted in the first of
    /// them.
    fn report(self, bed: &Bed, pending: u64) -> BenchReport {
        let mut report = BenchReport::new("memory", bed, pending);
        let mut total = self.total;
        let number = |row: &Value, name: &str| row.pointer(name).and_then(Value::as_f64);
        if let (Some(empty), Some(full)) = (self.rows.first(), self.rows.last()) {
            let of = |name: &str| number(full, name);
            let ratio = |name| Some(number(full, name)? / number(empty, name)?);
            let more = [
                ("schedule_rate_ratio", ratio("/schedule_per_s")),
                ("redis_bytes_per_timer", of("/redis_bytes_per_timer")),
                ("redis_memory_bytes", of("/redis_memory_bytes")),
                ("broker_rss_bytes", of("/broker_rss_bytes")),
            ];
            total.more.extend(more.into_iter().filter_map(|(name, v)| Some((name, v?))));
        }
        let cost = |row: &Value| {
            let of = |who: &str| number(row, &format!("/full_cycle_cpu_us/{who}"));
            Some(of("client")? + of("broker")? + of("redis").unwrap_or_default())
        };
        let costs: Vec<f64> = self.rows.iter().filter_map(cost).collect();
        let ends = costs.iter().copied().reduce(f64::min).zip(costs.iter().copied().reduce(f64::max));
        total.more.extend(ends.map(|(low, high)| ("full_cycle_cost_highest_over_lowest", high / low)));
        let mut probes = self.last.into_iter().map(|probe| (probe.schedule_per_s, probe.full_cycle));
        (total.rate_per_s, total.cpu_us_per_timer) = probes.next().unwrap_or_default();
        report.add(total);
        for (rate_per_s, cpu_us_per_timer) in probes {
            report.add(Round { rate_per_s, cpu_us_per_timer, ..Round::default() });
        }
        report.extra.insert("rows".to_owned(), Value::Array(self.rows));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_medians_and_what_they_are_medians_of() {
        let probe = |n: f64| {
            let cpu = Cpu { client: Some(n), ..Cpu::default() };
            ProbeResult {
                schedule_per_s: n * 10.0,
                schedule: cpu,
                fire_per_s: n,
                full_cycle: cpu.per(2),
                p99_ms: n,
            }
        };
        let row = row(&[probe(3.0), probe(1.0), probe(8.0)]);
        assert_eq!(row["schedule_per_s"], 30.0);
        assert_eq!(row["spread"]["schedule_per_s"], json!([10.0, 80.0]));
        assert_eq!(row["full_cycle_cpu_us"], json!({ "client": 1.5, "broker": null, "redis": null }));
        assert_eq!(row["spread"]["full_cycle_cpu_us"]["client"], json!([0.5, 4.0]));
    }
}
