//! Why a store would not take a write.

use std::path::Path;
use std::sync::Arc;

/// Why a store would not take a write. None of these is final.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Only for operations that add: schedule, reschedule, extend deadline, replay; and for a cancel of a timer that
    /// is not there, which would be remembered.
    #[error("the store is out of memory: raise its limit or let timers drain")]
    OutOfMemory,
    /// Only for operations that add: the disk has too little space left.
    #[error("the store is full: {free} bytes are free at {}: free space there, or let timers drain", path.display())]
    DiskFull {
        /// The data directory.
        path: Arc<Path>,
        /// How many bytes were free.
        free: u64,
    },
    /// The store takes no writes for now, or took none for so long that it may have forgotten
    /// whether this is a repeat.
    #[error("the store takes no writes for now")]
    ReadOnly,
    /// Only for operations that add: the store may drop stored data when its memory is full.
    #[error(
        "the store may evict what it holds when its memory is full: set its maxmemory-policy to noeviction"
    )]
    MayEvict,
    /// Fewer replicas than the durability level asks for confirmed the write in time. It is stored
    /// and may stay.
    #[error("the write was not confirmed by enough replicas in time")]
    NotReplicated,
}
