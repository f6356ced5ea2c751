//! The one thread that reads and writes the data directory: group commit.
//!
//! It takes the calls that wait, of all lanes, carries them out over the overlay, writes and syncs
//! once, then answers them all. While it syncs the next group gathers, so the more there is to do
//! the fewer syncs each call costs.
//!
//! Invariant: nothing is answered before it is as durable as the level says. After a fault nothing
//! is written and everything is answered with it. If the disk had too little space, the directory
//! is opened again when it has enough.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mtimer_store::{Acquire, AcquireError, InFlight, LaneError, OwnerRecord, StoreError};
use mtimer_types::{Epoch, PartitionId, Term};
use tokio::sync::oneshot;

use crate::destinations::DestinationNumbers;
use crate::fault::Fault;
use crate::lane_shared::LaneShared;
use crate::layout::{self, FactName, fact_key};
use crate::open_error::OpenError;
use crate::options::EmbeddedDurability;
use crate::partition::{PartitionMirror, StoredOwner};
use crate::space::{DiskSpace, IDLE_LOOK};
use crate::table::PartitionTable;
use crate::tree::Tree;

/// Calls that wait for the committer. A caller beyond it waits until the queue has space, blocking
/// its thread: the committer depends on nobody, so that does not last. Owners bound their calls far
/// below this.
pub(crate) const MAX_WAITING: usize = 4_096;
/// Operations of one group: tens of milliseconds of work, so that the first of them is not answered
/// much later.
const MAX_GROUP: usize = 16_384;

/// Carries out a call and returns the function that answers it.
type WorkFn = Box<dyn FnOnce(&mut Committer) -> AnswerFn + Send>;
/// Answers a call: with its result, or with the fault that came in between.
pub(crate) type AnswerFn = Box<dyn FnOnce(Option<&Fault>) + Send>;

/// Opens the directory again when there is space again.
pub(crate) type ReopenFn = Box<dyn FnOnce(DiskSpace) -> Result<Committer, OpenError> + Send>;

/// A call on its way to the committer.
pub(crate) struct CommitterCall {
    /// About how many operations it is worth.
    pub(crate) weight: usize,
    pub(crate) work: WorkFn,
}

/// The queue of calls that wait for the committer.
#[derive(Clone)]
pub(crate) struct CommitterQueue(pub(crate) SyncSender<CommitterCall>);

impl CommitterQueue {
    /// Queues a call. If the committer has gone the call is dropped, and with it its answer.
    pub(crate) fn send(&self, call: CommitterCall) {
        let _ = self.0.send(call);
    }
}

/// A partition that was acquired, for the lane to be made.
pub(crate) struct Acquisition {
    pub(crate) lane: Arc<LaneShared>,
    /// Deliveries that the predecessor had under way.
    pub(crate) in_flight: Vec<InFlight>,
}

pub(crate) struct Committer {
    pub(crate) tree: Tree,
    pub(crate) destinations: DestinationNumbers,
    pub(crate) partitions: Vec<PartitionMirror>,
    pub(crate) term: Term,
    pub(crate) space: DiskSpace,
    durability: EmbeddedDurability,
    reopen: ReopenFn,
    broken: Option<Fault>,
    /// The group under way is synced at any level.
    sync_now: bool,
    closing: Vec<oneshot::Sender<()>>,
}

impl Committer {
    pub(crate) fn new(
        tree: Tree,
        partitions: u16,
        durability: EmbeddedDurability,
        space: DiskSpace,
        reopen: ReopenFn,
    ) -> Self {
        let partitions = (0..partitions).map(|p| PartitionMirror::new(PartitionId(p))).collect();
        Self {
            tree,
            destinations: DestinationNumbers::default(),
            partitions,
            term: Term(0),
            space,
            durability,
            reopen,
            broken: None,
            sync_now: false,
            closing: Vec::new(),
        }
    }

