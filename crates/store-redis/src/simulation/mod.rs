//! Turns without Redis: an owner on a simulated server that fails as a seed says.
//!
//! | module | contents |
//! |---|---|
//! | `data` | the keys, and the effects of commands and scripts on them |
//! | `server` | connections to them, and everything that can go wrong on the way |
//! | `run` | random calls, compared with the model of the conformance suite after each |
//! | `work`, `compare` | the requests of a run; all that can be seen, compared with the model |
//! | `arbitrary` | random timers and times |
//! | `rules` | each rule of the design, broken on purpose and found |
//! | `replaced` | a master that is replaced and serves on, and Sentinels that lag |
//! | `lost` | a key that is lost although the sequence number shows no loss |
//! | `bulks` | bulk jobs, and the marks of timers |
//! | `torn` | an owner that dies while its last write is cut off half way |
//!
//! `MTIMER_SIM_SEED` repeats one seed, `MTIMER_SIM_SEEDS` says how many are run.

mod arbitrary;
mod bulks;
mod compare;
mod data;
mod lost;
mod replaced;
mod rules;
mod run;
mod server;
mod torn;
mod work;

use std::cell::Cell;

/// A rule that the owner breaks on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// A write whose answer was lost is given up, and its number used again.
    WriteGivenUp,
    /// A write that may have run half way is refused when the store is full.
    RefusedAfterDoubt,
    /// Reads count under any stored sequence number.
    UnguardedReads,
    /// A full store refuses writes that free, too.
    FreeingRefused,
    /// Slots that were found at the acquisition are taken for empty.
    FoundSlotsTakenForEmpty,
    /// Nothing is noted of a new timer's destination in the picture of its slot.
    DestinationsForgotten,
    /// A timer that came while the listings were read is counted again when it is read.
    CountedTwice,
    /// A timer that was not counted is taken off the counts when it goes.
    UncountedTakenOff,
    /// Counts are called exact while slots are uncounted.
    UncountedForgotten,
    /// A page of pending timers has rows that fire after a slot begins that was not read.
    UnreadSlotsIgnored,
    /// Nobody is told of a slot that is in an index and has nothing.
    LostSlotsPassedOver,
    /// Keys that were found at the acquisition are taken for free.
    FoundKeysTakenForFree,
    /// Keys that were found at the acquisition are taken for this owner's.
    FoundKeysTakenForOurs,
    /// Timers are taken to be where their ids imply, even if `moved` says otherwise.
    EntriesIgnored,
    /// Timers that were attempted, or stopped, have no entry in `moved`.
    LaterAttemptsImplied,
    /// An acknowledgement that was written blind is done, even if it has found no timer.
    MissesIgnored,
    /// At-most-once timers are acknowledged as if this owner had taken them.
    AllTakenForOurs,
    /// A key is freed even if it names another timer by now.
    FreedWithoutComparing,
    /// Bulk jobs are written ahead of the timers on which they have acted.
    BulksAheadOfTimers,
    /// A write whose answer was lost tells its owner of no bulk jobs.
    UnreportedBulksForgotten,
    /// Timers are taken without reading them while a bulk job is under way.
    MarkedTimersUnread,
    /// Index entries are written behind the contents that they announce.
    IndexBehindContents,
    /// A copy of a write that arrives while others are applied again ends the lane.
    NoCopyDuringReplay,
    /// A store that lost writes ends the lane.
    NoLog,
    /// An acquisition knows nothing of the epochs that were seen.
    NoFloor,
    /// Remembered outcomes stay for ever.
    NoExpiry,
    /// Client requests are decided, however long ago they were handed over.
    LateRequestsDecided,
    /// Keys name timers before these are written.
    KeysBeforeRows,
    /// An owner answers before replicas have its acquisition.
    UnsafeAcquisition,
    /// Only replicas that the topology names count.
    UnnamedReplicasIgnored,
    /// A connection is used for as long as it lives, even if its server is not the master any more.
    MasterKept,
    /// A replica that has left its master counts no more at once.
    LeftReplicaForgotten,
    /// `WAIT` follows a read on its connection, and no write.
    WaitWithoutWrite,
}

thread_local! {
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

/// Whether the rule is broken in this thread.
pub(crate) fn broken(rule: Broken) -> bool {
    BROKEN.get() == Some(rule)
}

/// Runs `test` with a broken rule.
fn with_broken<T>(rule: Broken, test: impl FnOnce() -> T) -> T {
    BROKEN.set(Some(rule));
    let result = test();
    BROKEN.set(None);
    result
}
