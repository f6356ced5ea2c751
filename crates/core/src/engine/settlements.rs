//! The end of a delivery: outcomes that clients report, timeouts, lost sessions.
//!
//! Not in here: the verdict on its way to the store, and its effects once it is there (`settle`).

use mtimer_protocol::{SettleRefusal, Settlement};
use mtimer_store::{Verdict, record::cut_error};
use mtimer_types::{AttemptEnd, DeadReason, Epoch, HandlerOutcome, LateCause, Mode, TimerId, limits};

use super::Engine;
use super::partition::OwnedPartition;
use super::pending::{Own, Settling};
use super::table::{EntryState, Flight, TimerEntry};
use crate::api::{Counter, Now, SessionId};
use crate::figures::RedeliveryCause;
use crate::retry::{self, RetryDecision};

/// Deliveries of closed sessions that are taken for lost in one turn.
const LOST_AT_ONCE: usize = 2_000;

impl Engine {
    pub(super) fn settlements(&mut self, now: Now, session: SessionId, settlements: Vec<Settlement>) {
        if settlements.is_empty() {
            return;
        }
        let report = self.reports.open(session, settlements.len());
        for s in settlements {
            self.settlement(now, session, s, report);
        }
    }

    pub(super) fn settlement(&mut self, now: Now, session: SessionId, s: Settlement, report: usize) {
        let Settlement { id, epoch, attempt, outcome } = s;
        let client = self.roster.client(session).unwrap_or(0);
        let gone = self.partition(id.partition()).is_none_or(|p| p.is_releasing());
        if gone && self.is_in_cluster() {
            return self.report(Some(report), id, Some(SettleRefusal::Moved));
        }
        let flight = self.partition(id.partition()).and_then(|p| {
            let entry = p.table.get(id)?;
            let flight = entry.state.flight()?;
            // A predecessor's delivery bears the predecessor's epoch.
            let same = flight.attempt == attempt
                && (epoch == p.epoch() || flight.member.is_none() && epoch < p.epoch());
            same.then_some(*flight)
        });
        match flight {
            Some(f) if f.session == Some(session) || f.member.is_none() && f.client == client => {
                self.settle_flight(now, id, &f, outcome, Some(report));
            }
            Some(_) => {
                self.count(Counter::SettleNotYours, 1);
                self.report(Some(report), id, Some(SettleRefusal::NotYours));
            }
            None if self.is_awaited(id, attempt, client) => {
                // The previous owner's list names this delivery, but its timer is still being
                // loaded. No claim in the store covers it, so the store would refuse a late ok.
                self.report(Some(report), id, Some(SettleRefusal::Moved));
            }
            None if outcome == HandlerOutcome::Ok
                && attempt > 0
                && !gone
                && self.may_be_late(id, epoch, attempt) =>
            {
                // No claim in the store covers a delivery that the previous owner left under way,
                // but the list of such deliveries names it.
                let left = self.was_left(id, attempt, client);
                let verdict = if left { Verdict::Ack } else { Verdict::LateAck { attempt } };
                let settling =
                    Settling { id, verdict, timer: None, attempt: None, report: Some(report), late: true };
                self.enqueue(id.partition(), Own::Settle(settling));
                if let Some(p) = self.partition(id.partition()) {
                    p.late_acks.hold(id);
                }
            }
            None => {
                self.count(Counter::SettleLate, 1);
                self.report(Some(report), id, Some(SettleRefusal::Late));
            }
        }
    }

    /// Whether the predecessor left this delivery under way and its timer is not in memory yet.
    pub(super) fn is_awaited(&mut self, id: TimerId, attempt: u32, client: u128) -> bool {
        // A timer that is not in memory when all of them have been read has ended in an earlier
        // ownership, and its report is stale.
        let loading = |p: &mut OwnedPartition| !p.table.contains(id) && !p.has_read_past();
        self.was_left(id, attempt, client) && self.partition(id.partition()).is_some_and(loading)
    }

    /// Whether the predecessor left this delivery to this client under way.
    pub(super) fn was_left(&mut self, id: TimerId, attempt: u32, client: u128) -> bool {
        self.partition(id.partition()).is_some_and(|p| p.inherited.is_with(id, attempt, client))
    }

    /// Whether this delivery can have been sent before, no outcome is on its way to the store, and
    /// there is space for one (nothing else bounds how many a client sends). A timer that is not in
    /// memory may wait for a late retry: the store knows.
    pub(super) fn may_be_late(&mut self, id: TimerId, epoch: Epoch, attempt: u32) -> bool {
        self.partition(id.partition()).is_some_and(|p| {
            let settling = |e: &TimerEntry| e.state.is_settling();
            let sent = p.table.get(id).is_none_or(|e| attempt < e.attempt() && !settling(e));
            epoch <= p.epoch() && sent && !p.is_full()
        })
    }

