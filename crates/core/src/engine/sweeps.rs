//! Which park is swept, and when its next page is asked for.
//!
//! Invariant: one sweep at a time, and a pause of [`SWEEP_MS`] between two pages.

use mtimer_types::{Destination, PartitionId};

use super::destination_members::DestIx;

/// Pause between two pages, ms.
const SWEEP_MS: u64 = 100;

/// The sweep under way, and when the next may begin.
#[derive(Debug)]
pub(super) struct Sweeps {
    /// When the next page may be asked for, monotonic ms.
    next_at: u64,
    current: Option<Sweep>,
    /// The park that was looked at last.
    looked_at: Option<(PartitionId, DestIx)>,
}

#[derive(Debug)]
struct Sweep {
    at: PartitionId,
    dest: Destination,
    /// Where it goes on after its pause. `None`: a page is asked for.
    cursor: Option<u64>,
}

impl Sweeps {
    /// No sweep; the first may begin at `next_at`, monotonic ms.
    pub(super) fn new(next_at: u64) -> Self {
        Self { next_at, current: None, looked_at: None }
    }

    /// The park that was looked at last for deadlines that have passed.
    pub(super) fn looked_at(&self) -> Option<(PartitionId, DestIx)> {
        self.looked_at
    }

    pub(super) fn look_at(&mut self, park: (PartitionId, DestIx)) {
        self.looked_at = Some(park);
    }

    pub(super) fn may_begin(&self, mono_ms: u64) -> bool {
        self.current.is_none() && mono_ms >= self.next_at
    }

    /// Begins with the first page, which is asked for now.
    pub(super) fn begin(&mut self, at: PartitionId, dest: Destination) {
        self.current = Some(Sweep { at, dest, cursor: None });
    }

    /// Takes note of a page of this park, behind which the sweep goes on at `next`. False: the page
    /// is of a sweep that was abandoned.
    pub(super) fn page_done(
        &mut self,
        mono_ms: u64,
        at: PartitionId,
        dest: &Destination,
        next: Option<u64>,
    ) -> bool {
        let Some(sweep) = self.current.as_mut().filter(|s| s.at == at && s.dest == *dest) else {
            return false;
        };
        self.next_at = mono_ms + SWEEP_MS;
        sweep.cursor = next;
        if next.is_none() {
            self.current = None;
        }
        true
    }

    /// The page to ask for now, if the pause is over.
    pub(super) fn resume(&mut self, mono_ms: u64) -> Option<(PartitionId, Destination, u64)> {
        let sweep = self.current.as_mut().filter(|_| self.next_at <= mono_ms)?;
        let cursor = sweep.cursor.take()?;
        Some((sweep.at, sweep.dest.clone(), cursor))
    }

    /// Ends the sweep of a partition that is given up. A page of it may still come, or not.
    pub(super) fn abandon(&mut self, at: PartitionId) {
        if self.current.as_ref().is_some_and(|s| s.at == at) {
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(0);

    fn dest() -> Destination {
        Destination::new("test", "a").unwrap()
    }

    #[test]
    fn a_sweep_pauses_between_pages_and_the_next_begins_after_a_pause() {
        let mut sweeps = Sweeps::new(1_000);
        assert!(!sweeps.may_begin(999) && sweeps.may_begin(1_000));
        sweeps.begin(P, dest());
        assert!(!sweeps.may_begin(9_000), "one at a time");
        assert_eq!(sweeps.resume(9_000), None, "its page is asked for");
        assert!(sweeps.page_done(2_000, P, &dest(), Some(7)));
        assert_eq!(sweeps.resume(2_099), None);
        assert_eq!(sweeps.resume(2_100), Some((P, dest(), 7)));
        assert!(sweeps.page_done(2_200, P, &dest(), None));
        assert!(!sweeps.may_begin(2_299) && sweeps.may_begin(2_300));
    }

    #[test]
    fn the_page_of_an_abandoned_sweep_is_passed_over() {
        let mut sweeps = Sweeps::new(0);
        sweeps.begin(P, dest());
        sweeps.abandon(PartitionId(1));
        assert!(!sweeps.may_begin(0));
        sweeps.abandon(P);
        assert!(sweeps.may_begin(0) && !sweeps.page_done(5_000, P, &dest(), Some(7)));
        assert_eq!(sweeps.resume(9_000), None);
    }
}
