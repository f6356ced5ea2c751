//! The counting of partitions: who has asked for it, and how far it is.
//!
//! Invariants: one count is under way at a time, of at most [`PARTITIONS_AT_ONCE`] partitions at the
//! same time; an answer counts what was stored when its question came, because who asks during a
//! count waits for the next; counting takes about a tenth of the time, however much is asked.

use std::collections::VecDeque;

use mtimer_protocol::PartitionView;
use mtimer_store::Census;
use mtimer_types::PartitionId;

use crate::api::SessionId;

/// Partitions that are counted at the same time: the store has other things to do meanwhile.
const PARTITIONS_AT_ONCE: usize = 4;
/// The least and the most time from a count to the next, ms.
const PAUSE_MS: (u64, u64) = (50, 1_000);
/// The pause after a count, in relation to its duration.
const PAUSE_FACTOR: u64 = 9;

/// Who asks, and what for.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) session: SessionId,
    pub(super) corr: u64,
    pub(super) about: About,
}

/// What is to be told of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// The sums over all partitions.
    Status,
    /// Each partition, and the clients.
    Broker,
}

/// The counting of partitions.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// Who waits for the next count.
    waiting: Vec<Asker>,
    /// Whether the shell waits for it, too.
    wants_stored: bool,
    /// The count under way.
    current: Option<CountingRun>,
    /// Number of the latest count: late answers to earlier ones are ignored.
    number: u64,
    /// When the next count may begin, monotonic ms.
    next_at: u64,
}

/// One count of the partitions.
#[derive(Debug)]
pub(super) struct CountingRun {
    pub(super) askers: Vec<Asker>,
    /// Whether the shell has asked what the store holds.
    pub(super) wants_stored: bool,
    began: u64,
    /// Partitions that have not been asked.
    left: VecDeque<PartitionId>,
    /// Partitions that were asked and have not answered.
    asked: Vec<PartitionId>,
    pub(super) rows: Vec<CountedPartition>,
}

/// One partition of a count.
#[derive(Debug)]
pub(super) struct CountedPartition {
    pub(super) view: PartitionView,
    /// `None`: the partition cannot be reached.
    pub(super) census: Option<Census>,
}

impl Counting {
    /// Has the next count answer somebody.
    pub(super) fn ask(&mut self, asker: Asker) {
        self.waiting.push(asker);
    }

    /// When the next count is to begin, monotonic ms, if anybody waits for it.
    pub(super) fn next(&self) -> Option<u64> {
        let is_wanted = !self.waiting.is_empty() || self.wants_stored;
        (self.current.is_none() && is_wanted).then_some(self.next_at)
    }

    /// Tells the shell what the store holds, after the next count.
    pub(super) fn want_stored(&mut self) {
        self.wants_stored = true;
    }

    /// Whether somebody other than the shell waits for the count under way.
    pub(super) fn has_askers(&self) -> bool {
        self.current.as_ref().is_some_and(|count| !count.askers.is_empty())
    }

    /// Begins a count of these partitions if it is time.
    pub(super) fn begin_if_due(&mut self, mono_ms: u64, partitions: impl Iterator<Item = PartitionId>) {
        if self.next().is_some_and(|at| at <= mono_ms) {
            self.number += 1;
            self.current = Some(CountingRun {
                askers: std::mem::take(&mut self.waiting),
                wants_stored: std::mem::take(&mut self.wants_stored),
                began: mono_ms,
                left: partitions.collect(),
                asked: Vec::new(),
                rows: Vec::new(),
            });
        }
    }

    /// The partitions that were asked and have not answered.
    pub(super) fn asked(&self) -> Vec<PartitionId> {
        self.current.as_ref().map(|count| count.asked.clone()).unwrap_or_default()
    }

    /// The next partition to ask, as long as fewer than [`PARTITIONS_AT_ONCE`] have to answer.
    pub(super) fn next_partition(&mut self) -> Option<PartitionId> {
        let count = self.current.as_mut().filter(|count| count.asked.len() < PARTITIONS_AT_ONCE)?;
        count.left.pop_front()
    }

    /// Takes up what memory knows of a partition. If the partition is reachable the store is being
    /// asked about it; returns the number of the count, which the answer has to name.
    pub(super) fn add(&mut self, view: PartitionView) -> u64 {
        if let Some(count) = &mut self.current {
            if view.reachable {
                count.asked.push(view.partition);
            }
            count.rows.push(CountedPartition { view, census: None });
        }
        self.number
    }

    /// Notes that a partition was lost before it has answered.
    pub(super) fn lost(&mut self, at: PartitionId) {
        self.answered(self.number, at, None);
    }

    /// Takes what the store has of one partition; `None`: it cannot be reached any more.
    pub(super) fn answered(&mut self, number: u64, at: PartitionId, census: Option<Census>) {
        if number == self.number
            && let Some(count) = &mut self.current
        {
            count.note(at, census);
        }
    }

