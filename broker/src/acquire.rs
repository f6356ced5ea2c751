//! Becoming the owner of a partition that is assigned to this broker, however long the store is
//! away.
//!
//! Purpose: see who has it; let a live owner give it up gracefully; acquire it under the
//! assignment. A lost answer is repeated with the same nonce, so that an acquisition that had
//! succeeded counts.
//! Invariant: an assignment that the store knows a newer one than is void. Who has a partition is
//! told by the upper half of the owner record's nonce, a hash of the owner's address; two addresses
//! with one hash would only cost time. Every acquisition asks for an epoch above all that this
//! broker knows of: the store may have lost acquisitions.
//! Not in here: who assigns ([`crate::cluster`]), how the lane is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mtimer_protocol::Topology;
use mtimer_store::{Acquire, AcquireError, Acquired, FirstLine, OwnerRecord, Store, StoreError};
use mtimer_types::{Epoch, Nonce, PartitionId, Term};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::counters::{ShellCounter, ShellCounters};
use crate::error::BrokerError;
use crate::outage::{Outage, OutagePauses};

/// How often the owner record is read while the old owner gives the partition up.
const POLL: Duration = Duration::from_millis(10);
/// Bits of a stored version that count acquisitions under one assignment.
const REPEATS: u32 = 20;

/// Term and version of the assignment that gives a broker a partition.
pub(crate) type Assignment = (Term, u64);

/// How a broker proceeds if the store knows a newer assignment than its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Superseded {
    /// The leader has given the partition to somebody else: its next assignment decides.
    Wait,
    /// This broker is its own leader, so another broker was started later: it wins, and this one
    /// ends.
    End,
}

/// How a broker acquires.
pub(crate) struct AcquirePolicy {
    /// How long a live owner has to give a partition up.
    pub(crate) handover_timeout: Duration,
    /// Acquisitions that are carried out at once.
    pub(crate) at_once: usize,
    pub(crate) superseded: Superseded,
}

/// The highest epoch that this broker has seen, of any partition: in the store, of its own, or told
/// by others.
#[derive(Debug, Default)]
pub(crate) struct HighestEpoch(AtomicU64);

impl HighestEpoch {
    pub(crate) fn see(&self, epoch: Epoch) {
        self.0.fetch_max(epoch.0, Ordering::AcqRel);
    }

    fn get(&self) -> Epoch {
        Epoch(self.0.load(Ordering::Acquire))
    }
}

/// State that all acquisitions share.
pub(crate) struct Acquirer {
    store: Arc<dyn Store>,
    highest: Arc<HighestEpoch>,
    /// The upper half of every nonce of this broker.
    own: u32,
    topology: watch::Receiver<Option<Arc<Topology>>>,
    handover_timeout: Duration,
    turns: Semaphore,
    superseded: Superseded,
    outage: Arc<Outage>,
    counters: Arc<ShellCounters>,
    forced_line: FirstLine,
}

/// Whether the owner record permits an acquisition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readiness {
    /// A live owner has it.
    Wait,
    /// Acquire it under this version.
    Go(u64),
}

/// The result of one attempt to acquire.
enum AttemptOutcome {
    Acquired(Box<Acquired>),
    Void,
    Again,
}

/// Why an acquisition does not go on.
enum AcquireFailure {
    Store(StoreError),
    Ended(BrokerError),
}

