//! The owner's log: the last writes, in order, to be applied again if the store loses them.
//!
//! Every apply is a log record: it belongs to the sequence number that it raises the owner record
//! to. A failover of Redis, or a restart from its append-only file, loses a suffix of the applied
//! writes and nothing else, so the records above the stored number are the lost ones.
//!
//! Invariant: the records follow one another: each starts at the sequence number to which the one
//! before it leads.
//!
//! Not in here: applying them; when they are safe ([`super::trim`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

use mtimer_types::PartitionId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::incidents::Incidents;
use super::writes::Writes;

/// One apply: the writes with which the owner record's sequence number went from `seq` to `next`.
#[derive(Clone, Debug)]
pub(crate) struct LogRecord {
    /// The number that must be stored before.
    pub(crate) seq: u64,
    /// The number that is stored afterwards.
    pub(crate) next: u64,
    /// The writes. Their content never changes.
    pub(crate) writes: Arc<Writes>,
}

/// The state of a store's logs, from which it applies lost writes again after a failover or a
/// restart of Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogStatus {
    /// Bytes that the logs of all partitions hold.
    pub bytes: usize,
    /// Writes that were dropped for want of memory before they were safe, since the store was
    /// opened.
    pub dropped: u64,
    /// Writes that the store had lost and that were applied again, since it was opened.
    pub replayed: u64,
    /// Slots with timers that the store had lost when they were read, since it was opened.
    pub lost_slots: u64,
    /// Since when answered writes may be lost: some of the dropped writes, or of the acquisitions,
    /// are not known to be safe; the master lacks writes that are not applied again yet; or
    /// Sentinels are not heard, which may have replaced the master.
    pub at_risk_since: Option<SystemTime>,
}

/// State shared by the logs of all partitions of a store: their memory, and their counters, gaps
/// and incidents.
#[derive(Debug)]
pub(crate) struct LogBudget {
    limit: usize,
    used: AtomicUsize,
    replayed: AtomicU64,
    incidents: Incidents,
    gaps: Mutex<Gaps>,
}

/// The gaps in the logs.
#[derive(Default, Debug)]
struct Gaps {
    /// Records that were dropped for want of memory.
    dropped: u64,
    /// Logs that have a gap ([`Records::gap`]), logs whose master lacks writes, and 1 if Sentinels
    /// are not heard.
    open: usize,
    /// Sentinels are not heard.
    is_unsure: bool,
    /// Since when there are any.
    since: Option<SystemTime>,
    /// It was logged since then that the logs are full.
    is_full_logged: bool,
}

impl Gaps {
    fn open(&mut self) {
        self.open += 1;
        self.since.get_or_insert_with(SystemTime::now);
    }
}

impl LogBudget {
    /// `limit` in bytes; 0: nothing is kept.
    pub(crate) fn new(limit: usize) -> Self {
        let (replayed, incidents, gaps) = Default::default();
        Self { limit, used: AtomicUsize::new(0), replayed, incidents, gaps }
    }

    /// See [`LogStatus`].
    pub(crate) fn status(&self) -> LogStatus {
        let gaps = self.gaps();
        let bytes = self.used.load(Ordering::Relaxed);
        let replayed = self.replayed.load(Ordering::Relaxed);
        let lost_slots = self.incidents.lost_slots();
        LogStatus { bytes, dropped: gaps.dropped, replayed, lost_slots, at_risk_since: gaps.since }
    }

