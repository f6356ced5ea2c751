//! The figures that an engine shows to its operators: tallies by kind, and the state of memory and
//! destinations.
//!
//! Purpose: numbers for metrics. A tally is counted as things happen, into arrays of fixed size;
//! the rest is read when it is asked for ([`Engine::figures`](crate::Engine::figures)).
//! Invariant: counting allocates nothing, and no number decides anything.
//! Not in here: names of metrics, how they are written out.

use std::collections::BTreeMap;

use mtimer_protocol::ops::NotDone;
use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_types::headers::TRACEPARENT;
use mtimer_types::limits::MAX_RETRY_TIERS;
use mtimer_types::{AttemptEnd, Bulk, BulkId, DeadReason, Destination, Headers, Time, TraceContext};

/// Upper bounds of the buckets of [`Durations`], ms, each inclusive. One more bucket has the longer
/// ones.
pub const BUCKETS_MS: [u64; 16] =
    [1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000, 3_600_000];

/// A histogram of durations with the bounds of [`BUCKETS_MS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Durations {
    /// How many are in each bucket (not in those below it, too).
    pub buckets: [u64; BUCKETS_MS.len() + 1],
    /// Sum of all, µs.
    pub sum_us: u64,
}

impl Durations {
    /// Adds one duration, in whole ms.
    pub fn add_ms(&mut self, ms: u64) {
        self.buckets[bucket_of(ms)] += 1;
        self.sum_us = self.sum_us.saturating_add(ms.saturating_mul(1_000));
    }

    /// Adds one duration, in µs.
    pub fn add_us(&mut self, us: u64) {
        self.buckets[BUCKETS_MS.partition_point(|bound| bound * 1_000 < us)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// A timer of a trace that is recorded, as an example of those in one bucket of [`Durations`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exemplar {
    /// The trace.
    pub trace: u128,
    /// The duration, ms.
    pub ms: u64,
    /// When it ended.
    pub at: Time,
}

/// The latest exemplar of each bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exemplars {
    /// As [`Durations::buckets`].
    pub buckets: [Option<Exemplar>; BUCKETS_MS.len() + 1],
}

impl Exemplars {
    /// Notes a duration of a timer with these headers, if it belongs to a trace that is recorded.
    pub(crate) fn note(&mut self, headers: &Headers, ms: u64, at: Time) {
        if headers.is_empty() {
            return;
        }
        let context = headers.get(TRACEPARENT).and_then(TraceContext::parse);
        if let Some(TraceContext { trace, .. }) = context.filter(TraceContext::is_sampled) {
            self.buckets[bucket_of(ms)] = Some(Exemplar { trace, ms, at });
        }
    }
}

/// The bucket of so many whole ms.
fn bucket_of(ms: u64) -> usize {
    BUCKETS_MS.partition_point(|bound| *bound < ms)
}

/// Why a timer was, or will be, delivered again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum RedeliveryCause {
    /// The handler asked for it.
    Handler,
    /// No outcome came within the callback timeout.
    Timeout,
    /// The client's connection was lost.
    ConnectionLost,
    /// A former owner of the partition may have sent it.
    Takeover,
    /// The client had no free handler and gave it back.
    NotBegun,
    /// The handler answered later.
    Later,
}

impl RedeliveryCause {
    /// Why there is another attempt after one that has ended like this.
    pub const fn after(end: AttemptEnd) -> Self {
        match end {
            AttemptEnd::Retry | AttemptEnd::Fail | AttemptEnd::Unknown => Self::Handler,
            AttemptEnd::TimedOut => Self::Timeout,
            AttemptEnd::ConnectionLost => Self::ConnectionLost,
            AttemptEnd::NotBegun => Self::NotBegun,
            AttemptEnd::Later => Self::Later,
        }
    }

    /// All of them, by name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Handler, "handler"),
        (Self::Timeout, "timeout"),
        (Self::ConnectionLost, "connection_lost"),
        (Self::Takeover, "takeover"),
        (Self::NotBegun, "not_begun"),
        (Self::Later, "later"),
    ];
}

/// Reasons of dead letters, by name.
pub const DEAD_REASONS: [(DeadReason, &str); 4] = [
    (DeadReason::Exhausted, "exhausted"),
    (DeadReason::Failed, "failed"),
    (DeadReason::Stopped, "stopped"),
    (DeadReason::AtMostOnce, "at_most_once"),
];

