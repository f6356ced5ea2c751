//! Questions about timers, brokers and the cluster, and their answers. None changes a timer.
//!
//! The order of variants and fields is the wire format, see [`crate::message`].

use mtimer_types::limits::{MAX_BULK_FAILURES, MAX_BULK_JOBS, MAX_CONFIGURED_DESTINATIONS, MAX_PAGE};
use mtimer_types::story::MAX_STORY_ATTEMPTS;
use mtimer_types::{
    Attempt, Bulk, BulkFailure, BulkId, DeadReason, Destination, DueSpan, Epoch, Extensions, FailedAttempt,
    Filter, LateCause, Staging, StoredSettings, Target, Time, Timer, TimerId,
};
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::cluster::{BrokerView, ClusterView};
use crate::error::ErrorCode;
use crate::status::Status;

/// Most rows of a page.
const MAX_ROWS: usize = MAX_PAGE as usize;
/// Most destinations with settings: a partition may keep more for a while than there may be.
const MAX_SETTINGS: usize = 2 * MAX_CONFIGURED_DESTINATIONS;
/// Most reasons why a broker is not ready.
const MAX_REASONS: usize = 100;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// One timer, live or dead.
    Get(Target),
    /// Dead letters, oldest first in each partition.
    Dead {
        /// Only of this group.
        group: Option<String>,
        /// Only of this app.
        app: Option<String>,
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// At-most-once timers that were claimed and never confirmed.
    Unconfirmed {
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// The broker's state.
    Status,
    /// The cluster as this broker sees it.
    Cluster,
    /// This broker in detail.
    Broker,
    /// Empties a broker for maintenance, or gives it partitions again. Only the leader does it.
    Drain {
        /// The broker's address, as in the topology.
        broker: String,
        /// Whether to empty it, or to end that.
        drain: bool,
    },
    /// Whether this broker is ready, as its `/readyz` says. Asks neither the store nor others.
    Ready,
    /// Timers of one partition that wait for a delivery, in the order of fire time and id.
    Pending(Box<PendingQuery>),
    /// How many timers each destination has in one partition, in the order of destinations.
    Counts(CountsQuery),
    /// The bulk jobs of one partition, ended ones included.
    Bulks {
        /// The partition.
        partition: u16,
    },
    /// How many timers of one partition are due when.
    Forecast(ForecastQuery),
    /// Parked timers of a destination, in each partition by priority, then in the order in which
    /// they were parked.
    Parked {
        /// The destination.
        dest: Destination,
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// At-most-once timers that were taken, and are not unconfirmed: they are being delivered.
    Taken {
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// One timer, live or dead, with its attempts and what it waits for.
    Story(Target),
    /// The settings of destinations that one partition has.
    Settings {
        /// The partition.
        partition: u16,
    },
}

/// Which pending timers a [`Query::Pending`] asks for, and what to tell of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingQuery {
    /// The partition.
    pub partition: u16,
    /// What the timers must have in common.
    pub filter: Filter,
    /// Only those that wait for another attempt after failed ones, or only those that do not.
    pub retrying: Option<bool>,
    /// The first position, by fire time and id, that may be in the answer. The `next` of the page
    /// before goes on behind that page.
    pub from: (Time, TimerId),
    /// The last fire time that may be in the answer.
    pub until: Time,
    /// Rows at most.
    pub limit: u32,
    /// Whether rows have payloads. Without them a page has more rows.
    pub payloads: bool,
    /// Only timers that an import has staged; else only others.
    pub staged: bool,
}

/// Which destinations a [`Query::Counts`] asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CountsQuery {
    /// The partition.
    pub partition: u16,
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
    /// Only destinations behind this one. The `next` of the page before goes on behind that page.
    pub after: Option<Destination>,
    /// Rows at most.
    pub limit: u32,
}

/// Which timers a [`Query::Forecast`] counts, and how exactly.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForecastQuery {
    /// The partition.
    pub partition: u16,
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
    /// The first position, by fire time and id, that may be in the answer. The `next` of the page
    /// before goes on behind that page.
    pub from: (Time, TimerId),
    /// The last moment at which a span may begin.
    pub until: Time,
    /// Length of a span, ms, 1 at least. Spans begin at its multiples since 1970.
    pub step_ms: u64,
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QueryAnswer {
    /// To [`Query::Get`].
    Timer(Option<Box<TimerView>>),
    /// To [`Query::Dead`].
    Dead {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<DeadRow>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Unconfirmed`].
    Unconfirmed {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<UnconfirmedRow>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Status`].
    Status(Status),
    /// No answer.
    Failed {
        /// The kind.
        code: ErrorCode,
        /// For people.
        message: String,
    },
    /// No answer: this partition is another broker's. Ask there.
    Moved {
        /// Its address.
        owner: String,
    },
    /// To [`Query::Cluster`].
    Cluster(ClusterView),
    /// To [`Query::Broker`].
    Broker(BrokerView),
    /// To [`Query::Drain`]: the leader has taken note; the topology shows how far it is.
    Done,
    /// To [`Query::Ready`]: why it is not, for people; empty if it is.
    Ready(#[serde(deserialize_with = "at_most::<MAX_REASONS, _, _>")] Vec<String>),
    /// To [`Query::Pending`].
    Pending {
        /// The rows, in the order of fire time and id; may be fewer than asked, even none, and yet
        /// not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<PendingRow>,
        /// Where to go on; `None` at the end of the partition.
        next: Option<(Time, TimerId)>,
    },
    /// To [`Query::Counts`].
    Counts {
        /// Destinations that have timers, in order.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<DestinationCounts>,
        /// Where to go on: behind this one; `None` at the end of the partition.
        next: Option<Destination>,
        /// Timers of the partition, of any destination, that are in nobody's counts yet, because
        /// its owner has acquired it lately. The counts are exact if every page that was read said
        /// 0.
        uncounted: u64,
    },
    /// To [`Query::Bulks`], in the order in which they were begun.
    Bulks(#[serde(deserialize_with = "at_most::<MAX_BULK_JOBS, _, _>")] Vec<BulkView>),
    /// To [`Query::Forecast`].
    Forecast {
        /// In the order of their beginnings. The first one may go on with the last one of the page
        /// before: they are added up. A store may count a longer span as one; such spans overlap
        /// others.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        spans: Vec<DueSpan>,
        /// Where to go on; `None` at the end of the partition.
        next: Option<(Time, TimerId)>,
        /// Timers of the partition, of any destination, that are in no span yet although they may
        /// belong to one, because its owner has acquired it lately. The numbers are exact if every
        /// page that was read said 0.
        uncounted: u64,
    },
    /// To [`Query::Parked`] and [`Query::Taken`].
    Timers {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<TimerView>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Story`].
    Story(Option<Box<TimerStory>>),
    /// To [`Query::Settings`], in the order of destinations.
    Settings(#[serde(deserialize_with = "at_most::<MAX_SETTINGS, _, _>")] Vec<StoredSettings>),
}

/// A bulk job in one partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BulkView {
    /// Its name, the same in every partition.
    pub id: BulkId,
    /// What it does.
    pub bulk: Bulk,
    /// How far it has come.
    pub state: BulkState,
    /// When it was filed here.
    pub begun: Time,
    /// When it ended here.
    pub ended: Option<Time>,
    /// On how many timers it has acted; of a dry run: on how many it would.
    pub done: u64,
    /// On how many it could not.
    pub not_done: u64,
    /// The first of these.
    #[serde(deserialize_with = "at_most::<MAX_BULK_FAILURES, _, _>")]
    pub failures: Vec<BulkFailure>,
}

/// How far a bulk job has come in a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BulkState {
    /// It waits for an earlier one about the same kind of timers, live or retained.
    Waiting,
    /// At work.
    Working,
    /// Somebody has stopped it.
    Stopped,
    /// It has come to its end.
    Done,
}

/// A timer as `get` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimerView {
    /// The timer.
    pub timer: Timer,
    /// Where it stands.
    pub state: TimerState,
    /// Failed attempts so far.
    pub failed: u32,
    /// A cancel came too late: no attempt follows.
    pub stopped: bool,
    /// The last error.
    pub last_error: Option<String>,
    /// What else its record has.
    pub rest: RecordRest,
}

impl TimerView {
    /// Makes the view of a timer that no attempt has been made of.
    pub fn new(timer: Timer, state: TimerState) -> Self {
        let (failed, stopped, last_error, rest) = (0, false, None, RecordRest::default());
        Self { timer, state, failed, stopped, last_error, rest }
    }
}

/// What a record has beside the timer, failed attempts and the last error. Exports take it along.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RecordRest {
    /// How many of the failed attempts do not count for the retry budget: those before the last
    /// replay.
    pub budget_from: u32,
    /// How many attempts have begun, or may have. Above the failed ones: the outcome of the last is
    /// not known.
    pub tried: u32,
    /// When its due time was accepted, if that had passed already.
    pub accepted: Option<Time>,
    /// Extensions of the record.
    pub extensions: Extensions,
}

/// A timer with its story.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimerStory {
    /// The timer, and where it stands.
    pub view: TimerView,
    /// Its last attempts that ended without success, the first of them first.
    #[serde(deserialize_with = "at_most::<MAX_STORY_ATTEMPTS, _, _>")]
    pub attempts: Vec<FailedAttempt>,
    /// How many attempts there have been, lost ones and the one under way included.
    pub tried: u32,
    /// The attempt under way.
    pub under_way: Option<Attempt>,
    /// This attempt has ended; the store is yet to confirm its outcome.
    pub settling: Option<u32>,
    /// What it waits for: its time has come, and no attempt is under way.
    pub waits_for: Option<LateCause>,
    /// When its owner has told this, by the cluster clock.
    pub told: Time,
}

impl TimerStory {
    /// Returns the numbers of the attempts of which nothing is known: their owner was lost, and may
    /// have sent them; or it kept no stories. Of what is before the oldest attempt of a full story
    /// nothing is said, and of none but the last few.
    pub fn lost(&self) -> impl Iterator<Item = u32> {
        let known = |number: &u32| {
            let is_present = self.under_way.is_some_and(|attempt| attempt.number == *number);
            is_present
                || self.settling == Some(*number)
                || self.attempts.iter().any(|failed| failed.attempt.number == *number)
        };
        let oldest = self.attempts.first().map_or(1, |failed| failed.attempt.number);
        let is_full = self.attempts.len() >= MAX_STORY_ATTEMPTS;
        let few = self.tried.saturating_sub(2 * MAX_STORY_ATTEMPTS as u32).saturating_add(1);
        let first = if is_full { oldest } else { few };
        (first..=self.tried).filter(move |number| !known(number))
    }
}

/// Where a timer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimerState {
    /// Waits for its due time.
    Pending {
        /// When it is delivered.
        fire: Time,
    },
    /// Waits for its next attempt.
    Retrying {
        /// When it is delivered.
        fire: Time,
        /// The tier.
        tier: u8,
    },
    /// Waits for a client of its destination.
    Parked,
    /// Sent, not settled.
    InFlight {
        /// Under this epoch.
        epoch: Epoch,
        /// This attempt.
        attempt: u32,
    },
    /// At-most-once, claimed and never confirmed.
    Unconfirmed,
    /// A dead letter.
    Dead,
    /// An import has staged it: nothing delivers it until that is released.
    Staged {
        /// When it fires then.
        fire: Time,
        /// Which import, and what it becomes.
        staging: Staging,
    },
}

/// A dead letter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeadRow {
    /// The timer with its payload.
    pub timer: Timer,
    /// Why.
    pub reason: DeadReason,
    /// Failed attempts.
    pub attempts: u32,
    /// The last error.
    pub last_error: Option<String>,
    /// When it died.
    pub died: Time,
    /// What else its record has.
    pub rest: RecordRest,
}

/// An at-most-once timer that was claimed and never confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnconfirmedRow {
    /// The timer with its payload.
    pub timer: Timer,
    /// Claimed by this owner.
    pub epoch: Epoch,
    /// When it became unconfirmed.
    pub since: Time,
    /// Failed attempts, not counting the one that is unconfirmed.
    pub failed: u32,
    /// The last error.
    pub last_error: Option<String>,
    /// What else its record has.
    pub rest: RecordRest,
}

/// A timer that waits for a delivery.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingRow {
    /// The fire time by which it is listed.
    pub fire: Time,
    /// The timer, without its payload unless payloads were asked for. Its state is newer than the
    /// row: the delivery may have begun.
    pub view: TimerView,
    /// Bytes of its payload.
    pub payload_bytes: u32,
}

/// How many timers of a destination are where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DestinationCounts {
    /// The destination.
    pub dest: Destination,
    /// First delivery to come.
    pub pending: u64,
    /// Retries to come.
    pub retrying: u64,
    /// Parked.
    pub parked: u64,
    /// Deliveries that are not settled. Their timers are in `pending`, `retrying` or `taken`, too.
    pub in_flight: u64,
    /// At-most-once timers that were taken, and are not unconfirmed.
    pub taken: u64,
    /// At-most-once timers that were taken and never confirmed.
    pub unconfirmed: u64,
    /// Dead letters.
    pub dead: u64,
    /// When the oldest of its timers was due that is parked in this partition, or waits for handlers
    /// in any partition of this broker, as far as that knows without looking: `None` for a while
    /// after a takeover.
    pub oldest_overdue: Option<Time>,
    /// Staged by imports: nothing delivers them until they are released.
    pub staged: u64,
}

impl DestinationCounts {
    /// Returns the counts of a destination without timers.
    pub const fn none(dest: Destination) -> Self {
        Self {
            dest,
            pending: 0,
            retrying: 0,
            parked: 0,
            in_flight: 0,
            taken: 0,
            unconfirmed: 0,
            dead: 0,
            oldest_overdue: None,
            staged: 0,
        }
    }

    /// Returns how many timers it has, each counted once.
    pub const fn total(&self) -> u64 {
        let Self { pending, retrying, parked, taken, unconfirmed, dead, staged, .. } = self;
        let waiting = pending.saturating_add(*retrying).saturating_add(*parked).saturating_add(*staged);
        waiting.saturating_add(*taken).saturating_add(*unconfirmed).saturating_add(*dead)
    }

    /// Adds other counts, of whatever destination.
    pub fn add(&mut self, other: &Self) {
        self.pending = self.pending.saturating_add(other.pending);
        self.retrying = self.retrying.saturating_add(other.retrying);
        self.parked = self.parked.saturating_add(other.parked);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.taken = self.taken.saturating_add(other.taken);
        self.unconfirmed = self.unconfirmed.saturating_add(other.unconfirmed);
        self.dead = self.dead.saturating_add(other.dead);
        self.staged = self.staged.saturating_add(other.staged);
        self.oldest_overdue = [self.oldest_overdue, other.oldest_overdue].into_iter().flatten().min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_which_nothing_is_known_were_lost() {
        let attempt =
            |number| Attempt { number, epoch: Epoch(1), client: 2, sent: None, late_ms: 0, late_by: None };
        let lost = |known: &[u32], tried: u32, under_way: Option<u32>| {
            let failed_attempt = |number: &u32| FailedAttempt {
                attempt: attempt(*number),
                ended: Time::ZERO,
                end: mtimer_types::AttemptEnd::Retry,
                error: "".into(),
            };
            let timer = crate::sample::plain_timer();
            let view = TimerView::new(timer, TimerState::Parked);
            let story = TimerStory {
                view,
                attempts: known.iter().map(failed_attempt).collect(),
                tried,
                under_way: under_way.map(attempt),
                settling: None,
                waits_for: None,
                told: Time::ZERO,
            };
            story.lost().collect::<Vec<_>>()
        };
        assert_eq!(lost(&[], 0, None), []);
        assert_eq!(lost(&[1, 2], 2, None), []);
        assert_eq!(lost(&[1], 2, Some(2)), []);
        assert_eq!(lost(&[2], 2, None), [1]);
        assert_eq!(lost(&[1], 3, None), [2, 3]);
        assert_eq!(lost(&[], 2, Some(2)), [1]);
        // What is before a full story is not known to be lost.
        assert_eq!(lost(&[4, 5, 6, 8, 9, 10, 11, 12], 12, None), [7]);
        assert!(lost(&[], u32::MAX, None).len() <= 16);
    }

    #[test]
    fn the_oldest_of_sums_is_the_oldest_of_all() {
        let dest = || crate::sample::dest();
        let mut sum = DestinationCounts::none(dest());
        for oldest in [None, Some(7), Some(5), Some(9), None] {
            sum.add(&DestinationCounts {
                oldest_overdue: oldest.map(Time::from_ms),
                ..DestinationCounts::none(dest())
            });
        }
        assert_eq!(sum.oldest_overdue, Some(Time::from_ms(5)));
    }
}
