//! What each operation means to the checker: when a client asks for it, when the store applies it,
//! when its client is answered, and whether it may end a timer.
//!
//! Every `match` over operations here names each of them, so that the compiler asks what a new one
//! means.

use mtimer_protocol::ops::{CancelReply, ExtendDeadlineReply, RescheduleReply, ScheduleReply, Subject};
use mtimer_protocol::{OpReply, RequestOp};
use mtimer_store::ops::{BulkActAnswer, ExtendDeadlineAnswer, Settle};
use mtimer_store::{Answer, CancelAnswer, Op, Place, Record, RescheduleAnswer, ScheduleAnswer, Verdict};
use mtimer_types::{DeadReason, Ended, Epoch, Target, Time, TimerId};

use super::check::Moment;
use super::history::{Answered, History};

impl History {
    /// A client asks for an operation.
    pub(super) fn asked(&mut self, op: &RequestOp) {
        match op {
            RequestOp::Schedule(op) => {
                self.asked_schedule(&op.timer);
                self.life(op.timer.id).policy = op.policy;
            }
            RequestOp::Cancel(op) => match &op.target {
                Target::Id(id) => self.life(*id).cancel_asked = true,
                Target::Key(dest, key) => {
                    let name = (dest.app().to_owned(), key.as_str().to_owned());
                    let named = self.lives.values_mut().filter(|l| l.name.as_ref() == Some(&name));
                    named.for_each(|l| l.cancel_asked = true);
                    self.cancelled_names.insert(name);
                }
            },
            RequestOp::Purge(op) => self.life(op.id).purge_asked = true,
            RequestOp::Reschedule(_) | RequestOp::ExtendDeadline(_) | RequestOp::Replay(_) => {}
            RequestOp::Import(op) => self.asked_schedule(&op.timer),
            RequestOp::BeginBulk(_) | RequestOp::StopBulk(_) => {}
            RequestOp::Configure(op) => self.asked_configure(op),
        }
    }

    /// A broker answers a client's operation.
    pub(super) fn answered(&mut self, m: Moment, epoch: Epoch, op: &RequestOp, reply: &OpReply) {
        let id = Some(about(op, reply));
        self.note(m.ms, id, || format!("broker {} answers {reply:?} to {op:?}", m.broker));
        if !op.is_answered_by(reply) {
            self.fail(m.ms, id, "answered as another operation");
        }
        let mut at = Answered { seq: self.seq, ms: m.ms, epoch, applied: self.seq };
        match op {
            RequestOp::Schedule(op) => match reply {
                OpReply::Schedule(
                    ScheduleReply::Scheduled { replaced, .. } | ScheduleReply::Timed { replaced, .. },
                ) => {
                    self.life(op.timer.id).answered_ok = true;
                    if let Some(old) = replaced {
                        self.life(*old).replaced.get_or_insert(at);
                    }
                }
                OpReply::Schedule(ScheduleReply::Ended(Ended::Acknowledged)) => {
                    self.life(op.timer.id).answered_ok = true;
                }
                _ => {}
            },
            RequestOp::Cancel(op) => match reply {
                OpReply::Cancel(CancelReply::TooLate(id)) => {
                    at.applied = self.applied.get(&op.request).copied().unwrap_or(at.seq);
                    let life = self.life(*id);
                    if life.too_late.is_none_or(|before| life.replayed_since(before.applied)) {
                        life.too_late = Some(at);
                    }
                }
                OpReply::Cancel(CancelReply::Cancelled(id)) => {
                    self.life(*id).cancelled.get_or_insert(at);
                    if self.knows_of_sent(*id, epoch) {
                        self.fail(m.ms, Some(*id), "6: answered as cancelled, and was sent before");
                    }
                }
                _ => {}
            },
            RequestOp::Reschedule(op) => {
                if let OpReply::Reschedule(RescheduleReply::Rescheduled(id)) = reply {
                    at.applied = self.applied.get(&op.request).copied().unwrap_or(at.seq);
                    let life = self.life(*id);
                    if life.moved.is_none_or(|(before, _)| before.applied < at.applied) {
                        life.moved = Some((at, op.due));
                    }
                }
            }
            RequestOp::ExtendDeadline(op) => {
                if let OpReply::ExtendDeadline(ExtendDeadlineReply::Extended(id)) = reply {
                    self.life(*id).extensions.retain(|(request, _)| *request != op.request);
                }
            }
            RequestOp::Replay(_) | RequestOp::Purge(_) => {}
            RequestOp::Import(op) => self.answered_import(op.timer.id, reply),
            RequestOp::BeginBulk(_) | RequestOp::StopBulk(_) => {}
            RequestOp::Configure(op) => self.answered_configure(op, reply),
        }
    }

