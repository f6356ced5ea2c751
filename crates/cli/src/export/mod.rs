//! `mtimer export`: every timer of a cluster as a line of JSON, for `mtimer import`.

mod observed;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use mtimer_client::{Client, DestinationFilter, Filter, ImportId, Info, Time};
use serde::Serialize;
use serde_json::json;

use self::observed::Observed;
use super::args::ClientArgs;
use super::aside::{AsideRows, AsideState};
use super::exit::{Exit, Failure};
use super::exported::{ExportLine, FORMAT, Header, LineState, TimerLine, Trailer};
use super::filter::FilterArgs;
use super::output::{Output, counted, grouped, note, to_line};
use super::signals::StopSignal;
use super::{moment, progress};

/// Writes every timer to a file, a line each: waiting, parked, taken, unconfirmed, dead
///
/// `mtimer import` reads it. A line has all that a timer is: its content, where it stands, its
/// attempts. Timers that an import has staged are left out. The last line says whether the file is
/// consistent: nothing was in flight, and brokers counted no change while it was written. If it is
/// not, it says why; a timer that moved meanwhile may be missing, or be in it twice. --check says
/// whether anything has changed since a file was written: ask that before you stop the brokers.
///
/// Payloads and keys are in the file as they are: keep it as you keep the store.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer export --out timers.ndjson\n  \
    mtimer export --group shop | gzip > shop.ndjson.gz\n  \
    mtimer export --out timers.ndjson --json | jq .consistent\n  \
    mtimer export --check timers.ndjson")]
pub(crate) struct ExportCommand {
    #[command(flatten)]
    filter: FilterArgs,
    /// The file, which must not exist; standard output without it, or if it is -
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fail (exit code 9) if the file is not consistent
    #[arg(long)]
    require_consistent: bool,
    /// Write nothing: say whether timers of the cluster have changed since this export, and fail
    /// (exit code 9) if they have
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "group", "app", "key_prefix", "header"])]
    check: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

/// States of timers that do not wait, in the order in which a timer goes through them: the last
/// line of a timer that has moved counts.
const ASIDE: [AsideState; 4] =
    [AsideState::Parked, AsideState::Taken, AsideState::Unconfirmed, AsideState::Dead];
/// More than the first and the last line have, in bytes.
const END_BYTES: u64 = 64 * 1024;

impl ExportCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        if let Some(path) = &self.check {
            return self.check(path, out).await;
        }
        let stop = StopSignal::on_signals("stopping: the file is not complete")?;
        let write = async |client: &Client| {
            let path = self.out.as_deref().filter(|path| *path != Path::new("-"));
            let mut file = ExportFile::create(path)?;
            let trailer = self.write(client, &mut file, &stop).await?;
            file.close()?;
            Ok(trailer)
        };
        let trailer = self.client.looking(write).await?;
        self.tell(&trailer, out)?;
        match trailer.consistent || !self.require_consistent {
            true => Ok(()),
            false => Err(Failure::silent(Exit::Partly)),
        }
    }

    /// Says what has changed since a file was written.
    async fn check(&self, path: &Path, out: Output) -> Result<(), Failure> {
        let (header, trailer) = ends_of(path)?;
        let now = self.client.looking(async |client| {
            let cluster = client.info().cluster.clone();
            if cluster != header.cluster {
                let text =
                    format!("the file is of the cluster {:?}, and this is {cluster:?}", header.cluster);
                return Err(Failure::new(Exit::Refused, text));
            }
            Ok(Observed::of(client).await)
        });
        let why = Observed::of_file(&trailer).changes_until(&now.await?);
        let object = json!({ "consistent": why.is_empty(), "timers": trailer.timers, "why": why });
        out.either(&object, || match why.is_empty() {
            true => "consistent: nothing has changed since".to_owned(),
            false => format!("changed since the export, or not consistent: {}", why.join("; ")),
        })?;
        if why.is_empty() { Ok(()) } else { Err(Failure::silent(Exit::Partly)) }
    }

    fn tell(&self, trailer: &Trailer, out: Output) -> Result<(), Failure> {
        if self.out.as_deref().is_some_and(|path| path != Path::new("-")) && out.json {
            return out.object(trailer);
        }
        let states: Vec<String> =
            trailer.by_state.iter().map(|(state, n)| format!("{} {state}", grouped(*n))).collect();
        let states = if states.is_empty() { String::new() } else { format!(" ({})", states.join(", ")) };
        note(&format!("{} written{states}", counted(trailer.timers, "timer")));
        if trailer.staged > 0 {
            let text = "that an import has staged: left out; release or withdraw them first";
            note(&format!("{} {text}", counted(trailer.staged, "timer")));
        }
        match trailer.consistent {
            true => note("consistent: nothing was in flight, and nothing changed meanwhile"),
            false => note(&format!("not consistent: {}", trailer.why.join("; "))),
        }
        Ok(())
    }

    async fn write(
        &self,
        client: &Client,
        file: &mut ExportFile,
        stop: &StopSignal,
    ) -> Result<Trailer, Failure> {
        let (info, filter) = (client.info(), self.filter.filter());
        let before = Observed::of(client).await;
        file.line(&self.header(&info, client.now()))?;
        let (bar, staged) = self.bar(client, &filter).await?;
        let mut lines = Lines::default();
        let mut waiting = client.list(filter.clone()).page(u32::MAX).with_payloads();
        while let Some(row) = waiting.next().await? {
            lines.add(file, &TimerLine::waiting(&row), &bar)?;
            stopped(stop)?;
        }
        for state in ASIDE {
            let any = Time::ZERO..=Time::MAX;
            let mut rows = AsideRows::of(client, state, filter.clone(), any).await?;
            while let Some(row) = rows.next().await? {
                lines.add(file, &TimerLine::aside(&row), &bar)?;
                stopped(stop)?;
            }
        }
        bar.finish_and_clear();
        let after = Observed::of(client).await;
        let mut why = before.changes_until(&after);
        for state in [LineState::InFlight, LineState::Taken].map(LineState::name) {
            let n = lines.by_state.get(state).copied().unwrap_or(0);
            if n > 0 && why.is_empty() {
                why.push(format!("{} {state} when listed", counted(n, "timer")));
            }
        }
        let trailer = Trailer {
            mtimer_export_end: FORMAT,
            timers: lines.count,
            by_state: lines.by_state,
            consistent: why.is_empty(),
            why,
            staged,
            counters: after.counters,
            time_ms: client.now(),
        };
        file.line(&trailer)?;
        Ok(trailer)
    }

    fn header(&self, info: &Info, now: Time) -> Header {
        let FilterArgs { group, app, key_prefix, header } = &self.filter;
        let header = header.as_ref().map(|(name, value)| format!("{name}={value}"));
        let of = [("group", group), ("app", app), ("key-prefix", key_prefix), ("header", &header)];
        let only = of.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
        Header {
            mtimer_export: FORMAT,
            id: ImportId(rand::random()),
            cluster: info.cluster.clone(),
            partitions: info.partitions,
            time_ms: now,
            time: moment::shown(now),
            only: only.collect(),
        }
    }

    /// The bar, and how many timers are left out because imports have staged them.
    async fn bar(&self, client: &Client, filter: &Filter) -> Result<(ProgressBar, u64), Failure> {
        let (group, app) = (filter.group.clone(), filter.app.clone());
        let counts = client.destinations(DestinationFilter { group, app }).await?;
        let total = counts.rows.iter().map(|row| row.total() - row.staged).fold(0, u64::saturating_add);
        let is_known = filter.key_prefix.is_none() && filter.header.is_none() && counts.uncounted == 0;
        let staged = counts.rows.iter().map(|row| row.staged).fold(0, u64::saturating_add);
        let bar = if is_known { progress::bar("written", total) } else { progress::counter("written") };
        Ok((bar, staged))
    }
}

