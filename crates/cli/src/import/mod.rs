//! `mtimer import`: stages the timers of an export.
//!
//! Invariant: a file is looked at as a whole before its first timer is sent; one bad line, or no
//! trailer, means that nothing is sent, unless that was asked for. Of an id that has several lines
//! the last one counts.

mod check;
mod stage;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::future::join_all;
use mtimer_client::{Client, ErrorCode, ImportId, RequestError};
use serde_json::json;

use self::check::CheckedExport;
use self::stage::{MapFile, SentTimers};
use super::args::{ClientArgs, DEFAULT_BROKER};
use super::exit::{Exit, Failure};
use super::file::chunks::CutShort;
use super::file::report::Problems;
use super::output::{Output, counted, grouped, note, note_error, shell_quoted};
use super::progress;
use super::signals::StopSignal;

/// Stages the timers of an export: nothing delivers them until they are released
///
/// The file is one that `mtimer export` has written, of any cluster; - is standard input. Staged
/// timers are nobody's: they have no keys, and nothing finds them but `mtimer list --state staged`,
/// `mtimer bulk release ID`, which delivers them, and `mtimer bulk withdraw ID`, which removes
/// them. The import has the id of the file, unless you give it another one; it is shown. The
/// release leaves out those whose keys other timers have by then.
///
/// Timers get new ids. --map writes which: a line of JSON each, with "old" and "new", or with "old"
/// and "why" for those that could not be staged.
///
/// If it is interrupted, or could not stage all, run it again: what is staged stays. That is
/// harmless until a release has begun. Afterwards brokers refuse it: what is missing may have
/// ended. Another export of the same timers is another import, and may bring back what has ended
/// since.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer import timers.ndjson --map ids.ndjson\n  \
    gunzip < shop.ndjson.gz | mtimer import -")]
pub(crate) struct ImportCommand {
    /// The export; - for standard input
    file: PathBuf,
    /// Its id, if that is not to be the file's: 32 hexadecimal digits, the same in every repeat.
    /// Never for a file that was released
    #[arg(long, value_name = "ID")]
    id: Option<ImportId>,
    /// Write the new id of each timer to this file. It must not exist
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Also a file that has no end: its export was cut off
    #[arg(long)]
    incomplete: bool,
    /// Also a file that is not consistent: timers had changed while it was written
    #[arg(long)]
    inconsistent: bool,
    /// Also into the cluster of the export, which would have the same timers twice
    #[arg(long)]
    same_cluster: bool,
    /// Leave out lines that are not valid
    #[arg(long)]
    skip_bad: bool,
    #[command(flatten)]
    client: ClientArgs,
}

