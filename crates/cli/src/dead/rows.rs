//! The two listings of dead and unconfirmed timers, as one.

use clap::Args;
use mtimer_client::{Client, DeadFilter, DeadRow, RequestError, TimerId, UnconfirmedRow};
use serde_json::{Map, Value};

use crate::view;

#[derive(Args, Clone, Debug)]
pub(super) struct Filter {
    /// Only of this group
    #[arg(long)]
    pub(super) group: Option<String>,
    /// Only of this app
    #[arg(long)]
    pub(super) app: Option<String>,
    /// At-most-once timers that were never confirmed, instead of dead letters
    #[arg(long)]
    pub(super) unconfirmed: bool,
}

/// A row of either listing.
pub(super) enum RetainedRow {
    Dead(Box<DeadRow>),
    Unconfirmed(Box<UnconfirmedRow>),
}

impl RetainedRow {
    pub(super) fn id(&self) -> TimerId {
        match self {
            Self::Dead(row) => row.timer.id,
            Self::Unconfirmed(row) => row.timer.id,
        }
    }

    pub(super) fn object(&self) -> Map<String, Value> {
        match self {
            Self::Dead(row) => view::dead_object(row),
            Self::Unconfirmed(row) => view::unconfirmed_object(row),
        }
    }
}

/// The rows that pass a filter.
pub(super) enum Rows {
    Dead(mtimer_client::Listing<DeadRow>),
    Unconfirmed(mtimer_client::Listing<UnconfirmedRow>, Filter),
}

impl Rows {
    pub(super) fn new(client: &Client, filter: Filter) -> Self {
        if filter.unconfirmed {
            return Self::Unconfirmed(client.unconfirmed(), filter);
        }
        Self::Dead(client.dead(DeadFilter { group: filter.group, app: filter.app }))
    }

    pub(super) async fn next(&mut self) -> Result<Option<RetainedRow>, RequestError> {
        match self {
            Self::Dead(rows) => Ok(rows.next().await?.map(|row| RetainedRow::Dead(Box::new(row)))),
            Self::Unconfirmed(rows, filter) => {
                while let Some(row) = rows.next().await? {
                    let dest = &row.timer.dest;
                    let passes = filter.group.as_deref().is_none_or(|g| g == dest.group())
                        && filter.app.as_deref().is_none_or(|a| a == dest.app());
                    if passes {
                        return Ok(Some(RetainedRow::Unconfirmed(Box::new(row))));
                    }
                }
                Ok(None)
            }
        }
    }
}