fn stopped(stop: &StopSignal) -> Result<(), Failure> {
    if stop.is_asked() { Err(Failure::silent(Exit::Interrupted)) } else { Ok(()) }
}

/// What was written so far.
#[derive(Default)]
struct Lines {
    count: u64,
    by_state: BTreeMap<String, u64>,
}

impl Lines {
    fn add(&mut self, file: &mut ExportFile, line: &TimerLine, bar: &ProgressBar) -> Result<(), Failure> {
        file.line(line)?;
        self.count += 1;
        let state: LineState = line.state;
        *self.by_state.entry(state.name().to_owned()).or_default() += 1;
        bar.inc(1);
        Ok(())
    }
}

/// Makes a file that its owner alone reads. Two exports in one file would be none.
fn new_file(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| Failure::file("create", path, &error))
}

/// The first line of an export and the last one.
fn ends_of(path: &Path) -> Result<(Header, Trailer), Failure> {
    let failed = |error: io::Error| Failure::file("read", path, &error);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut first = Vec::new();
    (&mut file).take(END_BYTES).read_until(b'\n', &mut first).map_err(failed)?;
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES))).map_err(failed)?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).map_err(failed)?;
    let last = end.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    match (ExportLine::parse(&first), ExportLine::parse(last)) {
        (Ok(ExportLine::Header(header)), Ok(ExportLine::Trailer(trailer))) => Ok((header, trailer)),
        (Ok(ExportLine::Header(_)), _) => {
            let text = format!("{} has no end: its export was cut off", path.display());
            Err(Failure::new(Exit::Refused, text))
        }
        _ => {
            let text = format!("{} does not begin as an export does", path.display());
            Err(Failure::new(Exit::Refused, text))
        }
    }
}

/// Where an export goes.
struct ExportFile {
    path: Option<PathBuf>,
    to: BufWriter<Box<dyn Write>>,
    /// The same as `to`, unless that is standard output.
    file: Option<File>,
}

impl ExportFile {
    fn create(path: Option<&Path>) -> Result<Self, Failure> {
        let file = path.map(new_file).transpose()?;
        let to: Box<dyn Write> = match (path, &file) {
            (Some(path), Some(file)) => {
                Box::new(file.try_clone().map_err(|error| Failure::file("create", path, &error))?)
            }
            _ => Box::new(io::stdout()),
        };
        Ok(Self { path: path.map(Path::to_owned), to: BufWriter::with_capacity(256 * 1024, to), file })
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = to_line(value)?;
        let written = self.to.write_all(line.as_bytes()).and_then(|()| self.to.write_all(b"\n"));
        written.map_err(|error| self.failed(&error))
    }

    fn close(mut self) -> Result<(), Failure> {
        let synced = self.to.flush().and_then(|()| self.file.as_ref().map_or(Ok(()), File::sync_all));
        synced.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        match &self.path {
            Some(path) => Failure::file("write", path, error),
            None => Failure::output(error),
        }
    }
}
