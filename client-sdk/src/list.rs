//! The pending timers of a cluster in the order in which they fire: every partition is asked for
//! pages, and their rows are merged.
//!
//! Not in here: which partitions are asked next (`merge`), and which broker is asked about a
//! partition (the machine's routes).

mod cursor;
mod merge;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mtimer_protocol::{PendingQuery, Query, QueryAnswer, TimerView};
use mtimer_types::{Destination, Filter, Time, TimerId};

pub use self::cursor::{ListCursor, ParseCursorError};
use self::merge::{Merge, position};
use crate::listing::{Listing, ListingOf};
use crate::partitions::ASKED_AT_ONCE;
use crate::{Client, ListedTimer, RequestError, When};

/// Rows that are wanted unless [`TimerList::page`] says otherwise.
const DEFAULT_PAGE: u32 = 1_000;
/// Rows that a partition is asked for at least. Fewer save hardly anything.
const MIN_ROWS: u32 = 16;
/// Rows that a partition is asked for at most.
const MAX_ROWS: u32 = 400;

impl Client {
    /// Lists the pending timers that pass the filter, in the order of their fire times; those of
    /// the same millisecond in the order of their ids.
    ///
    /// Pending timers wait for their due time or for a retry, or are being delivered. For those
    /// that are not see [`Client::parked`], [`Client::taken`], [`Client::unconfirmed`] and
    /// [`Client::dead`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use mtimer_client::{Client, Destination, Filter, RequestError};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), RequestError> {
    /// let filter = Filter { key_prefix: Some("order-".into()), ..Filter::of(orders) };
    /// let mut timers = client.list(filter).until(Duration::from_secs(3_600));
    /// while let Some(row) = timers.next().await? {
    ///     println!("{} fires at {}", row.view.timer.id, row.fire.utc());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, filter: impl Into<Filter>) -> TimerList {
        TimerList::new(self.clone(), filter.into())
    }

    /// Lists the parked timers of a destination: they are due, and nobody takes them. In each
    /// partition those that were parked first come first.
    pub fn parked(&self, dest: &Destination) -> Listing<TimerView> {
        Listing::new(self.clone(), ListingOf::Parked(dest.clone()))
    }

    /// Lists the at-most-once timers that are being delivered. They are not pending any more, so
    /// [`Client::list`] does not show them.
    pub fn taken(&self) -> Listing<TimerView> {
        Listing::new(self.clone(), ListingOf::Taken)
    }
}

/// Lists pending timers, fetched page by page as they are read ([`Client::list`]).
///
/// A timer that keeps its fire time while the list is read is in it exactly once. One that is
/// scheduled, ends or gets another fire time meanwhile, by a reschedule or a retry, may be missing
/// or be in it twice. Partitions are read at different times, so the rows show no one instant.
///
/// The list holds a page of each partition in memory, at most.
#[derive(Debug)]
pub struct TimerList {
    client: Client,
    /// What every partition is asked, but for the partition and the rows. `from` is where the list
    /// begins.
    query: PendingQuery,
    page: u32,
    /// Rows that were returned.
    returned: u32,
    /// Behind the last row that was returned.
    cursor: ListCursor,
    merge: Merge,
}

impl TimerList {
    fn new(client: Client, filter: Filter) -> Self {
        let from = ListCursor::START.position();
        let merge = Merge::new(client.info().partitions, from);
        let (retrying, until, payloads, staged) = (None, Time::MAX, false, false);
        let query = PendingQuery { partition: 0, filter, retrying, from, until, limit: 0, payloads, staged };
        Self { client, query, page: DEFAULT_PAGE, returned: 0, cursor: ListCursor::START, merge }
    }

    /// Lists only timers that fire then or later. A [`Duration`](std::time::Duration) counts from
    /// this call.
    #[must_use]
    pub fn from(mut self, time: impl Into<When>) -> Self {
        self.query.from = (time.into().time(self.client.now()), TimerId::from_u128(0));
        self.restarted()
    }

