//! Timers that do not wait, state by state: what `mtimer list --state` and `mtimer dead` show.

use std::ops::RangeInclusive;

use mtimer_client::{
    Client, DeadFilter, DeadRow, Destination, DestinationFilter, Filter, Listing, RequestError, Time, Timer,
    TimerView, UnconfirmedRow,
};
use serde_json::{Map, Value};

use super::view;

/// Where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AsideState {
    Parked,
    Taken,
    Unconfirmed,
    Dead,
}

impl AsideState {
    /// Its name, before the word "timer".
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Taken => "taken",
            Self::Unconfirmed => "unconfirmed",
            Self::Dead => "dead",
        }
    }
}

/// A timer that does not wait.
pub(crate) enum AsideRow {
    /// Parked or taken.
    Live(Box<TimerView>),
    Unconfirmed(Box<UnconfirmedRow>),
    Dead(Box<DeadRow>),
}

impl AsideRow {
    pub(crate) fn timer(&self) -> &Timer {
        match self {
            Self::Live(row) => &row.timer,
            Self::Unconfirmed(row) => &row.timer,
            Self::Dead(row) => &row.timer,
        }
    }

    /// The object that `get` shows.
    pub(crate) fn object(&self) -> Map<String, Value> {
        match self {
            Self::Live(row) => view::timer_object(row),
            Self::Unconfirmed(row) => view::unconfirmed_object(row),
            Self::Dead(row) => view::dead_object(row),
        }
    }

    /// When it died or became unconfirmed; of a live one, when it was due.
    pub(crate) fn since(&self) -> Time {
        match self {
            Self::Live(row) => row.timer.due,
            Self::Unconfirmed(row) => row.since,
            Self::Dead(row) => row.died,
        }
    }

    /// Its failed attempts, and its last error.
    pub(crate) fn history(&self) -> (u32, &str) {
        match self {
            Self::Live(row) => (row.failed, row.last_error.as_deref().unwrap_or_default()),
            Self::Unconfirmed(row) => {
                (row.failed.saturating_add(1), row.last_error.as_deref().unwrap_or_default())
            }
            Self::Dead(row) => (row.attempts, row.last_error.as_deref().unwrap_or_default()),
        }
    }
}

/// The rows of one state that pass a filter.
pub(crate) struct AsideRows {
    filter: Filter,
    since: RangeInclusive<Time>,
    rows: Rows,
}

enum Rows {
    Parked { client: Client, dests: Vec<Destination>, rows: Option<Listing<TimerView>> },
    Taken(Listing<TimerView>),
    Unconfirmed(Listing<UnconfirmedRow>),
    Dead(Listing<DeadRow>),
}

impl AsideRows {
    /// Those of a state, as far as they are there since these times ([`AsideRow::since`]).
    pub(crate) async fn of(
        client: &Client,
        state: AsideState,
        filter: Filter,
        since: RangeInclusive<Time>,
    ) -> Result<Self, RequestError> {
        let (group, app) = (filter.group.clone(), filter.app.clone());
        let rows = match state {
            AsideState::Parked => {
                let counts = client.destinations(DestinationFilter { group, app }).await?;
                let parked = counts.rows.into_iter().filter(|row| row.parked > 0);
                let dests = parked.map(|row| row.dest).rev().collect();
                Rows::Parked { client: client.clone(), dests, rows: None }
            }
            AsideState::Taken => Rows::Taken(client.taken()),
            AsideState::Unconfirmed => Rows::Unconfirmed(client.unconfirmed()),
            AsideState::Dead => Rows::Dead(client.dead(DeadFilter { group, app })),
        };
        Ok(Self { filter, since, rows })
    }

    /// The next row; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<AsideRow>, RequestError> {
        while let Some(row) = self.rows.next().await? {
            if self.filter.accepts(row.timer()) && self.since.contains(&row.since()) {
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
