//! The state of the engine's task: metrics, readiness, numbers.

use mtimer_core::clock::Standstill;
use mtimer_protocol::{QueryAnswer, ServerMessage, Status};
use mtimer_store::counters::{EVICTING_MASTERS, UNCONFIRMED_PARTITIONS};

use super::Shell;
use crate::observed::Observed;
use crate::stopping::StopPhase;

/// A standstill of time that lasts for so long in all makes a broker not ready, ms.
const STANDSTILL_MS: u64 = 2_000;

impl Shell {
    pub(super) fn observe(&self, top: usize) -> Observed {
        Observed {
            now: self.clock.now().time,
            engine: self.engine.figures(top),
            lanes: self.lanes.figures(),
            assigned: self.share.len() as u64,
            is_reached: self.membership.reach.borrow().problem().is_none(),
            still_ms: self.clock.standstill().map_or(0, |still| still.left_ms),
            lost_brokers: self.counters.lost_brokers().len() as u64,
            unreachable: self.unreachable() as u64,
            sessions: self.sessions.count(),
            events: self.inbox.len() as u64,
            unready: self.unready(),
        }
    }

    /// Why clients are better sent elsewhere.
    pub(super) fn unready(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.phase != StopPhase::Serving {
            why.push("the broker is stopping".to_owned());
        }
        if !self.has_joined() {
            let leader = self.counters.leader_problem().map(|problem| format!(": {problem}"));
            why.push(format!("the broker has not joined its cluster yet{}", leader.unwrap_or_default()));
        }
        let missing = self.missing();
        if missing > 0 {
            why.push(format!("{missing} of {} partitions are not acquired yet", self.share.len()));
        }
        why.extend(self.membership.reach.borrow().problem());
        if self.evicting() > 0 {
            why.push(
                "Redis may evict keys, so new timers are refused: set its maxmemory-policy to noeviction"
                    .to_owned(),
            );
        }
        if let Some(still) = self.clock.standstill().filter(|still| still.total_ms() >= STANDSTILL_MS) {
            let Standstill { for_ms, left_ms } = still;
            why.push(format!(
                "time has stood still for {} s and goes on in {} s: the deciding clock was set back",
                for_ms / 1_000,
                left_ms.div_ceil(1_000)
            ));
        }
        let down = self.unreachable();
        if down > 0 {
            let owned = self.lanes.reach().0;
            why.push(format!(
                "the store of {down} of {owned} partitions cannot be reached, or takes no writes"
            ));
        }
        let counters = self.store.counters();
        let unconfirmed = counters.iter().find(|(name, _)| *name == UNCONFIRMED_PARTITIONS);
        if let Some((_, partitions @ 1..)) = unconfirmed {
            why.push(format!("too few replicas confirm what is written to {partitions} partitions"));
        }
        why
    }

    pub(super) fn has_joined(&self) -> bool {
        *self.membership.joined.borrow()
    }

    /// Masters of Redis that may evict keys.
    fn evicting(&self) -> u64 {
        let counters = self.store.counters();
        counters.into_iter().find(|(name, _)| *name == EVICTING_MASTERS).map_or(0, |(_, masters)| masters)
    }

    /// Partitions that this broker is to own and does not.
    fn missing(&self) -> usize {
        self.share.iter().filter(|partition| !self.lanes.owns(**partition)).count()
    }

    /// Owned partitions whose store cannot be reached. A partition with nothing to do notices late
    /// by itself; the cluster's task looks every second.
    fn unreachable(&self) -> usize {
        let (owned, down) = self.lanes.reach();
        down.max(self.counters.unreachable()).min(owned)
    }

    /// An answer to a question of the broker itself.
    pub(super) fn answer_own(&mut self, message: ServerMessage) {
        if let ServerMessage::Answer { corr, answer: QueryAnswer::Status(mut status) } = message {
            self.complete(&mut status);
            if let Some(to) = self.questions.remove(&corr) {
                // The asker may have gone.
                let _ = to.send(status);
            }
        }
    }

    pub(super) fn complete(&self, status: &mut Status) {
        status.sessions = self.sessions.count();
        let stored = self.store.counters().into_iter().map(|(name, n)| (name.to_owned(), n));
        status.counters.extend(stored);
        status.counters.push(("not_ready".to_owned(), self.unready().len() as u64));
        status.counters.push(("store_unreachable_partitions".to_owned(), self.unreachable() as u64));
        let still = self.clock.standstill().unwrap_or_default();
        status
            .counters
            .push(("clock_standstill_ms".to_owned(), still.for_ms.max(u64::from(still.left_ms > 0))));
        status.counters.push(("clock_standstill_left_ms".to_owned(), still.left_ms));
        let is_unreached = self.membership.reach.borrow().problem().is_some();
        status.counters.push(("address_unreached".to_owned(), is_unreached.into()));
        // A partition between two owners is in nobody's count.
        let unknown = status.counters.iter_mut().find(|(name, _)| name == "stored_unknown_partitions");
        unknown.into_iter().for_each(|(_, partitions)| *partitions += self.missing() as u64);
        let now = self.clock.now().mono_ms;
        let lost = self.counters.lost_brokers().into_iter();
        status.lost_brokers = lost.map(|(address, since)| (address, now.saturating_sub(since))).collect();
        status.unreached_leaders.extend(self.counters.unreached_leader());
        self.counters.merge_into(&mut status.counters);
    }
}
