//! The engine as a state machine: any order of what clients, stores, clocks and operators may do.
//!
//! Purpose: to find an input after which the engine panics, leaves something unanswered, forgets to
//! give a credit or a slot back, or breaks a promise. A program of bytes (`input`) chooses every
//! step.
//! Invariant: only what the contract allows goes in: answers of the kind of their calls, in order;
//! an epoch that rises. Two stores stand behind the engine: one whose answers have any content
//! (`answers`), so that nothing may depend on what a store says, and the in-memory model (`model`),
//! which keeps the contract, so that promises can be checked (`ledger`) and everything has to come
//! to an end. What both know of each operation is in `operations`.

mod answers;
mod asked;
mod backend;
mod input;
mod ledger;
mod model;
mod operations;
mod world;

pub(crate) use answers::any_answers;
pub(crate) use model::model_store;
