//! Sends the lines of a file at full speed.
//!
//! Invariant: a thread reads ahead by a few chunks and no further, so memory does not depend on the
//! file; a chunk of which nothing could be stored ends it, instead of a wait for every line that is
//! left.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::ProgressBar;
use mtimer_client::{Client, Schedule, ScheduleError, Scheduled};
use serde_json::json;
use tokio::sync::mpsc;

use super::line::Maker;
use super::make::make;
use super::reader::InputSource;
use super::report::SentLines;
use crate::exit::{self, Exit, Failure};
use crate::output::Output;
use crate::signals::StopSignal;

/// Timers of a chunk at most, and about how many payload bytes.
const CHUNK: usize = 1_000;
const CHUNK_BYTES: usize = 1024 * 1024;
/// Chunks on their way, and chunks read ahead.
const IN_FLIGHT: usize = 16;
const AHEAD: usize = 4;

/// Timers to be sent together, with their lines.
struct Chunk {
    schedules: Vec<Schedule>,
    lines: Vec<u64>,
}

/// Why not every line was sent.
#[derive(Clone, Debug)]
pub(crate) enum CutShort {
    Interrupted,
    /// Nothing of a chunk could be stored.
    Stuck {
        exit: Exit,
        reason: String,
    },
}

/// How the sending has ended.
#[derive(Clone, Debug)]
pub(crate) struct SendOutcome {
    pub(crate) sent: SentLines,
    /// Lines left out because they are bad.
    pub(crate) skipped: u64,
    /// If not every line was sent.
    pub(crate) cut: Option<CutShort>,
}

/// Sends every good line. `ids`: where to say which id each has.
pub(crate) async fn send(
    client: &Client,
    source: InputSource,
    maker: Maker,
    bar: &ProgressBar,
    stop: &StopSignal,
    ids: Option<Output>,
) -> Result<SendOutcome, Failure> {
    let (sender, mut chunks) = mpsc::channel(AHEAD);
    let clock = client.clone();
    let reading = tokio::task::spawn_blocking(move || read(source, maker, &clock, &sender));
    let (mut sent, mut cut, mut ended) = (SentLines::default(), None, false);
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = stop.asked(), if !ended => {
                (cut, ended) = (Some(CutShort::Interrupted), true);
                chunks.close();
            }
            Some((lines, results)) = running.next() => {
                let lines: Vec<u64> = lines;
                let results: Vec<Result<Scheduled, ScheduleError>> = results;
                lines.iter().zip(&results).for_each(|(line, result)| sent.add(*line, result));
                if let Some(out) = ids {
                    lines.iter().zip(&results).try_for_each(|(line, result)| show_id(out, *line, result))?;
                }
                bar.inc(lines.len() as u64);
                if let Some(stuck) = stuck(&results).filter(|_| !ended) {
                    (cut, ended) = (Some(stuck), true);
                    chunks.close();
                }
            }
            chunk = chunks.recv(), if !ended && running.len() < IN_FLIGHT => match chunk {
                Some(Chunk { schedules, lines }) => {
                    running.push(async move { (lines, client.schedule_all(schedules).await) });
                }
                None => ended = true,
            },
            else => break,
        }
    }
    // Lines that were read ahead are not wanted any more; the reader must not wait for the queue.
    drop(chunks);
    let skipped = reading.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))??;
    Ok(SendOutcome { sent, skipped, cut })
}

/// Says which id a line's timer has, if it is stored.
fn show_id(out: Output, line: u64, result: &Result<Scheduled, ScheduleError>) -> Result<(), Failure> {
    let Ok(Scheduled { id, being_delivered, .. }) = result else { return Ok(()) };
    out.either(&json!({ "line": line, "id": id, "being_delivered": being_delivered }), || {
        let kept = if *being_delivered { " kept, being delivered" } else { "" };
        format!("{line} {id}{kept}")
    })
}

/// Whether nothing of a chunk could be stored, for a reason that the next one will meet as well.
fn stuck(results: &[Result<Scheduled, ScheduleError>]) -> Option<CutShort> {
    let (mut exit, mut reason) = (Exit::Done, String::new());
    for result in results {
        let error = result.as_ref().err()?;
        exit = exit::of_schedule(error);
        if !matches!(exit, Exit::NoConnection | Exit::NotNow | Exit::Unknown | Exit::Interrupted) {
            return None;
        }
        if let ScheduleError::Request { error, .. } = error {
            reason = error.to_string();
        }
    }
    (exit != Exit::Done).then_some(CutShort::Stuck { exit, reason })
}

/// Reads the good lines into chunks, as long as somebody takes them; returns how many bad ones
/// there were.
fn read(
    mut source: InputSource,
    mut maker: Maker,
    client: &Client,
    chunks: &mpsc::Sender<Chunk>,
) -> Result<u64, Failure> {
    let failed =
        |e: std::io::Error| Failure::new(Exit::Failed, format!("cannot read the file a second time: {e}"));
    let mut lines = source.lines().map_err(failed)?;
    let mut skipped = 0;
    loop {
        let (mut schedules, mut numbers, mut bytes) = (Vec::new(), Vec::new(), 0);
        while schedules.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(line) = lines.next().map_err(failed)? else { break };
            match make(&line, &mut maker, client) {
                Ok(schedule) => {
                    bytes += line.text.map_or(0, <[u8]>::len);
                    numbers.push(line.number);
                    schedules.push(schedule);
                }
                Err(_) => skipped += 1,
            }
        }
        if schedules.is_empty() || chunks.blocking_send(Chunk { schedules, lines: numbers }).is_err() {
            return Ok(skipped);
        }
    }
}
