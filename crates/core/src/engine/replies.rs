//! Effects of the store's answers to clients' operations: memory agrees with the store, the timer
//! is no longer held, the client is told.
//!
//! Not in here: taking operations in (`requests`), owners' own operations (`settle`, `park`,
//! `delivery`).

use std::sync::Arc;

use mtimer_protocol::ops::Subject;
use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_store::ops::{self as stored, MemoryEffect};
use mtimer_store::{Record, Refusal};
use mtimer_types::{DeadReason, PartitionId, Target, Time, Timer, TimerId};

use super::Engine;
use super::calls::OpenCall;
use super::pending::{Asked, KeyName, failed};
use crate::api::{Call, Counter, Now};

impl Engine {
    /// Answers an operation of a client that was on its way: its timer is no longer held, nor its
    /// key.
    pub(super) fn answer_asked(&mut self, at: PartitionId, asked: Asked, answer: OpReply) {
        let Asked { op, reply, key, held } = asked;
        if let Some(p) = self.partition(at) {
            p.unheld_edits = p.unheld_edits.saturating_sub(u32::from(stored::changes_unheld(&op)));
        }
        self.end_edit(at, held, key);
        self.reply_to(&op, reply, answer);
    }

    /// An edit was answered: releases the timer that it held, and the key.
    pub(super) fn end_edit(&mut self, at: PartitionId, id: Option<TimerId>, name: Option<KeyName>) {
        let Some(p) = self.partition(at) else { return };
        if let Some(id) = id {
            p.edits.release(id);
        }
        let mut holder = None;
        if let Some(name) = name {
            holder = p.table.by_key(&name);
            if let Some(next) = p.key_edits.end(&name) {
                // Between two of them a timer that is due is sent, however many there are.
                self.submit(at, next, false);
            }
        }
        for held in [id, holder].into_iter().flatten() {
            self.unhold(held);
        }
    }

    /// Memory agrees with what the store has done for a client. `key`: that the operation has named
    /// or brought along.
    pub(super) fn agree(&mut self, now: Now, key: Option<&KeyName>, effect: MemoryEffect) {
        match effect {
            MemoryEffect::Nothing => {}
            MemoryEffect::Filed { timer, new, replaced, is_debounced } => {
                self.supersede(timer.id, key, replaced);
                self.count(Counter::Scheduled, u64::from(new));
                self.filed(now, timer, new, is_debounced);
            }
            MemoryEffect::Cancelled(id) => {
                self.count(Counter::Cancelled, 1);
                self.forget(id);
            }
            MemoryEffect::Stopped { id, died } => {
                self.count(Counter::CancelTooLate, 1);
                if let Some(failed) = died {
                    self.note_death(id, DeadReason::Stopped, failed);
                }
                self.stop_attempts(id);
            }
            MemoryEffect::Moved { id, due } => {
                self.count(Counter::Rescheduled, 1);
                self.move_to(id, due);
            }
            MemoryEffect::Replayed(id) => {
                self.count(Counter::Replayed, 1);
                self.fetch(id);
            }
            MemoryEffect::Purged => self.count(Counter::Purged, 1),
            MemoryEffect::Staged => self.count(Counter::Staged, 1),
            MemoryEffect::Extended { id, deadline } => {
                self.count(Counter::Extended, 1);
                self.extended(id, deadline);
            }
            MemoryEffect::Bulks(at) => self.call(at, OpenCall::Controls, Call::Controls),
            MemoryEffect::Configured(row) => self.configured(now, *row),
        }
    }

    /// A timer is stored: it comes into memory if its time is near.
    fn filed(&mut self, now: Now, timer: Arc<Timer>, new: bool, is_debounced: bool) {
        let (id, due) = (timer.id, timer.due);
        let Some(p) = self.partition(id.partition()) else { return };
        if due > p.horizon() || p.table.contains(id) {
            return;
        }
        if new {
            let mut record = Record::accepted(timer, now.time);
            // A job may pass it by: it has a mark in the store, whichever that is.
            record.extensions.raise_bulk_mark(u32::from(p.may_have_bulk_jobs()));
            if is_debounced {
                // The store knows of when.
                record.extensions.set_debounced_since(now.time);
            }
            self.adopt(now, record, due, false);
        } else {
            // Stored earlier; by now it may be anywhere.
            self.fetch(id);
        }
    }