    /// Lists only timers that fire then or earlier. A [`Duration`](std::time::Duration) counts from
    /// this call.
    #[must_use]
    pub fn until(mut self, time: impl Into<When>) -> Self {
        self.query.until = time.into().time(self.client.now());
        self.restarted()
    }

    /// Lists only timers that wait for another attempt after failed ones (`true`), or only those
    /// that have not failed (`false`).
    #[must_use]
    pub fn retrying(mut self, retrying: bool) -> Self {
        self.query.retrying = Some(retrying);
        self.restarted()
    }

    /// Lists the timers that imports have staged, and no others, by when they fire once they are
    /// released.
    #[must_use]
    pub fn staged(mut self) -> Self {
        self.query.staged = true;
        self.restarted()
    }

    /// Fetches payloads, too. Without it all payloads are empty;
    /// [`ListedTimer::payload_bytes`] is their real size.
    #[must_use]
    pub fn with_payloads(mut self) -> Self {
        self.query.payloads = true;
        self.restarted()
    }

    /// Says about how many rows will be read; 1,000 unless given. A smaller number makes smaller
    /// pages, until more were read. It does not limit the list.
    #[must_use]
    pub fn page(mut self, rows: u32) -> Self {
        self.page = rows;
        self
    }

    /// Goes on where another list with the same filter ended ([`TimerList::cursor`]).
    #[must_use]
    pub fn after(mut self, cursor: ListCursor) -> Self {
        self.cursor = cursor;
        self.restarted()
    }

    /// Returns the position behind the last row that [`TimerList::next`] returned. Before the first
    /// row it is the position at which the list begins.
    ///
    /// It is a position in the order of timers, and not a state of a broker, so it does not expire
    /// and survives takeovers.
    pub fn cursor(&self) -> ListCursor {
        self.cursor.max(ListCursor::at(self.query.from))
    }

    /// Returns the next row; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. The next call tries again where this one failed.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again: no row is lost.
    pub async fn next(&mut self) -> Result<Option<ListedTimer>, RequestError> {
        loop {
            if let Some(row) = self.merge.pop() {
                self.cursor = ListCursor::behind(position(&row));
                self.returned = self.returned.saturating_add(1);
                return Ok(Some(row));
            }
            if self.merge.is_at_end() {
                return Ok(None);
            }
            self.fetch().await?;
        }
    }

    /// Fetches a page of each partition that the next row waits for. If there are many, of the
    /// first ones in the order of positions.
    async fn fetch(&mut self) -> Result<(), RequestError> {
        let limit = rows_of_each(self.page.max(self.returned), self.merge.partitions());
        let asks = self.merge.blocking().take(ASKED_AT_ONCE).map(|(partition, from)| {
            let query = PendingQuery { partition, from, limit, ..self.query.clone() };
            let client = self.client.clone();
            async move { (partition, client.query(Query::Pending(query.into())).await) }
        });
        let mut answers: FuturesUnordered<_> = asks.collect();
        while let Some((partition, answer)) = answers.next().await {
            let QueryAnswer::Pending { rows, next } = answer? else { return Err(RequestError::Mismatched) };
            self.merge.add(partition, rows, next)?;
        }
        Ok(())
    }

    /// The same without what was fetched.
    fn restarted(mut self) -> Self {
        self.merge = Merge::new(self.merge.partitions(), self.cursor().position());
        self
    }
}

/// Rows to ask one partition for, if so many of all partitions are wanted: twice its share, so that
/// partitions with more rows than others are seldom asked again.
fn rows_of_each(wanted: u32, partitions: u16) -> u32 {
    (wanted.saturating_mul(2) / u32::from(partitions.max(1))).clamp(MIN_ROWS, MAX_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_asked_for_twice_its_share_within_bounds() {
        for (wanted, partitions, rows) in
            [(1, 32, 16), (1_000, 32, 62), (1_000, 1, 400), (u32::MAX, 1_024, 400), (100, 0, 200)]
        {
            assert_eq!(rows_of_each(wanted, partitions), rows, "{wanted} of {partitions}");
        }
    }
}
