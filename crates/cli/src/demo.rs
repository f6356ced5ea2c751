//! `mtimer demo`: a broker and a client in one go, and an exact account of the deliveries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use mtimer_client::{Client, Destination, Outcome, Schedule, Time};
use mtimer_protocol::Status;
use serde::Serialize;

use super::args::destination;
use super::exit::{Exit, Failure};
use super::load;
use super::local::{Local, StoreArgs};
use super::logging::LogArgs;
use super::moment::{self, millis, span_shown};
use super::output::{Output, Tone, counted, grouped, note};
use super::progress;
use super::signals::StopSignal;
use super::tally::{CallbackTally, Lateness, Reference, payload};

/// Shows mtimer at work: a broker, a client, many timers, and what came of them
///
/// Starts a broker on an embedded store in a temporary folder (or on Redis, with --redis), listens,
/// schedules timers that are spread evenly over a window, waits until they have fired, and ends
/// with an account: scheduled, fired, lost, early, duplicates, and how late the callbacks were. A
/// first thousand timers tell how fast the store is, so that the window can begin when scheduling
/// is done.
///
/// Lateness is from the due time to the handler, in ms by this host's clock. With --json:
/// scheduled, fired, lost, early, duplicates, lateness_ms{p50,p90,p99,max}. Exit code 10 if
/// anything was lost, early or duplicated.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer demo\n  mtimer demo --timers 200000 --over 20s\n  \
    mtimer demo --redis redis://127.0.0.1:6379 --json")]
pub(crate) struct Demo {
    /// How many timers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    timers: u64,
    /// The window over which they are spread
    #[arg(long, value_name = "DURATION", default_value = "5s", allow_hyphen_values = true, value_parser = moment::span)]
    over: Duration,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// How long nothing may fire, once everything is due, before the rest is taken for lost.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// How often it looks for changes.
const LOOK: Duration = Duration::from_millis(50);

impl Demo {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        self.log.start()?;
        let stop = StopSignal::on_signals_and_hangup("stopping")?;
        let local = Local::start(&self.store).await?;
        let result = self.with(&local, out, &stop).await;
        local.end().await?;
        let report = result?;
        report.show(out)?;
        if stop.is_asked() {
            return Err(Failure::silent(Exit::Interrupted));
        }
        if report.is_exact() { Ok(()) } else { Err(Failure::silent(Exit::Inexact)) }
    }

    async fn with(&self, local: &Local, out: Output, stop: &StopSignal) -> Result<DemoReport, Failure> {
        if !out.json {
            let (n, over, info) = (counted(self.timers, "timer"), span_shown(self.over), &local.info);
            out.text(&format!(
                "{n} over {over}; store: {} ({}), {}",
                info.kind, info.durability, local.place
            ))?;
        }
        let client = local.connect().await?;
        let dest = destination("demo", "hello")?;
        let plain = |n, one: Schedule| one.payload(payload(n, 0));
        let lead = load::estimate(&client, &destination("demo", "probe")?, self.timers, plain, stop).await?;
        let reference = match local.info.kind {
            "redis" | "redis-cluster" => Reference::with_store_clocks(&client).await,
            _ => Reference::host(),
        };
        let tally = Arc::new(CallbackTally::new(self.timers, reference, |_| 1));
        let entered = Arc::clone(&tally);
        let registration = client.on(dest.clone(), move |callback| {
            entered.entered(&callback);
            std::future::ready(Outcome::ok())
        })?;
        let first = client.now() + millis(lead);
        let scheduled = self.schedule(&client, &dest, first, out, stop).await?;
        let last = first + millis(self.over);
        wait(&client, &tally, scheduled, last, stop).await;
        if !stop.is_asked() {
            settled(&client).await?;
        }
        registration.stop().await;
        client.close().await?;
        Ok(DemoReport {
            scheduled,
            fired: tally.fired(),
            lost: scheduled.saturating_sub(tally.fired()),
            early: tally.early(),
            duplicates: tally.duplicates(),
            lateness_ms: Lateness::from(&tally.lateness()),
        })
    }

