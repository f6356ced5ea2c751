//! `mtimer dead`: what will not be delivered by itself any more.

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use mtimer_client::{Client, DeadFilter, DeadRow, Replayed, RequestError, Time, TimerId, UnconfirmedRow};
use serde_json::{Map, Value, json};

use super::args::ClientArgs;
use super::exit::{self, Exit, Failure};
use super::output::{Output, Table, grouped, note, plain};
use super::signals::Stop;
use super::{moment, progress, view};

/// Dead letters: list, inspect, deliver anew, remove
///
/// A timer becomes a dead letter when its retries are used up, its handler has failed it for good, or a cancel came too
/// late and stopped what would have followed. Unconfirmed ones are at-most-once timers that were sent and never
/// confirmed; nobody knows whether their handler ran, so they are never sent again by themselves.
#[derive(Subcommand, Debug)]
pub(crate) enum Dead {
    List(List),
    Unconfirmed(UnconfirmedList),
    Get(GetDead),
    Replay(Replay),
    Purge(Purge),
}

/// Lists dead letters, oldest first in each partition
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead list\n  mtimer dead list --group shop --json | jq -r .id")]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    #[command(flatten)]
    client: ClientArgs,
}

/// Lists at-most-once timers that were sent and never confirmed
#[derive(Args, Debug)]
pub(crate) struct UnconfirmedList {
    /// Only of this group
    #[arg(long)]
    group: Option<String>,
    /// Only of this app
    #[arg(long)]
    app: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    #[command(flatten)]
    client: ClientArgs,
}

/// Shows a dead letter with everything about it
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  mtimer dead get 01jz8q4v3c0000g5m3x9w2k7ha")]
pub(crate) struct GetDead {
    /// The timer's id
    id: TimerId,
    #[command(flatten)]
    client: ClientArgs,
}

/// Delivers dead letters anew, now, with a new retry budget
///
/// Those that die again meanwhile are not replayed a second time. One whose key names another live timer by now stays
/// where it is (exit code 7, or 9 among others).
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead replay 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer dead replay --group shop --app mail --dry-run\n  mtimer dead replay --all")]
pub(crate) struct Replay {
    #[command(flatten)]
    which: Which,
}

/// Removes dead letters for good
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead purge 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer dead purge --group shop --app mail --dry-run\n  mtimer dead purge --all")]
pub(crate) struct Purge {
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Clone, Debug)]
struct Filter {
    /// Only of this group
    #[arg(long)]
    group: Option<String>,
    /// Only of this app
    #[arg(long)]
    app: Option<String>,
    /// At-most-once timers that were never confirmed, instead of dead letters
    #[arg(long)]
    unconfirmed: bool,
}

#[derive(Args, Debug)]
struct Which {
    /// Ids of timers
    #[arg(conflicts_with_all = ["group", "app", "all"])]
    ids: Vec<TimerId>,
    #[command(flatten)]
    filter: Filter,
    /// All of them
    #[arg(long)]
    all: bool,
    /// Only say which it would be
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    client: ClientArgs,
}

impl Dead {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::List(list) => list_all(&list.client, list.filter, list.limit, out).await,
            Self::Unconfirmed(UnconfirmedList { group, app, limit, client }) => {
                list_all(&client, Filter { group, app, unconfirmed: true }, limit, out).await
            }
            Self::Get(get) => get.run(out).await,
            Self::Replay(replay) => replay.which.run(Work::Replay, out).await,
            Self::Purge(purge) => purge.which.run(Work::Purge, out).await,
        }
    }
}

/// A row of either listing.
enum Row {
    Dead(Box<DeadRow>),
    Unconfirmed(Box<UnconfirmedRow>),
}

impl Row {
    fn id(&self) -> TimerId {
        match self {
            Self::Dead(row) => row.timer.id,
            Self::Unconfirmed(row) => row.timer.id,
        }
    }

    fn object(&self) -> Map<String, Value> {
        match self {
            Self::Dead(row) => view::dead_object(row),
            Self::Unconfirmed(row) => view::unconfirmed_object(row),
        }
    }
}

/// The rows that pass a filter.
enum Rows {
    Dead(mtimer_client::Listing<DeadRow>),
    Unconfirmed(mtimer_client::Listing<UnconfirmedRow>, Filter),
}

impl Rows {
    fn new(client: &Client, filter: Filter) -> Self {
        if filter.unconfirmed {
            return Self::Unconfirmed(client.unconfirmed(), filter);
        }
        Self::Dead(client.dead(DeadFilter { group: filter.group, app: filter.app }))
    }

