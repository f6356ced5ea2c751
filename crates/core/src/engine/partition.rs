//! One partition while this broker owns it: its timers in memory, its operations on their way to
//! the store, its claims, its horizon.
//!
//! The parts that others use directly keep their own invariants; everything else is private.

use mtimer_protocol::ops::ScheduleReply;
use mtimer_protocol::{ErrorCode, OpReply, RequestOp};
use mtimer_types::limits::AWAY_MS;
use mtimer_types::{Ended, Epoch, PartitionId, Time, TimerId};

use super::bulk_work::BulkWork;
use super::calls::{Calls, OpenCall};
use super::claims::{Claims, OWNERSHIP_MS};
use super::deferral::FlushTime;
use super::hash::Seeded;
use super::holds::Holds;
use super::inherited::Inherited;
use super::key_edits::KeyQueue;
use super::pending::{Asked, Own, Pending, failed};
use super::questions::{QueryPart, Questions};
use super::queue::OpQueue;
use super::recent::RecentIds;
use super::table::{EntryState, TakeState, TimerTable};
use crate::api::Now;

/// Operations that wait for a batch, or for their turn at a key; beyond it clients are told that it
/// is too much.
pub(super) const QUEUE_OPS: usize = 50_000;
/// Pause between two trims of the store's retained timers, ms.
const TRIM_MS: u64 = 60_000;

/// By how much the clock of a predecessor is assumed to have been ahead, at most, ms. Brokers that
/// read the same clocks differ by a round trip; the effects of a larger difference are in
/// `docs/guarantees.md`, under "When partitions change hands".
const CLOCKS_MS: u64 = 1_000;

/// How far an ownership has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnershipStage {
    Serving,
    /// It is given up for another broker: nothing new is begun.
    Leaving,
    /// The release is under way: nothing more goes to the store.
    Releasing,
}

/// The unfinished work that an ownership leaves behind.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// The timers in memory.
    pub(super) table: TimerTable,
    /// Operations that have gone to the store and have no answer.
    pub(super) sent: Vec<Pending>,
    /// Operations that have not gone to the store.
    pub(super) unsent: Vec<Pending>,
    /// Operations that wait for another on the same key.
    pub(super) waiting: Vec<Asked>,
    /// Questions without an answer.
    pub(super) questions: Vec<QueryPart>,
}

/// A partition that this broker owns.
#[derive(Debug)]
pub(super) struct OwnedPartition {
    id: PartitionId,
    epoch: Epoch,
    prior_claim: Time,
    since: Time,
    /// The same, monotonic ms.
    since_mono_ms: u64,
    /// Bulk jobs and settings have been read.
    knows_controls: bool,
    stage: OwnershipStage,
    /// Why the store cannot be reached.
    down: Option<String>,
    /// Since when, monotonic ms, once the engine has looked.
    down_since: Option<u64>,
    horizon: Time,
    due: Vec<TimerId>,
    put_off: Vec<Own>,
    /// When dead letters and unconfirmed timers are trimmed next, monotonic ms.
    trim_at: u64,
    pub(super) table: TimerTable,
    /// Operations that wait for the next batch.
    pub(super) queue: OpQueue,
    pub(super) calls: Calls,
    pub(super) claims: Claims,
    pub(super) flush: FlushTime,
    /// Questions of clients.
    pub(super) questions: Questions,
    /// Edits that hold their timer, by id: it is not sent until they are answered.
    pub(super) edits: Holds,
    /// How many operations are under way that change timers without holding them.
    pub(super) unheld_edits: u32,
    /// Late acknowledgements under way by id: such a timer may have ended, which the next answer
    /// tells.
    pub(super) late_acks: Holds,
    pub(super) key_edits: KeyQueue,
    /// The work on bulk jobs.
    pub(super) bulk: BulkWork,
    /// Deliveries that the previous owner left under way.
    pub(super) inherited: Inherited,
}

impl OwnedPartition {
    /// A partition that is owned since `since` with this epoch. The previous owner
    /// has claimed up to `prior_claim`.
    pub(super) fn new(id: PartitionId, epoch: Epoch, prior_claim: Time, since: Now, seed: Seeded) -> Self {
        Self {
            id,
            epoch,
            prior_claim,
            since: since.time,
            since_mono_ms: since.mono_ms,
            knows_controls: false,
            stage: OwnershipStage::Serving,
            down: None,
            down_since: None,
            horizon: Time::ZERO,
            due: Vec::new(),
            put_off: Vec::new(),
            trim_at: 0,
            table: TimerTable::new(seed),
            queue: OpQueue::new(seed),
            calls: Calls::default(),
            claims: Claims::new(prior_claim),
            flush: FlushTime::default(),
            questions: Questions::default(),
            edits: Holds::new(seed),
            unheld_edits: 0,
            late_acks: Holds::new(seed),
            key_edits: KeyQueue::new(seed),
            bulk: BulkWork::default(),
            inherited: Inherited::new(seed),
        }
    }

