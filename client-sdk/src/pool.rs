//! Which connections there are: one to a broker that has no cluster around it, or one to every
//! broker of the topology, unless the settings ask for one only.
//!
//! Invariant: never two connections to the same broker, and never more tries than the delays of a
//! [`DialPlan`] allow.
//!
//! With no connection at all, the addresses of the settings are tried in turn, next to the brokers
//! that were known last. Not in here: what goes over a connection, and when one is left
//! ([`session`](crate::session)).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::ConnectError;
use crate::error::LinkError;
use crate::handle::SessionHandle;
use crate::link::{BrokerConnection, DialPlan};
use crate::session;
use crate::state::ClientState;
use crate::sync::Locked;

/// A connection that lasted so long was a good one: the next loss is answered at once.
const GOOD: Duration = Duration::from_secs(5);

/// Whom a try is made for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum DialTarget {
    /// Anybody whom the settings name.
    Seed,
    /// A broker of the topology.
    Broker(String),
}

#[derive(Debug)]
enum PoolEvent {
    Tried(DialTarget, DialPlan, Result<Box<BrokerConnection>, ConnectError>),
    Ended(Arc<SessionHandle>, LinkError),
}

/// A connection in use.
#[derive(Debug)]
struct OpenConnection {
    name: Option<String>,
    /// Where it was made to.
    address: String,
    since: Instant,
    /// For whom it was made.
    target: DialTarget,
}

#[derive(Debug)]
struct Pool {
    state: Arc<ClientState>,
    tasks: JoinSet<PoolEvent>,
    open: BTreeMap<u64, OpenConnection>,
    /// At rest; a try takes its link with it and brings it back.
    links: BTreeMap<DialTarget, DialPlan>,
    trying: BTreeMap<DialTarget, AbortHandle>,
    /// Brokers that could not be reached at the first try.
    failed: BTreeSet<String>,
    /// What links are made from.
    seeds: DialPlan,
    /// Since when there is no connection at all.
    alone_since: Option<Instant>,
}

/// Keeps the client connected until it is stopped; `link` is how the `first` connection was made,
/// which is in use as `handle`.
pub(crate) async fn keep(
    state: Arc<ClientState>,
    link: DialPlan,
    first: BrokerConnection,
    handle: Arc<SessionHandle>,
) {
    let seeds = link.copy();
    let mut pool = Pool {
        state,
        tasks: JoinSet::new(),
        open: BTreeMap::new(),
        links: BTreeMap::from([(DialTarget::Seed, link)]),
        trying: BTreeMap::new(),
        failed: BTreeSet::new(),
        seeds,
        alone_since: None,
    };
    pool.serve(DialTarget::Seed, first, handle);
    while !pool.state.token.is_cancelled() {
        pool.plan();
        tokio::select! {
            event = pool.tasks.join_next(), if !pool.tasks.is_empty() => {
                // An error is a try that was given up, as it was not needed any more.
                if let Some(Ok(event)) = event {
                    pool.handle(event);
                }
            }
            () = pool.state.rewire.notified() => {}
        }
    }
}

impl Pool {
    fn handle(&mut self, event: PoolEvent) {
        match event {
            PoolEvent::Tried(target, link, result) => {
                self.trying.remove(&target);
                self.links.insert(target.clone(), link);
                match result {
                    Ok(connection) => self.opened(target, *connection),
                    Err(error) => {
                        tracing::debug!(?target, %error, "no connection yet");
                        self.state.fault(error.to_string());
                        if let DialTarget::Broker(name) = target {
                            self.failed.insert(name);
                        }
                    }
                }
            }
            PoolEvent::Ended(handle, end) => {
                self.state.closed(&handle, &end.to_string());
                let Some(open) = self.open.remove(&handle.session) else { return };
                self.say_lost(&open, handle.session, &end);
                if let Some(link) = self.links.get_mut(&open.target).filter(|_| open.since.elapsed() >= GOOD)
                {
                    link.reset();
                }
            }
        }
    }

