//! Looking into a partition: single timers, listings, counts.
//!
//! A listing is a sorted set of ids by position, whose timers are in `moved`. Positions rise for as
//! long as the partition lives, so a cursor is a position.

use std::time::Duration;

use mtimer_store::table::{Row, Table};
use mtimer_store::view::{Need, View};
use mtimer_store::{Census, InFlight, LaneError, ListPage, Listed, Listing, Page, Place, Record};
use mtimer_types::{Destination, Target, Time, TimerId, limits};
use redis::{Pipeline, Value};
use tokio::time::timeout;

use super::encode::Draft;
use super::locations::Locations;
use super::owner::Owner;
use crate::keyspace::keys::{HashKey, IndexKey, ListingKey, SlotKey};
use crate::keyspace::secret::SHARDS;
use crate::keyspace::slot_counts::SlotKind;
use crate::keyspace::value::encode_in_flight;
use crate::wire::Reply;

/// Bytes of records after which a page of a listing ends.
const PAGE_BYTES: u64 = 256 << 10;
/// Slots that are counted at a time.
const COUNT_STEP: usize = 500;
/// How long a partition that is given up waits for replicas.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);

impl Owner {
    /// See [`mtimer_store::Call::Get`].
    pub(crate) async fn get(&mut self, target: Target) -> Result<Option<(Record, Place)>, LaneError> {
        let (mut view, mut locations) = (View::new(), Locations::default());
        let id = match target {
            Target::Id(id) => Some(id),
            Target::Key(dest, key) => {
                let need = Need::Key(dest.clone(), key.clone());
                self.learn(&mut view, &mut locations, [need], Time::ZERO).await?;
                view.key(&dest, &key).ok().flatten()
            }
        };
        if let Some(id) = id {
            self.learn(&mut view, &mut locations, [Need::Row(id)], Time::ZERO).await?;
        }
        self.writer.read_as_owner(&Pipeline::new()).await?;
        let row = id.and_then(|id| view.row(id).ok().flatten());
        Ok(row.map(|row| (row.record, row.at.place())))
    }

    /// See [`mtimer_store::Call::List`].
    pub(crate) async fn page(&mut self, listing: Listing) -> Result<ListPage, LaneError> {
        let Listing { of, mut cursor, limit } = listing;
        let key = match &of {
            Listed::Dead(_) => ListingKey::Dead,
            Listed::Taken => ListingKey::Taken,
            Listed::Unconfirmed => ListingKey::Unconfirmed,
            Listed::Parked(dest) => match self.known.dests.number(dest) {
                Some(number) => ListingKey::ParkOf(number),
                None => return Ok(of.page([], None)),
            },
        };
        loop {
            let (rows, next) = self.rows(key, cursor, limit).await?;
            let page = of.page(rows, next);
            match &page {
                // A caller that asks for one page only must get past rows that cannot be read,
                // however many there are.
                ListPage::Parked(Page { rows, next: Some(next) }) if rows.is_empty() => cursor = *next,
                ListPage::Parked(_) | ListPage::Dead(_) | ListPage::Taken(_) | ListPage::Unconfirmed(_) => {
                    return Ok(page);
                }
            }
        }
    }

    /// Rows of a listing from a position on: at most `limit`, and about [`PAGE_BYTES`]. Rows that
    /// cannot be read are left out. Returns the position that comes next, too.
    pub(super) async fn rows(
        &mut self,
        of: ListingKey,
        from: u64,
        limit: u32,
    ) -> Result<(Vec<Row>, Option<u64>), LaneError> {
        let limit = limit.clamp(1, limits::MAX_PAGE) as usize;
        let mut entries = self.entries(of, from, limit + 1).await?;
        let fits = self.how_many_fit(&entries).await?.min(limit);
        let next = entries.get(fits).map(|(_, position)| *position);
        entries.truncate(fits);
        Ok((self.moved_rows(entries.into_iter().map(|(id, _)| id)).await?, next))
    }

    async fn how_many_fit(&mut self, entries: &[(TimerId, u64)]) -> Result<usize, LaneError> {
        let mut reads = Pipeline::new();
        for (id, _) in entries {
            let shard = self.known.space.hash(HashKey::Moved(self.known.secret.id(*id).shard()));
            reads.cmd("HSTRLEN").arg(shard).arg(&id.to_local());
        }
        let mut bytes = 0;
        let fits = |length: &u64| {
            bytes += length;
            bytes <= PAGE_BYTES
        };
        let lengths = self.writer.read(&reads).await?;
        let lengths = lengths.iter().map(|length| length.number().unwrap_or_default());
        Ok(lengths.take_while(fits).count().max(1))
    }

