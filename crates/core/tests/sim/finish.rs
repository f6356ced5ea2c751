//! From the beginning of a run to its end: load and faults, then healing, then a drain, then a look
//! at the leftovers.

use futures_util::FutureExt;
use mtimer_protocol::RequestOp;
use mtimer_protocol::ops::{Cancel, Purge, Schedule};
use mtimer_types::limits::REPEAT_HORIZON_MS;
use mtimer_types::{BulkAction, KeyPolicy, PartitionId, Target, TimerId};

use super::{Event, PARTITIONS, START, World};

/// After this without a fault everything that is due was sent, ms.
const HEALED_MS: u64 = 40_000;
/// After this without a fault nothing is under way, ms.
const SETTLED_MS: u64 = 8_000;
/// A run that has not drained after so long never will, ms: retry tiers are a day at most, and
/// there are three.
const LONGEST_MS: u64 = 8 * 86_400_000;

impl World {
    /// Load and faults, then healing, then a drain.
    pub(super) fn play(&mut self) {
        self.run_until(self.faulty_until);
        self.run_until(self.healed_at);
        self.run_until(self.ms + HEALED_MS);
        let now = self.client_time();
        self.history.check_stopped(self.ms, now, SETTLED_MS);
        self.history.check_overdue(self.ms, now, 30_000);
        self.serve_all();
        self.end_imports(|import| BulkAction::Release { import });
        let limit = self.ms + LONGEST_MS;
        while self.ms < limit && self.history.wrong.is_none() && !self.has_drained() {
            let first = self.history.upcoming.first().map_or(0, |(t, _)| t.as_ms().saturating_sub(START));
            let next = first.clamp(self.ms, self.ms + 3_600_000);
            self.run_until(next + 1_000);
        }
        self.withdraw_the_rest();
        self.look_at_keys();
        self.purge_all();
        self.history.check_bulks(self.ms);
        self.history.check_whole(self.ms);
    }

    fn has_drained(&self) -> bool {
        !self.load.is_open() && self.history.live().all(|(_, life)| life.staged.is_some())
    }

    /// While nothing fails: timers whose cancel came too late are gone after a while.
    pub(super) fn probe(&mut self) {
        let quiet = !self.plan.has_faults() || self.ms.saturating_sub(self.disturbed) > 2 * SETTLED_MS;
        if quiet {
            let now = self.client_time();
            self.history.check_stopped(self.ms, now, SETTLED_MS);
        }
        if self.ms < self.faulty_until {
            let after = if self.ms < self.plan.load_ms { 5_000 } else { self.plan.far_ms / 10 + 5_000 };
            self.at(after, Event::Probe);
        }
    }

    /// Every key is free again: a new timer gets it, and is cancelled.
    fn look_at_keys(&mut self) {
        if self.history.wrong.is_some() {
            return;
        }
        // Up to 1,000 repeats of edits may wait for a key at a slow store. They are answered as too
        // old by then.
        self.run_until(self.ms + REPEAT_HORIZON_MS + 5_000);
        let now = self.client_time();
        let mut ids: Vec<TimerId> = Vec::new();
        for (dest, key) in self.load.names.clone() {
            let timer = self.timer(dest, now + 3_600_000, now, Some(key));
            ids.push(timer.id);
            self.ask(RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create }));
        }
        self.run_until_answered();
        if let Some(id) = ids.iter().find(|id| !self.history.life(**id).is_live()).copied() {
            self.history.fail(self.ms, Some(id), "keys: a key is not free though its timers have ended");
        }
        for id in ids {
            let request = self.rng.next_u64();
            self.ask(RequestOp::Cancel(Cancel { target: Target::Id(id), request }));
        }
        self.run_until_answered();
    }

    /// Runs until every request was answered, and its effects are done.
    fn run_until_answered(&mut self) {
        let limit = self.ms + 20_000;
        while self.load.is_open() && self.ms < limit && self.history.wrong.is_none() {
            self.run_until(self.ms + 100);
        }
        self.run_until(self.ms + 1_000);
    }

    /// Removes the timers that only people remove; then nothing is left in the store.
    fn purge_all(&mut self) {
        for id in self.history.kept() {
            self.ask(RequestOp::Purge(Purge { id }));
        }
        self.run_until_answered();
        for p in 0..PARTITIONS {
            let lane = self.brokers.iter().find_map(|b| b.process.as_ref()?.lanes[usize::from(p)]);
            let Some(lane) = lane.and_then(|lane| self.lanes.get(lane)).map(|l| l.lane.clone()) else {
                self.history.fail(self.ms, None, &format!("9: nobody has partition {}", PartitionId(p)));
                continue;
            };
            match lane.census().now_or_never() {
                Some(Ok(c)) if c == mtimer_store::Census::default() => {}
                Some(Ok(c)) => {
                    self.history.fail(self.ms, None, &format!("13: left behind after the drain: {c:?}"))
                }
                other => {
                    self.history.fail(self.ms, None, &format!("9: no census of partition {p}: {other:?}"))
                }
            }
        }
    }
}
