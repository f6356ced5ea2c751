//! The connections of a store, one to a server, shared by all that use it.
//!
//! A server that is in use no more is forgotten ([`Pool::keep_only`]): its connection is closed
//! when the last call on it has ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex as Lock, PoisonError, Weak};
use std::time::Duration;

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
    how: Use,
    tasks: TaskTracker,
    settings: Arc<Settings>,
    entries: Arc<Entries>,
    family: Arc<Family>,
}

/// By address.
type Entries = Lock<HashMap<String, Arc<Mutex<Entry>>>>;
/// The entries of all pools with connections to the same servers.
type Family = Lock<Vec<Weak<Entries>>>;

#[derive(Debug, Default)]
enum Entry {
    #[default]
    Unknown,
    Connected(Arc<Connection>),
    Refused(Instant, Lost),
}

impl Pool {
    /// Connections are opened when they are asked for.
    pub(crate) fn new(access: Access, how: Use, tasks: TaskTracker) -> Self {
        Self::of_family(access, how, tasks, (Arc::default(), Arc::default()))
    }

    fn of_family(
        access: Access,
        how: Use,
        tasks: TaskTracker,
        (settings, family): (Arc<Settings>, Arc<Family>),
    ) -> Self {
        let entries = Arc::<Entries>::default();
        let mut all = family.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|entries| entries.strong_count() > 0);
        all.push(Arc::downgrade(&entries));
        drop(all);
        Self { access, how, tasks, settings, entries, family }
    }

    /// Other connections to the same servers.
    pub(crate) fn with(&self, how: Use) -> Self {
        let family = (self.settings.clone(), self.family.clone());
        Self::of_family(self.access.clone(), how, self.tasks.clone(), family)
    }

    /// Connections to other servers, of which nothing is noted.
    pub(crate) fn entered(&self, access: Access, how: Use) -> Self {
        Self::new(access, how, self.tasks.clone())
    }

    /// How servers are entered.
    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// How connections are used.
    pub(crate) const fn how(&self) -> Use {
        self.how
    }

    /// What the servers said of themselves when connections were opened.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where tasks of connections run.
    pub(crate) const fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Forgets all servers but these, in all pools with connections to the same servers.
    pub(crate) fn keep_only(&self, servers: &HashSet<String>) {
        let family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        for entries in family.iter().filter_map(Weak::upgrade) {
            let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.retain(|address, _| servers.contains(address));
        }
        self.settings.keep_only(servers);
    }

    /// The live connection to a server, opened if there is none.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why there is none.
    pub(crate) async fn get(&self, address: &str) -> Result<Arc<Connection>, Lost> {
        let entry = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.entry(address.to_owned()).or_default().clone()
        };
        // Held while connecting: one attempt serves all who wait.
        let mut entry = entry.lock().await;
        match &*entry {
            Entry::Connected(connection) if !connection.is_over() => return Ok(connection.clone()),
            Entry::Refused(at, lost) if at.elapsed() < REFUSED_FOR => return Err(lost.clone()),
            _ => {}
        }
        let opened = Connection::open(address, &self.access, self.how, &self.tasks).await.map(Arc::new);
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