impl From<StoreError> for AcquireFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Acquirer {
    /// `topology`: who is alive, and may still have a partition.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        address: &str,
        topology: watch::Receiver<Option<Arc<Topology>>>,
        policy: AcquirePolicy,
        highest: Arc<HighestEpoch>,
        outage: Arc<Outage>,
        counters: Arc<ShellCounters>,
    ) -> Self {
        let AcquirePolicy { handover_timeout, at_once, superseded } = policy;
        let (own, turns) = (name_hash(address), Semaphore::new(at_once));
        let forced_line = FirstLine::default();
        Self {
            store,
            highest,
            own,
            topology,
            handover_timeout,
            turns,
            superseded,
            outage,
            counters,
            forced_line,
        }
    }

    /// Acquires a partition under the assignment, which may change meanwhile, waiting for its owner
    /// and for the store. `None`: it is assigned to somebody else by now, and nothing was acquired.
    /// `ours` is the epoch of the ownership that has ended, for the error's text; 0 if there was
    /// none.
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, the partition may or may not have been acquired: withdraw the assignment
    /// instead.
    pub(crate) async fn acquire(
        &self,
        partition: PartitionId,
        mut assignment: watch::Receiver<Option<Assignment>>,
        ours: Epoch,
    ) -> Result<Option<Acquired>, BrokerError> {
        let mut pauses = OutagePauses::default();
        // The call that was made and may have been carried out.
        let mut attempt: Option<Acquire> = None;
        let mut wait = Wait::begin();
        loop {
            let current = *assignment.borrow_and_update();
            if current.is_none() {
                wait = Wait::begin();
            }
            let under = match (&attempt, current) {
                (None, None) => return Ok(None),
                (_, Some(assignment)) => assignment,
                (Some(sent), None) => (sent.term, sent.version >> REPEATS),
            };
            match self.step(partition, under, ours, &mut wait, &mut attempt).await {
                Ok(AttemptOutcome::Acquired(acquired)) => {
                    self.outage.end();
                    self.counters.count(ShellCounter::PartitionsAcquired);
                    self.counters.acquired_after(wait.began.elapsed());
                    let took_ms = u64::try_from(wait.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    tracing::debug!(%partition, epoch = %acquired.epoch, took_ms, "acquired");
                    return Ok(Some(*acquired));
                }
                Ok(AttemptOutcome::Void) => {
                    if assignment.changed().await.is_err() {
                        return Ok(None);
                    }
                }
                Ok(AttemptOutcome::Again) => tokio::time::sleep(POLL).await,
                Err(AcquireFailure::Store(error @ StoreError::Unavailable(_))) => {
                    self.outage.begin(error, &self.counters);
                    pauses.wait().await;
                }
                Err(AcquireFailure::Store(source @ StoreError::Unusable(_))) => {
                    return Err(BrokerError::Store { partition, source });
                }
                Err(AcquireFailure::Ended(error)) => return Err(error),
            }
        }
    }

    async fn step(
        &self,
        partition: PartitionId,
        assignment: Assignment,
        ours: Epoch,
        wait: &mut Wait,
        attempt: &mut Option<Acquire>,
    ) -> Result<AttemptOutcome, AcquireFailure> {
        let request = match attempt {
            // Its answer may have been lost: the same nonce finds out.
            Some(request) => *request,
            None => {
                let record = self.store.owner(partition).await?;
                self.highest.see(record.epoch);
                if is_superseded(&record, assignment) {
                    // The owner has a newer assignment: it need not give the partition up.
                    *wait = Wait::begin();
                    return self.superseded(partition, assignment, ours, &record);
                }
                match self.request(partition, assignment, &record, wait) {
                    None => return Ok(AttemptOutcome::Again),
                    Some(request) => *attempt.insert(request),
                }
            }
        };
        // Nobody closes it.
        let _turn = self.turns.acquire().await;
        // Of now: others may have told of a higher one since the first try.
        let request = Acquire { floor: self.highest.get(), ..request };
        match self.store.acquire(request).await {
            Ok(acquired) => {
                self.highest.see(acquired.epoch);
                Ok(AttemptOutcome::Acquired(Box::new(acquired)))
            }
            Err(AcquireError::Store(error)) => Err(error.into()),
            // Somebody else has written the record: read it again.
            Err(AcquireError::Epoch { .. } | AcquireError::Assignment { .. }) => {
                *attempt = None;
                Ok(AttemptOutcome::Again)
            }
        }
    }

    /// Decides how to proceed if the store knows a newer assignment.
    fn superseded(
        &self,
        partition: PartitionId,
        assignment: Assignment,
        ours: Epoch,
        record: &OwnerRecord,
    ) -> Result<AttemptOutcome, AcquireFailure> {
        match self.superseded {
            Superseded::Wait => Ok(AttemptOutcome::Void),
            Superseded::End => Err(AcquireFailure::Ended(BrokerError::Fenced {
                partition,
                stored: record.epoch,
                ours,
                stored_term: record.term,
                our_term: assignment.0,
            })),
        }
    }

    /// The acquisition to ask the store for; `None`: a live owner is waited for.
    fn request(
        &self,
        partition: PartitionId,
        assignment: Assignment,
        record: &OwnerRecord,
        wait: &mut Wait,
    ) -> Option<Acquire> {
        let waited = wait.on(record.epoch) >= self.handover_timeout;
        let Readiness::Go(version) = self.judge(record, assignment, waited) else { return None };
        let forced = waited && !record.released && record.epoch > Epoch(0);
        if forced && self.is_alive(record) {
            self.counters.count(ShellCounter::HandoversForced);
            if self.forced_line.is_due(Instant::now().into_std()) {
                tracing::warn!(%partition, "the owner did not give the partition up in time, taking it");
            } else {
                tracing::debug!(%partition, "the owner did not give the partition up in time, taking it");
            }
        }
        let nonce = Nonce(u64::from(self.own) << 32 | u64::from(rand::random::<u32>()));
        let (expected, floor) = (record.epoch, record.epoch);
        Some(Acquire { partition, expected, floor, nonce, term: assignment.0, version })
    }

    fn judge(&self, record: &OwnerRecord, (term, version): Assignment, waited: bool) -> Readiness {
        let free = record.epoch == Epoch(0) || record.released || waited;
        if !free && self.is_alive(record) {
            return Readiness::Wait;
        }
        let next = if record.term == term { record.version + 1 } else { 0 };
        Readiness::Go(next.max(version << REPEATS))
    }

    /// Whether another broker of the topology has the partition.
    fn is_alive(&self, record: &OwnerRecord) -> bool {
        let holder = (record.nonce.0 >> 32) as u32;
        let topology = self.topology.borrow();
        holder != self.own
            && topology.as_ref().is_some_and(|t| t.brokers.iter().any(|b| name_hash(&b.address) == holder))
    }
}