/// Why operations of clients were not done, in the order of [`Tallies::refusals`].
pub const REFUSALS: [&str; 16] = [
    "invalid",
    "unauthorized",
    "version",
    "not_owner",
    "unavailable",
    "store_full",
    "overloaded",
    "unknown",
    "not_replicated",
    "protocol",
    "stopping",
    "key_taken",
    "conflict",
    "ended",
    "moved",
    "limit_reached",
];

/// Counts by kind since the start.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    /// From due to the first delivery.
    pub sent_after: Durations,
    /// The same of timers that have waited for the end of a pause, since that.
    pub sent_after_pause: Durations,
    /// Timers of traces, of these.
    pub sent_after_of: Exemplars,
    /// From due until the store has the acknowledgement, retries included.
    pub acknowledged_after: Durations,
    /// Retries that the store has, by tier; the first of them is tier 1.
    pub retries: [u64; MAX_RETRY_TIERS],
    /// Dead letters, in the order of [`DEAD_REASONS`].
    pub dead: [u64; DEAD_REASONS.len()],
    /// In the order of [`RedeliveryCause::ALL`].
    pub redeliveries: [u64; RedeliveryCause::ALL.len()],
    /// In the order of [`REFUSALS`].
    pub refusals: [u64; REFUSALS.len()],
}

impl Tallies {
    pub(crate) fn redelivery(&mut self, cause: RedeliveryCause) {
        self.redeliveries[cause as usize] += 1;
    }

    /// `tier`: 1 for the first retry.
    pub(crate) fn retry(&mut self, tier: u8) {
        if let Some(n) = self.retries.get_mut(usize::from(tier.saturating_sub(1))) {
            *n += 1;
        }
    }

    pub(crate) fn died(&mut self, reason: DeadReason) {
        self.dead[reason as usize] += 1;
    }

    /// Counts an answer to an operation if that was not done.
    pub(crate) fn replied(&mut self, reply: &OpReply) {
        let refusal = match reply.not_done() {
            Some(NotDone::Failed(code)) => match code {
                ErrorCode::Invalid => 0,
                ErrorCode::Unauthorized => 1,
                ErrorCode::Version => 2,
                ErrorCode::NotOwner => 3,
                ErrorCode::Unavailable => 4,
                ErrorCode::StoreFull => 5,
                ErrorCode::Overloaded => 6,
                ErrorCode::Unknown => 7,
                ErrorCode::NotReplicated => 8,
                ErrorCode::Protocol => 9,
                ErrorCode::Stopping => 10,
                ErrorCode::LimitReached => 15,
            },
            Some(NotDone::KeyTaken) => 11,
            Some(NotDone::Conflict) => 12,
            Some(NotDone::Ended) => 13,
            Some(NotDone::Moved) => 14,
            None => return,
        };
        self.refusals[refusal] += 1;
    }
}

/// The backlog of one destination, or of several together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// Timers in memory, and parked ones: those due within the preload window, and those due
    /// earlier that have not ended.
    pub pending: u64,
    /// Due, and neither delivered nor parked.
    pub waiting: u64,
    /// Parked: due, and nobody takes them. About.
    pub parked: u64,
    /// Delivered and not settled, by credit in use.
    pub in_flight: u64,
    /// Registrations of sessions.
    pub sessions: u64,
    /// Failed attempts since this broker stored the last acknowledgement.
    pub failures: u64,
    /// When the oldest that waits or is parked was due, if neither a pause nor limits hold it back;
    /// of those that a former owner has parked, not before this broker took the partition over or
    /// read them.
    pub oldest: Option<Time>,
    /// The same of a destination that is paused.
    pub oldest_paused: Option<Time>,
    /// The same of one that is held back by its limits alone.
    pub oldest_limited: Option<Time>,
    /// It is paused. Of several together: so many are.
    pub paused: u64,
    /// Its limits alone hold back what is due. Of several together: those of so many do.
    pub limited: u64,
}

impl Backlog {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.pending += other.pending;
        self.waiting += other.waiting;
        self.parked += other.parked;
        self.in_flight += other.in_flight;
        self.sessions += other.sessions;
        self.failures += other.failures;
        let older = |a: Option<Time>, b: Option<Time>| [a, b].into_iter().flatten().min();
        self.oldest = older(self.oldest, other.oldest);
        self.oldest_paused = older(self.oldest_paused, other.oldest_paused);
        self.oldest_limited = older(self.oldest_limited, other.oldest_limited);
        self.paused += other.paused;
        self.limited += other.limited;
    }
}

