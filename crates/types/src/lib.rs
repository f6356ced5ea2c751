//! Ids, times, names, timers, outcomes and limits of the mtimer timer broker, as plain values with
//! their validity rules.
//!
//! Invariant: a value of these types is valid; code that holds one need not check it again.
//! Not in here: any clock, randomness, I/O or wire format, except the bytes of [`extensions`],
//! which are the same in messages and stores.

#![deny(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod backoff;
mod bulk;
pub mod cohorts;
mod due_span;
pub mod extensions;
mod filter;
pub mod hash;
pub mod headers;
pub mod id;
mod import;
mod invalid;
mod key_partition;
pub mod limits;
pub mod name;
pub mod outcome;
pub mod partition;
mod priority;
mod retry_tiers;
mod settings;
pub mod story;
mod target;
mod text;
pub mod time;
pub mod timer;
pub mod trace;
mod varint;
mod verb;

pub use backoff::Backoff;
pub use bulk::{Bulk, BulkAction, BulkFailure, BulkId, BulkObstacle, NoBulkId};
pub use cohorts::Cohorts;
pub use due_span::DueSpan;
pub use extensions::{ExtensionError, Extensions, Postponed};
pub use filter::Filter;
pub use headers::{HeaderError, Headers};
pub use id::{SlotWidth, TimerId};
pub use import::{ImportGoal, ImportId, NoImportId, Staging};
pub use invalid::{InvalidBulk, InvalidImport, InvalidSettings, InvalidTimer};
pub use name::{Destination, Key, NameError};
pub use outcome::{DeadReason, Ended, HandlerOutcome};
pub use partition::{Epoch, Nonce, PartitionId, Term};
pub use priority::{InvalidPriority, Priority};
pub use retry_tiers::RetryTiers;
pub use settings::{
    DeliveryLimits, DeliveryRate, DestinationSettings, Pause, SettingsVersion, StoredSettings,
};
pub use story::{Attempt, AttemptEnd, FailedAttempt, LateCause};
pub use target::Target;
pub use text::beginning;
pub use time::Time;
pub use timer::{KeyPolicy, Mode, Timer};
pub use trace::TraceContext;
pub use verb::{UnknownVerb, Verb};