    /// See [`mtimer_store::Call::ParkedDestinations`].
    pub(crate) async fn parked_destinations(&mut self) -> Result<Vec<(Destination, u64)>, LaneError> {
        let parks = self.parks().await?.into_iter();
        Ok(parks.filter_map(|(number, count)| Some((self.known.dests.name(number)?, count))).collect())
    }

    /// The numbers of the destinations that have parked timers, and how many each has.
    pub(super) async fn parks(&mut self) -> Result<Vec<(u32, u64)>, LaneError> {
        let mut reads = Pipeline::new();
        reads.cmd("ZRANGE").arg(self.known.space.listing(ListingKey::Park)).arg(0).arg(-1);
        let answer = self.writer.read_as_owner(&reads).await?.into_iter().next().unwrap_or_default();
        let number = |value: &Value| u32::try_from(value.number()?).ok();
        let numbers: Vec<u32> = answer.items().iter().filter_map(number).collect();
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let parks = numbers.iter().map(|number| self.known.space.listing(ListingKey::ParkOf(*number)));
        let counts = self.writer.read_each("ZCARD", parks).await?;
        let counts = counts.iter().map(|count| count.number().unwrap_or_default());
        Ok(numbers.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect())
    }

    /// See [`mtimer_store::Call::Census`].
    pub(crate) async fn census(&mut self) -> Result<Census, LaneError> {
        let mut census = Census::default();
        let slots: Vec<SlotKey> = self.known.catalog.slots().collect();
        for some in slots.chunks(COUNT_STEP) {
            let keys = some.iter().map(|slot| self.known.space.hash(HashKey::Slot(*slot)));
            let counts = self.writer.read_each("HLEN", keys).await?;
            for (slot, count) in some.iter().zip(&counts) {
                let field = match SlotKind::of(*slot) {
                    SlotKind::First => &mut census.pending,
                    SlotKind::Retry => &mut census.retrying,
                    SlotKind::Staged => &mut census.staged,
                };
                *field += count.number().unwrap_or_default();
            }
        }
        let parked = self.parked_destinations().await?;
        census.parked = parked.iter().map(|(_, count)| count).sum();
        let space = self.known.space.clone();
        census.taken = self
            .total("ZCARD", [space.listing(ListingKey::Taken), space.listing(ListingKey::Unconfirmed)])
            .await?;
        census.dead = self.total("ZCARD", [space.listing(ListingKey::Dead)]).await?;
        // Beside the keys there is one field more.
        census.keys = self.total("HLEN", [space.hash(HashKey::AppKeys)]).await?.saturating_sub(1);
        let moved = self.total("HLEN", (0..SHARDS).map(|shard| space.hash(HashKey::Moved(shard)))).await?;
        let indexes = index_keys().map(|index| space.index(index)).chain([space.listing(ListingKey::Park)]);
        let indexed = self.total("ZCARD", indexes).await?;
        // Entries for moved ids beyond those that hold a parked, taken or dead timer, and entries
        // of indexes.
        census.residue = moved.saturating_sub(census.parked + census.taken + census.dead) + indexed;
        Ok(census)
    }

    /// See [`mtimer_store::Call::Release`].
    pub(crate) async fn release(&mut self, in_flight: Vec<InFlight>) -> Result<(), LaneError> {
        let mut draft = Draft::default();
        // Of the claimed deliveries only those under way were sent: the claim is as before.
        draft.set_fact("c", self.known.prior_claim.as_ms().to_string().as_bytes());
        draft.set_fact("f", &encode_in_flight(&in_flight));
        draft.set_fact("r", b"1");
        self.write_anyway(draft, None).await?;
        match timeout(RELEASE_WITHIN, self.secure_release()).await {
            Ok(Ok(())) => {}
            // The next owner answers nothing until the replicas have its acquisition, and so all
            // that it has found; or it says after half a second that they lag.
            Ok(Err(LaneError::Fenced { .. })) => self.writer.report_unseen().await,
            Ok(Err(error)) => return Err(error),
            Err(_) => self.writer.log().incidents().early_release(self.partition()),
        }
        self.is_released = true;
        Ok(())
    }

    /// Waits until the replicas have all writes; applies again the writes that the store loses
    /// meanwhile.
    async fn secure_release(&mut self) -> Result<(), LaneError> {
        let (trimmer, log) = (self.trimmer.clone(), self.writer.log().clone());
        loop {
            tokio::select! {
                biased;
                () = log.behind() => self.check().await?,
                secured = trimmer.secure_release() => return secured,
            }
        }
    }
}

/// All indexes of slots that there can be.
pub(crate) fn index_keys() -> impl Iterator<Item = IndexKey> {
    let tiers = (1..=limits::MAX_RETRY_TIERS as u8).map(IndexKey::Retry);
    [IndexKey::Copy, IndexKey::List, IndexKey::Zset].into_iter().chain(tiers)
}