impl ImportCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let stop = StopSignal::on_signals("stopping: waiting for the answers to what was sent")?;
        let checked = check::check(self.file.clone(), stop.clone()).await?;
        self.judge(&checked, &stop)?;
        let id = self.id.unwrap_or(checked.header.id);
        let began = Instant::now();
        let (bad, total) = (checked.bad.clone(), checked.timers);
        let consistent = checked.trailer.as_ref().is_some_and(|trailer| trailer.consistent);
        let sent = self
            .client
            .with(async |client| {
                self.refuse_same_cluster(client, &checked).await?;
                let mut map = self.map.as_deref().map(MapFile::create).transpose()?;
                note(&format!("import {id}"));
                let bar = progress::bar("staged", total);
                let sent = stage::stage(client, checked, id, map.as_mut(), (&bar, &stop)).await?;
                bar.finish_and_clear();
                map.map_or(Ok(()), MapFile::close)?;
                Ok(sent)
            })
            .await?;
        self.show((id, consistent), &sent, &bad, (total, began.elapsed()), out)?;
        self.result(&sent, total, bad.count)
    }

    /// Refuses a file that is not to be imported.
    fn judge(&self, checked: &CheckedExport, stop: &StopSignal) -> Result<(), Failure> {
        checked.bad.tell("is not valid");
        if stop.is_asked() {
            return Err(Failure::silent(Exit::Interrupted));
        }
        let refused = |text: String| Err(Failure::new(Exit::Refused, text));
        match &checked.trailer {
            None if !self.incomplete => {
                return refused(
                    "the file has no end: its export was cut off. Export again, or import it as it is with --incomplete"
                        .to_owned(),
                );
            }
            Some(trailer) if trailer.timers != checked.lines && !self.incomplete => {
                return refused(format!(
                    "the file has {}, and should have {}: lines are missing. Import it as it is with --incomplete",
                    counted(checked.lines, "timer"),
                    grouped(trailer.timers)
                ));
            }
            Some(trailer) if !trailer.consistent && !self.inconsistent => {
                return refused(format!(
                    "the export is not consistent: {}. Export again when nothing changes, or import it as it is with --inconsistent",
                    trailer.why.join("; ")
                ));
            }
            Some(_) | None => {}
        }
        if checked.bad.count > 0 && !self.skip_bad {
            let lines = counted(checked.bad.count, "line");
            return refused(format!(
                "{lines} not valid, so nothing was sent: correct them, or import the rest with --skip-bad"
            ));
        }
        Ok(())
    }

    /// Refuses a file of this very cluster, as far as its timers are still there.
    async fn refuse_same_cluster(&self, client: &Client, checked: &CheckedExport) -> Result<(), Failure> {
        if self.same_cluster || client.info().partitions != checked.header.partitions {
            return Ok(());
        }
        for (id, found) in join_all(checked.some.iter().map(async |id| (id, client.get(*id).await))).await {
            match found {
                Ok(None) => {}
                Ok(Some(_)) => {
                    let text = format!(
                        "this is the cluster of the export: timer {id} is here, and would be delivered twice. Give --same-cluster if you want that"
                    );
                    return Err(Failure::new(Exit::Refused, text));
                }
                // Who may import need not be allowed to look on.
                Err(RequestError::Refused { code: ErrorCode::Unauthorized, .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn show(
        &self,
        (id, consistent): (ImportId, bool),
        sent: &SentTimers,
        bad: &Problems,
        (total, took): (u64, Duration),
        out: Output,
    ) -> Result<(), Failure> {
        let object = json!({
            "import": id.to_string(),
            "consistent": consistent,
            "timers": total,
            "staged": sent.new,
            "already": sent.already,
            "refused": sent.refused.count,
            "reasons": sent.reasons,
            "refused_lines": sent.refused.first,
            "bad": bad.count,
            "bad_lines": bad.first,
            "not_sent": total.saturating_sub(sent.answered()),
            "seconds": (took.as_secs_f64() * 1_000.0).round() / 1_000.0,
        });
        sent.refused.tell("is refused");
        out.either(&object, || {
            let mut text = format!(
                "{} staged, {} were staged before, {} refused",
                grouped(sent.new),
                grouped(sent.already),
                grouped(sent.refused.count)
            );
            if !sent.reasons.is_empty() {
                let all: Vec<String> =
                    sent.reasons.iter().map(|(why, n)| format!("{why} {}", grouped(*n))).collect();
                text += &format!(" ({})", all.join(", "));
            }
            text
        })?;
        // Once a release has begun, brokers refuse what is missing: it may have been delivered.
        if sent.new + sent.already < total {
            note(match sent.reasons.contains_key("released") || sent.reasons.contains_key("exists") {
                true => "not all are staged: this import was released, or another one has the timers",
                false => "not all are staged: complete that before you release; afterwards brokers refuse it",
            });
            return Ok(());
        }
        let [release, withdraw] = ["release", "withdraw"].map(|what| self.command(what, id));
        note(&format!(
            "nothing is delivered yet: deliver them, or take them back, with:\n  {release}\n  {withdraw}"
        ));
        Ok(())
    }

    fn result(&self, sent: &SentTimers, total: u64, bad: u64) -> Result<(), Failure> {
        let again = match self.map {
            Some(_) => "run it again, with another file for --map",
            None => "run it again",
        };
        let done = sent.new + sent.already;
        match &sent.cut {
            Some(CutShort::Interrupted) => {
                note(&format!("interrupted: {again}"));
                return Err(Failure::silent(Exit::Interrupted));
            }
            Some(CutShort::Stuck { exit, reason }) => {
                note_error(&format!("gave up: {reason}; {again}"));
                return Err(Failure::silent(if done == 0 { *exit } else { Exit::Partly }));
            }
            None if sent.answered() != total => {
                note_error(&format!("the file has changed while it was read: {again}"));
                return Err(Failure::silent(Exit::Partly));
            }
            None => {}
        }
        match sent.exit {
            None if bad == 0 => Ok(()),
            Some(exit) if done == 0 => Err(Failure::silent(exit)),
            None | Some(_) => Err(Failure::silent(Exit::Partly)),
        }
    }

    /// A command about the import, as it can be typed. Without tokens and the like.
    fn command(&self, what: &str, id: ImportId) -> String {
        let broker = match self.client.broker.as_str() {
            DEFAULT_BROKER => String::new(),
            broker => format!(" {}", shell_quoted(&format!("--broker={broker}"))),
        };
        format!("mtimer bulk {what} {id}{broker}")
    }
}