    /// Takes note of what an operation that the store has applied makes uncertain until its client
    /// is answered: an owner goes by the deadline of before until then.
    pub(super) fn note_applied(&mut self, id: TimerId, epoch: Epoch, op: &Op, answer: &Answer) {
        match op {
            Op::ExtendDeadline(op) => {
                let extended = Answer::ExtendDeadline(ExtendDeadlineAnswer::Extended(id));
                if *answer == extended && !self.applied.contains_key(&op.request.0) {
                    self.life(id).extensions.insert((op.request.0, epoch));
                }
            }
            Op::Schedule(_) | Op::Cancel(_) | Op::Reschedule(_) | Op::Replay(_) | Op::Purge(_) => {}
            Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) | Op::Trim(_) => {}
            Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAct(_) | Op::BulkAdvance(_) | Op::Import(_) => {}
            Op::Configure(_) => {}
        }
    }

    /// Whether an operation that the store has applied gives its timer another due time, and is no
    /// repeat.
    pub(super) fn moves(&self, op: &Op, answer: &Answer) -> bool {
        match op {
            Op::Reschedule(op) => {
                matches!(answer, Answer::Reschedule(RescheduleAnswer::Rescheduled(_)))
                    && !self.applied.contains_key(&op.request.0)
            }
            Op::Schedule(_) | Op::Cancel(_) | Op::ExtendDeadline(_) | Op::Replay(_) | Op::Purge(_) => false,
            Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) | Op::Trim(_) => false,
            Op::BulkAct(_) => matches!(answer, Answer::BulkAct(BulkActAnswer::Moved { .. })),
            Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAdvance(_) | Op::Import(_) => false,
            Op::Configure(_) => false,
        }
    }

    /// A live timer has ended in the store: for a reason that its clients know.
    pub(super) fn check_end(
        &mut self,
        ms: u64,
        now: Time,
        id: TimerId,
        op: &Op,
        after: Option<&(Record, Place)>,
    ) {
        let life = &self.lives[&id];
        let by_force = self.owners[usize::from(id.partition().0)].iter().any(|owner| owner.by_force);
        let faultless = self.plan.is_faultless() && !by_force;
        let wrong = match op {
            Op::Settle(Settle { verdict, .. }) => match verdict {
                Verdict::Ack | Verdict::LateAck { .. } if !life.ok_given => {
                    Some("1: acknowledged, and no handler has said ok")
                }
                Verdict::Expired { .. } => match life.deadline {
                    None => Some("deadline: expired, and has none"),
                    Some(deadline) if now <= deadline => Some("deadline: expired before it"),
                    Some(_) => None,
                },
                // A timer that has failed, and whose next attempt would come after the deadline,
                // ends when that is known.
                Verdict::Retry { fire, .. } if after.is_none() => match life.deadline {
                    None => Some("deadline: expired, and has none"),
                    Some(deadline) if *fire <= deadline => Some("deadline: its next attempt is before it"),
                    Some(_) => None,
                },
                Verdict::Dead { reason, .. } => {
                    let complete =
                        after.is_some_and(|(r, _)| r.progress.failed > 0 && r.progress.last_error.is_some());
                    match reason {
                        DeadReason::Stopped if !life.cancel_asked => {
                            Some("8: stopped, and nobody has cancelled")
                        }
                        DeadReason::Stopped => None,
                        _ if !complete => Some("8: a dead letter without attempts or error"),
                        DeadReason::Failed if !life.final_given => {
                            Some("8: failed, and no handler has said so")
                        }
                        _ => None,
                    }
                }
                // A broker that stops in good order parks what it has taken and not sent.
                Verdict::Unconfirmed if faultless && life.sent.is_empty() && life.given_back.is_empty() => {
                    Some("4: unconfirmed, and no broker has sent it")
                }
                Verdict::Ack | Verdict::LateAck { .. } | Verdict::Retry { .. } | Verdict::Later { .. } => {
                    None
                }
                Verdict::Unconfirmed => None,
            },
            Op::Cancel(_) => (!life.cancel_asked).then_some("1: cancelled, and nobody has asked"),
            // It is replaced.
            Op::Schedule(_) => None,
            Op::Purge(_) | Op::Replay(_) | Op::Trim(_) => Some("1: a live timer was removed as a dead one"),
            // The watch over bulk jobs looks at it.
            Op::BulkAct(_) => None,
            Op::Reschedule(_) | Op::Park(_) | Op::Unpark(_) if self.bulks.cancels_first(id) => None,
            Op::Reschedule(_) | Op::ExtendDeadline(_) | Op::Park(_) | Op::Unpark(_) | Op::Take(_) => {
                Some("1: ended by an operation that ends nothing")
            }
            Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAdvance(_) | Op::Import(_) | Op::Configure(_) => {
                Some("1: ended by an operation that ends nothing")
            }
        };
        if let Some(text) = wrong {
            self.fail(ms, Some(id), text);
        }
    }
}

