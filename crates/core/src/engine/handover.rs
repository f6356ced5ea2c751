//! Several brokers: how this one knows the owner of a partition, and how it gives one up.
//!
//! A planned handover has these steps: accept and send nothing new; wait for takes under way, since
//! no other broker may send a timer that was taken and not sent; send the queued operations to the
//! store; then release the partition with a list of the deliveries under way. The lane keeps the
//! order, so the last two steps need one round trip.

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_protocol::{ServerMessage, Topology};
use mtimer_store::InFlight;
use mtimer_types::{PartitionId, TimerId};

use super::calls::OpenCall;
use super::partition::OwnedPartition;
use super::{Engine, EnginePhase};
use crate::api::{Call, Effect, Now, SessionId};

impl Engine {
    /// A newer topology: sessions are told, and sent on to others from now on.
    pub(super) fn adopt_topology(&mut self, topology: Arc<Topology>) {
        let tell = |session| Effect::Send(session, ServerMessage::Topology((*topology).clone()));
        self.effects.extend(self.roster.session_ids().into_iter().map(tell));
        self.topology = Some(topology);
    }

    /// Sends the topology to a new session.
    pub(super) fn introduce(&mut self, session: SessionId) {
        if let Some(topology) = &self.topology {
            self.effects.push(Effect::Send(session, ServerMessage::Topology((**topology).clone())));
        }
    }

    /// Begins to give a partition up for another broker.
    pub(super) fn disown(&mut self, at: PartitionId) {
        if let Some(p) = self.partition(at) {
            p.leave();
            self.forget_parks(at);
        }
    }

    /// Releases the leaving partitions with nothing pending.
    pub(super) fn hand_over(&mut self, now: Now) {
        if self.phase == EnginePhase::Releasing {
            return;
        }
        let ready = |p: &&OwnedPartition| p.is_leaving() && !p.is_releasing() && !p.takes_under_way();
        let leaving: Vec<PartitionId> =
            self.partitions.iter().filter(ready).map(OwnedPartition::id).collect();
        for at in leaving {
            self.release_one(now, at);
        }
    }

    /// Sends the queued operations and then the release, with a list of the deliveries under way.
    pub(super) fn release_one(&mut self, now: Now, at: PartitionId) {
        let Some(p) = self.partition(at).filter(|p| !p.is_releasing()) else { return };
        p.leave();
        self.park_unsent(now, at);
        // More than a few batches under way are no harm now.
        self.commit_rest(now, at);
        let Some(p) = self.partition(at) else { return };
        p.begin_release();
        let mut left: Vec<InFlight> = p
            .table
            .iter()
            .filter_map(|(id, e)| {
                let f = e.state.flight()?;
                let until = now.time + f.until.saturating_sub(now.mono_ms);
                Some(InFlight { id: *id, attempt: f.attempt, session: f.client, until })
            })
            .collect();
        // A delivery that the predecessor left under way, and that has no outcome, is handed on as
        // it is, unless it was sent again since.
        let sent: HashSet<TimerId> = left.iter().map(|f| f.id).collect();
        left.extend(p.inherited.iter().filter(|f| !sent.contains(&f.id)).cloned());
        left.sort_unstable_by_key(|f| f.id);
        self.call(at, OpenCall::Release, Call::Release(left));
    }

    /// Parks the timers that were taken and not sent, or are being taken: only this owner can send
    /// them, or say that it did not. The store comes to a take under way before the park.
    fn park_unsent(&mut self, now: Now, at: PartitionId) {
        let Some(p) = self.partition(at) else { return };
        let unsent = p.table.iter().filter(|(_, e)| e.is_taken_and_unsent());
        let mut unsent: Vec<TimerId> = unsent.map(|(id, _)| *id).collect();
        unsent.sort_unstable();
        for id in unsent {
            let entry = self.partition(at).and_then(|p| p.table.get(id));
            if let Some(member) = entry.and_then(|e| e.state.taking()) {
                self.unsettled -= 1;
                self.roster.give_back(member);
            }
            self.park(now, id);
        }
    }
}
