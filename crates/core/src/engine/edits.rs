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
//! Not in here: the queue in which edits wait (`queue`), their answers (`replies`).

use mtimer_protocol::RequestOp;
use mtimer_protocol::ops as asked;
use mtimer_store::ops::{Cancel, Park, Purge, Replay, Reschedule, Schedule, Settle, Take, Unpark};
use mtimer_store::{Op, RequestId};
use mtimer_types::{KeyPolicy, Target, Time, TimerId};

use super::partition::OwnedPartition;
use super::pending::{Asked, KeyName, Own, Pending, Settling};
use super::table::{EntryState, TimerEntry};

impl OwnedPartition {
    /// Makes the store's operation of one that leaves at `now`. `None`: it has become pointless.
    pub(super) fn complete(&mut self, now: Time, pending: &mut Pending) -> Option<Op> {
        match pending {
            Pending::Asked(asked) => Some(self.complete_asked(now, asked)),
            Pending::Own(own) => self.complete_own(now, own),
        }
    }

    /// Adds the delivery state of its timer to a client's operation, and holds the timer if the
    /// operation can change it.
    fn complete_asked(&mut self, now: Time, asked: &mut Asked) -> Op {
        if let RequestOp::Schedule(asked::Schedule { policy: KeyPolicy::Keep, .. }) = &asked.op {
            asked.begun = asked.key.as_ref().is_some_and(|key| self.may_have_begun(key));
        }
        let op = match &asked.op {
            RequestOp::Schedule(asked::Schedule { timer, policy }) => {
                Schedule { timer: timer.clone(), policy: *policy }.into()
            }
            RequestOp::Cancel(asked::Cancel { target, request }) => {
                // A timer that is being taken is not delivered while this cancel is under way.
                let sent_attempt = self.named(target).and_then(|id| self.sent_attempt(id));
                Cancel { target: target.clone(), sent_attempt, request: RequestId(*request) }.into()
            }
            RequestOp::Reschedule(asked::Reschedule { target, due, request }) => {
                let is_begun = self.named(target).is_some_and(|id| self.is_begun(id));
                let (target, due, request) = (target.clone(), *due, RequestId(*request));
                Reschedule { target, due, is_begun, request }.into()
            }
            RequestOp::Replay(asked::Replay { id }) => Replay { id: *id, fire: now }.into(),
            RequestOp::Purge(asked::Purge { id }) => Purge { id: *id }.into(),
        };
        self.hold(asked);
        op
    }

    fn complete_own(&mut self, now: Time, own: &mut Own) -> Option<Op> {
        Some(match own {
            Own::Take { id, failed, timer } => {
                // An edit that overtook it in the queue may have ended the timer.
                self.table.get(*id).and_then(|entry| entry.state.taking())?;
                Take { id: *id, failed: *failed, timer: timer.take() }.into()
            }
            Own::Settle(Settling { id, verdict, timer, .. }) => {
                Settle { id: *id, verdict: verdict.clone(), timer: timer.take() }.into()
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
        })
    }

    /// Holds the timer that a client's operation can change, until it is answered. One that changes
    /// nothing in any case holds nothing: however often a client repeats it, the timer is sent.
    pub(super) fn hold(&mut self, asked: &mut Asked) {
        let target = match &asked.op {
            RequestOp::Schedule(asked::Schedule { timer, policy: KeyPolicy::Replace }) => {
                if let Some(key) = asked.key.as_ref().filter(|key| self.table.by_key(key) != Some(timer.id)) {
                    self.key_edits.hold(key);
                }
                return;
            }
            RequestOp::Reschedule(asked::Reschedule { target, due, .. }) => {
                if self.named(target).is_some_and(|id| self.is_unmovable(id, *due)) {
                    return;
                }
                target
            }
            RequestOp::Cancel(asked::Cancel { target, .. }) => target,
            RequestOp::Schedule(_) | RequestOp::Replay(_) | RequestOp::Purge(_) => return,
        };
        if let Some(key) = &asked.key {
            self.key_edits.hold(key);
        }
        let Some(id) = self.named(target).filter(|_| asked.held.is_none()) else { return };
        asked.held = Some(id);
        self.edits.hold(id);
        if let Some(entry) = self.table.get_mut(id).filter(|e| !e.taken)
            && entry.state.park_sent() == Some(&mut false)
        {
            // It would be parked after the edit, and come back before the time that it is moved to.
            entry.state = EntryState::Held;
        }
    }

    /// The timer that a target names, as far as memory knows.
    pub(super) fn named(&self, target: &Target) -> Option<TimerId> {
        match target {
            Target::Id(id) => Some(*id),
            Target::Key(dest, key) => self.table.by_key(&(dest.clone(), key.clone())),
        }
    }

    /// The attempt of a timer that was sent, here or by the predecessor, and has no outcome in the
    /// store.
    fn sent_attempt(&self, id: TimerId) -> Option<u32> {
        let attempt = self.table.get(id).and_then(TimerEntry::unsettled_attempt);
        // The predecessor has sent it, and no claim in the store tells.
        attempt.or_else(|| self.inherited.get(id).map(|f| f.attempt))
    }

    /// Whether an attempt of a timer has begun: it cannot be moved any more.
    fn is_begun(&self, id: TimerId) -> bool {
        // A take that the store refuses for now is asked for again, even if its time has changed by
        // then.
        let begun = |e: &TimerEntry| e.attempt() > 1 || e.taken || e.state.taking().is_some();
        self.sent_attempt(id).is_some() || self.table.get(id).is_some_and(begun)
    }

    /// Whether an attempt of the timer that has a key may have begun, as far as the store does not
    /// know.
    fn may_have_begun(&self, name: &KeyName) -> bool {
        match self.table.by_key(name) {
            Some(id) => self.is_begun(id),
            // Inherited deliveries name no keys: it may be one that the predecessor has sent.
            None => self.awaits_timers(),
        }
    }

    /// Whether the store is certain to refuse to move a timer to `due`.
    fn is_unmovable(&self, id: TimerId, due: Time) -> bool {
        let past = |e: &TimerEntry| e.record.timer.is_past_deadline(due);
        self.is_begun(id) || self.table.get(id).is_some_and(past)
    }
}
