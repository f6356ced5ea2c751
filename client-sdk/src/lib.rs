//! Schedule timers at an mtimer cluster, and be called back when they are due.
//!
//! A program that schedules an order's timeout and takes its callback, against a broker that
//! `mtimer dev` has started:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use mtimer_client::{Callback, Client, Destination, Key, Schedule};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     number: u32,
//! }
//!
//! /// State shared by the calls of the handler.
//! struct Shop {
//!     name: String,
//! }
//!
//! async fn on_unpaid(shop: Arc<Shop>, order: Order, callback: Callback) -> Result<(), std::io::Error> {
//!     println!("{}: order {} was not paid, attempt {}", shop.name, order.number, callback.attempt);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::builder().brokers(["127.0.0.1:7400"]).connect().await?;
//!     let unpaid = Destination::new("shop", "unpaid-orders")?;
//!     let shop = Arc::new(Shop { name: "books".to_owned() });
//!     let registration = client.register(&unpaid).state(shop).on_json(on_unpaid)?;
//!
//!     let schedule = Schedule::after(&unpaid, Duration::from_secs(900))
//!         .key(Key::new("order-17")?)
//!         .json(&Order { number: 17 })?;
//!     client.schedule(schedule).await?;
//!     // It was paid:
//!     client.cancel(unpaid.key("order-17")?).await?;
//!
//!     tokio::signal::ctrl_c().await?;
//!     registration.stop().await;
//!     client.close().await?;
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//!
//! - A [`Client`] holds a connection to each broker of one cluster. Clone it; one for a process is
//!   enough.
//! - A [`Destination`], a group and an app, is where a callback goes: a client that has registered
//!   for it takes it. Of several clients that have registered, one gets each callback.
//! - A [`Schedule`] describes a timer. [`Client::schedule`] stores it under a [`TimerId`] that the
//!   client makes.
//! - A [`Key`] is the application's own name for a timer, unique within its destination while the
//!   timer lives. [`KeyPolicy`] says what happens if the name is taken.
//! - A [`Target`] names a timer to [`Client::cancel`], [`Client::reschedule`],
//!   [`Client::extend_deadline`] and [`Client::get`]: an id, or [`Destination::key`].
//! - [`Client::list`] finds timers by what a [`Filter`] says, in the order in which they fire;
//!   [`Client::destinations`] says how many there are.
//! - A [`Bulk`] job does one action on every timer that a [`Filter`] finds; brokers carry it out
//!   ([`Client::begin_bulk`]).
//! - A handler gets a [`Callback`] and returns an [`Outcome`]: done, another attempt, or a dead
//!   letter. See [`Register`].
//! - A [`Time`] is of the cluster's clock. [`SystemTime`](std::time::SystemTime) and
//!   [`Duration`](std::time::Duration) are taken wherever a time is; nothing fires early.
//!
//! # At least once, at most once
//!
//! [`Mode::AtLeastOnce`], the default, delivers a timer until a handler has settled it, it is a
//! dead letter, or its own deadline has passed. A timeout, a crash or a takeover can make a
//! duplicate, which has the same id and a higher `(epoch, attempt)`: handlers must bear being
//! called twice. [`Register::dedupe`] removes duplicates within one process.
//!
//! [`Mode::AtMostOnce`] delivers a timer once at most, under any failure. A timer that may have
//! been delivered and was never confirmed is listed by [`Client::unconfirmed`], and a person
//! decides.
//!
//! # Errors, and which retry is safe
//!
//! The client repeats by itself all requests that can be repeated, within
//! [`ClientBuilder::request_timeout`] and for up to [`ClientBuilder::answer_timeout`] after a
//! connection was lost with an answer outstanding. After that the call returns an error that tells
//! two things: [`RequestError::is_retryable`], whether another try can help, and
//! [`RequestError::has_no_side_effects`], whether it is certain that nothing was done.
//!
//! - Cancel, reschedule, extend deadline, purge and all questions can be called again in any case, a
//!   bulk job can be begun again under its id.
//! - A schedule can be called again with the same id ([`Client::prepare`]): it never makes a second
//!   timer. A clone without an id is another timer.
//! - After [`RequestError::Unknown`] nobody can tell any more by repeating: ask [`Client::get`].
//!
//! # Features
//!
//! - `jiff`: conversions between [`Time`] and `jiff::Timestamp`, and timestamps wherever a time is
//!   taken.
//! - `otel`: a timer carries the trace of the code that schedules it, and its handler goes on with
//!   it, by OpenTelemetry.
//! - `redis`: finds the brokers by the cluster's Redis (`ClientBuilder::redis`).
//!
//! # Spans
//!
//! Around a schedule there is a span `mtimer.schedule` (`mtimer.schedule_all`), around a handler
//! `mtimer.callback`, with group, app and id: at level INFO with the target `mtimer_client::trace`,
//! by which they can be left out. They have no payloads and no values of headers.
//!
//! # Logs
//!
//! The client logs with `tracing`: lost connections, and each failure of a handler once, at level
//! warn, with group, app, id and attempt. Payloads are never logged. The text of a handler's error
//! is up to the application.

