//! Counts by destination.
//!
//! Nothing is counted when somebody asks. What an owner writes it counts as it goes; what it has
//! found at its acquisition, or does not know after an answer was lost, it reads bit by bit beside
//! its calls. Until that is done, the answer says how many timers are in nobody's counts.

use mtimer_store::{Counts, CountsPage, CountsRange, LaneError};
use redis::{Pipeline, Value};

use super::owner::Owner;
use super::tally::Aside;
use crate::keyspace::keys::ListingKey;
use crate::wire::Reply;

/// Slots that one step reads: up to 2,048 timers. In tests so few that much happens between steps.
const STEP_SLOTS: usize = if cfg!(test) { 1 } else { 16 };
/// Entries of a listing that one step reads.
const STEP_ROWS: u32 = if cfg!(test) { 2 } else { 500 };

impl Owner {
    /// See [`mtimer_store::Call::Counts`].
    pub(crate) async fn counts(&mut self, range: CountsRange) -> Result<CountsPage, LaneError> {
        self.writer.read_as_owner(&Pipeline::new()).await?;
        let mut all = self.known.tally.counts().clone();
        for (dest, [pending, retrying]) in self.known.catalog.totals() {
            let counts: &mut Counts = all.entry(dest).or_default();
            (counts.pending, counts.retrying) = (pending, retrying);
        }
        let dests = &self.known.dests;
        let named = all.into_iter().filter_map(|(number, counts)| Some((dests.name(number)?, counts)));
        let uncounted = self.known.catalog.uncounted() + self.known.tally.uncounted();
        let uncounted = if broken!(UncountedForgotten) { 0 } else { uncounted };
        Ok(range.page(named, uncounted))
    }

    /// Counts what the acquisition has found in parks, and how much is listed elsewhere.
    pub(super) async fn find_listed(&mut self) -> Result<(), LaneError> {
        let mut reads = Pipeline::new();
        reads.cmd("ZRANGE").arg(self.known.space.listing(ListingKey::Park)).arg(0).arg(-1);
        let retained = [ListingKey::Taken, ListingKey::Unconfirmed, ListingKey::Dead];
        for listing in retained {
            reads.cmd("ZCARD").arg(self.known.space.listing(listing));
        }
        let mut answers = self.writer.read(&reads).await?.into_iter();
        let parks = answers.next().unwrap_or_default();
        let listed = answers.filter_map(|count| count.number()).sum();
        let number = |value: &Value| u32::try_from(value.number()?).ok();
        let numbers: Vec<u32> = parks.items().iter().filter_map(number).collect();
        let mut counts = Vec::new();
        if !numbers.is_empty() {
            let parks = numbers.iter().map(|number| self.known.space.listing(ListingKey::ParkOf(*number)));
            counts = self.writer.read_each("ZCARD", parks).await?;
        }
        let counts = counts.iter().map(|count| count.number().unwrap_or_default());
        self.known.tally.found(numbers.into_iter().zip(counts), listed);
        Ok(())
    }

    /// Whether timers are not counted.
    pub(crate) fn has_uncounted(&self) -> bool {
        self.known.catalog.has_uncounted() || self.known.tally.to_read().is_some()
    }

    /// Counts some of the timers that are not counted. While the store is away it gives up: nobody
    /// is to wait behind it then.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn count_some(&mut self) -> Result<(), LaneError> {
        let may_give_up = self.writer.set_may_give_up(true);
        let counted = self.count_step().await;
        self.writer.set_may_give_up(may_give_up);
        if self.writer.take_gave_up() { Ok(()) } else { counted }
    }

    async fn count_step(&mut self) -> Result<(), LaneError> {
        let slots = self.known.catalog.uncounted_slots(STEP_SLOTS);
        if !slots.is_empty() {
            return self.read_pending(&slots).await.map(drop);
        }
        let Some((listing, from)) = self.known.tally.to_read() else { return Ok(()) };
        let (rows, next) = self.rows(listing, from, STEP_ROWS).await?;
        for row in rows {
            let place = Aside::of(row.at).filter(|place| place.listing() == listing);
            let dest = self.known.dests.number(&row.record.timer.dest);
            if let (Some(place), Some(dest)) = (place, dest) {
                self.known.tally.saw(row.id(), dest, place);
            }
        }
        self.known.tally.read_up_to(next);
        Ok(())
    }
}
