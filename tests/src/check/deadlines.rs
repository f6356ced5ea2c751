//! Deadlines: nothing is sent after its deadline, nothing ends as expired before it, and what is
//! gone was counted (14, and the part of 1 that deadlines explain).

use std::collections::BTreeMap;

use mtimer_client::Ended;

use super::timelines::Timeline;
use super::timer::{CLAIM_MS, CLOCK_MS, Found, HOP_MS, RECORD_LAG_MS, RETRY_MS, Timer};
use super::violation::Violation;
use crate::history::{Handled, History, Said};
use crate::left::{Final, Left};

impl Timer<'_> {
    pub(super) fn keeps_its_deadline(&self, found: &mut Found) {
        let Some(deadline) = self.plan.deadline else { return };
        // A replay after the deadline takes it away: the timer is to be delivered all the same.
        let excused = |at| self.held_between(deadline, at) || self.replayed_between(deadline, at);
        for d in self.timeline.deliveries.iter().filter(|d| d.at > deadline + HOP_MS) {
            if !excused(d.at) {
                found.push((14, format!("delivered {} ms after its deadline", d.at - deadline)));
            }
        }
    }

    /// What a repeat was told of its end.
    pub(super) fn expires_in_time(&self, found: &mut Found) {
        for (at, _) in self.timeline.endings.iter().filter(|(_, how)| *how == Ended::Expired) {
            match self.plan.deadline {
                None => found.push((14, format!("reported as expired at {at}, without a deadline"))),
                Some(deadline) if at + self.sooner(*at) < deadline => {
                    found.push((14, format!("reported as expired at {at}, before its deadline {deadline}")));
                }
                Some(_) => {}
            }
        }
    }

    /// It is gone, and only its deadline can explain that: whether it does.
    pub(super) fn may_have_expired(&self, deadline: u64, found: &mut Found) {
        let l = self.timeline;
        if self.read > 0 && self.read + self.sooner(self.read) < deadline {
            found.push((1, format!("it is gone, and its deadline {deadline} has not passed")));
            return;
        }
        if self.plan.crowded {
            return;
        }
        let asked = l.schedules.iter().map(|s| s.0).chain(l.moves.iter().map(|m| m.due.max(m.answered)));
        let handled = l.deliveries.iter().map(|d| d.at + self.plan.timeout_ms);
        let idle = asked.chain(handled).chain(l.settled.iter().map(|s| s.0)).fold(self.plan.due, u64::max);
        let late = idle + RECORD_LAG_MS;
        if deadline > late && !self.fault_between(self.plan.due.saturating_sub(CLAIM_MS), late) {
            found.push((1, format!("it is gone, long before its deadline {deadline} could pass")));
        }
    }

    /// How long before its deadline it may have expired by then, ms: one whose next attempt would
    /// come after the deadline expires when an attempt fails, as far as clients and faults tell.
    fn sooner(&self, by: u64) -> u64 {
        let l = self.timeline;
        let ok = |epoch, attempt| {
            l.settled.iter().any(|s| (s.1, s.2, s.3) == (epoch, attempt, Handled::Ok) && s.0 <= by)
        };
        let failed = l.deliveries.iter().any(|d| d.at <= by && !ok(d.epoch, d.attempt));
        let failed = failed || self.fault_between(self.plan.due.saturating_sub(CLAIM_MS), by);
        if failed { RETRY_MS } else { CLOCK_MS }
    }
}

/// As many timers expired as brokers counted: none that is gone without being counted, and none
/// counted that cannot have expired.
pub(super) fn counted(
    history: &History,
    timelines: &BTreeMap<u64, Timeline>,
    end: &Final,
    found: &mut Vec<Violation>,
) {
    let Some(expired) = end.expired else { return };
    let empty = Timeline::default();
    let (mut least, mut most) = (0, 0);
    for (serial, plan) in history.plans.iter().filter(|(_, plan)| plan.deadline.is_some()) {
        let timeline = timelines.get(serial).unwrap_or(&empty);
        let timer =
            Timer { plan, timeline, faults: &history.faults, journal: &history.journal, read: end.at };
        least += u64::from(timer.is_gone_unexplained());
        let ended = |said: &(u64, u64, Said)| said.2 == Said::Done;
        let otherwise = timeline.cancels.iter().chain(&timeline.purges).any(ended)
            || timeline.replaced.is_some()
            || timeline.left.iter().any(|left| !matches!(left, Left::Live(_)))
            || timer.never_stored();
        most += u64::from(!otherwise);
    }
    if !(least..=most).contains(&expired) {
        let what = format!(
            "{least} timers can only have expired and {most} may have, but the brokers counted {expired}"
        );
        found.push(Violation { invariant: 14, what, about: String::new() });
    }
}
