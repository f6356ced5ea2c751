//! The calls on a lane by name: one method for each, with an answer of the call's type.
//!
//! Invariant: an answer of another kind than the call's is a defect of the store, and ends in
//! [`LaneError::of_another_kind`].

use futures_util::FutureExt;
use mtimer_types::{Destination, Target, Time};

use crate::call::{Call, CallAnswer, InFlight, Load, Loaded};
use crate::census::Census;
use crate::controls::Controls;
use crate::counts::{CountsPage, CountsRange};
use crate::error::{LaneError, LaneFuture};
use crate::forecast::{Forecast, ForecastRange};
use crate::lane::Lane;
use crate::listing::{DeadFilter, DeadLetter, ListPage, Listed, Listing, Page, Taken, Unconfirmed};
use crate::ops::{Answer, Batch};
use crate::pending::{PendingPage, PendingRange};
use crate::place::Place;
use crate::record::Record;

/// Takes the content out of an answer of one kind.
macro_rules! content {
    ($kind:pat => $content:expr) => {
        |answer| match answer {
            $kind => Some($content),
            _ => None,
        }
    };
}

impl dyn Lane + '_ {
    /// See [`Call::Apply`].
    pub fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        self.ask(Call::Apply(batch), content!(CallAnswer::Apply(answers) => answers))
    }

    /// See [`Call::Load`].
    pub fn load(&self, load: Load) -> LaneFuture<Loaded> {
        self.ask(Call::Load(load), content!(CallAnswer::Load(loaded) => loaded))
    }

    /// See [`Call::Unload`].
    pub fn unload(&self, beyond: Time) -> LaneFuture<()> {
        self.ask(Call::Unload(beyond), content!(CallAnswer::Unload => ()))
    }

    /// See [`Call::Get`].
    pub fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>> {
        self.ask(Call::Get(target), content!(CallAnswer::Get(found) => found))
    }

    /// See [`Call::ParkedDestinations`].
    pub fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>> {
        self.ask(Call::ParkedDestinations, content!(CallAnswer::ParkedDestinations(counts) => counts))
    }

    /// See [`Listed::Parked`].
    pub fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>> {
        let listing = Listing { of: Listed::Parked(dest), cursor, limit };
        self.ask(Call::List(listing), content!(CallAnswer::List(ListPage::Parked(page)) => page))
    }

    /// See [`Listed::Dead`].
    pub fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>> {
        let listing = Listing { of: Listed::Dead(filter), cursor, limit };
        self.ask(Call::List(listing), content!(CallAnswer::List(ListPage::Dead(page)) => page))
    }

    /// See [`Listed::Taken`].
    pub fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>> {
        let listing = Listing { of: Listed::Taken, cursor, limit };
        self.ask(Call::List(listing), content!(CallAnswer::List(ListPage::Taken(page)) => page))
    }

    /// See [`Listed::Unconfirmed`].
    pub fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>> {
        let listing = Listing { of: Listed::Unconfirmed, cursor, limit };
        self.ask(Call::List(listing), content!(CallAnswer::List(ListPage::Unconfirmed(page)) => page))
    }

    /// See [`Call::Pending`].
    pub fn pending(&self, range: PendingRange) -> LaneFuture<PendingPage> {
        self.ask(Call::Pending(range), content!(CallAnswer::Pending(page) => page))
    }

    /// See [`Call::Counts`].
    pub fn counts(&self, range: CountsRange) -> LaneFuture<CountsPage> {
        self.ask(Call::Counts(range), content!(CallAnswer::Counts(page) => page))
    }

    /// See [`Call::Forecast`].
    pub fn forecast(&self, range: ForecastRange) -> LaneFuture<Forecast> {
        self.ask(Call::Forecast(range), content!(CallAnswer::Forecast(page) => page))
    }

    /// See [`Call::Controls`].
    pub fn controls(&self) -> LaneFuture<Box<Controls>> {
        self.ask(Call::Controls, content!(CallAnswer::Controls(controls) => controls))
    }

    /// See [`Call::Census`].
    pub fn census(&self) -> LaneFuture<Census> {
        self.ask(Call::Census, content!(CallAnswer::Census(census) => census))
    }

    /// See [`Call::Release`].
    pub fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()> {
        self.ask(Call::Release(in_flight), content!(CallAnswer::Release => ()))
    }

    fn ask<T: 'static>(&self, call: Call, content: fn(CallAnswer) -> Option<T>) -> LaneFuture<T> {
        let name = call.name();
        let answer = self.call(call);
        async move { content(answer.await?).ok_or_else(|| LaneError::of_another_kind(name)) }.boxed()
    }
}
