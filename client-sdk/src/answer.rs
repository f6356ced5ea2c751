//! What a client gets back.

use std::collections::VecDeque;

use mtimer_protocol::{DeadRow, Query, QueryAnswer, UnconfirmedRow};
use mtimer_types::TimerId;

use crate::{Client, RequestError};

/// Answers a schedule: the timer is stored, at the durability level that [`Info::durability`]
/// names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scheduled {
    /// The timer's id. With [`Scheduled::kept`] it is the id of the timer that was there before.
    pub id: TimerId,
    /// False: an earlier request with the same content had stored it, or it was kept.
    pub new: bool,
    /// The live timer that this one replaced ([`KeyPolicy::Replace`](crate::KeyPolicy::Replace)).
    pub replaced: Option<TimerId>,
    /// The key named a live timer and that one stays ([`KeyPolicy::Keep`](crate::KeyPolicy::Keep)).
    pub kept: bool,
}

/// Answers a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// No delivery starts after this answer, by any broker.
    Cancelled(TimerId),
    /// Delivered, being delivered, or possibly so. No further attempt follows.
    TooLate(TimerId),
    /// Nothing of that name.
    NotFound,
}

/// Answers a reschedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rescheduled {
    /// The old time never fires. The id stays valid.
    Rescheduled(TimerId),
    /// Delivered, being delivered, or possibly so. Nothing changed.
    TooLate(TimerId),
    /// Nothing of that name.
    NotFound,
}

/// Answers a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// It is delivered again, with a new retry budget.
    Replayed,
    /// Neither a dead letter nor unconfirmed (any more: a request that is repeated because its
    /// answer was lost may have replayed it the first time, and it has ended since).
    NotFound,
    /// Its key names this live timer by now. Nothing changed.
    KeyTaken(TimerId),
}

/// Describes a broker and its cluster, in the broker's words of the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// The address the client is or was last connected to.
    pub broker: String,
    /// The session's number at that broker, for logs.
    pub session: u64,
    /// The cluster's name.
    pub cluster: String,
    /// Name and version of the broker software.
    pub software: String,
    /// Kind of store.
    pub store: String,
    /// What an answered schedule means: `embedded-sync`, `embedded-fast`, `redis` or
    /// `redis-replicated`.
    pub durability: String,
    /// Partitions of the cluster; fixed for its life.
    pub partitions: u16,
    /// The protocol version both sides speak.
    pub version: u16,
    /// How often either side sends something, in ms.
    pub heartbeat_ms: u64,
    /// Most bytes of a frame.
    pub max_frame: u32,
    /// Most operations of a request.
    pub max_batch: u32,
}

/// Counts since the client was made; all numbers only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Handshakes done, with any broker; each reconnect counts.
    pub connections: u64,
    /// Requests repeated over another connection than the one that was lost, in operations.
    pub repeated: u64,
    /// Operations sent again because a broker could not do them yet, or sent elsewhere because it
    /// does not own them.
    pub retried: u64,
    /// Callbacks received.
    pub received: u64,
    /// Callbacks refused because they came from an older epoch than one seen before for their
    /// partition.
    pub stale: u64,
    /// Callbacks dropped unstarted because their connection was lost; the broker delivers them
    /// again.
    pub dropped: u64,
    /// Callbacks not run because they had been handled already
    /// ([`Register::dedupe`](crate::Register::dedupe)).
    pub deduplicated: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Settlements that the broker stored.
    pub settled: u64,
    /// Settlements that the broker refused (too late, or not this client's), or that became
    /// pointless with their connection.
    pub settle_refused: u64,
}

/// Says which dead letters a listing shows. The default shows all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadFilter {
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
}

pub(crate) type Cursor = (u16, u64);

/// A row type of a [`Listing`].
pub(crate) trait Row: Sized {
    fn query(filter: &DeadFilter, cursor: Option<Cursor>, limit: u32) -> Query;
    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)>;
}

impl Row for DeadRow {
    fn query(filter: &DeadFilter, cursor: Option<Cursor>, limit: u32) -> Query {
        Query::Dead { group: filter.group.clone(), app: filter.app.clone(), cursor, limit }
    }

    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)> {
        match answer {
            QueryAnswer::Dead { rows, next } => Some((rows, next)),
            _ => None,
        }
    }
}

impl Row for UnconfirmedRow {
    fn query(_: &DeadFilter, cursor: Option<Cursor>, limit: u32) -> Query {
        Query::Unconfirmed { cursor, limit }
    }

    fn rows(answer: QueryAnswer) -> Option<(Vec<Self>, Option<Cursor>)> {
        match answer {
            QueryAnswer::Unconfirmed { rows, next } => Some((rows, next)),
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
    filter: DeadFilter,
    page: u32,
    rows: VecDeque<T>,
    cursor: Option<Cursor>,
    end: bool,
}

impl<T> Listing<T> {
    pub(crate) fn new(client: Client, filter: DeadFilter) -> Self {
        Self {
            client,
            filter,
            page: crate::limits::MAX_PAGE,
            rows: VecDeque::new(),
            cursor: None,
            end: false,
        }
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
            /// Dropping the future loses what was read. It changes nothing at the brokers.
            pub async fn all(mut self) -> Result<Vec<$row>, RequestError> {
                while !self.end {
                    self.fetch().await?;
                }
                Ok(self.rows.into())
            }

            async fn fetch(&mut self) -> Result<(), RequestError> {
                let query = <$row as Row>::query(&self.filter, self.cursor, self.page);
                let answer = self.client.query(query).await?;
                let (rows, next) = <$row as Row>::rows(answer).ok_or(RequestError::Mismatched)?;
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