    fn gaps(&self) -> MutexGuard<'_, Gaps> {
        self.gaps.lock()
    }

    fn is_exceeded(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit
    }

    /// A record was dropped; `opens`: its log has had no gap.
    fn dropped(&self, opens: bool) {
        let mut gaps = self.gaps();
        gaps.dropped += 1;
        if opens {
            gaps.open();
        }
        if !std::mem::replace(&mut gaps.is_full_logged, true) {
            tracing::error!(
                limit = self.limit,
                "the log is full and drops writes that replicas or the append-only file may not have yet: a failover \
                 of Redis can lose what was answered (raise redis-write-log, or see why replicas lag)"
            );
        }
    }

    /// Replicas may lack an acquisition. Logged for the first partition only.
    fn acquisition_at_risk(&self, partition: PartitionId) {
        let mut gaps = self.gaps();
        if gaps.open == 0 {
            tracing::warn!(
                partition = partition.0,
                "replicas may lack the acquisition of this partition, and of others: until they have it, a failover \
                 of Redis can lose what is answered (see why replicas lag)"
            );
        }
        gaps.open();
    }

    /// Sentinels may have replaced the master without being heard, or are heard again.
    pub(crate) fn set_unsure(&self, is_unsure: bool) {
        let mut gaps = self.gaps();
        if self.limit == 0 || gaps.is_unsure == is_unsure {
            return;
        }
        gaps.is_unsure = is_unsure;
        if is_unsure {
            gaps.open();
            drop(gaps);
            tracing::warn!(
                "half of the Sentinels or more do not answer: if they have replaced the master, what it answers now is \
                 lost (see whether this host reaches them)"
            );
        } else {
            drop(gaps);
            self.closed(false);
            tracing::info!("most of the Sentinels answer again");
        }
    }

    /// The master of a partition lacks writes; they are applied again.
    fn fell_behind(&self) {
        self.gaps().open();
    }

    /// A log has no gap any more: the missing records are safe, or its partition was given up.
    fn closed(&self, is_safe: bool) {
        let mut gaps = self.gaps();
        gaps.open -= 1;
        if gaps.open == 0 {
            *gaps = Gaps { dropped: gaps.dropped, is_unsure: gaps.is_unsure, ..Gaps::default() };
            if is_safe {
                tracing::info!("all that the log lacks is safe: a failover of Redis loses nothing again");
            }
        }
    }
}

/// See the module. Shared by the writer, which appends, and the trimmer, which finds out which
/// records are safe.
#[derive(Debug)]
pub(crate) struct Log {
    budget: Arc<LogBudget>,
    records: Mutex<Records>,
    grown: Notify,
    behind: Notify,
}

#[derive(Default, Debug)]
struct Records {
    queue: VecDeque<Kept>,
    /// The last record that was dropped for want of memory, until it is safe: the number to which
    /// it led, and when it was applied. If the acquisition is not known to be safe: 0, and when
    /// that was noted.
    gap: Option<(u64, Instant)>,
    /// Records are being applied again: how old they are says nothing.
    is_replaying: bool,
    /// The master lacks writes, which are not applied again yet.
    is_behind: bool,
}

#[derive(Debug)]
struct Kept {
    record: LogRecord,
    /// When it was last applied.
    applied: Instant,
}

impl Log {
    pub(crate) fn new(budget: Arc<LogBudget>) -> Self {
        let (records, grown, behind) = Default::default();
        Self { budget, records, grown, behind }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }

    /// Log lines about events of many partitions.
    pub(crate) fn incidents(&self) -> &Incidents {
        &self.budget.incidents
    }

    /// Appends an applied write. Beyond the budget the oldest records of this log go.
    pub(crate) fn push(&self, record: LogRecord) {
        if self.budget.limit == 0 {
            return;
        }
        let mut records = self.records();
        self.budget.used.fetch_add(record.writes.size(), Ordering::Relaxed);
        records.queue.push_back(Kept { record, applied: Instant::now() });
        while self.budget.is_exceeded()
            && let Some(Kept { record, applied }) = self.pop(&mut records)
        {
            let before = records.gap.replace((record.next, applied));
            self.budget.dropped(before.is_none());
        }
        drop(records);
        self.grown.notify_one();
    }

    /// The acquisition is not known to be safe: until it is, the log does not suffice.
    pub(crate) fn set_acquisition_at_risk(&self, partition: PartitionId) {
        if self.budget.limit == 0 {
            return;
        }
        let before = self.records().gap.replace((0, Instant::now()));
        debug_assert!(before.is_none(), "nothing is written before");
        self.budget.acquisition_at_risk(partition);
        self.grown.notify_one();
    }

