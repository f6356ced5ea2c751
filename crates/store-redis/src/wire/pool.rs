//! The connections of a store, one to a server, shared by all that use it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::access::Access;
use super::connection::{Connection, Use};
use super::node::{Lost, Node};
use super::settings::Settings;

/// A server to which no connection could be made is not tried again for so long: its callers come
/// one by one.
const REFUSED_FOR: Duration = Duration::from_millis(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    access: Access,
    how: Use,
    tasks: TaskTracker,
    settings: Arc<Settings>,
    servers: Lock<HashMap<String, Arc<Mutex<Slot>>>>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Unknown,
    Connected(Arc<Connection>),
    Refused(Instant, Lost),
}

impl Pool {
    /// Connections are opened when they are asked for.
    pub(crate) fn new(access: Access, how: Use, tasks: TaskTracker) -> Self {
        Self { access, how, tasks, settings: Arc::default(), servers: Lock::default() }
    }

    /// Other connections to the same servers.
    pub(crate) fn with(&self, how: Use) -> Self {
        let (access, tasks, settings) = (self.access.clone(), self.tasks.clone(), self.settings.clone());
        Self { access, how, tasks, settings, servers: Lock::default() }
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

    /// The live connection to a server, opened if there is none.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why there is none.
    pub(crate) async fn get(&self, address: &str) -> Result<Arc<Connection>, Lost> {
        let slot = {
            let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            servers.entry(address.to_owned()).or_default().clone()
        };
        // Held while connecting: one attempt serves all who wait.
        let mut slot = slot.lock().await;
        match &*slot {
            Slot::Connected(connection) if !connection.is_over() => return Ok(connection.clone()),
            Slot::Refused(at, lost) if at.elapsed() < REFUSED_FOR => return Err(lost.clone()),
            _ => {}
        }
        let opened = Connection::open(address, &self.access, self.how, &self.tasks).await.map(Arc::new);
        if let Ok(connection) = &opened {
            self.settings.note(address, connection.info());
        }
        *slot = match &opened {
            Ok(connection) => Slot::Connected(connection.clone()),
            Err(lost) => Slot::Refused(Instant::now(), lost.clone()),
        };
        opened
    }
}