/// The timer that an answer is about: none that there is if a key was not found.
fn about(op: &RequestOp, reply: &OpReply) -> TimerId {
    match op.subject() {
        Subject::New(timer) => timer.id,
        Subject::Named(Target::Id(id)) => *id,
        Subject::Retained(id) => id,
        Subject::Partition { .. } => TimerId::from_u128(0),
        Subject::Named(Target::Key(..)) => match reply {
            OpReply::Cancel(CancelReply::Cancelled(id) | CancelReply::TooLate(id))
            | OpReply::Reschedule(RescheduleReply::Rescheduled(id) | RescheduleReply::TooLate(id))
            | OpReply::ExtendDeadline(ExtendDeadlineReply::Extended(id) | ExtendDeadlineReply::TooLate(id)) => {
                *id
            }
            OpReply::Cancel(CancelReply::NotFound)
            | OpReply::Reschedule(RescheduleReply::NotFound)
            | OpReply::ExtendDeadline(ExtendDeadlineReply::NotFound) => TimerId::from_u128(0),
            OpReply::Schedule(_) | OpReply::Replay(_) | OpReply::Purge(_) => TimerId::from_u128(0),
            OpReply::BeginBulk(_) | OpReply::StopBulk(_) | OpReply::Import(_) => TimerId::from_u128(0),
            OpReply::Configure(_) => TimerId::from_u128(0),
            OpReply::Failed { .. } | OpReply::Moved { .. } => TimerId::from_u128(0),
        },
    }
}

/// The timers that an operation may have changed.
pub(super) fn touched(op: &Op, answer: &Answer) -> Vec<TimerId> {
    let other = match op {
        Op::Schedule(_) => match answer {
            Answer::Schedule(
                ScheduleAnswer::Scheduled { replaced, .. } | ScheduleAnswer::Timed { replaced, .. },
            ) => *replaced,
            _ => None,
        },
        Op::Cancel(_) => match answer {
            Answer::Cancel(
                CancelAnswer::Cancelled(id) | CancelAnswer::TooLate(id) | CancelAnswer::Died { id, .. },
            ) => Some(*id),
            _ => None,
        },
        Op::Reschedule(_) => match answer {
            Answer::Reschedule(RescheduleAnswer::Rescheduled(id) | RescheduleAnswer::Cancelled(id)) => {
                Some(*id)
            }
            _ => None,
        },
        Op::ExtendDeadline(_) => match answer {
            Answer::ExtendDeadline(ExtendDeadlineAnswer::Extended(id)) => Some(*id),
            _ => None,
        },
        Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) => None,
        Op::Replay(_) | Op::Purge(_) | Op::Trim(_) => None,
        Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAct(_) | Op::BulkAdvance(_) => None,
        Op::Import(_) | Op::Configure(_) => None,
    };
    let named = op.id().filter(|id| Some(*id) != other);
    named.into_iter().chain(other).collect()
}
