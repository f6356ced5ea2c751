//! The result of a measurement: medians over rounds, and their spread.

use hdrhistogram::Histogram;
use mtimer_client::Info;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::exit::Failure;
use crate::cli::output::{Output, Table, Tone, grouped};
use crate::cli::tally::{Tally, quantile};

/// One round.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Round {
    pub(super) rate_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lateness_ms: Option<Tail>,
    pub(super) lost: u64,
    pub(super) early: u64,
    pub(super) duplicates: u64,
    /// Timers that the load was too late to schedule in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) behind: Option<u64>,
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
    /// What a tally of so many timers says.
    pub(super) fn of(tally: &Tally, scheduled: u64, rate_per_s: f64) -> Self {
        Self {
            rate_per_s,
            lateness_ms: Some(Tail::from(&tally.lateness())),
            lost: scheduled.saturating_sub(tally.fired()),
            early: tally.early(),
            duplicates: tally.duplicates(),
            behind: None,
        }
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{} a second", grouped(self.rate_per_s as u64));
        if let Some(t) = &self.lateness_ms {
            line +=
                &format!(", late p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.2} ms", t.p50, t.p99, t.p999, t.max);
        }
        line
    }
}

/// The whole measurement.
#[derive(Debug)]
pub(super) struct Report {
    bench: &'static str,
    store: String,
    durability: String,
    timers: u64,
    payload: u32,
    rounds: Vec<Round>,
    /// How long a lone schedule takes.
    pub(super) answer_us: Option<Histogram<u64>>,
}

impl Report {
    pub(super) fn new(bench: &'static str, info: &Info, timers: u64, payload: u32) -> Self {
        let (store, durability) = (info.store.clone(), info.durability.clone());
        Self { bench, store, durability, timers, payload, rounds: Vec::new(), answer_us: None }
    }

    pub(super) fn add(&mut self, round: Round) {
        self.rounds.push(round);
    }

    fn sum(&self, of: impl Fn(&Round) -> u64) -> u64 {
        self.rounds.iter().map(of).sum()
    }

    pub(super) fn is_exact(&self) -> bool {
        self.sum(|r| r.lost + r.early + r.duplicates) == 0
    }

    /// Median, lowest and highest over the rounds.
    fn over(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<[f64; 3]> {
        let mut values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            (values[half - 1] + values[half]) / 2.0
        } else {
            values[half]
        };
        Some([median, low, high])
    }

    fn tail(&self, of: impl Fn(&Tail) -> f64) -> Option<[f64; 3]> {
        self.over(|round| round.lateness_ms.as_ref().map(&of))
    }

    fn json(&self) -> Value {
        let rate = self.over(|r| Some(r.rate_per_s));
        let median = |values: Option<[f64; 3]>| values.map(|v| rounded(v[0]));
        let spread = |values: Option<[f64; 3]>| values.map(|v| [rounded(v[1]), rounded(v[2])]);
        let tails = [self.tail(|t| t.p50), self.tail(|t| t.p99), self.tail(|t| t.p999), self.tail(|t| t.max)];
        let of_tails = |f: &dyn Fn(Option<[f64; 3]>) -> Value| json!({ "p50": f(tails[0]), "p99": f(tails[1]), "p999": f(tails[2]), "max": f(tails[3]) });
        let mut object = json!({
            "bench": self.bench,
            "store": self.store,
            "durability": self.durability,
            "timers": self.timers,
            "payload_bytes": self.payload,
            "rounds": self.rounds.len(),
            "rate_per_s": median(rate),
            "rate_spread": spread(rate),
            "lateness_ms": null,
            "lost": self.sum(|r| r.lost),
            "early": self.sum(|r| r.early),
            "duplicates": self.sum(|r| r.duplicates),
            "peak_rss_bytes": peak_rss(),
            "each": self.rounds,
        });
        if tails[0].is_some() {
            object["lateness_ms"] = of_tails(&|v| json!(median(v)));
            // The worst there was is what it says.
            object["lateness_ms"]["max"] = json!(tails[3].map(|v| rounded(v[2])));
            object["lateness_spread"] = of_tails(&|v| json!(spread(v)));
        }
        if let Some(us) = &self.answer_us {
            object["answer_ms"] = json!(Tail::from(us));
        }
        if self.rounds.iter().any(|r| r.behind.is_some()) {
            object["behind"] = self.sum(|r| r.behind.unwrap_or_default()).into();
        }
        object
    }

