//! Sends the timers of an export at full speed.
//!
//! Invariant: a thread reads ahead by a few chunks and no further, so memory does not depend on the
//! file's payloads; a chunk of which nothing could be staged ends it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::ProgressBar;
use mtimer_client::{Client, ErrorCode, ForeignTimer, ImportError, ImportId, RequestError, Staged, TimerId};
use serde_json::json;
use tokio::sync::mpsc;

use super::check::{CheckedExport, parse, timer};
use crate::exit::{self, Exit, Failure};
use crate::file::report::Problems;
use crate::output::to_line;
use crate::signals::StopSignal;

/// Timers of a chunk at most, and about how many bytes.
const CHUNK: usize = 1_000;
const CHUNK_BYTES: usize = 1024 * 1024;
/// Chunks on their way, and chunks read ahead.
const IN_FLIGHT: usize = 8;
const AHEAD: usize = 4;

/// Timers to be sent together, with their lines.
struct Chunk {
    timers: Vec<ForeignTimer>,
    lines: Vec<(u64, TimerId)>,
}

/// What came of the timers that were sent.
#[derive(Debug)]
pub(super) struct SentTimers {
    pub(super) new: u64,
    pub(super) already: u64,
    pub(super) refused: Problems,
    /// By reason.
    pub(super) reasons: BTreeMap<&'static str, u64>,
    /// The exit code of what was refused.
    pub(super) exit: Exit,
    pub(super) is_interrupted: bool,
    /// Nothing of a chunk could be staged, for this reason.
    pub(super) stuck: Option<(Exit, String)>,
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
                self.exit = of_import(error);
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
    let (sender, mut chunks) = mpsc::channel(AHEAD);
    let reading = tokio::task::spawn_blocking(move || read(checked, &sender));
    let mut sent = SentTimers {
        new: 0,
        already: 0,
        refused: Problems::default(),
        reasons: BTreeMap::new(),
        exit: Exit::Done,
        is_interrupted: false,
        stuck: None,
    };
    let (mut running, mut ended) = (FuturesUnordered::new(), false);
    loop {
        tokio::select! {
            biased;
            () = stop.asked(), if !ended => {
                (sent.is_interrupted, ended) = (true, true);
                chunks.close();
            }
            Some((lines, results)) = running.next() => {
                let lines: Vec<(u64, TimerId)> = lines;
                let results: Vec<Result<Staged, ImportError>> = results;
                for ((line, old), result) in lines.iter().zip(&results) {
                    sent.add(*line, result);
                    if let Some(map) = map.as_deref_mut() {
                        map.add(*old, result)?;
                    }
                }
                bar.inc(lines.len() as u64);
                if let Some(why) = refused_all(&results).filter(|_| !ended) {
                    (sent.stuck, ended) = (Some(why), true);
                    chunks.close();
                }
            }
            chunk = chunks.recv(), if !ended && running.len() < IN_FLIGHT => match chunk {
                Some(Chunk { timers, lines }) => {
                    running.push(async move { (lines, client.import_all(import, timers).await) });
                }
                None => ended = true,
            },
            else => break,
        }
    }
    // Lines that were read ahead are not wanted any more; the reader must not wait for the queue.
    drop(chunks);
    reading.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))??;
    Ok(sent)
}

/// Reads the good lines into chunks, as long as somebody takes them.
fn read(checked: CheckedExport, chunks: &mpsc::Sender<Chunk>) -> Result<(), Failure> {
    let CheckedExport { mut source, header, superseded, end, .. } = checked;
    let failed =
        |e: std::io::Error| Failure::new(Exit::Failed, format!("cannot read the file a second time: {e}"));
    let mut lines = source.lines().map_err(failed)?;
    loop {
        let (mut chunk, mut bytes) = (Chunk { timers: Vec::new(), lines: Vec::new() }, 0);
        while chunk.timers.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(line) = lines.next().map_err(failed)? else { break };
            let (number, length) = (line.number, line.text.map_or(0, <[u8]>::len));
            if superseded.contains(&number) || number >= end {
                continue;
            }
            // Bad lines were told of when the file was checked.
            let Some(Ok(timer)) = parse(&line).ok().and_then(|line| timer(line, header.time_ms)) else {
                continue;
            };
            bytes += length;
            chunk.lines.push((number, timer.timer.id));
            chunk.timers.push(timer);
        }
        if chunk.timers.is_empty() || chunks.blocking_send(chunk).is_err() {
            return Ok(());
        }
    }
}

/// Whether nothing of a chunk could be staged, for a reason that the next one will meet as well.
fn refused_all(results: &[Result<Staged, ImportError>]) -> Option<(Exit, String)> {
    let mut why = None;
    for result in results {
        let error = result.as_ref().err()?;
        let exit = of_import(error);
        if !matches!(exit, Exit::NoConnection | Exit::NotNow | Exit::Unknown | Exit::Interrupted) {
            return None;
        }
        why = Some((exit, error.to_string()));
    }
    why
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
