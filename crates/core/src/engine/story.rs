//! What memory knows of a timer's story: the delivery under way, and what a late one waits for.
//!
//! What the store knows is in the record ([`mtimer_types::story`]).

use mtimer_protocol::{TimerStory, TimerView};
use mtimer_store::{Place, Record};
use mtimer_types::story::LATE_MS;
use mtimer_types::{LateCause, Mode};

use super::Engine;
use super::destination::HeldBack;
use super::lateness::not_read;
use super::partition::OwnedPartition;
use super::table::EntryState;
use crate::api::Now;

impl Engine {
    /// The story of a timer that the store has there.
    pub(super) fn story(&self, now: Now, record: &Record, place: Place, view: TimerView) -> TimerStory {
        let id = record.timer.id;
        let mut story = TimerStory {
            tried: self.tried(record, place),
            view,
            attempts: record.extensions.story(),
            under_way: None,
            settling: None,
            waits_for: None,
            told: now.time,
        };
        let Some(p) = self.partitions.get(id.partition()) else { return story };
        let Some(entry) = p.table.get(id).filter(|_| place != Place::Dead) else {
            story.waits_for = self.unless_held_back(record, not_in_memory(now, p, record, place));
            return story;
        };
        match &entry.state {
            EntryState::InFlight(flight) => story.under_way = self.attempt(id, flight),
            EntryState::Settling { attempt: Some(attempt), .. } => story.settling = Some(*attempt),
            EntryState::Waiting
            | EntryState::Due
            | EntryState::Held
            | EntryState::Ready { .. }
            | EntryState::Taking { .. }
            | EntryState::Settling { attempt: None, .. }
            | EntryState::Parking { .. }
            | EntryState::Unparking => {
                story.waits_for = self.unless_held_back(record, waits_for(now, p, &entry.state));
            }
        }
        story
    }

    /// What a timer waits for: if it would wait for credit or is parked, and its destination is
    /// paused or at its limits, for that.
    fn unless_held_back(&self, record: &Record, waits_for: Option<LateCause>) -> Option<LateCause> {
        let cause = waits_for?;
        let of_dest = match cause {
            LateCause::Credit | LateCause::Parked | LateCause::Claim => true,
            LateCause::Takeover | LateCause::Store | LateCause::Edit | LateCause::Broker => false,
            LateCause::Paused | LateCause::Limited | LateCause::Unknown => false,
        };
        let dest = self.roster.find_dest(&record.timer.dest).filter(|_| of_dest);
        let Some(dest) = dest.map(|ix| self.roster.dest(ix)) else { return Some(cause) };
        Some(match dest.held_back() {
            Some(HeldBack::Paused) => LateCause::Paused,
            Some(HeldBack::Limited) => LateCause::Limited,
            None => cause,
        })
    }

    /// How many attempts of a timer have begun, or may have, that the store has there.
    pub(super) fn tried(&self, record: &Record, place: Place) -> u32 {
        let failed = record.progress.failed;
        let Some(p) = self.partitions.get(record.timer.id.partition()) else { return failed };
        let entry = p.table.get(record.timer.id);
        let known = entry.and_then(|entry| match &entry.state {
            EntryState::InFlight(flight) => Some(flight.attempt),
            EntryState::Settling { attempt, .. } => *attempt,
            EntryState::Waiting
            | EntryState::Due
            | EntryState::Held
            | EntryState::Ready { .. }
            | EntryState::Taking { .. }
            | EntryState::Parking { .. }
            | EntryState::Unparking => None,
        });
        match place {
            Place::Dead => failed,
            Place::Taken { .. } => known.unwrap_or_else(|| match entry {
                Some(entry) => entry.attempt() - 1,
                None => record.attempt(false),
            }),
            // What is delivered once at most is not sent before it is taken.
            Place::Pending { .. } | Place::Parked if record.timer.mode == Mode::AtMostOnce => {
                known.unwrap_or(failed)
            }
            Place::Pending { fire, .. } => known.unwrap_or_else(|| match entry {
                Some(entry) => entry.attempt() - 1,
                None => record.attempt(record.covered(fire, p.epoch(), p.prior_claim())) - 1,
            }),
            Place::Parked => known.unwrap_or_else(|| entry.map_or(failed, |entry| entry.attempt() - 1)),
        }
    }
}

/// What a timer waits for that is not in memory.
fn not_in_memory(now: Now, p: &OwnedPartition, record: &Record, place: Place) -> Option<LateCause> {
    match place {
        Place::Parked => Some(LateCause::Parked),
        Place::Pending { fire, .. } => {
            let since = fire.max(record.late_from());
            (now.time.ms_since(since) >= LATE_MS).then(|| not_read(p, since))
        }
        Place::Taken { unconfirmed: false, .. } => Some(LateCause::Takeover),
        Place::Taken { unconfirmed: true, .. } | Place::Dead => None,
    }
}

/// What a timer in memory waits for that is not under way.
fn waits_for(now: Now, p: &OwnedPartition, state: &EntryState) -> Option<LateCause> {
    match state {
        EntryState::Waiting | EntryState::InFlight(_) => None,
        EntryState::Due if p.is_leaving() => Some(LateCause::Takeover),
        EntryState::Due if !p.owned_lately(now.mono_ms) => Some(LateCause::Store),
        EntryState::Due => Some(LateCause::Claim),
        EntryState::Held => Some(LateCause::Edit),
        EntryState::Ready { .. } => Some(LateCause::Credit),
        EntryState::Taking { .. } | EntryState::Settling { .. } => Some(LateCause::Store),
        EntryState::Parking { .. } | EntryState::Unparking => Some(LateCause::Parked),
    }
}
