//! How many replicas have the writes of a server, and how far its append-only file has them.
//!
//! `WAIT` confirms all commands up to the last write of its own connection (since Redis 7.2;
//! before, up to its last command). So each caller's partition is touched first: a write that
//! changes nothing, and that only the owner can do ([`OwnerQuery`]). The server carries out one
//! command after the other, hence everything that it answered anywhere before the touch is covered.
//! If the touch is refused, nothing is confirmed to that caller.
//!
//! `WAIT` is not taken at its word: of the replicas that the server lists only those count whose
//! offset has reached the server's own from before the touch. So a server, or a proxy, on which
//! `WAIT` means something else confirms nothing that is not so.
//!
//! It holds back everything behind it on its connection, so it has connections of its own. One
//! `WAIT` a server at a time: callers that ask meanwhile share the next one (group commit).
//!
//! The syncs of the append-only file are found out by looking at it again and again
//! ([`super::disk`]): nobody waits for them here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use mtimer_store::FirstLine;
use parking_lot::{Mutex, MutexGuard};
use redis::{Cmd, InfoDict, Pipeline, Value};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::{Purpose, Use};
use super::disk::Disks;
use super::fault::{Remedy, remedy};
use super::node::{Lost, Network, RedisNode};
use super::replicas::Replication;
use super::reply::Reply;
use super::script::load_all;
use super::servers::Servers;

/// The commands that ask a server whose a partition is. Both have the same answer.
#[derive(Clone, Debug)]
pub(crate) struct OwnerQuery {
    /// Writes nothing.
    pub(crate) read: Cmd,
    /// Writes the stored value again, if it is the caller's: see the module.
    pub(crate) touch: Cmd,
}

/// The condition to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// So many replicas; 0: the owner query is answered, and nothing is waited for.
    Replicas(u32),
    /// Nothing: asks how far the server's append-only file is synced by now.
    Sync,
}

/// The state of a server and its replicas.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Confirmed {
    /// The reply to the owner query. The rest counts only if this is the reply that the caller
    /// expects: the server may have been restarted, or have handed the hash slot over.
    pub(crate) read: Value,
    /// How many replicas have everything that the server had carried out when this was asked. 0
    /// if none was waited for.
    pub(crate) replicas: u32,
    /// How many replicas were connected then, also those that did not have all their data yet.
    pub(crate) connected: u32,
    /// All that the server had answered before this moment is in its append-only file, and synced.
    /// `None`: it does not say so, or was not asked.
    pub(crate) synced: Option<Instant>,
}

/// Tells which writes replicas and the append-only file have.
pub(crate) trait Replicas: Send + Sync {
    /// [`Confirmations::confirm`], of the master of a hash slot.
    fn confirm(
        &self,
        hash_slot: u16,
        wanted: Wanted,
        query: OwnerQuery,
    ) -> BoxFuture<'static, Result<Confirmed, Lost>>;
}

/// See the module. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Confirmations {
    servers: Servers,
    disks: Disks,
    /// `WAIT` and the offsets of replicas have differed.
    differs: Arc<FirstLine>,
    /// Time limit of a wait for replicas.
    wait: Duration,
    /// Requests for the next `WAIT` of a server, by address. An address is there as long as a task
    /// serves it.
    waiting: Arc<Mutex<HashMap<String, Vec<ConfirmRequest>>>>,
}

#[derive(Debug)]
struct ConfirmRequest {
    query: OwnerQuery,
    wanted: Wanted,
    to: oneshot::Sender<Result<Confirmed, Lost>>,
}

impl Replicas for Confirmations {
    fn confirm(
        &self,
        hash_slot: u16,
        wanted: Wanted,
        query: OwnerQuery,
    ) -> BoxFuture<'static, Result<Confirmed, Lost>> {
        match self.servers.master_address(hash_slot) {
            Some(address) => Self::confirm(self, &address, wanted, query),
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
        let (disks, differs, waiting) = Default::default();
        Self { servers, disks, differs, wait, waiting }
    }

    /// Waits until so many replicas of the server at an address have everything that it had carried
    /// out when this was called, or until the time limit has passed.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the server did not answer, or is no master.
    pub(crate) fn confirm(
        &self,
        address: &str,
        wanted: Wanted,
        query: OwnerQuery,
    ) -> BoxFuture<'static, Result<Confirmed, Lost>> {
        let (to, confirmed) = oneshot::channel();
        let request = ConfirmRequest { query, wanted, to };
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

    /// Takes the requests that wait by now; `None`: there are none, and the server is served no
    /// more.
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

    /// One `WAIT` behind the queries of a group, and a look at the append-only file if one of them
    /// is about that.
    async fn wait(&self, address: &str, group: &[ConfirmRequest]) -> Result<Vec<Confirmed>, Lost> {
        let server = self.servers.at(address).await?;
        let replicas = |request: &ConfirmRequest| match request.wanted {
            Wanted::Replicas(replicas) => replicas,
            Wanted::Sync => 0,
        };
        let wanted = group.iter().map(replicas).max().unwrap_or(0);
        let is_about_disk = group.iter().any(|request| request.wanted == Wanted::Sync);
        let mut commands = Pipeline::with_capacity(group.len() + 4);
        // Unlike ROLE, it also counts replicas that do not have all their data yet.
        commands.cmd("INFO").arg(&["replication", "persistence", "stats"]);
        let look = is_about_disk.then(|| self.disks.begin(address, &server, &self.servers.masters()));
        if let Some(look) = &look {
            look.add(&mut commands);
        }
        let first = commands.len();
        for request in group {
            let query = &request.query;
            commands.add_command(if wanted > 0 { query.touch.clone() } else { query.read.clone() });
        }
        if wanted > 0 {
            commands.cmd("WAIT").arg(wanted).arg(self.wait.as_millis() as u64);
            commands.cmd("INFO").arg("replication");
        }
        let asked = Instant::now();
        let mut about = call(&*server, commands).await?;
        let mut reads = about.split_off(first);
        let last = reads.split_off(group.len());
        let before = Replication::read(address, &about[0])?;
        let (mut replicas, mut connected) = (0, before.connected());
        if let [waited, info] = &last[..] {
            let after = Replication::read(address, info)?;
            let number = waited.number().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
                let said = waited.refusal().unwrap_or_else(|| "no number of replicas".into());
                Lost(format!("{address}: WAIT: {said}"))
            })?;
            replicas = after.having(before.offset(), number, &self.differs);
            connected = connected.max(after.connected());
        }
        let synced = look.and_then(|look| {
            let info = InfoDict::new(about[0].text().unwrap_or_default());
            self.servers.settings().note(address, &info);
            self.disks.end(look, &info, about.get(1), (asked, Instant::now()))
        });
        let confirmed = |read| Confirmed { read, replicas, connected, synced };
        Ok(reads.into_iter().map(confirmed).collect())
    }
}

/// Sends commands; once more, if the server has not the scripts.
async fn call(server: &dyn RedisNode, commands: Pipeline) -> Result<Vec<Value>, Lost> {
    let answers = server.call(commands.clone()).await?;
    let is_missing = |answer: &Value| {
        answer.refusal().is_some_and(|error| remedy(&error, server.address()) == Remedy::LoadScripts)
    };
    if !answers.iter().any(is_missing) {
        return Ok(answers);
    }
    server.call(load_all()).await?;
    server.call(commands).await
}