/// Whether somebody was given the partition later.
fn is_superseded(record: &OwnerRecord, assignment: Assignment) -> bool {
    (record.term, record.version >> REPEATS) > assignment
}

/// How long this broker has waited for a partition.
struct Wait {
    /// Since when it is assigned to this broker, however often that was said.
    began: Instant,
    /// Who has it, and since when that is waited for.
    owner: Option<(Epoch, Instant)>,
}

impl Wait {
    fn begin() -> Self {
        Self { began: Instant::now(), owner: None }
    }

    /// How long the owner of this epoch is waited for by now.
    fn on(&mut self, epoch: Epoch) -> Duration {
        let owner = self.owner.filter(|(of, _)| *of == epoch);
        self.owner.insert(owner.unwrap_or_else(|| (epoch, Instant::now()))).1.elapsed()
    }
}

/// FNV-1a, 32 bits (Fowler, Noll, Vo): the upper half of a nonce. Brokers compare it with the
/// nonces that others have stored.
fn name_hash(address: &str) -> u32 {
    address.bytes().fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::BrokerEntry;
    use mtimer_store::MemoryStore;

    use super::*;

    fn acquirer(brokers: &[&str]) -> Acquirer {
        let entry = |a: &&str| BrokerEntry { address: (*a).to_owned(), draining: false };
        let topology = Topology { brokers: brokers.iter().map(entry).collect(), ..Topology::default() };
        let (_, seen) = watch::channel(Some(Arc::new(topology)));
        let store = Arc::new(MemoryStore::new(1));
        let policy = AcquirePolicy {
            handover_timeout: Duration::from_secs(1),
            at_once: 8,
            superseded: Superseded::Wait,
        };
        Acquirer::new(store, "a:1", seen, policy, Arc::default(), Arc::default(), Arc::default())
    }

    fn record(holder: &str, version: u64) -> OwnerRecord {
        OwnerRecord {
            epoch: Epoch(7),
            nonce: Nonce(u64::from(name_hash(holder)) << 32 | 5),
            term: Term(3),
            version,
            ..OwnerRecord::default()
        }
    }

    #[test]
    fn a_live_owner_is_waited_for_and_nobody_else() {
        let a = acquirer(&["a:1", "b:1"]);
        let under = (Term(3), 2);
        let go = Readiness::Go(2 << REPEATS);
        assert_eq!(a.judge(&record("b:1", 0), under, false), Readiness::Wait);
        assert_eq!(a.judge(&record("b:1", 0), under, true), go, "its time is over");
        assert_eq!(a.judge(&OwnerRecord { released: true, ..record("b:1", 0) }, under, false), go);
        assert_eq!(a.judge(&record("a:1", 0), under, false), go, "an earlier run of its own");
        assert_eq!(a.judge(&record("gone:1", 0), under, false), go);
        assert_eq!(a.judge(&OwnerRecord::default(), under, false), go);
    }

    #[tokio::test(start_paused = true)]
    async fn one_owner_is_waited_for_once_however_often_the_assignment_changes() {
        let mut wait = Wait::begin();
        assert_eq!(wait.on(Epoch(7)), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(wait.on(Epoch(7)), Duration::from_secs(1));
        // Somebody else has it now, and has all the time to give it up gracefully.
        assert_eq!(wait.on(Epoch(8)), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            (wait.on(Epoch(8)), wait.began.elapsed()),
            (Duration::from_secs(1), Duration::from_secs(2))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_had_it_by_right_meanwhile_has_all_the_time_to_give_it_up() {
        let a = acquirer(&["a:1", "b:1"]);
        let Nonce(nonce) = record("b:1", 0).nonce;
        let (partition, expected) = (PartitionId(0), Epoch(0));
        let theirs = Acquire {
            partition,
            expected,
            floor: expected,
            nonce: Nonce(nonce),
            term: Term(3),
            version: 2 << REPEATS,
        };
        a.store.acquire(theirs).await.unwrap();
        let (leader, assignment) = watch::channel(Some((Term(3), 1)));
        let mut ours = std::pin::pin!(a.acquire(partition, assignment, Epoch(0)));
        let long = tokio::time::timeout(Duration::from_secs(60), &mut ours).await;
        assert!(long.is_err(), "an assignment that is void acquires nothing");
        let began = Instant::now();
        leader.send(Some((Term(3), 3))).unwrap();
        assert!(ours.await.unwrap().is_some());
        assert!(began.elapsed() >= a.handover_timeout, "taken after {:?}", began.elapsed());
        assert_eq!(a.counters.read().get(ShellCounter::HandoversForced), 1);
    }

    #[test]
    fn an_assignment_gives_way_to_newer_ones_and_may_be_used_again() {
        let a = acquirer(&["a:1"]);
        let used = 2 << REPEATS;
        assert_eq!(a.judge(&record("a:1", used), (Term(3), 2), false), Readiness::Go(used + 1));
        assert_eq!(a.judge(&record("a:1", used + 9), (Term(3), 2), false), Readiness::Go(used + 10));
        assert_eq!(a.judge(&record("a:1", used), (Term(4), 1), false), Readiness::Go(1 << REPEATS));
        for older in [(Term(3), 1), (Term(2), 9)] {
            assert!(is_superseded(&record("b:1", used), older));
        }
    }

    #[tokio::test]
    async fn every_epoch_is_above_all_that_are_known() {
        let a = acquirer(&["a:1"]);
        let (_leader, assignment) = watch::channel(Some((Term(3), 1)));
        let acquire =
            async || a.acquire(PartitionId(0), assignment.clone(), Epoch(0)).await.unwrap().unwrap();
        assert_eq!(acquire().await.epoch, Epoch(1));
        a.highest.see(Epoch(70));
        a.highest.see(Epoch(60));
        assert_eq!(acquire().await.epoch, Epoch(71));
        assert_eq!(a.highest.get(), Epoch(71));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_alone_ends_when_another_was_started_later() {
        let store = Arc::new(MemoryStore::new(1));
        let alone = |store: &Arc<MemoryStore>| {
            let (_, nobody) = watch::channel(None);
            let policy =
                AcquirePolicy { handover_timeout: Duration::ZERO, at_once: 8, superseded: Superseded::End };
            Acquirer::new(
                store.clone(),
                "a:1",
                nobody,
                policy,
                Arc::default(),
                Arc::default(),
                Arc::default(),
            )
        };
        let partition = PartitionId(0);
        let (_first, term_1) = watch::channel(Some((Term(1), 1)));
        let (_second, term_2) = watch::channel(Some((Term(2), 1)));
        alone(&store).acquire(partition, term_1.clone(), Epoch(0)).await.unwrap().unwrap();
        let acquired = alone(&store).acquire(partition, term_2, Epoch(0)).await.unwrap().unwrap();
        let ended = alone(&store).acquire(partition, term_1, Epoch(1)).await;
        let (stored, ours) = (acquired.epoch, Epoch(1));
        let (stored_term, our_term) = (Term(2), Term(1));
        assert!(
            matches!(&ended, Err(BrokerError::Fenced { .. })),
            "it does not wait: {:?}",
            ended.map(|acquired| acquired.is_some())
        );
        assert_eq!(ended.err(), Some(BrokerError::Fenced { partition, stored, ours, stored_term, our_term }));
    }
}