    /// Ends the count if all partitions have answered.
    pub(super) fn finish(&mut self, mono_ms: u64) -> Option<CountingRun> {
        let count = self.current.take_if(|count| count.left.is_empty() && count.asked.is_empty())?;
        let took = mono_ms.saturating_sub(count.began);
        self.next_at = mono_ms + (took * PAUSE_FACTOR).clamp(PAUSE_MS.0, PAUSE_MS.1);
        Some(count)
    }
}

impl CountingRun {
    /// Whether somebody has asked for this.
    pub(super) fn is_wanted(&self, about: About) -> bool {
        self.askers.iter().any(|asker| asker.about == about)
    }

    fn note(&mut self, at: PartitionId, census: Option<Census>) {
        self.asked.retain(|asked| *asked != at);
        if let Some(row) = self.rows.iter_mut().find(|row| row.view.partition == at) {
            row.note(census);
        }
    }
}

impl CountedPartition {
    fn note(&mut self, census: Option<Census>) {
        match census {
            Some(c) => {
                self.view.pending = c.pending;
                self.view.retrying = c.retrying;
                self.view.parked = c.parked;
                self.view.taken = c.taken;
                self.view.dead = c.dead;
                self.view.overdue += c.parked;
            }
            None => self.view.reachable = false,
        }
        self.census = census;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(counting: &mut Counting, corr: u64) {
        counting.ask(Asker { session: SessionId(1), corr, about: About::Status });
    }

    fn partitions(n: u16) -> impl Iterator<Item = PartitionId> {
        (0..n).map(PartitionId)
    }

    /// Asks as many partitions as may be asked now; returns the number of the count.
    fn ask_partitions(counting: &mut Counting) -> u64 {
        while let Some(partition) = counting.next_partition() {
            counting.add(PartitionView { partition, reachable: true, ..PartitionView::default() });
        }
        counting.number
    }

    fn corrs(count: &CountingRun) -> Vec<u64> {
        count.askers.iter().map(|asker| asker.corr).collect()
    }

    #[test]
    fn a_few_partitions_are_asked_at_a_time_and_all_of_them_in_the_end() {
        let mut counting = Counting::default();
        asking(&mut counting, 1);
        counting.begin_if_due(0, partitions(10));
        let mut answered = Vec::new();
        while counting.finish(5).is_none() {
            let number = ask_partitions(&mut counting);
            let asked = counting.asked();
            assert!((1..=PARTITIONS_AT_ONCE).contains(&asked.len()), "{asked:?}");
            counting.answered(number, asked[0], Some(Census::default()));
            answered.push(asked[0]);
        }
        answered.sort_unstable();
        assert!(answered.into_iter().eq(partitions(10)));
    }

    #[test]
    fn who_asks_during_a_count_waits_for_the_next() {
        let mut counting = Counting::default();
        asking(&mut counting, 1);
        counting.begin_if_due(0, partitions(1));
        let number = ask_partitions(&mut counting);
        asking(&mut counting, 2);
        counting.begin_if_due(10, partitions(1));
        assert_eq!(counting.next(), None, "one count is under way");
        counting.answered(number, PartitionId(0), Some(Census::default()));
        assert_eq!(corrs(&counting.finish(10).unwrap()), [1]);
        counting.begin_if_due(10_000, partitions(0));
        assert_eq!(corrs(&counting.finish(10_000).unwrap()), [2]);
    }

    #[test]
    fn the_pause_is_nine_times_the_count_within_bounds() {
        for (took, pause) in [(0, 50), (10, 90), (1_000, 1_000)] {
            let mut counting = Counting::default();
            asking(&mut counting, 1);
            counting.begin_if_due(0, partitions(0));
            assert!(counting.finish(took).is_some());
            asking(&mut counting, 2);
            assert_eq!(counting.next(), Some(took + pause));
            counting.begin_if_due(took + pause - 1, partitions(0));
            assert!(counting.finish(took + pause - 1).is_none(), "it is too early");
        }
    }

    #[test]
    fn an_answer_to_an_earlier_count_is_ignored() {
        let mut counting = Counting::default();
        asking(&mut counting, 1);
        counting.begin_if_due(0, partitions(1));
        let old = ask_partitions(&mut counting);
        counting.lost(PartitionId(0));
        let first = counting.finish(0).unwrap();
        assert!(!first.rows[0].view.reachable && first.rows[0].census.is_none());
        asking(&mut counting, 2);
        counting.begin_if_due(1_000, partitions(1));
        let new = ask_partitions(&mut counting);
        counting.answered(old, PartitionId(0), Some(Census { pending: 7, ..Census::default() }));
        assert!(counting.finish(1_000).is_none());
        counting.answered(new, PartitionId(0), Some(Census { pending: 8, ..Census::default() }));
        assert_eq!(counting.finish(1_000).unwrap().rows[0].view.pending, 8);
    }
}
