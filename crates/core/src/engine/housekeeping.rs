//! Housekeeping: work without an event of its own is checked at intervals.

use mtimer_store::Retained;
use mtimer_store::ops::Trim;

use super::Engine;
use super::pending::Own;
use crate::api::Now;

/// Retained timers of one kind and partition that are trimmed at a time; the rest goes 50 ms later.
const TRIM_STEP: u32 = 200;

impl Engine {
    /// Does the work that has no event of its own.
    pub(super) fn run_housekeeping(&mut self, now: Now) {
        self.shed(now);
        self.expire_ready(now);
        self.park_waiting(now);
        self.continue_sweep(now);
        self.sweep_parks(now);
        let o = &self.options;
        let retention = [
            (Retained::Dead, o.dead_max_age_ms, o.dead_max_count),
            (Retained::Unconfirmed, o.unconfirmed_max_age_ms, o.unconfirmed_max_count),
        ];
        for p in self.partitions.iter_mut() {
            p.queue_put_off();
            if p.begin_trim(now.mono_ms) {
                for (of, max_age, keep) in retention {
                    let before = now.time - max_age;
                    p.queue.push_own(Own::Trim(Trim { of, before, keep, limit: TRIM_STEP }));
                }
            }
        }
        let partitions = &self.partitions;
        self.timeouts.prune(self.unsettled, |id, attempt| {
            let entry = partitions.get(id.partition()).and_then(|p| p.table.get(id));
            entry.and_then(|e| e.state.flight()).is_some_and(|f| f.attempt == attempt)
        });
    }
}
