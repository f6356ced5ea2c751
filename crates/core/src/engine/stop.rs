//! Stopping in good order: refuse, drain, release with a list of what is under way.

use mtimer_protocol::ServerMessage;
use mtimer_types::PartitionId;

use super::partition::Partition;
use super::{Engine, Phase};
use crate::api::{Effect, Now};

impl Engine {
    /// Refuses new work and delivers nothing more.
    pub(super) fn drain(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Draining;
        let sessions = self.roster.session_ids();
        self.effects.extend(sessions.into_iter().map(|s| Effect::Send(s, ServerMessage::Closing)));
    }

    /// Releases every partition, with a list of the deliveries that are still under way.
    pub(super) fn release(&mut self, now: Now) {
        if matches!(self.phase, Phase::Releasing | Phase::Released) {
            return;
        }
        self.phase = Phase::Releasing;
        let owned: Vec<PartitionId> = self.partitions.iter().map(Partition::id).collect();
        owned.into_iter().for_each(|at| self.release_one(now, at));
        self.check_released();
    }

    pub(super) fn check_released(&mut self) {
        if self.phase == Phase::Releasing && self.partitions.owned() == 0 {
            self.phase = Phase::Released;
            self.effects.push(Effect::Released);
        }
    }
}
