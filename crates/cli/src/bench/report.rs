//! The result of a measurement: medians over rounds, and their spread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hdrhistogram::Histogram;
use mtimer_client::Info;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::bed::Bed;
use super::meter::Cpu;
use super::mix::Mix;
use crate::exit::Failure;
use crate::output::{Output, TextTable, Tone, counted, grouped};
use crate::tally::{CallbackTally, quantile};

/// One round.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Round {
    pub(super) rate_per_s: f64,
    pub(super) lateness_ms: Option<Tail>,
    pub(super) cpu_us_per_timer: Cpu,
    /// Stored timers that have not fired, or whose settlement was not stored.
    pub(super) lost: u64,
    pub(super) early: u64,
    pub(super) duplicates: u64,
    /// Settled timers that are in the store all the same.
    pub(super) left: u64,
    /// Figures that only this measurement has.
    #[serde(flatten)]
    pub(super) more: BTreeMap<&'static str, f64>,
    /// Notes for the reader.
    #[serde(skip)]
    pub(super) notes: BTreeSet<&'static str>,
}

/// A distribution's upper end, ms.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Tail {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl From<&Histogram<u64>> for Tail {
    fn from(us: &Histogram<u64>) -> Self {
        let at = |q| quantile(us, q);
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

impl Round {
    /// The result of a tally of so many timers; `settled` counts the settlements of failed
    /// attempts, too.
    pub(super) fn of(tally: &CallbackTally, scheduled: u64, settled: u64, rate_per_s: f64) -> Self {
        let succeeded = settled.saturating_sub(tally.retried());
        Self {
            rate_per_s,
            lateness_ms: Some(Tail::from(&tally.lateness())),
            lost: scheduled.saturating_sub(tally.fired().min(succeeded)),
            early: tally.early(),
            duplicates: tally.duplicates(),
            ..Self::default()
        }
    }

    /// Adds how many of the timers that have fired had a key, were at most once, and failed once,
    /// where the mix has any.
    pub(super) fn add_mix(&mut self, tally: &CallbackTally, mix: Mix) {
        let counts = [
            (mix.keyed, "keyed", tally.keyed()),
            (mix.at_most_once, "at_most_once", tally.at_most_once()),
            (mix.fail, "failed_once", tally.retried()),
        ];
        let wanted = counts.into_iter().filter(|(percent, ..)| *percent > 0);
        self.more.extend(wanted.map(|(_, name, n)| (name, n as f64)));
    }

    /// Adds how much Redis was asked, for 1,000 timers.
    pub(super) fn add_commands(&mut self, since: Option<(u64, u64)>, timers: u64) {
        let per_1000 = |n: u64| n as f64 * 1_000.0 / timers.max(1) as f64;
        if let Some((commands, scripts)) = since {
            self.more.insert("redis_commands_per_1000_timers", per_1000(commands));
            self.more.insert("redis_scripts_per_1000_timers", per_1000(scripts));
        }
    }

    /// Adds the errors that another round has found.
    pub(super) fn add_counts(&mut self, other: &Self) {
        self.lost += other.lost;
        self.early += other.early;
        self.duplicates += other.duplicates;
        self.left += other.left;
    }

    pub(super) fn is_exact(&self) -> bool {
        self.lost + self.early + self.duplicates + self.left == 0
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{} a second", grouped(self.rate_per_s as u64));
        if let Some(t) = &self.lateness_ms {
            line +=
                &format!(", late p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.2} ms", t.p50, t.p99, t.p999, t.max);
        }
        let cpu = &self.cpu_us_per_timer;
        for (who, us) in [("client", cpu.client), ("broker", cpu.broker), ("redis", cpu.redis)] {
            if let Some(us) = us {
                line += &format!(", {who} {us:.1} µs");
            }
        }
        if !self.is_exact() {
            let (lost, early, twice, left) = (self.lost, self.early, self.duplicates, self.left);
            line += &format!("; NOT EXACT: lost {lost}, early {early}, duplicates {twice}, left {left}");
        }
        line
    }
}

/// The whole measurement.
#[derive(Debug)]
pub(super) struct BenchReport {
    bench: &'static str,
    info: Arc<Info>,
    timers: u64,
    payload: usize,
    mix: Mix,
    rounds: Vec<Round>,
    /// Figures that belong to no single round.
    pub(super) extra: Map<String, Value>,
}

/// Median, lowest and highest.
pub(super) type MedianRange = Option<[f64; 3]>;

/// The median, of an even number the mean of the middle two; the lowest, and the highest.
pub(super) fn spread(values: impl IntoIterator<Item = f64>) -> MedianRange {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (*values.first()?, *values.last()?);
    let half = values.len() / 2;
    let median =
        if values.len().is_multiple_of(2) { values[half - 1].midpoint(values[half]) } else { values[half] };
    Some([median, low, high])
}

/// The median, in JSON.
pub(super) fn middle(v: MedianRange) -> Value {
    json!(v.map(|v| rounded(v[0])))
}

/// The lowest and the highest, in JSON.
pub(super) fn ends(v: MedianRange) -> Value {
    json!(v.map(|v| [rounded(v[1]), rounded(v[2])]))
}

/// Several of them by name.
pub(super) fn object(of: fn(MedianRange) -> Value, all: &[(&'static str, MedianRange)]) -> Value {
    all.iter().map(|(name, v)| ((*name).to_owned(), of(*v))).collect::<Map<_, _>>().into()
}

impl BenchReport {
    pub(super) fn new(bench: &'static str, bed: &Bed, timers: u64) -> Self {
        Self::of(bench, bed.info(), timers, bed.payload, bed.mix)
    }

    fn of(bench: &'static str, info: Arc<Info>, timers: u64, payload: usize, mix: Mix) -> Self {
        Self { bench, info, timers, payload, mix, rounds: Vec::new(), extra: Map::new() }
    }

    pub(super) fn add(&mut self, round: Round) {
        self.rounds.push(round);
    }

    /// Rounds that it has.
    pub(super) fn len(&self) -> usize {
        self.rounds.len()
    }

    fn sum(&self, of: impl Fn(&Round) -> u64) -> u64 {
        self.rounds.iter().map(of).sum()
    }

    pub(super) fn is_exact(&self) -> bool {
        self.rounds.iter().all(Round::is_exact)
    }

    fn over(&self, of: impl Fn(&Round) -> Option<f64>) -> MedianRange {
        spread(self.rounds.iter().filter_map(of))
    }

    fn tails(&self) -> [(&'static str, MedianRange); 4] {
        let tail = |of: &dyn Fn(&Tail) -> f64| self.over(|round| round.lateness_ms.as_ref().map(of));
        [
            ("p50", tail(&|t| t.p50)),
            ("p99", tail(&|t| t.p99)),
            ("p999", tail(&|t| t.p999)),
            ("max", tail(&|t| t.max)),
        ]
    }

    fn cpu(&self) -> [(&'static str, MedianRange); 3] {
        let cpu = |of: &dyn Fn(&Cpu) -> Option<f64>| self.over(|round| of(&round.cpu_us_per_timer));
        [("client", cpu(&|c| c.client)), ("broker", cpu(&|c| c.broker)), ("redis", cpu(&|c| c.redis))]
    }

    fn more(&self) -> Vec<(&'static str, MedianRange)> {
        let names: BTreeSet<&'static str> = self.rounds.iter().flat_map(|r| r.more.keys().copied()).collect();
        names.into_iter().map(|name| (name, self.over(|r| r.more.get(name).copied()))).collect()
    }

    fn notes(&self) -> BTreeSet<&'static str> {
        self.rounds.iter().flat_map(|round| round.notes.iter().copied()).collect()
    }

    fn json(&self) -> Value {
        let (rate, tails, cpu, more) =
            (self.over(|r| Some(r.rate_per_s)), self.tails(), self.cpu(), self.more());
        let mut all = json!({
            "bench": self.bench,
            "store": self.info.store,
            "durability": self.info.durability,
            "partitions": self.info.partitions,
            "timers": self.timers,
            "payload_bytes": self.payload,
            "mix_percent": self.mix,
            "rounds": self.rounds.len(),
            "rate_per_s": middle(rate),
            "rate_spread": ends(rate),
            "lateness_ms": null,
            "cpu_us_per_timer": object(middle, &cpu),
            "cpu_spread": object(ends, &cpu),
            "lost": self.sum(|r| r.lost),
            "early": self.sum(|r| r.early),
            "duplicates": self.sum(|r| r.duplicates),
            "left": self.sum(|r| r.left),
        });
        if let [_, _, _, (_, Some([_, _, worst]))] = tails {
            all["lateness_ms"] = object(middle, &tails);
            // The maximum is the worst of all rounds.
            all["lateness_ms"]["max"] = json!(rounded(worst));
            all["lateness_spread"] = object(ends, &tails);
        }
        for (name, values) in &more {
            all[*name] = middle(*values);
        }
        all["spread"] = object(ends, &more);
        for (name, value) in &self.extra {
            all[name] = value.clone();
        }
        let notes = self.notes();
        if !notes.is_empty() {
            all["notes"] = json!(notes);
        }
        all["each"] = json!(self.rounds);
        all
    }

    /// Shows it; whether everything was exact.
    pub(super) fn show_exact(&self, out: Output) -> Result<bool, Failure> {
        self.show(out)?;
        Ok(self.is_exact())
    }

    /// Shows it, if there is anything to show: it may have been cut short.
    pub(super) fn show(&self, out: Output) -> Result<(), Failure> {
        if self.rounds.is_empty() {
            return Ok(());
        }
        if out.json {
            return out.object(&self.json());
        }
        out.text(&format!(
            "{}: {} a round, {} bytes each{}; store: {} ({}), {}; {}",
            out.tone(Tone::Strong, self.bench),
            counted(self.timers, "timer"),
            self.payload,
            self.mix,
            self.info.store,
            self.info.durability,
            counted(self.info.partitions.into(), "partition"),
            counted(self.rounds.len() as u64, "round"),
        ))?;
        let mut table = TextTable::new(["", "median", "lowest", "highest"]);
        let mut row = |name: String, values: MedianRange| {
            if let Some(values) = values {
                let [median, low, high] = values.map(shown);
                table.row([name, median, low, high]);
            }
        };
        row("timers a second".to_owned(), self.over(|r| Some(r.rate_per_s)).filter(|v| v[2] > 0.0));
        self.tails().into_iter().for_each(|(name, v)| row(format!("late {name}, ms"), v));
        self.cpu().into_iter().for_each(|(name, v)| row(format!("{name}, µs a timer"), v));
        self.more().into_iter().for_each(|(name, v)| row(name.replace('_', " "), v));
        table.lines().try_for_each(|line| out.text(&line))?;
        self.notes().into_iter().try_for_each(|note| out.text(note))?;
        let (lost, early, twice) = (self.sum(|r| r.lost), self.sum(|r| r.early), self.sum(|r| r.duplicates));
        let exact = format!("lost {lost}, early {early}, duplicates {twice}, left {}", self.sum(|r| r.left));
        out.text(&out.tone(if self.is_exact() { Tone::Good } else { Tone::Bad }, &exact))
    }
}

/// To three digits after the point.
pub(super) fn rounded(v: f64) -> f64 {
    (v * 1_000.0).round() / 1_000.0
}

/// For people: large numbers whole.
fn shown(v: f64) -> String {
    if v.abs() >= 1_000.0 { grouped(v.round().abs() as u64) } else { format!("{v:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> BenchReport {
        let info = Info {
            broker: String::new(),
            session: 1,
            cluster: "c".into(),
            software: String::new(),
            store: "embedded".into(),
            durability: "embedded-sync".into(),
            partitions: 1,
            version: 1,
            heartbeat_ms: 1,
            max_frame: 1,
            max_batch: 1,
        };
        BenchReport::of("fire", Arc::new(info), 10, 64, Mix::default())
    }

    #[test]
    fn the_result_is_the_median_with_its_spread() {
        let mut report = report();
        let tail = |p50| Some(Tail { p50, p99: 2.0, p999: 3.0, max: 4.0 });
        for (rate_per_s, p50, lost) in [(30.0, 1.0, 0), (10.0, 3.0, 0), (20.0, 2.0, 1)] {
            let cpu_us_per_timer = Cpu { client: Some(p50), ..Cpu::default() };
            let more = [("last_entered_ms", p50)].into();
            let lateness_ms = tail(p50);
            report.add(Round { rate_per_s, lateness_ms, cpu_us_per_timer, lost, more, ..Round::default() });
        }
        let json = report.json();
        assert_eq!((&json["rate_per_s"], &json["rate_spread"]), (&json!(20.0), &json!([10.0, 30.0])));
        assert_eq!((&json["lateness_ms"]["p50"], &json["lost"]), (&json!(2.0), &json!(1)));
        assert_eq!(json["lateness_ms"]["max"], json!(4.0));
        assert_eq!(json["cpu_us_per_timer"], json!({ "client": 2.0, "broker": null, "redis": null }));
        assert_eq!(
            (&json["last_entered_ms"], &json["each"][1]["last_entered_ms"]),
            (&json!(2.0), &json!(3.0))
        );
        assert!(!report.is_exact());
        report.rounds.pop();
        assert!(report.is_exact());
        assert_eq!(report.json()["rate_per_s"], json!(20.0), "of an even number the mean of the middle two");
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let mut report = report();
        report.add(Round::default());
        let json = report.json();
        assert!(json["lateness_ms"].is_null() && json["cpu_us_per_timer"]["redis"].is_null());
        report.add(Round { left: 1, ..Round::default() });
        assert!(!report.is_exact(), "what was settled and is still there would fire again");
        assert!(json.get("notes").is_none());
        report.add(Round { notes: ["why"].into(), ..Round::default() });
        report.add(Round { notes: ["why"].into(), ..Round::default() });
        assert_eq!(report.json()["notes"], json!(["why"]));
    }
}