    pub(super) fn settle_flight(
        &mut self,
        now: Now,
        id: TimerId,
        f: &Flight,
        outcome: HandlerOutcome,
        report: Option<usize>,
    ) {
        match outcome {
            HandlerOutcome::NotBegun => self.not_begun(now, id, f, report),
            HandlerOutcome::Ok => self.settle(id, Some(f), Verdict::Ack, report),
            HandlerOutcome::Retry { after_ms, error } => {
                self.fail(now, id, f, (AttemptEnd::Retry, after_ms), &error, report);
            }
            HandlerOutcome::Later { after_ms } => self.postpone(now, id, f, after_ms, report),
            HandlerOutcome::Fail { error } => {
                let reason = if self.mode(id) == Mode::AtMostOnce {
                    DeadReason::AtMostOnce
                } else {
                    DeadReason::Failed
                };
                let verdict = Verdict::Dead { reason, failed: f.attempt, error: cut_error(&error) };
                self.settle_failed(now, id, f, (AttemptEnd::Fail, verdict), report);
            }
        }
    }

    pub(super) fn mode(&mut self, id: TimerId) -> Mode {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
        entry.map_or(Mode::AtLeastOnce, |e| e.record.timer.mode)
    }

    /// A failed attempt: the retry policy decides.
    pub(super) fn fail(
        &mut self,
        now: Now,
        id: TimerId,
        f: &Flight,
        (end, after_ms): (AttemptEnd, Option<u32>),
        error: &str,
        report: Option<usize>,
    ) {
        let random = self.rng.next();
        let Some(entry) = self.partitions.get(id.partition()).and_then(|p| p.table.get(id)) else {
            return;
        };
        let (timer, progress) = (&entry.record.timer, &entry.record.progress);
        let failed = f.attempt;
        let error = cut_error(error);
        let by_dest = self.options.retry_by_dest.get(&timer.dest);
        let tiers = timer.retry.as_ref().or(by_dest).unwrap_or(&self.options.retry);
        let used = failed.saturating_sub(progress.budget_from);
        let verdict = if timer.mode == Mode::AtMostOnce {
            Verdict::Dead { reason: DeadReason::AtMostOnce, failed, error }
        } else if progress.stopped {
            Verdict::Dead { reason: DeadReason::Stopped, failed, error }
        } else {
            match retry::next(tiers, used, after_ms, self.options.jitter_percent, random) {
                RetryDecision::Exhausted => Verdict::Dead { reason: DeadReason::Exhausted, failed, error },
                RetryDecision::Retry { tier, delay_ms } => {
                    // The clock of the owner that has sent it may have been ahead.
                    let fire = (now.time + delay_ms).max(timer.due);
                    // The store knows whether it expires before that.
                    if !timer.is_past_deadline(fire) {
                        self.tallies.redelivery(RedeliveryCause::after(end));
                    }
                    Verdict::Retry { fire, tier, failed, error }
                }
            }
        };
        self.settle_failed(now, id, f, (end, verdict), report);
    }

    /// A handler answers later: another attempt after so many ms, which uses none of the retry
    /// budget. It is a failure if there can be no other attempt, and after too many in a row.
    pub(super) fn postpone(
        &mut self,
        now: Now,
        id: TimerId,
        f: &Flight,
        after_ms: u32,
        report: Option<usize>,
    ) {
        let Some(entry) = self.partitions.get(id.partition()).and_then(|p| p.table.get(id)) else {
            return;
        };
        let (timer, in_a_row) = (&entry.record.timer, entry.record.extensions.postponed().in_a_row);
        let end = AttemptEnd::Later;
        let failure = if timer.mode == Mode::AtMostOnce {
            "the handler answered later, and the timer is delivered once at most".to_owned()
        } else if entry.record.progress.stopped {
            "the handler answered later, after a cancel".to_owned()
        } else if in_a_row >= limits::MAX_LATER_IN_A_ROW {
            format!("handlers answered later {} times in a row", in_a_row.saturating_add(1))
        } else {
            let fire = (now.time + u64::from(after_ms.min(limits::MAX_LATER_MS))).max(timer.due);
            // The store knows whether it expires before that.
            if !timer.is_past_deadline(fire) {
                self.tallies.redelivery(RedeliveryCause::after(end));
            }
            let verdict = Verdict::Later { fire, failed: f.attempt };
            return self.settle_failed(now, id, f, (end, verdict), report);
        };
        self.fail(now, id, f, (end, None), &failure, report);
    }