    pub(super) fn id(&self) -> PartitionId {
        self.id
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the time up to which the previous owner has claimed.
    pub(super) fn prior_claim(&self) -> Time {
        self.prior_claim
    }

    /// When this ownership began.
    pub(super) fn since(&self) -> Time {
        self.since
    }

    /// Whether it is given up, or being released.
    pub(super) fn is_leaving(&self) -> bool {
        self.stage != OwnershipStage::Serving
    }

    /// Whether the release is under way: nothing more goes to the store.
    pub(super) fn is_releasing(&self) -> bool {
        self.stage == OwnershipStage::Releasing
    }

    /// Begins to give it up.
    pub(super) fn leave(&mut self) {
        if self.stage == OwnershipStage::Serving {
            self.stage = OwnershipStage::Leaving;
        }
    }

    /// The release goes to the store.
    pub(super) fn begin_release(&mut self) {
        self.stage = OwnershipStage::Releasing;
    }

    /// Why the store cannot be reached, if it cannot.
    pub(super) fn down(&self) -> Option<&str> {
        self.down.as_deref()
    }

    /// Whether the store can be reached, as far as is known.
    pub(super) fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// Notes whether the store can be reached; `down` says why not.
    pub(super) fn set_health(&mut self, down: Option<String>) {
        if down.is_none() {
            self.down_since = None;
        }
        self.down = down;
    }

    /// Why the store cannot be reached, if it has not been for [`AWAY_MS`].
    pub(super) fn away(&mut self, now: Now) -> Option<&str> {
        let why = self.down.as_deref()?;
        let since = *self.down_since.get_or_insert(now.mono_ms);
        (now.mono_ms >= since + AWAY_MS).then_some(why)
    }

    /// Whether it is served and its store can be reached.
    pub(super) fn is_active(&self) -> bool {
        self.is_up() && !self.is_leaving()
    }

    /// Everything that fires up to here is in memory.
    pub(super) fn horizon(&self) -> Time {
        self.horizon
    }

    /// Everything that fires up to `horizon` has been loaded.
    pub(super) fn extend_horizon(&mut self, horizon: Time) {
        self.horizon = self.horizon.max(horizon);
    }

    /// Lowers the horizon: timers that fire beyond `horizon` leave memory.
    pub(super) fn limit_horizon(&mut self, horizon: Time) {
        self.horizon = self.horizon.min(horizon);
    }

    /// Timers whose time has come, waiting for a claim. Some may have left that state since.
    pub(super) fn due(&self) -> &[TimerId] {
        &self.due
    }

    /// A timer whose time has come begins to wait for a claim.
    pub(super) fn push_due(&mut self, id: TimerId) {
        self.due.push(id);
    }

    pub(super) fn take_due(&mut self) -> Vec<TimerId> {
        std::mem::take(&mut self.due)
    }

    /// Bulk jobs and settings have been read.
    pub(super) fn controls_read(&mut self) {
        self.knows_controls = true;
    }

    /// Whether timers may be sent: the store has accepted a write that began lately, and it is
    /// known which destinations are paused.
    pub(super) fn may_send(&self, mono_ms: u64) -> bool {
        self.knows_controls && self.owned_lately(mono_ms)
    }

    /// Whether the store has accepted a write that began lately.
    pub(super) fn owned_lately(&self, mono_ms: u64) -> bool {
        self.claims.owned_lately(mono_ms)
    }

    /// The claim that a batch begun now should carry, if any, see [`Claims::wanted`]. A claim waits
    /// while the store is away: its need is decided anew when the store is back.
    pub(super) fn claim_wanted(&self, now: Now, ahead: u64) -> Option<Time> {
        if !self.is_active() {
            return None;
        }
        self.claims.wanted(now, ahead, &self.table, !self.due.is_empty(), || self.calls.has_claim())
    }

    /// How many operations wait for a batch, or for their turn at a key.
    pub(super) fn queued(&self) -> usize {
        self.queue.len() + self.key_edits.waiting()
    }

    /// Whether as many operations wait as may.
    pub(super) fn is_full(&self) -> bool {
        self.queued() >= QUEUE_OPS
    }

    /// Operations of the owner's own that the store would not take for now.
    pub(super) fn put_off(&self) -> &[Own] {
        &self.put_off
    }

    /// Keeps an operation of the owner's own that the store would not take for now. A trim has its
    /// next time anyway.
    pub(super) fn push_put_off(&mut self, own: Own) {
        match own {
            Own::Trim(_) | Own::BulkAct(_) | Own::BulkAdvance { .. } => return,
            Own::Park(id) => {
                if let Some(sent) = self.table.get_mut(id).and_then(|e| e.state.park_sent()) {
                    *sent = false;
                }
            }
            Own::Take { .. } | Own::Settle(_) | Own::Unpark(_) => {}
        }
        self.put_off.push(own);
    }

    /// Queues again the operations that the store would not take for now.
    ///
    /// A move (take, park, unpark) is dropped if its timer has left the state of that move
    /// meanwhile (a take only when its batch leaves), and waits on while an edit of the timer is
    /// under way, which may put it elsewhere. Anything else does not wait: an edit is told of a
    /// delivery whose outcome the store does not have, and of a timer that the edit has ended an
    /// outcome changes nothing.
    pub(super) fn queue_put_off(&mut self) {
        for own in std::mem::take(&mut self.put_off) {
            let id = own.id();
            let state = id.and_then(|id| self.table.get(id)).map(|e| &e.state);
            let moves = match own {
                Own::Take { .. } => true,
                Own::Park(_) => state.is_some_and(EntryState::is_parking),
                Own::Unpark(_) => state.is_some_and(EntryState::is_unparking),
                Own::Settle(_) | Own::Trim(_) | Own::BulkAct(_) | Own::BulkAdvance { .. } => {
                    self.queue.push_own(own);
                    continue;
                }
            };
            if moves && id.is_some_and(|id| self.edited(id)) {
                self.put_off.push(own);
            } else if moves {
                self.queue.push_own(own);
            }
        }
    }

    /// Ends the ownership. Returns the work that was not done, or may not have been.
    pub(super) fn end(self) -> Unfinished {
        let Self { table, mut queue, calls, key_edits, put_off, mut questions, .. } = self;
        let mut sent = Vec::new();
        let mut asked = Vec::new();
        for call in calls.into_pending() {
            match call {
                OpenCall::Apply { mut pending, .. } => sent.append(&mut pending),
                OpenCall::Query(part) => asked.push(part),
                OpenCall::Load { .. }
                | OpenCall::Unload { .. }
                | OpenCall::Fetch(_)
                | OpenCall::Look
                | OpenCall::ParkedDestinations
                | OpenCall::Parked { .. }
                | OpenCall::Sweep { .. }
                | OpenCall::Taken
                | OpenCall::Controls
                | OpenCall::BulkPending
                | OpenCall::BulkParks
                | OpenCall::BulkList(_)
                | OpenCall::Release => {}
            }
        }
        asked.extend(questions.take_waiting());
        let unsent = queue.take_all().into_iter().chain(put_off.into_iter().map(Pending::Own)).collect();
        Unfinished { table, sent, unsent, waiting: key_edits.into_waiting().collect(), questions: asked }
    }

    /// Has the first trim of an ownership at `mono_ms`, or the next.
    pub(super) fn trim_from(&mut self, mono_ms: u64) {
        self.trim_at = mono_ms;
    }

    /// Whether it is time to trim the store's retained timers. If so, the next time is set.
    pub(super) fn begin_trim(&mut self, mono_ms: u64) -> bool {
        let begin = mono_ms >= self.trim_at && self.is_active();
        if begin {
            self.trim_at = mono_ms + TRIM_MS;
        }
        begin
    }

    /// The answer to a schedule that must not be asked of the store (any more): it is a repeat, and
    /// its timer has been acknowledged, or its outcome is on the way, so that the store might bring
    /// it back. The store answers any other: a timer in memory was stored, but replicas may not
    /// have it yet.
    pub(super) fn known(&self, recent: &mut RecentIds, now: Now, op: &RequestOp) -> Option<OpReply> {
        let (timer, policy) = match op {
            RequestOp::Schedule(op) => (&op.timer, op.policy),
            // The store remembers the release of an import; nothing else brings a timer.
            RequestOp::Import(_)
            | RequestOp::Cancel(_)
            | RequestOp::Reschedule(_)
            | RequestOp::ExtendDeadline(_)
            | RequestOp::Replay(_)
            | RequestOp::Purge(_)
            | RequestOp::BeginBulk(_)
            | RequestOp::StopBulk(_) => return None,
            RequestOp::Configure(_) => return self.may_not_be_sole(now),
        };
        if recent.contains(now, timer.id) {
            return Some(ScheduleReply::Ended(Ended::Acknowledged).into());
        }
        if self.late_acks.holds(timer.id) {
            let text = format!("an outcome of timer {} is on its way to the store: try again", timer.id);
            return Some(failed(ErrorCode::Overloaded, text));
        }
        let entry = self.table.get(timer.id).filter(|e| e.state.is_under_way())?;
        let same = entry.record.timer.same_content(timer);
        let due = entry.record.timer.due;
        Some(match (same, policy.computes_due()) {
            (true, false) => ScheduleReply::Scheduled { new: false, replaced: None }.into(),
            (true, true) => ScheduleReply::Timed { new: false, replaced: None, due }.into(),
            (false, _) => ScheduleReply::Conflict.into(),
        })
    }

    /// The answer to a change of settings while a former owner may still send, by the claims that
    /// it has: it does not know of the change.
    fn may_not_be_sole(&self, now: Now) -> Option<OpReply> {
        let text =
            "the partition has changed hands a moment ago, and its former owner may still send: try again";
        let is_sole = now.mono_ms > self.since_mono_ms + OWNERSHIP_MS;
        (!is_sole).then(|| failed(ErrorCode::Overloaded, text.to_owned()))
    }

    /// Whether an edit holds this timer.
    pub(super) fn edited(&self, id: TimerId) -> bool {
        if self.edits.is_empty() && self.key_edits.is_empty() {
            return false;
        }
        let by_key = || {
            let timer = &self.table.get(id)?.record.timer;
            let key = timer.key.clone()?;
            Some(self.key_edits.holds(&(timer.dest.clone(), key)))
        };
        self.edits.holds(id) || by_key().unwrap_or(false)
    }

    /// Whether an edit holds this timer or a late acknowledgement of it is under way: its answer
    /// decides whether the timer is sent.
    pub(super) fn is_undecided(&self, id: TimerId) -> bool {
        self.late_acks.holds(id) || self.edited(id)
    }

    /// Whether bulk jobs may be under way, as far as is known.
    pub(super) fn may_have_bulk_jobs(&self) -> bool {
        self.bulk.has_work() || self.calls.is_reading_bulks()
    }

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

    /// Asks the store to take an at-most-once timer.
    pub(super) fn ask_take(&mut self, id: TimerId) {
        let Some(entry) = self.table.get_mut(id) else { return };
        entry.take = TakeState::Asked;
        let failed = entry.attempt() - 1;
        self.queue.push_own(Own::Take { id, failed });
    }

    /// Whether at-most-once timers are being taken.
    pub(super) fn takes_under_way(&self) -> bool {
        let is_put_off = || self.put_off.iter().any(Own::is_take);
        self.calls.has_op(Pending::is_take) || self.queue.has_take() || is_put_off()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> OwnedPartition {
        let since = Now { time: Time::ZERO, mono_ms: 0 };
        OwnedPartition::new(PartitionId(0), Epoch(1), Time::ZERO, since, Seeded(1))
    }

    #[test]
    fn a_partition_that_is_given_up_sends_and_claims_nothing() {
        let mut p = partition();
        p.claims.confirm(Some(Time::from_ms(100)), 0);
        p.push_due(TimerId::from_u128(1));
        let now = Now { time: Time::from_ms(200), mono_ms: 0 };
        let state =
            |p: &OwnedPartition| (!p.is_leaving() && p.owned_lately(0), p.claim_wanted(now, 0).is_some());
        assert!(p.claims.covers(Time::from_ms(100)));
        assert_eq!(state(&p), (true, true));
        p.set_health(Some("away".into()));
        assert_eq!(state(&p), (true, false), "a claim waits for the store");
        p.set_health(None);
        p.leave();
        assert_eq!((state(&p), p.is_releasing()), ((false, false), false));
        p.begin_release();
        p.leave();
        assert!(p.is_releasing() && p.is_leaving() && !p.is_active());
    }

    #[test]
    fn what_is_retained_is_trimmed_at_its_time_and_not_while_the_store_is_away() {
        let mut p = partition();
        p.trim_from(100);
        assert!(!p.begin_trim(99));
        p.set_health(Some("away".into()));
        assert!(!p.begin_trim(100));
        p.set_health(None);
        assert!(p.begin_trim(100) && !p.begin_trim(100 + TRIM_MS - 1) && p.begin_trim(100 + TRIM_MS));
    }
}
