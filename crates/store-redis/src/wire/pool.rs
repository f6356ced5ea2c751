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
    slots: Arc<Slots>,
    family: Arc<Family>,
}

/// By address.
type Slots = Lock<HashMap<String, Arc<Mutex<Slot>>>>;
/// The slots of all pools with connections to the same servers.
type Family = Lock<Vec<Weak<Slots>>>;

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
        Self::of_family(access, how, tasks, (Arc::default(), Arc::default()))
    }

    fn of_family(
        access: Access,
        how: Use,
        tasks: TaskTracker,
        (settings, family): (Arc<Settings>, Arc<Family>),
    ) -> Self {
        let slots = Arc::<Slots>::default();
        let mut all = family.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|slots| slots.strong_count() > 0);
        all.push(Arc::downgrade(&slots));
        drop(all);
        Self { access, how, tasks, settings, slots, family }
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
        for slots in family.iter().filter_map(Weak::upgrade) {
            let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.retain(|address, _| servers.contains(address));
        }
        self.settings.keep_only(servers);
    }

    /// The live connection to a server, opened if there is none.
    ///
    /// # Errors
    ///
    /// [`Lost`] says why there is none.
    pub(crate) async fn get(&self, address: &str) -> Result<Arc<Connection>, Lost> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.entry(address.to_owned()).or_default().clone()
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
