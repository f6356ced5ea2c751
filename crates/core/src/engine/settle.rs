//! A verdict on its way to the store (acknowledged, to be retried, postponed, dead, expired,
//! unconfirmed), and its effects once it is there.
//!
//! Not in here: how the verdict is found (`settlements`, `delivery`).

use mtimer_protocol::SettleRefusal;
use mtimer_store::ops::SettleAnswer;
use mtimer_store::{Record, Verdict};
use mtimer_types::story::MAX_STORY_ERROR_BYTES;
use mtimer_types::{AttemptEnd, DeadReason, FailedAttempt, Target, Time, TimerId, beginning};

use super::Engine;
use super::destination_members::MemberRef;
use super::pending::{Own, Settling};
use super::table::{EntryState, Flight};
use crate::api::{Counter, Now};

impl Engine {
    /// Sends a verdict to the store. The credit returns when it is there.
    pub(super) fn settle(
        &mut self,
        id: TimerId,
        flight: Option<&Flight>,
        verdict: Verdict,
        report: Option<usize>,
    ) {
        self.settle_attempt(id, flight, verdict, None, report);
    }

    /// Sends the verdict on a delivery without success, for the timer's story, too.
    pub(super) fn settle_failed(
        &mut self,
        now: Now,
        id: TimerId,
        f: &Flight,
        (end, verdict): (AttemptEnd, Verdict),
        report: Option<usize>,
    ) {
        let error = match (end, &verdict) {
            (
                AttemptEnd::Retry | AttemptEnd::Fail,
                Verdict::Retry { error, .. } | Verdict::Dead { error, .. },
            ) => beginning(error, MAX_STORY_ERROR_BYTES).into(),
            _ => "".into(),
        };
        let attempt = self.attempt(id, f);
        let failed = attempt.map(|attempt| FailedAttempt { attempt, ended: now.time, end, error }.into());
        self.settle_attempt(id, Some(f), verdict, failed, report);
    }

    fn settle_attempt(
        &mut self,
        id: TimerId,
        flight: Option<&Flight>,
        verdict: Verdict,
        attempt: Option<Box<FailedAttempt>>,
        report: Option<usize>,
    ) {
        match flight {
            Some(f) => {
                if let Some(session) = f.session {
                    self.roster.end_flight(session, id);
                }
            }
            None => self.unsettled += 1,
        }
        let member = flight.and_then(|f| f.member);
        self.set_state(id, EntryState::Settling { member, attempt: flight.map(|f| f.attempt) });
        let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
        let (dest, timer) = entry.map(|e| (e.dest, e.record.timer.clone())).unzip();
        if let Some(dest) = dest.filter(|_| flight.is_some()) {
            self.flights.end(id.partition(), dest);
            self.roster.dest_mut(dest).limit.finish();
        }
        if let Some(dest) = dest.filter(|_| member.is_some()) {
            self.roster.dest_mut(dest).flow.begin_settling();
        }
        let deferrable = verdict == Verdict::Ack && self.may_wait(id, member);
        let own = Own::Settle(Settling { id, verdict, timer, attempt, report, late: false });
        match self.partition(id.partition()) {
            Some(p) if deferrable => p.queue.push_deferrable(own),
            Some(p) => p.queue.push_own(own),
            None => {}
        }
    }

    /// Whether the store may learn a little later that a timer was acknowledged: nobody waits for
    /// the credit. If the broker dies meanwhile, the client repeats the outcome to the next owner.
    /// If the client dies too, the timer is delivered again, or is unconfirmed (at most once).
    fn may_wait(&mut self, id: TimerId, member: Option<MemberRef>) -> bool {
        let Some(p) = self.partition(id.partition()).filter(|p| p.is_active()) else {
            return false;
        };
        let Some(dest) = p.table.get(id).map(|e| e.dest) else { return false };
        !self.roster.dest(dest).awaits_credit() && member.is_some_and(|m| self.roster.has_slack(m))
    }

    /// A timer that a late cancel has stopped, found on its way to another attempt.
    pub(super) fn dead_letter_stopped(&mut self, id: TimerId) {
        let Some(entry) = self.partition(id.partition()).and_then(|p| p.table.get(id)) else { return };
        let failed = entry.attempt() - 1;
        let error = entry.record.progress.last_error.clone().unwrap_or_default();
        self.settle(id, None, Verdict::Dead { reason: DeadReason::Stopped, failed, error }, None);
    }

    /// The store has a verdict.
    pub(super) fn settled(&mut self, now: Now, settling: Settling, answer: SettleAnswer) {
        let Settling { id, verdict, report, late, .. } = settling;
        if late {
            self.end_late_ack(id);
        }
        let verdict = match verdict {
            // A cancel came first.
            Verdict::Retry { failed, error, .. } if answer == SettleAnswer::Died => {
                Verdict::Dead { reason: DeadReason::Stopped, failed, error }
            }
            Verdict::Later { failed, .. } if answer == SettleAnswer::Died => {
                Verdict::Dead { reason: DeadReason::Stopped, failed, error: "".into() }
            }
            Verdict::Retry { fire, .. } | Verdict::Later { fire, .. } if answer == SettleAnswer::Expired => {
                Verdict::Expired { next: fire }
            }
            other => other,
        };
        let done = answer != SettleAnswer::Gone;
        if self.options.traces && (done || !late) {
            self.trace_settled(id, done.then_some(&verdict));
        }
        let refused = (!done).then_some(SettleRefusal::Late);
        if done {
            self.note_outcome(id, &verdict, late);
        } else if report.is_some() {
            self.count(Counter::SettleLate, 1);
        }
        match verdict {
            Verdict::Ack | Verdict::LateAck { .. } if late && !done => self.unhold(id),
            Verdict::Retry { fire, failed, error, .. } if done => {
                self.wait_again(now, id, fire, |record| {
                    record.progress.failed = failed;
                    record.progress.last_error = (!error.is_empty()).then_some(error);
                    record.extensions.end_postponing();
                });
            }
            Verdict::Later { fire, failed } if done => {
                self.wait_again(now, id, fire, |record| record.postpone(failed));
            }
            Verdict::Ack | Verdict::LateAck { .. } => {
                if done {
                    self.recent.insert(now, id);
                }
                if let Some(record) = self.forget(id).filter(|_| done) {
                    self.tallies.acknowledged_after.add_ms(now.time.ms_since(record.late_from()));
                }
            }
            // It has another deadline by now, or has ended.
            Verdict::Expired { .. } if !done => {
                self.take_out(id);
                self.look(id.partition(), Target::Id(id));
            }
            _ => _ = self.forget(id),
        }
        self.report(report, id, refused);
    }

    /// The store has filed a timer for another attempt: it stays in memory if that is near.
    fn wait_again(&mut self, now: Now, id: TimerId, fire: Time, count: impl FnOnce(&mut Record)) {
        // A timer that is stopped, as far as memory knows, is being read anew.
        let Some(mut record) = self.forget(id) else { return };
        let within = self.partition(id.partition()).is_some_and(|p| fire <= p.horizon());
        if within && !record.progress.stopped {
            count(&mut record);
            self.adopt(now, record, fire, false);
        }
    }

    fn end_late_ack(&mut self, id: TimerId) {
        if let Some(p) = self.partition(id.partition()) {
            p.late_acks.release(id);
        }
    }
}
