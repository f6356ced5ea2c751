//! Dead letters and unconfirmed timers: listing, replaying, purging.

use mtimer_protocol::ops::{self, PurgeReply, ReplayReply};
use mtimer_protocol::{DeadRow, UnconfirmedRow};
use mtimer_types::TimerId;

use crate::answer::{DeadFilter, Replayed};
use crate::listing::{Listing, ListingOf};
use crate::{Client, RequestError};

impl Client {
    /// Lists the dead letters that pass the filter, oldest first in each partition.
    ///
    /// ```no_run
    /// # use mtimer_client::{Client, DeadFilter, RequestError};
    /// # async fn example(client: &Client) -> Result<(), RequestError> {
    /// let mut dead = client.dead(DeadFilter { group: Some("shop".into()), app: None });
    /// while let Some(row) = dead.next().await? {
    ///     println!("{}: {:?}, {:?}", row.timer.id, row.reason, row.last_error);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn dead(&self, filter: DeadFilter) -> Listing<DeadRow> {
        Listing::new(self.clone(), ListingOf::Dead(filter))
    }

    /// Lists the at-most-once timers that were claimed for delivery and never confirmed.
    ///
    /// Each was delivered or was not; [`Client::replay`] delivers it again, [`Client::purge`]
    /// removes it.
    pub fn unconfirmed(&self) -> Listing<UnconfirmedRow> {
        Listing::new(self.clone(), ListingOf::Unconfirmed)
    }

    /// Delivers a dead or unconfirmed timer again, now, with all its retries.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. After an unknown outcome [`Client::get`] tells whether it is dead still.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn replay(&self, id: TimerId) -> Result<Replayed, RequestError> {
        self.request(ops::Replay { id }).await.map(replayed)
    }

    /// Replays many timers; returns one answer for each, in the same order.
    ///
    /// # Errors
    ///
    /// Each answer has its own [`RequestError`], as [`Client::replay`] would return.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn replay_all(&self, ids: Vec<TimerId>) -> Vec<Result<Replayed, RequestError>> {
        let ops = ids.into_iter().map(|id| ops::Replay { id });
        self.state().request_all(ops).await.map(|reply| reply.map(replayed)).collect()
    }

    /// Removes a dead or unconfirmed timer; false if there was none (any more: a request that is
    /// repeated because its answer was lost may have removed it the first time).
    ///
    /// # Errors
    ///
    /// [`RequestError`]. A purge can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn purge(&self, id: TimerId) -> Result<bool, RequestError> {
        self.request(ops::Purge { id }).await.map(purged)
    }

    /// Purges many timers; returns one answer for each, in the same order.
    ///
    /// # Errors
    ///
    /// Each answer has its own [`RequestError`], as [`Client::purge`] would return.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn purge_all(&self, ids: Vec<TimerId>) -> Vec<Result<bool, RequestError>> {
        let ops = ids.into_iter().map(|id| ops::Purge { id });
        self.state().request_all(ops).await.map(|reply| reply.map(purged)).collect()
    }
}

fn replayed(reply: ReplayReply) -> Replayed {
    match reply {
        ReplayReply::Done => Replayed::Replayed,
        ReplayReply::KeyTaken(id) => Replayed::KeyTaken(id),
        ReplayReply::NotFound => Replayed::NotFound,
    }
}

fn purged(reply: PurgeReply) -> bool {
    match reply {
        PurgeReply::Done => true,
        PurgeReply::NotFound => false,
    }
}
