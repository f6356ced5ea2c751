//! Real Redis servers for tests: standalone, cluster, and a proxy that cuts connections. And a
//! store without its fence. The servers are those of `MTIMER_REDIS_BIN`, a folder that
//! `tests/servers` makes, or else those on the `PATH`.
//!
//! Behind the feature `test-support`. Everything runs on free loopback ports, or in a [`Place`],
//! and in temporary folders, and is killed on drop. It panics where a test would: there is nothing
//! to recover.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

mod cluster;
mod hanging_disk;
mod port;
mod proxy;
mod rights;
mod sentinel;
mod server;
mod slowlog;
mod tls;
mod unfenced;

pub use cluster::TestCluster;
pub use hanging_disk::HangingDisk;
pub use port::Port;
pub use proxy::Proxy;
pub use rights::{as_user, documented_rights, documented_sentinel_rights, user_with};
pub use sentinel::Sentinels;
pub use server::{Place, Server, ServerOptions, TlsPort, redis_program};
pub use slowlog::{Durations, print_durations};
pub use tls::Authority;
pub use unfenced::cut_the_fence;
pub(crate) use unfenced::{fence_is_cut, without_fence};
