//! The counting of partitions: who has asked for it, and how far it is.
//!
//! Invariants: one count is under way at a time, of at most [`PARTITIONS_AT_ONCE`] partitions at
//! the same time; an answer counts the timers stored when its question came, because a question
//! during a count waits for the next; counting takes about a tenth of the time, however much is
//! asked. A store that does not answer holds nobody up: of its partitions the last count is told,
//! and its age.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mtimer_protocol::PartitionView;
use mtimer_store::Census;
use mtimer_types::PartitionId;

use crate::api::SessionId;

/// Partitions that are counted at the same time: the store has other things to do meanwhile.
const PARTITIONS_AT_ONCE: usize = 4;
/// The least and the most time from a count to the next, ms.
const PAUSE_MS: (u64, u64) = (50, 1_000);
/// How long the store may leave all questions of a count unanswered, ms. Partitions that have not
/// answered by then are not counted.
const SILENT_MS: u64 = 2_000;
/// The pause after a count, in relation to its duration.
const PAUSE_FACTOR: u64 = 9;

/// A question, and the session that asks it.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) session: SessionId,
    pub(super) corr: u64,
    pub(super) about: About,
}

/// The part of a count that an asker wants.
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
    /// The last answer of each partition, and when the count began that it belongs to, monotonic
    /// ms.
    last: BTreeMap<PartitionId, (Census, u64)>,
}

/// One count of the partitions.
#[derive(Debug)]
pub(super) struct CountingRun {
    pub(super) askers: Vec<Asker>,
    /// Whether the shell has asked for the contents of the store.
    pub(super) wants_stored: bool,
    began: u64,
    /// When a partition has answered last, monotonic ms; when none has, the beginning.
    heard_at: u64,
    /// Whether a partition has answered since then.
    is_heard: bool,
    /// Whether the store was silent for too long, and is not asked any more.
    is_given_up: bool,
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
    /// Then its last count, if there was one, and the age of that, ms.
    pub(super) earlier: Option<(Census, u64)>,
}

impl Counting {
    /// Has the next count answer somebody.
    pub(super) fn ask(&mut self, asker: Asker) {
        self.waiting.push(asker);
    }

    /// When the next count is to begin, monotonic ms, if anybody waits for it; during a count, when
    /// the store is given up.
    pub(super) fn next(&self) -> Option<u64> {
        match &self.current {
            Some(count) => Some(count.heard_at + SILENT_MS),
            None => self.is_wanted().then_some(self.next_at),
        }
    }

    fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || self.wants_stored
    }

    /// Tells the shell the contents of the store, after the next count.
    pub(super) fn want_stored(&mut self) {
        self.wants_stored = true;
    }

    /// Whether somebody other than the shell waits for the count under way.
    pub(super) fn has_askers(&self) -> bool {
        self.current.as_ref().is_some_and(|count| !count.askers.is_empty())
    }

    /// Begins a count of these partitions if it is time.
    pub(super) fn begin_if_due(&mut self, mono_ms: u64, partitions: impl Iterator<Item = PartitionId>) {
        if self.current.is_none() && self.is_wanted() && self.next_at <= mono_ms {
            self.number += 1;
            let left: VecDeque<_> = partitions.collect();
            let owned: BTreeSet<_> = left.iter().copied().collect();
            self.last.retain(|at, _| owned.contains(at));
            self.current = Some(CountingRun {
                askers: std::mem::take(&mut self.waiting),
                wants_stored: std::mem::take(&mut self.wants_stored),
                began: mono_ms,
                heard_at: mono_ms,
                is_heard: false,
                is_given_up: false,
                left,
                asked: Vec::new(),
                rows: Vec::new(),
            });
        }
    }

    /// Gives the store up if it has answered nothing for too long.
    pub(super) fn give_up_if_silent(&mut self, mono_ms: u64) {
        let Some(count) = &mut self.current else { return };
        if std::mem::take(&mut count.is_heard) {
            count.heard_at = mono_ms;
        }
        if count.heard_at + SILENT_MS <= mono_ms {
            count.is_given_up = true;
            count.asked.clone().into_iter().for_each(|at| count.note(at, None));
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

    /// Adds a partition's view from memory to the count. Returns the number of the count, which the
    /// answer has to name, if the store is to be asked: if the partition is reachable, and the
    /// store was not given up.
    pub(super) fn add(&mut self, mut view: PartitionView) -> Option<u64> {
        let count = self.current.as_mut()?;
        view.reachable &= !count.is_given_up;
        if view.reachable {
            count.asked.push(view.partition);
        }
        count.rows.push(CountedPartition { view, census: None, earlier: None });
        view.reachable.then_some(self.number)
    }

    /// Notes that a partition was lost before it has answered.
    pub(super) fn lost(&mut self, at: PartitionId) {
        self.answered(self.number, at, None);
    }

    /// Adds the store's census of one partition; `None`: the partition cannot be reached any more.
    pub(super) fn answered(&mut self, number: u64, at: PartitionId, census: Option<Census>) {
        if number == self.number
            && let Some(count) = &mut self.current
            && count.asked.contains(&at)
        {
            // Partitions found away, one after the other, are no sign of the store.
            count.is_heard |= census.is_some();
            count.note(at, census);
            if let Some(census) = census {
                self.last.insert(at, (census, count.began));
            }
        }
    }

    /// Ends the count if all partitions have answered.
    pub(super) fn finish(&mut self, mono_ms: u64) -> Option<CountingRun> {
        let mut count = self.current.take_if(|count| count.left.is_empty() && count.asked.is_empty())?;
        for row in count.rows.iter_mut().filter(|row| row.census.is_none()) {
            let last = self.last.get(&row.view.partition);
            row.earlier = last.map(|(census, at)| (*census, mono_ms.saturating_sub(*at)));
        }
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

    /// Has the only partition counted, beginning at this time.
    fn count_one(counting: &mut Counting, mono_ms: u64, pending: u64) {
        asking(counting, 0);
        counting.begin_if_due(mono_ms, partitions(1));
        let number = ask_partitions(counting);
        counting.answered(number, PartitionId(0), Some(Census { pending, ..Census::default() }));
        assert!(counting.finish(mono_ms).is_some());
    }

    #[test]
    fn of_a_store_that_is_silent_the_last_count_is_told_and_its_age() {
        let mut counting = Counting::default();
        count_one(&mut counting, 0, 7);
        asking(&mut counting, 1);
        counting.begin_if_due(10_000, partitions(9));
        ask_partitions(&mut counting);
        counting.give_up_if_silent(10_000 + SILENT_MS - 1);
        assert!(counting.finish(10_000 + SILENT_MS - 1).is_none(), "it may still answer");
        counting.give_up_if_silent(10_000 + SILENT_MS);
        assert_eq!(ask_partitions(&mut counting), 2);
        let count = counting.finish(10_000 + SILENT_MS).expect("nobody waits any longer");
        assert_eq!(count.rows.len(), 9);
        assert!(count.rows.iter().all(|row| row.census.is_none() && !row.view.reachable));
        let earlier = |row: &CountedPartition| row.earlier.map(|(census, age)| (census.pending, age));
        assert_eq!(earlier(&count.rows[0]), Some((7, 12_000)));
        assert!(count.rows[1..].iter().all(|row| row.earlier.is_none()), "they were never counted");
    }

    #[test]
    fn a_slow_store_is_waited_for_as_long_as_it_answers() {
        let mut counting = Counting::default();
        asking(&mut counting, 1);
        counting.begin_if_due(0, partitions(8));
        let number = ask_partitions(&mut counting);
        for at in 0..8 {
            counting.answered(number, PartitionId(at), Some(Census::default()));
            counting.give_up_if_silent(u64::from(at) * (SILENT_MS - 1));
            ask_partitions(&mut counting);
        }
        let count = counting.finish(8 * SILENT_MS).expect("all have answered");
        assert!(count.rows.iter().all(|row| row.census.is_some()));
    }

    #[test]
    fn a_store_whose_partitions_are_found_away_one_after_the_other_is_given_up_as_soon() {
        let mut counting = Counting::default();
        asking(&mut counting, 1);
        counting.begin_if_due(0, partitions(32));
        for at in 0..4 {
            ask_partitions(&mut counting);
            counting.lost(PartitionId(at));
            counting.give_up_if_silent(u64::from(at) * SILENT_MS / 3);
        }
        ask_partitions(&mut counting);
        let count = counting.finish(SILENT_MS).expect("whoever asks is not kept waiting");
        assert!(count.rows.iter().all(|row| !row.view.reachable));
    }

    #[test]
    fn what_is_not_owned_any_more_is_forgotten() {
        let mut counting = Counting::default();
        count_one(&mut counting, 0, 7);
        for (at, partitions) in [(10_000, 1..2), (20_000, 0..1)] {
            asking(&mut counting, 1);
            counting.begin_if_due(at, partitions.map(PartitionId));
            ask_partitions(&mut counting);
            counting.give_up_if_silent(at + SILENT_MS);
            assert!(counting.finish(at + SILENT_MS).unwrap().rows[0].earlier.is_none());
        }
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
        assert_eq!(counting.next(), Some(SILENT_MS), "one count is under way");
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
