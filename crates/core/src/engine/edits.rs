//! Edits (cancel, reschedule, replace) and the timers that they hold.
//!
//! A timer is not sent while an edit of it awaits the store's answer. The hold begins when the edit
//! arrives, or, behind a backlog, when its batch leaves.
//!
//! Invariants:
//!
//! - An edit reports the delivery state of its timer as of the moment at which it leaves, because
//!   the timer may have been sent while the edit was queued. A move to the park that has not left
//!   by then is dropped, and decided anew after the edit.
//! - No stream of edits holds a timer for ever. An edit that cannot change the timer does not hold
//!   it; one that can decides about it when it is answered; behind a backlog, and between two
//!   operations on one key, the timer goes first. Exceptions:
//!   - An edit that the store refuses, because it is full or may evict keys, decides nothing: a
//!     stream of them holds a timer that has not been sent, or not taken, for as long as the store
//!     refuses them.
//!   - A repeat of an edit whose answer is remembered decides nothing either, but is answered as
//!     too old 30 s after its first sending (the repeat horizon).
//!
//! Not in here: which operation holds its timer (its module in `mtimer_store::ops`), the queue in
//! which edits wait (`queue`), their answers (`replies`).

use mtimer_protocol::ops::Subject;
use mtimer_store::Op;
use mtimer_store::ops::{self as stored, BulkAct, Memory, Park, Settle, Take, Unpark};
use mtimer_types::{Destination, Key, Target, Time, TimerId};

use super::bulk_work::BulkKind;
use super::partition::OwnedPartition;
use super::pending::{Asked, BulkActing, Own, Pending, Settling};
use super::table::{EntryState, TimerEntry};

impl OwnedPartition {
    /// Makes the store's operation of one that leaves at `now`. `None`: it has become pointless.
    pub(super) fn complete(&mut self, now: Time, pending: &mut Pending) -> Option<Op> {
        match pending {
            Pending::Asked(asked) => {
                let op = stored::complete(&asked.op, self, now);
                self.hold(asked);
                Some(op)
            }
            Pending::Own(own) => self.complete_own(now, own),
        }
    }

    fn complete_own(&mut self, now: Time, own: &mut Own) -> Option<Op> {
        Some(match own {
            Own::Take { id, failed } => {
                // An edit that overtook it in the queue may have ended the timer.
                let is_current = self.is_current();
                let entry = self.table.get_mut(*id)?;
                if !entry.needs_take() {
                    entry.drop_take();
                    return None;
                }
                let is_known = entry.record.is_plain() && is_current;
                let timer = is_known.then(|| entry.record.timer.clone());
                Take { id: *id, failed: *failed, timer }.into()
            }
            Own::Settle(Settling { id, verdict, timer, attempt, .. }) => {
                // A store that refuses it gets it again, and then reads the timer itself.
                let (timer, attempt) = (timer.take(), attempt.clone());
                Settle { id: *id, verdict: verdict.clone(), timer, attempt }.into()
            }
            Own::Park(id) => {
                let entry = self.table.get_mut(*id)?;
                // An attempt may have failed while it was queued.
                let failed = entry.attempt() - 1;
                match entry.state.park_sent()? {
                    true => return None,
                    sent => *sent = true,
                }
                Park { id: *id, failed }.into()
            }
            Own::Unpark(id) => Unpark { id: *id, fire: now }.into(),
            Own::Trim(trim) => trim.clone().into(),
            Own::BulkAct(acting) => {
                let BulkActing { number, id, adds, .. } = *acting;
                let (sent_attempt, is_begun) = (self.sent_attempt(id), self.has_begun(id));
                if acting.kind == BulkKind::Live {
                    acting.is_held = true;
                    self.hold_timer(id);
                }
                BulkAct { number, id, sent_attempt, is_begun, adds }.into()
            }
            Own::BulkAdvance { advance, .. } => advance.clone().into(),
        })
    }

    /// Whether timers in memory are as the store has them, but for edits that hold them: no other
    /// edit is under way, and none that was changed is still to be read.
    fn is_current(&self) -> bool {
        self.unheld_edits == 0 && !self.calls.is_fetching()
    }

    /// Holds the timer that a client's operation can change, until it is answered.
    pub(super) fn hold(&mut self, asked: &mut Asked) {
        if !stored::holds(&asked.op, self) {
            return;
        }
        if let Some(key) = &asked.key {
            self.key_edits.hold(key);
        }
        let named = match asked.op.subject() {
            Subject::Named(target) => self.named(target),
            Subject::New(_) | Subject::Retained(_) | Subject::Partition { .. } => None,
        };
        let Some(id) = named.filter(|_| asked.held.is_none()) else { return };
        asked.held = Some(id);
        self.hold_timer(id);
    }

    /// Holds a timer until the edit is answered. A move to the park that has not left is dropped.
    fn hold_timer(&mut self, id: TimerId) {
        self.edits.hold(id);
        if let Some(entry) = self.table.get_mut(id).filter(|e| !e.may_be_taken())
            && entry.state.park_sent() == Some(&mut false)
        {
            // It would be parked after the edit, and come back before the time that it is moved to.
            entry.state = EntryState::Held;
        }
    }
}

impl Memory for OwnedPartition {
    fn named(&self, target: &Target) -> Option<TimerId> {
        match target {
            Target::Id(id) => Some(*id),
            Target::Key(dest, key) => self.table.by_key(&(dest.clone(), key.clone())),
        }
    }

    fn sent_attempt(&self, id: TimerId) -> Option<u32> {
        let attempt = self.table.get(id).and_then(TimerEntry::unsettled_attempt);
        // The predecessor has sent it, and no claim in the store tells.
        attempt.or_else(|| self.inherited.get(id).map(|f| f.attempt))
    }

    fn has_begun(&self, id: TimerId) -> bool {
        // A take that the store refuses for now is asked for again, even if its time has changed by
        // then.
        let begun = |e: &TimerEntry| e.attempt() > 1 || e.may_be_taken();
        self.sent_attempt(id).is_some() || self.table.get(id).is_some_and(begun)
    }

    fn may_have_begun(&self, dest: &Destination, key: &Key) -> bool {
        match self.table.by_key(&(dest.clone(), key.clone())) {
            Some(id) => self.has_begun(id),
            // Inherited deliveries name no keys: it may be one that the predecessor has sent.
            None => self.awaits_timers(),
        }
    }

    fn may_have_sent(&self, dest: &Destination, key: &Key) -> Option<u32> {
        match self.table.by_key(&(dest.clone(), key.clone())) {
            Some(id) => self.sent_attempt(id),
            // As above.
            None => self.awaits_timers().then_some(u32::MAX),
        }
    }

    fn deadline(&self, id: TimerId) -> Option<Time> {
        self.table.get(id).filter(|_| self.is_current())?.record.timer.deadline
    }
}
