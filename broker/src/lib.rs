//! One broker process as a library: the thin shell around [`mtimer_core::Engine`].
//!
//! Purpose: clocks, sockets, store lanes and tasks. It turns events into the engine's inputs and
//! carries out its effects. [`start`] gives a running [`Broker`]; [`config`] turns file,
//! environment and flags into its options. [`testing`] has a broker for the tests of applications.
//!
//! Invariant: one task owns the engine and never waits for a client or a store; everything that can
//! queue up in front of it or behind it is bounded, in bytes where bytes can come from outside.
//!
//! Not in here: any decision about timers (the engine's), how timers are stored (the store's), the
//! command line.

#![warn(missing_docs, clippy::missing_errors_doc)]

mod access;
mod acquire;
mod admission;
mod broker;
mod clock;
mod cluster;
pub mod config;
mod connection;
mod connection_slots;
mod counters;
mod deaths;
mod error;
mod exposure;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod http;
mod inbox;
mod lanes;
mod limits;
mod listener;
mod losses;
mod metrics;
mod observed;
mod options;
#[cfg(feature = "otel")]
pub mod otel;
mod outage;
mod outbox;
mod precise;
mod refused;
mod reports;
mod session;
mod sessions;
mod shell;
mod stopping;
mod tasks;
pub mod testing;
mod tls;
pub mod traces;
mod wheel;
mod writer;

pub use access::{AccessError, AccessOptions, PeerToken, RedisCertificates};
pub use broker::{Broker, start, start_unless};
pub use clock::{HostClock, SystemClock};
pub use error::{BrokerError, StartError};
pub use http::DEFAULT_HTTP;
pub use mtimer_access::Limits;
pub use mtimer_tls::{PrivateFileError, check_private, read_private};
pub use options::{BrokerOptions, ClusterOptions, HttpListen, InvalidOptions};
pub use tls::{BrokerTlsError, BrokerTlsOptions};
