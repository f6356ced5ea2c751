//! mtimer's vocabulary: what both sides of the wire and every room of the broker call things.
//!
//! Purpose: ids, times, names, timers, outcomes and limits as plain values with their validity rules.
//! Invariant: a value of these types is valid; whoever holds one need not check it again.
//! Not in here: any clock, randomness, I/O or wire format.

#![warn(missing_docs)]

pub mod cohorts;
pub mod id;
pub mod limits;
pub mod name;
pub mod outcome;
pub mod time;
pub mod timer;

pub use cohorts::Cohorts;
pub use id::{Epoch, Nonce, PartitionId, SlotWidth, Term, TimerId};
pub use name::{Destination, Key, NameError};
pub use outcome::{DeadReason, Ended, HandlerOutcome};
pub use time::Time;
pub use timer::{KeyPolicy, Mode, RetryTiers, Target, Timer};
