//! What is delivered, when, and in spite of what: invariants 2, 3, 6 and 7.

use std::collections::HashSet;

use mtimer_client::TimerState;

use super::timelines::{Moved, Seen};
use super::timer::{CLAIM_MS, Found, HOP_MS, SETTLE_LAG_MS, Timer};
use crate::history::Said;

impl Timer<'_> {
    pub(super) fn was_scheduled(&self, found: &mut Found) {
        let l = self.timeline;
        if self.never_stored() && !l.deliveries.is_empty() {
            found.push((2, "it was refused, and yet delivered".to_owned()));
        }
        if self.never_stored() && !l.left.is_empty() {
            found.push((2, format!("it was refused, and yet is there: {:?}", l.left)));
        }
        if l.deliveries.iter().any(|d| !d.intact) {
            found.push((2, "it was delivered with another content than it was scheduled with".to_owned()));
        }
        if l.deliveries.iter().map(|d| d.id).collect::<HashSet<_>>().len() > 1 {
            found.push((2, "it was delivered under two ids".to_owned()));
        }
    }

    pub(super) fn is_not_early(&self, found: &mut Found) {
        for d in &self.timeline.deliveries {
            if d.at < d.due {
                found.push((
                    3,
                    format!("delivered at {}, {} ms before its due time {}", d.at, d.due - d.at, d.due),
                ));
            }
            if d.received < d.due {
                let early = d.due - d.received;
                let what = format!("received {early} ms before its due time, as the callback says");
                found.push((3, what));
            }
            if d.client_clock < d.due {
                let early = d.due - d.client_clock;
                let what = format!("its handler began {early} ms before its due time by the client's clock");
                found.push((3, what));
            }
            let asked_for = |m: &Moved| m.due == d.due && !matches!(m.said, Said::Refused);
            let born = if self.plan.exact { d.due == self.plan.due } else { d.due >= self.plan.due };
            if !born && !self.timeline.moves.iter().any(asked_for) {
                found.push((3, format!("delivered with the due time {}, which nobody asked for", d.due)));
            }
        }
    }

    pub(super) fn stays_cancelled(&self, found: &mut Found) {
        let deliveries = &self.timeline.deliveries;
        for (asked, answered, said) in &self.timeline.cancels {
            match (said, deliveries.iter().rfind(|d| !self.is_of_a_former_life(d, *answered))) {
                (Said::Done, Some(d)) => {
                    found.push((6, format!("cancelled at {answered}, and delivered at {}", d.at)));
                }
                (Said::TooLate, Some(_)) => {
                    // What was under way then is the last attempt.
                    if let Some(d) = self.sent_after(*asked, *answered) {
                        let what = format!(
                            "a cancel that came too late, at {answered}, did not stop attempt {} at {}",
                            d.attempt, d.at
                        );
                        found.push((6, what));
                    }
                    self.stays_stopped(*answered, found);
                }
                _ => {}
            }
        }
    }

    /// A late cancel stops what would follow: once no handler has the timer, it has ended.
    pub(super) fn ends_when_stopped(&self, found: &mut Found) {
        let l = self.timeline;
        let waits = |state: &TimerState| {
            matches!(state, TimerState::Pending { .. } | TimerState::Retrying { .. } | TimerState::Parked)
        };
        for (asked, answered, _) in l.cancels.iter().filter(|c| c.2 == Said::TooLate) {
            let waiting = |(at, state): &&(u64, TimerState)| {
                let excused = self.replayed_between(*asked, *at)
                    // A new owner ends it in its own time.
                    || self.fault_between(at.saturating_sub(HOP_MS), *at);
                *at > answered + HOP_MS && waits(state) && !excused
            };
            if let Some((at, state)) = l.looks.iter().find(waiting) {
                let what =
                    format!("a cancel that came too late, at {answered}, did not end it: {state:?} at {at}");
                found.push((6, what));
            }
        }
    }

    /// The old timer of a replace that was answered OK: what was under way then is the last
    /// attempt.
    pub(super) fn stays_replaced(&self, found: &mut Found) {
        let Some((asked, answered)) = self.timeline.replaced else { return };
        if let Some(d) = self.sent_after(asked, answered) {
            found.push((6, format!("replaced at {answered}, and sent as attempt {} at {}", d.attempt, d.at)));
        }
    }

    /// The first delivery that can only have been decided after an answer at `answered` to a
    /// request of `asked`.
    fn sent_after(&self, asked: u64, answered: u64) -> Option<&Seen> {
        let excused = |d: &Seen| self.held_between(answered, d.at) || self.replayed_between(asked, d.at);
        self.timeline.deliveries.iter().find(|d| d.at > answered + HOP_MS && !excused(d))
    }

    /// A handler had it when a cancel was answered as too late, at `answered`: no attempt follows
    /// that one.
    fn stays_stopped(&self, answered: u64, found: &mut Found) {
        let l = self.timeline;
        let this = |d: &Seen| (d.epoch, d.attempt);
        let Some(b) = l.deliveries.iter().rfind(|d| d.at <= answered) else { return };
        let outcome = l.settled.iter().find(|s| (s.1, s.2) == this(b));
        let held = outcome.is_none_or(|s| s.0 > answered);
        // Not when it may have been taken back by then.
        let in_time = answered - b.at + SETTLE_LAG_MS <= self.plan.timeout_ms;
        let next = l.deliveries.iter().find(|d| d.at > answered && this(d) > this(b));
        if let Some(d) = next.filter(|_| held && in_time)
            && !self.fault_between(b.at.saturating_sub(CLAIM_MS), d.at)
            && !self.replayed_between(b.at, d.at)
        {
            let what = format!(
                "a cancel during attempt {}, at {answered}, did not stop attempt {}",
                b.attempt, d.attempt
            );
            found.push((6, what));
        }
    }

    /// After an answered reschedule it is delivered at that time, or at one that was asked for
    /// later or at the same time.
    pub(super) fn stays_moved(&self, found: &mut Found) {
        let moves = &self.timeline.moves;
        if !moves.iter().any(|m| m.said == Said::Done) {
            return;
        }
        let before_done =
            |d: &Seen| moves.iter().any(|m| m.said == Said::Done && self.is_of_a_former_life(d, m.answered));
        let undone = |m: &Moved| moves.iter().any(|n| n.said == Said::Done && n.asked > m.answered);
        let counts = |m: &&Moved| match m.said {
            Said::Done => !undone(m),
            Said::Unknown => true,
            _ => false,
        };
        let allowed: Vec<u64> = moves.iter().filter(counts).map(|m| m.due).collect();
        for d in self.timeline.deliveries.iter().filter(|d| !allowed.contains(&d.due) && !before_done(d)) {
            found.push((7, format!("moved to {allowed:?}, and delivered for {} at {}", d.due, d.at)));
        }
    }
}
