//! Stopping in good order: refuse, drain, release with a list of the deliveries under way.

use mtimer_protocol::ServerMessage;
use mtimer_types::PartitionId;

use super::partition::OwnedPartition;
use super::{Engine, EnginePhase};
use crate::api::{Effect, Now};

impl Engine {
    /// Refuses new work and delivers nothing more.
    pub(super) fn drain(&mut self) {
        if self.phase != EnginePhase::Running {
            return;
        }
        self.phase = EnginePhase::Draining;
        let sessions = self.roster.session_ids();
        self.effects.extend(sessions.into_iter().map(|s| Effect::Send(s, ServerMessage::Closing)));
    }

    /// Releases every partition, with a list of the deliveries that are still under way.
    pub(super) fn release(&mut self, now: Now) {
        if matches!(self.phase, EnginePhase::Releasing | EnginePhase::Released) {
            return;
        }
        self.phase = EnginePhase::Releasing;
        let owned: Vec<PartitionId> = self.partitions.iter().map(OwnedPartition::id).collect();
        owned.into_iter().for_each(|at| self.release_one(now, at));
        self.check_released();
    }
}
