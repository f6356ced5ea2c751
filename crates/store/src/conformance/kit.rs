//! The tools of the tests: a site with its clock, ways to own its partition.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use mtimer_types::{Destination, Epoch, Key, Mode, Nonce, PartitionId, Term, Time, Timer};

use super::harness::{Fault, Harness, Site, Unsupported};
use super::owner::Owner;
use super::properties::TrialSource;
use super::values::{YEAR, dest, plain_timer, unique};
use crate::{Acquire, AcquireError, OwnerRecord, RequestId, Store};

/// Partitions of a site, unless a test asks for another number.
const PARTITIONS: u16 = 4;
/// The partition that tests work on: not the first one.
const PARTITION: PartitionId = PartitionId(2);

/// One test's site, and the clock it goes by.
pub(super) struct Kit {
    site: Box<dyn Site>,
    store: Option<Arc<dyn Store>>,
    partitions: u16,
    /// The partition under test.
    pub(super) partition: PartitionId,
    /// The cluster clock; stands still unless the test moves it.
    pub(super) now: Time,
    /// Later than every timer may be due.
    pub(super) far: Time,
    version: u64,
}

impl Kit {
    pub(super) async fn new(harness: &dyn Harness) -> Self {
        let mut site = harness.fresh(PARTITIONS).await;
        let store = site.open().await;
        assert_eq!(
            store.info().partitions,
            PARTITIONS,
            "the store has the number of partitions it was made with"
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let now = Time::from_ms(now);
        Self {
            site,
            store: Some(store),
            partitions: PARTITIONS,
            partition: PARTITION,
            now,
            far: now + 12 * YEAR,
            version: 0,
        }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    /// Another handle on the same data.
    pub(super) async fn second_handle(&mut self) -> Arc<dyn Store> {
        self.site.open().await
    }

    /// Closes and opens the store. The caller has dropped its owners. False: it cannot, or keeps
    /// nothing.
    pub(super) async fn restart(&mut self) -> bool {
        self.store = None;
        let done = self.site.restart().await;
        self.store = Some(self.site.open().await);
        if done.is_err() {
            eprintln!("    (this store does not survive a restart; the rest of this test is left out)");
        }
        done.is_ok()
    }

    /// Closes and opens the store if it keeps its data over that, otherwise only opens it once
    /// more. The caller has dropped its owners.
    pub(super) async fn reopen(&mut self) {
        self.store = None;
        // Unsupported: the data are still there.
        let _ = self.site.restart().await;
        self.store = Some(self.site.open().await);
    }

    /// Provokes a fault. False: this site cannot.
    pub(super) async fn fault(&mut self, fault: Fault) -> bool {
        let done: Result<(), Unsupported> = self.site.fault(fault).await;
        if done.is_err() {
            eprintln!("    ({fault:?} is not supported here; the rest of this test is left out)");
        }
        done.is_ok()
    }

    pub(super) async fn owner_record(&self) -> OwnerRecord {
        self.store().owner(self.partition).await.unwrap()
    }

    /// Returns the next acquisition that a well-behaved broker asks for.
    pub(super) async fn next_acquire(&mut self) -> Acquire {
        let stored = self.owner_record().await;
        self.version += 1;
        Acquire {
            partition: self.partition,
            expected: stored.epoch,
            floor: Epoch(0),
            nonce: Nonce(unique()),
            term: Term(1),
            version: self.version,
        }
    }

    pub(super) async fn acquire(&self, acquire: Acquire) -> Result<Owner, AcquireError> {
        let acquired = self.store().acquire(acquire).await?;
        Ok(Owner::new(acquired, self.store(), self.partition, self.now, self.far))
    }

    /// Acquires the partition from any owner.
    pub(super) async fn owner(&mut self) -> Owner {
        let acquire = self.next_acquire().await;
        self.acquire(acquire).await.unwrap()
    }

    /// Acquires another partition.
    pub(super) async fn owner_of(&mut self, partition: PartitionId) -> Owner {
        let mine = std::mem::replace(&mut self.partition, partition);
        let owner = self.owner().await;
        self.partition = mine;
        owner
    }

    /// A plain timer of the partition under test.
    pub(super) fn timer(&self, due: Time) -> Timer {
        plain_timer(due, self.now, self.partition)
    }

    /// An at-most-once timer.
    pub(super) fn amo(&self, due: Time) -> Timer {
        Timer { mode: Mode::AtMostOnce, ..self.timer(due) }
    }

    /// A timer with a key.
    pub(super) fn keyed(&self, due: Time, key: &Key) -> Timer {
        Timer { key: Some(key.clone()), ..self.timer(due) }
    }

    /// A key whose timers live in the partition under test (for `dest`).
    pub(super) fn key_of(&self, name: &str, dest: &Destination) -> Key {
        (0..)
            .map(|n| Key::new(&format!("{name}{n}")).unwrap())
            .find(|key| PartitionId::of_key(dest, key, self.partitions) == self.partition)
            .unwrap()
    }

    pub(super) fn key(&self, name: &str) -> Key {
        self.key_of(name, &dest())
    }
}

impl TrialSource for Kit {
    fn now(&self) -> Time {
        self.now
    }

    fn timer(&self, due: Time) -> Timer {
        self.timer(due)
    }

    fn key(&self) -> Key {
        self.key(&format!("trial-{}-", unique()))
    }

    fn request(&self) -> RequestId {
        RequestId(unique())
    }
}

/// A test: takes the harness, panics if the store breaks the contract.
pub(super) type TestFn = for<'a> fn(&'a dyn Harness) -> BoxFuture<'a, ()>;

/// Returns the message of a panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
