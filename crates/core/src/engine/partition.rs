//! One partition while this broker owns it: its timers in memory, what is on its way to the store,
//! its claim, its horizon.

use std::collections::VecDeque;

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_store::Op;
use mtimer_types::{Destination, Ended, Epoch, PartitionId, Time, Timer, TimerId};

use super::hash::{Map, Seeded};
use super::holds::Holds;
use super::inherited::Inherited;
use super::purpose::{KeyEdits, KeyName, OpCtx, failed};
use super::questions::{QueryPart, Questions};
use super::queue::OpQueue;
use super::recent::RecentIds;
use super::table::Table;
use crate::api::Now;

/// Work that can wait (claims, acknowledgements) is batched across partitions at multiples of this,
/// ms: one wake-up costs a store as much as what it is woken up for.
pub(super) const TICK_MS: u64 = 10;
/// How long an acknowledgement may wait for others of its partition, or for a claim, ms. Every
/// write of a partition costs the same whatever it carries: see `lateness` of a mixed load in
/// docs/performance-notes.md. A crash may redeliver what waits. Partitions take turns at the ticks.
pub(super) const GATHER_MS: u64 = 40;
/// How long before a timer is due its claim is asked for, ms, beyond the time that the store takes
/// to answer; earlier by up to [`TICK_MS`] so that it goes together with others, and by up to
/// [`GATHER_MS`] with another write.
const CLAIM_LEAD_MS: u64 = 20;
/// How far a claim reaches ahead, ms, beyond the same: under a steady load it lasts until the next
/// acknowledgements take the next claim along. A crash may redeliver what fires within it.
const CLAIM_SPAN_MS: u64 = CLAIM_LEAD_MS + GATHER_MS + TICK_MS;
/// The most that is reckoned with as the time that the store takes, ms.
const MAX_LAG_MS: u64 = 250;
/// Nothing is sent unless a fenced write that was begun within this time was answered, ms.
pub(super) const FENCE_MS: u64 = 1_000;
/// Operations that wait for a batch, or for their turn at a key; beyond it clients are told that it
/// is too much.
pub(super) const QUEUE_OPS: usize = 50_000;
/// Of these, operations that wait for an earlier one on the same key: they go to the store one by
/// one.
pub(super) const KEY_OPS: usize = 1_000;

/// A call that was not answered yet.
#[derive(Debug)]
pub(super) enum Pending {
    Apply {
        ctxs: Vec<OpCtx>,
        claim: Option<Time>,
        begun: u64,
    },
    Load {
        claim: Option<Time>,
        begun: u64,
    },
    Unload {
        beyond: Time,
    },
    /// Reads a timer, so that memory agrees with the store.
    Fetch(TimerId),
    Query(QueryPart),
    ParkedDestinations,
    Parked {
        /// By name: the destination may be forgotten, and its number reused, before the page
        /// arrives.
        dest: Destination,
    },
    Sweep {
        dest: Destination,
    },
    Taken,
    Release,
}

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) id: PartitionId,
    pub(super) epoch: Epoch,
    pub(super) prior_claim: Time,
    /// When this ownership began.
    pub(super) since: Time,
    pub(super) table: Table,
    /// Operations that wait for the next batch.
    pub(super) queue: OpQueue,
    /// Operations of the owner's own that the store would not take for now.
    pub(super) put_off: Vec<(Op, OpCtx)>,
    /// Calls under way, oldest first.
    pub(super) calls: VecDeque<Pending>,
    /// Batches under way. While one is, the next gathers; only a partition that is given up sends
    /// all at once.
    pub(super) applies_out: usize,
    /// Questions of clients.
    pub(super) questions: Questions,
    /// When the acknowledgements that wait in the queue go at the latest, monotonic ms.
    pub(super) gather_at: Option<u64>,
    /// How long it takes until the store has answered what is asked for, by the slowest batch
    /// lately, ms.
    lag: u64,
    /// Stored: everything that fires up to here may be sent.
    pub(super) claimed: Time,
    /// Asked for.
    pub(super) claim_asked: Time,
    /// The beginning of the latest fenced write that was answered, monotonic ms.
    pub(super) fenced_at: Option<u64>,
    /// Everything that fires up to here is in memory.
    pub(super) horizon: Time,
    pub(super) load_out: bool,
    pub(super) unload_out: bool,
    pub(super) down: Option<String>,
    /// It is given up for another broker: nothing new is begun.
    pub(super) leaving: bool,
    /// The release is under way: nothing more goes to the store.
    pub(super) release_out: bool,
    /// Timers whose time has come, waiting for a claim.
    pub(super) due: Vec<TimerId>,
    /// Edits that hold their timer, by id: it is not sent until they are answered.
    pub(super) edits: Holds,
    /// Late acknowledgements under way by id: such a timer may have ended, which the next answer
    /// tells.
    pub(super) late_acks: Holds,
    /// Operations under way by key.
    pub(super) key_edits: Map<KeyName, KeyEdits>,
    /// How many wait so.
    pub(super) waiting: usize,
    /// Deliveries that the previous owner left under way.
    pub(super) inherited: Inherited,
    /// When dead letters and unconfirmed timers are trimmed next, monotonic ms.
    pub(super) trim_at: u64,
}

impl Partition {
    pub(super) fn new(id: PartitionId, epoch: Epoch, prior_claim: Time, since: Time, seed: Seeded) -> Self {
        Self {
            id,
            epoch,
            prior_claim,
            since,
            table: Table::new(seed),
            queue: OpQueue::new(seed),
            put_off: Vec::new(),
            calls: VecDeque::new(),
            applies_out: 0,
            questions: Questions::default(),
            gather_at: None,
            lag: 0,
            claimed: prior_claim,
            claim_asked: prior_claim,
            fenced_at: None,
            horizon: Time::ZERO,
            load_out: false,
            unload_out: false,
            down: None,
            leaving: false,
            release_out: false,
            due: Vec::new(),
            edits: Holds::new(seed),
            late_acks: Holds::new(seed),
            key_edits: Map::with_hasher(seed),
            waiting: 0,
            inherited: Inherited::new(seed),
            trim_at: 0,
        }
    }

