//! Several brokers: how this one answers for partitions that another one owns, and how it gives a
//! partition up.
//!
//! A planned handover has these steps: accept and send nothing new; wait for takes under way, since
//! no other broker may send a timer that was taken and not sent; send what is queued to the store;
//! then release the partition with a list of the deliveries under way. The lane keeps the order, so
//! the last two steps need one round trip.

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_protocol::{ErrorCode, OpReply, QueryAnswer, ServerMessage, SettleRefusal, Topology};
use mtimer_store::InFlight;
use mtimer_types::{PartitionId, TimerId};

use super::calls::OpenCall;
use super::partition::OwnedPartition;
use super::purpose::OpCtx;
use super::table::EntryState;
use super::{Engine, EnginePhase};
use crate::api::{Call, Effect, Now, SessionId};

/// By how much the clock of a predecessor is assumed to have been ahead, at most, ms. Brokers that
/// read the same clocks differ by a round trip; what may happen beyond this is in
/// `docs/guarantees.md`, under "When partitions change hands".
const CLOCKS_MS: u64 = 1_000;

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

    /// Whether this broker answers for a partition.
    pub(super) fn serves(&self, at: PartitionId) -> bool {
        self.partitions.get(at).is_some_and(|p| !p.is_leaving())
    }

    /// Another broker that a partition is assigned to.
    fn other_owner(&self, at: PartitionId) -> Option<&str> {
        let own = self.options.address.as_deref();
        self.topology.as_ref()?.owner(at).filter(|owner| Some(*owner) != own)
    }

    /// The answer to an operation on a partition that this broker does not serve.
    pub(super) fn not_served(&self, at: PartitionId) -> OpReply {
        match self.other_owner(at) {
            Some(owner) => OpReply::Moved { owner: owner.to_owned() },
            None => OpReply::Failed { code: ErrorCode::NotOwner, message: not_owner(at) },
        }
    }

    /// The answer to a question about such a partition.
    pub(super) fn not_asked(&self, at: PartitionId) -> QueryAnswer {
        match self.other_owner(at) {
            Some(owner) => QueryAnswer::Moved { owner: owner.to_owned() },
            None => QueryAnswer::Failed { code: ErrorCode::NotOwner, message: not_owner(at) },
        }
    }

    /// Why an outcome is refused whose partition has gone: in a cluster another owner can still
    /// take it.
    pub(super) fn settled_elsewhere(&self) -> SettleRefusal {
        if self.is_in_cluster() { SettleRefusal::Moved } else { SettleRefusal::Late }
    }

    /// Whether there may be other brokers. Clients may know the topology before this broker has
    /// heard of it: one that has just started may be asked about partitions that it is about to
    /// own.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.options.address.is_some()
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

    /// Sends what is queued and then the release, with a list of the deliveries under way.
    pub(super) fn release_one(&mut self, now: Now, at: PartitionId) {
        let Some(p) = self.partition(at).filter(|p| !p.is_releasing()) else { return };
        p.leave();
        self.park_unsent(at);
        // More than a few batches under way are no harm now.
        self.commit_rest(now, at);
        let Some(p) = self.partition(at) else { return };
        p.begin_release();
        let mut left: Vec<InFlight> = p
            .table
            .iter()
            .filter_map(|(id, e)| {
                let EntryState::InFlight(f) = &e.state else { return None };
                let until = now.time + f.until.saturating_sub(now.mono_ms);
                Some(InFlight { id: *id, attempt: f.attempt, session: f.client, until })
            })
            .collect();
        // What the predecessor left under way and has no outcome is handed on as it is, unless it
        // was sent again since.
        let sent: HashSet<TimerId> = left.iter().map(|f| f.id).collect();
        left.extend(p.inherited.iter().filter(|f| !sent.contains(&f.id)).cloned());
        left.sort_unstable_by_key(|f| f.id);
        self.call(at, OpenCall::Release, Call::Release(left));
    }

    /// Parks what was taken and not sent: only this owner can send it, or say that it did not.
    fn park_unsent(&mut self, at: PartitionId) {
        let Some(p) = self.partition(at) else { return };
        let waits =
            |s: &EntryState| matches!(s, EntryState::Due | EntryState::Held | EntryState::Ready { .. });
        let unsent = p.table.iter().filter(|(_, e)| e.taken && waits(&e.state));
        let mut unsent: Vec<TimerId> = unsent.map(|(id, _)| *id).collect();
        unsent.sort_unstable();
        unsent.into_iter().for_each(|id| self.park(id));
    }
}

impl OwnedPartition {
    /// Whether every live timer sent before this ownership has been read: it is in memory, or the
    /// store counts it.
    pub(super) fn has_read_past(&self) -> bool {
        self.horizon() >= self.since() + CLOCKS_MS && !self.calls.is_reading_taken()
    }

    /// Whether the timer of an inherited delivery may still come into memory.
    pub(super) fn awaits_timers(&self) -> bool {
        self.inherited.has_unread(&self.table) && (!self.has_read_past() || self.calls.is_fetching())
    }

    /// Drops inherited deliveries whose timers have ended, or whose attempts the store has counted.
    pub(super) fn drop_old_inherited(&mut self) {
        if self.has_read_past() && !self.calls.is_fetching() {
            self.inherited.drop_unread(&self.table);
        }
    }

    /// Whether at-most-once timers are being taken.
    fn takes_under_way(&self) -> bool {
        let take = |ctx: &OpCtx| matches!(ctx, OpCtx::Take { .. });
        self.calls.has_op(take) || self.queue.has_take() || self.put_off().iter().any(|(_, ctx)| take(ctx))
    }
}

fn not_owner(at: PartitionId) -> String {
    format!("this broker does not own partition {at}")
}