    async fn schedule(
        &self,
        client: &Client,
        dest: &Destination,
        first: Time,
        out: Output,
        stop: &StopSignal,
    ) -> Result<u64, Failure> {
        let over = u128::from(millis(self.over));
        let make = |n: u64| {
            let offset = u128::from(n) * over / u128::from(self.timers);
            Schedule::at(dest.clone(), first + offset as u64).payload(payload(n, 0))
        };
        let bar = progress::bar("scheduling", self.timers);
        let began = Instant::now();
        let stored = load::schedule_all(client, self.timers, make, &bar, stop, |_, _| {}).await?;
        let took = began.elapsed();
        bar.finish_and_clear();
        if !out.json {
            let (now, rate) = (client.now(), stored as f64 / took.as_secs_f64());
            let begin = match first.ms_since(now) {
                0 => format!("which began {} ms before that was done", now.ms_since(first)),
                ms => format!("which begins {ms} ms later"),
            };
            let (n, took, rate) = (grouped(stored), span_shown(took), grouped(rate as u64));
            out.text(&format!("scheduled {n} in {took} ({rate} a second) for a window {begin}"))?;
        }
        Ok(stored)
    }
}

/// Waits until everything has fired, or nothing does any more.
async fn wait(client: &Client, tally: &CallbackTally, scheduled: u64, last: Time, stop: &StopSignal) {
    let bar = progress::bar("firing", scheduled);
    let (mut fired, mut changed) = (0, Instant::now());
    while fired < scheduled && stop.unless(tokio::time::sleep(LOOK)).await.is_some() {
        let now = tally.fired();
        if now != fired || client.now() < last {
            (fired, changed) = (now, Instant::now());
        }
        bar.set_position(fired);
        if changed.elapsed() > IDLE_LIMIT {
            break;
        }
    }
    bar.finish_and_clear();
}

/// Waits until no delivery can follow any more: duplicates would come now.
async fn settled(client: &Client) -> Result<(), Failure> {
    let open = |s: &Status| s.pending + s.retrying + s.parked + s.taken + s.ready + s.in_flight;
    let began = Instant::now();
    while open(&client.status().await?) > 0 && began.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// The result. Scripts rely on the names.
#[derive(Clone, Debug, Serialize)]
struct DemoReport {
    scheduled: u64,
    fired: u64,
    lost: u64,
    early: u64,
    duplicates: u64,
    lateness_ms: Lateness,
}

impl DemoReport {
    fn is_exact(&self) -> bool {
        self.lost == 0 && self.early == 0 && self.duplicates == 0
    }

    fn show(&self, out: Output) -> Result<(), Failure> {
        if out.json {
            return out.object(self);
        }
        let line = |name: &str, n: u64, bad: bool| {
            let tone = if bad && n > 0 { Tone::Bad } else { Tone::Strong };
            out.text(&format!("{name:<11}{}", out.tone(tone, &format!("{:>12}", grouped(n)))))
        };
        line("scheduled", self.scheduled, false)?;
        line("fired", self.fired, false)?;
        line("lost", self.lost, true)?;
        line("early", self.early, true)?;
        line("duplicates", self.duplicates, true)?;
        let l = &self.lateness_ms;
        out.text(&format!(
            "lateness   p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
            l.p50, l.p90, l.p99, l.max
        ))?;
        if !self.is_exact() {
            note("timers were lost, early or duplicated: this must not happen");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_find_the_names_they_rely_on() {
        let lateness_ms = Lateness { p50: 0.5, p90: 1.0, p99: 2.0, max: 3.0 };
        let report = DemoReport { scheduled: 3, fired: 2, lost: 1, early: 0, duplicates: 0, lateness_ms };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"scheduled":3,"fired":2,"lost":1,"early":0,"duplicates":0,"lateness_ms":{"p50":0.5,"p90":1.0,"p99":2.0,"max":3.0}}"#
        );
        assert!(!report.is_exact());
    }
}
