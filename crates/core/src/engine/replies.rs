//! Effects of the store's answers to clients' operations: memory agrees with the store, the timer
//! is no longer held, the client is told.
//!
//! Not in here: taking operations in (`requests`), owners' own operations (`settle`, `park`,
//! `delivery`).

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, CancelReply, ReplayReply, RescheduleReply, ScheduleReply};
use mtimer_protocol::{ErrorCode, OpReply, RequestOp};
use mtimer_store::{Answer, CancelAnswer, Record, Refusal, RescheduleAnswer, ScheduleAnswer};
use mtimer_types::{DeadReason, PartitionId, Time, Timer, TimerId};

use super::Engine;
use super::pending::{Asked, KeyName, failed};
use crate::api::{Counter, Now};

impl Engine {
    /// Answers an operation of a client that the store has not applied, or not confirmed.
    pub(super) fn decline(&mut self, at: PartitionId, asked: Asked, answer: OpReply) {
        let Asked { op, reply, key, held, .. } = asked;
        self.end_edit(at, held, key);
        if op.subject().brings().is_some() {
            self.reply_known(reply, answer)
        } else {
            self.reply(reply, answer)
        }
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

    pub(super) fn scheduled(
        &mut self,
        now: Now,
        timer: &Arc<Timer>,
        key: Option<&KeyName>,
        begun: bool,
        answer: ScheduleAnswer,
    ) -> ScheduleReply {
        let (id, at) = (timer.id, timer.id.partition());
        let said = match answer {
            ScheduleAnswer::Scheduled { new, replaced } => {
                self.supersede(id, key, replaced);
                self.count(Counter::Scheduled, u64::from(new));
                let within =
                    self.partition(at).is_some_and(|p| timer.due <= p.horizon() && !p.table.contains(id));
                if within && new {
                    let due = timer.due;
                    self.adopt(now, Record::accepted(timer.clone(), now.time), due, false);
                } else if within {
                    // Stored earlier; by now it may be anywhere.
                    self.fetch(id);
                }
                ScheduleReply::Scheduled { new, replaced }
            }
            ScheduleAnswer::Kept { id, begun: stored } => {
                ScheduleReply::Kept { id, being_delivered: begun || stored }
            }
            ScheduleAnswer::KeyTaken(id) => ScheduleReply::KeyTaken(id),
            ScheduleAnswer::Conflict => ScheduleReply::Conflict,
            ScheduleAnswer::Ended(ended) => ScheduleReply::Ended(ended),
        };
        if !matches!(said, ScheduleReply::Scheduled { .. } | ScheduleReply::Kept { .. }) {
            self.count(Counter::ScheduleRefused, 1);
        }
        said
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

    pub(super) fn cancelled(&mut self, answer: CancelAnswer) -> CancelReply {
        match answer {
            CancelAnswer::Cancelled(id) => {
                self.count(Counter::Cancelled, 1);
                self.forget(id);
                CancelReply::Cancelled(id)
            }
            CancelAnswer::TooLate(id) | CancelAnswer::Died { id, .. } => {
                self.count(Counter::CancelTooLate, 1);
                if let CancelAnswer::Died { failed, .. } = answer {
                    self.note_death(id, DeadReason::Stopped, failed);
                }
                self.stop_attempts(id);
                CancelReply::TooLate(id)
            }
            CancelAnswer::NotFound => CancelReply::NotFound,
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

    pub(super) fn rescheduled(&mut self, due: Time, answer: RescheduleAnswer) -> OpReply {
        match answer {
            RescheduleAnswer::Rescheduled(id) => {
                self.count(Counter::Rescheduled, 1);
                self.move_to(id, due);
                RescheduleReply::Rescheduled(id).into()
            }
            RescheduleAnswer::TooLate(id) => RescheduleReply::TooLate(id).into(),
            RescheduleAnswer::PastDeadline(id) => {
                let text = format!("timer {id} has a deadline before {}: nothing was changed", due.utc());
                failed(ErrorCode::Invalid, text)
            }
            RescheduleAnswer::NotFound => RescheduleReply::NotFound.into(),
        }
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

    pub(super) fn replayed(&mut self, id: TimerId, answer: &Answer) -> ReplayReply {
        match answer {
            Answer::Done => {
                self.fetch(id);
                ReplayReply::Done
            }
            Answer::KeyTaken(by) => ReplayReply::KeyTaken(*by),
            _ => ReplayReply::NotFound,
        }
    }

    /// An operation of a client that was not applied.
    pub(super) fn not_applied(&mut self, at: PartitionId, asked: Asked, code: ErrorCode, message: &str) {
        self.decline(at, asked, failed(code, message));
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
        match &asked.op {
            RequestOp::Schedule(asked::Schedule { timer, .. }) => {
                if let Some(holder) = holder().filter(|holder| *holder != timer.id) {
                    self.read_anew(holder);
                }
                if self.partition(at).is_some_and(|p| timer.due <= p.horizon()) {
                    self.fetch(timer.id);
                }
            }
            RequestOp::Cancel(asked::Cancel { target, .. })
            | RequestOp::Reschedule(asked::Reschedule { target, .. }) => {
                // A timer that is named by its key may have come into memory since.
                match asked.held.or_else(holder) {
                    Some(id) if self.partition(at).is_some_and(|p| p.table.contains(id)) => {
                        self.read_anew(id);
                    }
                    _ => self.look(at, target.clone()),
                }
            }
            RequestOp::Replay(asked::Replay { id }) => self.fetch(*id),
            RequestOp::Purge(_) => {}
        }
    }
}