    /// Drops the records up to and including the one that led to `seq`, if they were applied at
    /// `until` or before: no failover can lose them any more.
    pub(crate) fn trim(&self, seq: u64, until: Instant) {
        let mut records = self.records();
        if records.is_replaying {
            return;
        }
        let is_safe = |next: u64, applied: Instant| next <= seq && applied <= until;
        if records.gap.is_some_and(|(next, applied)| is_safe(next, applied)) {
            records.gap = None;
            self.budget.closed(true);
        }
        while records.queue.front().is_some_and(|kept| is_safe(kept.record.next, kept.applied)) {
            self.pop(&mut records);
        }
    }

    /// Whether every write, and the acquisition, is safe. Always true while the log is off (limit
    /// 0).
    pub(crate) fn is_empty(&self) -> bool {
        let records = self.records();
        records.queue.is_empty() && records.gap.is_none()
    }

    /// Waits until there is something that is not safe.
    pub(crate) async fn grown(&self) {
        while self.is_empty() {
            self.grown.notified().await;
        }
    }

    /// The number to which the last record led. `None`: it is safe.
    pub(crate) fn last(&self) -> Option<u64> {
        self.records().queue.back().map(|kept| kept.record.next)
    }

    /// The master was found without the last records. Until it has them again, answered writes are
    /// at risk.
    pub(crate) fn set_lost(&self) {
        if !std::mem::replace(&mut self.records().is_behind, true) {
            self.budget.fell_behind();
        }
        self.set_behind();
    }

    /// Tells the owner that the store has lost records.
    pub(crate) fn set_behind(&self) {
        self.behind.notify_one();
    }

    /// Waits until the store is found to have lost records.
    pub(crate) async fn behind(&self) {
        self.behind.notified().await;
    }

    /// The records to apply again to a store that has fallen back to `seq`. `None`: the log does
    /// not reach back so far. Nothing is trimmed until they are applied ([`Self::finish_replay`]).
    pub(crate) fn begin_replay(&self, seq: u64) -> Option<Vec<LogRecord>> {
        let mut records = self.records();
        let from = records.queue.iter().position(|kept| kept.record.seq == seq)?;
        records.is_replaying = true;
        Some(records.queue.range(from..).map(|kept| kept.record.clone()).collect())
    }

    /// A write that the store had lost is there again.
    pub(crate) fn count_replayed(&self) {
        self.budget.replayed.fetch_add(1, Ordering::Relaxed);
    }

    /// The store has everything again, since now.
    pub(crate) fn finish_replay(&self) {
        let mut records = self.records();
        records.is_replaying = false;
        if std::mem::take(&mut records.is_behind) {
            self.budget.closed(false);
        }
        let now = Instant::now();
        records.queue.iter_mut().for_each(|kept| kept.applied = now);
    }

