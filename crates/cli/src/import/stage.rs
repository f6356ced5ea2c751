//! Stages the timers of an export.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use mtimer_client::{Client, ErrorCode, ImportError, ImportId, RequestError, Staged, TimerId};
use serde_json::json;

use super::check::{CheckedExport, parse, timer};
use crate::exit::{self, Exit, Failure};
use crate::file::chunks::{CutShort, send_chunks, stuck};
use crate::file::report::Problems;
use crate::output::to_line;
use crate::signals::StopSignal;

/// What came of the timers that were sent.
#[derive(Debug, Default)]
pub(super) struct SentTimers {
    pub(super) new: u64,
    pub(super) already: u64,
    pub(super) refused: Problems,
    /// By reason.
    pub(super) reasons: BTreeMap<&'static str, u64>,
    /// The exit code of what was refused last.
    pub(super) exit: Option<Exit>,
    /// If not all were sent.
    pub(super) cut: Option<CutShort>,
}

impl SentTimers {
    /// Timers that were answered.
    pub(super) fn answered(&self) -> u64 {
        self.new + self.already + self.refused.count
    }

    fn add(&mut self, line: u64, result: &Result<Staged, ImportError>) {
        match result {
            Ok(Staged { new: true, .. }) => self.new += 1,
            Ok(Staged { new: false, .. }) => self.already += 1,
            Err(error) => {
                *self.reasons.entry(reason(error)).or_default() += 1;
                self.refused.add(line, error.to_string());
                self.exit = Some(of_import(error));
            }
        }
    }
}

/// Which new id each timer has got.
pub(super) struct MapFile {
    path: PathBuf,
    to: BufWriter<File>,
}

impl MapFile {
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create_new(path).map_err(|error| Failure::file("create", path, &error))?;
        Ok(Self { path: path.to_owned(), to: BufWriter::new(file) })
    }

    fn add(&mut self, old: TimerId, result: &Result<Staged, ImportError>) -> Result<(), Failure> {
        let mut line = match result {
            Ok(staged) => to_line(&json!({ "old": old, "new": staged.id }))?,
            Err(error) => to_line(&json!({ "old": old, "why": reason(error) }))?,
        };
        line.push('\n');
        self.to.write_all(line.as_bytes()).map_err(|error| Failure::file("write", &self.path, &error))
    }

    pub(super) fn close(mut self) -> Result<(), Failure> {
        self.to.flush().map_err(|error| Failure::file("write", &self.path, &error))
    }
}

/// Sends every good line that counts.
pub(super) async fn stage(
    client: &Client,
    checked: CheckedExport,
    import: ImportId,
    mut map: Option<&mut MapFile>,
    (bar, stop): (&ProgressBar, &StopSignal),
) -> Result<SentTimers, Failure> {
    let CheckedExport { source, header, superseded, end, .. } = checked;
    let mut sent = SentTimers::default();
    let (_, cut) = send_chunks(
        source,
        move |line| {
            if superseded.contains(&line.number) || line.number >= end {
                return None;
            }
            // Bad lines were told of when the file was checked.
            let timer = timer(parse(line).ok()?, header.time_ms)?.ok()?;
            let of = (line.number, timer.timer.id);
            Some((timer, of))
        },
        (bar, stop),
        async |timers| client.import_all(import, timers).await,
        |lines: &[(u64, TimerId)], results| {
            for ((line, old), result) in lines.iter().zip(results) {
                sent.add(*line, result);
                if let Some(map) = map.as_deref_mut() {
                    map.add(*old, result)?;
                }
            }
            let stuck = stuck(results, of_import);
            Ok(stuck.map(|(exit, error)| CutShort::Stuck { exit, reason: error.to_string() }))
        },
    )
    .await?;
    Ok(SentTimers { cut, ..sent })
}

fn of_import(error: &ImportError) -> Exit {
    match error {
        ImportError::Invalid(_) => Exit::Refused,
        ImportError::Exists { .. } | ImportError::Ended { .. } | ImportError::Released { .. } => {
            Exit::Conflict
        }
        ImportError::Request { error, .. } => exit::of_request(error),
    }
}

/// A refusal in one word.
fn reason(error: &ImportError) -> &'static str {
    match error {
        ImportError::Invalid(_) => "invalid",
        ImportError::Exists { .. } => "exists",
        ImportError::Ended { .. } => "ended",
        ImportError::Released { .. } => "released",
        ImportError::Request { error: RequestError::Refused { code, .. }, .. } => match code {
            ErrorCode::Invalid => "invalid",
            ErrorCode::Unauthorized => "unauthorized",
            ErrorCode::StoreFull => "store-full",
            _ => "not-now",
        },
        ImportError::Request { error, .. } => match exit::of_request(error) {
            Exit::NoConnection => "no-connection",
            _ => "unknown",
        },
    }
}
