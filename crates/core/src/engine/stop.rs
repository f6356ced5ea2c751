//! Stopping in good order: refuse, drain, leave word, release.

use mtimer_protocol::ServerMessage;
use mtimer_store::InFlight;
use mtimer_types::PartitionId;

use super::partition::Pending;
use super::table::State;
use super::{Engine, Phase};
use crate::api::{Call, Effect, Now, SessionId};

impl Engine {
    /// Refuses new work and delivers nothing more.
    pub(super) fn drain(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Draining;
        let mut sessions: Vec<SessionId> = self.roster.sessions.keys().copied().collect();
        sessions.sort_unstable();
        self.effects.extend(sessions.into_iter().map(|s| Effect::Send(s, ServerMessage::Closing)));
    }

    /// Releases every partition, with word of the deliveries that are still under way.
    pub(super) fn release(&mut self, now: Now) {
        if matches!(self.phase, Phase::Releasing | Phase::Released) {
            return;
        }
        self.phase = Phase::Releasing;
        // What is queued comes before the release; more than a few batches under way are no harm now.
        for p in self.partitions.iter_mut().flatten() {
            p.queue.extend(p.put_off.drain(..));
        }
        self.commit_all(now);
        let owned: Vec<PartitionId> = self.partitions.iter().flatten().map(|p| p.id).collect();
        for at in owned {
            let Some(p) = self.partition(at) else { continue };
            let mut left: Vec<InFlight> = p
                .table
                .iter()
                .filter_map(|(id, e)| {
                    let State::InFlight(f) = &e.state else { return None };
                    let until = now.time + f.until.saturating_sub(now.mono_ms);
                    Some(InFlight { id: *id, attempt: f.attempt, session: f.client, until })
                })
                .collect();
            left.sort_unstable_by_key(|f| f.id);
            self.call(at, Pending::Release, Call::Release(left));
        }
        self.check_released();
    }

    pub(super) fn check_released(&mut self) {
        if self.phase == Phase::Releasing && self.partitions.iter().all(Option::is_none) {
            self.phase = Phase::Released;
            self.effects.push(Effect::Released);
        }
    }
}
