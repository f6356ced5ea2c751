//! Owning a partition: acquisition, the lane.

use std::fmt;
use std::sync::Arc;

use mtimer_types::{Epoch, Nonce, PartitionId, Term, Time};
use tokio::sync::watch;

use crate::call::{Call, CallAnswer, InFlight};
use crate::coordination::Coordination;
use crate::error::{AcquireError, LaneError, LaneFuture, StoreFuture};

/// A place where the timers of all partitions live.
pub trait Store: Send + Sync + 'static {
    /// Describes this store.
    fn info(&self) -> StoreInfo;

    /// Reads who owns a partition.
    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord>;

    /// Makes the caller the partition's only writer. Refused unless the stored epoch is the
    /// expected one and (term, version) is higher than the stored pair; a stored nonce equal to the
    /// caller's means that the answer had been lost, and is success. The new epoch is above the
    /// stored one and the floor, and not below the store's clock in ms.
    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError>;

    /// Raises and returns the cluster's term: a holder of a lower one can acquire nothing any more
    /// that was acquired under a higher one.
    fn raise_term(&self) -> StoreFuture<Term>;

    /// The store's clocks: one a Redis master; none if the store has no clock of its own. A store
    /// that has clocks lists at least one at all times.
    fn clocks(&self) -> Vec<StoreClock>;

    /// The services for brokers that share the store; `None`: it belongs to one process alone.
    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        None
    }

    /// Reads the store's counters, for status and metrics: names and numbers. A name that ends in
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

/// The description of a store, for handshakes, status and metrics.
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
    /// Predecessors may have sent everything pending with a fire time at or below this.
    pub prior_claim: Time,
    /// Deliveries that the predecessor had under way when it released the partition gracefully;
    /// empty after a crash. Stays stored until this owner releases in turn.
    pub in_flight: Vec<InFlight>,
}

/// The ordered stream of one owner's work on one partition.
///
/// Every call takes its place in the lane when it is made (not when its future is polled); calls
/// take effect in that order, and their answers are ready in that order. While the store is away
/// the lane waits, reconnects, resends calls that were not applied, and repeats those that may have
/// been; [`Lane::health`] tells. So an answer never means "unknown": it comes late or says that the
/// lane has ended.
///
/// `dyn Lane` has a method for each kind of call, with an answer of the call's type: see
/// [`crate::named`].
pub trait Lane: Send + Sync {
    /// The epoch under which the partition was acquired.
    fn epoch(&self) -> Epoch;

    /// Makes a call. Its answer is of the call's kind.
    fn call(&self, call: Call) -> LaneFuture<CallAnswer>;

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
