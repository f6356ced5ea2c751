//! How often timers are delivered: invariants 4 and 5.

use mtimer_client::Mode;

use super::timelines::Seen;
use super::timer::{ARRIVAL_MS, CLAIM_MS, Found, RECORD_LAG_MS, SETTLE_LAG_MS, Timer};
use crate::history::Handled;
use crate::journal::Note;

impl Timer<'_> {
    pub(super) fn is_delivered_as_often_as_allowed(&self, found: &mut Found) {
        let deliveries = &self.timeline.deliveries;
        if self.plan.mode == Mode::AtMostOnce {
            // A person may have it sent once more, knowing that it may have been sent before.
            let replays = self.replays().count();
            if deliveries.len() > 1 + replays {
                let what =
                    format!("at most once, and delivered {} times with {replays} replays", deliveries.len());
                found.push((4, what));
            }
            return;
        }
        for (i, d) in deliveries.iter().enumerate() {
            let before = &deliveries[..i];
            let this = (d.epoch, d.attempt);
            // What the network held back comes late.
            let overtaken = |b: &Seen| {
                let other = (b.epoch, b.attempt);
                other == this || (other > this && !self.fault_between(d.due, d.at))
            };
            if before.iter().any(overtaken) {
                let what = format!("delivery {}/{} is not higher than one before it", d.epoch, d.attempt);
                found.push((5, what));
            }
            match before.iter().max_by_key(|b| (b.epoch, b.attempt)) {
                Some(last) if (last.epoch, last.attempt) >= this => {}
                Some(last) => self.has_a_cause(last, d, found),
                None if d.attempt > 1 => {
                    let since = self.timeline.schedules.iter().map(|s| s.0).min().unwrap_or(0);
                    // Before the first answer there may have been others, and deliveries to clients
                    // that are gone.
                    let replayed = self.replayed_between(since, d.at);
                    if !replayed && !self.fault_between(since.min(d.due), d.at) {
                        found.push((
                            5,
                            format!("its first delivery is attempt {}, without a fault", d.attempt),
                        ));
                    }
                }
                None => {}
            }
        }
    }

    /// A delivery after another one: the handler asked for it, or was too slow, or something broke
    /// in between.
    fn has_a_cause(&self, last: &Seen, d: &Seen, found: &mut Found) {
        if self.replayed_between(last.at, d.at) {
            return;
        }
        let outcome = self.timeline.settled.iter().find(|s| (s.1, s.2) == (last.epoch, last.attempt));
        let in_time = outcome.filter(|s| s.0.saturating_sub(last.at) + SETTLE_LAG_MS <= self.plan.timeout_ms);
        match in_time {
            Some((.., Handled::Retry)) | None => {}
            // Only what broke while the outcome was on its way can have lost it.
            Some((at, .., outcome)) => {
                if !self.fault_between(last.at.saturating_sub(ARRIVAL_MS), at + SETTLE_LAG_MS) {
                    let what = format!("delivered again although its handler had said {outcome:?} at {at}");
                    found.push((5, what));
                }
            }
        }
        if self.fault_between(last.at.saturating_sub(RECORD_LAG_MS), d.at) {
            return;
        }
        // In other hands as well: an owner that releases gracefully takes back what it claimed
        // and did not send.
        let next = d.attempt == last.attempt + 1;
        if !next || (d.epoch != last.epoch && !self.changed_hands(last, d)) {
            let (a, b) = ((last.epoch, last.attempt), (d.epoch, d.attempt));
            found.push((5, format!("delivery {b:?} after {a:?} without a fault in between")));
        }
    }

    /// Whether its partition was acquired, under an epoch up to that of the second delivery, after
    /// the first.
    fn changed_hands(&self, last: &Seen, d: &Seen) -> bool {
        let partition = d.id.partition().0;
        let from = last.at.saturating_sub(CLAIM_MS);
        self.journal.iter().any(|entry| match entry.note {
            Note::Acquired { partition: p, epoch } => {
                p == partition && (last.epoch + 1..=d.epoch).contains(&epoch) && entry.at >= from
            }
            _ => false,
        })
    }
}
