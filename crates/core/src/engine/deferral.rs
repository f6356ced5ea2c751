//! When work that can wait goes to the store: acknowledgements whose credit nobody waits for, and
//! claims.
//!
//! A write costs the store about the same at any size, and waking the store costs as much as one
//! write. So such work waits for other work of its partition, and goes without it when its time has
//! come, together with that of other partitions.
//! Not in here: which work can wait (`settle`), what else a batch carries (`batches`).

use mtimer_types::{PartitionId, Time};

use crate::api::Now;

/// Work that can wait is batched across partitions at multiples of this, ms.
pub(super) const TICK_MS: u64 = 10;
/// How long an acknowledgement may wait for others of its partition, or for a claim, ms: see
/// `lateness` of a mixed load in docs/performance-notes.md. A crash may redeliver timers whose
/// acknowledgement waits. Partitions take turns at the ticks.
pub(super) const DEFER_MS: u64 = 40;

/// When one partition sends the acknowledgements that wait there. Set while some wait.
#[derive(Debug, Default)]
pub(super) struct FlushTime(Option<u64>);

impl FlushTime {
    /// Sets the time of partition `at`, unless it is set, and returns it, monotonic ms: a tick
    /// within [`DEFER_MS`]. Neighbouring partitions get different ticks.
    pub(super) fn set(&mut self, at: PartitionId, now: Now) -> u64 {
        let phase = u64::from(at.0) * TICK_MS;
        let wait = DEFER_MS - (now.time.as_ms() + phase) % DEFER_MS;
        *self.0.get_or_insert(now.mono_ms + wait)
    }

    /// The waiting work has gone.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

/// Which deferrable work a turn sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flush {
    /// Claims: a tick has passed.
    pub(super) claims: bool,
    /// Acknowledgements: somebody waits for their credit.
    pub(super) acknowledgements: bool,
}

/// The deferral state that all partitions of a broker share.
#[derive(Debug, Default)]
pub(super) struct Deferral {
    /// The latest tick, in multiples of [`TICK_MS`] of the cluster clock.
    tick: u64,
    /// The first time at which a partition sends, monotonic ms.
    wake_at: Option<u64>,
    credit_awaited: bool,
}

impl Deferral {
    /// Notes that timers wait for credit that outcomes on their way to the store hold.
    pub(super) fn await_credit(&mut self) {
        self.credit_awaited = true;
    }

    /// Begins a turn. Returns which deferrable work it sends.
    pub(super) fn begin_turn(&mut self, now: Now) -> Flush {
        let tick = now.time.as_ms() / TICK_MS;
        Flush {
            claims: std::mem::replace(&mut self.tick, tick) != tick,
            acknowledgements: std::mem::take(&mut self.credit_awaited),
        }
    }

    /// Forgets which partitions wait: all are looked at anew.
    pub(super) fn forget_waits(&mut self) {
        self.wake_at = None;
    }

    /// Notes until when a partition waits, if it does.
    pub(super) fn note_wait(&mut self, until: Option<u64>) {
        self.wake_at = self.wake_at.into_iter().chain(until).min();
    }

    /// When the engine has to be woken up for the first partition that waits, monotonic ms.
    pub(super) fn wake_at(&self) -> Option<u64> {
        self.wake_at
    }
}

/// The flush time of work that must go to the store by `at`: the last shared tick up to it, if that
/// is ahead.
pub(super) fn together_by(now: Time, at: Time) -> Time {
    let shared = at - at.as_ms() % TICK_MS;
    if shared > now { shared } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    fn at(ms: u64) -> Now {
        Now { time: Time::from_ms(START + ms), mono_ms: ms }
    }

    #[test]
    fn partitions_take_turns() {
        let flush_time = |partition| {
            let mut time = FlushTime::default();
            let first = time.set(PartitionId(partition), at(3));
            assert_eq!(
                time.set(PartitionId(partition), at(17)),
                first,
                "it does not move while something waits"
            );
            time.clear();
            assert_eq!(time.set(PartitionId(partition), at(first)), first + DEFER_MS);
            first
        };
        assert_eq!([0, 1, 2, 3, 4].map(flush_time), [40, 30, 20, 10, 40]);
    }

    #[test]
    fn claims_go_at_each_tick_and_acknowledgements_once_their_credit_is_awaited() {
        let mut deferral = Deferral::default();
        let (idle, tick) = (
            Flush { claims: false, acknowledgements: false },
            Flush { claims: true, acknowledgements: false },
        );
        assert_eq!([0, 1, 9, 10, 11].map(|ms| deferral.begin_turn(at(ms))), [tick, idle, idle, tick, idle]);
        deferral.await_credit();
        assert_eq!(deferral.begin_turn(at(12)), Flush { claims: false, acknowledgements: true });
        assert_eq!(deferral.begin_turn(at(13)), idle);
        assert_eq!(deferral.begin_turn(at(3)), tick, "the clock has stepped back");
    }

    #[test]
    fn the_first_partition_that_waits_counts() {
        let mut deferral = Deferral::default();
        [Some(40), None, Some(30), Some(50)].into_iter().for_each(|at| deferral.note_wait(at));
        assert_eq!(deferral.wake_at(), Some(30));
        deferral.forget_waits();
        assert_eq!(deferral.wake_at(), None);
    }
}
