//! Destinations' settings: what memory does when they change, and when a pause ends.
//!
//! Not in here: what they say about deliveries (`policy`), and where that is asked (`clearance`,
//! `roster`).

use mtimer_store::ops::MoveAnswer;
use mtimer_types::{StoredSettings, TimerId};

use super::Engine;
use crate::api::{Counter, Effect, Now, SessionId};

impl Engine {
    /// A destination has these settings, by what a partition knows. If it is paused by them, what
    /// was sent and has not left is withdrawn before anybody is told of the pause.
    pub(super) fn configured(&mut self, now: Now, row: StoredSettings) {
        self.end_pauses(now);
        let end = row.settings.pause.as_ref().and_then(|pause| pause.until);
        let dest = row.dest.clone();
        if !self.roster.configure(row) {
            return;
        }
        if let Some(end) = end.filter(|end| *end > now.time) {
            self.effects.push(Effect::Alarm(end));
        }
        let Some(ix) = self.roster.find_dest(&dest) else { return };
        if self.roster.dest(ix).policy.is_paused() {
            let registrations = self.roster.registrations(ix);
            self.effects.extend(registrations.map(|(session, number)| Effect::Recall(session, number)));
        }
    }

    /// Pauses whose end has come are over.
    pub(super) fn end_pauses(&mut self, now: Now) {
        self.roster.end_pauses(now.time);
    }

    /// Deliveries to a session were withdrawn before they had left. They are decided on as if they
    /// were to be sent now.
    pub(super) fn recalled(&mut self, now: Now, session: SessionId, ids: &[TimerId]) {
        for id in ids {
            let entry = self.partition(id.partition()).and_then(|p| p.table.get(*id));
            let flight = entry.and_then(|e| e.state.flight()).filter(|f| f.session == Some(session));
            let Some(member) = flight.and_then(|flight| flight.member) else { continue };
            self.count(Counter::Recalled, 1);
            self.unsend(*id, session, member);
            self.taken(now, *id, MoveAnswer::Done);
        }
    }
}
