//! Owning a partition: acquisition, the lane, its reads.

use std::fmt;
use std::sync::Arc;

use mtimer_types::{DeadReason, Destination, Epoch, Nonce, PartitionId, Target, Term, Time, TimerId};
use tokio::sync::watch;

use crate::answer::Answer;
use crate::census::Census;
use crate::coordination::Coordination;
use crate::error::{AcquireError, LaneError, LaneFuture, StoreFuture};
use crate::ops::Batch;
use crate::place::Place;
use crate::record::Record;

#[cfg(doc)]
use crate::answer::Refusal;
#[cfg(doc)]
use crate::ops::Op;

/// A place where the timers of all partitions live.
pub trait Store: Send + Sync + 'static {
    /// What this store is.
    fn info(&self) -> StoreInfo;

    /// Reads who owns a partition.
    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord>;

    /// Makes the caller the partition's only writer. Refused unless the stored epoch is the
    /// expected one and (term, version) is higher than the stored pair; a stored nonce equal to the
    /// caller's means that the answer had been lost, and is success. The new epoch is above the
    /// stored one and the floor, and not below the store's clock in ms.
    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError>;

    /// Raises and returns the cluster's term: whoever holds a lower one can acquire nothing any
    /// more that was acquired under a higher one.
    fn raise_term(&self) -> StoreFuture<Term>;

    /// The store's clocks: one a Redis master; none if the store has no clock of its own. A store
    /// that has clocks lists at least one at all times.
    fn clocks(&self) -> Vec<StoreClock>;

    /// What brokers need that share the store; `None`: it belongs to one process alone.
    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        None
    }

    /// Reads what the store counts, for status and metrics: names and numbers. A name that ends in
    /// `_total` counts up since the store was opened, any other says how it is now. The numbers of
    /// several brokers can be added up.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// One clock of a store, to be read once.
pub struct StoreClock {
    /// Which clock: the same name for as long as the store has it.
    pub name: String,
    /// Reads it when it is first polled: µs since the Unix epoch, at some moment between then and
    /// its completion. It waits for no other clock, and has no time limit of its own. Dropping it
    /// gives the reading up.
    pub reading: StoreFuture<u64>,
}

impl fmt::Debug for StoreClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClock").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a store is, for handshakes, status and metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreInfo {
    /// `"memory"`, `"embedded"`, `"redis"` or `"redis-cluster"`.
    pub kind: &'static str,
    /// The durability level's name.
    pub durability: &'static str,
    /// How many partitions the cluster has; fixed when it was created.
    pub partitions: u16,
}

/// Who owns a partition, as stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnerRecord {
    /// 0 before the first acquisition.
    pub epoch: Epoch,
    /// The owner's.
    pub nonce: Nonce,
    /// Term of the assignment under which it was acquired.
    pub term: Term,
    /// Version of that assignment.
    pub version: u64,
    /// The highest claim stored in any epoch.
    pub claimed_until: Time,
    /// The owner has given it up gracefully: the next owner need not wait for
    /// anything.
    pub released: bool,
}

/// A request to own a partition.
#[derive(Clone, Copy, Debug)]
pub struct Acquire {
    /// Which.
    pub partition: PartitionId,
    /// The epoch of the owner record that the caller has read.
    pub expected: Epoch,
    /// The highest epoch that the caller knows of: the store may have lost the record of it.
    pub floor: Epoch,
    /// Made for this request.
    pub nonce: Nonce,
    /// The assignment's term.
    pub term: Term,
    /// The assignment's version.
    pub version: u64,
}

/// A partition acquired.
pub struct Acquired {
    /// The way to it.
    pub lane: Arc<dyn Lane>,
    /// Under this epoch.
    pub epoch: Epoch,
    /// What predecessors may have sent: everything pending with a fire time at or below this.
    pub prior_claim: Time,
    /// Deliveries that the predecessor had under way when it released the partition gracefully;
    /// empty after a crash. Stays stored until this owner releases in turn.
    pub in_flight: Vec<InFlight>,
}

/// A delivery under way at a planned handover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFlight {
    /// Which timer.
    pub id: TimerId,
    /// Which attempt.
    pub attempt: u32,
    /// The client session that has it, by the session's own durable name.
    pub session: u128,
    /// Until when that session may settle it.
    pub until: Time,
}

/// The ordered stream of one owner's work on one partition.
///
/// Every call takes its place in the lane when it is made (not when its future is polled); calls
/// take effect in that order, and their answers are ready in that order. While the store is away
/// the lane waits, reconnects, resends what was not applied, and repeats what may have been;
/// [`Lane::health`] tells. So an answer never means "unknown": it comes late or says that the lane
/// has ended.
pub trait Lane: Send + Sync {
    /// The epoch under which the partition was acquired.
    fn epoch(&self) -> Epoch;

