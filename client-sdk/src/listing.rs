//! Listings, which are fetched page by page.

use std::collections::VecDeque;

use mtimer_protocol::{DeadRow, Query, QueryAnswer, TimerView, UnconfirmedRow};
use mtimer_types::Destination;

use crate::answer::DeadFilter;
use crate::{Client, RequestError};

type Cursor = (u16, u64);

/// What a [`Listing`] lists.
#[derive(Clone, Debug)]
pub(crate) enum ListingOf {
    Dead(DeadFilter),
    Unconfirmed,
    Parked(Destination),
    Taken,
}

impl ListingOf {
    fn query(&self, cursor: Option<Cursor>, limit: u32) -> Query {
        match self {
            Self::Dead(DeadFilter { group, app }) => {
                Query::Dead { group: group.clone(), app: app.clone(), cursor, limit }
            }
            Self::Unconfirmed => Query::Unconfirmed { cursor, limit },
            Self::Parked(dest) => Query::Parked { dest: dest.clone(), cursor, limit },
            Self::Taken => Query::Taken { cursor, limit },
        }
    }
}

/// A row type of a [`Listing`].
pub(crate) trait ListingRow: Sized {
    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)>;
}

impl ListingRow for DeadRow {
    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)> {
        match answer {
            QueryAnswer::Dead { rows, next } => Some((rows, next)),
            _ => None,
        }
    }
}

impl ListingRow for UnconfirmedRow {
    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)> {
        match answer {
            QueryAnswer::Unconfirmed { rows, next } => Some((rows, next)),
            _ => None,
        }
    }
}

impl ListingRow for TimerView {
    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)> {
        match answer {
            QueryAnswer::Timers { rows, next } => Some((rows, next)),
            _ => None,
        }
    }
}

/// Lists rows, fetched page by page as they are read.
///
/// Rows that come or go while it is read may or may not be in it; all others are in it exactly
/// once.
#[derive(Debug)]
pub struct Listing<T> {
    client: Client,
    of: ListingOf,
    page: u32,
    rows: VecDeque<T>,
    cursor: Option<Cursor>,
    end: bool,
}

impl<T> Listing<T> {
    pub(crate) fn new(client: Client, of: ListingOf) -> Self {
        Self { client, of, page: crate::limits::MAX_PAGE, rows: VecDeque::new(), cursor: None, end: false }
    }

    /// Fetches at most this many rows at once: 1 to 1,000, which is the default.
    pub fn page(mut self, rows: u32) -> Self {
        self.page = rows.clamp(1, crate::limits::MAX_PAGE);
        self
    }
}

macro_rules! listing {
    ($row:ty) => {
        impl Listing<$row> {
            /// Returns the next row; `None` at the end.
            ///
            /// # Errors
            ///
            /// [`RequestError`]. The next call tries again where this one failed.
            ///
            /// # Cancel safety
            ///
            /// May be dropped and called again: no row is lost.
            pub async fn next(&mut self) -> Result<Option<$row>, RequestError> {
                while self.rows.is_empty() && !self.end {
                    self.fetch().await?;
                }
                Ok(self.rows.pop_front())
            }

            /// Returns all rows that are left.
            ///
            /// # Errors
            ///
            /// [`RequestError`]; the rows that were read by then are lost.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future loses the rows that were read. It changes nothing at the
            /// brokers.
            pub async fn all(mut self) -> Result<Vec<$row>, RequestError> {
                while !self.end {
                    self.fetch().await?;
                }
                Ok(self.rows.into())
            }

            async fn fetch(&mut self) -> Result<(), RequestError> {
                let query = self.of.query(self.cursor, self.page);
                let answer = self.client.query(query).await?;
                let (rows, next) = <$row as ListingRow>::rows(answer).ok_or(RequestError::Mismatched)?;
                self.rows.extend(rows);
                self.cursor = next;
                self.end = next.is_none();
                Ok(())
            }
        }
    };
}

listing!(DeadRow);
listing!(UnconfirmedRow);
listing!(TimerView);
