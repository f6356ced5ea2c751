//! The store contract: what a partition's owner asks of the place where timers live, in terms of
//! timers and time.
//!
//! Purpose: one trait for the hardest store (Redis Cluster: answers arrive later, in order, may be
//! lost, may say *fenced*) that the easy ones keep as well; the record format they share; an
//! in-memory model with injectable faults; a conformance suite that every store passes.
//!
//! Invariant: everything that decides is in [`op`] (what each operation means) and is the same for
//! every store.
//!
//! Not in here: slots, scripts, connections, files, the wheel, sessions. The owner of a partition
//! never learns how its store files timers.

#![deny(missing_docs, clippy::missing_errors_doc)]

mod address;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod coordination;
pub mod counters;
pub mod cursor;
pub mod decide;
pub mod error;
mod first_line;
pub mod lane;
pub mod memory;
pub mod op;
pub mod record;
pub mod view;

pub use address::without_password;
pub use coordination::{Campaigned, Candidate, Coordination, Lease, LeaseHolder};
pub use cursor::LoadCursor;
pub use error::{AcquireError, LaneError, LaneFuture, StoreError, StoreFuture};
pub use first_line::FirstLine;
pub use lane::{
    Acquire, Acquired, Census, DeadFilter, DeadLetter, Health, InFlight, Lane, Load, Loaded, LoadedTimer,
    OwnerRecord, Page, Store, StoreClock, StoreInfo, Taken, Unconfirmed,
};
pub use memory::MemoryStore;
pub use op::{
    Answer, Batch, CancelAnswer, Op, Place, Refusal, RequestId, RescheduleAnswer, Retained, ScheduleAnswer,
    Verdict,
};
pub use record::{Progress, Record, RecordError};