    pub(super) fn show(&self, out: Output) -> Result<(), Failure> {
        if out.json {
            return out.object(&self.json());
        }
        out.text(&format!(
            "{}: {} timers a round, {} bytes each; store: {} ({}); {} rounds",
            out.tone(Tone::Strong, self.bench),
            grouped(self.timers),
            self.payload,
            self.store,
            self.durability,
            self.rounds.len(),
        ))?;
        let mut table = Table::new(["", "median", "lowest", "highest"]);
        let mut row = |name: &str, values: Option<[f64; 3]>, show: &dyn Fn(f64) -> String| {
            if let Some([median, low, high]) = values {
                table.row([name.to_owned(), show(median), show(low), show(high)]);
            }
        };
        let ms = |v: f64| format!("{v:.2}");
        row("timers a second", self.over(|r| Some(r.rate_per_s)), &|v| grouped(v as u64));
        row("late p50, ms", self.tail(|t| t.p50), &ms);
        row("late p99, ms", self.tail(|t| t.p99), &ms);
        row("late p99.9, ms", self.tail(|t| t.p999), &ms);
        row("late max, ms", self.tail(|t| t.max), &ms);
        table.lines().try_for_each(|line| out.text(&line))?;
        if let Some(us) = &self.answer_us {
            let t = Tail::from(us);
            out.text(&format!("a lone schedule is answered in p50 {:.2} ms, p99 {:.2} ms", t.p50, t.p99))?;
        }
        let (lost, early, twice) = (self.sum(|r| r.lost), self.sum(|r| r.early), self.sum(|r| r.duplicates));
        let exact = format!("lost {lost}, early {early}, duplicates {twice}");
        out.text(&out.tone(if self.is_exact() { Tone::Good } else { Tone::Bad }, &exact))?;
        let behind = self.sum(|r| r.behind.unwrap_or_default());
        if behind > 0 {
            let behind = grouped(behind);
            out.text(&format!(
                "{behind} timers could not be scheduled in time: this machine is too slow for the rate"
            ))?;
        }
        match peak_rss() {
            Some(bytes) => out.text(&format!("this process used up to {} MiB", bytes / 1024 / 1024)),
            None => Ok(()),
        }
    }
}

/// To three digits after the point.
fn rounded(v: f64) -> f64 {
    (v * 1_000.0).round() / 1_000.0
}

/// The most memory that this process has had, bytes, where the system tells.
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_the_median_with_its_spread() {
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
        let mut report = Report::new("fire", &info, 10, 100);
        let tail = |p50| Some(Tail { p50, p99: 2.0, p999: 3.0, max: 4.0 });
        for (rate_per_s, p50, lost) in [(30.0, 1.0, 0), (10.0, 3.0, 0), (20.0, 2.0, 1)] {
            report.add(Round { rate_per_s, lateness_ms: tail(p50), lost, ..Round::default() });
        }
        let json = report.json();
        assert_eq!((&json["rate_per_s"], &json["rate_spread"]), (&json!(20.0), &json!([10.0, 30.0])));
        assert_eq!((&json["lateness_ms"]["p50"], &json["lost"]), (&json!(2.0), &json!(1)));
        assert_eq!(json["lateness_ms"]["max"], json!(4.0));
        assert!(!report.is_exact());
        report.rounds.pop();
        assert_eq!(report.json()["rate_per_s"], json!(20.0), "of an even number the mean of the middle two");
    }
}