    /// The timer that had the key of a newly scheduled one has ended as replaced, unless this is
    /// the answer to a repeat and the key has passed on since.
    fn supersede(&mut self, id: TimerId, name: Option<&KeyName>, replaced: Option<TimerId>) {
        if let Some(old) = replaced {
            self.forget(old);
        }
        let Some(name) = name else { return };
        let holder = self.partition(id.partition()).and_then(|p| p.table.by_key(name));
        if let Some(holder) = holder.filter(|holder| *holder != id) {
            self.fetch(holder);
        }
    }

    /// A cancel came too late: the delivery under way is the last. The store has made the timer a
    /// dead letter if it waited for another one. (If this answers a repeat, a replay may have given
    /// the timer new attempts: the store is read to find out.)
    fn stop_attempts(&mut self, id: TimerId) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get_mut(id));
        if let Some(entry) = entry.filter(|e| e.state.is_under_way()) {
            entry.record.progress.stopped = true;
        }
        self.read_anew(id);
    }

    /// The store has moved a timer to another time, now or when this request was first sent; since
    /// then it may have gone on. A delivery under way is not touched: it was begun after the move.
    /// All else is read anew.
    fn move_to(&mut self, id: TimerId, due: Time) {
        let Some(p) = self.partition(id.partition()) else { return };
        let horizon = p.horizon();
        match p.table.get(id).map(|e| &e.state) {
            Some(state) if state.is_under_way() => {}
            Some(_) => self.read_anew(id),
            None if due <= horizon => self.fetch(id),
            None => {}
        }
    }

    /// A timer has another deadline: it is read, wherever it is. Until then memory goes by the
    /// earlier of the two. Thus the timer is not sent after the new one, and whether it has expired
    /// is up to the store. It stays in memory meanwhile, so that no stream of extensions delays it.
    fn extended(&mut self, id: TimerId, deadline: Time) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
        let Some(entry) = entry else { return self.look(id.partition(), Target::Id(id)) };
        let is_earlier = !entry.record.timer.is_past_deadline(deadline);
        // By the time at which it is read it may have left memory, and be noted as parked.
        let parks = entry.state.is_parking() || entry.state.is_unparking();
        if is_earlier {
            self.set_deadline(id, Some(deadline));
        }
        if parks {
            self.look(id.partition(), Target::Id(id));
        } else {
            self.fetch(id);
        }
    }

    /// An operation of a client that was not applied.
    pub(super) fn not_applied(&mut self, at: PartitionId, asked: Asked, code: ErrorCode, message: &str) {
        self.answer_asked(at, asked, failed(code, message));
    }

    pub(super) fn refused(&mut self, at: PartitionId, asked: Asked, refusal: Refusal) {
        let code = match refusal {
            Refusal::OutOfMemory | Refusal::DiskFull { .. } => ErrorCode::StoreFull,
            Refusal::ReadOnly | Refusal::MayEvict => ErrorCode::Unavailable,
            Refusal::NotReplicated => {
                self.reread(at, &asked);
                ErrorCode::NotReplicated
            }
        };
        self.not_applied(at, asked, code, &refusal.to_string());
    }

    /// An operation was applied but not confirmed, so it counts as unanswered; memory has to agree
    /// with the store all the same: a timer that was cancelled, replaced or moved must not be sent;
    /// one that was filed must be.
    fn reread(&mut self, at: PartitionId, asked: &Asked) {
        let holder = || self.partitions.get(at)?.table.by_key(asked.key.as_ref()?);
        match asked.op.subject() {
            Subject::New(timer) => {
                let (id, due) = (timer.id, timer.due);
                if let Some(holder) = holder().filter(|holder| *holder != id) {
                    self.read_anew(holder);
                }
                let may_be_near = stored::may_be_filed_sooner(&asked.op);
                if self.partition(at).is_some_and(|p| may_be_near || due <= p.horizon()) {
                    self.fetch(id);
                }
            }
            Subject::Named(target) => {
                // A timer that is named by its key may have come into memory since.
                match asked.held.or_else(holder) {
                    Some(id) if self.partition(at).is_some_and(|p| p.table.contains(id)) => {
                        self.read_anew(id);
                    }
                    _ => self.look(at, target.clone()),
                }
            }
            Subject::Retained(id) => self.fetch(id),
            Subject::Partition { partition, .. } => {
                self.call(partition, OpenCall::Controls, Call::Controls);
            }
        }
    }
}