    fn pop(&self, records: &mut Records) -> Option<Kept> {
        let kept = records.queue.pop_front()?;
        self.budget.used.fetch_sub(kept.record.writes.size(), Ordering::Relaxed);
        Some(kept)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let mut records = std::mem::take(&mut *self.records());
        while self.pop(&mut records).is_some() {}
        if records.gap.is_some() {
            self.budget.closed(false);
        }
        if records.is_behind {
            self.budget.closed(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(seq: u64) -> LogRecord {
        LogRecord { seq, next: seq + 1, writes: Arc::default() }
    }

    fn log(records: usize) -> Log {
        let size = Writes::default().size();
        let log = Log::new(Arc::new(LogBudget::new(records * size)));
        (1..=4).for_each(|seq| log.push(record(seq)));
        log
    }

    fn numbers(log: &Log, seq: u64) -> Option<Vec<u64>> {
        let numbers = log.begin_replay(seq).map(|records| records.iter().map(|record| record.seq).collect());
        log.finish_replay();
        numbers
    }

    #[test]
    fn what_was_lost_is_what_follows_the_stored_number() {
        let log = log(10);
        assert_eq!(numbers(&log, 3), Some(vec![3, 4]));
        log.trim(3, Instant::now());
        assert_eq!((numbers(&log, 2), numbers(&log, 3)), (None, Some(vec![3, 4])));
        log.trim(5, Instant::now());
        assert!(log.is_empty());
    }

    #[test]
    fn the_promise_is_off_until_what_was_dropped_for_want_of_memory_is_safe() {
        let log = log(2);
        assert_eq!((numbers(&log, 2), numbers(&log, 3)), (None, Some(vec![3, 4])));
        let budget = log.budget.clone();
        let status = budget.status();
        assert!(status.dropped == 2 && status.at_risk_since.is_some() && status.bytes > 0, "{status:?}");
        log.trim(2, Instant::now());
        assert_eq!(budget.status(), status, "3 was dropped, too");
        log.trim(3, Instant::now());
        assert_eq!(budget.status(), LogStatus { at_risk_since: None, ..status });
        log.push(record(5));
        assert!(budget.status().at_risk_since.is_some());
        drop(log);
        assert_eq!(
            budget.status(),
            LogStatus { bytes: 0, dropped: 3, replayed: 0, lost_slots: 0, at_risk_since: None }
        );
    }

    #[test]
    fn the_promise_is_off_until_the_acquisition_is_safe() {
        let log = Log::new(Arc::new(LogBudget::new(usize::MAX)));
        let budget = log.budget.clone();
        let is_at_risk = || budget.status().at_risk_since.is_some();
        let before = Instant::now();
        log.set_acquisition_at_risk(PartitionId(2));
        assert!(is_at_risk() && !log.is_empty());
        log.trim(0, before.checked_sub(Duration::from_secs(1)).unwrap());
        assert!(is_at_risk(), "what was safe before says nothing");
        log.trim(0, Instant::now());
        assert!(!is_at_risk() && log.is_empty());
        log.set_acquisition_at_risk(PartitionId(2));
        drop(log);
        assert!(!is_at_risk());
        let off = Log::new(Arc::new(LogBudget::new(0)));
        off.set_acquisition_at_risk(PartitionId(2));
        assert!(off.is_empty());
    }

    #[test]
    fn what_the_master_lacks_is_at_risk_until_it_is_applied_again() {
        let log = log(10);
        let is_at_risk = || log.budget.status().at_risk_since.is_some();
        log.set_lost();
        log.set_lost();
        assert!(is_at_risk() && log.begin_replay(3).is_some() && is_at_risk());
        log.finish_replay();
        assert!(!is_at_risk());
        log.set_lost();
        let budget = log.budget.clone();
        drop(log);
        assert_eq!(budget.status().at_risk_since, None);
    }

    #[test]
    fn everything_is_at_risk_while_sentinels_are_not_heard() {
        let log = log(10);
        let is_at_risk = || log.budget.status().at_risk_since.is_some();
        log.budget.set_unsure(true);
        log.budget.set_unsure(true);
        assert!(is_at_risk());
        log.set_lost();
        log.budget.set_unsure(false);
        assert!(is_at_risk());
        log.finish_replay();
        assert!(!is_at_risk());
    }

    #[test]
    fn a_log_that_lacks_its_acquisition_and_drops_records_has_one_gap() {
        let size = Writes::default().size();
        let log = Log::new(Arc::new(LogBudget::new(size)));
        log.set_acquisition_at_risk(PartitionId(2));
        (0..3).for_each(|seq| log.push(record(seq)));
        let is_at_risk = || log.budget.status().at_risk_since.is_some();
        log.trim(1, Instant::now());
        assert!(is_at_risk(), "the second record was dropped, too");
        log.trim(2, Instant::now());
        assert!(!is_at_risk());
    }

    #[tokio::test(start_paused = true)]
    async fn age_counts_from_when_a_record_was_last_applied() {
        let log = log(10);
        let applied = Instant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(log.begin_replay(2).map(|records| records.len()), Some(3));
        log.trim(5, applied);
        assert_eq!(log.last(), Some(5), "trimmed while its records are applied again");
        log.count_replayed();
        assert_eq!(log.budget.status().replayed, 1);
        log.finish_replay();
        log.trim(5, applied);
        assert_eq!(log.last(), Some(5), "trimmed for its age before the store lost it");
        log.trim(5, Instant::now());
        assert!(log.is_empty());
    }

    #[test]
    fn without_memory_nothing_is_kept_or_promised() {
        let log = log(0);
        assert!(log.is_empty());
        assert_eq!(
            log.budget.status(),
            LogStatus { bytes: 0, dropped: 0, replayed: 0, lost_slots: 0, at_risk_since: None }
        );
    }
}
