//! Looks at a whole export before anything of it is sent.

use std::collections::HashSet;
use std::path::PathBuf;

use mtimer_client::{ForeignTimer, Time, TimerId};

use crate::exit::{Exit, Failure};
use crate::exported::{ExportLine, Header, Trailer};
use crate::file::reader::{InputSource, MAX_LINE, Numbered};
use crate::file::report::Problems;
use crate::progress;
use crate::signals::StopSignal;

/// How often the reader looks up from its work, in lines.
const LOOK_UP: u64 = 1_000;
/// Ids that are kept.
const SOME: usize = 100;

/// An export that was read once.
pub(super) struct CheckedExport {
    pub(super) source: InputSource,
    pub(super) header: Header,
    /// `None`: it was cut off.
    pub(super) trailer: Option<Trailer>,
    /// Lines of timers, bad ones included.
    pub(super) lines: u64,
    /// Timers that are to be sent.
    pub(super) timers: u64,
    /// The line of the trailer: what is behind it is not of the export.
    pub(super) end: u64,
    /// Lines of timers that have a later one.
    pub(super) superseded: HashSet<u64>,
    pub(super) bad: Problems,
    /// Old ids of some timers, with due times of all kinds.
    pub(super) some: Vec<TimerId>,
}

/// Reads the whole file once.
pub(super) async fn check(path: PathBuf, stop: StopSignal) -> Result<CheckedExport, Failure> {
    let reading = tokio::task::spawn_blocking(move || read(InputSource::open(&path)?, &stop));
    reading.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?
}

/// What a line is, or what is wrong with it.
pub(super) fn parse(line: &Numbered<'_>) -> Result<ExportLine, String> {
    let text = line.text.ok_or_else(|| format!("it has more than {MAX_LINE} bytes"))?;
    ExportLine::parse(text)
}

/// The id of a line that is no valid one.
fn id_of(line: &Numbered<'_>) -> Option<TimerId> {
    #[derive(serde::Deserialize)]
    struct Named {
        id: TimerId,
    }
    serde_json::from_slice::<Named>(line.text?).ok().map(|named| named.id)
}

/// The timer of a line. `None`: it is none.
pub(super) fn timer(line: ExportLine, exported: Time) -> Option<Result<ForeignTimer, String>> {
    match line {
        ExportLine::Timer(line) => Some(line.foreign(exported)),
        ExportLine::Header(_) | ExportLine::Trailer(_) => None,
    }
}

fn read(mut source: InputSource, stop: &StopSignal) -> Result<CheckedExport, Failure> {
    let bar = progress::bytes("checking", source.len);
    let failed = |e: std::io::Error| Failure::new(Exit::Failed, format!("cannot read the file: {e}"));
    let mut lines = source.lines().map_err(failed)?;
    let header = match lines.next().map_err(failed)?.map(|line| parse(&line)) {
        Some(Ok(ExportLine::Header(header))) => header,
        Some(Err(why)) => return Err(Failure::new(Exit::Refused, format!("the first line: {why}"))),
        Some(Ok(_)) | None => {
            let text =
                "the file does not begin as an export does: mtimer schedule --file reads timers of your own";
            return Err(Failure::new(Exit::Refused, text));
        }
    };
    let (mut trailer, mut end, mut count, mut bad) = (None, u64::MAX, 0, Problems::default());
    // By id, and in its order: a timer that moved while it was exported has several lines.
    let mut ids: Vec<(TimerId, u64)> = Vec::new();
    // What is not valid supersedes earlier lines all the same: the timer had moved.
    let mut bad_lines = HashSet::new();
    while let Some(line) = lines.next().map_err(failed)? {
        let number = line.number;
        match parse(&line) {
            _ if trailer.is_some() => bad.add(number, "it is behind the end of the export"),
            Ok(ExportLine::Trailer(found)) => (trailer, end) = (Some(found), number),
            Ok(ExportLine::Header(_)) => {
                bad.add(number, "another export begins here: import each of its own")
            }
            Ok(ExportLine::Timer(line)) => {
                count += 1;
                ids.push((line.id, number));
                if let Err(why) = line.foreign(header.time_ms) {
                    bad_lines.insert(number);
                    bad.add(number, why);
                }
            }
            Err(why) => {
                count += 1;
                if let Some(id) = id_of(&line) {
                    ids.push((id, number));
                    bad_lines.insert(number);
                }
                bad.add(number, why);
            }
        }
        if number.is_multiple_of(LOOK_UP) {
            bar.set_position(lines.read);
            if stop.is_asked() {
                break;
            }
        }
    }
    bar.finish_and_clear();
    ids.sort_unstable();
    let pairs = ids.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let superseded: HashSet<u64> = pairs.map(|pair| pair[0].1).collect();
    let is_sent = |(_, line): &&(TimerId, u64)| !superseded.contains(line) && !bad_lines.contains(line);
    let timers = ids.iter().filter(is_sent).count() as u64;
    let some = ids.iter().step_by(ids.len().div_ceil(SOME).max(1)).map(|(id, _)| *id).collect();
    Ok(CheckedExport { source, header, trailer, lines: count, timers, end, superseded, bad, some })
}
