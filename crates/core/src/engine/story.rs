//! What memory knows of a timer's story: the delivery under way, and what a late one waits for.
//!
//! What the store knows is in the record ([`mtimer_types::story`]).

use mtimer_protocol::{TimerStory, TimerView};
use mtimer_store::{Place, Record};
use mtimer_types::story::LATE_MS;
use mtimer_types::{LateCause, TimerId};

use super::Engine;
use super::lateness::not_read;
use super::table::{EntryState, TimerEntry};
use crate::api::Now;

impl Engine {
    /// The story of a timer that the store has there.
    pub(super) fn story(&self, now: Now, record: &Record, place: Place, view: TimerView) -> TimerStory {
        let id = record.timer.id;
        let attempts = record.extensions.story();
        let waits_for = self.waits_for(now, id, record, place);
        let entry = self.partitions.get(id.partition()).and_then(|p| p.table.get(id));
        let flight = entry.and_then(|entry| entry.state.flight()).copied();
        let under_way = flight.and_then(|flight| self.attempt(id, &flight));
        TimerStory { view, attempts, under_way, waits_for, told: now.time }
    }

    /// What a timer waits for whose time has come and that is not under way.
    fn waits_for(&self, now: Now, id: TimerId, record: &Record, place: Place) -> Option<LateCause> {
        let p = self.partitions.get(id.partition())?;
        match (p.table.get(id), place) {
            (_, Place::Dead | Place::Taken { unconfirmed: true, .. }) => None,
            (Some(entry), _) => waits_for(entry),
            (None, Place::Parked) => Some(LateCause::Parked),
            (None, Place::Taken { .. }) => Some(LateCause::Takeover),
            (None, Place::Pending { fire, .. }) => {
                let since = fire.max(record.late_from());
                (now.time.ms_since(since) >= LATE_MS).then(|| not_read(p.since(), since))
            }
        }
    }
}

/// What a timer in memory waits for.
fn waits_for(entry: &TimerEntry) -> Option<LateCause> {
    match entry.state {
        EntryState::Waiting | EntryState::InFlight(_) => None,
        EntryState::Due => Some(entry.waited.unwrap_or(LateCause::Broker)),
        EntryState::Held => Some(LateCause::Edit),
        EntryState::Ready { .. } => Some(LateCause::Credit),
        EntryState::Taking { .. } | EntryState::Settling { .. } => Some(LateCause::Store),
        EntryState::Parking { .. } | EntryState::Unparking => Some(LateCause::Parked),
    }
}
