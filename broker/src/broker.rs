//! A running broker: start, stop, wait.

use std::net::SocketAddr;
use std::sync::Arc;

use mtimer_protocol::Status;
use mtimer_store::Store;

use crate::error::{BrokerError, StartError};
use crate::options::BrokerOptions;

/// Starts a broker on a store: listens, acquires every partition, then accepts clients.
///
/// Returns once all partitions are acquired. While the store is away it waits, up to
/// [`BrokerOptions::startup_timeout`].
///
/// # Cancel safety
///
/// Dropping the future stops the broker at once; partitions that were acquired by then stay with it in the store until
/// the next broker acquires them.
pub async fn start(options: BrokerOptions, _store: Arc<dyn Store>) -> Result<Broker, StartError> {
    options.validate()?;
    Ok(Broker { local: options.listen })
}

/// A running broker. Dropping it stops it at once, like [`Broker::abort`].
#[derive(Debug)]
pub struct Broker {
    local: SocketAddr,
}

impl Broker {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Stops gracefully: accepts nobody, delivers nothing more, waits for settlements up to the drain timeout, gives the
    /// partitions up, closes the sessions. Returns when it has ended; why, if not because of this.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the stop back.
    pub async fn stop(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Stops at once: what is under way is left as if the process had been killed.
    pub fn abort(&self) {}

    /// Waits until it has ended: `Ok` if it was told to, otherwise why.
    pub async fn wait(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Its state in numbers: what a client gets for [`mtimer_protocol::Query::Status`]. `None` if it has ended.
    pub async fn status(&self) -> Option<Status> {
        None
    }
}
