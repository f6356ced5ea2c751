//! The store contract: the calls of a partition's owner to the place where timers live, in terms of
//! timers and time.
//!
//! Purpose: one trait for the hardest store (Redis Cluster: answers arrive later, in order, may be
//! lost, may say *fenced*) that the easy ones keep as well; the formats they share; an
//! in-memory model with injectable faults; a conformance suite that every store passes.
//!
//! Invariant: everything that decides is in [`ops`] (the meaning of each operation) and is the same
//! for every store.
//!
//! Not in here: slots, scripts, connections, files, the wheel, sessions. The owner of a partition
//! never learns how its store files timers.

#![deny(missing_docs, clippy::missing_errors_doc)]

mod address;
pub mod bulk;
mod bulk_match;
pub mod call;
mod census;
#[cfg(feature = "conformance")]
pub mod conformance;
mod controls;
pub mod coordination;
pub mod counters;
mod counts;
pub mod cursor;
pub mod error;
mod first_line;
mod forecast;
pub mod lane;
pub mod listing;
#[cfg(feature = "memory")]
pub mod memory;
pub mod named;
pub mod ops;
pub mod pending;
pub mod place;
pub mod record;
mod refusal;
pub mod remembered;
pub mod settings;
pub mod table;
pub mod view;

pub use address::without_password;
pub use bulk::{BulkEnd, BulkJob, BulkPlace, Bulks};
pub use call::{Call, CallAnswer, InFlight, Load, Loaded, LoadedTimer};
pub use census::Census;
pub use controls::Controls;
pub use coordination::{Campaigned, Candidate, Coordination, Lease, LeaseHolder};
pub use counts::{Counts, CountsPage, CountsRange};
pub use cursor::LoadCursor;
pub use error::{AcquireError, LaneError, LaneFuture, StoreError, StoreFuture};
pub use first_line::FirstLine;
pub use forecast::{Forecast, ForecastRange, ForecastSums};
pub use lane::{Acquire, Acquired, Health, Lane, OwnerRecord, Store, StoreClock, StoreInfo};
pub use listing::{DeadFilter, DeadLetter, ListPage, Listed, Listing, Page, Taken, Unconfirmed};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
pub use ops::{Answer, Batch, CancelAnswer, Op, RescheduleAnswer, ScheduleAnswer, Verdict};
pub use pending::{Pending, PendingPage, PendingRange, Position};
pub use place::{Place, Retained};
pub use record::{Progress, Record, RecordError};
pub use refusal::Refusal;
pub use remembered::RequestId;
pub use settings::Settings;
