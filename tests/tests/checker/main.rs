//! The checker is shown to fail: one good history, and for every invariant histories that break it
//! and nothing else.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod invariants;
mod rules;
mod story;