    fn opened(&mut self, target: DialTarget, connection: BrokerConnection) {
        let name = connection.welcome.broker.clone();
        let known = self.open.values().any(|open| name.is_none() || open.name.is_none() || open.name == name);
        if known {
            // Another name for a broker that is connected already, or one that is not of the
            // cluster.
            tracing::debug!(dialled = connection.broker, ?name, "one connection to a broker is enough");
            if let DialTarget::Broker(target) = target {
                self.failed.insert(target);
            }
            return;
        }
        let handle = self.state.opened(&connection);
        self.serve(target, connection, handle);
    }

    /// Logs the end of a connection. What is tried until there is another one is not logged.
    ///
    /// A client that closes wants its connections to end. What is left open then is in the result
    /// of [`Client::close`](crate::Client::close).
    fn say_lost(&mut self, open: &OpenConnection, session: u64, end: &LinkError) {
        let broker = open.name.as_deref().unwrap_or(&open.address);
        if self.state.is_closing() {
            tracing::info!(broker, session, reason = %end, "disconnected while the client closes");
        } else if self.open.is_empty() {
            self.alone_since = Some(Instant::now());
            tracing::warn!(broker, session, reason = %end, "the last connection is lost, and is tried again until a broker answers");
        } else if matches!(end, LinkError::Left) {
            tracing::info!(broker, session, reason = %end, "disconnected from a broker that stopped");
        } else {
            tracing::warn!(broker, session, reason = %end, "connection lost");
        }
    }

    fn serve(&mut self, target: DialTarget, connection: BrokerConnection, handle: Arc<SessionHandle>) {
        let (broker, session) = (connection.broker.as_str(), handle.session);
        match self.alone_since.take() {
            // As loud as the loss.
            Some(since) => {
                let away_ms = since.elapsed().as_millis() as u64;
                tracing::warn!(broker, session, away_ms, "connected again");
            }
            None => tracing::info!(broker, session, "connected"),
        }
        let (name, address) = (handle.name.clone(), connection.broker.clone());
        self.open.insert(handle.session, OpenConnection { name, address, since: Instant::now(), target });
        let state = Arc::clone(&self.state);
        self.tasks.spawn(async move {
            let run = AssertUnwindSafe(session::run(&state, connection, &handle)).catch_unwind();
            let end = run.await.unwrap_or(LinkError::Closed);
            PoolEvent::Ended(handle, end)
        });
    }

    /// Begins the tries that are needed, and gives up those that are not.
    fn plan(&mut self) {
        let topology = self.state.router.locked().routes.topology().cloned();
        let alone = self.open.values().any(|open| open.name.is_none());
        let brokers =
            topology.iter().filter(|_| !alone && !self.state.settings.one_broker).flat_map(|t| &t.brokers);
        let is_open = |address: &str| self.open.values().any(|open| open.name.as_deref() == Some(address));
        let mut wanted: BTreeSet<DialTarget> = brokers
            .filter(|broker| !is_open(&broker.address))
            .map(|broker| DialTarget::Broker(broker.address.clone()))
            .collect();
        let tried =
            wanted.iter().all(|t| matches!(t, DialTarget::Broker(name) if self.failed.contains(name)));
        if !self.open.is_empty() && (alone || (topology.is_some() && tried)) {
            self.state.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
        }
        if self.open.is_empty() {
            wanted.insert(DialTarget::Seed);
        }
        self.trying.retain(|target, task| {
            let keep = wanted.contains(target);
            if !keep {
                task.abort();
            }
            keep
        });
        let of_use = |target: &DialTarget| {
            *target == DialTarget::Seed
                || wanted.contains(target)
                || self.open.values().any(|o| o.target == *target)
        };
        self.links.retain(|target, _| of_use(target));
        for target in wanted {
            if !self.trying.contains_key(&target) {
                self.begin(target);
            }
        }
    }

    fn begin(&mut self, target: DialTarget) {
        let mut link = self.links.remove(&target).unwrap_or_else(|| match &target {
            DialTarget::Seed => self.seeds.copy(),
            DialTarget::Broker(name) => self.seeds.to(name.clone()),
        });
        let key = target.clone();
        let task = self.tasks.spawn(async move {
            let result = link.again().await.map(Box::new);
            PoolEvent::Tried(target, link, result)
        });
        self.trying.insert(key, task);
    }
}

#[cfg(test)]
mod tests;