    /// Works until the store is closed. Releases the directory's lock last, then tells the caller
    /// that closed it.
    pub(crate) fn run(mut self, calls: Receiver<CommitterCall>, lock: std::fs::File) {
        let mut unsynced_since: Option<Instant> = None;
        while self.closing.is_empty() {
            let sync_at = self.sync_deadline(unsynced_since);
            let wait = sync_at.map_or(IDLE_LOOK, |at| at.saturating_duration_since(Instant::now()));
            let first = calls.recv_timeout(wait.min(IDLE_LOOK));
            let now = Instant::now();
            if self.space.is_due(now) {
                self.look_at_space();
            }
            if self.can_resume() {
                match self.reopened() {
                    Ok(committer) => self = committer,
                    Err(error) => {
                        // The calls that wait are dropped, and find the store closed.
                        tracing::error!(%error, "the data directory cannot be opened again");
                        return;
                    }
                }
            }
            match first {
                Ok(first) => self.group(first, &calls),
                Err(RecvTimeoutError::Timeout) => self.sync_now |= sync_at.is_some_and(|at| now >= at),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.sync_now {
                self.sync_now = false;
                self.sync();
            }
            unsynced_since = self.tree.is_dirty().then(|| unsynced_since.unwrap_or_else(Instant::now));
        }
        self.guard(|committer| committer.tree.sync());
        self.guard(|committer| committer.tree.sync_watermark());
        self.end_lanes(&Fault::Closed);
        let closing = std::mem::take(&mut self.closing);
        drop(calls);
        drop(self);
        drop(lock);
        closing.into_iter().for_each(|done| {
            // A caller that does not wait for the end need not be told.
            let _ = done.send(());
        });
    }

    fn look_at_space(&mut self) {
        let (floor, needed) = self.tree.needed_space();
        self.space.look(needed);
        self.tree.limit_merges(floor, self.space.full().is_some());
    }

    /// Whether the store has stopped for want of space, and there is enough again.
    fn can_resume(&mut self) -> bool {
        matches!(self.broken, Some(Fault::NoSpace(_))) && self.space.lacks().is_none()
    }

    /// Opens the directory again.
    fn reopened(self) -> Result<Self, OpenError> {
        let Self { tree, reopen, space, closing, .. } = self;
        drop(tree);
        let mut committer = reopen(space)?;
        committer.closing = closing;
        tracing::info!("there is enough space again: the embedded store goes on");
        Ok(committer)
    }

    fn sync_deadline(&self, unsynced_since: Option<Instant>) -> Option<Instant> {
        match self.durability {
            EmbeddedDurability::Sync => None,
            EmbeddedDurability::Fast { every } => unsynced_since.map(|since| since + every),
        }
    }

    /// Carries out a group of calls, makes it durable, answers.
    fn group(&mut self, first: CommitterCall, calls: &Receiver<CommitterCall>) {
        let mut answers = Vec::new();
        let mut weight = 0_usize;
        let mut next = Some(first);
        while let Some(call) = next {
            // A load may ask for any number.
            weight = weight.saturating_add(call.weight.max(1));
            self.guard(|committer| {
                answers.push((call.work)(committer));
                Ok(())
            });
            next = if weight < MAX_GROUP { calls.try_recv().ok() } else { None };
        }
        self.guard(|committer| {
            let bytes = committer.tree.write()?;
            committer.space.wrote(bytes);
            Ok(())
        });
        if self.durability == EmbeddedDurability::Sync || self.sync_now {
            self.sync_now = false;
            self.sync();
        }
        answers.into_iter().for_each(|deliver| deliver(self.broken.as_ref()));
    }

    /// Makes everything written durable; then rows below the floors are not needed again.
    fn sync(&mut self) {
        self.guard(|committer| {
            committer.tree.sync()?;
            for partition in &committer.partitions {
                committer.tree.set_floor(partition.id, partition.counters.floor);
            }
            Ok(())
        });
    }

    /// Does a piece of work unless the store is broken; breaks it if that fails.
    fn guard(&mut self, work: impl FnOnce(&mut Self) -> Result<(), Fault>) {
        // A broken store still answers its calls: each of them finds the fault.
        let result = catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or(Err(Fault::Panicked));
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    fn fail(&mut self, fault: Fault) {
        if self.broken.is_none() {
            let fault = self.explained(fault);
            tracing::error!(%fault, "the embedded store has stopped");
            self.end_lanes(&fault);
            self.tree.abandon();
            self.broken = Some(fault);
        }
    }

    /// Adds the free space, or the damage, to a fault, so that it can be understood.
    fn explained(&mut self, fault: Fault) -> Fault {
        match (fault, self.space.lacks()) {
            (Fault::NoSpace(_) | Fault::Background, Some((path, free, needed))) => Fault::NoSpace(
                format!("{free} bytes are free at {}, it needs {needed}", path.display()).into(),
            ),
            (fault, _) => self.located(fault),
        }
    }

    /// A fault of the storage engine with the place that is damaged, if some place is. It reads all
    /// tables; nothing else is left to do.
    fn located(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Unreadable(_) | Fault::Storage(_) | Fault::Background | Fault::Panicked => {
                let damage = self.tree.find_damage();
                damage.map_or(fault, |damage| Fault::Unreadable(damage.to_string().into()))
            }
            fault => fault,
        }
    }

    fn end_lanes(&mut self, fault: &Fault) {
        self.partitions.iter_mut().for_each(|partition| partition.end_lanes(&fault.into()));
    }

    /// A lane's turn: checks that the partition is still its own, then carries out its call.
    pub(crate) fn turn<T>(
        &mut self,
        lane: &Arc<LaneShared>,
        carry_out: impl FnOnce(&mut PartitionTable<'_>) -> Result<T, Fault>,
    ) -> Result<T, LaneError> {
        if let Some(end) = &*lane.ended() {
            return Err(end.clone());
        }
        if let Some(fault) = &self.broken {
            return Err(fault.into());
        }
        let count = self.partitions.len();
        let Some(partition) = self.partitions.get_mut(usize::from(lane.partition.0)) else {
            return Err(LaneError::Broken(no_partition(lane.partition, count)));
        };
        let owner = partition.owner.record;
        if (owner.epoch, owner.nonce) != (lane.epoch, lane.nonce) {
            let end = LaneError::Fenced { partition: lane.partition, stored: owner.epoch, ours: lane.epoch };
            lane.end(end.clone());
            return Err(end);
        }
        let mut view = PartitionTable::new(&mut self.tree, &mut self.destinations, partition, lane);
        view.full = self.space.full();
        carry_out(&mut view).map_err(|fault| {
            let end = (&fault).into();
            self.fail(fault);
            end
        })
    }

    pub(crate) fn owner(&self, id: PartitionId) -> Result<OwnerRecord, StoreError> {
        if let Some(fault) = &self.broken {
            return Err(fault.into());
        }
        let partition = self.partitions.get(usize::from(id.0));
        let partition =
            partition.ok_or_else(|| StoreError::Unusable(no_partition(id, self.partitions.len())))?;
        Ok(partition.owner.record)
    }

    pub(crate) fn acquire(&mut self, acquire: &Acquire) -> Result<Acquisition, AcquireError> {
        let stored = self.owner(acquire.partition)?;
        let repeated = stored.epoch != Epoch::default() && stored.nonce == acquire.nonce;
        if !repeated {
            if stored.epoch != acquire.expected {
                let (partition, expected) = (acquire.partition, acquire.expected);
                return Err(AcquireError::Epoch { partition, stored: stored.epoch, expected });
            }
            let (given, stored) = ((acquire.term, acquire.version), (stored.term, stored.version));
            if given <= stored {
                return Err(AcquireError::Assignment { given, stored });
            }
        }
        let Some(partition) = self.partitions.get_mut(usize::from(acquire.partition.0)) else {
            let text = no_partition(acquire.partition, self.partitions.len());
            return Err(StoreError::Unusable(text).into());
        };
        if !repeated {
            let record = OwnerRecord {
                epoch: Epoch((stored.epoch.max(acquire.floor).0 + 1).max(clock_ms())),
                nonce: acquire.nonce,
                term: acquire.term,
                version: acquire.version,
                claimed_until: stored.claimed_until,
                released: false,
            };
            partition.owner = StoredOwner { record, prior_claim: stored.claimed_until };
            partition.store_owner(&mut self.tree);
            // A predecessor's lanes learn it with their next call.
            partition.lanes.clear();
            self.sync_now = true;
        }
        let StoredOwner { record, prior_claim } = partition.owner;
        let shared = Arc::new(LaneShared::new(partition.id, record.epoch, record.nonce, prior_claim));
        partition.join(&shared);
        Ok(Acquisition { lane: shared, in_flight: partition.in_flight.clone() })
    }

    pub(crate) fn raise_term(&mut self) -> Result<Term, StoreError> {
        if let Some(fault) = &self.broken {
            return Err(fault.into());
        }
        self.term.0 += 1;
        self.tree.put(layout::Space::Facts, fact_key(FactName::Term), self.term.0.to_be_bytes());
        self.sync_now = true;
        Ok(self.term)
    }

    /// Ends the work after the group under way.
    pub(crate) fn close(&mut self, done: oneshot::Sender<()>) {
        self.closing.push(done);
    }
}

fn no_partition(id: PartitionId, count: usize) -> String {
    format!("there is no partition {id}: the store has {count}, counted from 0")
}

/// The host's clock; the only use is that an epoch never returns after the data directory was
/// restored from a backup.
fn clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::SpaceLimits;

    #[test]
    fn after_a_sync_that_fails_nothing_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path(), 1 << 20).unwrap();
        let (_sender, calls) = std::sync::mpsc::sync_channel(8);
        let space = DiskSpace::new(dir.path().to_owned(), SpaceLimits::default());
        let reopen = Box::new(|_| unreachable!("there is space"));
        let mut committer = Committer::new(tree, 1, EmbeddedDurability::Sync, space, reopen);
        let raise = |committer: &mut Committer| {
            let (answer, received) = std::sync::mpsc::channel();
            let work = Box::new(move |committer: &mut Committer| -> AnswerFn {
                let result = committer.raise_term();
                Box::new(move |fault| {
                    answer.send(fault.map_or(result, |fault| Err(fault.into()))).unwrap();
                })
            });
            committer.group(CommitterCall { weight: 1, work }, &calls);
            received.recv().unwrap()
        };
        assert_eq!(raise(&mut committer), Ok(Term(1)));
        committer.tree.fail_sync = true;
        assert!(matches!(raise(&mut committer), Err(StoreError::Unusable(_))), "it may not be on disk");
        // A later sync would succeed: the operating system forgets pages that it could not write.
        assert!(matches!(raise(&mut committer), Err(StoreError::Unusable(_))), "nor may what follows");
        assert!(!committer.tree.is_dirty(), "nothing more is synced");
        assert!(committer.owner(PartitionId(0)).is_err());
    }
}
