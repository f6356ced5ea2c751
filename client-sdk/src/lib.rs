//! mtimer's client: schedule timers, and be called back when they are due.
//!
//! Purpose: everything an application needs to talk to an mtimer cluster. One [`Client`] holds a connection to each of its
//! brokers, keeps them alive, sends everything to the broker that owns the timer's partition, repeats elsewhere what a broken
//! connection left unanswered, and runs the handlers of the callbacks that arrive over any of them.
//!
//! Invariant: a repeated request is the same request (same id, same request number, same time of first sending), so
//! that a repeat never makes a second timer. Nothing queues without a bound: callers wait instead.
//!
//! Not in here: any decision of a broker. Which timer is due, what a retry costs and who owns a partition are never
//! guessed by a client.
//!
//! With the cargo feature `redis`, a client can also find its brokers by the cluster's Redis (`ClientBuilder::redis`).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use mtimer_client::{Client, Destination, Outcome, Schedule};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().brokers(["127.0.0.1:7400"]).connect().await?;
//! let dest = Destination::new("orders", "billing")?;
//!
//! let registration = client.on(dest.clone(), async |callback| {
//!     println!("{} is due: {:?}", callback.id, callback.payload);
//!     Outcome::ok()
//! })?;
//!
//! let scheduled = client.schedule(Schedule::after(dest, Duration::from_secs(5)).payload("hello")).await?;
//! println!("scheduled {}", scheduled.id);
//!
//! registration.stop().await;
//! client.close().await?;
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod answer;
mod backoff;
mod batch;
mod builder;
mod call;
mod callback;
mod client;
mod clock;
mod cluster;
mod dedupe;
mod error;
mod handler;
mod inbox;
#[cfg(feature = "redis")]
mod leader;
mod line;
mod link;
mod outbox;
mod pool;
mod probe;
mod queries;
mod register;
mod registering;
mod requests;
mod router;
mod routes;
mod schedule;
mod sending;
mod session;
mod settling;
mod shared;
mod sync;

pub use answer::{Cancelled, DeadFilter, Info, Listing, Replayed, Rescheduled, Scheduled, Stats};
pub use builder::ClientBuilder;
pub use callback::{Callback, Outcome};
pub use client::Client;
pub use error::{CloseError, ConnectError, RegisterError, RequestError, ScheduleError};
pub use probe::Probe;
pub use register::{Register, Registration};
pub use schedule::{Schedule, When};

pub use mtimer_protocol::{
    BrokerEntry, BrokerLoad, BrokerView, ClientView, ClusterView, DeadRow, ErrorCode, MemberView,
    PartitionView, Status, TimerState, TimerView, Topology, UnconfirmedRow,
};
pub use mtimer_types::{
    DeadReason, Destination, Ended, Epoch, Key, KeyPolicy, Mode, NameError, PartitionId, RetryTiers, Target,
    Term, Time, Timer, TimerId, id::ParseIdError, limits, timer::InvalidTimer,
};
