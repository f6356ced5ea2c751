//! How many replicas have what a server has carried out.
//!
//! `WAIT` holds back everything behind it on its connection, and it confirms what was carried out
//! up to the last command of that same connection; on a fresh one that is nothing. So it has
//! connections of its own, and a read goes before it: the server carries out one command after the
//! other, hence whatever it answered anywhere before the read is covered.
//!
//! One `WAIT` a server at a time: those who ask meanwhile share the next one (group commit).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::{Mutex, MutexGuard};
use redis::{Cmd, InfoDict, Pipeline, Value};
use tokio::sync::oneshot;

use super::connection::{Purpose, Use};
use super::node::{Lost, Network};
use super::reply::Reply;
use super::servers::Servers;

/// What a server and its replicas have.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Confirmed {
    /// The reply to the read. Only if it says what the caller expects does the rest count: the
    /// server may have been restarted, or have handed the hash slot over.
    pub(crate) read: Value,
    /// How many replicas have everything that the server had carried out when it answered the read.
    pub(crate) replicas: u32,
    /// How many replicas were connected then, also those that did not have all their data yet.
    pub(crate) connected: u32,
}

/// Tells what replicas have.
pub(crate) trait Replicas: Send + Sync {
    /// [`Confirmations::confirm`], of the master of a hash slot.
    fn confirm(
        &self,
        hash_slot: u16,
        replicas: u32,
        read: Cmd,
    ) -> BoxFuture<'static, Result<Confirmed, Lost>>;
}

/// How many replicas must have a write.
#[derive(Clone)]
pub(crate) struct Quorum {
    /// Waits for them as long as the level says.
    pub(crate) confirmations: Arc<dyn Replicas>,
    pub(crate) replicas: u32,
}

/// See the module. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Confirmations {
    servers: Servers,
    /// Time limit of a wait for replicas.
    wait: Duration,
    /// Those who wait for the next `WAIT` of a server, by address. An address is there as long as a
    /// task serves it.
    waiting: Arc<Mutex<HashMap<String, Vec<ConfirmRequest>>>>,
}

#[derive(Debug)]
struct ConfirmRequest {
    read: Cmd,
    replicas: u32,
    to: oneshot::Sender<Result<Confirmed, Lost>>,
}

impl Replicas for Confirmations {
    fn confirm(
        &self,
        hash_slot: u16,
        replicas: u32,
        read: Cmd,
    ) -> BoxFuture<'static, Result<Confirmed, Lost>> {
        match self.servers.master_address(hash_slot) {
            Some(address) => Self::confirm(self, &address, replicas, read),
            None => ready(Err(Lost(format!("no server has hash slot {hash_slot}")))).boxed(),
        }
    }
}

impl Confirmations {
    /// Replicas are waited for no longer than `wait`, over connections for `purpose`.
    /// `answer_within` is as in [`Use`].
    pub(crate) fn new(servers: &Servers, purpose: Purpose, wait: Duration, answer_within: Duration) -> Self {
        // For WAIT 0 is forever.
        let wait = wait.max(Duration::from_millis(1));
        let servers = servers.over(Use { purpose, answer_within: answer_within + wait });
        Self { servers, wait, waiting: Arc::default() }
    }

    /// Waits until so many replicas of the server at an address have everything that it had carried
    /// out when this was called, or until the time limit has passed. `read` is a command that
    /// writes nothing.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the server did not answer, or is no master.
    pub(crate) fn confirm(
        &self,
        address: &str,
        replicas: u32,
        read: Cmd,
    ) -> BoxFuture<'static, Result<Confirmed, Lost>> {
        let (to, confirmed) = oneshot::channel();
        let request = ConfirmRequest { read, replicas, to };
        match self.waiting().entry(address.to_owned()) {
            Entry::Occupied(mut served) => served.get_mut().push(request),
            Entry::Vacant(idle) => {
                idle.insert(vec![request]);
                self.servers.tasks().spawn(self.clone().serve(address.to_owned()));
            }
        }
        async move { confirmed.await.unwrap_or_else(|_| Err(Lost("confirmations have ended".into()))) }
            .boxed()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Vec<ConfirmRequest>>> {
        self.waiting.lock()
    }

    /// Those who wait by now; `None`: nobody, and the server is served no more.
    fn next_group(&self, address: &str) -> Option<Vec<ConfirmRequest>> {
        let mut waiting = self.waiting();
        let group = waiting.get_mut(address)?;
        group.retain(|request| !request.to.is_closed());
        let group = std::mem::take(group);
        if group.is_empty() {
            waiting.remove(address);
            return None;
        }
        Some(group)
    }

    async fn serve(self, address: String) {
        while let Some(group) = self.next_group(&address) {
            let confirmed = match self.wait(&address, &group).await {
                Ok(confirmed) => confirmed.into_iter().map(Ok).collect(),
                Err(lost) => vec![Err(lost); group.len()],
            };
            for (request, confirmed) in group.into_iter().zip(confirmed) {
                // The caller may have dropped its future.
                let _ = request.to.send(confirmed);
            }
        }
    }

    /// One `WAIT` behind the reads of a group.
    async fn wait(&self, address: &str, group: &[ConfirmRequest]) -> Result<Vec<Confirmed>, Lost> {
        let server = self.servers.at(address).await?;
        let mut commands = Pipeline::with_capacity(group.len() + 2);
        for request in group {
            commands.add_command(request.read.clone());
        }
        let replicas = group.iter().map(|request| request.replicas).max().unwrap_or(0);
        // Unlike ROLE, it also counts replicas that do not have all their data yet.
        commands.cmd("INFO").arg("replication");
        commands.cmd("WAIT").arg(replicas).arg(self.wait.as_millis() as u64);
        let mut reads = server.call(commands).await?;
        let waited = reads.pop().unwrap_or(Value::Nil);
        let info = reads.pop().unwrap_or(Value::Nil);
        let confirmed = waited.number().and_then(|n| u32::try_from(n).ok());
        let refused = || {
            let said = waited.refusal().unwrap_or_else(|| "no number of replicas".into());
            Lost(format!("{}: WAIT: {said}", server.address()))
        };
        let replicas = confirmed.ok_or_else(refused)?;
        let connected = info.text().and_then(|text| InfoDict::new(text).get("connected_slaves"));
        let unsaid = || Lost(format!("{}: INFO does not say how many replicas there are", server.address()));
        let connected = connected.ok_or_else(unsaid)?;
        Ok(reads.into_iter().map(|read| Confirmed { read, replicas, connected }).collect())
    }
}