    /// Whether a fenced write that was begun lately was answered.
    pub(super) fn is_fenced(&self, mono_ms: u64) -> bool {
        self.fenced_at.is_some_and(|at| mono_ms.saturating_sub(at) <= FENCE_MS)
    }

    /// Whether a timer that fires at `fire` may be sent: the store knows that it may have been, and
    /// nobody else has taken over as far as can be known.
    pub(super) fn may_send(&self, fire: Time, mono_ms: u64) -> bool {
        !self.leaving && fire <= self.claimed && self.is_fenced(mono_ms)
    }

    /// Whether as many operations wait as may.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() + self.waiting >= QUEUE_OPS
    }

    /// The claim that a call begun now should carry, if any: up to [`Self::claim_span`] ahead, if
    /// something fires soon (or within `ahead` ms beyond that) and what was asked for does not
    /// reach that far.
    pub(super) fn claim_wanted(&self, now: Time, mono_ms: u64, ahead: u64) -> Option<Time> {
        if self.leaving {
            return None;
        }
        let soon = now + self.claim_lead() + ahead;
        let uncovered = !self.due.is_empty() && now > self.claim_asked;
        let coming = self.table.next_fire_after(self.claim_asked).is_some_and(|fire| fire <= soon);
        let active = !self.due.is_empty() || self.table.next_fire().is_some_and(|fire| fire <= soon);
        let stale = self.fenced_at.is_none_or(|at| mono_ms.saturating_sub(at) > FENCE_MS / 2);
        let wanted = uncovered || coming || active && stale && !self.claim_out();
        wanted.then(|| (now + self.claim_span()).max(self.claim_asked))
    }

    /// How long before a timer is due its claim is asked for, ms.
    pub(super) fn claim_lead(&self) -> u64 {
        CLAIM_LEAD_MS + self.lag
    }

    /// How far a claim that is asked for now reaches, ms.
    pub(super) fn claim_span(&self) -> u64 {
        CLAIM_SPAN_MS + self.lag
    }

    /// A batch was answered that was begun at `begun`, monotonic ms.
    pub(super) fn note_lag(&mut self, begun: u64, mono_ms: u64) {
        // What is asked for while a batch is under way has to wait for that one first.
        let took = mono_ms.saturating_sub(begun).saturating_mul(2).min(MAX_LAG_MS);
        // A slow answer is reckoned with at once, and forgotten over some twenty quick ones.
        self.lag = took.max(self.lag - self.lag.div_ceil(8));
    }

    /// The answer to a schedule that must not be asked of the store (any more): it is a repeat, and
    /// its timer has been acknowledged, or its outcome is on the way, so that the store might bring
    /// it back. Any other is for the store to answer: what is in memory was stored, but replicas
    /// may not have it yet.
    pub(super) fn known(&self, recent: &mut RecentIds, now: Now, timer: &Timer) -> Option<OpReply> {
        if recent.contains(now, timer.id) {
            return Some(OpReply::Ended(Ended::Acknowledged));
        }
        if self.late_acks.holds(timer.id) {
            let text = format!("an outcome of timer {} is on its way to the store: try again", timer.id);
            return Some(failed(ErrorCode::Overloaded, text));
        }
        let entry = self.table.get(timer.id).filter(|e| e.state.is_under_way())?;
        let same = entry.record.timer.same_content(timer);
        Some(if same { OpReply::Scheduled { new: false, replaced: None } } else { OpReply::Conflict })
    }

    /// Whether a call that carries a claim is under way.
    fn claim_out(&self) -> bool {
        let carries = |c: &Pending| {
            matches!(c, Pending::Apply { claim: Some(_), .. } | Pending::Load { claim: Some(_), .. })
        };
        self.calls.iter().any(carries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_asked_for_earlier_while_the_store_is_slow() {
        let mut p = Partition::new(PartitionId(0), Epoch(1), Time::ZERO, Time::ZERO, Seeded(1));
        assert_eq!((p.claim_lead(), p.claim_span()), (20, 70));
        p.note_lag(1_000, 1_040);
        assert_eq!((p.claim_lead(), p.claim_span()), (100, 150));
        p.note_lag(1_000, 61_000);
        assert_eq!(p.claim_lead(), 20 + MAX_LAG_MS, "a store that was away is no measure");
        (0..50).for_each(|_| p.note_lag(2_000, 2_001));
        assert_eq!(p.claim_lead(), 22);
    }

    #[test]
    fn a_claim_that_reaches_far_is_written_again_before_the_fence_is_too_old() {
        let mut p = Partition::new(PartitionId(0), Epoch(1), Time::ZERO, Time::ZERO, Seeded(1));
        p.claim_asked = Time::from_ms(10_000);
        p.fenced_at = Some(1_000);
        let wanted = |p: &Partition, mono_ms| p.claim_wanted(Time::from_ms(5_000), mono_ms, 0).is_some();
        assert!(!wanted(&p, 1_501), "nothing is due");
        p.due.push(TimerId::from_u128(1));
        assert_eq!((wanted(&p, 1_500), wanted(&p, 1_501)), (false, true));
        p.calls.push_back(Pending::Load { claim: None, begun: 0 });
        assert!(wanted(&p, 1_501));
        p.calls.push_back(Pending::Load { claim: Some(p.claim_asked), begun: 0 });
        assert!(!wanted(&p, 1_501), "one is under way");
    }
}
