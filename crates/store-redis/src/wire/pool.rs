//! The connections of a store, one to a server for each [`Use`], shared by all that use it.
//!
//! A server that is in use no more is forgotten ([`Pool::keep_only`]): its connection is closed
//! when the last call on it has ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::access::Access;
use super::connection::{Connection, Use};
use super::node::{Lost, Node};
use super::settings::Settings;

/// A server to which no connection could be made is not tried again for so long. Callers queue on
/// one lock: without this each of them would wait for its own attempt in turn.
const REFUSED_FOR: Duration = Duration::from_millis(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    access: Access,
    tasks: TaskTracker,
    settings: Settings,
    entries: Lock<Entries>,
}

/// By address and use.
type Entries = HashMap<(String, Use), Arc<Mutex<Entry>>>;

#[derive(Debug, Default)]
enum Entry {
    #[default]
    Unknown,
    Connected(Arc<Connection>),
    Refused(Instant, Lost),
}

impl Pool {
    /// Connections are opened when they are asked for.
    pub(crate) fn new(access: Access, tasks: TaskTracker) -> Self {
        Self { access, tasks, settings: Settings::default(), entries: Lock::default() }
    }

    /// How servers are entered.
    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// What the servers said of themselves when connections were opened.
    pub(crate) const fn settings(&self) -> &Settings {
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
    pub(crate) async fn get(&self, address: &str, how: Use) -> Result<Arc<Connection>, Lost> {
        let entry = {
            let mut entries = self.entries.lock();
            entries.entry((address.to_owned(), how)).or_default().clone()
        };
        // Held while connecting: one attempt serves all who wait.
        let mut entry = entry.lock().await;
        match &*entry {
            Entry::Connected(connection) if !connection.is_over() => return Ok(connection.clone()),
            Entry::Refused(at, lost) if at.elapsed() < REFUSED_FOR => return Err(lost.clone()),
            _ => {}
        }
        let opened = Connection::open(address, &self.access, how, &self.tasks).await.map(Arc::new);
        if let Ok(connection) = &opened {
            self.settings.note(address, connection.info());
        }
        *entry = match &opened {
            Ok(connection) => Entry::Connected(connection.clone()),
            Err(lost) => Entry::Refused(Instant::now(), lost.clone()),
        };
        opened
    }
}