    /// Applies a batch. One answer for each operation. If the batch has a claim that is stored and
    /// not confirmed ([`Refusal::NotReplicated`]) that refusal follows as one more: the claim must
    /// not be relied on. Such an answer takes 100 ms at least, since the claim is asked for again
    /// at once.
    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>>;

    /// Loads pending timers in the order of time, as a basis for the wheel. See [`Loaded`].
    fn load(&self, load: Load) -> LaneFuture<Loaded>;

    /// The owner has forgotten every pending timer with a fire time after `beyond`: they must be
    /// loaded again in time.
    fn unload(&self, beyond: Time) -> LaneFuture<()>;

    /// Finds a timer, live or dead.
    fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>>;

    /// Destinations with parked timers, and how many they have.
    fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>>;

    /// Parked timers of one destination, about the longest parked first.
    fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>>;

    /// Dead letters that match, oldest first. A page may have fewer than `limit` (even none) and
    /// yet a next cursor.
    fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>>;

    /// Taken timers that are not unconfirmed: as many as were under way, however many are
    /// unconfirmed.
    fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>>;

    /// Unconfirmed timers, the longest unconfirmed first.
    fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>>;

    /// Counts, cheap enough for a status page.
    fn census(&self) -> LaneFuture<Census>;

    /// Gives the partition up gracefully. `in_flight` is all that this owner has sent and not
    /// settled: what it has claimed beside that was not sent, so claimed-until falls back to where
    /// it was when the partition was acquired. Every later call answers [`LaneError::Closed`].
    fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()>;

    /// Whether the store can be reached. The owner refuses new work while it is down.
    fn health(&self) -> watch::Receiver<Health>;
}

/// Whether a lane's store can be reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Health {
    /// The last thing that was asked was answered.
    #[default]
    Up,
    /// Trying again; why.
    Down(String),
    /// The lane has ended for good; why. Answers to earlier calls may still be unread; a call
    /// without an answer fails soon.
    Ended(LaneError),
}

/// A request to load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Load what fires up to and including this time.
    pub until: Time,
    /// Stop after about this many timers; at least one step is made.
    pub max_timers: usize,
    /// Stop after about this many bytes of payloads and headers; at least one step is made.
    pub max_bytes: usize,
    /// If set, `claimed-until` becomes at least this.
    pub claim: Option<Time>,
}

/// What was loaded.
///
/// `horizon`: every timer that was pending at this point of the lane with a fire time at or below
/// it has been returned by this or an earlier load since the last [`Lane::unload`] below it. A
/// timer that is filed at or below the horizon by an operation that comes after this load in the
/// lane is the owner's own to remember. A load may return timers beyond the horizon, and timers
/// that the owner has already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// In no particular order.
    pub timers: Vec<LoadedTimer>,
    /// Up to where everything is loaded; at least as high as after the last load (or unload).
    pub horizon: Time,
    /// The load's claim is stored, but not confirmed: it must not be relied on.
    pub is_claim_unconfirmed: bool,
}

/// One loaded timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedTimer {
    /// The timer.
    pub record: Record,
    /// When it is to be delivered.
    pub fire: Time,
    /// Its tier.
    pub tier: u8,
    /// A predecessor may have sent it: see [`crate::ops`].
    pub covered: bool,
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Where to go on; `None` at the end. A listing starts at cursor 0. Rows that come or go while
    /// a listing is under way may or may not be seen, all others are seen exactly once.
    pub next: Option<u64>,
}

/// Which dead letters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadFilter {
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
}

impl DeadFilter {
    /// Whether a destination passes.
    pub fn accepts(&self, dest: &Destination) -> bool {
        self.group.as_deref().is_none_or(|g| g == dest.group())
            && self.app.as_deref().is_none_or(|a| a == dest.app())
    }
}

/// A dead letter, complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    /// The timer; [`crate::Progress::failed`] is its number of failed attempts, `last_error` its
    /// last error.
    pub record: Record,
    /// Why.
    pub reason: DeadReason,
    /// When.
    pub died: Time,
}

/// An at-most-once timer that was or was about to be sent, and may still be settled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The timer.
    pub record: Record,
    /// Taken by this owner.
    pub epoch: Epoch,
}

/// An at-most-once timer that was taken and that nobody will settle any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unconfirmed {
    /// The timer.
    pub record: Record,
    /// Taken by this owner.
    pub epoch: Epoch,
    /// When it became unconfirmed.
    pub since: Time,
}
