//! How timers end: invariants 1 and 8.

use mtimer_client::{DeadReason, Mode};

use super::timer::{CLAIM_MS, Found, RECORD_LAG_MS, SETTLE_LAG_MS, Timer};
use crate::history::{Handled, Said};
use crate::left::Left;

impl Timer<'_> {
    pub(super) fn ends_once(&self, found: &mut Found) {
        let l = self.timeline;
        for left in &l.left {
            if let Left::Live(state) = left {
                found.push((1, format!("it has not ended: {state:?}")));
            }
        }
        if l.left.len() > 1 {
            found.push((1, format!("it is in {} places", l.left.len())));
        }
        let done = |said: Said| matches!(said, Said::Done);
        let cancelled = l.cancels.iter().any(|(_, _, said)| done(*said));
        let purged = l.purges.iter().any(|(_, _, said)| done(*said));
        let ended = [cancelled, l.replaced.is_some(), purged, !l.left.is_empty()];
        if ended.iter().filter(|e| **e).count() > 1 {
            let replaced = l.replaced.is_some();
            let of =
                format!("cancelled: {cancelled}, replaced: {replaced}, purged: {purged}, left: {:?}", l.left);
            found.push((1, format!("it has ended more than once: {of}")));
        }
        if self.is_gone_unexplained() {
            match self.plan.deadline {
                None => found.push((1, "it is gone, and nothing has ended it".to_owned())),
                Some(deadline) => self.may_have_expired(deadline, found),
            }
        }
    }

    /// It was stored and is gone, and no ok, cancel, replacement or purge, done or perhaps done,
    /// explains it: only its deadline can.
    pub(super) fn is_gone_unexplained(&self) -> bool {
        let l = self.timeline;
        let maybe = |said: Said| matches!(said, Said::Done | Said::Unknown);
        let ok = l.settled.iter().any(|s| s.3 == Handled::Ok);
        let cancelled = l.cancels.iter().chain(&l.purges).any(|(_, _, said)| maybe(*said));
        let replaced = l.replaced.is_some() || l.maybe_replaced;
        self.stored() && l.left.is_empty() && !ok && !cancelled && !replaced
    }

    /// At most once, and nobody knows whether it was done: something must have broken, or the
    /// handler was too slow.
    pub(super) fn is_unconfirmed_for_a_reason(&self, found: &mut Found) {
        let l = self.timeline;
        if !l.left.iter().any(|left| matches!(left, Left::Unconfirmed { .. })) {
            return;
        }
        let Some(d) = l.deliveries.last() else {
            let due = l.moves.iter().map(|m| m.due).chain([self.plan.due]);
            let (from, to) = due.fold((u64::MAX, 0), |(from, to), due| (from.min(due), to.max(due)));
            let asked = l.schedules.iter().map(|s| s.0).max().unwrap_or_default();
            if !self.fault_between(from.saturating_sub(CLAIM_MS), to.max(asked) + RECORD_LAG_MS) {
                found.push((1, "it is unconfirmed, and nobody got it, without a fault".to_owned()));
            }
            return;
        };
        let settled = l.settled.iter().find(|s| (s.1, s.2) == (d.epoch, d.attempt) && s.3 == Handled::Ok);
        let Some((at, ..)) = settled else { return };
        let in_time = at.saturating_sub(d.at) + SETTLE_LAG_MS <= self.plan.timeout_ms;
        if in_time && !self.fault_between(d.at.saturating_sub(CLAIM_MS), at + RECORD_LAG_MS) {
            found.push((1, format!("it is unconfirmed, although its handler had said Ok at {at}")));
        }
    }

    pub(super) fn is_complete_when_dead(&self, found: &mut Found) {
        for left in &self.timeline.left {
            let (reason, attempts, error, intact) = match left {
                Left::Dead { reason, attempts, last_error, intact } => {
                    (*reason, *attempts, last_error, *intact)
                }
                Left::Unconfirmed { intact: false } => {
                    found.push((
                        8,
                        "it is unconfirmed with another content than it was scheduled with".to_owned(),
                    ));
                    continue;
                }
                _ => continue,
            };
            if !intact {
                found.push((8, "it is dead with another content than it was scheduled with".to_owned()));
            }
            // One that was stopped when a dead owner may have sent it has seen no error.
            let stopped = reason == DeadReason::Stopped;
            if !stopped && (attempts == 0 || error.as_deref().unwrap_or_default().is_empty()) {
                found.push((
                    8,
                    format!("a dead letter ({reason:?}) with {attempts} attempts and the error {error:?}"),
                ));
            }
            if reason == DeadReason::Exhausted && attempts < self.plan.attempts {
                found.push((8, format!("exhausted after {attempts} of {} attempts", self.plan.attempts)));
            }
            let fits = match reason {
                DeadReason::AtMostOnce => self.plan.mode == Mode::AtMostOnce,
                DeadReason::Stopped => self.timeline.cancels.iter().any(|c| !matches!(c.2, Said::Done)),
                DeadReason::Exhausted | DeadReason::Failed => self.plan.mode == Mode::AtLeastOnce,
            };
            if !fits {
                found.push((8, format!("its reason {reason:?} does not fit what happened")));
            }
        }
    }
}
