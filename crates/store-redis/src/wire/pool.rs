//! The connections of a store, one to a server for each [`Use`], shared by all that use it.
//!
//! A connection does not outlive the role for which it was opened. One to a server that is in use
//! no more ends at once ([`ConnectionPool::keep_only`]), and so does one to a server that has lost
//! its address to another ([`ConnectionPool::end_others`]). Unanswered commands are lost then, and
//! are sent again to the server that has taken the place.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::access::{ServerAccess, is_refused_login};
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

    /// Returns the settings that the servers have reported.
    pub(crate) const fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// Where tasks of connections run.
    pub(crate) const fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Ends the connections to all servers but these.
    pub(crate) fn keep_only(&self, servers: &HashSet<String>) {
        let mut entries = self.entries.lock();
        entries.retain(|(address, _), entry| {
            let keeps = servers.contains(address);
            if let Some(connection) = connected(entry).filter(|_| !keeps) {
                connection.end("another server is the master now");
            }
            keeps
        });
        drop(entries);
        self.settings.keep_only(servers);
    }

    /// Ends the connections at an address that lead to another process than this one; whether there
    /// were any.
    pub(crate) fn end_others(&self, address: &str, run_id: Option<&str>) -> bool {
        let mut others = self.connected_to(address);
        others.retain(|connection| connection.run_id().as_deref() != run_id);
        others.iter().for_each(|connection| connection.end("the address leads to another server now"));
        !others.is_empty()
    }

    /// Whether a live connection at an address leads to this process.
    pub(crate) fn leads_to(&self, address: &str, run_id: Option<&str>) -> bool {
        self.connected_to(address)
            .iter()
            .any(|connection| !connection.is_over() && connection.run_id().as_deref() == run_id)
    }

    /// The connections at an address, for all uses. Leaves out those that are being opened.
    fn connected_to(&self, address: &str) -> Vec<Arc<RedisConnection>> {
        let entries = self.entries.lock();
        entries
            .iter()
            .filter(|((at, _), _)| at == address)
            .filter_map(|(_, entry)| connected(entry))
            .collect()
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
        let opened = self.open(address, how).await.map(Arc::new);
        if let Ok(connection) = &opened {
            self.settings.note(address, connection.info());
        }
        *entry = match &opened {
            Ok(connection) => PoolEntry::Connected(connection.clone()),
            Err(lost) => PoolEntry::Refused(Instant::now(), lost.clone()),
        };
        opened
    }

    /// Opens a connection that nobody else gets. If the server refuses the password, and there is
    /// another by now, tries that one.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why it failed.
    pub(crate) async fn open(&self, address: &str, how: Use) -> Result<RedisConnection, Lost> {
        let opened = RedisConnection::open(address, &self.access, how, &self.tasks).await;
        match &opened {
            Err(Lost(why)) if is_refused_login(why) && self.has_another_login().await => {
                RedisConnection::open(address, &self.access, how, &self.tasks).await
            }
            _ => opened,
        }
    }

    async fn has_another_login(&self) -> bool {
        let login = self.access.login.clone();
        // It reads files.
        matches!(tokio::task::spawn_blocking(move || login.read_again()).await, Ok(Ok(true)))
    }
}

fn connected(entry: &Mutex<PoolEntry>) -> Option<Arc<RedisConnection>> {
    match &*entry.try_lock().ok()? {
        PoolEntry::Connected(connection) => Some(connection.clone()),
        PoolEntry::Unknown | PoolEntry::Refused(..) => None,
    }
}
