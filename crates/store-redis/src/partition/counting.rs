//! Counts by destination.
//!
//! Nothing is counted when somebody asks. What an owner writes it counts as it goes; what it has
//! found at its acquisition, or does not know after an answer was lost, it reads bit by bit beside
//! its calls. Until that is done, the answer says how many timers are in nobody's counts.

use mtimer_store::{Counts, CountsPage, CountsRange, Forecast, ForecastRange, ForecastSums, LaneError};
use mtimer_types::Destination;
use redis::Pipeline;

use super::knowledge::Knowledge;
use super::owner::Owner;
use super::tally::Aside;
use crate::keyspace::keys::ListingKey;

/// Slots that one step reads: up to 2,048 timers. In tests so few that much happens between steps.
const STEP_SLOTS: usize = if cfg!(test) { 1 } else { 16 };
/// Entries of a listing that one step reads.
const STEP_ROWS: u32 = if cfg!(test) { 2 } else { 500 };

impl Owner {
    /// See [`mtimer_store::Call::Counts`].
    pub(crate) async fn counts(&mut self, range: CountsRange) -> Result<CountsPage, LaneError> {
        self.writer.read_as_owner(&Pipeline::new()).await?;
        let Knowledge { catalog, tally, dests, .. } = &mut self.known;
        let uncounted = catalog.uncounted() + tally.uncounted();
        let uncounted = if broken!(UncountedForgotten) { 0 } else { uncounted };
        let counts = |(number, dest): (u32, &Destination)| {
            let [pending, retrying, staged] = catalog.total(number);
            let counts = Counts { pending, retrying, staged, ..tally.of(number) };
            (counts.total() > 0 && range.filter.accepts_destination(dest)).then(|| (dest.clone(), counts))
        };
        // One more says that there are more.
        let rows =
            dests.behind(range.after.as_ref()).filter_map(counts).take(range.limit.max(1) as usize + 1);
        Ok(range.page(rows, uncounted))
    }

    /// See [`mtimer_store::Call::Forecast`].
    pub(crate) async fn forecast(&mut self, range: ForecastRange) -> Result<Forecast, LaneError> {
        self.writer.read_as_owner(&Pipeline::new()).await?;
        let Knowledge { catalog, dests, .. } = &self.known;
        let wanted = dests.wanted(&range.filter);
        let uncounted = if broken!(UncountedForgotten) { 0 } else { catalog.uncounted() };
        let mut sums = ForecastSums::default();
        for ((begin, end), timers) in catalog.forecast(range.from.0, range.last(), &wanted) {
            let (first, last) = (range.step(begin), range.step(end - 1));
            let span = if first == last { first } else { (begin, end) };
            if span.0 >= range.from.0 && span.0 <= range.until {
                sums.add(span, timers);
            }
        }
        let (spans, next) = sums.page();
        Ok(Forecast { spans, next, uncounted })
    }

    /// Counts what the acquisition has found in parks, and how much is listed elsewhere.
    pub(super) async fn find_listed(&mut self) -> Result<(), LaneError> {
        let retained = [ListingKey::Taken, ListingKey::Unconfirmed, ListingKey::Dead];
        let retained = retained.map(|listing| self.known.space.listing(listing));
        let listed = self.total("ZCARD", retained).await?;
        let parked = self.parks().await?;
        self.known.tally.found(parked, listed);
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
