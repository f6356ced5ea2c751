//! Counts and reports outcomes that the store has: counters, traces, dead letters, and how long a
//! destination has had no success.
//!
//! Invariant: called while the timer is in memory, if it is there at all; decides nothing.

use mtimer_store::Verdict;
use mtimer_types::headers::TRACEPARENT;
use mtimer_types::{DeadReason, TimerId};

use super::Engine;
use crate::api::{Counter, Died, Effect};

impl Engine {
    /// Tells the shell that the outcome of a traced timer is stored.
    pub(super) fn trace_settled(&mut self, id: TimerId, verdict: Option<&Verdict>) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
        if entry.is_some_and(|e| e.record.timer.headers.get(TRACEPARENT).is_some()) {
            self.effects.push(Effect::Settled(id, verdict.cloned()));
        }
    }

    /// Takes note of an outcome that the store has.
    pub(super) fn note_outcome(&mut self, id: TimerId, verdict: &Verdict, late: bool) {
        match verdict {
            Verdict::Dead { reason, failed, .. } => self.note_death(id, *reason, *failed),
            _ => self.count_verdict(verdict, late),
        }
        let entry = self.partitions.get(id.partition()).and_then(|p| p.table.get(id));
        if let Some(dest) = entry.map(|entry| entry.dest) {
            let dest = self.roster.dest_mut(dest);
            match verdict {
                Verdict::Ack | Verdict::LateAck { .. } => dest.succeed(),
                Verdict::Dead { reason: DeadReason::Stopped, .. }
                | Verdict::Later { .. }
                | Verdict::Expired { .. }
                | Verdict::Unconfirmed => {}
                Verdict::Retry { .. } | Verdict::Dead { .. } => dest.fail(),
            }
        }
    }

    /// Takes note of a dead letter that the store has: counts it, and tells the shell.
    pub(super) fn note_death(&mut self, id: TimerId, reason: DeadReason, attempts: u32) {
        self.tallies.died(reason);
        self.count(Counter::Dead, 1);
        let entry = self.partitions.get(id.partition()).and_then(|p| p.table.get(id));
        let dest = entry.map(|entry| self.roster.dest(entry.dest).name().clone());
        self.effects.push(Effect::Died(Died { id, dest, reason, attempts }));
    }

    fn count_verdict(&mut self, verdict: &Verdict, late: bool) {
        let counter = match verdict {
            Verdict::Ack if !late => Counter::Acknowledged,
            Verdict::Ack | Verdict::LateAck { .. } => Counter::LateAcknowledged,
            Verdict::Retry { tier, .. } => {
                self.tallies.retry(*tier);
                Counter::Retried
            }
            Verdict::Later { .. } => Counter::Postponed,
            Verdict::Dead { .. } => return,
            Verdict::Expired { .. } => Counter::Expired,
            Verdict::Unconfirmed => Counter::Unconfirmed,
        };
        self.count(counter, 1);
    }
}
