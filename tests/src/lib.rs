//! What mtimer's process tests share: brokers and Redis servers as child processes, clients that
//! record what they see, and a checker that decides the contract's invariants on the record.
//!
//! Invariant: nothing that a test starts outlives it, also when it panics ([`Process`] and the
//! Redis servers kill on drop). Children stay in the test's process group, so that an interrupt
//! from a terminal reaches them as well.
//!
//! Not in here: any knowledge of how a broker works inside. Everything is seen through its command
//! line, its socket, the client SDK, and `/proc`.

#![warn(missing_docs)]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

mod behaviour;
mod binary;
mod broker;
mod check;
mod cluster;
mod drain;
mod edges;
mod figures;
mod fires;
mod history;
mod journal;
mod left;
mod party;
mod plan;
mod process;
mod recorder;
pub mod scrape;
mod skip;
mod spread;
mod tell;
mod wire;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use behaviour::Behaviour;
pub use binary::{mtimer, without_settings};
pub use broker::{Broker, Launch, Sabotage};
pub use check::{HOP_MS, Verdict, Violation, check, judge, print_violations};
pub use cluster::{Cluster, Lag, Load, Member, Net, Proxy, Redis, RedisKind, Setup, Way, Ways, Work, apart};
pub use drain::{drain, free_keys, purge};
pub use edges::{Connect, Edges, watch_clock};
pub use figures::Figures;
pub use fires::{Fire, Takeover, fires, lateness, takeover};
pub use history::{ClockReading, Event, Excuse, Fault, Handled, History, Limits, Said};
pub use journal::{Entry, Journal, Note};
pub use left::{Final, Left};
pub use mtimer_store_redis::test_support::{Place, Server, ServerOptions};
pub use party::{Label, Parties};
pub use plan::{Plan, serial_of};
pub use process::{Process, cpu_seconds, rss_kib, signal};
pub use recorder::Recorder;
pub use rustix::process::Signal;
pub use skip::skip;
pub use spread::Spread;
pub use tell::tell;
pub use wire::Wire;

/// Whether the long rounds were asked for (`MTIMER_LONG=1`).
pub fn long() -> bool {
    std::env::var_os("MTIMER_LONG").is_some_and(|v| v == "1")
}

/// The number of a random choice: `MTIMER_SEED`, or a new one, which is printed so that it can be
/// given again.
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("MTIMER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| rand::random::<u32>().into());
    println!("{test}: MTIMER_SEED={seed}");
    seed
}

/// The host's clock, ms since the epoch.
pub fn host_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_millis()).expect("a clock before the end of time")
}

/// Waits until `done` says so, looking often; panics with `what` when it takes longer than `limit`.
pub async fn wait_for(what: &str, limit: Duration, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Value of a counter in a status; it must be there.
pub fn counter(status: &mtimer_client::Status, name: &str) -> u64 {
    let found = status.counters.iter().find(|(n, _)| n == name);
    found.unwrap_or_else(|| panic!("no counter {name} among {:?}", status.counters)).1
}
