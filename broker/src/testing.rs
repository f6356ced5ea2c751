//! A broker in the process of an application's tests.
//!
//! Invariant: it keeps its timers in memory and listens on a free port of 127.0.0.1, so tests run
//! at the same time and leave nothing behind.
//!
//! Not in here: durability. Timers end with the broker; everything else of the contract holds.

use std::net::SocketAddr;
use std::sync::Arc;

use mtimer_store::MemoryStore;

use crate::{Broker, BrokerError, BrokerOptions, StartError};

/// Partitions of its store.
const PARTITIONS: u16 = 16;

/// A broker for one test. Dropping it stops it at once.
///
/// ```
/// use std::time::Duration;
///
/// use mtimer_broker::testing::TestBroker;
/// use mtimer_client::{Client, Destination, Schedule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = TestBroker::start().await?;
/// let client = Client::builder().brokers([broker.address()]).connect().await?;
/// let orders = Destination::new("shop", "orders")?;
///
/// let (called, mut calls) = tokio::sync::mpsc::unbounded_channel();
/// let registration = client.on(&orders, move |callback| {
///     let sent = called.send(callback.payload);
///     async move { sent.map_err(|error| error.to_string()) }
/// })?;
/// let in_an_hour = Schedule::after(&orders, Duration::from_secs(3_600)).payload("hello");
/// let id = client.schedule(in_an_hour).await?.id;
/// // Nobody waits an hour in a test: make it due now.
/// client.reschedule(id, Duration::ZERO).await?;
/// assert_eq!(calls.recv().await.as_deref(), Some(&b"hello"[..]));
///
/// registration.stop().await;
/// client.close().await?;
/// broker.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestBroker {
    broker: Broker,
}

impl TestBroker {
    /// Starts a broker with the usual options.
    ///
    /// # Errors
    ///
    /// [`StartError`] if the system has no free port or timer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the broker at once.
    pub async fn start() -> Result<Self, StartError> {
        Self::start_with(BrokerOptions::default()).await
    }

    /// Starts a broker with other options, such as retry delays that a test can wait for.
    /// [`BrokerOptions::listen`] is not looked at.
    ///
    /// # Errors
    ///
    /// [`StartError`] if an option is out of range, or the system has no free port or timer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the broker at once.
    pub async fn start_with(options: BrokerOptions) -> Result<Self, StartError> {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let store = Arc::new(MemoryStore::new(PARTITIONS));
        let broker = crate::start(BrokerOptions { listen, ..options }, store).await?;
        Ok(Self { broker })
    }

    /// Returns its address, `host:port`, for `ClientBuilder::brokers`.
    pub fn address(&self) -> String {
        self.broker.local_addr().to_string()
    }

    /// Stops it, and waits until it has ended: for settlements up to
    /// [`BrokerOptions::drain_timeout`], 10 s unless set otherwise, so close the clients first.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] if it had ended before.
    pub async fn stop(self) -> Result<(), BrokerError> {
        self.broker.stop().await
    }
}
