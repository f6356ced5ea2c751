//! Connections of the `redis` crate to the servers, for programs that measure them or clear up.
//!
//! Not in here: anything a store does.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tokio_util::task::TaskTracker;

use mtimer_store::StoreError;

use crate::options::RedisOptions;
use crate::wire::{ConnectionPool, Lost, Purpose, ServerAccess, Servers, Use, explain};

/// Connects to every master, entering it as the store does. The connections speak RESP2, even where
/// an address asks for RESP3.
///
/// # Errors
///
/// [`StoreError::Unavailable`]: try again. [`StoreError::Unusable`] says what to change.
pub async fn connect_to_masters(options: &RedisOptions) -> Result<Vec<MultiplexedConnection>, StoreError> {
    let (seeds, access) = options.check()?;
    let access = ServerAccess { resp3: false, ..access };
    let how = Use { purpose: Purpose::Look, answer_within: options.answer_within };
    let pool = ConnectionPool::new(access.clone(), TaskTracker::new());
    let servers = Servers::discover(seeds, pool, how).await.map_err(explain)?;
    let mut all = Vec::new();
    for address in servers.masters() {
        let lost = |error: RedisError| explain(Lost(format!("{address}: {error}")));
        all.push(connect(&address, &access).await.map_err(lost)?);
    }
    Ok(all)
}

async fn connect(address: &str, access: &ServerAccess) -> Result<MultiplexedConnection, RedisError> {
    let mut connection = access.client(address)?.get_multiplexed_async_connection().await?;
    for command in access.login() {
        let () = Cmd::query_async(&command, &mut connection).await?;
    }
    Ok(connection)
}
