//! The parts that an implementation brings along so that the suite can run on it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mtimer_types::PartitionId;

use crate::Store;

/// Makes stores to test. One harness serves many tests, also at the same time.
pub trait Harness: Send + Sync {
    /// A new, empty place for timers with this many partitions (8 at most), untouched by every
    /// other one.
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>>;
}

/// One place for timers: everything that is opened here works on the same data.
pub trait Site: Send + Sync {
    /// A handle on the data, as another broker would have it. A store that can be open only once
    /// may give out the same handle again.
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Closes and opens the store itself (the process dies and comes back). All handles and lanes
    /// have been dropped before; [`Site::open`] follows. Default: not supported, for a store that
    /// keeps nothing.
    fn restart(&mut self) -> BoxFuture<'_, Result<(), Unsupported>> {
        Box::pin(async { Err(Unsupported) })
    }

    /// Provokes a fault. Default: none is supported. A test whose fault is not supported passes and
    /// says so.
    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        let _ = fault;
        Box::pin(async { Err(Unsupported) })
    }
}

/// This site cannot do that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsupported;

/// A fault that a harness injects on request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The next request that this partition's lane sends is applied by the store, but its answer is
    /// lost.
    LoseNextAnswer(PartitionId),
    /// The next request that this partition's lane sends never arrives.
    LoseNextCall(PartitionId),
    /// The store cannot be reached, until [`Fault::ComeUp`].
    GoDown,
    /// It can be reached again, with everything it had. Follows every [`Fault::GoDown`], and every
    /// lost answer or call once the calls under test have been made (perhaps before they have left
    /// the lane): a site whose lanes find back by themselves has nothing to do then, and must not
    /// disarm the loss.
    ComeUp,
    /// From now on (or no longer) the store refuses writes that need more memory.
    OutOfMemory(bool),
    /// Remembered outcomes and answers are forgotten as if the repeat horizon had passed. (A store
    /// that goes by [`crate::Batch::now`] has nothing to do: the test moves that by a minute, too.)
    ForgetEnded,
}