/// A bulk job, as far as the partitions of this broker know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkFigure {
    /// What it does.
    pub bulk: Bulk,
    /// Partitions in which it is at work or waits.
    pub under_way: u64,
    /// When it has ended last in one of the others.
    pub ended: Option<Time>,
    /// Somebody has stopped it in one of them.
    pub is_stopped: bool,
}

/// An engine's state in numbers.
#[derive(Clone, Debug)]
pub struct Figures {
    /// By kind.
    pub tallies: Tallies,
    /// Counters since the start, in the order of [`Counter::ALL`](crate::Counter::ALL).
    pub counters: Vec<u64>,
    /// Partitions that are owned.
    pub partitions: u64,
    /// Timers in memory, and their bytes.
    pub memory: (u64, u64),
    /// Budget of those bytes.
    pub memory_budget: u64,
    /// Deliveries and settlements under way.
    pub unsettled: u64,
    /// Operations that wait for a batch, or for their turn at a key.
    pub queued: u64,
    /// Operations of the owner's own that the store does not take for now.
    pub put_off: u64,
    /// Destinations that are paused, as far as this broker knows: also those without timers here.
    pub paused: u64,
    /// Bulk jobs that are kept, by their names.
    pub bulks: BTreeMap<BulkId, BulkFigure>,
    /// The destinations with the most pending timers and failed attempts, most first.
    pub top: Vec<(Destination, Backlog)>,
    /// All others together, and how many they are.
    pub others: (Backlog, u64),
}

impl Figures {
    /// Partitions in which a bulk job is at work or waits, once for each job.
    pub fn bulk_partitions(&self) -> u64 {
        self.bulks.values().map(|bulk| bulk.under_way).sum()
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::ops::{ReplayReply, ScheduleReply};

    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut durations = Durations::default();
        [0, 1, 2, 3, 3_600_000, 3_600_001].into_iter().for_each(|ms| durations.add_ms(ms));
        let mut expected = [0; BUCKETS_MS.len() + 1];
        (expected[0], expected[1], expected[2], expected[15], expected[16]) = (2, 1, 1, 1, 1);
        assert_eq!(durations.buckets, expected);
        assert_eq!((durations.count(), durations.sum_us), (6, 7_200_007_000));
        let mut fine = Durations::default();
        [1_000, 1_001].into_iter().for_each(|us| fine.add_us(us));
        assert_eq!((fine.buckets[0], fine.buckets[1], fine.sum_us), (1, 1, 2_001));
    }

    #[test]
    fn kinds_are_counted_where_their_names_are() {
        let mut tallies = Tallies::default();
        for (n, (reason, _)) in DEAD_REASONS.into_iter().enumerate() {
            tallies.died(reason);
            assert_eq!(tallies.dead[n], 1);
        }
        for (n, (cause, _)) in RedeliveryCause::ALL.into_iter().enumerate() {
            tallies.redelivery(cause);
            assert_eq!(tallies.redeliveries[n], 1);
        }
        let named = |tallies: &Tallies, name| {
            REFUSALS.iter().position(|refusal| *refusal == name).map(|n| tallies.refusals[n])
        };
        let failed = |code| OpReply::Failed { code, message: String::new() };
        tallies.replied(&failed(ErrorCode::StoreFull));
        tallies.replied(&failed(ErrorCode::Stopping));
        tallies.replied(&failed(ErrorCode::LimitReached));
        tallies.replied(&ScheduleReply::Conflict.into());
        tallies.replied(&ReplayReply::NotFound.into());
        for name in ["store_full", "stopping", "conflict", "limit_reached"] {
            assert_eq!(named(&tallies, name), Some(1), "{name}");
        }
        assert_eq!(tallies.refusals.iter().sum::<u64>(), 4);
        tallies.retry(1);
        tallies.retry(MAX_RETRY_TIERS as u8);
        tallies.retry(u8::MAX);
        assert_eq!((tallies.retries[0], tallies.retries[MAX_RETRY_TIERS - 1]), (1, 1));
    }
}
