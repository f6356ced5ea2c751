//! The timers that `mtimer list --state` shows beside those that wait: each state in turn.

use clap::ValueEnum;
use mtimer_client::{
    Client, DeadFilter, DeadRow, Destination, DestinationFilter, Filter, RequestError, Time, Timer,
    TimerView, UnconfirmedRow,
};
use serde_json::{Map, Value};

use super::output::{TextTable, plain};
use super::{moment, view};

/// Characters of a payload in a table.
pub(crate) const PAYLOAD_SHOWN: usize = 60;

/// Where timers are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum ListedState {
    /// Wait for their due time or a retry, or are being delivered
    Waiting,
    /// Due, and nobody takes them
    Parked,
    /// Are being delivered at most once
    Taken,
    /// Were sent at most once, and never confirmed
    Unconfirmed,
    /// Dead letters
    Dead,
}

/// A timer that does not wait.
pub(crate) enum AsideRow {
    /// Parked or taken.
    Live(Box<TimerView>),
    Unconfirmed(Box<UnconfirmedRow>),
    Dead(Box<DeadRow>),
}

impl AsideRow {
    fn timer(&self) -> &Timer {
        match self {
            Self::Live(row) => &row.timer,
            Self::Unconfirmed(row) => &row.timer,
            Self::Dead(row) => &row.timer,
        }
    }

    /// The object that `get` shows, with or without the payload, and the size of that.
    pub(crate) fn object(&self, payload: bool) -> Map<String, Value> {
        let mut object = match self {
            Self::Live(row) => view::timer_object(row),
            Self::Unconfirmed(row) => view::unconfirmed_object(row),
            Self::Dead(row) => view::dead_object(row),
        };
        if !payload {
            object.remove("payload");
            object.remove("payload_base64");
        }
        object.insert("payload_bytes".to_owned(), self.timer().payload.len().into());
        object
    }

    /// Since when it is there: when it was due, or has died.
    fn since(&self) -> Time {
        match self {
            Self::Live(row) => row.timer.due,
            Self::Unconfirmed(row) => row.timer.due,
            Self::Dead(row) => row.died,
        }
    }

    /// Its state, its failed attempts, and its last error.
    fn history(&self) -> (&'static str, u32, Option<&str>) {
        match self {
            Self::Live(row) => (view::state(row.state), row.failed, row.last_error.as_deref()),
            Self::Unconfirmed(_) => ("unconfirmed", 1, None),
            Self::Dead(row) => ("dead", row.attempts, row.last_error.as_deref()),
        }
    }
}

/// An empty table of such rows.
pub(crate) fn new_table(payloads: bool) -> TextTable<7> {
    let last = if payloads { "payload" } else { "last error" };
    TextTable::new(["since", "id", "destination", "key", "state", "attempts", last])
}

/// Adds a row.
pub(crate) fn add_row(table: &mut TextTable<7>, row: &AsideRow, payloads: bool) {
    let timer = row.timer();
    let (state, attempts, error) = row.history();
    table.row([
        moment::shown(row.since()),
        timer.id.to_string(),
        plain(&timer.dest.to_string(), 40),
        timer.key.as_ref().map(|key| plain(key.as_str(), 30)).unwrap_or_default(),
        state.to_owned(),
        attempts.to_string(),
        if payloads {
            view::payload_shown(&timer.payload, PAYLOAD_SHOWN)
        } else {
            plain(error.unwrap_or_default(), 60)
        },
    ]);
}

/// The rows of one state that pass a filter.
pub(crate) struct AsideRows {
    filter: Filter,
    rows: Rows,
}

enum Rows {
    Parked { client: Client, dests: Vec<Destination>, rows: Option<mtimer_client::Listing<TimerView>> },
    Taken(mtimer_client::Listing<TimerView>),
    Unconfirmed(mtimer_client::Listing<UnconfirmedRow>),
    Dead(mtimer_client::Listing<DeadRow>),
}

impl AsideRows {
    /// Those of a state; `None`: it is that of timers that wait.
    pub(crate) async fn of(
        client: &Client,
        state: ListedState,
        filter: Filter,
    ) -> Result<Option<Self>, RequestError> {
        let (group, app) = (filter.group.clone(), filter.app.clone());
        let rows = match state {
            ListedState::Waiting => return Ok(None),
            ListedState::Parked => {
                let counts = client.destinations(DestinationFilter { group, app }).await?;
                let parked = counts.rows.into_iter().filter(|row| row.parked > 0);
                let dests = parked.map(|row| row.dest).rev().collect();
                Rows::Parked { client: client.clone(), dests, rows: None }
            }
            ListedState::Taken => Rows::Taken(client.taken()),
            ListedState::Unconfirmed => Rows::Unconfirmed(client.unconfirmed()),
            ListedState::Dead => Rows::Dead(client.dead(DeadFilter { group, app })),
        };
        Ok(Some(Self { filter, rows }))
    }

    /// The next row; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<AsideRow>, RequestError> {
        while let Some(row) = self.rows.next().await? {
            if self.filter.accepts(row.timer()) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

impl Rows {
    async fn next(&mut self) -> Result<Option<AsideRow>, RequestError> {
        let live = |row: TimerView| AsideRow::Live(row.into());
        Ok(match self {
            Self::Taken(rows) => rows.next().await?.map(live),
            Self::Unconfirmed(rows) => rows.next().await?.map(|row| AsideRow::Unconfirmed(row.into())),
            Self::Dead(rows) => rows.next().await?.map(|row| AsideRow::Dead(row.into())),
            Self::Parked { client, dests, rows } => loop {
                if let Some(row) = match rows {
                    Some(rows) => rows.next().await?,
                    None => None,
                } {
                    break Some(live(row));
                }
                let Some(dest) = dests.pop() else { break None };
                *rows = Some(client.parked(&dest));
            },
        })
    }
}
