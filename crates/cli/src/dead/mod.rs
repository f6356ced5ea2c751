//! `mtimer dead`: timers that are not delivered by themselves any more.

mod rights;
mod rows;
mod work;

use clap::{Args, Subcommand};
use mtimer_client::{Client, TimerId, TimerState, TimerView};
use serde_json::{Map, Value, json};

use super::args::ClientArgs;
use super::aside::AsideRow;
use super::confirm::Yes;
use super::exit::{Exit, Failure};
use super::output::{Output, TextTable, counted, note, plain};
use super::{moment, view};
use rows::RetainedFilter;
use work::{DeadAction, Which};

/// Dead letters: list, inspect, deliver again, remove
///
/// A timer becomes a dead letter when its retries are used up, its handler has failed it for good,
/// or a cancel came too late and stopped what would have followed. Unconfirmed ones are
/// at-most-once timers that were sent and never confirmed; nobody knows whether their handler ran,
/// so they are never sent again by themselves.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:\n  mtimer dead list --group shop\n  \
    mtimer dead replay --group shop --app mail --dry-run")]
pub(crate) enum Dead {
    List(DeadList),
    Unconfirmed(UnconfirmedList),
    Get(GetDead),
    Replay(Replay),
    Purge(Purge),
}

/// Lists dead letters, oldest first in each partition
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead list\n  mtimer dead list --group shop --json | jq -r .id")]
pub(crate) struct DeadList {
    #[command(flatten)]
    args: ListArgs,
}

/// Lists at-most-once timers that were sent and never confirmed
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead unconfirmed\n  \
    mtimer dead unconfirmed --group shop --json | jq -r .id")]
pub(crate) struct UnconfirmedList {
    #[command(flatten)]
    args: ListArgs,
}

#[derive(Args, Debug)]
struct ListArgs {
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

/// Delivers dead letters again, now, with a new retry budget
///
/// Those that die again meanwhile are not replayed a second time. One whose key names another live
/// timer by now stays where it is (exit code 7, or 9 among others).
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead replay 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer dead replay --group shop --app mail --dry-run\n  mtimer dead replay --all")]
pub(crate) struct Replay {
    #[command(flatten)]
    which: Which,
}

/// Removes dead letters for good
///
/// Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer dead purge 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer dead purge --group shop --app mail --dry-run\n  mtimer dead purge --all --yes")]
pub(crate) struct Purge {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    yes: Yes,
}

impl Dead {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::List(DeadList { args }) => args.run(false, out).await,
            Self::Unconfirmed(UnconfirmedList { args }) => args.run(true, out).await,
            Self::Get(get) => get.run(out).await,
            Self::Replay(replay) => replay.which.run(DeadAction::Replay, out).await,
            Self::Purge(Purge { which, yes }) => {
                if let Some(named) = which.named().filter(|_| !which.is_dry_run()) {
                    yes.confirm(&format!("this removes {named} for good"))?;
                }
                which.run(DeadAction::Purge, out).await
            }
        }
    }
}

/// Rows of a table that are lined up together.
const TABLE_ROWS: u64 = 500;

impl ListArgs {
    async fn run(self, unconfirmed: bool, out: Output) -> Result<(), Failure> {
        let Self { group, app, limit, client } = self;
        let filter = RetainedFilter { group, app, unconfirmed };
        client.looking(async |client| list_rows(client, filter, limit, out).await).await
    }
}

async fn list_rows(client: &Client, filter: RetainedFilter, limit: u64, out: Output) -> Result<(), Failure> {
    rights::to_read(client, &filter).await?;
    let unconfirmed = filter.unconfirmed;
    let mut rows = filter.rows(client).await?;
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
        let what = if unconfirmed { "unconfirmed timer" } else { "dead letter" };
        note(&counted(shown, what));
    }
    Ok(())
}

fn new_table() -> TextTable<7> {
    TextTable::new(["id", "destination", "key", "since", "reason", "attempts", "last error"])
}

fn add_row(table: &mut TextTable<7>, row: &AsideRow) {
    let timer = row.timer();
    let reason = match row {
        AsideRow::Dead(row) => json!(row.reason).as_str().unwrap_or_default().to_owned(),
        AsideRow::Unconfirmed(_) => "unconfirmed".to_owned(),
        AsideRow::Live(_) => String::new(),
    };
    let (attempts, error) = row.history();
    table.row([
        timer.id.to_string(),
        plain(&timer.dest.to_string(), 40),
        timer.key.as_ref().map(|key| plain(key.as_str(), 30)).unwrap_or_default(),
        moment::shown(row.since()),
        reason,
        attempts.to_string(),
        plain(error, 60),
    ]);
}

impl GetDead {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let object = self.client.looking(async |client| self.object(client).await).await?;
        out.either(&object, || view::fields(&object, out))
    }

    async fn object(&self, client: &Client) -> Result<Map<String, Value>, Failure> {
        let missing = || Failure::new(Exit::NotFound, format!("{} is neither dead nor unconfirmed", self.id));
        let found = client.get(self.id).await?.ok_or_else(missing)?;
        row_of(client, &found).await?.ok_or_else(missing)
    }
}

/// Looks for a timer among the dead or unconfirmed ones of its destination. `None`: it is neither,
/// or is no longer.
pub(crate) async fn row_of(
    client: &Client,
    found: &TimerView,
) -> Result<Option<Map<String, Value>>, Failure> {
    // Where it stands tells which listing has the rest.
    let unconfirmed = match found.state {
        TimerState::Dead => false,
        TimerState::Unconfirmed => true,
        _ => return Ok(None),
    };
    let (id, dest) = (found.timer.id, &found.timer.dest);
    let (group, app) = (Some(dest.group().to_owned()), Some(dest.app().to_owned()));
    let mut rows = RetainedFilter { group, app, unconfirmed }.rows(client).await?;
    while let Some(row) = rows.next().await? {
        if row.timer().id == id {
            return Ok(Some(row.object()));
        }
    }
    Ok(None)
}
