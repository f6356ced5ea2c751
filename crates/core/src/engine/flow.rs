//! Whether a destination takes its timers: since when it has had no credit, how many it takes, and
//! how much of its credit waits for the store.
//!
//! Not in here: the limits that follow from it (`backlog_limit`), the credit itself (`roster`).

use super::pressure::Pressure;

/// A destination without credit that takes nothing for this long is idle, ms: longer than the usual
/// gap between two deliveries of a busy one.
const IDLE_MS: u64 = 150;

/// How a destination treats the timers that wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    /// It has credit, or has taken something a moment ago.
    Flowing,
    /// It takes nothing. Outcomes on their way to the store hold at least half of its credit in
    /// use. Parking would only give the store more to do.
    Settling,
    /// It has had no credit for [`StallThresholds::idle`].
    Idle,
    /// It has had no credit for [`StallThresholds::stuck`], so waiting for it is no use.
    Stuck,
}

/// When a destination counts as idle and as stuck, in ms without credit.
#[derive(Clone, Copy, Debug)]
pub(super) struct StallThresholds {
    idle: u64,
    stuck: u64,
}

impl StallThresholds {
    /// The thresholds of a destination whose timers are parked after `park_after_ms`. Without
    /// clients it is idle at once.
    pub(super) fn new(park_after_ms: u64, has_clients: bool) -> Self {
        let idle = if has_clients { IDLE_MS.min(park_after_ms) } else { 0 };
        Self { idle, stuck: park_after_ms }
    }
}

/// The progress of one destination.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The destination has had no credit and taken nothing since this attended time, ms.
    blocked_since: Option<u64>,
    /// Deliveries that it has taken, each counting less with time: about those of the last 250 ms.
    pace: u64,
    /// Outcomes of its deliveries that are on their way to the store.
    settling: usize,
}

impl Flow {
    /// Notes that the destination has taken `sent` deliveries at the attended time `at`, and
    /// whether it has credit left.
    pub(super) fn note_credit(&mut self, at: u64, sent: usize, has_credit: bool) {
        self.pace += sent as u64;
        let since = if sent > 0 { at } else { self.blocked_since.unwrap_or(at) };
        self.blocked_since = (!has_credit).then_some(since);
    }

    /// An outcome that holds credit leaves for the store.
    pub(super) fn begin_settling(&mut self) {
        self.settling += 1;
    }

    /// The store has it, or it is given up.
    pub(super) fn end_settling(&mut self) {
        self.settling -= 1;
    }

    /// Whether the store holds some of the destination's credit.
    pub(super) fn is_settling(&self) -> bool {
        self.settling > 0
    }

    /// About how many deliveries it took in the last 250 ms.
    pub(super) fn pace(&self) -> u64 {
        self.pace
    }

    /// Lets past deliveries count less. Called every [`HOUSEKEEPING_MS`](super::HOUSEKEEPING_MS).
    pub(super) fn decay(&mut self) {
        self.pace = self.pace * 4 / 5;
    }

    /// The condition at the attended time `at`. `in_use`: how much of the destination's credit is
    /// in use. While memory is full a destination is not settling: its time without credit counts.
    pub(super) fn condition(
        &self,
        at: u64,
        thresholds: StallThresholds,
        pressure: Pressure,
        in_use: impl FnOnce() -> usize,
    ) -> Condition {
        let Some(since) = self.blocked_since else { return Condition::Flowing };
        let blocked_ms = at.saturating_sub(since);
        if blocked_ms < thresholds.idle {
            return Condition::Flowing;
        }
        if pressure != Pressure::Full && self.is_settling() && 2 * self.settling >= in_use() {
            return Condition::Settling;
        }
        if blocked_ms < thresholds.stuck { Condition::Idle } else { Condition::Stuck }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: StallThresholds = StallThresholds { idle: 150, stuck: 1_000 };

    /// A destination that has had no credit since 10,000 ms, with outcomes under way.
    fn blocked(settling: usize) -> Flow {
        let mut flow = Flow::default();
        flow.note_credit(10_000, 1, false);
        (0..settling).for_each(|_| flow.begin_settling());
        flow
    }

    #[test]
    fn a_destination_without_credit_becomes_idle_and_then_stuck() {
        let flow = blocked(0);
        let at = [10_149, 10_150, 10_999, 11_000];
        let conditions = at.map(|at| flow.condition(at, THRESHOLDS, Pressure::Free, || 10));
        use Condition::{Flowing, Idle, Stuck};
        assert_eq!(conditions, [Flowing, Idle, Idle, Stuck]);
    }

    #[test]
    fn one_with_credit_flows_however_long_it_takes_nothing() {
        let mut flow = blocked(0);
        flow.note_credit(10_500, 0, true);
        assert_eq!(flow.condition(99_000, THRESHOLDS, Pressure::Full, || 0), Condition::Flowing);
    }

    #[test]
    fn what_it_takes_and_only_that_begins_its_time_anew() {
        let mut flow = blocked(0);
        flow.note_credit(10_900, 0, false);
        assert_eq!(flow.condition(11_000, THRESHOLDS, Pressure::Free, || 10), Condition::Stuck);
        flow.note_credit(11_000, 3, false);
        assert_eq!(flow.condition(11_149, THRESHOLDS, Pressure::Free, || 10), Condition::Flowing);
        assert_eq!(flow.condition(11_150, THRESHOLDS, Pressure::Free, || 10), Condition::Idle);
        assert_eq!(flow.pace(), 4);
    }

    #[test]
    fn it_settles_while_the_store_holds_half_of_its_credit_and_memory_is_not_full() {
        let of = |settling, pressure| blocked(settling).condition(11_000, THRESHOLDS, pressure, || 10);
        assert_eq!([0, 4].map(|n| of(n, Pressure::Free)), [Condition::Stuck; 2]);
        assert_eq!(of(5, Pressure::Free), Condition::Settling);
        assert_eq!(of(5, Pressure::Pressed), Condition::Settling);
        assert_eq!(of(5, Pressure::Full), Condition::Stuck);
        let mut flow = blocked(5);
        flow.end_settling();
        assert_eq!(flow.condition(11_000, THRESHOLDS, Pressure::Free, || 10), Condition::Stuck);
    }

    #[test]
    fn without_clients_it_is_idle_at_once() {
        let thresholds = StallThresholds::new(1_000, false);
        assert_eq!(blocked(0).condition(10_000, thresholds, Pressure::Free, || 0), Condition::Idle);
        let thresholds = StallThresholds::new(100, true);
        assert_eq!((thresholds.idle, thresholds.stuck), (100, 100), "idle is not later than stuck");
    }
}
