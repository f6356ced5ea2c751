//! Whether timers of a cluster have changed between two moments, by what brokers count.

use std::collections::BTreeMap;

use mtimer_client::{Client, Status};

use crate::exported::Trailer;
use crate::output::{counted, grouped};

/// Counters that rise if a timer is changed, or may have been: a refusal can be for want of
/// replicas. A park is no change: it puts a timer into a state that is listed later, with all that
/// it has. Nor are expiries and trims: they happen in the next cluster, too.
const CHANGES: [&str; 23] = [
    "scheduled_total",
    "schedule_refused_total",
    "bulk_refused_total",
    "cancelled_total",
    "cancel_too_late_total",
    "rescheduled_total",
    "extended_total",
    "delivered_total",
    "redelivered_total",
    "acknowledged_total",
    "late_acknowledged_total",
    "retried_total",
    "postponed_total",
    "dead_total",
    "timed_out_total",
    "session_lost_total",
    "unparked_total",
    "unconfirmed_total",
    "bulk_done_total",
    "bulk_not_done_total",
    "replayed_total",
    "purged_total",
    "settle_late_total",
];
/// Rises whenever a partition gets another owner, restarts of brokers included.
const OWNERS: &str = "owned_epochs";
/// Reasons that are given at most.
const REASONS: usize = 20;

/// What brokers say of changes at one time.
pub(super) struct Observed {
    /// Those that tell of changes.
    pub(super) counters: BTreeMap<String, u64>,
    /// Why nothing can be said of this time.
    unclear: Vec<String>,
}

impl Observed {
    pub(super) async fn of(client: &Client) -> Self {
        match client.status().await {
            Ok(status) => Self::new(&status),
            Err(error) => {
                let unclear = vec![format!("brokers did not tell: {error}")];
                Self { counters: BTreeMap::new(), unclear }
            }
        }
    }

    fn new(status: &Status) -> Self {
        let mut unclear = Vec::new();
        let unsettled = status.in_flight.max(count(status, "unsettled_deliveries"));
        if unsettled > 0 {
            unclear.push(format!("{} in flight", counted(unsettled, "timer")));
        }
        for name in ["brokers_unanswered", "stored_unknown_partitions"] {
            let unknown = count(status, name);
            if unknown > 0 {
                unclear.push(format!("{name} is {unknown}"));
            }
        }
        let names = CHANGES.into_iter().chain([OWNERS]);
        let counters = names.map(|name| (name.to_owned(), count(status, name))).collect();
        Self { counters, unclear }
    }

    /// What brokers had said when a file was complete.
    pub(super) fn of_file(trailer: &Trailer) -> Self {
        Self { counters: trailer.counters.clone(), unclear: trailer.why.clone() }
    }

    /// Why a file is not consistent that was written between the two.
    pub(super) fn changes_until(&self, after: &Self) -> Vec<String> {
        let mut why = self.unclear.clone();
        why.extend(after.unclear.iter().filter(|reason| !self.unclear.contains(reason)).cloned());
        if self.counters.is_empty() || after.counters.is_empty() {
            return why;
        }
        let of = |observed: &Self, name: &str| observed.counters.get(name).copied().unwrap_or(0);
        if of(self, OWNERS) != of(after, OWNERS) {
            why.push("partitions have moved, or brokers were restarted".to_owned());
        }
        let moved = CHANGES.iter().filter_map(|name| {
            let (then, now) = (of(self, name), of(after, name));
            let more = now.saturating_sub(then);
            (then != now).then(|| match more {
                0 => format!("{name} began anew"),
                more => format!("{name} rose by {}", grouped(more)),
            })
        });
        why.extend(moved);
        why.truncate(REASONS);
        why
    }
}

fn count(status: &Status, name: &str) -> u64 {
    status.counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, n)| *n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(in_flight: u64, counters: &[(&str, u64)]) -> Observed {
        let counters = counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        Observed::new(&Status { in_flight, counters, ..Status::default() })
    }

    #[test]
    fn a_file_is_consistent_if_nothing_was_seen_to_change() {
        let before = observed(0, &[("scheduled_total", 7), ("parked_total", 1), (OWNERS, 3)]);
        let parked = observed(0, &[("scheduled_total", 7), ("parked_total", 9), (OWNERS, 3)]);
        assert!(before.changes_until(&parked).is_empty());
        let later = observed(2, &[("scheduled_total", 9), ("brokers_unanswered", 1), (OWNERS, 3)]);
        let why = ["2 timers in flight", "brokers_unanswered is 1", "scheduled_total rose by 2"];
        assert_eq!(before.changes_until(&later), why);
        let settling = observed(0, &[("unsettled_deliveries", 1), ("scheduled_total", 7), (OWNERS, 3)]);
        assert_eq!(settling.changes_until(&before), ["1 timer in flight"], "an outcome is on its way");
        let anew = before.changes_until(&observed(0, &[(OWNERS, 4)]));
        let why = ["partitions have moved, or brokers were restarted", "scheduled_total began anew"];
        assert_eq!(anew, why);
        let silent = Observed { counters: BTreeMap::new(), unclear: vec!["refused".to_owned()] };
        assert_eq!(silent.changes_until(&before), ["refused"]);
        assert_eq!(before.changes_until(&silent), ["refused"]);
    }

    #[test]
    fn the_counters_that_tell_of_changes_are_the_engines() {
        let known: Vec<&str> = mtimer_core::Counter::ALL.iter().map(|(_, name)| *name).collect();
        assert!(CHANGES.iter().all(|name| known.contains(name)));
        let others: Vec<&str> = known.into_iter().filter(|name| !CHANGES.contains(name)).collect();
        // None of these changes a timer that an export has.
        let harmless = [
            "dead_trimmed_total",
            "unconfirmed_trimmed_total",
            "expired_total",
            "settle_not_yours_total",
            "unloaded_total",
            "parked_total",
            "protocol_errors_total",
            "lanes_ended_total",
            "staged_total",
            "recalled_total",
        ];
        assert_eq!(others.len(), harmless.len(), "{others:?}");
        assert!(harmless.iter().all(|name| others.contains(name)), "{others:?}");
    }
}
