//! `mtimer schedule --file`: many timers from a file of JSON, a line a timer.
//!
//! Invariant: a file is looked at as a whole before its first timer is sent; without `--skip-bad`
//! one bad line means that nothing is sent.

pub(crate) mod chunks;
pub(crate) mod line;
mod make;
pub(crate) mod reader;
pub(crate) mod report;
mod send;

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use mtimer_client::Client;
use serde_json::json;

use self::chunks::CutShort;
use self::line::Maker;
use self::make::make;
use self::reader::InputSource;
use self::report::Problems;
use self::send::SendOutcome;
use crate::exit::{Exit, Failure};
use crate::moment::span_shown;
use crate::output::{Output, counted, grouped, note_error};
use crate::progress;
use crate::signals::StopSignal;

/// How often the reader looks up from its work, in lines.
const LOOK_UP: u64 = 1_000;

/// Schedules everything in the file.
pub(crate) async fn run(
    client: &Client,
    path: &Path,
    maker: Maker,
    (skip_bad, ids): (bool, bool),
    out: Output,
) -> Result<(), Failure> {
    let stop = StopSignal::on_signals("stopping: waiting for the answers to what was sent")?;
    let checked = {
        let (path, maker, client) = (path.to_owned(), maker.clone(), client.clone());
        let stop = stop.clone();
        let checking = move || check(InputSource::open(&path)?, maker, &client, &stop);
        tokio::task::spawn_blocking(checking)
            .await
            .map_err(|e| Failure::new(Exit::Failed, e.to_string()))??
    };
    let CheckedFile { source, good, bad } = checked;
    bad.tell("is not valid");
    let sending = bad.count == 0 || skip_bad;
    let began = Instant::now();
    let end = if sending && !stop.is_asked() {
        let bar = progress::bar("sending", good);
        let end = send::send(client, source, maker, &bar, &stop, ids.then_some(out)).await?;
        bar.finish_and_clear();
        Some(end)
    } else {
        None
    };
    let summary = Summary { lines: good + bad.count, bad, end, took: began.elapsed() };
    if let Some(end) = &summary.end {
        end.sent.refused.tell("has failed");
    }
    summary.show(out)?;
    summary.result(stop.is_asked())
}

struct CheckedFile {
    source: InputSource,
    good: u64,
    bad: Problems,
}

/// Reads the whole file once.
fn check(
    mut source: InputSource,
    mut maker: Maker,
    client: &Client,
    stop: &StopSignal,
) -> Result<CheckedFile, Failure> {
    let bar: ProgressBar = progress::bytes("checking", source.len);
    let failed = |e: std::io::Error| Failure::new(Exit::Failed, format!("cannot read the file: {e}"));
    let (mut good, mut bad) = (0, Problems::default());
    let mut lines = source.lines().map_err(failed)?;
    while let Some(line) = lines.next().map_err(failed)? {
        let number = line.number;
        match make(&line, &mut maker, client) {
            Ok(_) => good += 1,
            Err(reason) => bad.add(number, reason),
        }
        if number.is_multiple_of(LOOK_UP) {
            bar.set_position(lines.read);
            if stop.is_asked() {
                break;
            }
        }
    }
    bar.finish_and_clear();
    Ok(CheckedFile { source, good, bad })
}

struct Summary {
    lines: u64,
    bad: Problems,
    /// `None`: nothing was sent.
    end: Option<SendOutcome>,
    took: Duration,
}

impl Summary {
    fn show(&self, out: Output) -> Result<(), Failure> {
        let sent = self.end.as_ref().map(|e| e.sent.clone()).unwrap_or_default();
        let seconds = self.took.as_secs_f64();
        let rate = if seconds > 0.0 { (sent.lines() as f64 / seconds).round() as u64 } else { 0 };
        let object = json!({
            "lines": self.lines,
            "scheduled": sent.scheduled,
            "already": sent.already,
            "kept_being_delivered": sent.being_delivered,
            "refused": sent.refused.count,
            "reasons": sent.reasons,
            "bad": self.bad.count,
            "bad_lines": self.bad.first,
            "refused_lines": sent.refused.first,
            "not_sent": self.lines - self.bad.count - sent.lines().min(self.lines - self.bad.count),
            "seconds": (seconds * 1_000.0).round() / 1_000.0,
            "rate_per_s": rate,
        });
        out.either(&object, || {
            let n = |n| grouped(n);
            let mut text = format!(
                "{}: {} scheduled, {} already there, {} refused, {} bad",
                counted(self.lines, "line"),
                n(sent.scheduled),
                n(sent.already),
                n(sent.refused.count),
                n(self.bad.count),
            );
            if sent.being_delivered > 0 {
                text += &format!(" ({} of them kept while being delivered)", n(sent.being_delivered));
            }
            if !sent.reasons.is_empty() {
                let all: Vec<String> =
                    sent.reasons.iter().map(|(what, count)| format!("{what} {}", n(*count))).collect();
                text += &format!(" (refused: {})", all.join(", "));
            }
            match &self.end {
                Some(_) => text + &format!("; {}, {} a second", span_shown(self.took), n(rate)),
                None => text + "; nothing was sent",
            }
        })
    }

    fn result(&self, interrupted: bool) -> Result<(), Failure> {
        let Some(end) = &self.end else {
            if interrupted {
                return Err(Failure::silent(Exit::Interrupted));
            }
            let count = self.bad.count;
            return Err(self.said(
                Exit::Refused,
                &format!(
                    "{} of {} not valid, so nothing was sent: correct them, or send the rest with --skip-bad",
                    grouped(count),
                    counted(self.lines, "line")
                ),
            ));
        };
        let done = end.sent.scheduled + end.sent.already;
        match &end.cut {
            Some(CutShort::Interrupted) => return Err(Failure::silent(Exit::Interrupted)),
            Some(CutShort::Stuck { exit, reason }) => {
                let exit = if done == 0 { *exit } else { Exit::Partly };
                return Err(self
                    .said(exit, &format!("gave up after {}: {reason}", counted(end.sent.lines(), "line"))));
            }
            None if end.skipped != self.bad.count => {
                return Err(self.said(Exit::Partly, "the file has changed while it was read: send it again"));
            }
            None => {}
        }
        match (end.sent.exit(), self.bad.count) {
            (Exit::Done, 0) => Ok(()),
            (Exit::Done, _) if done == 0 => Err(Failure::silent(Exit::Refused)),
            (exit, bad) if bad > 0 && done > 0 || exit == Exit::Done => Err(Failure::silent(Exit::Partly)),
            (exit, _) => Err(Failure::silent(exit)),
        }
    }

    /// The summary is the one result on standard output; all other messages go to standard error.
    fn said(&self, exit: Exit, message: &str) -> Failure {
        note_error(message);
        Failure::silent(exit)
    }
}
