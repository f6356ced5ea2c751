//! What memory knows of a timer's story: the delivery under way, and what a late one waits for.
//!
//! What the store knows is in the record ([`mtimer_types::story`]).

use mtimer_protocol::TimerStory;
use mtimer_store::{Place, Record};
use mtimer_types::story::LATE_MS;
use mtimer_types::{Attempt, LateCause, Time, TimerId};

use super::Engine;
use super::table::{EntryState, Flight, TimerEntry};
use crate::api::Now;

impl Engine {
    /// The attempt that a flight is.
    pub(super) fn attempt(&self, id: TimerId, f: &Flight) -> Option<Attempt> {
        let p = self.partitions.get(id.partition())?;
        let entry = p.table.get(id)?;
        let late_ms = f.sent().map_or(0, |sent| entry.late_ms(sent));
        Some(Attempt {
            number: f.attempt,
            epoch: p.epoch(),
            client: f.client,
            sent: f.sent(),
            late_ms: u32::try_from(late_ms).unwrap_or(u32::MAX),
            late_by: entry.late_by(late_ms),
        })
    }

    /// The story of a timer that the store has there.
    pub(super) fn story(&mut self, now: Now, record: Record, place: Place) -> TimerStory {
        let id = record.timer.id;
        let attempts = record.extensions.story();
        let waits_for = self.waits_for(now, id, &record, place);
        let entry = self.partitions.get(id.partition()).and_then(|p| p.table.get(id));
        let flight = entry.and_then(|entry| entry.state.flight()).copied();
        let under_way = flight.and_then(|flight| self.attempt(id, &flight));
        TimerStory { view: self.view(record, place), attempts, under_way, waits_for, told: now.time }
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

/// Why a timer was not read in time that is due since then, by an owner since then.
pub(super) fn not_read(owned_since: Time, due: Time) -> LateCause {
    if owned_since > due { LateCause::Takeover } else { LateCause::Store }
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