// Purpose: everything that an application needs to talk to a cluster. Each request goes to the
// broker that owns the timer's partition; requests that a broken connection left unanswered are
// repeated elsewhere.
//
// Invariant: a repeated request is the same request (same id, same request number, same time of
// first sending), so that a repeat never makes a second timer. Nothing queues without a bound:
// callers wait instead.
//
// Not in here: any decision of a broker. A client never guesses which timer is due, the cost of a
// retry, or the owner of a partition.

#![deny(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

/// The code of the guide and of the README, compiled as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/sdk.md")]
    pub struct Sdk;
    #[doc = include_str!("../README.md")]
    pub struct Readme;
}

mod answer;
mod batch;
mod builder;
mod bulk;
mod callback;
mod client;
mod clock;
mod cluster;
mod configure;
mod counters;
mod dead;
mod dedupe;
mod destinations;
mod driver;
mod error;
mod forecast;
mod handler;
mod import;
mod intake;
#[cfg(feature = "redis")]
mod leader;
mod link;
mod list;
mod listing;
mod machine;
mod partitions;
mod probe;
mod register;
mod schedule;
mod sending;
mod session;
mod settings;
mod shell;
mod spread;
mod state;
mod sync;
mod tls;
mod trace;

pub use answer::{
    DeadFilter, DestinationFilter, Destinations, Forecast, ForecastRequest, Info, Replayed, Scheduled, Stats,
};
pub use builder::ClientBuilder;
pub use bulk::BulkProgress;
pub use callback::{Callback, Outcome};
pub use client::Client;
pub use configure::{ConfiguredDestination, PauseRequest};
pub use error::{
    BulkError, CloseError, ConfigureError, ConnectError, RegisterError, RequestError, ScheduleError,
};
pub use import::{ForeignTimer, ImportError, Staged};
pub use list::{ListCursor, ParseCursorError, TimerList};
pub use listing::Listing;
pub use probe::Probe;
pub use register::{Register, Registration};
pub use schedule::{Schedule, When};
pub use tls::TlsOptions;

/// Says why certificates or keys cannot be used.
pub use mtimer_tls::TlsError;

#[doc(inline)]
pub use mtimer_protocol::ops::ImportedRecord;
pub use mtimer_protocol::ops::{
    CancelReply as Cancelled, ExtendDeadlineReply as Extended, RescheduleReply as Rescheduled,
};
pub use mtimer_protocol::{
    BrokerEntry, BrokerLoad, BrokerView, BulkState, ClientView, ClusterView, DeadRow, DestinationCounts,
    ErrorCode, LimitedDestination, MAX_LIMITED_DESTINATIONS, MAX_PAUSED_DESTINATIONS, MemberView,
    ParkedDestination, PartitionView, PausedDestination, PendingRow as ListedTimer, RecordRest, Status,
    TimerState, TimerStory, TimerView, Topology, UnconfirmedRow,
};
pub use mtimer_types::{
    Attempt, AttemptEnd, Bulk, BulkAction, BulkFailure, BulkId, BulkObstacle, DeadReason, DeliveryLimits,
    DeliveryRate, Destination, DestinationSettings, DueSpan, Ended, Epoch, ExtensionError, Extensions,
    FailedAttempt, Filter, HeaderError, Headers, ImportGoal, ImportId, InvalidBulk, InvalidImport,
    InvalidSettings, InvalidTimer, Key, KeyPolicy, LateCause, Mode, NameError, NoBulkId, NoImportId,
    PartitionId, Pause, Priority, RetryTiers, Staging, Target, Term, Time, Timer, TimerId, id::ParseIdError,
    limits,
};
