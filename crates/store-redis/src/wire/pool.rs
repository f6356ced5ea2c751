//! The connections of a store, one to a server for each [`Use`], shared by all that use it.
//!
//! A server that is in use no more is forgotten ([`ConnectionPool::keep_only`]): its connection is
//! closed when the last call on it has ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::access::ServerAccess;
use super::connection::{RedisConnection, Use};
use super::node::{Lost, RedisNode};
use super::settings::ServerSettings;

/// A server to which no connection could be made is not tried again for so long. Callers queue on
/// one lock: without this each of them would wait for its own attempt in turn.
const REFUSED_FOR: Duration = Duration::from_millis(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    access: ServerAccess,
    tasks: TaskTracker,
    settings: ServerSettings,
    entries: Lock<Entries>,
}

/// By address and use.
type Entries = HashMap<(String, Use), Arc<Mutex<PoolEntry>>>;

#[derive(Debug, Default)]
enum PoolEntry {
    #[default]
    Unknown,
    Connected(Arc<RedisConnection>),
    Refused(Instant, Lost),
}

impl ConnectionPool {
    /// Connections are opened when they are asked for.
    pub(crate) fn new(access: ServerAccess, tasks: TaskTracker) -> Self {
        Self { access, tasks, settings: ServerSettings::default(), entries: Lock::default() }
    }

    /// How servers are entered.
    pub(crate) const fn access(&self) -> &ServerAccess {
        &self.access
    }

    /// What the servers said of themselves when connections were opened.
    pub(crate) const fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// Where tasks of connections run.
    pub(crate) const fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Forgets all servers but these.
    pub(crate) fn keep_only(&self, servers: &HashSet<String>) {
        let mut entries = self.entries.lock();
        entries.retain(|(address, _), _| servers.contains(address));
        drop(entries);
        self.settings.keep_only(servers);
    }

    /// The live connection to a server, opened if there is none.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why there is none.
    pub(crate) async fn get(&self, address: &str, how: Use) -> Result<Arc<RedisConnection>, Lost> {
        let entry = {
            let mut entries = self.entries.lock();
            entries.entry((address.to_owned(), how)).or_default().clone()
        };
        // Held while connecting: one attempt serves all who wait.
        let mut entry = entry.lock().await;
        match &*entry {
            PoolEntry::Connected(connection) if !connection.is_over() => return Ok(connection.clone()),
            PoolEntry::Refused(at, lost) if at.elapsed() < REFUSED_FOR => return Err(lost.clone()),
            _ => {}
        }
        let opened = RedisConnection::open(address, &self.access, how, &self.tasks).await.map(Arc::new);
        if let Ok(connection) = &opened {
            self.settings.note(address, connection.info());
        }
        *entry = match &opened {
            Ok(connection) => PoolEntry::Connected(connection.clone()),
            Err(lost) => PoolEntry::Refused(Instant::now(), lost.clone()),
        };
        opened
    }
}
