//! Several brokers on one Redis under steady load, while brokers, Redis and the network between
//! them are done everything to that hurts: the contract holds on everything that clients saw and
//! that brokers logged.
//!
//! `MTIMER_LONG=1` runs the full load and more rounds. `MTIMER_SEED` repeats the choices of a run
//! (not its timing). Times are printed and not asserted: what is asserted is the contract, and that
//! everything comes to an end.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod cuts;
mod kills;
mod lost_writes;
mod members;
mod net;
mod pauses;
mod sabotage;
mod scene;
mod store;
