//! Sends what the lines of a file say, in chunks, at full speed.
//!
//! Invariant: a thread reads ahead by a few chunks and no further, so memory does not depend on the
//! file; a chunk of which nothing could be stored ends it, instead of a wait for every line that is
//! left.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::ProgressBar;
use tokio::sync::mpsc;

use super::reader::{InputSource, Numbered};
use crate::exit::{Exit, Failure};
use crate::signals::StopSignal;

/// Lines of a chunk at most, and about how many bytes.
const CHUNK: usize = 1_000;
const CHUNK_BYTES: usize = 1024 * 1024;
/// Chunks on their way, and chunks read ahead.
const IN_FLIGHT: usize = 16;
const AHEAD: usize = 4;

/// What is sent together, and of which lines it is.
struct Chunk<T, L> {
    items: Vec<T>,
    lines: Vec<L>,
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

/// Sends what `make` makes of the lines, and has the answers taken in; `None`: a line is left out.
/// Returns how many were left out, and why the rest was not sent.
pub(crate) async fn send_chunks<T: Send + 'static, L: Send + 'static, R>(
    source: InputSource,
    make: impl FnMut(&Numbered<'_>) -> Option<(T, L)> + Send + 'static,
    (bar, stop): (&ProgressBar, &StopSignal),
    send: impl AsyncFn(Vec<T>) -> Vec<R>,
    mut answered: impl FnMut(&[L], &[R]) -> Result<Option<CutShort>, Failure>,
) -> Result<(u64, Option<CutShort>), Failure> {
    let (sender, mut chunks) = mpsc::channel(AHEAD);
    let reading = tokio::task::spawn_blocking(move || read(source, make, &sender));
    let (mut cut, mut ended) = (None, false);
    let (mut running, send) = (FuturesUnordered::new(), &send);
    loop {
        tokio::select! {
            biased;
            () = stop.asked(), if !ended => {
                (cut, ended) = (Some(CutShort::Interrupted), true);
                chunks.close();
            }
            Some((lines, results)) = running.next() => {
                let (lines, results): (Vec<L>, Vec<R>) = (lines, results);
                let stuck = answered(&lines, &results)?;
                bar.inc(lines.len() as u64);
                if stuck.is_some() && !ended {
                    (cut, ended) = (stuck, true);
                    chunks.close();
                }
            }
            chunk = chunks.recv(), if !ended && running.len() < IN_FLIGHT => match chunk {
                Some(Chunk { items, lines }) => running.push(async move { (lines, send(items).await) }),
                None => ended = true,
            },
            else => break,
        }
    }
    // Lines that were read ahead are not wanted any more; the reader must not wait for the queue.
    drop(chunks);
    let left_out = reading.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))??;
    Ok((left_out, cut))
}

/// Reads the lines into chunks, as long as somebody takes them; returns how many it left out.
fn read<T, L>(
    mut source: InputSource,
    mut make: impl FnMut(&Numbered<'_>) -> Option<(T, L)>,
    chunks: &mpsc::Sender<Chunk<T, L>>,
) -> Result<u64, Failure> {
    let failed =
        |e: std::io::Error| Failure::new(Exit::Failed, format!("cannot read the file a second time: {e}"));
    let mut lines = source.lines().map_err(failed)?;
    let mut left_out = 0;
    loop {
        let (mut chunk, mut bytes) = (Chunk { items: Vec::new(), lines: Vec::new() }, 0);
        while chunk.items.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(line) = lines.next().map_err(failed)? else { break };
            let Some((item, of)) = make(&line) else {
                left_out += 1;
                continue;
            };
            bytes += line.text.map_or(0, <[u8]>::len);
            chunk.items.push(item);
            chunk.lines.push(of);
        }
        if chunk.items.is_empty() || chunks.blocking_send(chunk).is_err() {
            return Ok(left_out);
        }
    }
}

/// The last error of a chunk of which nothing could be stored, for reasons that the next one will
/// meet as well.
pub(crate) fn stuck<'a, T: 'a, E: 'a>(
    results: impl IntoIterator<Item = &'a Result<T, E>>,
    exit_of: impl Fn(&E) -> Exit,
) -> Option<(Exit, &'a E)> {
    let mut last = None;
    for result in results {
        let error = result.as_ref().err()?;
        let exit = exit_of(error);
        if !matches!(exit, Exit::NoConnection | Exit::NotNow | Exit::Unknown | Exit::Interrupted) {
            return None;
        }
        last = Some((exit, error));
    }
    last
}