    /// A delivery that no handler has seen, and none will: its timer is ready again, as the same
    /// attempt. Only the owner that has taken an at-most-once timer can send it: one of a
    /// predecessor is unconfirmed. A timer that is being cancelled or replaced is not sent again:
    /// the edit has left with the word that a delivery is under way, so it counts as failed.
    pub(super) fn not_begun(&mut self, now: Now, id: TimerId, f: &Flight, report: Option<usize>) {
        if f.member.is_none() && self.mode(id) == Mode::AtMostOnce {
            return self.settle_failed(now, id, f, (AttemptEnd::NotBegun, Verdict::Unconfirmed), report);
        }
        if self.partition(id.partition()).is_some_and(|p| p.edited(id)) {
            let error = "no handler had begun when it was cancelled or replaced";
            return self.fail(now, id, f, (AttemptEnd::NotBegun, None), error, report);
        }
        if let Some(session) = f.session {
            self.roster.end_flight(session, id);
        }
        if let Some(member) = f.member {
            self.roster.give_back(member);
        }
        self.unsettled -= 1;
        self.report(report, id, None);
        let Some(p) = self.partitions.get_mut(id.partition()) else { return };
        let Some(entry) = p.table.get_mut(id) else { return };
        entry.state = EntryState::Due;
        // The client had no capacity after all.
        entry.has_waited_for(LateCause::Credit);
        self.flights.end(id.partition(), entry.dest);
        self.roster.dest_mut(entry.dest).limit.finish();
        if f.member.is_none() {
            // The predecessor's delivery was the one that its claim covers.
            entry.covered = false;
            p.inherited.remove(id);
        }
        self.tallies.redelivery(RedeliveryCause::NotBegun);
        self.make_ready(now, id, None);
    }

    /// Deliveries whose callback timeout has passed.
    pub(super) fn time_out(&mut self, now: Now) {
        for (id, attempt) in self.timeouts.take_due(now.mono_ms) {
            let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
            let Some(f) = entry.and_then(|e| e.state.flight()) else { continue };
            let f = *f;
            if f.attempt != attempt {
                continue;
            }
            if f.until > now.mono_ms {
                self.timeouts.add(f.until, id, attempt);
                continue;
            }
            self.count(Counter::TimedOut, 1);
            self.lose(now, id, &f, AttemptEnd::TimedOut, "no answer within the callback timeout");
        }
    }

    /// A delivery that will not be settled by its client.
    pub(super) fn lose(&mut self, now: Now, id: TimerId, f: &Flight, end: AttemptEnd, error: &str) {
        if self.mode(id) == Mode::AtMostOnce {
            self.settle_failed(now, id, f, (end, Verdict::Unconfirmed), None);
        } else {
            self.fail(now, id, f, (end, None), error, None);
        }
    }

    pub(super) fn session_closed(&mut self, session: SessionId) {
        let unsettled = self.roster.close(session);
        self.lost.extend(unsettled.into_iter().map(|id| (session, id)));
    }

    /// Counts as lost the deliveries that closed sessions have not settled: a limited number in a
    /// turn, because one session may have very many.
    pub(super) fn lose_unsettled(&mut self, now: Now) {
        for (session, id) in self.lost.drain(..self.lost.len().min(LOST_AT_ONCE)).collect::<Vec<_>>() {
            let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
            let Some(f) = entry.and_then(|e| e.state.flight()) else { continue };
            let f = *f;
            if f.session != Some(session) {
                continue;
            }
            self.count(Counter::SessionLost, 1);
            self.linger(id, f.until);
            self.lose(now, id, &f, AttemptEnd::ConnectionLost, "the connection was lost");
        }
    }

    /// The handler of a delivery may go on, though its session is gone.
    fn linger(&mut self, id: TimerId, until: u64) {
        let dest = self.partition(id.partition()).and_then(|p| p.table.get(id)).map(|e| e.dest);
        dest.into_iter().for_each(|dest| self.roster.dest_mut(dest).limit.linger(until));
    }

    /// Gives a handler that asks for it more time: moves the end of its callback timeout, not the
    /// timer's deadline.
    pub(super) fn extend(
        &mut self,
        now: Now,
        session: SessionId,
        id: TimerId,
        epoch: Epoch,
        attempt: u32,
        by_ms: u32,
    ) {
        let until = now.mono_ms + u64::from(by_ms.min(limits::MAX_CALLBACK_TIMEOUT_MS));
        let client = self.roster.client(session).unwrap_or(0);
        let Some(p) = self.partitions.get_mut(id.partition()) else { return };
        let current = p.epoch();
        let Some(entry) = p.table.get_mut(id) else { return };
        if let Some(f) = entry.state.flight_mut()
            && (f.session == Some(session) && epoch == current
                // The predecessor's delivery: its client may have any session with this broker.
                || f.member.is_none() && f.client == client && epoch < current)
            && f.attempt == attempt
        {
            // It is looked at when its present timeout comes, and then again at this one: however
            // often a client asks, there is one entry of it.
            f.until = f.until.max(until);
            self.roster.dest_mut(entry.dest).limit.note_timeout(by_ms.min(limits::MAX_CALLBACK_TIMEOUT_MS));
        }
    }
}
