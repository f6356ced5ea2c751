//! The builder of a client.

use std::time::Duration;

use mtimer_protocol::Role;
use mtimer_types::limits::REPEAT_HORIZON_MS;

use crate::settings::Settings;
use crate::{Client, ConnectError, TlsOptions};

/// Settings of a client; made by [`Client::builder`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use mtimer_client::{Client, ConnectError};
/// # async fn example() -> Result<(), ConnectError> {
/// let client = Client::builder()
///     .brokers(["b1:7400", "b2:7400"])
///     .software("shop/1.2")
///     .request_timeout(Duration::from_secs(3))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens until connect"]
pub struct ClientBuilder {
    pub(crate) settings: Settings,
}

impl Client {
    /// Returns the default settings, to be changed and connected with.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

impl ClientBuilder {
    /// Sets the addresses of one or more brokers, host:port each. An item may name several,
    /// separated by commas, as `MTIMER_BROKER` does: `["b1:7400", "b2:7400"]` and
    /// `["b1:7400, b2:7400"]` are the same.
    ///
    /// The first broker that answers names the others of its cluster; all given here are tried in
    /// turn whenever there is no connection. Of brokers without a cluster around them, one is used
    /// at a time.
    pub fn brokers<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.settings.brokers = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Finds a broker by the Redis that the cluster of that name stores its timers in. Needs the
    /// feature `redis`.
    ///
    /// The broker that leads is looked up there whenever there is no connection. `url` is a Redis
    /// server, or any node of a Redis Cluster; calling this again adds another node. Addresses
    /// given to [`ClientBuilder::brokers`] are tried too, before it.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, url: impl Into<String>, cluster: impl Into<String>) -> Self {
        self.settings.redis.push(crate::leader::LeaderLookup::new(url.into(), cluster.into()));
        self
    }

    /// Stays with the broker that answers first, and makes no connection to the others of its
    /// cluster: to ask about this one ([`Client::status`]). Timers of the others' partitions are
    /// out of reach. Default: false.
    pub fn one_broker(mut self, one: bool) -> Self {
        self.settings.one_broker = one;
        self
    }

    /// Sets the token that brokers are shown. Default: none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.settings.token = token.into();
        self
    }

    /// Encrypts the connections, to brokers that have a certificate. Default: they are not
    /// encrypted.
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// Sets name and version of the application, for the broker's logs; at most 128 bytes.
    pub fn software(mut self, software: impl Into<String>) -> Self {
        self.settings.software = software.into();
        self
    }

    /// Limits how long [`ClientBuilder::connect`] goes on trying. Each address is tried once at
    /// least, and has a second at least to answer; 0: one try, of 5 s at most. With the first
    /// connection, the other brokers of its cluster are tried once, for a second at most; it does
    /// not matter then whether they answer. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Limits how long a request may wait for a connection, or be sent again because a broker could
    /// not do it yet, before its call fails. Default: 10 s. A request that was sent and not
    /// answered is waited for up to [`ClientBuilder::answer_timeout`], also beyond this limit.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
        self
    }

    /// Limits how long after its first sending a request is repeated until it is known whether it
    /// was done; then its outcome is unknown. Default, and at most: 30 s, in which a repeat is the
    /// same request.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.answer_timeout = timeout.min(Duration::from_millis(REPEAT_HORIZON_MS));
        self
    }

    /// Limits how many operations may be on their way; further callers wait. 1 to 20,000, default
    /// 16,384. One with a large payload counts more: 1 for each 4 KiB begun.
    pub fn max_in_flight(mut self, operations: u32) -> Self {
        self.settings.max_in_flight = operations;
        self
    }

    /// Makes a client that only looks on: it asks questions and empties brokers, and is let in by a
    /// broker whose places for clients are all taken. Registrations and other requests fail with
    /// [`RegisterError::Observer`](crate::RegisterError) and
    /// [`RequestError::Observer`](crate::RequestError).
    pub fn observer(mut self) -> Self {
        self.settings.role = Role::Observer;
        self
    }

    /// Connects to the first broker that answers, and to the others of its cluster.
    ///
    /// Must be called within a tokio runtime: the client's tasks and handlers run on it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], the last one met, if no broker has let the client in within
    /// [`ClientBuilder::connect_timeout`]; [`ConnectError::is_retryable`] says whether another try
    /// can help.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections made by then.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        Client::connect(self.settings).await
    }
}
