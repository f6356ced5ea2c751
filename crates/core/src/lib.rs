//! mtimer's decisions: pure, without I/O, clock, runtime or global randomness.
//!
//! Purpose: everything that decides whether, when and to whom a timer is delivered, and how it
//! ends. A broker is an [`Engine`] with a thin shell around it: time, store answers and client
//! messages go in, [`Effect`]s come out.
//! Invariant: the same inputs give the same effects; nothing here waits, blocks or fails.
//! Not in here: sockets, tasks, `Instant::now`, the store's implementation, files.

#![warn(missing_docs)]

pub mod api;
pub mod clock;
pub mod cluster;
pub mod engine;
pub mod figures;
pub mod retry;
mod rng;

pub use api::{
    Call, CallAnswer, Counter, DeniedOp, Died, Effect, EngineOptions, Input, Now, SessionEvent, SessionId,
};
pub use clock::ClusterClock;
pub use engine::Engine;
