//! Reads the oldest entries of a listing, and how many there are. Trimming, and the limits of
//! retained timers, are decided on these.

use std::collections::HashSet;

use mtimer_store::LaneError;
use mtimer_store::place::Retained;
use mtimer_store::table::Row;
use mtimer_store::view::Fact;
use mtimer_types::TimerId;
use redis::{Pipeline, Value};

use super::encode::Draft;
use super::fields::FieldLookup;
use super::locations::Locations;
use super::owner::Owner;
use crate::keyspace::keys::{HashKey, ListingKey};
use crate::keyspace::value::{Location, MovedEntry, decode_moved};
use crate::wire::Reply;

impl Owner {
    /// The entries of a listing from a position on, at most `limit`: ids and positions.
    pub(super) async fn entries(
        &mut self,
        of: ListingKey,
        from: u64,
        limit: usize,
    ) -> Result<Vec<(TimerId, u64)>, LaneError> {
        let mut reads = Pipeline::new();
        let range =
            reads.cmd("ZRANGE").arg(self.known.space.listing(of)).arg(from).arg("+inf").arg("BYSCORE");
        range.arg("LIMIT").arg(0).arg(limit).arg("WITHSCORES");
        let answer = self.writer.read_as_owner(&reads).await?.into_iter().next().unwrap_or_default();
        let entry =
            |(id, position): (Value, Value)| Some((self.known.space.id(id.bytes()?)?, position.number()?));
        Ok(answer.into_pairs().into_iter().filter_map(entry).collect())
    }

    /// The rows of timers in `moved` that can be read.
    pub(super) async fn moved_rows(
        &mut self,
        ids: impl Iterator<Item = TimerId>,
    ) -> Result<Vec<Row>, LaneError> {
        let mut lookup = FieldLookup::default();
        let ids: Vec<TimerId> = ids.collect();
        for id in &ids {
            lookup.push(HashKey::Moved(self.known.secret.id(*id).shard()), [&id.to_local()]);
        }
        let mut rows = Vec::new();
        for (id, value) in ids.into_iter().zip(self.look_up(lookup).await?) {
            let entry = value.map(|value| decode_moved(id, &value, |n| self.known.dests.name(n)));
            if let Some(MovedEntry::Row(row)) = entry.and_then(|entry| self.readable(entry)) {
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// Sums the counts of a command over some keys.
    pub(super) async fn total(
        &mut self,
        count: &str,
        keys: impl IntoIterator<Item = String>,
    ) -> Result<u64, LaneError> {
        let counts = self.writer.read_each(count, keys).await?;
        Ok(counts.iter().filter_map(Reply::number).sum())
    }

    /// The count of one kind of retained timers, and the oldest ones.
    pub(crate) async fn read_retained(
        &mut self,
        of: Retained,
        limit: usize,
        locations: &mut Locations,
    ) -> Result<Fact, LaneError> {
        let listing = match of {
            Retained::Dead => ListingKey::Dead,
            Retained::Unconfirmed => ListingKey::Unconfirmed,
        };
        loop {
            let count = self.total("ZCARD", [self.known.space.listing(listing)]).await?;
            let entries = self.entries(listing, 0, limit).await?;
            let mut oldest = self.moved_rows(entries.iter().map(|(id, _)| *id)).await?;
            oldest.retain(|row| row.at.retained() == Some(of));
            let is_row: HashSet<TimerId> = oldest.iter().map(Row::id).collect();
            let without = entries.iter().map(|(id, _)| *id).filter(|id| !is_row.contains(id));
            let without: Vec<_> = without.collect();
            if without.is_empty() {
                oldest.iter().for_each(|row| locations.insert(row.id(), Location::Moved));
                return Ok(Fact::Retained { of, limit, count, oldest });
            }
            // Leftovers of a write that was cut off, or damaged: they would hold up the entries
            // behind them for ever. A damaged record itself stays in `moved`.
            let mut draft = Draft::default();
            without.into_iter().for_each(|id| draft.unlist(listing, id));
            self.write_anyway(draft, None).await?;
        }
    }
}
