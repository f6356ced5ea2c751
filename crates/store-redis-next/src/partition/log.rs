//! The owner's log: the last writes, in order, to be applied again if the store loses them.
//!
//! Every apply is a log record: it belongs to the sequence number that it raises the owner record to. A failover of
//! Redis, or a restart from its append-only file, loses a suffix of what was applied and nothing else, so the records
//! above the stored number are what was lost.
//!
//! Invariant: the records follow one another: each starts at the sequence number to which the one before it leads.
//!
//! Not in here: applying them; when the replicas have a record.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::writes::Writes;

/// One apply: what was written when the owner record's sequence number went from `seq` to `next`.
#[derive(Clone, Debug)]
pub(crate) struct LogRecord {
    /// The number that must be stored before.
    pub(crate) seq: u64,
    /// The number that is stored afterwards.
    pub(crate) next: u64,
    /// What is written. Its content never changes.
    pub(crate) writes: Arc<Writes>,
}

/// The memory that the logs of all partitions of a broker share.
#[derive(Debug)]
pub(crate) struct LogBudget {
    limit: usize,
    used: AtomicUsize,
    /// Records that were dropped for want of memory before the replicas had them.
    dropped: AtomicU64,
}

impl LogBudget {
    /// `limit` in bytes; 0: nothing is kept.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    }

    /// Bytes that all logs hold.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Records that were dropped for want of memory.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Log {
    records: VecDeque<LogRecord>,
    bytes: usize,
    budget: Arc<LogBudget>,
}

impl Log {
    pub(crate) const fn new(budget: Arc<LogBudget>) -> Self {
        Self { records: VecDeque::new(), bytes: 0, budget }
    }

    /// Appends what was applied. Beyond the budget the oldest records of this log go; `true` if any did.
    pub(crate) fn push(&mut self, record: LogRecord) -> bool {
        let size = record.writes.size();
        self.records.push_back(record);
        self.bytes += size;
        self.budget.used.fetch_add(size, Ordering::Relaxed);
        let mut dropped = false;
        while self.budget.used() > self.budget.limit && self.pop() {
            dropped = true;
            self.budget.dropped.fetch_add(1, Ordering::Relaxed);
        }
        dropped
    }

    /// Drops the records up to and including the one that led to `seq`: no failover can lose them any more.
    pub(crate) fn trim(&mut self, seq: u64) {
        while self.records.front().is_some_and(|record| record.next <= seq) {
            self.pop();
        }
    }

    /// Whether a failover could lose nothing that is not in the log's reach: nothing was applied since the last trim.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records to apply again to a store that has fallen back to `seq`. `None`: the log does not reach back so far.
    pub(crate) fn since(&self, seq: u64) -> Option<Vec<LogRecord>> {
        let from = self.records.iter().position(|record| record.seq == seq)?;
        Some(self.records.range(from..).cloned().collect())
    }

    fn pop(&mut self) -> bool {
        let Some(record) = self.records.pop_front() else { return false };
        let size = record.writes.size();
        self.bytes -= size;
        self.budget.used.fetch_sub(size, Ordering::Relaxed);
        true
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64) -> LogRecord {
        LogRecord { seq, next: seq + 1, writes: Arc::default() }
    }

    fn log(records: usize) -> Log {
        let size = Writes::default().size();
        let mut log = Log::new(Arc::new(LogBudget::new(records * size)));
        (1..=4).for_each(|seq| _ = log.push(record(seq)));
        log
    }

    fn numbers(log: &Log, seq: u64) -> Option<Vec<u64>> {
        log.since(seq).map(|records| records.iter().map(|record| record.seq).collect())
    }

    #[test]
    fn what_was_lost_is_what_follows_the_stored_number() {
        let mut log = log(10);
        assert_eq!(numbers(&log, 3), Some(vec![3, 4]));
        log.trim(3);
        assert_eq!((numbers(&log, 2), numbers(&log, 3)), (None, Some(vec![3, 4])));
        log.trim(5);
        assert!(log.is_empty());
    }

    #[test]
    fn the_oldest_records_go_when_memory_is_short_and_that_is_counted() {
        let log = log(2);
        assert_eq!((numbers(&log, 2), numbers(&log, 3)), (None, Some(vec![3, 4])));
        assert_eq!(log.budget.dropped(), 2);
        let budget = log.budget.clone();
        assert!(budget.used() > 0);
        drop(log);
        assert_eq!(budget.used(), 0);
    }
}
