//! The calls of one partition that the store has not answered.
//!
//! Invariants: answers come in the order of the calls; one load and one unload are under way at a
//! time. While a batch is under way the next gathers; only a partition that is given up sends all
//! at once.

use std::collections::VecDeque;

use mtimer_types::{Destination, Time, TimerId};

use super::bulk_work::BulkKind;
use super::pending::Pending;
use super::questions::QueryPart;

/// A call that was not answered yet.
#[derive(Debug)]
pub(super) enum OpenCall {
    Apply {
        pending: Vec<Pending>,
        claim: Option<Time>,
        /// When it was made, monotonic ms.
        begun: u64,
    },
    Load {
        claim: Option<Time>,
        begun: u64,
    },
    Unload {
        beyond: Time,
    },
    /// Reads a timer, so that memory agrees with the store.
    Fetch(TimerId),
    /// Reads a timer that is not in memory, and that an edit has changed, or may have.
    Look,
    Query(QueryPart),
    ParkedDestinations,
    Parked {
        /// By name: the destination may be forgotten, and its number reused, before the page
        /// arrives.
        dest: Destination,
    },
    Sweep {
        dest: Destination,
    },
    Taken,
    /// Reads bulk jobs and settings.
    Controls,
    /// Reads pages for a bulk job.
    BulkPending,
    BulkParks,
    BulkList(BulkKind),
    Release,
}

impl OpenCall {
    fn carries_claim(&self) -> bool {
        matches!(self, Self::Apply { claim: Some(_), .. } | Self::Load { claim: Some(_), .. })
    }
}

/// Calls under way.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Oldest first.
    open: VecDeque<OpenCall>,
    batches: usize,
    loading: bool,
    unloading: bool,
}

impl Calls {
    /// A call is made.
    pub(super) fn push(&mut self, call: OpenCall) {
        match call {
            OpenCall::Apply { .. } => self.batches += 1,
            OpenCall::Load { .. } => self.loading = true,
            OpenCall::Unload { .. } => self.unloading = true,
            _ => {}
        }
        self.open.push_back(call);
    }

    /// Takes the call that an answer is for: the oldest.
    pub(super) fn pop(&mut self) -> Option<OpenCall> {
        let call = self.open.pop_front()?;
        match call {
            OpenCall::Apply { .. } => self.batches -= 1,
            OpenCall::Load { .. } => self.loading = false,
            OpenCall::Unload { .. } => self.unloading = false,
            _ => {}
        }
        Some(call)
    }

    /// Puts back a call whose answer is of no use: it counts as unanswered.
    pub(super) fn put_back(&mut self, call: OpenCall) {
        self.open.push_front(call);
        self.batches += usize::from(matches!(self.open.front(), Some(OpenCall::Apply { .. })));
    }

    /// Whether a batch is under way.
    pub(super) fn has_batch(&self) -> bool {
        self.batches > 0
    }

    pub(super) fn is_loading(&self) -> bool {
        self.loading
    }

    pub(super) fn is_unloading(&self) -> bool {
        self.unloading
    }

    /// Whether a call that carries a claim is under way.
    pub(super) fn has_claim(&self) -> bool {
        self.open.iter().any(OpenCall::carries_claim)
    }

    /// Whether the timers that earlier ownerships have taken are still being read.
    pub(super) fn is_reading_taken(&self) -> bool {
        self.open.iter().any(|call| matches!(call, OpenCall::Taken))
    }

    /// Whether the bulk jobs are being read.
    pub(super) fn is_reading_bulks(&self) -> bool {
        self.open.iter().any(|call| matches!(call, OpenCall::Controls))
    }

    /// Whether a timer is being read.
    pub(super) fn is_fetching(&self) -> bool {
        self.open.iter().any(|call| matches!(call, OpenCall::Fetch(_) | OpenCall::Look))
    }

    /// Whether an operation that `wanted` accepts is under way.
    pub(super) fn has_op(&self, wanted: impl Fn(&Pending) -> bool) -> bool {
        self.open.iter().any(|call| match call {
            OpenCall::Apply { pending, .. } => pending.iter().any(&wanted),
            _ => false,
        })
    }

    /// The calls that will not be answered any more.
    pub(super) fn into_pending(self) -> impl Iterator<Item = OpenCall> {
        self.open.into_iter()
    }

    /// The calls under way, oldest first.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &OpenCall> {
        self.open.iter()
    }

    /// How many batches are under way.
    #[cfg(test)]
    pub(super) fn batches(&self) -> usize {
        self.batches
    }

    /// Lets further batches wait as if one were under way.
    #[cfg(test)]
    pub(super) fn hold_batches(&mut self) {
        self.batches += 1;
    }

    /// Lets loads wait as if one were under way.
    #[cfg(test)]
    pub(super) fn hold_loads(&mut self) {
        self.loading = true;
    }

    /// Ends [`Self::hold_batches`].
    #[cfg(test)]
    pub(super) fn release_batches(&mut self) {
        self.batches -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(claim: Option<u64>) -> OpenCall {
        OpenCall::Apply { pending: Vec::new(), claim: claim.map(Time::from_ms), begun: 0 }
    }

    #[test]
    fn what_is_under_way_is_known_until_it_is_answered() {
        let mut calls = Calls::default();
        calls.push(apply(None));
        calls.push(OpenCall::Load { claim: Some(Time::ZERO), begun: 0 });
        calls.push(OpenCall::Unload { beyond: Time::ZERO });
        calls.push(OpenCall::Taken);
        calls.push(OpenCall::Fetch(TimerId::from_u128(1)));
        let state = |c: &Calls| {
            let calls = [c.has_batch(), c.is_loading(), c.is_unloading()];
            (calls, c.has_claim(), c.is_reading_taken(), c.is_fetching())
        };
        assert_eq!(state(&calls), ([true; 3], true, true, true));
        assert!(matches!(calls.pop(), Some(OpenCall::Apply { .. })));
        assert_eq!(state(&calls), ([false, true, true], true, true, true));
        calls.pop();
        assert_eq!(state(&calls), ([false, false, true], false, true, true));
        calls.pop();
        calls.pop();
        assert_eq!(state(&calls), ([false; 3], false, false, true));
        calls.pop();
        assert!(!calls.is_fetching() && calls.pop().is_none());
    }

    #[test]
    fn a_call_that_is_put_back_is_the_oldest_again() {
        let mut calls = Calls::default();
        calls.push(apply(Some(5)));
        calls.push(OpenCall::Taken);
        let first = calls.pop().unwrap();
        calls.put_back(first);
        assert!(calls.has_batch() && calls.has_claim());
        assert!(matches!(calls.into_pending().next(), Some(OpenCall::Apply { .. })));
    }
}