    async fn next(&mut self) -> Result<Option<Row>, RequestError> {
        match self {
            Self::Dead(rows) => Ok(rows.next().await?.map(|row| Row::Dead(Box::new(row)))),
            Self::Unconfirmed(rows, filter) => {
                while let Some(row) = rows.next().await? {
                    let dest = &row.timer.dest;
                    let passes = filter.group.as_deref().is_none_or(|g| g == dest.group())
                        && filter.app.as_deref().is_none_or(|a| a == dest.app());
                    if passes {
                        return Ok(Some(Row::Unconfirmed(Box::new(row))));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// Rows of a table that are lined up together.
const TABLE_ROWS: u64 = 500;

async fn list_all(args: &ClientArgs, filter: Filter, limit: u64, out: Output) -> Result<(), Failure> {
    args.with(async |client| list_rows(client, filter, limit, out).await).await
}

async fn list_rows(client: &Client, filter: Filter, limit: u64, out: Output) -> Result<(), Failure> {
    let unconfirmed = filter.unconfirmed;
    let mut rows = Rows::new(client, filter);
    let (mut shown, mut table) = (0, new_table());
    while shown < limit {
        let Some(row) = rows.next().await? else { break };
        shown += 1;
        if out.json {
            out.object(&row.object())?;
            continue;
        }
        add_row(&mut table, &row);
        if shown.is_multiple_of(TABLE_ROWS) {
            std::mem::replace(&mut table, new_table()).lines().try_for_each(|line| out.text(&line))?;
        }
    }
    if !out.json {
        if !shown.is_multiple_of(TABLE_ROWS) {
            table.lines().try_for_each(|line| out.text(&line))?;
        }
        let what = if unconfirmed { "unconfirmed timers" } else { "dead letters" };
        note(&format!("{} {what}", grouped(shown)));
    }
    Ok(())
}

fn new_table() -> Table {
    Table::new(["id", "destination", "key", "since", "reason", "attempts", "last error"])
}

fn add_row(table: &mut Table, row: &Row) {
    let timer = match row {
        Row::Dead(row) => &row.timer,
        Row::Unconfirmed(row) => &row.timer,
    };
    let name = plain(&timer.dest.to_string(), 40);
    let key = timer.key.as_ref().map(|k| plain(k.as_str(), 30)).unwrap_or_default();
    let (since, reason, attempts, error) = match row {
        Row::Dead(row) => {
            let reason = json!(row.reason).as_str().unwrap_or_default().to_owned();
            let error = row.last_error.as_deref().unwrap_or_default();
            (moment::shown(row.died), reason, row.attempts.to_string(), plain(error, 60))
        }
        Row::Unconfirmed(row) => {
            (moment::shown(row.timer.due), "unconfirmed".to_owned(), "1".to_owned(), String::new())
        }
    };
    table.row([timer.id.to_string(), name, key, since, reason, attempts, error]);
}

impl GetDead {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let object = self.client.with(async |client| self.object(client).await).await?;
        out.either(&object, || view::fields(&object, out))
    }

    async fn object(&self, client: &Client) -> Result<Map<String, Value>, Failure> {
        let missing = || Failure::new(Exit::NotFound, format!("{} is neither dead nor unconfirmed", self.id));
        // Where it stands tells which listing has the rest.
        let found = client.get(self.id).await?.ok_or_else(missing)?;
        let unconfirmed = match found.state {
            mtimer_client::TimerState::Dead => false,
            mtimer_client::TimerState::Unconfirmed => true,
            _ => return Err(missing()),
        };
        let dest = &found.timer.dest;
        let (group, app) = (Some(dest.group().to_owned()), Some(dest.app().to_owned()));
        let mut rows = Rows::new(client, Filter { group, app, unconfirmed });
        loop {
            let row = rows.next().await?.ok_or_else(missing)?;
            if row.id() == self.id {
                return Ok(row.object());
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Replay,
    Purge,
}

impl Work {
    fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Purge => "purged",
        }
    }
}

/// Timers worked on at once.
const CHUNK: usize = 1_000;

#[derive(Default)]
struct Count {
    matched: u64,
    done: u64,
    not_found: u64,
    key_taken: u64,
    failed: u64,
    exit: Option<Exit>,
}

impl Count {
    fn add(&mut self, id: TimerId, result: Result<Replayed, RequestError>) {
        let exit = match result {
            Ok(Replayed::Replayed) => {
                self.done += 1;
                return;
            }
            Ok(Replayed::NotFound) => {
                self.not_found += 1;
                Exit::NotFound
            }
            Ok(Replayed::KeyTaken(live)) => {
                self.key_taken += 1;
                note(&format!("{id}: its key names the live timer {live} by now"));
                Exit::Conflict
            }
            Err(error) => {
                self.failed += 1;
                note(&format!("{id}: {error}"));
                exit::of_request(&error)
            }
        };
        self.exit = Some(match self.exit {
            None => exit,
            Some(other) if other == exit => exit,
            Some(_) => Exit::Partly,
        });
    }
}

impl Which {
    async fn run(self, work: Work, out: Output) -> Result<(), Failure> {
        if self.ids.is_empty() && !self.all && self.filter.group.is_none() && self.filter.app.is_none() {
            return Err(Failure::usage("which ones? Give ids, or --group, --app or both, or --all"));
        }
        let stop = Stop::on_signals("stopping: waiting for the answers to what was sent")?;
        let work_on = async |client: &Client| {
            let mut count = Count::default();
            if self.ids.is_empty() {
                self.filtered(client, work, &mut count, &stop, out).await?;
            }
            for ids in self.ids.chunks(CHUNK) {
                self.chunk(client, work, ids.to_vec(), &mut count, out).await?;
            }
            Ok(count)
        };
        let count = self.client.with(work_on).await?;
        self.summary(work, &count, stop.is_asked(), out)
    }

    async fn filtered(
        &self,
        client: &Client,
        work: Work,
        count: &mut Count,
        stop: &Stop,
        out: Output,
    ) -> Result<(), Failure> {
        let bar: ProgressBar = progress::counter(work.done());
        // What dies from here on has been replayed already, or is none of what was asked for.
        let began: Time = client.now();
        let mut rows = Rows::new(client, self.filter.clone());
        let mut ids = Vec::new();
        while !stop.is_asked() {
            let row = rows.next().await?;
            let end = row.is_none();
            ids.extend(row.filter(|row| !matches!(row, Row::Dead(r) if r.died > began)).map(|row| row.id()));
            if ids.len() >= CHUNK || end {
                self.chunk(client, work, std::mem::take(&mut ids), count, out).await?;
                bar.set_position(count.matched);
            }
            if end {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn chunk(
        &self,
        client: &Client,
        work: Work,
        ids: Vec<TimerId>,
        count: &mut Count,
        out: Output,
    ) -> Result<(), Failure> {
        count.matched += ids.len() as u64;
        if self.dry_run {
            return ids.iter().try_for_each(|id| out.either(&json!({ "id": id }), || id.to_string()));
        }
        let results: Vec<Result<Replayed, RequestError>> = match work {
            Work::Replay => client.replay_all(ids.clone()).await,
            Work::Purge => {
                let purged = |there| if there { Replayed::Replayed } else { Replayed::NotFound };
                client.purge_all(ids.clone()).await.into_iter().map(|r| r.map(purged)).collect()
            }
        };
        ids.into_iter().zip(results).for_each(|(id, result)| count.add(id, result));
        Ok(())
    }

    fn summary(&self, work: Work, count: &Count, interrupted: bool, out: Output) -> Result<(), Failure> {
        let Count { matched, done, not_found, key_taken, failed, exit } = count;
        if self.dry_run {
            note(&format!("{} would be {}", grouped(*matched), work.done()));
        } else {
            let mut object = Map::new();
            object.insert(work.done().to_owned(), json!(done));
            for (name, value) in [("not_found", not_found), ("key_taken", key_taken), ("failed", failed)] {
                object.insert(name.to_owned(), json!(value));
            }
            out.either(&object, || {
                let mut text = format!("{} {}", grouped(*done), work.done());
                for (n, what) in
                    [(not_found, "not found"), (key_taken, "with a key that is taken"), (failed, "failed")]
                {
                    if *n > 0 {
                        text += &format!(", {} {what}", grouped(*n));
                    }
                }
                text
            })?;
        }
        match exit {
            None if interrupted => Err(Failure::silent(Exit::Interrupted)),
            None => Ok(()),
            // A filter has no claim to what was gone before its turn came.
            Some(Exit::NotFound) if self.ids.is_empty() => Ok(()),
            Some(_) if *done > 0 => Err(Failure::silent(Exit::Partly)),
            Some(exit) => Err(Failure::silent(*exit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_reasons_end_in_partly() {
        let id = TimerId::from_u128(1);
        let mut count = Count::default();
        count.add(id, Ok(Replayed::NotFound));
        assert_eq!(count.exit, Some(Exit::NotFound));
        count.add(id, Ok(Replayed::KeyTaken(id)));
        assert_eq!((count.exit, count.not_found, count.key_taken), (Some(Exit::Partly), 1, 1));
    }
}
