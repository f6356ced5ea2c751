//! mtimer's store for those who have no Redis: one process, one directory.
//!
//! Purpose: the store contract on a log-structured storage engine (fjall), with group commit.
//!
//! Invariant: answered writes survive at least a crash of the process, and at
//! [`EmbeddedDurability::Sync`] a power cut. Opening a directory checks the files: it takes as long
//! as reading the journals and up to 1 GiB of tables. Unanswered writes never prevent it; damage to
//! answered ones does, and is named with its place (`check.rs`).
//!
//! Not in here: the meaning of operations (`mtimer_store::table`), any copy of the timers in
//! memory.

#![deny(missing_docs, clippy::missing_errors_doc)]

mod below_floor;
mod check;
mod committer;
mod compactor;
mod damage;
mod destinations;
mod directory;
mod fault;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod journal;
mod lane;
mod lane_shared;
mod layout;
mod listing;
mod marker;
mod open_error;
mod opening;
mod options;
mod partition;
mod remembered;
mod repair;
mod restore;
mod space;
mod table;
mod tables;
mod tree;

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use futures_util::FutureExt;
use mtimer_store::{
    Acquire, AcquireError, Acquired, OwnerRecord, Store, StoreClock, StoreError, StoreFuture, StoreInfo,
    counters,
};
use mtimer_types::{PartitionId, Term};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::committer::{Acquisition, AnswerFn, Committer, CommitterCall, CommitterQueue, MAX_WAITING};
pub use crate::damage::Damage;
use crate::directory::Directory;
use crate::fault::Fault;
use crate::lane::EmbeddedLane;
pub use crate::open_error::OpenError;
use crate::opening::Opening;
pub use crate::options::{EmbeddedDurability, EmbeddedOptions};
pub use crate::repair::{RepairReport, repair};
pub use crate::space::SpaceLimits;
use crate::space::{DiskSpace, Seen};

/// A store in a directory. Dropping it closes it and blocks until that is done; see
/// [`EmbeddedStore::close`].
pub struct EmbeddedStore {
    queue: CommitterQueue,
    info: StoreInfo,
    space: Arc<Seen>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens a data directory, or makes one. Blocks for as long as it takes to check the journals
    /// and up to 1 GiB of tables, and for the engine to read its journal.
    ///
    /// # Errors
    ///
    /// If the directory is in use, has another number of partitions or another format, is not
    /// mtimer's, is damaged, or cannot be written.
    pub fn open(options: EmbeddedOptions) -> Result<Self, OpenError> {
        let path = options.path.clone();
        let directory = Directory::open(&path, options.partitions)?;
        let (sender, calls) = mpsc::sync_channel(MAX_WAITING);
        let queue = CommitterQueue(sender);
        let space = DiskSpace::new(path.clone(), options.space);
        let seen = space.seen();
        let committer = Opening::new(directory.database, &options).committer(space)?;
        let info = StoreInfo {
            kind: "embedded",
            durability: options.durability.name(),
            partitions: options.partitions,
        };
        let lock = directory.lock;
        let thread = std::thread::Builder::new()
            .name("mtimer-store".to_owned())
            .spawn(move || committer.run(calls, lock))
            .map_err(|source| OpenError::Io { what: "start the thread for", path, source })?;
        Ok(Self { queue, info, space: seen, thread: Mutex::new(Some(thread)) })
    }

    /// Carries out the calls that were made, syncs, and gives the directory free. Later calls find
    /// the store broken, as closed.
    pub async fn close(&self) {
        self.begin_close().await.ok();
        self.join();
    }

    /// Sets when to warn of little free space, and when to refuse operations that add.
    ///
    /// # Errors
    ///
    /// If the store is closed.
    pub async fn limit_space(&self, limits: SpaceLimits) -> Result<(), StoreError> {
        self.ask(move |committer| {
            committer.space.limit(limits);
            Ok::<(), StoreError>(())
        })
        .await
    }

    fn begin_close(&self) -> oneshot::Receiver<()> {
        let (done, closed) = oneshot::channel();
        let work = Box::new(move |committer: &mut Committer| -> AnswerFn {
            committer.close(done);
            Box::new(|_| {})
        });
        self.queue.send(CommitterCall { weight: 1, work });
        closed
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            tracing::error!("the embedded store's thread has panicked");
        }
    }

    fn ask<T, E>(
        &self,
        ask: impl FnOnce(&mut Committer) -> Result<T, E> + Send + 'static,
    ) -> StoreFuture<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (answer, receiver) = oneshot::channel();
        let work = Box::new(move |committer: &mut Committer| -> AnswerFn {
            let result = ask(committer);
            Box::new(move |fault| {
                // The caller has dropped the future and does not want the answer.
                let _ = answer.send(fault.map_or(result, |fault| Err(StoreError::from(fault).into())));
            })
        });
        self.queue.send(CommitterCall { weight: 1, work });
        async move { receiver.await.unwrap_or_else(|_| Err(StoreError::from(&Fault::Closed).into())) }.boxed()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        if self.thread.get_mut().is_some() {
            drop(self.begin_close());
            self.join();
        }
    }
}

impl Store for EmbeddedStore {
    fn info(&self) -> StoreInfo {
        self.info.clone()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.ask(move |committer| committer.owner(partition))
    }

    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        let queue = self.queue.clone();
        self.ask(move |committer| {
            let Acquisition { lane: shared, in_flight } = committer.acquire(&acquire)?;
            let (epoch, prior_claim) = (shared.epoch, shared.prior_claim);
            Ok(Acquired { lane: Arc::new(EmbeddedLane { shared, queue }), epoch, prior_claim, in_flight })
        })
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        self.ask(Committer::raise_term)
    }

    fn clocks(&self) -> Vec<StoreClock> {
        Vec::new()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![(counters::DISK_FREE_BYTES, self.space.free()), (counters::DISK_LEVEL, self.space.level())]
    }
}
