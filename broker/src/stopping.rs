//! How far a graceful stop has come.
//!
//! A decision without I/O: [`StopPhase::next`] gives the next step. Not in here: doing it
//! ([`crate::shell`]).

use std::time::Duration;

use tokio::time::Instant;

/// How long giving the partitions up may take when the broker stops.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a broker of a cluster waits until others have its partitions before it stops without
/// that.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the broker is between serving and having stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopPhase {
    Serving,
    /// In a cluster: others get the partitions.
    Leaving {
        until: Instant,
    },
    /// No new work is accepted; handlers finish theirs.
    Draining {
        until: Instant,
    },
    /// The partitions are given up.
    Releasing {
        until: Instant,
    },
    Released,
}

/// The step after a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopStep {
    /// Accept no more work. Nobody has taken the partitions over in time.
    Drain,
    /// Give the partitions up; so many deliveries are without an outcome.
    Release { unsettled: usize },
    /// End. The store did not take the partitions back in time.
    End,
}

impl StopPhase {
    /// Deadline of this phase.
    pub(crate) const fn until(self) -> Option<Instant> {
        match self {
            Self::Leaving { until } | Self::Draining { until } | Self::Releasing { until } => Some(until),
            Self::Serving | Self::Released => None,
        }
    }

    /// Decides the next step, with so many deliveries without an outcome.
    pub(crate) fn next(self, now: Instant, unsettled: usize) -> Option<StopStep> {
        let is_late = self.until().is_some_and(|until| until <= now);
        match self {
            Self::Leaving { .. } if is_late => Some(StopStep::Drain),
            Self::Draining { .. } if is_late || unsettled == 0 => Some(StopStep::Release { unsettled }),
            Self::Releasing { .. } if is_late => Some(StopStep::End),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_its_work_is_done_or_its_time_is_over() {
        let (early, until) = (Instant::now(), Instant::now() + RELEASE_TIMEOUT);
        let cases = [
            (StopPhase::Serving, None, None, None),
            (StopPhase::Leaving { until }, None, None, Some(StopStep::Drain)),
            (
                StopPhase::Draining { until },
                None,
                Some(StopStep::Release { unsettled: 0 }),
                Some(StopStep::Release { unsettled: 2 }),
            ),
            (StopPhase::Releasing { until }, None, None, Some(StopStep::End)),
            (StopPhase::Released, None, None, None),
        ];
        for (phase, busy, idle, late) in cases {
            let steps = [phase.next(early, 2), phase.next(early, 0), phase.next(until, 2)];
            assert_eq!(steps, [busy, idle, late], "{phase:?}");
        }
    }
}
